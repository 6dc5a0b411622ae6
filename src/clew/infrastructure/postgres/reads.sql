-- The reads of a PostgreSQL store. Each heading names a statement.
--
-- Reads in position order stop at the horizon: the lowest transaction that is open when the statement starts. Below it,
-- every event is visible or will never exist.
--
-- For a session of one tenant, the comment "own rows" is replaced by the condition of that name in
-- row_level_security.sql, so that the tenant's index is used.

-- below
(%(base)b::int8 + pg_snapshot_xmin(pg_current_snapshot())::text::int8) << 20

-- horizon
SELECT {horizon}

-- written
SELECT e.position, s.name
FROM (
    SELECT position, stream FROM clew_event
    WHERE position > %(after)b AND position <= %(upto)b /* own rows */
    ORDER BY position LIMIT %(limit)b
) AS e JOIN clew_stream AS s ON s.id = e.stream
ORDER BY e.position

-- standby
SELECT pg_is_in_recovery()

-- lineage
WITH RECURSIVE line (id, tenant, name, parent, cut, upto) AS (
    SELECT id, tenant, name, parent, cut, %(upto)b::int8 FROM clew_stream WHERE id = %(id)b AND name = %(name)b
    UNION ALL
    -- Of the same tenant: a forged parent must not show another tenant's rows.
    SELECT p.id, p.tenant, p.name, p.parent, p.cut, least(line.upto, line.cut)
    FROM line JOIN clew_stream AS p ON p.id = line.parent AND p.tenant = line.tenant
    -- The cut grows from a parent to its forks. This condition ends the walk even if tampering has created a cycle.
    WHERE line.cut > %(after)b AND (p.cut IS NULL OR p.cut < line.cut)
)
SELECT e.position, line.name, e.version, e.type, e.state, e.hash, e.digest
FROM line CROSS JOIN LATERAL (
    -- OFFSET 0 is a fence: each stream of the lineage is looked up in the index, whatever the planner estimates.
    SELECT * FROM clew_event WHERE stream = line.id AND version > %(after)b AND version <= line.upto OFFSET 0
) AS e
ORDER BY e.version

-- lineage of types
WITH RECURSIVE line (id, tenant, name, parent, cut, upto) AS (
    SELECT id, tenant, name, parent, cut, %(upto)b::int8 FROM clew_stream WHERE id = %(id)b AND name = %(name)b
    UNION ALL
    SELECT p.id, p.tenant, p.name, p.parent, p.cut, least(line.upto, line.cut)
    FROM line JOIN clew_stream AS p ON p.id = line.parent AND p.tenant = line.tenant
    WHERE line.cut > %(after)b AND (p.cut IS NULL OR p.cut < line.cut)
)
SELECT e.position, line.name, e.version, e.type, e.state, e.hash, e.digest
FROM line CROSS JOIN LATERAL (
    -- OFFSET 0 is a fence, as in the lineage.
    SELECT * FROM clew_event WHERE stream = line.id AND version > %(after)b AND version <= line.upto OFFSET 0
) AS e
WHERE e.type = ANY (%(types)b::bytea[])
ORDER BY e.version

-- indexed
WITH RECURSIVE line (id, tenant, name, parent, cut, upto) AS (
    SELECT id, tenant, name, parent, cut, %(upto)b::int8 FROM clew_stream WHERE id = %(id)b AND name = %(name)b
    UNION ALL
    -- Of the same tenant: a forged parent must not show another tenant's rows.
    SELECT p.id, p.tenant, p.name, p.parent, p.cut, least(line.upto, line.cut)
    FROM line JOIN clew_stream AS p ON p.id = line.parent AND p.tenant = line.tenant
    -- The cut grows from a parent to its forks. This condition ends the walk even if tampering has created a cycle.
    WHERE line.cut > %(after)b AND (p.cut IS NULL OR p.cut < line.cut)
)
SELECT e.position, line.name, e.version, e.type, e.state, e.hash, e.digest
FROM line CROSS JOIN LATERAL (
    SELECT version FROM clew_entry
    WHERE stream = line.id AND number = %(number)b AND version > %(after)b AND version <= line.upto
    ORDER BY version DESC LIMIT %(limit)b
) AS entry CROSS JOIN LATERAL (
    SELECT * FROM clew_event WHERE stream = line.id AND version = entry.version OFFSET 0
) AS e
ORDER BY e.version DESC LIMIT %(limit)b

-- own rows
SELECT position, name, version, type, state, hash, digest
FROM (
    SELECT
        e.position, s.name, e.version, e.type, e.state, e.hash, e.digest,
        sum(octet_length(e.state)) OVER (ORDER BY e.version ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM clew_stream AS s JOIN clew_event AS e ON e.stream = s.id
    WHERE s.id = %(id)b AND s.name = %(name)b AND e.version > %(after)b
    ORDER BY e.version LIMIT %(limit)b
) AS e
WHERE before < %(most)b OR before IS NULL
ORDER BY version

-- stored events
SELECT e.version, e.type, e.state
FROM clew_stream AS s JOIN clew_event AS e ON e.stream = s.id
WHERE s.id = %(id)b AND s.name = %(name)b AND e.version > %(after)b AND e.version <= %(upto)b
ORDER BY e.version LIMIT %(limit)b

-- stored events backwards
SELECT e.version, e.type, e.state
FROM clew_stream AS s JOIN clew_event AS e ON e.stream = s.id
WHERE s.id = %(id)b AND s.name = %(name)b AND e.version > %(after)b AND e.version <= %(upto)b
ORDER BY e.version DESC LIMIT %(limit)b

-- rows
-- First finds the end of the page, in rows of two numbers: a window over complete rows costs more.
SELECT e.position, s.name, e.version, e.type, e.state, e.hash, e.digest
FROM (
    SELECT * FROM clew_event
    WHERE position > %(after)b AND position <= (
        SELECT max(position)
        FROM (
            SELECT
                position, sum(size) OVER (ORDER BY position ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
            FROM (
                -- The only bound is the start, so that the index is used even without statistics of the table.
                SELECT position, octet_length(state) AS size FROM clew_event
                WHERE position > %(after)b /* own rows */
                ORDER BY position LIMIT %(limit)b
            ) AS next
            WHERE position <= %(upto)b AND position < (SELECT {horizon})
        ) AS next
        WHERE before < %(most)b OR before IS NULL
    ) /* own rows */
    ORDER BY position
) AS e JOIN clew_stream AS s ON s.id = e.stream
ORDER BY e.position

-- rows of types
SELECT e.position, s.name, e.version, e.type, e.state, e.hash, e.digest
FROM (
    SELECT * FROM clew_event
    WHERE position > %(after)b AND position <= %(upto)b AND type = ANY (%(types)b::bytea[])
        AND position < ({horizon}) /* own rows */
    ORDER BY position LIMIT %(limit)b
) AS e JOIN clew_stream AS s ON s.id = e.stream
ORDER BY e.position

-- window
SELECT max(position), count(*) FROM (
    SELECT position FROM clew_event
    WHERE position > %(after)b
        AND position < ({horizon}) /* own rows */
    ORDER BY position LIMIT %(size)b
) AS next

-- rows with a prefix
SELECT position, name, version, type, state, hash, digest
FROM (
    SELECT
        e.position, s.name, e.version, e.type, e.state, e.hash, e.digest,
        sum(octet_length(e.state)) OVER (ORDER BY e.position ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM (
        -- OFFSET 0 is a fence: the rows are read along the positions, whatever the planner estimates.
        SELECT * FROM clew_event
        WHERE position > %(after)b AND position <= %(upto)b AND (%(tenant)b::int8 IS NULL OR tenant = %(tenant)b)
        ORDER BY position OFFSET 0
    ) AS e JOIN clew_stream AS s ON s.id = e.stream
    WHERE s.name >= %(prefix)b AND (%(end)b::bytea IS NULL OR s.name < %(end)b)
    ORDER BY e.position LIMIT %(limit)b
) AS e
WHERE before < %(most)b OR before IS NULL
ORDER BY position

-- rows at
SELECT e.position, s.name, e.version, e.type, e.state, e.hash, e.digest
FROM clew_event AS e JOIN clew_stream AS s ON s.id = e.stream
WHERE e.position = ANY (%(positions)b::int8[])
    AND e.position < ({horizon})
ORDER BY e.position

-- last position
SELECT max(position) FROM clew_event
WHERE position < ({horizon}) /* own rows */

-- count after
SELECT count(*) FROM (
    SELECT FROM clew_event
    WHERE position > %(after)b
        AND position < ({horizon}) /* own rows */
    ORDER BY position LIMIT %(limit)b
) AS after

-- streams
-- If the parent was changed to an unknown stream, its key is shown rather than nothing.
SELECT s.began, s.name, coalesce(p.name, convert_to('#' || s.parent::text, 'UTF8')), s.cut
FROM (
    SELECT * FROM clew_stream
    WHERE began > %(after)b
        AND began < ({horizon}) /* own rows */
    ORDER BY began LIMIT %(limit)b
) AS s LEFT JOIN clew_stream AS p ON p.id = s.parent
ORDER BY s.began

-- few streams with a prefix
-- Ordered by name, so that the index on the start of names is used.
SELECT id FROM clew_stream
WHERE substring(name FROM 1 FOR 256) >= substring(%(prefix)b FROM 1 FOR 256) AND name >= %(prefix)b
    AND (%(end)b::bytea IS NULL OR (substring(name FROM 1 FOR 256) <= %(end)b AND name < %(end)b))
ORDER BY substring(name FROM 1 FOR 256) LIMIT %(few)b

-- streams of ids
SELECT s.began, s.name, coalesce(p.name, convert_to('#' || s.parent::text, 'UTF8')), s.cut
FROM clew_stream AS s LEFT JOIN clew_stream AS p ON p.id = s.parent
WHERE s.id = ANY (%(ids)b::int8[]) AND s.began > %(after)b
    AND s.began < ({horizon})
ORDER BY s.began LIMIT %(limit)b

-- streams with a prefix
SELECT s.began, s.name, coalesce(p.name, convert_to('#' || s.parent::text, 'UTF8')), s.cut
FROM (
    SELECT * FROM clew_stream
    WHERE began > %(after)b
        AND began < ({horizon})
        AND name >= %(prefix)b AND (%(end)b::bytea IS NULL OR name < %(end)b)
    ORDER BY began LIMIT %(limit)b
) AS s LEFT JOIN clew_stream AS p ON p.id = s.parent
ORDER BY s.began

-- streams of a tenant with a prefix
SELECT s.began, s.name, coalesce(p.name, convert_to('#' || s.parent::text, 'UTF8')), s.cut
FROM (
    SELECT * FROM clew_stream
    WHERE tenant = %(tenant)b AND began > %(after)b
        AND began < ({horizon})
        AND name >= %(prefix)b AND (%(end)b::bytea IS NULL OR name < %(end)b)
    ORDER BY tenant, began LIMIT %(limit)b
) AS s LEFT JOIN clew_stream AS p ON p.id = s.parent
ORDER BY s.began

-- stream
SELECT s.began, s.name, coalesce(p.name, convert_to('#' || s.parent::text, 'UTF8')), s.cut
FROM clew_stream AS s LEFT JOIN clew_stream AS p ON p.id = s.parent
WHERE s.id = %(id)b AND s.name = %(name)b

-- names of ids
SELECT name FROM clew_stream WHERE id = ANY (%(ids)b::int8[])

-- entries
SELECT entry.number, entry.version
FROM clew_stream AS s JOIN clew_entry AS entry ON entry.stream = s.id
WHERE s.id = %(id)b AND s.name = %(name)b

-- keys
SELECT k.first, k.last, k.key, k.digest IS NULL
FROM clew_stream AS s JOIN clew_key AS k ON k.stream = s.id
WHERE s.id = %(id)b AND s.name = %(name)b
ORDER BY k.first

-- tag
SELECT left(store::text, 8) FROM clew_meta

-- runs
SELECT 'lease', coalesce(name, convert_to('#' || stream::text, 'UTF8')), holder
FROM clew_lease LEFT JOIN clew_stream AS s ON s.id = stream
UNION ALL
SELECT 'draft', coalesce(name, convert_to('#' || stream::text, 'UTF8')), run
FROM clew_draft LEFT JOIN clew_stream AS s ON s.id = stream

-- foreign
-- Only row-level security makes a trigger.
SELECT 'trigger', tgname::text FROM pg_catalog.pg_trigger
WHERE NOT tgisinternal AND tgname <> 'clew_parent' AND tgrelid IN (
    'clew_event'::regclass, 'clew_stream'::regclass, 'clew_key'::regclass, 'clew_snapshot'::regclass,
    'clew_blob'::regclass, 'clew_record_blob'::regclass, 'clew_lease'::regclass, 'clew_draft'::regclass,
    'clew_meta'::regclass
)
UNION ALL
SELECT 'rule', rulename::text FROM pg_catalog.pg_rewrite WHERE ev_class IN (
    'clew_event'::regclass, 'clew_stream'::regclass, 'clew_key'::regclass, 'clew_snapshot'::regclass,
    'clew_blob'::regclass, 'clew_record_blob'::regclass, 'clew_lease'::regclass, 'clew_draft'::regclass,
    'clew_meta'::regclass
)

-- forks
SELECT s.began, s.name, p.name, s.cut
FROM clew_stream AS s JOIN clew_stream AS p ON p.id = s.parent
WHERE s.parent = %(id)b AND p.name = %(name)b AND s.cut >= %(cut)b
ORDER BY s.began LIMIT %(limit)b

-- orphans
SELECT e.stream, e.version FROM clew_event AS e
WHERE e.version < 0 OR NOT EXISTS (SELECT FROM clew_stream AS s WHERE s.id = e.stream)
ORDER BY e.stream, e.version LIMIT %(limit)b

-- snapshot
WITH RECURSIVE line (id, tenant, name, parent, cut, upto, depth) AS (
    SELECT id, tenant, name, parent, cut, %(upto)b::int8, 0 FROM clew_stream WHERE id = %(id)b AND name = %(name)b
    UNION ALL
    SELECT p.id, p.tenant, p.name, p.parent, p.cut, least(line.upto, line.cut), line.depth + 1
    FROM line JOIN clew_stream AS p ON p.id = line.parent AND p.tenant = line.tenant
    WHERE p.cut IS NULL OR p.cut < line.cut
)
SELECT line.name, newest.version, newest.state
FROM line CROSS JOIN LATERAL (
    SELECT version, state FROM clew_snapshot
    WHERE stream = line.id AND version <= line.upto ORDER BY version DESC LIMIT 1
) AS newest
ORDER BY line.depth LIMIT 1

-- fold state
WITH RECURSIVE line (id, tenant, name, parent, cut, upto, depth) AS (
    SELECT id, tenant, name, parent, cut, %(upto)b::int8, 0 FROM clew_stream WHERE id = %(id)b AND name = %(name)b
    UNION ALL
    SELECT p.id, p.tenant, p.name, p.parent, p.cut, least(line.upto, line.cut), line.depth + 1
    FROM line JOIN clew_stream AS p ON p.id = line.parent AND p.tenant = line.tenant
    WHERE p.cut IS NULL OR p.cut < line.cut
)
SELECT newest.version, newest.state
FROM line CROSS JOIN LATERAL (
    SELECT version, state FROM clew_fold_state
    WHERE stream = line.id AND name = %(fold)b AND version <= line.upto ORDER BY version DESC LIMIT 1
) AS newest
ORDER BY line.depth LIMIT 1

-- blob
SELECT digest, kind, data FROM clew_blob WHERE digest = %(digest)b LIMIT 1

-- blob of a tenant
-- Another tenant's blob stays hidden from a client that knows its digest.
SELECT digest, kind, data FROM clew_blob WHERE tenant = %(tenant)b AND digest = %(digest)b

-- blob that came
SELECT digest, kind, data FROM clew_blob WHERE came = %(came)b AND digest = %(digest)b LIMIT 1

-- blobs
SELECT came, digest FROM clew_blob WHERE came > %(after)b ORDER BY came LIMIT %(limit)b

-- record blobs
SELECT digest, data FROM clew_record_blob WHERE tenant = %(tenant)b AND digest = ANY (%(digests)b::bytea[])

-- unused record blobs
SELECT digest FROM clew_record_blob AS blob WHERE NOT EXISTS (
    SELECT FROM clew_entry AS entry
    WHERE entry.tenant = blob.tenant AND entry.number = blob.number AND entry.number >= 4611686018427387904
)
LIMIT %(limit)b

-- draft
SELECT run, data FROM clew_draft WHERE stream = %(stream)b

-- shredded
SELECT shredded FROM clew_meta
