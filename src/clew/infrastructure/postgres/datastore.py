"""One PostgreSQL database of a store: its connection pools for writing and reading, and its writers."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal

from psycopg.types.numeric import Int8

from clew.domain.ports import Appended
from clew.infrastructure import process_forks
from clew.infrastructure.append_plan import stream_name
from clew.infrastructure.commit_listeners import CommitListeners
from clew.infrastructure.postgres import schema
from clew.infrastructure.postgres.append_pool import AppendPool
from clew.infrastructure.postgres.appends import MAX_BATCH, PostgresWriter
from clew.infrastructure.postgres.connection import Address, Rows, Session
from clew.infrastructure.postgres.connection_pool import ConnectionPool
from clew.infrastructure.postgres.sql_files import statements
from clew.infrastructure.postgres.stream_ids import text
from clew.infrastructure.recorder_ports import Append

WORKERS = 16
READERS = 8

OWN_WAIT = 1.0
"""Seconds that a reader waits to see this process's own appends while an older transaction is open."""

_SQL = statements("reads.sql")
_HORIZON = _SQL["horizon"].replace("{horizon}", _SQL["below"])


class Horizon:
    """The position up to which readers in position order can read: the lowest open transaction.

    Below it, every event is visible or will never exist. ``query`` asks the server for it. ``overtaken`` is called
    before a read that may not see this process's own appends up to a position: its reader must be woken again later.
    """

    def __init__(self, query: Callable[[], int], overtaken: Callable[[int], None]) -> None:
        self._query = query
        self._overtaken = overtaken
        self.newest = 0
        """The highest position that this process has appended."""
        self._seen = 1
        """Readers see everything below this position."""
        self._awaited = 0
        """Up to this position no reader waits again."""

    def await_own(self, upto: int) -> None:
        """Wait until readers see this process's own appends up to a position, or until OWN_WAIT is over.

        A transaction that reads events while it writes must name a position that readers see already: the later ones
        are visible only after its own end.
        """
        newest = min(self.newest, upto)
        if newest < self._seen:
            return
        if newest > self._awaited:
            until = time.monotonic() + OWN_WAIT
            pause = 0.0005
            while time.monotonic() <= until:
                seen = self._query()
                if seen > newest:
                    self._seen = max(self._seen, seen)
                    return
                time.sleep(pause)
                pause = min(pause * 2, 0.01)
            self._awaited = max(self._awaited, newest)
        self._overtaken(newest)

    def lower(self, horizon: int) -> None:
        """Believe a horizon that is lower than before: a server can assign transaction ids again after a crash."""
        self._seen = min(self._seen, horizon)


class PostgresDatastore(process_forks.ForkAware):
    """The connections of a store to its database; with ``create``, tables are created in an empty one.

    At most ``workers`` appends and ``readers`` queries run at a time. ``tenant`` (in its form in stream names) limits
    both to that tenant. Raises StoreUrlError, StoreUnavailableError or StoreSchemaError.
    """

    def __init__(
        self,
        conninfo: str,
        *,
        workers: int = WORKERS,
        readers: int = READERS,
        originator_id_type: Literal["uuid", "text"] = "uuid",
        create: bool = True,
        tenant: str | None = None,
    ) -> None:
        self.originator_id_type = originator_id_type
        self.address = Address(conninfo)
        self.tenant = tenant
        schema.prepare(self.address, create=create)
        self.listeners = CommitListeners(self)
        self.horizon = Horizon(self._horizon, self.listeners.disown)
        self.writing = ConnectionPool(self.address, workers, tenant=tenant, write=True)
        self.reading = ConnectionPool(self.address, readers, tenant=tenant)
        self.writer = PostgresWriter(self)
        self.pool = AppendPool(self.writer.write, self._notify, workers=workers, batch_size=MAX_BATCH)
        self._closed = False
        process_forks.watch(self)

    def query(self, sql: str, parameters: dict[str, Any] | None = None, *, based: bool = False) -> Rows:
        """The rows of a query. ``based``: the query has a parameter for the session's base.

        Raises ClosedError or StoreUnavailableError.
        """

        def execute(session: Session) -> Rows:
            return session.query(sql, {**(parameters or {}), "base": Int8(session.base)} if based else parameters)

        return self.reading.read(execute)

    def _notify(self, written: Sequence[tuple[Append, Appended]]) -> None:
        """Wake the listeners of the events of these appends, which readers by name see already."""
        if not self.listeners.callbacks:
            return
        streams: set[str] = set()
        last = 0
        try:
            for append, appended in written:
                if appended.positions and not appended.repeated:
                    last = max(last, *appended.positions)
                    if self.listeners.own(min(appended.positions), max(appended.positions)):
                        streams.update(stream_name(event.originator_id) for event in append.events)
            if streams:
                self.listeners.notify(streams)
        except BaseException:  # interrupted: the poller does the rest, unless it has seen these commits already
            self.listeners.disown(last)
            self.listeners.notify()
            raise

    # What the poller asks

    def database(self) -> Hashable:
        """The address, and the tenant if only its rows are visible."""
        with self.reading.use() as session:
            return self.address.conninfo, session.tenant

    def visible(self) -> int:
        """The position below the horizon."""
        horizon = self._horizon()
        self.horizon.lower(horizon)
        return horizon - 1

    def written(self, after: int, upto: int, limit: int) -> Sequence[tuple[int, str]]:
        """Position and stream of the events between two positions, in order."""
        between = {"after": Int8(after), "upto": Int8(upto), "limit": Int8(limit)}
        return [(position, text(name)) for position, name in self.query(_SQL["written"], between)]

    def _horizon(self) -> int:
        return int(self.query(_HORIZON, based=True)[0][0])

    def close(self) -> None:
        """Write what was submitted, then close everything. Does nothing the second time."""
        if self._closed:
            return
        self.pool.close()
        self.listeners.close()
        self.writing.close()
        self.reading.close()
        process_forks.unwatch(self)
        self._closed = True

    def after_fork_in_child(self) -> None:
        """Start with new connections and threads."""
        self.writing.restart()
        self.reading.restart()
        self.writer.forget()
        self.listeners.restart()
        self.pool.restart()
