-- Indexes of words: for each a table of texts and one of postings, and stretches of texts in the order of the log. Each
-- heading names a statement. {table} and {postings} stand for their names, {key} for that of the key of one.

-- texts
CREATE TABLE {table} (
    position bigint CONSTRAINT {key} PRIMARY KEY,
    tenant bigint NOT NULL,
    words text COLLATE "C" NOT NULL
)

-- postings
CREATE TABLE {table} (
    stretch bigint,
    word text COLLATE "C",
    positions bigint[] NOT NULL,
    CONSTRAINT {key} PRIMARY KEY (stretch, word)
)

-- texts are kept as they are
-- To make them smaller takes longer than to write them. The server's statistics would keep some that are redacted later.
ALTER TABLE {table} ALTER COLUMN words SET STORAGE EXTERNAL, ALTER COLUMN words SET STATISTICS 0

-- postings are kept as they are
ALTER TABLE {table}
    ALTER COLUMN positions SET STORAGE EXTERNAL, ALTER COLUMN positions SET STATISTICS 0,
    ALTER COLUMN word SET STATISTICS 0

-- add
INSERT INTO {table} (position, tenant, words)
SELECT * FROM unnest(%s::bigint[], %s::bigint[], string_to_array(%s, E'\n'))

-- texts of a stretch
SELECT position, words FROM {table} WHERE position >= %(first)b AND position < %(end)b ORDER BY position

-- list
INSERT INTO {postings} (stretch, word, positions)
SELECT %(stretch)b, word, positions::bigint[]
FROM unnest(string_to_array(%(words)s, E'\n'), string_to_array(%(positions)s, E'\n')) AS listed (word, positions)

-- forget
-- A word that no other text of the stretch has goes with it.
WITH gone AS (
    DELETE FROM {table} WHERE position = %(position)b RETURNING position, words
), listed AS MATERIALIZED (
    SELECT stretch.number AS stretch, had.word, gone.position
    FROM gone
    CROSS JOIN LATERAL (
        SELECT number FROM clew_stretch
        WHERE generation = %(generation)b AND text_index = %(index)b AND first <= gone.position
        ORDER BY number DESC LIMIT 1
    ) AS stretch
    CROSS JOIN LATERAL (
        SELECT DISTINCT left(each, %(longest)s::int) FROM unnest(string_to_array(gone.words, ' ')) AS each
    ) AS had (word)
), last AS (
    DELETE FROM {postings} AS posting USING listed
    WHERE posting.stretch = listed.stretch AND posting.word = listed.word
        AND posting.positions = ARRAY[listed.position]
), shared AS (
    UPDATE {postings} AS posting SET positions = array_remove(posting.positions, listed.position) FROM listed
    WHERE posting.stretch = listed.stretch AND posting.word = listed.word
        AND posting.positions <> ARRAY[listed.position]
)
SELECT position FROM gone

-- newest stretch
SELECT number, first, size, listed FROM clew_stretch
WHERE generation = %(generation)b AND text_index = %(index)b ORDER BY number DESC LIMIT 1

-- note stretch
INSERT INTO clew_stretch (generation, text_index, number, first, size, listed)
VALUES (%(generation)b, %(index)b, %(number)b, %(first)b, %(size)b, %(listed)b)
ON CONFLICT (generation, text_index, number) DO UPDATE SET size = excluded.size, listed = excluded.listed

-- only by the index
-- The planner knows little of arrays, and would rather read a table as a whole; to compile the statement, or to plan it
-- again, would take longer than to answer it.
SELECT
    set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true),
    set_config('plan_cache_mode', 'force_generic_plan', true)

-- find
-- The newest stretches are looked at first. Each that was looked at is in the answer, also when nothing was found.
-- In one that is listed, the texts that have the seldomest word are candidates. Where they are few they are looked at, else
-- looked up among those that have the other words (width_bucket looks for a number in an ordered array by halves).
-- A beginning that many words have is only looked for in the texts, unless nothing else is wanted.
-- The texts of one that is not listed are looked through.
SELECT stretch.number, found.position
FROM (
    SELECT number, first, listed, listed AND NOT EXISTS (
        SELECT FROM unnest(%(words)b::text[]) AS wanted (word)
        WHERE NOT EXISTS (
            SELECT FROM {postings} AS posting WHERE posting.stretch = number AND posting.word = wanted.word
        )
    ) AS has_words
    FROM clew_stretch
    WHERE generation = %(generation)b AND text_index = %(index)b AND first < %(before)b AND number < %(below)b
    ORDER BY number DESC LIMIT %(stretches)b
) AS stretch
LEFT JOIN LATERAL (
    (
        WITH begun AS MATERIALIZED (
            SELECT wanted.beginning, wanted."end"
            FROM unnest(%(beginnings)b::text[], %(ends)b::text[]) AS wanted (beginning, "end")
            WHERE cardinality(%(words)b::text[]) = 0 OR (
                SELECT count(*) < 100 FROM (
                    SELECT FROM {postings} AS posting
                    WHERE posting.stretch = number AND word >= wanted.beginning AND word < wanted."end" LIMIT 100
                ) AS beginning_so
            )
        ), part AS MATERIALIZED (
            SELECT positions FROM unnest(%(words)b::text[]) AS wanted (word)
            JOIN {postings} AS posting ON posting.stretch = number AND posting.word = wanted.word
            UNION ALL
            SELECT array_agg(DISTINCT position ORDER BY position)
            FROM begun
            CROSS JOIN LATERAL (
                -- A fence: for many beginnings the planner would read all words of the stretch.
                SELECT positions FROM {postings} AS posting
                WHERE posting.stretch = number AND word >= begun.beginning AND word < begun."end" OFFSET 0
            ) AS posting
            CROSS JOIN unnest(posting.positions) AS position
            GROUP BY begun.beginning
        ), ranked AS MATERIALIZED (
            -- The size is known without a look at an array that is kept elsewhere.
            SELECT positions, pg_column_size(positions) < 200 AS are_few,
                row_number() OVER (ORDER BY pg_column_size(positions)) AS rank, count(*) OVER () AS parts
            FROM part
        ), other AS MATERIALIZED (
            SELECT positions[:] AS positions FROM ranked WHERE rank > 1
        )
        SELECT there.position
        FROM (
            SELECT position, are_few FROM ranked CROSS JOIN unnest(positions) AS position
            WHERE rank = 1 AND parts = cardinality(%(words)b::text[]) + (SELECT count(*) FROM begun)
                AND position < %(before)b
                AND (are_few OR NOT EXISTS (
                    SELECT FROM other WHERE positions[width_bucket(position, positions)] IS DISTINCT FROM position
                ))
            ORDER BY position DESC
        ) AS candidate
        JOIN {table} AS there USING (position)
        WHERE stretch.has_words AND ((%(certain)b AND NOT are_few) OR {fits}){more}
        ORDER BY position DESC LIMIT %(limit)b
    ) UNION ALL (
        SELECT there.position FROM {table} AS there
        WHERE NOT stretch.listed AND there.position >= stretch.first AND there.position < %(before)b AND {fits}{more}
        ORDER BY position DESC LIMIT %(limit)b
    )
) AS found ON true
ORDER BY stretch.number DESC, found.position DESC

-- fits
NOT EXISTS (
    SELECT FROM unnest(%(rows)b::text[], %(wanted)b::boolean[]) AS part (words, wanted)
    WHERE (strpos(there.words, part.words) > 0) <> part.wanted
)

-- find of a tenant
SELECT * FROM clew_find(
    %(generation)b, %(index)b, %(words)b, %(beginnings)b, %(ends)b, %(certain)b, %(rows)b, %(wanted)b, %(before)b,
    %(below)b, %(stretches)b, %(limit)b
)
