"""An index of vectors in a table of the log's PostgreSQL database, shared by all processes that have it open.

It can be rebuilt from the log; only the embedder has to be called again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.util import find_spec
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg.types.numeric import Int8

from clew.domain.errors import ClosedError, EmbeddingError
from clew.infrastructure import process_forks
from clew.infrastructure.postgres import schema
from clew.infrastructure.postgres.connection import Address, Rows, Session
from clew.infrastructure.postgres.connection_pool import ConnectionPool
from clew.infrastructure.postgres.sql_files import statements
from clew.infrastructure.postgres.stream_ids import tenant_id, within
from clew.infrastructure.vector_matrices import Matrices, check_installed, packed, unpacked

T = TypeVar("T")

CONNECTIONS = 2
TOGETHER = 500
"""Vectors in one statement."""

EXTENSION = "vector"
"""The type of a vector if the database has the extension; without it a vector is ``bytea``."""

_SQL = statements("vectors.sql")


class Kind(NamedTuple):
    """The type of a vector in the table: ``vector`` or ``bytea``, and the type's schema."""

    type: str
    home: str


class PostgresVectors(process_forks.ForkAware):
    """Stores vectors by tenant, space and digest: see the port. The first vector creates the table.

    They are compared in the memory of the process if numpy is installed, else by the server, which then needs pgvector.
    Raises StoreUrlError.
    """

    def __init__(self, conninfo: str, *, tenant: str | None = None) -> None:
        self._address = Address(conninfo)
        self._tenant = Int8(tenant_id(f"{tenant or ''}/"))
        self._sessions = ConnectionPool(self._address, CONNECTIONS, tenant=tenant)
        self._matrices = Matrices()
        self._kind: Kind | None = None
        self._closed = False
        process_forks.watch(self)

    def missing(self, space: str, digests: Collection[bytes]) -> set[bytes]:
        """The digests that have no vector yet."""
        kind = self._do(self._find_kind)
        if find_spec("numpy") is None and (kind or self._do(self._create)).type != EXTENSION:
            check_installed()
        if kind is None or not digests:
            return set(digests)
        return set(digests) - {digest for (digest,) in self._ask("there", space, digests=list(digests))}

    def put(self, space: str, vectors: Mapping[bytes, Sequence[float]]) -> None:
        """Store vectors; existing ones stay as they are."""
        kind = self._do(self._find_kind) or self._do(self._create)
        remaining = iter(sorted(vectors.items()))
        while some := dict(islice(remaining, TOGETHER)):
            each = list(map(_written if kind.type == EXTENSION else packed, some.values()))
            self._ask(f"put {kind.type}", space, digests=list(some), vectors=each)

    def nearest(
        self, space: str, collection: str, entries: Mapping[int, bytes], stamp: int, vector: Sequence[float], top: int
    ) -> list[tuple[int, float]]:
        """The entries nearest to a vector."""
        kind = self._do(self._find_kind)
        if kind is None:
            return []
        if kind.type == EXTENSION and find_spec("numpy") is None:
            return self._nearest_there(space, entries, vector, top)

        def fetch(digests: Collection[bytes]) -> Mapping[bytes, bytes]:
            rows = self._ask(f"get {kind.type}", space, digests=list(digests))
            return {digest: unpacked(stored) if kind.type == EXTENSION else stored for digest, stored in rows}

        return self._matrices.nearest((space, collection), entries, stamp, vector, top, fetch)

    def drop(self) -> None:
        """Delete the tenant's vectors."""
        if self._do(self._find_kind) is not None:
            self._do(lambda session: session.query(_SQL["drop"], {"tenant": self._tenant}))
        self._matrices.clear()

    def close(self) -> None:
        """Close the connections and release the memory. Does nothing the second time."""
        if not self._closed:
            self._closed = True
            process_forks.unwatch(self)
            self._sessions.close()
            self._matrices.clear()

    def _nearest_there(
        self, space: str, entries: Mapping[int, bytes], vector: Sequence[float], top: int
    ) -> list[tuple[int, float]]:
        """The nearest entries, found by the server. Each call names the entries to compare."""
        digests = list(entries.values())
        dimensions = self._ask("dimensions", space, digests=digests)
        if not dimensions or top < 1:
            return []
        if dimensions[0][0] != len(vector):
            raise EmbeddingError(f"A vector of {len(vector)} numbers cannot be compared with {dimensions[0][0]}.")
        target = {"numbers": list(map(Int8, entries)), "vector": list(map(float, vector)), "top": Int8(within(top))}
        return [(number, near) for number, near in self._ask("nearest", space, digests=digests, **target)]

    def _ask(self, statement: str, space: str, **parameters: Any) -> Rows:
        values = {"tenant": self._tenant, "space": space.encode(), **parameters}
        sql = _SQL[statement].replace("{home}", "" if self._kind is None else self._kind.home)
        return self._do(lambda session: session.query(sql, values))

    def _do(self, work: Callable[[Session], T]) -> T:
        """The result of some work, which can be repeated."""
        if self._closed:
            raise ClosedError("The store is closed: its vectors cannot be used. Open it again.")
        return self._sessions.read(work)

    def _find_kind(self, session: Session) -> Kind | None:
        """The type of a vector in the table; None before the table is created."""
        if self._kind is None:
            rows = session.query(_SQL["kind"])
            self._kind = Kind(*rows[0]) if rows else None
        return self._kind

    def _create(self, session: Session) -> Kind:
        self._kind = make(session.connection)
        return self._kind

    def after_fork_in_child(self) -> None:
        """Start with connections of the child's own."""
        self._sessions.restart()


def make(connection: psycopg.Connection[tuple[Any, ...]]) -> Kind:
    """Create the table if it is missing, with the extension if it exists and the user may create it.

    Returns the type of a vector in it.
    """
    with connection.transaction():
        schema.lock(connection)
        schema.use_home_schema(connection)
        rows = connection.execute(_SQL["kind"].encode()).fetchall()
        if rows:
            return Kind(*rows[0])
        if connection.execute(_SQL["can have the extension"].encode()).fetchall()[0][0]:
            try:
                with connection.transaction():
                    connection.execute(_SQL["extension"].encode())
            except psycopg.errors.InsufficientPrivilege:
                pass  # a user with more rights can create it before; bytes work as well
        home = connection.execute(_SQL["home of the extension"].encode()).fetchall()
        kind = Kind(EXTENSION, home[0][0]) if home else Kind("bytea", "pg_catalog")
        connection.execute(_SQL["make"].replace("{type}", f"{kind.home}.{kind.type}").encode())
        return kind


def _written(vector: Sequence[float]) -> str:
    """A vector in the extension's text form."""
    return f"[{','.join(map(repr, map(float, vector)))}]"
