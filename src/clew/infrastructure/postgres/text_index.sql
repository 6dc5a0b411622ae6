-- Indexes of words: a table for each, and stretches of texts in the order of the log. Each heading names a statement.
-- {table} stands for the table's name, {index} for that of its inverted index.

-- table
CREATE TABLE {table} (
    position bigint PRIMARY KEY,
    tenant bigint NOT NULL,
    words text COLLATE "C" NOT NULL,
    listed text COLLATE "C"
)

-- words are kept as they are
-- To make them smaller takes longer than to write them.
ALTER TABLE {table} ALTER COLUMN words SET STORAGE EXTERNAL

-- index
CREATE INDEX {index} ON {table} USING gin ((coalesce(listed, words)::tsvector))

-- pending
-- What is added waits in a list for the index to take in much of it together; a search goes through the list.
SET LOCAL gin_pending_list_limit = %(kilobytes)s

-- add
INSERT INTO {table} (position, tenant, words, listed)
SELECT * FROM unnest(%s::bigint[], %s::bigint[], string_to_array(%s, E'\n'), %s::text[])

-- forget
DELETE FROM {table} WHERE position = %(position)b RETURNING position

-- newest stretch
SELECT number, texts FROM clew_stretch
WHERE generation = %(generation)b AND text_index = %(index)b ORDER BY number DESC LIMIT 1

-- begin stretch
INSERT INTO clew_stretch (generation, text_index, number, first, texts)
VALUES (%(generation)b, %(index)b, %(number)b, %(first)b, %(texts)b)

-- fill stretch
UPDATE clew_stretch SET texts = %(texts)b
WHERE generation = %(generation)b AND text_index = %(index)b AND number = %(number)b

-- stretches
SELECT number FROM clew_stretch
WHERE generation = %(generation)b AND text_index = %(index)b AND first < %(before)b ORDER BY number DESC

-- only by the index
-- To make all words of all texts ready takes a hundred times longer than the planner thinks.
SET LOCAL enable_seqscan = off

-- find
SELECT found.position
FROM unnest(%(among)s::tsquery[], %(prefixes)s::text[]) AS wanted (among, prefix)
CROSS JOIN LATERAL (
    -- A fence: the inverted index is asked for each stretch, and the order is that of what it finds.
    SELECT * FROM {table} AS there WHERE coalesce(there.listed, there.words)::tsvector @@ wanted.among OFFSET 0
) AS found
WHERE found.position < %(before)b{more}
ORDER BY found.position DESC LIMIT %(limit)b
