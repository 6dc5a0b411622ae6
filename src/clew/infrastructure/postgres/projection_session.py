"""One transaction on the tables of projections in PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import lru_cache
from typing import Any

import psycopg
from psycopg.types.numeric import Int8

from clew.domain.errors import UnknownProjectionError
from clew.domain.projection import (
    Built,
    Indexed,
    Parked,
    Projection,
    Query,
    RowValues,
    Span,
    Table,
    Value,
)
from clew.infrastructure import code_digest
from clew.infrastructure.postgres import schema, text_index
from clew.infrastructure.postgres.connection import Session
from clew.infrastructure.postgres.errors import unavailable
from clew.infrastructure.postgres.identifiers import stream_id, tenant_id
from clew.infrastructure.postgres.projection_tables import Filling, select, statements, table_name
from clew.infrastructure.postgres.row_level_security import protect
from clew.infrastructure.postgres.sql_files import statements as sql_statements
from clew.infrastructure.projection_changes import WaitingChanges
from clew.infrastructure.projection_sql import declared

SQL = sql_statements("projections.sql")

PATIENCE = 60.0
"""Seconds to wait for whoever fills the same, or has locked a table."""

DROPPING = 0.2
"""Seconds to wait for those who read a table that is to be dropped."""

REFUSED = ("21", "22", "23", "54")
"""How the codes begin of what PostgreSQL says of values that it refuses."""


def built(session: Session) -> list[Built]:
    """The generations that there are, oldest first."""
    return [Built(*row) for row in _ask(session, "built")]


def live(session: Session, name: str) -> tuple[int, dict[str, tuple[str, Table]]]:
    """The live generation of a projection, and its tables. Raises UnknownProjectionError when it was never built."""
    found = _ask(session, "live", name=name)
    if not found:
        raise UnknownProjectionError(name, [each for (each,) in _ask(session, "live names")])
    generation, declaration = found[0]
    return generation, _tables(generation, declaration)


def shape(projection: Projection) -> str:
    """The digest of a projection's tables and indexes as they are made here."""
    return code_digest.shape(projection, [statement for _, making in _made(0, projection) for statement in making])


def is_refused(error: BaseException) -> bool:
    """Whether PostgreSQL only refuses the values, and not the work as such."""
    if not isinstance(error, psycopg.Error):
        return True
    said_nothing = error.sqlstate is None and isinstance(error, (psycopg.DataError, psycopg.ProgrammingError))
    return said_nothing or (error.sqlstate or "").startswith(REFUSED)


class PostgresSession:
    """What is done in it is committed by the store that gave it. ``forgot`` are the generations that text has left."""

    def __init__(self, session: Session, where: str) -> None:
        self._session = session
        self._where = where
        self._generations: dict[int, _Generation] = {}
        self._pipeline: AbstractContextManager[Any] | None = None
        self.forgot: set[int] = set()

    def built(self) -> list[Built]:
        """The generations that there are."""
        return built(self._session)

    def begin(self, projection: Projection, code: str, *, live: bool) -> Built:
        """Make the tables of a new generation."""
        schema.stay_home(self._session.connection)
        made = shape(projection)
        ((generation,),) = self._ask(
            "begin",
            name=projection.name,
            version=Int8(projection.version),
            code=code,
            shape=made,
            live=live,
            tables=json.dumps(projection.tables),
            texts=list(projection.texts),
        )
        for name, making in _made(generation, projection):
            for statement in making:
                self._session.connection.execute(statement.encode())
            protect(self._session, name)
        return Built(generation, projection.name, projection.version, code, made, 0, b"", live)

    def rows(self, built: Built, projection: Projection) -> _Generation:
        """The rows of a generation as they are now."""
        found = self._generations.get(built.generation)
        if found is None:
            found = _Generation(self._session, built.generation, projection, self._send)
            self._generations[built.generation] = found
        found.send_texts()
        return found

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """What is applied inside is undone if it raises."""
        self.flush()
        connection = self._session.connection
        connection.execute("SAVEPOINT attempt")
        try:
            yield
            self.flush()
        except BaseException as error:
            self._generations.clear()
            if isinstance(error, psycopg.Error) and not is_refused(error):
                raise unavailable(self._where, error) from error
            with suppress(psycopg.Error):  # of what is on its way the server may refuse something, too: it is undone
                self.settle()
            connection.execute("ROLLBACK TO attempt")
            connection.execute("RELEASE attempt")
            raise
        connection.execute("RELEASE attempt")

    def park(self, built: Built, parked: Parked) -> None:
        """Note an event that the projection could not take in."""
        stored = {name: getattr(parked, name).encode(errors="surrogateescape") for name in ("stream", "type", "error")}
        tenant = Int8(tenant_id(stored["stream"].decode(errors="replace")))
        self._do(
            "park",
            generation=Int8(built.generation),
            position=Int8(parked.position),
            tenant=tenant,
            version=Int8(parked.version),
            **stored,
        )

    def forget(self, built: Built, index: str | None, position: int, by: int) -> None:
        """Take the words of the text at a position out of an index, or out of all."""
        del by
        texts: Sequence[str]
        if index is None:
            ((_, texts),) = self._ask("declared", generation=Int8(built.generation))
        else:
            texts = (index,)
        if built.generation in self._generations:
            self._generations[built.generation].forget(position)
        forgotten = [text_index.forget(self._session, built.generation, each, position) for each in texts]
        if any(forgotten):
            self._do("forget", generation=Int8(built.generation))
            self.forgot.add(built.generation)

    def stale(self, built: Built) -> list[Span]:
        """Nothing: what is to be forgotten is taken out at once."""
        del built
        return []

    def reindex(self, built: Built, span: Span, texts: Iterable[Indexed]) -> None:
        """Nothing is to be made anew."""

    def empty(self, built: Built) -> None:
        """Nothing is to be made anew."""

    def move(self, built: Built, position: int, hash_: bytes) -> None:
        """Note how far a generation has come, and send what waits for it: the server may begin."""
        self._send()
        if built.generation in self._generations:
            self._generations[built.generation].flush()
        self._do("move", generation=Int8(built.generation), position=Int8(position), hash=hash_)

    def switch(self, built: Built) -> bool:
        """Let this generation be the live one, and drop the others of its name; False while somebody reads these.

        Who waits to drop a table holds up all who come to read it, and this transaction all readers of the log.
        """
        self.flush()
        connection = self._session.connection
        connection.execute("SAVEPOINT switch")
        try:
            for other in self.built():
                if other.name == built.name and other.generation != built.generation:
                    self.drop(other)
        except psycopg.errors.LockNotAvailable:
            connection.execute("ROLLBACK TO switch")
            return False
        self._do("switch", generation=Int8(built.generation))
        return True

    def drop(self, built: Built) -> None:
        """Drop a generation with its tables, unless somebody holds these for longer than a moment."""
        self._generations.pop(built.generation, None)
        generation = Int8(built.generation)
        ((declaration, texts),) = self._ask("declared", generation=generation)
        names = [name for name, _ in _tables(built.generation, declaration).values()]
        names += [name for each in texts for name in text_index.tables(built.generation, each)]
        execute = self._session.connection.execute
        execute(f"SET LOCAL lock_timeout = '{DROPPING * 1e3:.0f}ms'".encode())
        for name in names:
            execute(f"DROP TABLE IF EXISTS {name}".encode())
        execute(f"SET LOCAL lock_timeout = '{PATIENCE:.0f}s'".encode())
        for statement in ("drop parked", "drop stretches", "drop"):
            self._do(statement, generation=generation)

    def commit(self) -> None:
        """Write what waits and end the transaction, in one round trip: a server that refuses any of it ends it so."""
        self._write()
        self._session.connection.execute("COMMIT")
        self.settle()

    def flush(self) -> None:
        """Write what waits, and see that all was taken."""
        try:
            self._write()
        finally:
            self.settle()

    def _write(self) -> None:
        self._send()
        for generation in self._generations.values():
            generation.flush()

    def settle(self) -> None:
        """Hear of what was sent whether it was taken."""
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            pipeline.__exit__(None, None, None)

    def _send(self) -> None:
        """From now on, do not wait for the answers to what is sent."""
        if self._pipeline is None:
            self._pipeline = self._session.connection.pipeline()
            self._pipeline.__enter__()

    def _ask(self, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
        return _ask(self._session, statement, **parameters)

    def _do(self, statement: str, **parameters: Any) -> None:
        _do(self._session, statement, **parameters)


class _Generation:
    """The tables and indexes of one generation, with what is to be written to them."""

    def __init__(self, session: Session, generation: int, projection: Projection, send: Callable[[], None]) -> None:
        self._session = session
        self._send = send
        self._generation = generation
        self._tables = {
            table.name: Filling(session, table_name(generation, table.name), table) for table in projection.tables
        }
        self._indexes = {index: text_index.Filling(session, generation, index) for index in projection.texts}
        self._changes = WaitingChanges(projection, self._tables)
        self.apply = self._changes.apply

    def send_texts(self) -> None:
        """Send the texts that wait if they are enough."""
        if any(len(texts) >= text_index.AT_ONCE for texts in self._changes.texts.values()):
            self._send()
            self._flush_texts()

    def get(self, table: str, *key: Value) -> RowValues | None:
        """The row with this key."""
        self._changes.table(table)
        return self._tables[table].get(key)

    def select(self, query: Query) -> list[RowValues]:
        """The rows that a query names."""
        self._changes.table(query.table)
        for each in self._tables.values():
            each.flush()
        tables = {name: (table_name(self._generation, name), each.table) for name, each in self._tables.items()}
        return select(self._session, tables, query)

    def forget(self, position: int) -> None:
        """Let the text at a position not be indexed any more."""
        for texts in self._changes.texts.values():
            texts[:] = [each for each in texts if each.position != position]
        for index in self._indexes.values():
            index.forget(position)

    def flush(self) -> None:
        """Write what waits."""
        for table in self._tables.values():
            table.flush()
        self._flush_texts()
        for index in self._indexes.values():
            index.note()

    def _flush_texts(self) -> None:
        for index, texts in self._changes.texts.items():
            if texts:
                self._indexes[index].add(texts)
                texts.clear()


def _made(generation: int, projection: Projection) -> Iterator[tuple[str, Sequence[str]]]:
    """The tables and indexes of a generation, each with the statements that make it."""
    for table in projection.tables:
        name = table_name(generation, table.name)
        yield name, statements(name, table)
    for index in projection.texts:
        yield from text_index.making(generation, index)


def _ask(session: Session, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
    return session.connection.execute(SQL[statement].encode(), parameters, prepare=True, binary=True).fetchall()


def _do(session: Session, statement: str, **parameters: Any) -> None:
    session.connection.execute(SQL[statement].encode(), parameters, prepare=True)


def locks(names: Iterable[str] | None) -> Sequence[str]:
    """The statements that wait until nobody else fills these projections, or any, while the transaction lasts."""
    if names is None:
        return (SQL["lock"],)
    numbers = sorted({number_of(name) for name in names})
    return (SQL["lock shared"], *(SQL["lock one"].replace("{lock}", str(number)) for number in numbers))


def number_of(name: str) -> int:
    """What a projection is locked by, from 1."""
    return (stream_id(name) >> 33) + 1


@lru_cache(maxsize=256)
def _tables(generation: int, declaration: str) -> dict[str, tuple[str, Table]]:
    return {table.name: (table_name(generation, table.name), table) for table in declared(declaration)}
