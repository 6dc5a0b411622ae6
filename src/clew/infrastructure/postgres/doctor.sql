-- The checks of `clew doctor` on a PostgreSQL server. Each heading names a statement. They need only the right to
-- connect, and to read the tables of Clew's that they name.

-- server
SELECT current_setting('server_version'), current_user::text, pg_is_in_recovery()

-- settings
SELECT
    current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'),
    current_setting('default_transaction_isolation'), current_setting('autovacuum')

-- rights
SELECT relname::text, has_table_privilege(oid, 'SELECT'), has_table_privilege(oid, 'INSERT')
FROM pg_class
WHERE relname = ANY (%(names)s) AND relkind IN ('r', 'p') AND pg_table_is_visible(oid)
ORDER BY relname

-- may create
SELECT coalesce(has_schema_privilege(current_schema(), 'CREATE'), false)

-- security
SELECT
    row_security_active(pg_class.oid)
        AND NOT EXISTS (SELECT FROM pg_roles AS role WHERE rolname = 'clew_operator' AND pg_has_role(role.oid, 'USAGE')),
    relforcerowsecurity
FROM pg_class WHERE oid = to_regclass('clew_event')

-- oldest writer
-- Without pg_read_all_stats a user sees little of other users' sessions, and not their age.
SELECT datname::text, 'process ' || pid, coalesce(state, '?'), extract(epoch FROM clock_timestamp() - xact_start)::float8
FROM pg_stat_activity
WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
UNION ALL
SELECT database::text, 'the prepared transaction ' || gid, 'prepared', extract(epoch FROM clock_timestamp() - prepared)::float8
FROM pg_prepared_xacts
ORDER BY 4 DESC NULLS LAST LIMIT 1

-- begun since
SELECT pg_snapshot_xmax(seen)::text::int8 - pg_snapshot_xmin(seen)::text::int8 FROM pg_current_snapshot() AS seen

-- connections
SELECT
    (SELECT sum(numbackends)::int8 FROM pg_stat_database),
    current_setting('max_connections')::int8 - current_setting('superuser_reserved_connections')::int8

-- followers
SELECT count(*) FROM pg_stat_replication

-- idle slots
SELECT slot_name::text, pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::int8 FROM pg_replication_slots
WHERE NOT active AND restart_lsn IS NOT NULL
ORDER BY 2 DESC LIMIT 1

-- standby
SELECT extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp())::float8, pg_is_wal_replay_paused()

-- vector
SELECT installed_version, default_version FROM pg_available_extensions WHERE name = 'vector'

-- sizes
SELECT
    coalesce(sum(pg_total_relation_size(oid)), 0)::int8,
    coalesce(sum(pg_total_relation_size(oid)) FILTER (WHERE relname ~ '^clew_event(_[0-9]+)?$'), 0)::int8
FROM pg_class
WHERE relname LIKE 'clew\_%' AND relkind = 'r' AND pg_table_is_visible(oid)

-- dead rows
SELECT
    coalesce(sum(n_live_tup), 0)::int8, coalesce(sum(n_dead_tup), 0)::int8,
    coalesce(sum(n_dead_tup) FILTER (WHERE relname ~ '^clew_event(_[0-9]+)?$'), 0)::int8
FROM pg_stat_user_tables
WHERE relname LIKE 'clew\_%' AND pg_table_is_visible(relid)

-- runs
SELECT
    (SELECT count(*) FROM clew_lease WHERE until > %(now)b), (SELECT count(*) FROM clew_draft), count(*),
    coalesce(sum(octet_length(data)), 0)::int8
FROM clew_blob

-- crashed runs
SELECT name, holder FROM clew_lease AS lease JOIN clew_stream AS stream ON stream.id = lease.stream
WHERE until <= %(now)b
ORDER BY until
