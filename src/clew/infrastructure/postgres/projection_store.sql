-- The generations of projections, and the tables next to theirs. Each heading names a statement.

-- lock
-- One lock for all projections of the database, which the writers of some share, and one lock for each projection.
SELECT pg_advisory_xact_lock(1131172976, 0)

-- lock shared
SELECT pg_advisory_xact_lock_shared(1131172976, 0)

-- lock one
SELECT pg_advisory_xact_lock(1131172976, {lock})

-- generations
SELECT id, name, version, code, shape, position, hash, live FROM clew_generation ORDER BY id

-- live
SELECT id, tables FROM clew_generation WHERE name = %(name)b AND live

-- live names
SELECT DISTINCT name FROM clew_generation WHERE live ORDER BY name

-- declared
SELECT tables FROM clew_generation WHERE id = %(generation)b

-- indexes
SELECT texts FROM clew_generation WHERE id = %(generation)b

-- begin
INSERT INTO clew_generation (name, version, code, shape, position, hash, live, tables, texts)
VALUES (%(name)b, %(version)b, %(code)b, %(shape)b, 0, '', %(live)b, %(tables)b, %(texts)b)

-- newest
SELECT max(id) FROM clew_generation WHERE name = %(name)b

-- move
UPDATE clew_generation SET position = %(position)b, hash = %(hash)b WHERE id = %(generation)b

-- switch
UPDATE clew_generation SET live = true WHERE id = %(generation)b

-- drop
DELETE FROM clew_generation WHERE id = %(generation)b

-- drop parked
DELETE FROM clew_parked WHERE generation = %(generation)b

-- drop stretches
DELETE FROM clew_stretch WHERE generation = %(generation)b

-- park
INSERT INTO clew_parked (generation, position, tenant, stream, version, type, error)
VALUES (%(generation)b, %(position)b, %(tenant)b, %(stream)b, %(version)b, %(type)b, %(error)b)
ON CONFLICT (generation, position) DO UPDATE SET error = excluded.error

-- parked
SELECT count(*) OVER (), position, stream, version, type, error FROM clew_parked
WHERE generation = %(generation)b ORDER BY position LIMIT %(limit)b

-- forget
UPDATE clew_generation SET forgot = forgot + 1 WHERE id = %(generation)b

-- not cleaned
SELECT id FROM clew_generation WHERE cleaned < forgot

-- forgot
SELECT texts, forgot FROM clew_generation WHERE id = %s

-- cleaned
UPDATE clew_generation SET cleaned = greatest(cleaned, %s) WHERE id = %s

-- lock leases
-- The workers that maintain projections, each with its leases. A worker claims after it has read those of all others.
SELECT pg_advisory_xact_lock(1131172977, 0)

-- shares
-- The server's clock counts.
SELECT worker, projection, held FROM clew_worker WHERE until > statement_timestamp() ORDER BY worker, projection

-- put lease
INSERT INTO clew_worker (worker, projection, until, held)
VALUES (%(worker)b, %(projection)b, statement_timestamp() + %(seconds)b * interval '1 second', %(held)b)
ON CONFLICT (worker, projection) DO UPDATE SET until = excluded.until, held = excluded.held

-- drop old leases
DELETE FROM clew_worker
WHERE until <= statement_timestamp() OR (worker = %(worker)b AND projection <> ALL (%(names)b::text[]))

-- drop leases
DELETE FROM clew_worker WHERE worker = %(worker)b
