-- The reads of tab completion. Each heading names a statement.

-- begin
BEGIN READ ONLY; SET LOCAL statement_timeout = '1s'; SELECT set_config('clew.tenant', %(tenant)s, true)

-- streams
SELECT id, name FROM clew_stream
WHERE substring(name FROM 1 FOR 256) >= substring(%(first)s FROM 1 FOR 256) AND name >= %(first)s
    AND substring(name FROM 1 FOR 256) <= %(end)s AND name < %(end)s
ORDER BY substring(name FROM 1 FOR 256), name LIMIT %(limit)s

-- events of a stream
WITH RECURSIVE line (id, tenant, parent, cut, upto) AS (
    SELECT id, tenant, parent, cut, 9223372036854775807 FROM clew_stream WHERE id = %(key)s
    UNION ALL
    SELECT p.id, p.tenant, p.parent, p.cut, least(line.upto, line.cut)
    FROM line JOIN clew_stream AS p ON p.id = line.parent AND p.tenant = line.tenant
    WHERE p.cut IS NULL OR p.cut < line.cut
)
SELECT e.version, e.type, e.state
FROM line CROSS JOIN LATERAL (
    SELECT version, type, state FROM clew_event WHERE stream = line.id AND version <= line.upto OFFSET 0
) AS e
WHERE e.type = %(type)s ORDER BY e.version DESC
