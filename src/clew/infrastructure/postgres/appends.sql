-- The statements of the writers of a PostgreSQL store. Each heading names a statement.

-- insert what follows
-- One statement and one round trip: all rows of an append, or none if the previous event is not stored. {rows}
-- are n, tenant, stream, version, type, state, hash, and the version and hash of the previous event; $1 is the base; $2
-- is the lock timeout for this transaction, null to keep the session's.
INSERT INTO clew_event (position, tenant, stream, version, type, state, hash)
SELECT (($1 + pg_current_xact_id()::text::int8) << 20) | n, tenant, stream, version, type, state, hash
FROM (VALUES {rows}) AS row (n, tenant, stream, version, type, state, hash, before, previous)
WHERE (SELECT hash FROM clew_event AS last WHERE last.stream = row.stream AND last.version = row.before) = row.previous
    AND (SELECT set_config('lock_timeout', convert_from($2, 'UTF8'), true) WHERE $2 IS NOT NULL) IS DISTINCT FROM ''
RETURNING position

-- insert
INSERT INTO clew_event (position, tenant, stream, version, type, state, hash, digest)
SELECT %(first)b::int8 + n - 1, tenant, stream, version, type, state, hash, digest
FROM unnest(
    %(tenants)b::int8[], %(streams)b::int8[], %(versions)b::int8[], %(types)b::bytea[], %(states)b::bytea[],
    %(hashes)b::bytea[], %(digests)b::bytea[]
) WITH ORDINALITY AS row (tenant, stream, version, type, state, hash, digest, n)
ORDER BY stream, version

-- copy
COPY clew_event (position, tenant, stream, version, type, state, hash, digest) FROM STDIN (FORMAT BINARY)

-- begin streams
INSERT INTO clew_stream (id, tenant, name, parent, cut, began)
SELECT id, tenant, name, parent, cut, %(first)b::int8 + ordinal
FROM unnest(
    %(ids)b::int8[], %(tenants)b::int8[], %(names)b::bytea[], %(parents)b::int8[], %(cuts)b::int8[],
    %(ordinals)b::int8[]
) AS begun (id, tenant, name, parent, cut, ordinal)
ORDER BY id

-- first
-- The position of the first row of this transaction.
SELECT (%(base)b::int8 + pg_current_xact_id()::text::int8) << 20

-- outcome of a transaction
SELECT pg_xact_status(%(transaction)b::int8::text::xid8)

-- position of a row
SELECT position FROM clew_event WHERE stream = %(stream)b AND version = %(version)b AND hash = %(hash)b

-- lock streams
SELECT FROM clew_stream WHERE id = ANY (%(ids)b::int8[]) ORDER BY id FOR NO KEY UPDATE

-- heads
SELECT stream.id, stream.name, last.version, last.hash
FROM clew_stream AS stream
CROSS JOIN LATERAL (
    SELECT version, hash FROM clew_event WHERE clew_event.stream = stream.id ORDER BY version DESC LIMIT 1
) AS last
WHERE stream.id = ANY (%(ids)b::int8[])

-- fork
SELECT 1 FROM clew_stream WHERE parent = %(stream)b AND cut >= %(cut)b LIMIT 1

-- row
SELECT state, digest, hash FROM clew_event WHERE stream = %(stream)b AND version = %(version)b

-- key
SELECT first, last, salt, digest FROM clew_key WHERE stream = %(stream)b AND key = %(key)b

-- rows of a key
SELECT position, hash, version FROM clew_event WHERE position BETWEEN %(first)b AND %(last)b ORDER BY position

-- put key
INSERT INTO clew_key (tenant, stream, key, salt, digest, first, last)
VALUES (%(tenant)b, %(stream)b, %(key)b, %(salt)b, %(digest)b, %(first)b, %(last)b)

-- shred
-- Sets the tenant of the row first: with row-level security the function checks it.
WITH whose AS MATERIALIZED (SELECT set_config('clew.tenant', %(tenant)b, true) AS tenant)
SELECT clew_shred(%(stream)b, %(version)b, %(digest)b, %(stub)b) FROM whose WHERE tenant IS NOT NULL

-- count shredded
SELECT clew_count_shreds(%(count)b)

-- put snapshot
INSERT INTO clew_snapshot (tenant, stream, version, state)
SELECT %(tenant)b::int8, %(stream)b::int8, %(version)b::int8, %(state)b::bytea
FROM clew_meta WHERE shredded = coalesce(%(shredded)b::int8, shredded)
ON CONFLICT (stream, version) DO UPDATE SET state = excluded.state

-- put entries
INSERT INTO clew_entry (tenant, stream, number, version)
SELECT tenant, stream, number, version
FROM unnest(%(tenants)b::int8[], %(streams)b::int8[], %(numbers)b::int8[], %(versions)b::int8[])
    AS entry (tenant, stream, number, version)
ORDER BY stream, number, version
ON CONFLICT (stream, number, version) DO NOTHING

-- drop entries
DELETE FROM clew_entry
WHERE stream = %(stream)b AND version = %(version)b AND number = ANY (%(numbers)b::int8[])

-- drop snapshots
WITH RECURSIVE line (id) AS (
    SELECT %(stream)b::int8
    UNION SELECT fork.id FROM line JOIN clew_stream AS fork ON fork.parent = line.id
)
DELETE FROM clew_snapshot WHERE stream IN (SELECT id FROM line)

-- drop keys
DELETE FROM clew_key WHERE stream = %(stream)b

-- drop keys of a tenant
-- Sets the tenant first, as for a shred.
WITH whose AS MATERIALIZED (SELECT set_config('clew.tenant', %(tenant)b, true) AS tenant)
SELECT clew_forget_keys(%(stream)b) FROM whose WHERE tenant IS NOT NULL

-- shredding
-- Before states of folds and snapshots are dropped: one that is stored meanwhile may hold the shredded bytes.
SELECT pg_advisory_xact_lock(1131177328)

-- deriving
-- Waits for transactions that shred, so that the next statement sees how many rows are shredded.
SELECT pg_advisory_xact_lock_shared(1131177328)

-- put fold state
INSERT INTO clew_fold_state (tenant, stream, name, slot, version, state)
SELECT %(tenant)b::int8, %(stream)b::int8, %(fold)b::bytea, %(slot)b::int8, %(version)b::int8, %(state)b::bytea
FROM clew_meta WHERE shredded = %(shredded)b
ON CONFLICT (stream, name, slot) DO UPDATE SET version = excluded.version, state = excluded.state
WHERE clew_fold_state.version <= excluded.version

-- drop fold states
WITH RECURSIVE holder (id, tenant) AS (
    SELECT id, tenant FROM clew_stream WHERE id = %(stream)b
    UNION
    SELECT s.id, s.tenant FROM holder JOIN clew_stream AS s ON s.parent = holder.id AND s.tenant = holder.tenant
    WHERE s.cut >= %(version)b
)
DELETE FROM clew_fold_state WHERE version >= %(version)b AND stream IN (SELECT id FROM holder)

-- put blobs
INSERT INTO clew_blob (tenant, digest, kind, data, came)
SELECT %(tenant)b::int8, digest, kind, data, %(first)b::int8 + n - 1
FROM unnest(%(digests)b::bytea[], %(kinds)b::bytea[], %(datas)b::bytea[])
    WITH ORDINALITY AS blob (digest, kind, data, n)
ORDER BY digest
ON CONFLICT (tenant, digest) DO NOTHING

-- put record blobs
-- After "deriving": no transaction destroys bytes that are found here.
INSERT INTO clew_record_blob (tenant, digest, number, data)
SELECT %(tenant)b::int8, digest, number, data
FROM unnest(%(digests)b::bytea[], %(numbers)b::int8[], %(datas)b::bytea[]) AS blob (digest, number, data)
ORDER BY digest
ON CONFLICT (tenant, digest) DO NOTHING

-- drop record blobs
-- After "shredding" and after the numbers of the shredded rows are gone: other records may have the same bytes.
DELETE FROM clew_record_blob AS blob
WHERE tenant = %(tenant)b AND digest = ANY (%(digests)b::bytea[]) AND NOT EXISTS (
    SELECT FROM clew_entry AS entry
    WHERE entry.tenant = blob.tenant AND entry.number = blob.number AND entry.number >= 4611686018427387904
)

-- lease
SELECT holder, until FROM clew_lease WHERE stream = %(stream)b

-- take lease
INSERT INTO clew_lease (tenant, stream, holder, until) VALUES (%(tenant)b, %(stream)b, %(holder)b, %(until)b)
ON CONFLICT (stream) DO UPDATE SET holder = excluded.holder, until = excluded.until

-- drop lease
DELETE FROM clew_lease WHERE stream = %(stream)b

-- put draft
INSERT INTO clew_draft (tenant, stream, run, data) VALUES (%(tenant)b, %(stream)b, %(run)b, %(data)b)
ON CONFLICT (stream) DO UPDATE SET run = excluded.run, data = excluded.data

-- drop draft
DELETE FROM clew_draft WHERE stream = %(stream)b

-- track
INSERT INTO clew_tracking AS kept (application, notification) VALUES (%(application)b, %(notification)b)
ON CONFLICT (application) DO UPDATE SET notification = excluded.notification
WHERE kept.notification < excluded.notification
RETURNING notification

-- tracked
SELECT notification FROM clew_tracking WHERE application = %(application)b
