-- The tables of a Clew database in PostgreSQL. The statements under the heading of schema N + 1 migrate a database with
-- schema N.
--
-- Names are bytes (UTF-8), because a name can contain U+0000, which PostgreSQL's text cannot, and because bytes sort by
-- code point with any collation. A stream's id is the first 63 bits of the SHA-256 of its name: it needs no sequence, and
-- every table can be distributed by it. Every unique index starts with the stream.
--
-- A tenant's number is computed from its name in the same way. Every table with content has it, so that a policy knows
-- the owner of a row without reading another table, and tenants do not share blobs.
--
-- Tables that grow with the number of events can be partitioned: `clew migrate --partitions` removes the comment signs
-- around PARTITION BY.

-- schema 1

CREATE TABLE clew_meta (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    schema integer NOT NULL,
    base bigint NOT NULL,
    shredded bigint NOT NULL,
    store uuid NOT NULL DEFAULT gen_random_uuid()
);
COMMENT ON COLUMN clew_meta.base IS 'added to transaction ids, so that new positions are above those of a restored dump';
COMMENT ON COLUMN clew_meta.store IS 'identifies the store, also on a standby and in a copy that replaces it';
INSERT INTO clew_meta (schema, base, shredded) VALUES (1, 0, 0);

CREATE TABLE clew_stream (
    id bigint PRIMARY KEY,
    tenant bigint NOT NULL,
    name bytea NOT NULL,
    parent bigint,
    cut bigint,
    began bigint NOT NULL
);
COMMENT ON COLUMN clew_stream.began IS 'the position of its first event: the order of creation';
CREATE INDEX clew_stream_parent ON clew_stream (parent) WHERE parent IS NOT NULL;
CREATE INDEX clew_stream_began ON clew_stream (began);
CREATE INDEX clew_stream_tenant ON clew_stream (tenant, began);
-- Only the start: a name can be too long for an index.
CREATE INDEX clew_stream_name ON clew_stream (substring(name FROM 1 FOR 256));

CREATE TABLE clew_event (
    position bigint NOT NULL,
    tenant bigint NOT NULL,
    stream bigint NOT NULL,
    version bigint NOT NULL,
    type bytea NOT NULL,
    state bytea NOT NULL,
    hash bytea NOT NULL,
    digest bytea,
    PRIMARY KEY (stream, version)
) /* PARTITION BY HASH (stream) */;
COMMENT ON COLUMN clew_event.position IS 'base and id of the transaction, shifted left by 20 bits, then its ordinal';
CREATE INDEX clew_event_position ON clew_event (position);

CREATE TABLE clew_key (
    tenant bigint NOT NULL,
    stream bigint NOT NULL,
    key bytea NOT NULL,
    salt bytea NOT NULL,
    digest bytea,
    first bigint NOT NULL,
    last bigint NOT NULL,
    PRIMARY KEY (stream, key)
) /* PARTITION BY HASH (stream) */;
COMMENT ON COLUMN clew_key.key IS 'SHA-256 of the idempotency key';
CREATE INDEX clew_key_first ON clew_key (first);

CREATE TABLE clew_snapshot (
    tenant bigint NOT NULL,
    stream bigint NOT NULL,
    version bigint NOT NULL,
    state bytea NOT NULL,
    PRIMARY KEY (stream, version)
) /* PARTITION BY HASH (stream) */;

CREATE TABLE clew_blob (
    tenant bigint NOT NULL,
    digest bytea NOT NULL,
    kind bytea NOT NULL,
    data bytea NOT NULL,
    came bigint NOT NULL,
    PRIMARY KEY (tenant, digest)
);
CREATE INDEX clew_blob_digest ON clew_blob (digest);
CREATE INDEX clew_blob_came ON clew_blob (came);

CREATE TABLE clew_lease (
    tenant bigint NOT NULL,
    stream bigint PRIMARY KEY,
    holder bytea NOT NULL,
    until bigint NOT NULL
);

CREATE TABLE clew_draft (
    tenant bigint NOT NULL,
    stream bigint PRIMARY KEY,
    run bytea NOT NULL,
    data bytea NOT NULL
);

ALTER TABLE clew_event ALTER COLUMN state SET STATISTICS 0; -- statistics would keep samples of text that is redacted later
ALTER TABLE clew_snapshot ALTER COLUMN state SET STATISTICS 0;
ALTER TABLE clew_blob ALTER COLUMN data SET STATISTICS 0;
ALTER TABLE clew_draft ALTER COLUMN data SET STATISTICS 0;

CREATE FUNCTION clew_shred(stream bigint, version bigint, digest bytea, stub bytea) RETURNS bigint LANGUAGE sql AS $$
    WITH gone AS (
        UPDATE clew_event AS event SET state = $4, digest = $3
        WHERE event.stream = $1 AND event.version = $2 AND event.digest IS NULL AND sha256(event.state) = $3
        RETURNING event.position
    ), forgotten AS (
        UPDATE clew_key AS key SET digest = NULL FROM gone WHERE key.first = (gone.position >> 20) << 20
    )
    SELECT position FROM gone
$$;
COMMENT ON FUNCTION clew_shred IS 'replace the bytes with this digest by the digest and a stub; returns the position, null if missing';

CREATE FUNCTION clew_count_shreds(count bigint) RETURNS void LANGUAGE sql AS $$
    -- At most the rows of one transaction: all tenants share the counter, and none must be able to overflow it.
    UPDATE clew_meta SET shredded = shredded + least($1, 1048576) WHERE $1 > 0
$$;

CREATE TABLE clew_tracking (
    application bytea PRIMARY KEY,
    notification bigint NOT NULL
);

CREATE TABLE clew_generation (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    name text NOT NULL,
    version bigint NOT NULL,
    code text NOT NULL,
    shape text NOT NULL,
    position bigint NOT NULL,
    hash bytea NOT NULL,
    live boolean NOT NULL,
    tables text NOT NULL,
    texts text[] NOT NULL,
    forgot bigint NOT NULL DEFAULT 0,
    cleaned bigint NOT NULL DEFAULT 0
);
COMMENT ON TABLE clew_generation IS 'projections: one version of their code fills the tables clew_g<id>_<table>';
COMMENT ON COLUMN clew_generation.forgot IS 'how many texts were removed from its text indexes';
COMMENT ON COLUMN clew_generation.cleaned IS 'how many of them were also removed from the files of the tables';
COMMENT ON COLUMN clew_generation.tables IS 'their declaration, for readers without the code of the projection';
CREATE UNIQUE INDEX clew_generation_live ON clew_generation (name) WHERE live;

CREATE TABLE clew_parked (
    generation bigint NOT NULL,
    position bigint NOT NULL,
    tenant bigint NOT NULL,
    stream bytea NOT NULL,
    version bigint NOT NULL,
    type bytea NOT NULL,
    error bytea NOT NULL,
    PRIMARY KEY (generation, position)
);

CREATE TABLE clew_stretch (
    generation bigint NOT NULL,
    text_index text NOT NULL,
    number bigint NOT NULL,
    first bigint NOT NULL,
    size bigint NOT NULL,
    listed boolean NOT NULL,
    PRIMARY KEY (generation, text_index, number)
);
COMMENT ON TABLE clew_stretch IS 'parts of text indexes, each of some thousand texts in the order of the log';

CREATE TABLE clew_worker (
    worker text NOT NULL,
    projection text NOT NULL,
    until timestamptz NOT NULL,
    held boolean NOT NULL,
    PRIMARY KEY (worker, projection)
);
COMMENT ON TABLE clew_worker IS 'which worker wants which projection, until when, and whether it holds the lease';

-- schema 2

CREATE TABLE clew_entry (
    tenant bigint NOT NULL,
    stream bigint NOT NULL,
    number bigint NOT NULL,
    version bigint NOT NULL,
    PRIMARY KEY (stream, number, version)
) /* PARTITION BY HASH (stream) */;
COMMENT ON TABLE clew_entry IS 'the index of records by type and key, and of rewinds; a number is a part of a digest';

-- schema 3

CREATE TABLE clew_fold_state (
    tenant bigint NOT NULL,
    stream bigint NOT NULL,
    name bytea NOT NULL,
    slot bigint NOT NULL,
    version bigint NOT NULL,
    state bytea NOT NULL,
    PRIMARY KEY (stream, name, slot)
);
COMMENT ON TABLE clew_fold_state IS 'states of the folds of applications: all rows can be deleted at any time';
ALTER TABLE clew_fold_state ALTER COLUMN state SET STATISTICS 0;

-- schema 4

COMMENT ON TABLE clew_entry IS
    'the index of records by type and key, of checkpoints by name, and of rewinds; a number is a part of a digest';

-- schema 5

CREATE TABLE clew_record_blob (
    tenant bigint NOT NULL,
    digest bytea NOT NULL,
    number bigint NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (tenant, digest)
);
COMMENT ON TABLE clew_record_blob IS 'the bytes of records; the index of records has their number';
CREATE INDEX clew_entry_blob ON clew_entry (number) WHERE number >= 4611686018427387904;
ALTER TABLE clew_record_blob ALTER COLUMN data SET STATISTICS 0;
