-- What is asked of a database when it is opened or migrated. Each heading names a statement.

-- is there
-- A look into the table of tables: what PostgreSQL remembers of names may be older than the lock.
SELECT 1 FROM pg_catalog.pg_class WHERE relname = 'clew_meta' AND pg_table_is_visible(oid)

-- lock
SELECT pg_advisory_xact_lock(%(lock)s::bigint)

-- home
-- What is made in the transaction goes where the tables are, and its functions look nowhere else: the user may have a
-- schema of the user's name, which comes first.
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
-- What is added to transaction ids, and where positions and transactions are.
SELECT
    base, (SELECT max(position) FROM clew_event) >> 20, pg_snapshot_xmax(pg_current_snapshot())::text::int8,
    pg_is_in_recovery()
FROM clew_meta

-- raise base
UPDATE clew_meta SET base = greatest(base, %(base)s) RETURNING base
