"""Appends to a PostgreSQL store: without a lock on a table, a sequence or a notification in the transaction.

An append that follows what was last seen is one INSERT that writes nothing if it does not. Any other is planned in a
transaction on what is there, and again when another writer was faster.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

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

T = TypeVar("T")

MOST_EVENTS = 1 << ORDINAL_BITS
MOST_HEADS = 100_000
MOST_SPELT_OUT = 32
"""Rows of one stream that are parameters of their own, each number of them with its statement; more are arrays."""

MOST_AT_ONCE = 1_000
"""Events of an append that are written in one statement; more are copied, in a transaction."""

LONGEST_TRANSACTION = 60.0
"""Seconds to wait for the end of one whose client is gone: the server ends what stands still after half of that."""

TRIES = 40
"""So often another writer may be faster than an append that claims, or has a key, and then nobody is: give up."""

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
        if not 0 < len(append.events) < MOST_AT_ONCE or any(append[1:6]) or any(append[8:]):
            return None
        guess = Guess(self._heads, append)
        try:
            made = plan(append, guess)
        except ClewError:
            return None
        if isinstance(made, Appended) or made.began or any(row[1] > HIGHEST for row in made.rows):
            return None
        first = self._insert(made, guess.asked)
        if first is not None:
            return self._finish(made, first)
        for name in made.heads:
            self._heads.pop(name, None)
        return None

    def _insert(self, made: Plan, before: dict[str, KnownHead]) -> int | None:
        """The position of the first row, None when the rows do not follow."""
        try:
            with self._store.writing.use() as session:
                return self._store.run_alone(session, *_insertion(made, before, session.base))
        except _AGAIN:
            return None
        except psycopg.OperationalError as error:
            if not is_cut(error):
                raise
            lost = error
        return self._look(lost, lambda session: self._insert_again(session, made, before))

    def _insert_again(self, session: Session, made: Plan, before: dict[str, KnownHead]) -> int | None:
        """The same, where an attempt may be under way, or may still come: of the same rows one can be stored only.

        So this waits for the other by the unique index, or stores the rows instead, or finds them there.
        """
        try:
            found = self._store.run_alone(session, *_insertion(made, before, session.base))
        except _AGAIN:
            found = None
        return found or _first(_row_of(session, made))

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
        session.begin()
        transaction = Transaction(session, append, self._store.tenant)
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
            session.connection.close()
            if not self._look(error, lambda other: _is_committed(other, made, first, id_)):
                raise
        return self._finish(made, first)

    def _roll_back(self, session: Session) -> None:
        if session.connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            try:
                session.connection.execute("ROLLBACK")
            except psycopg.Error:
                session.connection.close()

    def _look(self, error: psycopg.Error, at: Callable[[Session], T]) -> T:
        """What is found on another connection after the reply to a commit was lost."""
        self._store.writing.drop()
        try:
            session = self._store.writing.fresh()
            try:
                return at(session)
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
    rows = made.rows
    if len(before) > 1 or len(rows) > MOST_SPELT_OUT:
        return _SQL["insert many if they follow"], {
            **columns(rows, base),
            "heads": [Int8(stream_id(name)) for name in before],
            "befores": [Int8(head[0]) for head in before.values()],
            "previous": [head[1] for head in before.values()],
            "count": Int8(len(before)),
        }
    ((name, (version, previous)),) = before.items()
    parameters: dict[str, Any] = {
        "base": Int8(base),
        "tenant": Int8(tenant_id(name)),
        "stream": Int8(stream_id(name)),
        "before": Int8(version),
        "previous": previous,
    }
    for number, (_, _, type_, state, hashed) in enumerate(rows):
        parameters[f"type{number}"] = type_.encode()
        parameters[f"state{number}"] = state
        parameters[f"hash{number}"] = hashed
    return _some_if_they_follow(len(rows)), parameters


@cache
def _some_if_they_follow(count: int) -> str:
    """The statement for so many rows of one stream."""
    rows = (f"({number}::int8, %(type{number})b, %(state{number})b, %(hash{number})b)" for number in range(count))
    return _SQL["insert some if they follow"].format(rows=", ".join(rows))


def _first(found: Rows) -> int | None:
    return min(found)[0] if found else None


def _row_of(session: Session, made: Plan) -> Rows:
    """The position of a plan's first row if it is there: all of them are or none."""
    stream, version, _, _, hashed = made.rows[0]
    address = {"stream": Int8(stream_id(stream)), "version": Int8(version)}
    return session.ask(_SQL["position of a row"], {**address, "hash": hashed})


def _is_committed(session: Session, made: Plan, first: int, transaction: int) -> bool:
    """Whether a transaction was committed, once it has ended: the server ends it soon when its client is gone.

    A standby that was promoted meanwhile may have given the transaction's id to another, but not its rows.
    """
    until = time.monotonic() + LONGEST_TRANSACTION
    pause = 0.001
    while (status := _status(session, transaction)) == "in progress":
        if time.monotonic() > until:
            msg = "the transaction is still open"
            raise psycopg.OperationalError(msg)
        time.sleep(pause)
        pause = min(pause * 2, 0.5)
    return _first(_row_of(session, made)) == first if made.rows else status == "committed"


def _status(session: Session, transaction: int) -> str | None:
    try:
        return str(session.ask(_SQL["outcome of a transaction"], {"transaction": Int8(transaction)})[0][0])
    except psycopg.errors.InvalidParameterValue:  # of a standby that was promoted, and has not come so far
        return None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
