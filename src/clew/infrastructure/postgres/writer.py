"""Appends to a PostgreSQL store: without a lock on a table, a sequence or a notification in the transaction.

An append that follows what was last seen is one INSERT that writes nothing if it does not. Any other is planned in a
transaction on what is there, and again when another writer was faster.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Protocol, TypeVar

import psycopg
from psycopg.types.numeric import Int8

from clew.domain.errors import ClewError, StoreError
from clew.infrastructure.append_plan import KnownHead, Plan, PlannedRow, outcome, plan
from clew.infrastructure.append_streams import Following, following, only_stream
from clew.infrastructure.postgres.connection import ORDINAL_BITS, Rows, Session
from clew.infrastructure.postgres.errors import PostgresUnavailableError, is_cut, unavailable
from clew.infrastructure.postgres.identifiers import HIGHEST, stream_id, tenant_id
from clew.infrastructure.postgres.pipeline import BYTEA_TYPE, INT8_TYPE, Asked, Statement, int8
from clew.infrastructure.postgres.sql_files import statements
from clew.infrastructure.postgres.transaction import Transaction, tracked
from clew.infrastructure.recorder import Append, Appended, Shred

if TYPE_CHECKING:
    from clew.infrastructure.postgres.address import Address
    from clew.infrastructure.postgres.connection_pool import ConnectionPool
    from clew.infrastructure.postgres.reads import Horizon

T = TypeVar("T")

MOST_EVENTS = 1 << ORDINAL_BITS
ORDINAL = MOST_EVENTS - 1
"""The bits of a position that say which event it is of its transaction."""

MOST_HEADS = 100_000
MOST_AT_ONCE = 32
"""Events of an append that are written in the one statement; more are arrays, or copied, in a transaction."""

HURRY = b"50ms"
"""So long a statement waits for a lock of somebody else's where it holds up others than those of the locked stream."""

LONGEST_TRANSACTION = 60.0
"""Seconds to wait for the end of one whose client is gone: the server ends what stands still after half of that."""

CANCEL_TIMEOUT = 2.0
"""Seconds to wait for the end of a statement that was interrupted."""

TRIES = 40
"""So often another writer may be faster than an append that claims, or has a key, and then nobody is: give up."""

_SQL = statements("appends.sql")
_TYPES = [INT8_TYPE, INT8_TYPE, INT8_TYPE, BYTEA_TYPE, BYTEA_TYPE, BYTEA_TYPE, INT8_TYPE, BYTEA_TYPE]
_AGAIN = (
    psycopg.errors.UniqueViolation,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
    psycopg.errors.InvalidSqlStatementName,
)


class Store(Protocol):
    """What is written to, and how."""

    address: Address
    tenant: str | None
    horizon: Horizon
    writing: ConnectionPool

    def commit(self, session: Session, left: Sequence[Asked]) -> None:
        """Commit the transaction of a session after what is left to be said."""
        ...

    def write_at_once(self, session: Session, statement: Statement, values: Sequence[bytes | None]) -> list[int]:
        """The numbers that a statement answers which is a transaction by itself."""
        ...


class PostgresWriter:
    """Called by the writer threads, each with a session of its own."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.forget()

    def forget(self) -> None:
        """Know nothing: in the child of a fork."""
        self._lock = threading.Lock()
        self._heads: dict[str, KnownHead] = {}

    def write(self, appends: Sequence[Append], *, patient: bool) -> Sequence[Appended | Exception | None]:
        """Write appends, each or say why not: more than one only of those that follow what was last seen.

        Without patience what may have to wait for somebody else is left, and None is said of it.
        """
        written = self._at_once(self._following(appends), patient=patient)
        if not patient:
            return written
        return [done or self._alone(append) for done, append in zip(written, appends, strict=True)]

    def _alone(self, append: Append) -> Appended | Exception:
        if len(append.events) >= MOST_EVENTS:
            return ValueError(f"An append of {len(append.events)} events is too long: {MOST_EVENTS - 1} are the most.")
        try:
            return self._with_care(append)
        except (ClewError, ValueError, TypeError) as error:
            return error
        except psycopg.Error as error:
            return unavailable(self._store.address.shown, error)

    # At once: on what was last seen

    def _following(self, appends: Sequence[Append]) -> list[Following | None]:
        """The appends as they follow what was last seen, or one the other; None for what is to be planned.

        So is what comes after that in the same stream: it is written after it.
        """
        found: list[Following | None] = []
        ends: dict[str, KnownHead] = {}
        left: set[str] = set()
        for append in appends:
            name = None if len(append.events) > MOST_AT_ONCE else only_stream(append)
            each = None
            if name is not None and name not in left:
                end = ends.get(name)
                each = following(append, name, end or self._heads.get(name))
                if each is None or each.end[0] > HIGHEST or (end is not None and each.head != end):
                    each = None
                    left.add(name)
                else:
                    ends[name] = each.end
            found.append(each)
        return found

    def _at_once(
        self, appends: Sequence[Following | None], *, patient: bool = True
    ) -> list[Appended | Exception | None]:
        """Write them in one statement, of each all or nothing: None where it did not follow."""
        # In the same order by all writers, so that no two wait for each other; those of one stream stay in theirs.
        asked = sorted(filter(None, appends), key=_stream_id)
        if not asked:
            return [None] * len(appends)
        try:
            found = dict(zip(map(id, asked), self._insert(asked, patient=patient), strict=True))
        except ClewError as error:
            return [each and error for each in appends]
        except psycopg.Error as error:
            if not patient:
                return [None] * len(appends)
            if len(asked) > 1:  # whose fault it is shows when each is alone
                return [each and self._at_once([each])[0] for each in appends]
            if not isinstance(error, _AGAIN):
                return [each and unavailable(self._store.address.shown, error) for each in appends]
            found = {}
        written: list[Appended | Exception | None] = []
        for each in appends:
            first = found.get(id(each))
            if each is None or first is None:
                written.append(None)
                if each is not None:
                    self._heads.pop(each.stream, None)
            else:
                written.append(self._done({each.stream: each.end}, each.rows, first))
        return written

    def _done(self, heads: Mapping[str, KnownHead], rows: Sequence[PlannedRow], first: int) -> Appended:
        """What was written, and remembered: where streams are, for those who do not say what their appends follow."""
        if len(self._heads) > MOST_HEADS:
            self._heads = {}
        self._heads.update(heads)
        with self._lock:
            self._store.horizon.newest = max(self._store.horizon.newest, first + len(rows) - 1)
        return outcome(rows, first)

    def _insert(self, appends: Sequence[Following], *, patient: bool) -> list[int | None]:
        """The position of the first row of each that is there now."""
        try:
            with self._store.writing.use() as session:
                return self._inserted(session, appends, patient=patient)
        except psycopg.OperationalError as error:
            if isinstance(error, _AGAIN) or not is_cut(error):
                raise
            lost = error
        return self._look(lost, lambda session: [self._inserted_again(session, each) for each in appends])

    def _inserted(self, session: Session, appends: Sequence[Following], *, patient: bool = True) -> list[int | None]:
        begins, values = _values(session.base, appends, None if patient else HURRY)
        count = len(values) // len(_TYPES)
        # Some of its rows stay empty, so that there are few of these statements.
        statement = _insertion(1 << (count - 1).bit_length())
        values += [None] * (len(statement.types) - len(values))
        found = {at & ORDINAL: at for at in self._store.write_at_once(session, statement, values)}
        return [found.get(number) for number in begins]

    def _inserted_again(self, session: Session, append: Following) -> int | None:
        """The same, where an attempt may be under way, or may still come: of the same rows one can be stored only.

        So this waits for the other by the unique index, or stores the rows instead, or finds them there.
        """
        try:
            (first,) = self._inserted(session, [append])
        except _AGAIN:
            first = None
        return first or _first(_row_of(session, append.rows[0]))

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
        transaction = Transaction(session, append, self._store.tenant)
        made = plan(append, transaction)
        if isinstance(made, Appended):
            return made
        left = transaction.put(made)
        first = transaction.first if made.rows else 0
        try:
            self._store.commit(session, left)
        except psycopg.OperationalError as error:
            if not is_cut(error):
                raise
            session.connection.close()
            if not self._look(error, lambda other: _is_committed(other, made, first, transaction.id)):
                raise
        return self._done(made.heads, made.rows, first)

    def _roll_back(self, session: Session) -> None:
        status = session.connection.info.transaction_status
        if status == psycopg.pq.TransactionStatus.IDLE:
            return
        try:
            if status == psycopg.pq.TransactionStatus.ACTIVE:  # interrupted: what it waits for it need not wait for
                session.connection.cancel_safe(timeout=CANCEL_TIMEOUT)
                session.connection.close()
            else:
                session.roll_back()
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


def _stream_id(append: Following) -> int:
    return stream_id(append.stream)


def _values(base: int, appends: Sequence[Following], most: bytes | None) -> tuple[list[int], list[bytes | None]]:
    """The number of the first row of each, and the parameters: how long to wait at most, and the rows.

    What follows another of them is there if that is: it looks for the same head.
    """
    begins: list[int] = []
    number = 0
    values: list[bytes | None] = [int8(base), most]
    heads: dict[str, KnownHead] = {}
    for name, head, rows, _ in appends:
        begins.append(number)
        number += len(rows)
        version, previous = heads.setdefault(name, head)
        tenant, stream, before = int8(tenant_id(name)), int8(stream_id(name)), int8(version)
        for row in rows:
            values += (tenant, stream, int8(row[1]), row[2].encode(), row[3], row[4], before, previous)
    return begins, values


@cache
def _insertion(count: int) -> Statement:
    """The statement for so many rows."""
    rows = ", ".join(
        f"({number}, " + ", ".join(f"${3 + number * len(_TYPES) + n}" for n in range(len(_TYPES))) + ")"
        for number in range(count)
    )
    text = _SQL["insert what follows"].format(rows=rows)
    return Statement(text.encode(), [INT8_TYPE, BYTEA_TYPE, *_TYPES * count])


def _first(found: Rows) -> int | None:
    return min(found)[0] if found else None


def _row_of(session: Session, row: PlannedRow) -> Rows:
    """The position of the first row of an append if it is there: all of them are or none."""
    stream, version, _, _, hashed = row
    address = {"stream": Int8(stream_id(stream)), "version": Int8(version)}
    return session.ask(_SQL["position of a row"], {**address, "hash": hashed})


def _is_committed(session: Session, made: Plan, first: int, transaction: int) -> bool:
    """Whether a transaction was committed, once it has ended: the server ends it soon when its client is gone.

    Its id does not tell: a standby that was promoted meanwhile, or a server that broke down, may have given it to
    another. What it wrote does. What may as well be written twice (drafts, leases, blobs) is said not to be there.
    """
    until = time.monotonic() + LONGEST_TRANSACTION
    pause = 0.001
    while _is_open(session, transaction):
        if time.monotonic() > until:
            msg = "the transaction is still open"
            raise psycopg.OperationalError(msg)
        time.sleep(pause)
        pause = min(pause * 2, 0.5)
    if made.rows:
        return _first(_row_of(session, made.rows[0])) == first
    append = made.append
    if append.tracking is not None:
        return (tracked(session, append.tracking.application_name) or 0) >= append.tracking.notification_id
    return any(_is_shredded(session, shred) for shred in append.shreds[:1])


def _is_open(session: Session, transaction: int) -> bool:
    try:
        found = session.ask(_SQL["outcome of a transaction"], {"transaction": Int8(transaction)})
    except psycopg.errors.InvalidParameterValue:  # of a standby that was promoted, and has not come so far
        return False
    return bool(found[0][0] == "in progress")


def _is_shredded(session: Session, shred: Shred) -> bool:
    address = {"stream": Int8(stream_id(shred.stream)), "version": Int8(shred.version)}
    found = session.ask(_SQL["row"], address)
    return bool(found and found[0][1] == shred.digest)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
