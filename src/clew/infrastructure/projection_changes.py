"""What a projection has changed and no store has written yet: rows by their keys, and texts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from clew.domain.errors import InvalidProjectionError
from clew.domain.projection import (
    Change,
    Delete,
    ForgetText,
    Indexed,
    IndexText,
    Projection,
    Query,
    Recount,
    RowValues,
    Table,
    Upsert,
    Where,
)


class WaitingRows(ABC):
    """What is to be written to one table: the rows of a batch, each key once, until they are flushed."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.rows: dict[Any, RowValues] = {}
        self.adding = {column.name for column in table.columns if column.adds}
        self._columns = {column.name for column in table.columns}
        self._key = itemgetter(*table.key)

    def upsert(self, values: Mapping[str, Any]) -> None:
        """Set columns of a row, or add to them."""
        key = self._key(values)
        row = self.rows.get(key)
        if row is None:
            self.rows[key] = dict(values)
            return
        adding = self.adding
        if not adding:
            row.update(values)
            return
        for column, value in values.items():
            row[column] = row.get(column, 0) + value if column in adding else value

    def waits(self, key: Sequence[Any]) -> bool:
        """Whether the row with this key is to be written."""
        return (tuple(key) if len(key) > 1 else key[0]) in self.rows

    def row_with(self, key: Sequence[Any]) -> Query:
        """The query of the row with this key."""
        return Query(
            self.table.name, [Where(each, "=", value) for each, value in zip(self.table.key, key, strict=True)]
        )

    def take(self) -> dict[tuple[str, ...], list[RowValues]]:
        """The rows by the columns that they name; they wait no more."""
        waiting, self.rows = self.rows, {}
        groups: dict[tuple[str, ...], list[RowValues]] = {}
        for row in waiting.values():
            groups.setdefault(tuple(row), []).append(row)
        for columns in groups:
            for column in columns:
                if column not in self._columns:
                    raise InvalidProjectionError(f"table {self.table.name!r} has no column {column!r}.")
        return groups

    def begins(self, key: Sequence[Any]) -> tuple[str, ...]:
        """The columns that these values, the first of a key, are of."""
        if not 0 < len(key) <= len(self.table.key):
            raise InvalidProjectionError(
                f"table {self.table.name!r}: {len(key)} values for a key of {self.table.key!r}."
            )
        return self.table.key[: len(key)]

    def check_recount(self) -> None:
        """Raise InvalidProjectionError where a thread's rows could not be told from others by the key."""
        if self.table.key[:2] != ("tenant", "thread_id"):
            raise InvalidProjectionError(
                f"table {self.table.name!r} cannot be recounted by its key {self.table.key!r}: "
                "let that begin with tenant and thread_id."
            )

    @abstractmethod
    def delete(self, key: Sequence[Any]) -> None:
        """Delete the rows that begin with these values of the key."""


class WaitingChanges:
    """The changes of one generation: the tables that they are to be written to, and texts that are to be indexed."""

    def __init__(self, projection: Projection, tables: Mapping[str, WaitingRows]) -> None:
        self._projection = projection.name
        self._tables = tables
        self.texts: dict[str, list[Indexed]] = {name: [] for name in projection.texts}

    def apply(self, position: int, tenant: str, changes: Iterable[Change]) -> list[ForgetText | Recount]:
        """Change rows, when they are flushed at the latest; returns those that take a look at the log."""
        tables = self._tables
        left: list[ForgetText | Recount] = []
        for change in changes:
            if type(change) is Upsert:
                (tables.get(change.table) or self.table(change.table)).upsert(change.values)
            elif type(change) is IndexText:
                self._index(change.text_index).append(Indexed(position, tenant, change.text, change.scopes))
            elif type(change) is Delete:
                self.table(change.table).delete(change.key)
            elif type(change) is ForgetText:
                self._index(change.text_index)
                left.append(change)
            elif type(change) is Recount:
                self.table(change.table).check_recount()
                left.append(change)
            else:
                kind = type(change).__name__
                raise InvalidProjectionError(
                    f"projection {self._projection!r}: what it yields is no change, but {kind}."
                )
        return left

    def table(self, name: str) -> WaitingRows:
        """What waits for a table. Raises InvalidProjectionError for one that is not declared."""
        if name not in self._tables:
            raise InvalidProjectionError(f"projection {self._projection!r} declares no table {name!r}.")
        return self._tables[name]

    def _index(self, name: str) -> list[Indexed]:
        if name not in self.texts:
            raise InvalidProjectionError(f"projection {self._projection!r} declares no index of words {name!r}.")
        return self.texts[name]
