"""From a URL to an event log."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

from clew.domain.errors import StoreUrlError
from clew.domain.names import tenant_part
from clew.infrastructure.schemas import Schemas

if TYPE_CHECKING:
    from clew.domain.memory.ports import VectorIndex
    from clew.domain.projection_store import ProjectionStore
    from clew.infrastructure.event_log import ConversationLog
    from clew.infrastructure.name_listing import Glance
    from clew.infrastructure.postgres.address import Address
    from clew.infrastructure.shards.directory import Directory

FORMS = (
    "Use sqlite:///file.db (sqlite:////absolute/file.db), postgresql://user@host/database, "
    "postgresql+shards://user@host/directory or memory:."
)

MOST_CONNECTIONS = 1_000
_NUMBER = re.compile(r"[0-9]{1,4}")
POSTGRES = ("postgresql", "postgres")
SHARDS = "postgresql+shards"


def open_log(url: str, *, create: bool = True, tenant: str | None = None) -> ConversationLog:
    """Open the log that a URL names; what is missing of a SQLite database is made.

    Without ``create`` a database that is not there, or an empty file, is a StoreUnavailableError, and nothing is made.

    ``sqlite:///file.db`` is relative to the working directory, ``sqlite:////file.db`` absolute; ``memory:`` is gone
    with the process. ``?synchronous=OFF`` (or NORMAL; the default is FULL) trades durability for speed.

    ``postgresql://user:password@host:5432/database`` is PostgreSQL's own form, with all settings that its client
    library knows (``?sslmode=verify-full``), a service or a password file; without ``create`` a database without
    Clew's tables is a StoreSchemaError. ``?workers=16`` and ``?readers=8`` are how many appends and queries of the
    process are sent at a time, at the most. ``?prepare=no`` is for a pooler that does not keep prepared statements
    apart, as PgBouncer before 1.22. ``tenant`` is whose rows are read and written, where the
    database tells tenants apart.

    Raises StoreUrlError, StoreSchemaError or StoreUnavailableError.
    """
    if not isinstance(url, str):
        message = f"{type(url).__name__} is not a URL. {FORMS}"
        raise StoreUrlError(message)
    scheme = _scheme(url)
    if scheme in POSTGRES:
        settings = {**_postgres(url), "POSTGRES_CREATE": "yes" if create else "no", "ORIGINATOR_ID_TYPE": "text"}
        if tenant is not None:
            settings["POSTGRES_TENANT"] = tenant_part(tenant)
        return _open({"PERSISTENCE_MODULE": "clew.infrastructure.postgres.factory:PostgresFactory", **settings})
    if scheme == "memory" and url == "memory:":
        return _open({"PERSISTENCE_MODULE": "clew.infrastructure.inmemory.factory:InMemoryFactory"})
    if scheme == "sqlite":
        settings = _sqlite(url, create=create)
        return _open({"PERSISTENCE_MODULE": "clew.infrastructure.sqlite.factory:SQLiteFactory", **settings})
    raise _unknown(url)


def is_sharded(url: str) -> bool:
    """Whether the URL names a directory of shards."""
    return _scheme(url) == SHARDS


def directory(url: str) -> Directory:
    """The directory of shards that a URL names. Raises StoreUrlError."""
    if not is_sharded(url):
        message = f"{_without_secrets(url)!r} names no directory of shards. Use {SHARDS}://user@host:5432/directory."
        raise StoreUrlError(message)
    plain = url.replace(SHARDS, POSTGRES[0], 1)
    there = address(plain)
    from clew.infrastructure.shards.directory import Directory

    return Directory(plain, there)


def placed(url: str, *, tenant: str, create: bool) -> str:
    """The URL of the store that a tenant is in: the same, or that of its shard where the URL names a directory.

    With ``create`` a tenant that is on no shard is given one. Raises ShardError or what directory() and a store raise.
    """
    if not (isinstance(url, str) and is_sharded(url)):
        return url
    return directory(url).url_of(tenant, place=create)


def sqlite_path(url: str) -> str:
    """The path of the SQLite file that a URL names. Raises StoreUrlError for any other."""
    scheme = _scheme(url)
    if scheme != "sqlite":
        if url != "memory:" and scheme not in {*POSTGRES, SHARDS}:
            raise _unknown(url)
        message = (
            f"{_without_secrets(url)!r} names no SQLite file. Use sqlite:///file.db (sqlite:////absolute/file.db)."
        )
        raise StoreUrlError(message)
    return _sqlite(url, create=False)["SQLITE_DBNAME"]


def is_postgres(url: str) -> bool:
    """Whether the URL names a PostgreSQL database."""
    return _scheme(url) in POSTGRES


def glance(url: str, *, tenant: str) -> Glance:
    """A look for names into the store that a URL names, on behalf of a tenant. Raises what placed() does."""
    url = placed(url, tenant=tenant, create=False)
    if is_postgres(url):
        there = address(url)
        from clew.infrastructure.postgres.name_listing import PostgresGlance

        return PostgresGlance(there, tenant_part(tenant))
    from clew.infrastructure.sqlite.name_listing import SQLiteGlance

    return SQLiteGlance(sqlite_path(url))


def address(url: str) -> Address:
    """Where the PostgreSQL database is that a URL names. Raises StoreUrlError."""
    conninfo = _postgres(url)["POSTGRES_URL"]
    from clew.infrastructure.postgres.address import Address

    return Address(conninfo)


def shown(url: str) -> str:
    """The database that a URL names, as it can be shown: the path of a file, or a server without the password.

    Raises StoreUrlError.
    """
    return address(url).shown if is_postgres(url) else sqlite_path(url)


def schemas(url: str) -> Schemas:
    """The schema of the database that a URL names, and the one that this Clew knows. Raises what migrate() does."""
    if is_postgres(url):
        there = address(url)
        from clew.infrastructure.postgres import schema as postgres_schema

        return Schemas(postgres_schema.version(there), postgres_schema.SCHEMA_VERSION)
    from clew.infrastructure.sqlite import migrations as sqlite_migrations

    return sqlite_migrations.schemas(sqlite_path(url))


def migrate(
    url: str, *, backup: str | None = None, partitions: int | None = None, row_level_security: bool = False
) -> Schemas:
    """Lead the database that a URL names to the schema that this Clew knows; returns what its schema was.

    First it is copied to the file ``backup``, which must not be there. In an empty PostgreSQL database the tables are
    divided into so many ``partitions``, from 2 to 1024, or 0 for none; where they are there otherwise, or for another
    number, that is a StoreSchemaError. With ``row_level_security`` a PostgreSQL database to which nobody else is
    connected keeps tenants apart by itself from then on. Raises StoreUrlError, StoreSchemaError or
    StoreUnavailableError.
    """
    if is_postgres(url):
        there = address(url)
        if backup is not None:
            message = "A PostgreSQL database is copied by PostgreSQL's own pg_dump, and not to a file of Clew's."
            raise StoreUrlError(message)
        from clew.infrastructure.postgres import schema as postgres_schema

        found = postgres_schema.migrate(there, partitions=partitions)
        if row_level_security:
            from clew.infrastructure.postgres.row_level_security import secure

            secure(there)
        return Schemas(found, postgres_schema.SCHEMA_VERSION)
    if partitions is not None:
        message = "Only a PostgreSQL database is divided into partitions: a SQLite database is one file."
        raise StoreUrlError(message)
    if row_level_security:
        message = "Only a PostgreSQL database keeps tenants apart by itself: who reads a SQLite file reads all of it."
        raise StoreUrlError(message)
    from clew.infrastructure.sqlite import migrations as sqlite_migrations

    return sqlite_migrations.migrate(sqlite_path(url), backup=backup)


def open_projections(url: str, *, tenant: str | None = None) -> ProjectionStore:
    """The tables of projections beside the log that a URL names: a file with ``.projections`` after its name.

    Those of a PostgreSQL database are in it, and read on behalf of ``tenant`` where it tells tenants apart. Nothing is
    made until something is written. Raises StoreUrlError.
    """
    if is_postgres(url):
        conninfo = _postgres(url)["POSTGRES_URL"]
        from clew.infrastructure.postgres.projections import PostgresProjections

        return PostgresProjections(conninfo, tenant=None if tenant is None else tenant_part(tenant))
    from clew.infrastructure.sqlite.projections import SQLiteProjections

    return SQLiteProjections(None if url == "memory:" else _sqlite(url, create=True)["SQLITE_DBNAME"] + ".projections")


def open_vectors(url: str, *, tenant: str | None = None) -> VectorIndex:
    """The index of vectors beside the log that a URL names: a file with ``.vectors`` after its name.

    That of a PostgreSQL database is a table in it, where each ``tenant`` has its own. Nothing is made until something
    is written. Raises StoreUrlError.
    """
    if is_postgres(url):
        conninfo = _postgres(url)["POSTGRES_URL"]
        from clew.infrastructure.postgres.vectors import PostgresVectors

        return PostgresVectors(conninfo, tenant=None if tenant is None else tenant_part(tenant))
    if url == "memory:":
        from clew.infrastructure.inmemory.vectors import InMemoryVectors

        return InMemoryVectors()
    from clew.infrastructure.sqlite.vectors import SQLiteVectors

    return SQLiteVectors(_sqlite(url, create=True)["SQLITE_DBNAME"] + ".vectors")


def _open(env: dict[str, str]) -> ConversationLog:
    from clew.infrastructure.event_log import ConversationLog  # a wrong URL need not load the library

    return ConversationLog(env)


def _sqlite(url: str, *, create: bool) -> dict[str, str]:
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.netloc or not path.startswith("/") or path in {"/", "//"} or "\0" in path or parts.fragment:
        message = f"{_without_secrets(url)!r} names no SQLite file. {FORMS}"
        raise StoreUrlError(message)
    settings = dict(parse_qsl(parts.query, keep_blank_values=True))
    synchronous = settings.pop("synchronous", "FULL").upper()
    if settings or synchronous not in {"FULL", "NORMAL", "OFF"}:
        message = f"{_without_secrets(url)!r}: the only setting is synchronous=FULL, NORMAL or OFF."
        raise StoreUrlError(message)
    return {
        # Slashes before the first folder that are too many name the same file, and no host.
        "SQLITE_DBNAME": path[1:] if not path.startswith("//") else "/" + path.lstrip("/"),
        "SQLITE_SYNCHRONOUS": synchronous,
        "SQLITE_CREATE": "yes" if create else "no",
        "ORIGINATOR_ID_TYPE": "text",
    }


def _unknown(url: str) -> StoreUrlError:
    return StoreUrlError(f"{_without_secrets(url)!r} names no store that Clew can open. {FORMS}")


def _scheme(url: str) -> str:
    try:
        return urlsplit(url).scheme
    except ValueError:  # brackets that hold no address
        return ""


def _postgres(url: str) -> dict[str, str]:
    """The settings of a PostgreSQL store. Raises StoreUrlError."""
    if "\0" in url:  # the client library would read no further
        message = f"{_without_secrets(url)!r} holds U+0000, which no address has."
        raise StoreUrlError(message)
    place, _, query = url.partition("?")
    own = {name: value for name, value in parse_qsl(query, keep_blank_values=True) if name in ("workers", "readers")}
    for name, value in own.items():
        if not (_NUMBER.fullmatch(value) and 0 < int(value) <= MOST_CONNECTIONS):
            message = f"{_without_secrets(url)!r}: {name} is a number from 1 to {MOST_CONNECTIONS}."
            raise StoreUrlError(message)
    rest = "&".join(part for part in query.split("&") if part.split("=")[0] not in own)
    return {
        "POSTGRES_URL": f"{place}?{rest}" if rest else place,
        **{f"POSTGRES_{name.upper()}": value for name, value in own.items()},
    }


def _without_secrets(url: str) -> str:
    """The URL as far as it can be shown: a password may stand before the host, or in a query."""
    if "password=" in url and "://" not in url:  # as the client library would have it
        return "…"
    shown, _, query = url.partition("?")
    if "@" in query:  # then the mark may be one of a password's characters
        return f"{_scheme(url)}://…"
    _, at, host = shown.rpartition("@")
    return f"{_scheme(url)}://…@{host}" if at else shown
