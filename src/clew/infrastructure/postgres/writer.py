"""Appends to a PostgreSQL store: without a lock on a table, a sequence or a notification in the transaction.

An append that follows what was last seen is one INSERT that writes nothing if it does not. Any other is planned in a
transaction on what is there, and again when another writer was faster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.types.numeric import Int8

from clew.domain.chain import ROOT
from clew.domain.errors import ClewError, StoreError
from clew.infrastructure.append_plan import KnownHead, Plan, outcome, plan, stream_name
from clew.infrastructure.postgres.errors import PostgresUnavailableError, is_cut, unavailable
from clew.infrastructure.postgres.reads import HIGHEST, stream_id, tenant_id
from clew.infrastructure.postgres.sessions import ORDINAL_BITS, Rows, Session
from clew.infrastructure.postgres.sql_files import statements
from clew.infrastructure.postgres.transaction import Transaction, columns
from clew.infrastructure.recorder import Append, Appended, Key

if TYPE_CHECKING:
    from clew.infrastructure.postgres.datastore import PostgresDatastore

MOST_EVENTS = 1 << ORDINAL_BITS
MOST_HEADS = 100_000
TRIES = 40
"""So often another writer may be faster than an append that claims, or has a key, and then nobody is: give up."""

# Readers stop below a transaction that is open: that of a process that stands still must not stay so.
_BEGIN = "BEGIN; SET LOCAL idle_in_transaction_session_timeout = '30s'"

_SQL = statements("appends.sql")
_AGAIN = (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)


class PostgresWriter:
    """Called by the writer threads, each with a session of its own."""

    def __init__(self, store: PostgresDatastore) -> None:
        self._store = store
        self.forget()

    def forget(self) -> None:
        """Know nothing: in the child of a fork."""
        self._heads: dict[str, KnownHead] = {}

    def write(self, append: Append) -> Appended | Exception:
        """Write one append, or say why not."""
        if len(append.events) >= MOST_EVENTS:
            return ValueError(f"An append of {len(append.events)} events is too long: {MOST_EVENTS - 1} are the most.")
        try:
            appended = self._at_once(append) or self._with_care(append)
        except (ClewError, ValueError, TypeError) as error:
            return error
        except psycopg.Error as error:
            return unavailable(self._store.address.shown, error)
        if appended.positions and not appended.repeated:
            self._store.newest = max(self._store.newest, appended.positions[-1])
        return appended

    # At once: on what was last seen

    def _at_once(self, append: Append) -> Appended | None:
        """Write it in one statement if its streams stand where they were last seen; None if that is not so."""
        if not append.events or any(append[1:6]) or any(append[8:]):
            return None
        guess = Guess(self._heads, append)
        try:
            made = plan(append, guess)
        except ClewError:
            return None
        if isinstance(made, Appended) or made.began or any(row[1] > HIGHEST for row in made.rows):
            return None
        with self._store.writing.use() as session:
            found = self._insert(session, made, guess.asked)
        if found:
            return self._finish(made, min(found)[0])
        for name in made.heads:
            self._heads.pop(name, None)
        return None

    def _insert(self, session: Session, made: Plan, before: dict[str, KnownHead]) -> Rows:
        """The positions; none when the rows do not follow."""
        sql, parameters = _insertion(made, before, session.base)
        try:
            return self._store.run_alone(session, sql, parameters)
        except (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
            return []
        except psycopg.OperationalError as error:
            if not is_cut(error):
                raise
            return self._settle_alone(session, made, error)

    def _finish(self, made: Plan, first: int) -> Appended:
        heads = self._heads
        if len(heads) > MOST_HEADS:
            heads = self._heads = {}
        heads.update(made.heads)
        return outcome(made.rows, first)

    # With care: in a transaction, on what is there

    def _with_care(self, append: Append) -> Appended:
        cut = False
        for tries in range(TRIES, 0, -1):
            with self._store.writing.use() as session:
                try:
                    return self._transaction(session, append)
                except _AGAIN:
                    if tries == 1:
                        raise
                except psycopg.OperationalError as error:
                    # Before the commit, so that nothing is stored: once, as the server may have cut all connections.
                    if cut or not is_cut(error):
                        raise
                    cut = True
                    self._store.writing.drop()
                finally:
                    self._roll_back(session)
        raise AssertionError  # pragma: no cover - the last try returns or raises

    def _transaction(self, session: Session, append: Append) -> Appended:
        session.connection.execute(_BEGIN)
        transaction = Transaction(session, append)
        made = plan(append, transaction)
        if isinstance(made, Appended):
            return made
        first = transaction.put(made)
        id_ = transaction.id(first)
        try:
            self._store.commit(session)
        except psycopg.OperationalError as error:
            if not is_cut(error):
                raise
            self._settle(session, id_, error)
        return self._finish(made, first)

    def _roll_back(self, session: Session) -> None:
        if session.connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            try:
                session.connection.execute("ROLLBACK")
            except psycopg.Error:
                session.connection.close()

    # The reply to a commit was lost

    def _settle(self, lost: Session, transaction: int, error: psycopg.Error) -> None:
        """Return if the transaction was committed. Raises StoreUnavailableError if not, or if nobody can say."""
        status = self._after(lost, error, "outcome of a transaction", {"transaction": Int8(transaction)})[0][0]
        if status != "committed":
            raise unavailable(self._store.address.shown, error) from error

    def _settle_alone(self, lost: Session, made: Plan, error: psycopg.Error) -> Rows:
        """The position if the first row is there: all of them were written or none. Raises as above."""
        stream, version, _, _, hashed = made.rows[0]
        address = {"stream": Int8(stream_id(stream)), "version": Int8(version)}
        found = self._after(lost, error, "position of a row", {**address, "hash": hashed})
        if not found:
            raise unavailable(self._store.address.shown, error) from error
        return found

    def _after(self, lost: Session, error: psycopg.Error, statement: str, parameters: dict[str, Any]) -> Rows:
        """What a statement finds once the server has done with a session, so that nothing of it can come later."""
        self._store.writing.drop()
        lost.connection.close()
        try:
            session = self._store.writing.fresh()
            try:
                session.ask(_SQL["end session"], {"pid": lost.pid, "since": lost.since})
                return session.ask(_SQL[statement], parameters)
            finally:
                session.connection.close()
        except (psycopg.Error, StoreError) as second:
            msg = (
                f"{self._store.address.shown}: the connection broke during a commit ({_line(error)}) and no other can "
                f"be had ({_line(second)}): whether the append was stored is not known. Read what is there."
            )
            raise PostgresUnavailableError(msg) from second


class Guess:
    """What a plan is told without asking the database: heads as they were last seen, or as the append has them."""

    def __init__(self, heads: dict[str, KnownHead], append: Append) -> None:
        self._heads = heads
        self._said: dict[str, KnownHead] = {}
        self.asked: dict[str, KnownHead] = {}
        for event in append.events:
            name = stream_name(event.originator_id)
            previous = append.previous.get(name, ROOT)
            if name not in self._said and previous != ROOT:
                self._said[name] = event.originator_version - 1, previous

    def head(self, stream: str) -> KnownHead | None:
        """Where the stream was last, as far as that is known."""
        found = self._said.get(stream) or self._heads.get(stream)
        if found is not None:
            self.asked[stream] = found
        return found

    def hash_at(self, stream: str, version: int) -> None:
        """Nothing: forks are not guessed at."""

    def state_at(self, stream: str, version: int) -> None:
        """Nothing: nor are shreds."""

    def outcome(self, key: Key) -> None:
        """Nothing: nor are keys."""

    def lease(self, stream: str) -> None:
        """Nothing: nor are claims."""


def _insertion(made: Plan, before: dict[str, KnownHead], base: int) -> tuple[str, dict[str, Any]]:
    """The statement that writes a plan's rows if they follow, and its parameters."""
    if len(made.rows) == 1:
        name, version, type_, state, hashed = made.rows[0]
        return _SQL["insert one if it follows"], {
            "base": Int8(base),
            "tenant": Int8(tenant_id(name)),
            "stream": Int8(stream_id(name)),
            "version": Int8(version),
            "type": type_.encode(),
            "state": state,
            "hash": hashed,
            "before": Int8(version - 1),
            "previous": before[name][1],
        }
    return _SQL["insert many if they follow"], {
        **columns(made.rows, base),
        "heads": [Int8(stream_id(name)) for name in before],
        "befores": [Int8(head[0]) for head in before.values()],
        "previous": [head[1] for head in before.values()],
        "count": Int8(len(before)),
    }


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
