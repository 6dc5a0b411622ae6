"""One transaction on the tables of projections: what all SQL databases share. Each database adds its statements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from clew.domain.errors import InvalidProjectionError
from clew.domain.projection import (
    Change,
    Delete,
    ForgetText,
    Generation,
    Indexed,
    IndexText,
    Parked,
    Projection,
    Query,
    Recount,
    RowValues,
    Upsert,
    Value,
    Where,
)
from clew.infrastructure.projection_sql import Dialect, SqlTable, SqlTables


class SqlSession(ABC):
    """A transaction in which generations of projections are changed; the store that opened it commits it."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self._rows: dict[int, GenerationRows] = {}

    def rows(self, generation: Generation, projection: Projection) -> GenerationRows:
        """The rows of a generation, with the changes that wait to be written."""
        found = self._rows.get(generation.id)
        if found is None:
            found = self._rows[generation.id] = GenerationRows(self, generation.id, projection)
        return found

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Undo the changes that are made inside if an error is raised there."""
        self.flush()
        self.execute("SAVEPOINT attempt")
        try:
            yield
            self.flush()
        except BaseException as error:
            self._rows.clear()
            self.check_transaction(error)
            self.execute("ROLLBACK TO attempt")
            self.execute("RELEASE attempt")
            raise
        self.execute("RELEASE attempt")

    def flush(self) -> None:
        """Write the changes that wait."""
        for rows in self._rows.values():
            rows.flush()

    def move(self, generation: Generation, position: int, hash_: bytes) -> None:
        """Record the position that a generation has reached."""
        self.run("move", generation=generation.id, position=position, hash=hash_)

    def park(self, generation: Generation, parked: Parked) -> None:
        """Record an event that the projection could not apply."""
        self.run("park", generation=generation.id, **parked._asdict())

    def switch(self, generation: Generation) -> bool:
        """Make this generation the live one, and drop the others of its projection."""
        for other in self.generations():
            if other.name == generation.name and other.id != generation.id:
                self.drop(other)
        self.run("switch", generation=generation.id)
        return True

    def drop(self, generation: Generation) -> None:
        """Drop a generation with its tables."""
        self.flush()
        self._rows.pop(generation.id, None)
        self.drop_tables(self.table_names(generation.id))
        for statement in ("drop parked", "drop stretches", "drop"):
            self.run(statement, generation=generation.id)

    # What a database adds

    @abstractmethod
    def generations(self) -> list[Generation]:
        """The generations, oldest first."""

    @abstractmethod
    def execute(self, sql: str) -> None:
        """Execute a statement."""

    @abstractmethod
    def run(self, statement: str, **parameters: Any) -> None:
        """Execute the statement of this name."""

    @abstractmethod
    def fetch(self, tables: SqlTables, query: Query) -> list[RowValues]:
        """The stored rows that match a query."""

    @abstractmethod
    def upsert(self, table: SqlTable, columns: tuple[str, ...], rows: Sequence[RowValues]) -> None:
        """Write rows that name the same columns, in the same order."""

    @abstractmethod
    def delete(self, table: SqlTable, columns: Sequence[str], values: Sequence[Value]) -> None:
        """Delete the stored rows with these values of their key."""

    @abstractmethod
    def index(self, generation: int, name: str, texts: list[Indexed]) -> None:
        """Add texts to an index of words."""

    @abstractmethod
    def table_names(self, generation: int) -> list[str]:
        """The names in SQL of all tables of a generation, including those of its indexes of words."""

    @abstractmethod
    def drop_tables(self, names: Iterable[str]) -> None:
        """Drop tables."""

    @abstractmethod
    def check_transaction(self, error: BaseException) -> None:
        """Raise StoreUnavailableError after an error that has ended the transaction itself."""


class _PendingRows:
    """The rows that wait to be written to a table, each key once."""

    def __init__(self, table: SqlTable) -> None:
        self.table = table
        self.key_of = table.key_of
        self.adding = table.adding
        self.rows: dict[Any, RowValues] = {}


class GenerationRows:
    """The rows of one generation: those that are stored, and the changes that wait to be written."""

    def __init__(self, session: SqlSession, generation: int, projection: Projection) -> None:
        self._session = session
        self._generation = generation
        self._projection = projection
        self._tables = session.dialect.tables(generation, tuple(projection.tables))
        self._pending: dict[str, _PendingRows] = {}
        self.texts: dict[str, list[Indexed]] = {}

    def get(self, table: str, *key: Value) -> RowValues | None:
        """The row with this key."""
        pending = self._pending.get(table)
        if pending is not None and (key if len(key) > 1 else key[0]) in pending.rows:
            self._write(pending)
        columns = self._tables[table].declared.key
        where = [Where(column, "=", value) for column, value in zip(columns, key, strict=True)]
        found = self._session.fetch(self._tables, Query(table, where))
        return found[0] if found else None

    def select(self, query: Query) -> list[RowValues]:
        """The rows that match a query."""
        for pending in self._pending.values():
            self._write(pending)
        return self._session.fetch(self._tables, query)

    def apply(self, position: int, tenant: str, changes: Iterable[Change]) -> list[ForgetText | Recount]:
        """Make the changes of a tenant's event at a position; returns those that need the log."""
        left: list[ForgetText | Recount] = []
        for change in changes:
            if type(change) is Upsert:
                name, values = change
                pending = self._pending.get(name) or self._begin(name)
                key = pending.key_of(values)
                row = pending.rows.get(key)
                if row is None:
                    pending.rows[key] = dict(values)
                    continue
                adding = pending.adding
                if not adding:
                    row.update(values)
                    continue
                for column, value in values.items():
                    row[column] = row.get(column, 0) + value if column in adding else value
            elif type(change) is IndexText:
                index, text, scopes = change
                texts = self.texts.get(index)
                if texts is None:
                    texts = self._texts(index)
                texts.append(Indexed(position, tenant, text, scopes))
            elif type(change) is Delete:
                self._delete(change)
            else:
                left.append(self._checked(change))
        return left

    def flush(self) -> None:
        """Write the changes that wait."""
        for pending in self._pending.values():
            if pending.rows:
                self._write(pending)
        self.flush_texts()

    def flush_texts(self) -> None:
        """Write the texts that wait."""
        for index, texts in self.texts.items():
            if texts:
                self._session.index(self._generation, index, texts)
                texts.clear()

    def _checked(self, change: object) -> ForgetText | Recount:
        if isinstance(change, ForgetText):
            self._texts(change.text_index)
            return change
        if isinstance(change, Recount):
            key = self._tables[change.table].declared.key
            if key[:2] != ("tenant", "thread_id"):
                raise InvalidProjectionError(
                    f"table {change.table!r} cannot be recounted: its key is {key!r}, and does not begin with tenant "
                    "and thread_id."
                )
            return change
        raise InvalidProjectionError(
            f"projection {self._projection.name!r} yields {type(change).__name__}, which is not a change."
        )

    def _begin(self, table: str) -> _PendingRows:
        pending = self._pending[table] = _PendingRows(self._tables[table])
        return pending

    def _texts(self, index: str) -> list[Indexed]:
        found = self.texts.get(index)
        if found is None:
            if index not in self._projection.texts:
                raise InvalidProjectionError(
                    f"projection {self._projection.name!r} declares no index of words {index!r}."
                )
            found = self.texts[index] = []
        return found

    def _delete(self, change: Delete) -> None:
        pending = self._pending.get(change.table)
        if pending is not None:
            self._write(pending)
        table = self._tables[change.table]
        key = table.declared.key
        if not 0 < len(change.key) <= len(key):
            raise InvalidProjectionError(
                f"table {change.table!r}: {len(change.key)} values for a key of {key!r}. Give the first columns."
            )
        self._session.delete(table, key[: len(change.key)], change.key)

    def _write(self, pending: _PendingRows) -> None:
        rows, pending.rows = pending.rows, {}
        groups: dict[tuple[str, ...], list[RowValues]] = {}
        for row in rows.values():
            groups.setdefault(tuple(row), []).append(row)
        for columns, group in groups.items():
            self._session.upsert(pending.table, columns, group)
