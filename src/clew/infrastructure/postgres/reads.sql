-- What is read from a PostgreSQL store. Each heading names a statement.
--
-- Who reads in the order of positions reads below the horizon: the lowest transaction that has not ended when the
-- statement begins. What is below it is there or will never be.
--
-- Who sees one tenant reads with the words of "mine" of row_level_security.sql in place of its name,
-- for the tenant's index.

-- below
(%(base)b::int8 + pg_snapshot_xmin(pg_current_snapshot())::text::int8) << 20

-- horizon
SELECT {horizon}

-- standby
SELECT pg_is_in_recovery()

-- lineage
WITH RECURSIVE line (id, tenant, name, parent, cut, upto) AS (
    SELECT id, tenant, name, parent, cut, %(upto)b::int8 FROM clew_stream WHERE id = %(id)b AND name = %(name)b
    UNION ALL
    -- Of the same tenant: a parent that somebody wrote there is not to show another's rows.
    SELECT p.id, p.tenant, p.name, p.parent, p.cut, least(line.upto, line.cut)
    FROM line JOIN clew_stream AS p ON p.id = line.parent AND p.tenant = line.tenant
    -- The cut grows from a parent to its forks; asked for, it ends the walk even where somebody made a circle.
    WHERE line.cut > %(after)b AND (p.cut IS NULL OR p.cut < line.cut)
)
SELECT e.position, line.name, e.version, e.type, e.state, e.hash, e.digest
FROM line CROSS JOIN LATERAL (
    -- A fence: each stream of the line is looked up in the index, whatever the planner thinks of their number.
    SELECT * FROM clew_event WHERE stream = line.id AND version > %(after)b AND version <= line.upto OFFSET 0
) AS e
ORDER BY e.version

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
-- Where the page ends is found first, in rows of two numbers: to carry all of them through the window costs more.
SELECT e.position, s.name, e.version, e.type, e.state, e.hash, e.digest
FROM (
    SELECT * FROM clew_event
    WHERE position > %(after)b AND position <= (
        SELECT max(position)
        FROM (
            SELECT
                position, sum(size) OVER (ORDER BY position ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
            FROM (
                -- Only by where it begins, so that it is walked along the index also where nothing is known of the table.
                SELECT position, octet_length(state) AS size FROM clew_event
                WHERE position > %(after)b /* mine */
                ORDER BY position LIMIT %(limit)b
            ) AS next
            WHERE position <= %(upto)b AND position < (SELECT {horizon})
        ) AS next
        WHERE before < %(most)b OR before IS NULL
    ) /* mine */
    ORDER BY position
) AS e JOIN clew_stream AS s ON s.id = e.stream
ORDER BY e.position

-- rows of types
SELECT e.position, s.name, e.version, e.type, e.state, e.hash, e.digest
FROM (
    SELECT * FROM clew_event
    WHERE position > %(after)b AND position <= %(upto)b AND type = ANY (%(types)b::bytea[])
        AND position < ({horizon}) /* mine */
    ORDER BY position LIMIT %(limit)b
) AS e JOIN clew_stream AS s ON s.id = e.stream
ORDER BY e.position

-- window
SELECT max(position), count(*) FROM (
    SELECT position FROM clew_event
    WHERE position > %(after)b
        AND position < ({horizon}) /* mine */
    ORDER BY position LIMIT %(size)b
) AS next

-- rows with a prefix
SELECT position, name, version, type, state, hash, digest
FROM (
    SELECT
        e.position, s.name, e.version, e.type, e.state, e.hash, e.digest,
        sum(octet_length(e.state)) OVER (ORDER BY e.position ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM (
        -- A fence: the positions are what is walked along, however many streams the planner thinks there are.
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
WHERE position < ({horizon}) /* mine */

-- count after
SELECT count(*) FROM (
    SELECT FROM clew_event
    WHERE position > %(after)b
        AND position < ({horizon}) /* mine */
    ORDER BY position LIMIT %(limit)b
) AS after

-- streams
-- A parent that is no stream, where somebody changed it, is shown by its key and not as none.
SELECT s.began, s.name, coalesce(p.name, convert_to('#' || s.parent::text, 'UTF8')), s.cut
FROM (
    SELECT * FROM clew_stream
    WHERE began > %(after)b
        AND began < ({horizon}) /* mine */
    ORDER BY began LIMIT %(limit)b
) AS s LEFT JOIN clew_stream AS p ON p.id = s.parent
ORDER BY s.began

-- few streams with a prefix
-- In the order of names, so that the index on their beginnings is what is read.
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

-- forks
SELECT s.began, s.name, p.name, s.cut
FROM clew_stream AS s JOIN clew_stream AS p ON p.id = s.parent
WHERE s.parent = %(id)b AND p.name = %(name)b
ORDER BY s.began

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

-- blob
SELECT digest, kind, data FROM clew_blob WHERE digest = %(digest)b LIMIT 1

-- blob of a tenant
-- Another's is not shown to who knows what it is named by.
SELECT digest, kind, data FROM clew_blob WHERE tenant = %(tenant)b AND digest = %(digest)b

-- blob that came
SELECT digest, kind, data FROM clew_blob WHERE came = %(came)b AND digest = %(digest)b LIMIT 1

-- blobs
SELECT came, digest FROM clew_blob WHERE came > %(after)b ORDER BY came LIMIT %(limit)b

-- draft
SELECT run, data FROM clew_draft WHERE stream = %(stream)b

-- shredded
SELECT shredded FROM clew_meta
