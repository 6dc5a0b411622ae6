"""One PostgreSQL database of a store: its connection pools for writing and reading, and its writers."""

from __future__ import annotations

from typing import Any, Literal

import psycopg
from psycopg.types.numeric import Int8

from clew.infrastructure import process_forks
from clew.infrastructure.commit_listeners import CommitListeners
from clew.infrastructure.postgres import schema
from clew.infrastructure.postgres.address import Address
from clew.infrastructure.postgres.append_pool import AppendPool
from clew.infrastructure.postgres.connection import Rows
from clew.infrastructure.postgres.connection_pool import ConnectionPool
from clew.infrastructure.postgres.errors import is_cut, unavailable
from clew.infrastructure.postgres.reads import SQL, Horizon
from clew.infrastructure.postgres.writer import MAX_BATCH, PostgresWriter

WORKERS = 16
READERS = 8


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
        self.horizon = Horizon(self._horizon)
        self.writing = ConnectionPool(self.address, workers, tenant=tenant, write=True)
        self.reading = ConnectionPool(self.address, readers, tenant=tenant)
        self.writer = PostgresWriter(self)
        self.listeners = CommitListeners(self._changed)
        self.pool = AppendPool(self.writer.write, self.listeners.notify, workers=workers, batch_size=MAX_BATCH)
        self._seen = 0
        self._closed = False
        process_forks.watch(self)

    def query(self, sql: str, parameters: dict[str, Any] | None = None, *, based: bool = False) -> Rows:
        """The rows of a query. ``based``: the query has a parameter for the session's base.

        It is repeated once on another connection if the connection is lost, or if a standby ends it because the primary
        has removed the rows that it reads. Raises ClosedError or StoreUnavailableError.
        """
        try:
            return self._query(sql, parameters or {}, based=based)
        except psycopg.OperationalError as error:
            if not (is_cut(error) or isinstance(error, psycopg.errors.SerializationFailure)):
                raise unavailable(self.address.shown, error) from error
        except psycopg.Error as error:
            raise unavailable(self.address.shown, error) from error
        self.reading.drop()
        try:
            return self._query(sql, parameters or {}, based=based)
        except psycopg.Error as error:
            raise unavailable(self.address.shown, error) from error

    def _query(self, sql: str, parameters: dict[str, Any], *, based: bool) -> Rows:
        with self.reading.use() as session:
            if based:
                parameters = {**parameters, "base": Int8(session.base)}
            return session.query(sql, parameters)

    def _changed(self) -> bool:
        """Whether a transaction of the server has ended since the last call, so that there may be more to read."""
        horizon = self._horizon()
        changed, self._seen = horizon != self._seen, horizon
        return changed

    def _horizon(self) -> int:
        return int(self.query(SQL["horizon"], based=True)[0][0])

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
