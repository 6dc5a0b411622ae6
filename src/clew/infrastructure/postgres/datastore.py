"""One PostgreSQL database as Clew keeps it: sessions for writing and for reading, and the threads that write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import psycopg
from psycopg.types.numeric import Int8

from clew.infrastructure import process_forks
from clew.infrastructure.append_pool import AppendPool
from clew.infrastructure.commit_listeners import CommitListeners
from clew.infrastructure.postgres import schema
from clew.infrastructure.postgres.address import Address
from clew.infrastructure.postgres.connection import Rows, Session
from clew.infrastructure.postgres.connection_pool import ConnectionPool
from clew.infrastructure.postgres.errors import is_cut, unavailable
from clew.infrastructure.postgres.pipeline import Asked, Statement
from clew.infrastructure.postgres.reads import SQL, Horizon
from clew.infrastructure.postgres.writer import MOST_AT_ONCE, PostgresWriter

WORKERS = 16
READERS = 8


class PostgresDatastore:
    """The connections of a process to a database, which is prepared if it is empty and ``create`` says so.

    ``workers`` appends are written at a time, ``readers`` queries answered, all on behalf of ``tenant`` if one is named
    (as it stands in the names of streams). Raises StoreUrlError, StoreUnavailableError
    or StoreSchemaError.
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
        self.horizon = Horizon(self._horizon)
        self.writing = ConnectionPool(self.address, workers, tenant=tenant, write=True)
        self.reading = ConnectionPool(self.address, readers, tenant=tenant)
        self.writer = PostgresWriter(self)
        self.listeners = CommitListeners(self._changed)
        self.pool = AppendPool(self.writer.write, self.listeners.notify, workers=workers, batch_size=MOST_AT_ONCE)
        self._seen = 0
        self._closed = False
        process_forks.watch(self)

    def query(self, sql: str, parameters: dict[str, Any] | None = None, *, based: bool = False) -> Rows:
        """The rows of a query, asked again on another connection when one is cut. ``based``: it asks for the base.

        So it is where a standby has ended it, for the sake of what its primary has removed meanwhile.

        Raises ClosedError or StoreUnavailableError.
        """
        try:
            return self._ask(sql, parameters or {}, based=based)
        except psycopg.OperationalError as error:
            if not (is_cut(error) or isinstance(error, psycopg.errors.SerializationFailure)):
                raise unavailable(self.address.shown, error) from error
        except psycopg.Error as error:
            raise unavailable(self.address.shown, error) from error
        self.reading.drop()
        try:
            return self._ask(sql, parameters or {}, based=based)
        except psycopg.Error as error:
            raise unavailable(self.address.shown, error) from error

    def _ask(self, sql: str, parameters: dict[str, Any], *, based: bool) -> Rows:
        with self.reading.use() as session:
            if based:
                parameters = {**parameters, "base": Int8(session.base)}
            return session.ask(sql, parameters)

    def commit(self, session: Session, left: Sequence[Asked] = ()) -> None:
        """Commit the transaction of a session, after what is left to be said in it."""
        session.commit(*left)

    def write_at_once(self, session: Session, statement: Statement, values: Sequence[bytes | None]) -> list[int]:
        """The numbers that a statement answers which is a transaction by itself."""
        return session.numbers(statement, values)

    def _changed(self) -> bool:
        """Whether there may be more to read than when this was last asked: a transaction of the server has ended."""
        seen = self._horizon()
        changed, self._seen = seen != self._seen, seen
        return changed

    def _horizon(self) -> int:
        return int(self.query(SQL["horizon"], based=True)[0][0])

    def close(self) -> None:
        """Write what was submitted, then let go of everything. Does nothing the second time."""
        if self._closed:
            return
        self.pool.close()
        self.listeners.close()
        self.writing.close()
        self.reading.close()
        process_forks.unwatch(self)
        self._closed = True

    def before_fork(self) -> None:
        """Nothing: what the child has a copy of it does not use."""

    def after_fork_in_parent(self) -> None:
        """Go on."""

    def after_fork_in_child(self) -> None:
        """Start afresh with connections and threads of the child's own."""
        self.writing.restart()
        self.reading.restart()
        self.writer.forget()
        self.listeners.restart()
        self.pool.restart()
