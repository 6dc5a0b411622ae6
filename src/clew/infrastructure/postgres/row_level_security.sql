-- Row-level security: the roles, their rights, and the policies that let a tenant see only its own rows.
--
-- `clew migrate --row-level-security` executes the steps from "foreign functions" on in one transaction, and can repeat
-- them. The statements before that are used with every database.

-- is bound
-- Whether row-level security is in force on this connection, and whether it is limited to one tenant. It names the table
-- of events, so that it waits while row-level security is being set up.
SELECT
    row_security_active('clew_event'),
    row_security_active('clew_event')
        AND NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'clew_operator' AND pg_has_role(oid, 'USAGE'))
FROM (SELECT count(*) FROM clew_event WHERE false) AS locked

-- own rows
AND tenant = (SELECT clew_tenant())

-- set tenant
-- Sent before reads of a tenant's rows, in the same transaction. Returns a number.
SELECT 0::int8 FROM set_config('clew.tenant', convert_from($1, 'UTF8'), true)

-- base
SELECT clew_base(), pg_is_in_recovery()

-- protect
DO $$
BEGIN
    IF to_regprocedure('clew_publish(regclass)') IS NOT NULL THEN
        PERFORM clew_publish('{table}');
    END IF;
END $$

-- is secured
SELECT relforcerowsecurity FROM pg_catalog.pg_class WHERE oid = 'clew_event'::regclass::oid

-- sessions
-- Of clients, other than this one. The type of other users' sessions may be hidden.
SELECT count(*)::int8 FROM pg_catalog.pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND usesysid IS NOT NULL
    AND coalesce(backend_type, 'client backend') = 'client backend'

-- foreign functions
-- Operators create tables in the schema of Clew's tables, and others may have created functions there. A function with a
-- name that is called below would run with the rights of the caller. This check is first, and its types are explicit, so
-- that no such function is called here.
DO $$
DECLARE
    found text := (
        WITH made (class, id, home, owner, name) AS (
            SELECT 'pg_catalog.pg_proc'::regclass::oid, oid, pronamespace, proowner, proname::text
            FROM pg_catalog.pg_proc
            UNION ALL SELECT 'pg_catalog.pg_operator'::regclass::oid, oid, oprnamespace, oprowner, oprname::text
            FROM pg_catalog.pg_operator
        )
        SELECT min(made.name) FROM made
        JOIN pg_catalog.pg_class AS meta ON meta.oid = 'clew_meta'::regclass::oid
        JOIN pg_catalog.pg_roles AS maker ON maker.oid = made.owner
        WHERE made.home = meta.relnamespace AND made.owner <> meta.relowner AND NOT maker.rolsuper
            AND made.name NOT IN ('clew_base', 'clew_find', 'clew_shred', 'clew_count_shreds', 'clew_forget_keys')
            AND (
                pg_catalog.starts_with(made.name, 'clew_'::text)
                OR made.name IN (SELECT name FROM made WHERE home = 'pg_catalog'::regnamespace::oid)
            )
            AND NOT EXISTS (
                SELECT FROM pg_catalog.pg_depend WHERE classid = class AND objid = id AND deptype = 'e'::"char"
            )
    );
BEGIN
    IF found IS NOT NULL THEN
        RAISE EXCEPTION 'in the schema of the tables a user other than their owner has made %: drop it first', found;
    END IF;
END $$

-- roles
-- No user logs in as one of these roles; they are granted to users. BYPASSRLS is not inherited with a role, so operators
-- have policies of their own. They also get the attribute if the caller can give it.
DO $$
DECLARE
    role text;
    is_superuser boolean := (SELECT rolsuper FROM pg_roles WHERE rolname = current_user);
BEGIN
    FOREACH role IN ARRAY ARRAY['clew_app', 'clew_operator', 'clew_shredder'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', role);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                NULL; -- created at this moment, for another database of the server
            END;
        END IF;
        IF NOT is_superuser AND role <> 'clew_app' THEN
            EXECUTE format('GRANT %I TO CURRENT_USER', role); -- a new owner must be a role of the current one
        END IF;
    END LOOP;
    IF is_superuser AND NOT (SELECT rolbypassrls FROM pg_roles WHERE rolname = 'clew_operator') THEN
        ALTER ROLE clew_operator BYPASSRLS;
    END IF;
END $$

-- indexes
-- A reader reads its tenant's rows in position order.
CREATE INDEX IF NOT EXISTS clew_event_tenant ON clew_event (tenant, position);

-- functions
CREATE OR REPLACE FUNCTION clew_number(name text) RETURNS bigint LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN (('x' || encode(substr(sha256(convert_to(name, 'UTF8')), 1, 8), 'hex'))::bit(64) >> 1)::bigint;
COMMENT ON FUNCTION clew_number IS 'the number of a tenant or a stream: the first 63 bits of the SHA-256 of its name';

CREATE OR REPLACE FUNCTION clew_tenant() RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE
RETURN clew_number(substring(current_setting('clew.tenant', true), '^[^/]+$'));
COMMENT ON FUNCTION clew_tenant IS 'the number of the tenant of this transaction, null if it is not set or invalid';

CREATE OR REPLACE FUNCTION clew_tenant_name() RETURNS bytea LANGUAGE sql STABLE PARALLEL SAFE
RETURN (
    SELECT decode(
        string_agg(
            CASE length(piece[1]) WHEN 3 THEN substr(piece[1], 2) ELSE encode(convert_to(piece[1], 'UTF8'), 'hex') END,
            '' ORDER BY n
        ),
        'hex'
    )
    FROM regexp_matches(current_setting('clew.tenant', true), '%[0-9A-F]{2}|.', 'g') WITH ORDINALITY AS part (piece, n)
    WHERE clew_tenant() IS NOT NULL
);
COMMENT ON FUNCTION clew_tenant_name IS 'the name of the tenant of this transaction, without escapes';

CREATE OR REPLACE FUNCTION clew_base() RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT
AS $$
DECLARE
    last bigint := (SELECT max(position) >> 20 FROM clew_event);
    found bigint := (SELECT base FROM clew_meta);
BEGIN
    IF last >= found + pg_snapshot_xmax(pg_current_snapshot())::text::int8 THEN
        IF pg_is_in_recovery() THEN
            RAISE EXCEPTION 'a dump was restored, and the primary was not opened since: open it first';
        END IF;
        UPDATE clew_meta SET base = greatest(base, last + 1) RETURNING base INTO found;
    END IF;
    RETURN found;
END $$;
COMMENT ON FUNCTION clew_base IS 'is added to transaction ids; raised if a restored dump has higher ones';

CREATE OR REPLACE FUNCTION clew_forget_keys(stream bigint) RETURNS void LANGUAGE sql AS $$
    DELETE FROM clew_key AS key WHERE key.stream = $1
$$;
COMMENT ON FUNCTION clew_forget_keys IS 'remove the idempotency keys of a purged stream of this tenant';

CREATE OR REPLACE FUNCTION clew_check_parent() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    -- A session of one tenant must not learn that another tenant's stream exists.
    IF NOT EXISTS (SELECT FROM clew_stream WHERE id = NEW.parent AND tenant = NEW.tenant) THEN
        RAISE insufficient_privilege USING MESSAGE = 'row-level security: the parent is not a stream of its tenant';
    END IF;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION clew_check_parent IS 'refuse a stream whose parent belongs to another tenant';
-- Not a policy: a policy would not see a parent that the same statement inserts.
CREATE OR REPLACE TRIGGER clew_parent AFTER INSERT ON clew_stream
FOR EACH ROW WHEN (NEW.parent IS NOT NULL) EXECUTE FUNCTION clew_check_parent();

CREATE OR REPLACE FUNCTION clew_protect(given regclass) RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    kind text := (
        SELECT atttypid::regtype::text FROM pg_attribute
        WHERE attrelid = given AND attname = 'tenant' AND NOT attisdropped
    );
    mine text := CASE
        -- In a form that no index supports: the planner would read everything of the tenant, because it does not know that
        -- a stream belongs to one tenant. Queries that need the tenant's index have their own condition.
        WHEN given IN ('clew_event'::regclass, 'clew_stream'::regclass)
        THEN 'CASE WHEN tenant = (SELECT clew_tenant()) THEN true ELSE false END'
        WHEN kind = 'bigint' THEN 'tenant = (SELECT clew_tenant())'
        WHEN kind = 'bytea' THEN 'tenant = (SELECT clew_tenant_name())'
        ELSE 'tenant = (SELECT convert_from(clew_tenant_name(), ''UTF8''))'
    END;
    new text := mine;
    place name := CASE given WHEN 'clew_event'::regclass THEN 'position' WHEN 'clew_stream'::regclass THEN 'began' END;
    policy name;
BEGIN
    EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', given);
    FOR policy IN SELECT polname FROM pg_policy WHERE polrelid = given LOOP
        EXECUTE format('DROP POLICY %I ON %s', policy, given);
    END LOOP;
    IF EXISTS (SELECT FROM pg_attribute WHERE attrelid = given AND attname = 'stream' AND atttypid = 'bigint'::regtype)
    THEN
        -- No tenant can take a version, a key or a lease of another tenant's stream.
        new := mine || ' AND EXISTS (SELECT FROM clew_stream AS own WHERE own.id = stream)';
    END IF;
    IF place IS NOT NULL THEN
        -- No row can be inserted below the position of readers, or above, where later positions belong.
        EXECUTE format(
            'CREATE POLICY clew_place ON %s AS RESTRICTIVE FOR INSERT TO clew_app WITH CHECK (%I >> 20 '
            '= (SELECT base + pg_current_xact_id()::text::int8 FROM clew_meta))', given, place
        );
    END IF;
    IF given = 'clew_stream'::regclass THEN
        -- To lock a row needs the right to update it. Locking is allowed, and every update fails.
        EXECUTE format('CREATE POLICY clew_tenant ON %s FOR SELECT USING (%s)', given, mine);
        EXECUTE format(
            'CREATE POLICY clew_begin ON %s FOR INSERT WITH CHECK (%s AND id = clew_number(convert_from(name, ''UTF8'')) '
            'AND starts_with(convert_from(name, ''UTF8''), current_setting(''clew.tenant'') || ''/''))', given, mine
        );
        EXECUTE format('CREATE POLICY clew_lock ON %s FOR UPDATE USING (%s) WITH CHECK (false)', given, mine);
        EXECUTE format('CREATE POLICY clew_operator ON %s FOR SELECT TO clew_operator USING (true)', given);
        EXECUTE format('CREATE POLICY clew_operator_begin ON %s FOR INSERT TO clew_operator WITH CHECK (true)', given);
        EXECUTE format(
            'CREATE POLICY clew_operator_lock ON %s FOR UPDATE TO clew_operator USING (true) WITH CHECK (false)', given
        );
    ELSE
        EXECUTE format('CREATE POLICY clew_tenant ON %s USING (%s) WITH CHECK (%s)', given, mine, new);
        EXECUTE format('CREATE POLICY clew_operator ON %s TO clew_operator USING (true) WITH CHECK (true)', given);
    END IF;
    IF given = 'clew_event'::regclass THEN
        EXECUTE format(
            'CREATE POLICY clew_shred ON %s AS RESTRICTIVE FOR UPDATE TO clew_shredder '
            -- The types with texts of users or services.
            'USING (digest IS NULL AND type IN (''message-appended'', ''record-appended'', ''model-failed'', '
            '''run-failed'', ''answer-interrupted'', ''approval-given'', ''context-provided'', ''context-failed'', '
            '''context-state-recorded'', ''history-reduced'', ''message-redacted'', ''thread-suspended'', '
            '''thread-ended'', ''thread-deleted'', ''thread-started'', ''thread-forked'', ''thread-labelled'', '
            '''checkpoint-made'', ''thread-restarted'', ''request-changed'')) '
            -- The replacement must be a stub, which has no content, and not another message.
            'WITH CHECK (digest IS NOT NULL AND substr(state, 1, 1) = ''\x02'')', given
        );
    END IF;
END $$;
COMMENT ON FUNCTION clew_protect IS 'let each tenant see its own rows of a table, and operators all rows';

CREATE OR REPLACE FUNCTION clew_take_back(given regclass) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT AS $$
DECLARE
    holder text;
BEGIN
    FOR holder IN
        SELECT DISTINCT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END
        FROM (
            SELECT relowner, (aclexplode(relacl)).grantee FROM pg_class WHERE oid = given
            UNION ALL SELECT relowner, (aclexplode(attacl)).grantee
            FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid WHERE pg_class.oid = given
        ) AS held
        WHERE grantee <> relowner
    LOOP
        EXECUTE format('REVOKE ALL ON %s FROM %s CASCADE', given, holder);
    END LOOP;
END $$;
COMMENT ON FUNCTION clew_take_back IS 'revoke all rights on a table except its owner''s';

CREATE OR REPLACE FUNCTION clew_publish(given regclass) RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    EXECUTE format('ALTER TABLE %s OWNER TO clew_operator', given);
    PERFORM clew_take_back(given); -- whatever default privileges have granted
    IF EXISTS (SELECT FROM pg_attribute WHERE attrelid = given AND attname = 'tenant' AND NOT attisdropped) THEN
        PERFORM clew_protect(given);
        EXECUTE format('GRANT SELECT ON %s TO clew_app', given);
    ELSE
        EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', given);
        EXECUTE format('DROP POLICY IF EXISTS clew_operator ON %s', given);
        EXECUTE format('CREATE POLICY clew_operator ON %s TO clew_operator USING (true) WITH CHECK (true)', given);
    END IF;
END $$;
COMMENT ON FUNCTION clew_publish IS 'give a table of a projection to the operators, and let each tenant read its own rows'

-- finding
-- With a policy on the table, PostgreSQL would not use a text index for the conditions of a search: they could reveal
-- other tenants' rows. So this function searches with the rights of the operators, for the rows of one tenant. No
-- condition can fail for some rows and not for others.
CREATE OR REPLACE FUNCTION clew_find(
    generation bigint, text_index text, words text[], beginnings text[], ends text[], certain boolean, rows text[],
    wanted boolean[], before bigint, below bigint, stretches bigint, "limit" bigint
) RETURNS TABLE (number bigint, "position" bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM clew_generation WHERE id = $1 AND $2 = ANY (texts)) THEN
        RAISE undefined_table USING MESSAGE = 'there is no such text index';
    END IF;
    RETURN QUERY EXECUTE replace(
        replace($find${find}$find$, '{table}', format('%I', format('clew_g%s_%s', $1, $2))),
        '{postings}', format('%I', format('clew_g%s__%s', $1, $2))
    ) USING $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12;
END $$;
COMMENT ON FUNCTION clew_find IS 'the positions of the current tenant''s texts that contain some words'

-- protection
-- For each table with a tenant. Tables of projections always belong to the operators.
SELECT CASE WHEN relname ~ '^clew_g[0-9]+_' THEN clew_publish(given) ELSE clew_protect(given) END
FROM (SELECT *, oid::regclass AS given FROM pg_class) AS pg_class
LEFT JOIN pg_attribute ON attrelid = given AND attname = 'tenant' AND NOT attisdropped
WHERE relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'clew_meta'::regclass)
    AND relname LIKE 'clew\_%' AND relkind IN ('r', 'p') AND (attnum IS NOT NULL OR relname ~ '^clew_g[0-9]+_')
ORDER BY relname

-- grants
-- Only operators have rights on tables that are not named here. Partitions are used through their tables.
DO $$
DECLARE
    home regnamespace := (SELECT relnamespace FROM pg_class WHERE oid = 'clew_meta'::regclass);
    given regclass;
    is_reached boolean;
BEGIN
    EXECUTE format('REVOKE CREATE ON SCHEMA %s FROM PUBLIC', home);
    EXECUTE format('GRANT USAGE ON SCHEMA %s TO clew_app, clew_operator, clew_shredder', home);
    EXECUTE format('GRANT CREATE ON SCHEMA %s TO clew_operator, clew_shredder', home);
    FOR given, is_reached IN
        SELECT oid, relkind <> 'S' AND NOT relispartition FROM pg_class
        WHERE relnamespace = home AND relname LIKE 'clew\_%' AND relname !~ '^clew_g[0-9]+_'
            AND relkind IN ('r', 'p', 'S')
    LOOP
        PERFORM clew_take_back(given);
        CONTINUE WHEN NOT is_reached;
        EXECUTE format('GRANT SELECT, INSERT ON %s TO clew_operator', given);
        IF given NOT IN ('clew_event'::regclass, 'clew_stream'::regclass) THEN
            EXECUTE format('GRANT UPDATE, DELETE ON %s TO clew_operator', given);
        END IF;
    END LOOP;
    GRANT SELECT, INSERT ON clew_stream, clew_event, clew_key, clew_snapshot, clew_blob, clew_lease, clew_draft,
        clew_entry TO clew_app;
    GRANT UPDATE (began) ON clew_stream TO clew_app, clew_operator; -- to lock rows: the policies allow no update
    GRANT UPDATE (state), DELETE ON clew_snapshot TO clew_app;
    GRANT UPDATE, DELETE ON clew_lease, clew_draft TO clew_app;
    GRANT SELECT, INSERT, UPDATE, DELETE ON clew_fold_state TO clew_app;
    GRANT DELETE ON clew_entry TO clew_app; -- a redacted record loses the numbers of its key and its bytes
    GRANT SELECT, INSERT, DELETE ON clew_record_blob TO clew_app;
    GRANT SELECT, INSERT, DELETE ON clew_vector TO clew_app;
    GRANT SELECT ON clew_meta, clew_generation, clew_stretch, clew_worker, clew_parked TO clew_app;
    GRANT SELECT ON clew_stream, clew_event, clew_key, clew_meta TO clew_shredder;
    GRANT UPDATE (state, digest) ON clew_event TO clew_shredder;
    GRANT UPDATE (digest), DELETE ON clew_key TO clew_shredder;
    GRANT UPDATE (shredded) ON clew_meta TO clew_shredder;
END $$

-- definers
-- What an application can change in rows only through these functions.
ALTER FUNCTION clew_shred SECURITY DEFINER SET search_path FROM CURRENT;
ALTER FUNCTION clew_count_shreds SECURITY DEFINER SET search_path FROM CURRENT;
ALTER FUNCTION clew_forget_keys SECURITY DEFINER SET search_path FROM CURRENT;
ALTER FUNCTION clew_forget_keys OWNER TO clew_shredder;
ALTER FUNCTION clew_shred OWNER TO clew_shredder;
ALTER FUNCTION clew_count_shreds OWNER TO clew_shredder;
ALTER FUNCTION clew_base OWNER TO clew_operator;
ALTER FUNCTION clew_find OWNER TO clew_operator;
DO $$
DECLARE
    given regprocedure;
    holder text;
BEGIN
    FOR given, holder IN
        SELECT oid, CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END
        FROM (
            SELECT oid, proowner, (aclexplode(coalesce(proacl, acldefault('f', proowner)))).grantee FROM pg_proc
            WHERE (prosecdef OR proname IN ('clew_protect', 'clew_publish', 'clew_take_back'))
                AND starts_with(proname, 'clew_')
                AND pronamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'clew_meta'::regclass)
        ) AS held
        WHERE grantee <> proowner
    LOOP
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM %s CASCADE', given, holder);
    END LOOP;
END $$;
GRANT EXECUTE ON FUNCTION clew_shred, clew_count_shreds, clew_forget_keys, clew_base, clew_find TO clew_app, clew_operator;
-- Everybody has this right, unless default privileges revoke it.
GRANT EXECUTE ON FUNCTION clew_number, clew_tenant, clew_tenant_name TO clew_app, clew_operator, clew_shredder;
GRANT EXECUTE ON FUNCTION clew_protect, clew_publish, clew_take_back TO clew_operator

-- drop rights
-- No user keeps the rights of the functions.
DO $$
DECLARE
    home regnamespace := (SELECT relnamespace FROM pg_class WHERE oid = 'clew_meta'::regclass);
BEGIN
    EXECUTE format('REVOKE CREATE ON SCHEMA %s FROM clew_shredder', home);
    IF NOT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
        REVOKE clew_shredder FROM CURRENT_USER;
    END IF;
END $$
