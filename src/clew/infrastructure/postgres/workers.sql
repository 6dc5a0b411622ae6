-- The workers that fill projections, each with its leases. Each heading names a statement. The server's clock counts.

-- lock
-- Who claims looks first at what all others hold.
SELECT pg_advisory_xact_lock(1131172977, 0)

-- shares
SELECT worker, projection, held FROM clew_worker WHERE until > statement_timestamp() ORDER BY worker, projection

-- put
INSERT INTO clew_worker (worker, projection, until, held)
SELECT %(worker)b, projection, statement_timestamp() + %(seconds)b * interval '1 second', held
FROM unnest(%(names)b::text[], %(held)b::boolean[]) AS share (projection, held)
ON CONFLICT (worker, projection) DO UPDATE SET until = excluded.until, held = excluded.held

-- drop those that have run out
DELETE FROM clew_worker
WHERE until <= statement_timestamp() OR (worker = %(worker)b AND projection <> ALL (%(names)b::text[]))

-- drop
DELETE FROM clew_worker WHERE worker = %(worker)b
