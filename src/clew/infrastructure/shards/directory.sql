-- The directory of shards: the servers, and the server of each tenant. Each heading names a statement.

-- exists
SELECT 1 FROM pg_catalog.pg_class WHERE relname = 'clew_tenant' AND pg_table_is_visible(oid)

-- tables
CREATE TABLE clew_shard (
    name text COLLATE "C" PRIMARY KEY,
    address text NOT NULL UNIQUE,
    takes boolean NOT NULL DEFAULT true,
    store uuid UNIQUE
);
COMMENT ON COLUMN clew_shard.address IS 'host:port/database or service=name, without user and password';
COMMENT ON COLUMN clew_shard.takes IS 'whether the shard gets new tenants';
COMMENT ON COLUMN clew_shard.store IS 'clew_meta.store of the shard: a store can have several addresses, but is one shard';
CREATE TABLE clew_tenant (
    name text COLLATE "C" PRIMARY KEY,
    shard text COLLATE "C" NOT NULL REFERENCES clew_shard (name)
);
CREATE INDEX clew_tenant_shard ON clew_tenant (shard);

-- shards
SELECT name, address, takes, (SELECT count(*) FROM clew_tenant WHERE shard = clew_shard.name)
FROM clew_shard ORDER BY name

-- address of a tenant
SELECT address FROM clew_tenant JOIN clew_shard ON clew_shard.name = clew_tenant.shard WHERE clew_tenant.name = %(tenant)s

-- lock shards
-- Only one process assigns a tenant at a time, so that each one counts the assignments of the others.
SELECT FROM clew_shard ORDER BY name FOR UPDATE

-- place
INSERT INTO clew_tenant (name, shard)
SELECT %(tenant)s, name FROM clew_shard WHERE takes
ORDER BY (SELECT count(*) FROM clew_tenant WHERE shard = clew_shard.name), name LIMIT 1
ON CONFLICT (name) DO NOTHING

-- add
INSERT INTO clew_shard (name, address, store) VALUES (%(name)s, %(address)s, %(store)s)
ON CONFLICT DO NOTHING RETURNING name

-- same store
SELECT name, address FROM clew_shard WHERE store = %(store)s AND name <> %(name)s AND address <> %(address)s

-- store
SELECT store FROM clew_shard WHERE name = %(name)s

-- move
UPDATE clew_shard SET address = %(address)s WHERE name = %(name)s

-- store id
SELECT store FROM clew_meta

-- close
UPDATE clew_shard SET takes = false WHERE name = %(name)s RETURNING name
