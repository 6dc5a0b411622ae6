-- The table of vectors, and its statements. Each heading names a statement.
--
-- If the database has the extension pgvector, a vector has its type. Otherwise it is bytes: float32, little-endian. A
-- vector belongs to the tenant of its text: two tenants with the same text have one each.

-- kind
-- And the schema of the extension, which may be outside the search path.
SELECT typname::text, quote_ident(nspname)
FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid JOIN pg_namespace ON pg_namespace.oid = typnamespace
WHERE attrelid = to_regclass('clew_vector') AND attname = 'vector'

-- can have the extension
SELECT EXISTS (SELECT FROM pg_available_extensions WHERE name = 'vector' AND installed_version IS NULL)

-- extension
CREATE EXTENSION IF NOT EXISTS vector

-- home of the extension
SELECT quote_ident(nspname) FROM pg_extension JOIN pg_namespace ON pg_namespace.oid = extnamespace
WHERE extname = 'vector' AND has_schema_privilege(extnamespace, 'USAGE')

-- make
CREATE TABLE clew_vector (
    tenant bigint NOT NULL,
    space bytea NOT NULL,
    digest bytea NOT NULL,
    vector {type} NOT NULL,
    PRIMARY KEY (tenant, space, digest)
);
COMMENT ON TABLE clew_vector IS 'vectors of texts by the SHA-256 of the text; space is the model and its dimensions'

-- there
SELECT digest FROM clew_vector
WHERE tenant = %(tenant)b AND space = %(space)b AND digest = ANY (%(digests)b::bytea[])

-- put bytea
INSERT INTO clew_vector (tenant, space, digest, vector)
SELECT %(tenant)b, %(space)b, digest, vector
FROM unnest(%(digests)b::bytea[], %(vectors)b::bytea[]) AS given (digest, vector)
ORDER BY digest
ON CONFLICT (tenant, space, digest) DO NOTHING

-- put vector
INSERT INTO clew_vector (tenant, space, digest, vector)
SELECT %(tenant)b, %(space)b, digest, vector::{home}.vector
FROM unnest(%(digests)b::bytea[], %(vectors)b::text[]) AS given (digest, vector)
ORDER BY digest
ON CONFLICT (tenant, space, digest) DO NOTHING

-- get bytea
SELECT digest, vector FROM clew_vector
WHERE tenant = %(tenant)b AND space = %(space)b AND digest = ANY (%(digests)b::bytea[])

-- get vector
SELECT digest, {home}.vector_send(vector) FROM clew_vector
WHERE tenant = %(tenant)b AND space = %(space)b AND digest = ANY (%(digests)b::bytea[])

-- nearest
SELECT entry.number, coalesce(1 - nullif(kept.vector OPERATOR({home}.<=>) %(vector)b::real[]::{home}.vector, 'NaN'), 0)
FROM unnest(%(numbers)b::int8[], %(digests)b::bytea[]) AS entry (number, digest)
JOIN clew_vector AS kept USING (digest)
WHERE kept.tenant = %(tenant)b AND kept.space = %(space)b
ORDER BY 2 DESC, 1 LIMIT %(top)b

-- dimensions
SELECT {home}.vector_dims(kept.vector) FROM clew_vector AS kept
WHERE kept.tenant = %(tenant)b AND kept.space = %(space)b AND kept.digest = ANY (%(digests)b::bytea[]) LIMIT 1

-- drop
DELETE FROM clew_vector WHERE tenant = %(tenant)b
