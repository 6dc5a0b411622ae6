-- Indexes of words: a table for each, and stretches of texts in the order of the log. Each heading names a statement.
-- {table} stands for the table's name, {key} for that of its key, {index} for that of its inverted index.

-- table
CREATE TABLE {table} (
    position bigint CONSTRAINT {key} PRIMARY KEY,
    tenant bigint NOT NULL,
    words text COLLATE "C" NOT NULL,
    listed tsvector NOT NULL,
    all_listed boolean NOT NULL
)

-- words are kept as they are
-- To make them smaller takes longer than to write them.
ALTER TABLE {table} ALTER COLUMN words SET STORAGE EXTERNAL, ALTER COLUMN listed SET STORAGE EXTERNAL

-- index
CREATE INDEX {index} ON {table} USING gin (listed)

-- pending
-- What is added waits in a list for the index to take in much of it together; a search goes through the list.
SET LOCAL gin_pending_list_limit = {kilobytes}

-- add
INSERT INTO {table} (position, tenant, words, listed, all_listed)
SELECT * FROM unnest(%s::bigint[], %s::bigint[], string_to_array(%s, E'\n'), %b, %s::boolean[])

-- forget
DELETE FROM {table} WHERE position = %(position)b RETURNING position

-- newest stretch
SELECT number, first, texts FROM clew_stretch
WHERE generation = %(generation)b AND text_index = %(index)b ORDER BY number DESC LIMIT 1

-- note stretch
INSERT INTO clew_stretch (generation, text_index, number, first, texts)
VALUES (%(generation)b, %(index)b, %(number)b, %(first)b, %(texts)b)
ON CONFLICT (generation, text_index, number) DO UPDATE SET texts = excluded.texts

-- only by the index
-- To make all words of all texts ready takes a hundred times longer than the planner thinks, and what it thinks that the
-- index finds, far less: to compile the statement would take longer than to answer it.
SELECT set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true)

-- find
-- The newest stretches are looked at first. Each that was looked at is in the answer, also when nothing was found.
SELECT stretch.number, found.position
FROM (
    SELECT number, to_hex(number) || '.' AS prefix FROM clew_stretch
    WHERE generation = %(generation)b AND text_index = %(index)b AND first < %(before)b AND number < %(below)b
    ORDER BY number DESC LIMIT %(stretches)b
) AS stretch
LEFT JOIN LATERAL (
    SELECT there.position
    FROM (
        -- A fence: the inverted index is asked for each stretch, and the order is that of what it finds.
        SELECT * FROM {table}
        WHERE listed @@ replace(%(among)b, '#', stretch.prefix)::tsquery OFFSET 0
    ) AS there
    WHERE there.position < %(before)b{more}
        AND ((%(certain)b AND there.all_listed) OR NOT EXISTS (
            SELECT FROM unnest(%(rows)b::text[], %(wanted)b::boolean[]) AS part (words, wanted)
            WHERE (strpos(there.words, part.words) > 0) <> part.wanted
        ))
    ORDER BY there.position DESC LIMIT %(limit)b
) AS found ON true
ORDER BY stretch.number DESC, found.position DESC

-- find of a tenant
SELECT * FROM clew_find(
    %(generation)b, %(index)b, %(among)b, %(certain)b, %(rows)b, %(wanted)b, %(before)b, %(below)b, %(stretches)b,
    %(limit)b
)
