"""Projections: read models, declared as tables and a pure function from a recorded event to changes of their rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from clew.domain.errors import InvalidProjectionError
from clew.domain.events import to_time, to_utc_microseconds
from clew.domain.messages import Message, Role

Kind: TypeAlias = Literal["integer", "text", "json"]
Value: TypeAlias = Any
"""A value of a column: an integer, a text, JSON, or None."""


class Recorded(NamedTuple):
    """An event as a projection sees it: its envelope, and its data as plain JSON in the current schema.

    ``data`` is None where it cannot be read: the content was shredded (``redacted``; ``role`` is then the role of the
    shredded message), or this version of Clew does not know the type. ``recorded_at`` is in microseconds since 1970
    (UTC), ``size`` is the number of bytes stored, ``messages`` the number of messages on the thread's path after it.
    ``said`` is when it was said and ``on_behalf_of`` for whom, if that is known.
    """

    position: int
    tenant: str
    kind: str
    thread_id: str
    version: int
    type: str
    recorded_at: int
    messages: int
    data: dict[str, Any] | None
    size: int
    hash: bytes
    event_id: str
    actor: str | None = None
    run_id: str | None = None
    cause: str | None = None
    subject: str | None = None
    redacted: bool = False
    role: Role | None = None
    said: int | None = None
    on_behalf_of: str | None = None

    @property
    def time(self) -> datetime:
        """The time when it was recorded, in UTC."""
        return to_time(self.recorded_at)

    @property
    def message(self) -> Message | None:
        """The appended message; None for other events, and for a redacted message."""
        if self.type != "message-appended" or self.data is None:
            return None
        return Message.model_validate(self.data["message"])


class SaidWithin(NamedTuple):
    """A range of times in which events were said, in microseconds; None for no limit. ``until`` is not included.

    An event that does not name a time was said when it was recorded.
    """

    since: int | None = None
    until: int | None = None

    def has(self, event: Recorded | Unreadable) -> bool:
        """Whether the event is in the range; False for one that cannot be read."""
        if isinstance(event, Unreadable):
            return False
        said = event.said if isinstance(event.said, int) else event.recorded_at  # a forged event may have anything
        return (self.since is None or said >= self.since) and (self.until is None or said < self.until)


def said_within(since: datetime | None, until: datetime | None) -> SaidWithin | None:
    """The range between the values of ``said_since`` and ``said_until``. Raises InvalidTimeError."""
    if since is None and until is None:
        return None
    return SaidWithin(to_utc_microseconds(since, "said_since"), to_utc_microseconds(until, "said_until"))


class Unreadable(NamedTuple):
    """A row of the log whose event cannot be read; ``error`` says why."""

    position: int
    stream: str
    version: int
    type: str
    hash: bytes
    error: str


class Column(NamedTuple):
    """A column of a table. A column that ``adds`` holds a sum: an upserted value is added to the stored one.

    A column that ``keeps`` the least or the greatest value ignores an upserted value that is not.
    """

    name: str
    kind: Kind = "text"
    adds: bool = False
    keeps: Literal["least", "greatest"] | None = None

    @property
    def combines(self) -> bool:
        """Whether an upserted value does not simply replace the stored one."""
        return self.adds or self.keeps is not None


class Table(NamedTuple):
    """A table: its columns, its key, and its indexes, each a group of columns to search or sort by.

    A row that is upserted without some of the columns keeps their values; in a new row they are 0 where a column adds,
    else None. Do not store message text in a table: redaction removes it from the indexes of words only. The texts of a
    key, or of one row in an index, can have at most 2,600 bytes in total: this is PostgreSQL's limit.
    """

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    indexes: tuple[tuple[str, ...], ...] = ()


class Upsert(NamedTuple):
    """Set these columns of the row with this key, or insert it. ``values`` contains the key, too."""

    table: str
    values: Mapping[str, Value]


class Delete(NamedTuple):
    """Delete the rows that have these values in the first columns of their key."""

    table: str
    key: tuple[Value, ...]


class IndexText(NamedTuple):
    """Index the words of a text, so that they find the event; a search can be narrowed to one or more ``scopes``."""

    text_index: str
    text: str
    scopes: tuple[str, ...] = ()


ALL_VERSIONS = 0
"""As the version of a ForgetText: all events of the thread before."""


class ForgetText(NamedTuple):
    """Remove an event from an index, and its text from the store: the event was shredded.

    With ``ALL_VERSIONS`` all own events of the thread so far.
    """

    text_index: str
    tenant: str
    kind: str
    thread_id: str
    version: int


class Recount(NamedTuple):
    """Delete a thread's rows and compute them again from its own events so far, as the log has them now.

    For sums, after one of the events that they were computed from was shredded. The key of ``table`` must begin with
    ``tenant`` and ``thread_id``.
    """

    table: str
    tenant: str
    kind: str
    thread_id: str


Change: TypeAlias = Upsert | Delete | IndexText | ForgetText | Recount


class Where(NamedTuple):
    """A condition on a column. For ``in`` the value is a sequence, or a Query of one column."""

    column: str
    is_: Literal["=", "<", "<=", ">", ">=", "in"]
    value: Any


class Query(NamedTuple):
    """Rows of a table. ``order`` names columns; a ``-`` before a name means descending."""

    table: str
    where: Sequence[Where] = ()
    order: Sequence[str] = ()
    limit: int | None = None
    columns: Sequence[str] = ()


class Words(NamedTuple):
    """A search for texts with all ``phrases``, with a word for each of ``beginnings``, and with none of ``without``.

    A phrase is one word, or several in that order. ``scopes`` narrow the search to texts that have all of these scopes.
    """

    phrases: tuple[str, ...] = ()
    beginnings: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()


RowValues: TypeAlias = dict[str, Value]


class Generation(NamedTuple):
    """A generation of a projection: tables that one state of its code built, up to a position.

    ``code`` and ``shape`` are the digests of that code, and of the tables as they were declared and created; ``hash``
    is that of the event at ``position``. Reads use the ``live`` generation; another one can be built next to it. In a
    ``stale`` one a part of an index must be built again, and may be empty until then.
    """

    id: int
    name: str
    version: int
    code: str
    shape: str
    position: int
    hash: bytes
    live: bool
    stale: bool = False


class Parked(NamedTuple):
    """An event that a projection failed on and skipped."""

    position: int
    stream: str
    version: int
    type: str
    error: str
    """The kind of error and its place; nothing of the event's content."""


class Indexed(NamedTuple):
    """A text that finds the event at a position, which belongs to a tenant."""

    position: int
    tenant: str
    text: str
    scopes: tuple[str, ...]


class Span(NamedTuple):
    """A part of an index of words that must be built again: the positions ``first`` to ``last``."""

    text_index: str
    first: int
    last: int


class Rows(Protocol):
    """The rows of the projection's own tables, after the events before this one."""

    def get(self, table: str, *key: Value) -> RowValues | None:
        """The row with this key."""
        ...

    def select(self, query: Query) -> list[RowValues]:
        """The rows that match a query."""
        ...


class Projection(Protocol):
    """A read model. All of its state is in its tables, so it can be rebuilt from the log at any time.

    Raise ``version`` if the same events should give other rows; stores then rebuild it. ``types`` are the event types
    that it receives, None for all; other events only move its position.
    """

    @property
    def name(self) -> str:
        """Its name: lower-case letters, digits and ``_``."""
        ...

    @property
    def version(self) -> int:
        """From 1; a higher version is rebuilt."""
        ...

    @property
    def tables(self) -> tuple[Table, ...]:
        """Its tables."""
        ...

    @property
    def texts(self) -> tuple[str, ...]:
        """The names of its indexes of words."""
        ...

    @property
    def types(self) -> frozenset[str] | None:
        """The event types that it receives."""
        ...

    def project(self, event: Recorded, rows: Rows, /) -> Iterable[Change]:
        """The changes that an event makes. Pure: they depend on the event and the rows only.

        Indexed texts, and rows that are recounted, must depend on the event alone.
        """
        ...


_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


def check_projections(projections: Iterable[Projection]) -> None:
    """Raise InvalidProjectionError for declarations that no store can create, and for two of the same name."""
    names: set[str] = set()
    for projection in projections:
        check_projection(projection)
        if projection.name in names:
            raise InvalidProjectionError(f"projection {projection.name!r}: there are two of the same name.")
        names.add(projection.name)


def check_projection(projection: Projection) -> None:
    """Raise InvalidProjectionError for a declaration that no store can create."""
    name = projection.name
    _check_name(name, "projection")
    if type(projection.version) is not int or projection.version < 1:
        raise InvalidProjectionError(f"projection {name!r}: version {projection.version!r} is not an integer from 1.")
    tables = [table.name for table in projection.tables]
    for each in (*tables, *projection.texts):
        _check_name(each, f"projection {name!r}, table or index")
    if len({*tables, *projection.texts}) < len(tables) + len(projection.texts):
        raise InvalidProjectionError(f"projection {name!r}: two of its tables or indexes have the same name.")
    for table in projection.tables:
        _check_table(table, f"projection {name!r}, table {table.name!r}")


def _check_table(table: Table, where: str) -> None:
    columns = [column.name for column in table.columns]
    for column in table.columns:
        _check_name(column.name, f"{where}, column")
        if column.kind not in {"integer", "text", "json"} or (column.combines and column.kind != "integer"):
            message = f"{where}: column {column.name!r} is {column.kind!r}. There are integer, text and json, and only"
            raise InvalidProjectionError(f"{message} integers add, or keep the least or the greatest.")
        if column.keeps not in {None, "least", "greatest"} or (column.adds and column.keeps):
            message = f"{where}: column {column.name!r} keeps {column.keeps!r}. It can keep 'least' or 'greatest',"
            raise InvalidProjectionError(f"{message} and then it does not add.")
    if len(set(columns)) < len(columns):
        raise InvalidProjectionError(f"{where}: two of its columns have the same name.")
    combining = {column.name for column in table.columns if column.combines}
    if not table.key or not set(table.key) <= set(columns) - combining:
        message = f"{where}: its key {table.key!r} must be some of its columns that do not add or keep."
        raise InvalidProjectionError(message)
    if any(column.name in table.key and column.kind == "json" for column in table.columns):
        raise InvalidProjectionError(f"{where}: a column of its key {table.key!r} is json. Use integer or text.")
    for index in table.indexes:
        if not index or not set(index) <= set(columns):
            raise InvalidProjectionError(f"{where}: the index {index!r} names a column that is not there.")


def _check_name(name: str, what: str) -> None:
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        message = f"{what} {name!r}: a name is a lower-case letter, then at most 39 of a-z, 0-9 and _."
        raise InvalidProjectionError(message)
