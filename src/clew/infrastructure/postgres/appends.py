"""Appends to a PostgreSQL store: without a table lock, a sequence, or a notification in the transaction.

An append that continues a stream from a known head is one INSERT, which writes nothing if that head has changed. Every
other append is planned in a transaction, from the stored rows, and repeated if another writer was faster.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import psycopg
from psycopg.types.numeric import Int8

from clew.domain.errors import ClewError, StoreError
from clew.domain.ports import Appended, Shred
from clew.domain.streams import ROOT, digest, link
from clew.infrastructure.append_plan import KnownHead, Plan, PlannedRow, make_plan, outcome
from clew.infrastructure.postgres.append_transaction import Transaction, tracked
from clew.infrastructure.postgres.connection import ORDINAL_BITS, Session
from clew.infrastructure.postgres.errors import PostgresUnavailableError, is_cut, unavailable
from clew.infrastructure.postgres.pipeline import BYTEA_TYPE, INT8_TYPE, Statement, int8
from clew.infrastructure.postgres.sql_files import statements
from clew.infrastructure.postgres.stream_ids import only_stream, stream_id, tenant_id
from clew.infrastructure.recorder_ports import HIGHEST, Append

if TYPE_CHECKING:
    from clew.infrastructure.postgres.connection import Address
    from clew.infrastructure.postgres.connection_pool import ConnectionPool
    from clew.infrastructure.postgres.datastore import Horizon

T = TypeVar("T")

MAX_EVENTS = 1 << ORDINAL_BITS
ORDINAL_MASK = MAX_EVENTS - 1
"""The bits of a position that number the events of its transaction."""

MAX_HEADS = 100_000
MAX_BATCH = 32
"""Events in one INSERT statement. A longer append is written in a transaction, as arrays or with COPY."""

IMPATIENT_LOCK_TIMEOUT = b"50ms"
"""How long a statement waits for a lock if the wait also delays appends to other streams."""

TRANSACTION_TIMEOUT = 60.0
"""Seconds to wait for a transaction that lost its client: the server ends an idle transaction after half of that."""

CANCEL_TIMEOUT = 2.0
"""Seconds to wait for the end of an interrupted statement."""

MAX_TRIES = 40
"""How often an append is repeated because other writers were faster."""

_SQL = statements("appends.sql")
_ROW_TYPES = [INT8_TYPE, INT8_TYPE, INT8_TYPE, BYTEA_TYPE, BYTEA_TYPE, BYTEA_TYPE, INT8_TYPE, BYTEA_TYPE]
_RETRYABLE = (
    psycopg.errors.UniqueViolation,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
    psycopg.errors.InvalidSqlStatementName,
)


class Following(NamedTuple):
    """An append to one stream, with the head that it follows. The store only has to compare this head with its own."""

    stream: str
    head: KnownHead
    rows: Sequence[PlannedRow]
    end: KnownHead
    """The head of the stream after it."""


def following(append: Append, name: str, seen: KnownHead | None) -> Following | None:
    """An append to one stream (see only_stream), with its head: from ``append.previous``, or else last ``seen``.

    None if neither is known, or if a plan would refuse the append.
    """
    events, links = append.events, append.links
    first = events[0].originator_version
    previous = append.previous.get(name, ROOT)
    if previous == ROOT:
        if seen is None or seen[0] != first - 1 or links:
            return None
        previous = seen[1]
    if links and len(links) != len(events):
        return None
    rows: list[PlannedRow] = []
    hashed, version = previous, first - 1
    try:
        for number, event in enumerate(events):
            version += 1
            if event.originator_version != version:
                return None
            hashed = links[number] if links else link(hashed, name, version, event.topic, digest(event.state))
            rows.append((name, version, event.topic, event.state, hashed))
    except UnicodeEncodeError:
        return None
    return Following(name, (first - 1, previous), rows, (version, hashed))


class Store(Protocol):
    """The parts of a datastore that the writer uses."""

    address: Address
    tenant: str | None
    horizon: Horizon
    writing: ConnectionPool


class PostgresWriter:
    """Called by many threads at once; each uses its own session."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.forget()

    def forget(self) -> None:
        """Start without known heads: in the child of a fork."""
        self._lock = threading.Lock()
        self._heads: dict[str, KnownHead] = {}

    def write(self, appends: Sequence[Append], *, patient: bool) -> Sequence[Appended | Exception | None]:
        """Write each append, or return why not. Appends that continue a known head share one statement.

        If ``patient`` is false, it does not wait for other clients: the outcome of an append that one of them prevents
        is None.
        """
        outcomes = self._insert_batch(self._follow(appends), patient=patient)
        if patient:
            for number, append in enumerate(appends):
                if outcomes[number] is None:
                    outcomes[number] = self._write_alone(append)
        return outcomes

    # In one statement: appends that continue a known head

    def _follow(self, appends: Sequence[Append]) -> list[Following | None]:
        """The appends with the heads that they continue. None for one to plan, and later ones to its stream."""
        followed: list[Following | None] = []
        ends: dict[str, KnownHead] = {}
        planned: set[str] = set()
        for append in appends:
            name = None if len(append.events) > MAX_BATCH else only_stream(append)
            each = None
            if name is not None and name not in planned:
                end = ends.get(name)
                each = following(append, name, end or self._heads.get(name))
                if each is None or each.end[0] > HIGHEST or (end is not None and each.head != end):
                    each = None
                    planned.add(name)
                else:
                    ends[name] = each.end
            followed.append(each)
        return followed

    def _insert_batch(self, appends: Sequence[Following | None], *, patient: bool) -> list[Appended | Exception | None]:
        """Write each append completely or not at all. The outcome is None for one whose head has changed."""
        batch = list(filter(None, appends))
        if not batch:
            return [None] * len(appends)
        if len(batch) > 1:
            # All writers use the same order, so that no two wait for each other. Within a stream the order stays.
            batch.sort(key=_stream_id)
        try:
            positions = dict(zip(map(id, batch), self._insert(batch, patient=patient), strict=True))
        except ClewError as error:
            return [each and error for each in appends]
        except psycopg.Error as error:
            if not patient:
                return [None] * len(appends)
            if len(batch) > 1:  # one by one, to find the append that failed
                return [each and self._insert_batch([each], patient=True)[0] for each in appends]
            if not isinstance(error, _RETRYABLE):
                return [each and unavailable(self._store.address.shown, error) for each in appends]
            positions = {}
        return self._record_batch(appends, positions)

    def _insert(self, appends: Sequence[Following], *, patient: bool) -> list[int | None]:
        """The position of the first row of each append, None if it was not written."""
        try:
            with self._store.writing.use() as session:
                return _insert_rows(session, appends, None if patient else IMPATIENT_LOCK_TIMEOUT)
        except psycopg.OperationalError as error:
            if isinstance(error, _RETRYABLE) or not is_cut(error):
                raise
            lost = error
        return self._look_up(lost, lambda session: [_insert_again(session, each) for each in appends])

    def _record_batch(
        self, appends: Sequence[Following | None], positions: Mapping[int, int | None]
    ) -> list[Appended | Exception | None]:
        outcomes: list[Appended | Exception | None] = []
        for each in appends:
            first = positions.get(id(each))
            if each is not None and first is not None:
                outcomes.append(self._record({each.stream: each.end}, each.rows, first))
                continue
            outcomes.append(None)
            if each is not None:
                self._heads.pop(each.stream, None)
        return outcomes

    def _record(self, heads: Mapping[str, KnownHead], rows: Sequence[PlannedRow], first: int) -> Appended:
        """Note the heads after an append, and return its outcome."""
        if len(self._heads) > MAX_HEADS:
            self._heads = {}
        self._heads.update(heads)
        with self._lock:
            self._store.horizon.newest = max(self._store.horizon.newest, first + len(rows) - 1)
        return outcome(rows, first)

    # In a transaction: every other append

    def _write_alone(self, append: Append) -> Appended | Exception:
        if len(append.events) >= MAX_EVENTS:
            return ValueError(f"An append of {len(append.events)} events is too long: the limit is {MAX_EVENTS - 1}.")
        try:
            return self._retry_transaction(append)
        except (ClewError, ValueError, TypeError) as error:
            return error
        except psycopg.Error as error:
            return unavailable(self._store.address.shown, error)

    def _retry_transaction(self, append: Append) -> Appended:
        was_cut = False
        for tries_left in range(MAX_TRIES, 0, -1):
            with self._store.writing.use() as session:
                try:
                    return self._transaction(session, append)
                except _RETRYABLE:
                    if tries_left == 1:
                        raise
                except psycopg.OperationalError as error:
                    # Nothing is stored: no commit was sent, or _transaction has checked. Retry once: all connections
                    # may have been cut.
                    if was_cut or not is_cut(error):
                        raise
                    was_cut = True
                    self._store.writing.drop()
                finally:
                    _roll_back(session)
        raise AssertionError  # pragma: no cover - the last try returns or raises

    def _transaction(self, session: Session, append: Append) -> Appended:
        transaction = Transaction(session, append, self._store.tenant)
        plan = make_plan(append, transaction)
        if isinstance(plan, Appended):
            return plan
        unsent = transaction.write(plan)
        first = transaction.first if plan.rows else 0
        try:
            session.commit(*unsent)
        except psycopg.OperationalError as error:
            if not is_cut(error):
                raise
            session.connection.close()
            if not self._look_up(error, lambda other: _is_committed(other, plan, first, transaction.id)):
                raise
        return self._record(plan.heads, plan.rows, first)

    def _look_up(self, error: psycopg.Error, look: Callable[[Session], T]) -> T:
        """Look on another connection for what was stored, after the reply to a commit was lost."""
        self._store.writing.drop()
        try:
            session = self._store.writing.fresh()
            try:
                return look(session)
            finally:
                session.connection.close()
        except (psycopg.Error, StoreError) as second:
            msg = (
                f"{self._store.address.shown}: the connection broke during a commit ({_line(error)}) and another one "
                f"failed ({_line(second)}): it is not known whether the append was stored. Read the stream."
            )
            raise PostgresUnavailableError(msg) from second


def _stream_id(append: Following) -> int:
    return stream_id(append.stream)


def _insert_rows(session: Session, appends: Sequence[Following], lock_timeout: bytes | None) -> list[int | None]:
    ordinals: list[int] = []
    count = 0
    values: list[bytes | None] = [int8(session.base), lock_timeout]
    heads: dict[str, KnownHead] = {}
    for name, head, rows, _ in appends:
        ordinals.append(count)
        count += len(rows)
        # An append that follows another one of the batch depends on the same head as that one.
        version, previous = heads.setdefault(name, head)
        tenant, stream, before = int8(tenant_id(name)), int8(stream_id(name)), int8(version)
        for row in rows:
            values += (tenant, stream, int8(row[1]), row[2].encode(), row[3], row[4], before, previous)
    # The number of rows is rounded up to a power of two, so that few statements are prepared. Empty rows are ignored.
    statement = _insertion(1 << (count - 1).bit_length())
    values += [None] * (len(statement.types) - len(values))
    positions = {position & ORDINAL_MASK: position for position in session.query_numbers(statement, values)}
    return list(map(positions.get, ordinals))


def _insert_again(session: Session, append: Following) -> int | None:
    """Insert again after a lost reply: the first attempt may still be running, or still be on its way.

    Only one of the two can store the rows. The unique index makes this one wait for the other; then it stores the rows,
    or finds them.
    """
    try:
        (first,) = _insert_rows(session, [append], None)
    except _RETRYABLE:
        first = None
    return first or _stored_position(session, append.rows[0])


@cache
def _insertion(count: int) -> Statement:
    """The statement that inserts this number of rows."""
    rows = ", ".join(
        f"({number}, " + ", ".join(f"${3 + number * len(_ROW_TYPES) + n}" for n in range(len(_ROW_TYPES))) + ")"
        for number in range(count)
    )
    text = _SQL["insert what follows"].format(rows=rows)
    return Statement(text.encode(), [INT8_TYPE, BYTEA_TYPE, *_ROW_TYPES * count])


def _roll_back(session: Session) -> None:
    status = session.connection.info.transaction_status
    if status == psycopg.pq.TransactionStatus.IDLE:
        return
    try:
        if status == psycopg.pq.TransactionStatus.ACTIVE:  # interrupted: the server need not finish the statement
            session.connection.cancel_safe(timeout=CANCEL_TIMEOUT)
            session.connection.close()
        else:
            session.roll_back()
    except psycopg.Error:
        session.connection.close()


# After a lost reply to a commit


def _is_committed(session: Session, plan: Plan, first: int, transaction: int) -> bool:
    """Whether a transaction was committed. Waits for its end; the server soon ends one that lost its client.

    Its id is not enough: a promoted standby, or a server after a crash, may assign the id again. So this looks at what
    the transaction wrote. An append of only drafts, leases or blobs can be repeated without harm, so it counts as not
    committed.
    """
    until = time.monotonic() + TRANSACTION_TIMEOUT
    pause = 0.001
    while _is_open(session, transaction):
        if time.monotonic() > until:
            msg = "the transaction is still open"
            raise psycopg.OperationalError(msg)
        time.sleep(pause)
        pause = min(pause * 2, 0.5)
    if plan.rows:
        return _stored_position(session, plan.rows[0]) == first
    append = plan.append
    if append.tracking is not None:
        return (tracked(session, append.tracking.application_name) or 0) >= append.tracking.notification_id
    return any(_is_shredded(session, shred) for shred in append.shreds[:1])


def _is_open(session: Session, transaction: int) -> bool:
    try:
        rows = session.query(_SQL["outcome of a transaction"], {"transaction": Int8(transaction)})
    except psycopg.errors.InvalidParameterValue:  # a promoted standby that has not seen this id yet
        return False
    return bool(rows[0][0] == "in progress")


def _stored_position(session: Session, row: PlannedRow) -> int | None:
    """The position of an append's first row, None if it is not stored. An append is stored as a whole or not at all."""
    stream, version, _, _, hashed = row
    key = {"stream": Int8(stream_id(stream)), "version": Int8(version), "hash": hashed}
    rows = session.query(_SQL["position of a row"], key)
    return min(rows)[0] if rows else None


def _is_shredded(session: Session, shred: Shred) -> bool:
    rows = session.query(_SQL["row"], {"stream": Int8(stream_id(shred.stream)), "version": Int8(shred.version)})
    return bool(rows and rows[0][1] == shred.digest)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
