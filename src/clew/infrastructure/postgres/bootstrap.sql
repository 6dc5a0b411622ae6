-- The statements that open or migrate a database. Each heading names a statement.

-- exists
-- Reads the catalog: PostgreSQL's cache of names may be older than the lock.
SELECT 1 FROM pg_catalog.pg_class WHERE relname = 'clew_meta' AND pg_table_is_visible(oid)

-- lock
SELECT pg_advisory_xact_lock(%(lock)s::bigint)

-- home
-- New tables and functions go to the schema of the tables, and the functions look only there: a schema with the user's
-- name would come first otherwise.
SELECT set_config('search_path', format('%I, pg_temp', nspname), true)
FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE pg_class.oid = 'clew_meta'::regclass

-- schema
SELECT schema FROM clew_meta

-- raise schema
UPDATE clew_meta SET schema = %(schema)s

-- partitions
SELECT count(*) FROM pg_catalog.pg_inherits WHERE inhparent = 'clew_event'::regclass::oid

-- base
-- What is added to transaction ids, the newest transaction of an event, and the next transaction id.
SELECT
    base, (SELECT max(position) FROM clew_event) >> 20, pg_snapshot_xmax(pg_current_snapshot())::text::int8,
    pg_is_in_recovery()
FROM clew_meta

-- raise base
UPDATE clew_meta SET base = greatest(base, %(base)s) RETURNING base

-- rows of a type
SELECT e.tenant, e.stream, s.name, e.version, e.state
FROM clew_event AS e JOIN clew_stream AS s ON s.id = e.stream WHERE e.type = %(type)s

-- index row
INSERT INTO clew_entry (tenant, stream, number, version)
VALUES (%(tenant)s, %(stream)s, %(number)s, %(version)s) ON CONFLICT DO NOTHING
