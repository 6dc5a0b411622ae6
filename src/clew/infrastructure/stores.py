"""Stores: the class of each URL scheme, and the store that a URL names."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, urlsplit

from clew.domain.errors import StoreUrlError

if TYPE_CHECKING:
    from clew.domain.diagnostics import Finding
    from clew.domain.memory.ports import VectorIndex
    from clew.domain.projection_store import ProjectionStore
    from clew.infrastructure.completion_names import NameListing
    from clew.infrastructure.event_log import ConversationLog

FORMS = (
    "Use sqlite:///file.db (sqlite:////absolute/file.db) or the path of a file (./file if the name looks like a URL), "
    "postgresql://user@host/database, postgresql+shards://user@host/directory or memory:."
)


class Schemas(NamedTuple):
    """The schema version of a database, 0 for none, and the schema version of this Clew."""

    found: int
    known: int


class Store(ABC):
    """The store that a URL names. Each URL scheme has a subclass.

    An object opens nothing until a method is called. A new kind of store is a subclass and a line in ``SCHEMES``. It
    must provide a log, tables for projections and an index of vectors. The other methods have a default.
    """

    name: str
    """The database as it can be shown: the path of a file, or a server without the password."""

    is_lasting = True
    """Whether the store outlives the process."""

    read_only = False
    """Whether nothing is written: see ``store_at``."""

    has_own_read_models = False
    """Whether a process that only reads fills read models of its own."""

    @abstractmethod
    def __init__(self, url: str) -> None:
        """Read the URL. Raises StoreUrlError."""

    @abstractmethod
    def open_log(self, *, create: bool = True, tenant: str | None = None) -> ConversationLog:
        """Open the event log. With ``create`` the tables are made when they do not exist.

        ``tenant`` is the tenant whose rows are read and written, in a database that separates tenants itself. Raises
        StoreUnavailableError or StoreSchemaError.
        """

    @abstractmethod
    def open_projections(self, *, tenant: str | None = None) -> ProjectionStore:
        """The tables of projections. Nothing is created before the first write."""

    @abstractmethod
    def open_vectors(self, *, tenant: str | None = None) -> VectorIndex:
        """The index of vectors. Nothing is created before the first write."""

    def of_tenant(self, tenant: str, *, create: bool) -> Store:  # noqa: ARG002 - a directory of shards uses both
        """The store that holds a tenant: this one, or a shard of a directory.

        With ``create`` a tenant without a shard is given one. Raises ShardError.
        """
        return self

    def can_be_written(self) -> bool:
        """Whether this user may write to the database, as far as can be seen without opening it."""
        return True

    def list_names(self, tenant: str) -> NameListing:  # noqa: ARG002 - a store that can list names uses it
        """Names of a tenant's streams for tab completion, read without opening the store."""
        raise StoreUrlError(f"{self.name} cannot list names for tab completion.")

    def schemas(self) -> Schemas | None:
        """The schema of the database and the schema that this Clew knows; None for a store without schemas.

        Raises what migrate() raises.
        """
        return None

    def migrate(
        self, *, backup: str | None = None, partitions: int | None = None, row_level_security: bool = False
    ) -> Schemas:
        """Migrate the database to the schema that this Clew knows; returns the previous schema.

        First copies it to the file ``backup``, which must not exist. ``partitions`` divides the tables of an empty
        PostgreSQL database into 2 to 1024 parts, 0 for none. With ``row_level_security`` a PostgreSQL database
        separates tenants itself from then on; no other program may be connected. Raises StoreUrlError, also for a store
        without schemas, StoreUnavailableError or StoreSchemaError, also for tables with another number of partitions.
        """
        del backup, partitions, row_level_security
        schemas = self.schemas()
        if schemas is None:
            raise StoreUrlError(
                f"The store {self.name!r} has no tables to migrate. Name a database that is to be migrated."
            )
        return schemas

    def check_environment(self) -> Iterator[Finding]:
        """For ``clew doctor``: the library or the server, before the database is opened."""
        return iter(())

    def check_files(self) -> Iterator[Finding]:
        """For ``clew doctor``: the files of the database, without opening it."""
        return iter(())

    def check_tables(self, tenant: str, now: int) -> Iterator[Finding]:  # noqa: ARG002 - see the subclasses
        """For ``clew doctor``: the tables next to the chain; ``now`` is in microseconds since 1970."""
        return iter(())

    def check_pages(self) -> Iterator[Finding]:
        """For ``clew doctor --verify``: all pages. Takes as long as reading the database."""
        return iter(())


SCHEMES: dict[str, str | type[Store]] = {
    "memory": "clew.infrastructure.inmemory.store:InMemoryStore",
    "postgres": "clew.infrastructure.postgres.store:PostgresStore",
    "postgresql": "clew.infrastructure.postgres.store:PostgresStore",
    "postgresql+shards": "clew.infrastructure.shards.store:ShardedStore",
    "sqlite": "clew.infrastructure.sqlite.store:SQLiteStore",
}
"""The class of each URL scheme, or the place to import it from when it is needed."""


def store_at(url: str | Path, *, read_only: bool = False) -> Store:
    """The store that a URL or the path of a SQLite file names. Raises StoreUrlError.

    With ``read_only``, or with ``?mode=ro`` in the URL, it is only read.

    ``file.db`` and ``sqlite:///file.db`` are relative to the working directory, ``/folder/file.db`` and
    ``sqlite:////folder/file.db`` are absolute. A Path is always a file. A string that can be a mistyped URL is refused:
    ``my:file`` can be written as ``./my:file``. ``sqlite:///file.db?synchronous=OFF`` (or NORMAL; the default is FULL)
    trades durability for speed. ``memory:`` ends with the process.

    ``postgresql://user:password@host:5432/database`` is PostgreSQL's own form, with all settings of its client library
    (``?sslmode=verify-full``), a service or a password file. ``?workers=16`` and ``?readers=8`` limit how many appends
    and queries the process sends at a time. ``?prepare=no`` is for a pooler that does not support prepared statements,
    such as PgBouncer before 1.22. ``postgresql+shards://…`` is a directory of several such databases.
    """
    if not isinstance(url, str | Path):
        raise StoreUrlError(f"{type(url).__name__} is not a URL. {FORMS}")
    is_path = isinstance(url, Path) or _is_path(url)
    url = str(url)
    try:
        url.encode(errors="surrogateescape")  # Python's form of a file name whose bytes are not UTF-8
    except UnicodeEncodeError:
        raise StoreUrlError(f"{without_secrets(url)!r} holds a lone surrogate, which names no file. {FORMS}") from None
    if is_path:
        url = f"sqlite:///{quote(url, errors='surrogateescape')}"
    kind = SCHEMES.get(scheme_of(url))
    if kind is None:
        raise StoreUrlError(f"{without_secrets(url)!r} does not name a store that Clew can open. {FORMS}")
    if isinstance(kind, str):
        module, _, name = kind.partition(":")
        kind = getattr(import_module(module), name)
    store = kind(url)
    store.read_only = read_only or store.read_only
    return store


def scheme_of(url: str) -> str:
    """The scheme of a URL, empty when it has none."""
    try:
        return urlsplit(url).scheme
    except ValueError:  # brackets without an address in them
        return ""


def without_secrets(url: str) -> str:
    """As much of a URL as can be shown: a password can be before the host, or in the query."""
    if "password=" in url and "://" not in url:  # the other form of PostgreSQL's client library
        return "…"
    without_query, _, query = url.partition("?")
    if "@" in query:  # then the question mark can be a part of the password
        return f"{scheme_of(url)}://…"
    _, at, host = without_query.rpartition("@")
    return f"{scheme_of(url)}://…@{host}" if at else without_query


def _is_path(url: str) -> bool:
    """Whether it is the path of a file: not blank, not a URL, and not a mistyped one, such as ``postgres//host``."""
    is_mistyped = re.match(r"[\w+]+//|\w+ *=", url) or re.search(r"://|\?\w+=", url) or url.lower() in SCHEMES
    return bool(url.strip()) and not scheme_of(url) and not is_mistyped
