-- The tables of a Clew database in PostgreSQL, by the schema that begins with them. Each has its own heading:
-- a database with schema N comes to N + 1 by what stands under it.
--
-- Names are bytes (UTF-8), because a name may hold U+0000, which text of PostgreSQL's cannot, and so that they are in
-- the order of code points whatever the collation. A stream's id is the first 63 bits of SHA-256 of its name: it needs
-- no sequence, and every table can be distributed by it. Nothing is unique that does not begin with the stream.
--
-- A tenant is its name's first 63 bits in the same way, in each table that has content: so a policy can tell whose a
-- row is without looking at another, and one tenant's blob is not another's.

-- schema 1

CREATE TABLE clew_meta (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    schema integer NOT NULL,
    base bigint NOT NULL,
    shredded bigint NOT NULL
);
COMMENT ON COLUMN clew_meta.base IS 'added to transaction ids, so that positions go on above those of a restored dump';
INSERT INTO clew_meta (schema, base, shredded) VALUES (1, 0, 0);

CREATE TABLE clew_stream (
    id bigint PRIMARY KEY,
    tenant bigint NOT NULL,
    name bytea NOT NULL,
    parent bigint,
    cut bigint,
    began bigint NOT NULL
);
COMMENT ON COLUMN clew_stream.began IS 'the position of its first event: the order in which streams were made';
CREATE INDEX clew_stream_parent ON clew_stream (parent) WHERE parent IS NOT NULL;
CREATE INDEX clew_stream_began ON clew_stream (began);
-- The beginning only: a name may be longer than what an index holds.
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
);
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
);
COMMENT ON COLUMN clew_key.key IS 'SHA-256 of the idempotency key';
CREATE INDEX clew_key_first ON clew_key (first);

CREATE TABLE clew_snapshot (
    tenant bigint NOT NULL,
    stream bigint NOT NULL,
    version bigint NOT NULL,
    state bytea NOT NULL,
    PRIMARY KEY (stream, version)
);

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

CREATE TABLE clew_tracking (
    application bytea PRIMARY KEY,
    notification bigint NOT NULL
);
