"""Statements that are sent together, straight through libpq, and what they answer: one round trip.

The driver's cursor costs more than the rest of an append. Its pipeline, at the end, says of a statement that failed no
more than that others were not carried out, and asks for a flush, for which a pooler gives it a session once more.
"""

from __future__ import annotations

import re
import select
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import count, repeat
from struct import Struct
from typing import Any, NamedTuple, TypeAlias

import psycopg
from psycopg.abc import Buffer
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import ConnStatus, ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult

INT8_TYPE, BYTEA_TYPE = 20, 17

_INT8 = Struct(">q")
_ARRAY = Struct(">iiiii")
_LENGTH = Struct(">i")
_NULL = _LENGTH.pack(-1)

int8 = _INT8.pack
"""A number as PostgreSQL takes it in binary; bytes are what they are."""


def int8s(numbers: Iterable[int | None]) -> bytes:
    """Numbers as one array."""
    return _array(INT8_TYPE, [None if number is None else int8(number) for number in numbers])


def byteas(values: Iterable[bytes | None]) -> bytes:
    """Values of bytes as one array."""
    return _array(BYTEA_TYPE, list(values))


def _array(type_: int, items: Sequence[bytes | None]) -> bytes:
    """One dimension, in which nulls may be; the type, how many there are, and the number of the first; each item."""
    parts = [_ARRAY.pack(1, 1, type_, len(items), 1)]
    for item in items:
        parts += (_NULL,) if item is None else (_LENGTH.pack(len(item)), item)
    return b"".join(parts)


_DONE = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)

_names = count()
"""Of prepared statements: none has the name of one before it."""


@dataclass(frozen=True, slots=True, eq=False)
class Statement:
    """A statement whose parameters are ``$1`` and so on, of these types, or of those that PostgreSQL sees they have.

    It is prepared, unless it has none.
    """

    command: bytes
    types: Sequence[int] = ()
    formats: Sequence[int] = ()
    """Of the parameters; in binary they are if nothing is said."""


Values: TypeAlias = Sequence[Buffer | None]

MOST_PREPARED = 400
"""Statements of a connection; what is asked after that is not prepared."""

Asked: TypeAlias = tuple[Statement, Values]
"""A statement and its parameters."""


def answer(connection: psycopg.Connection[Any], known: dict[Statement, bytes], *asked: Asked) -> PGresult:
    """What the last of these statements answers, which are one transaction; raises what the driver's cursor would.

    ``known`` are those that this connection has prepared.
    """
    try:
        return answers(connection, known, *asked)[-1]
    except psycopg.errors.InvalidSqlStatementName:
        return answers(connection, known, *asked)[-1]


def answers(connection: psycopg.Connection[Any], known: dict[Statement, bytes], *asked: Asked) -> list[PGresult]:
    """What each of these statements answers, sent together; raises what the driver's cursor would of the first to fail.

    Those after it are not carried out.
    """
    pgconn = connection.pgconn
    steps: list[tuple[Statement, Values | None]] = []
    fresh: dict[Statement, bytes] = {}
    most = 0 if connection.prepare_threshold is None else MOST_PREPARED
    for statement, values in asked:
        if values and statement not in known and statement not in fresh and len(known) + len(fresh) < most:
            fresh[statement] = b"clew_%d" % next(_names)
            steps.append((statement, None))
        steps.append((statement, values))
    replies = _sent(pgconn, {**known, **fresh} if fresh else known, steps)
    found: list[PGresult] = []
    for (statement, given), reply in zip(steps, replies, strict=False):
        if reply.status not in _DONE:
            error = psycopg.errors.error_from_result(reply)
            if isinstance(error, psycopg.errors.InvalidSqlStatementName):
                known.clear()  # the session forgot all that is prepared: they are prepared again the next time
            raise error
        if given is None:
            known[statement] = fresh[statement]
        else:
            found.append(reply)
    if len(replies) < len(steps):
        raise psycopg.OperationalError(pgconn.get_error_message())
    return found


def _sent(
    pgconn: PGconn, names: Mapping[Statement, bytes], steps: Sequence[tuple[Statement, Values | None]]
) -> list[PGresult]:
    """The replies to statements, each of which is prepared under its name where it comes without values."""
    pipelined = len(steps) > 1
    try:
        if pipelined:
            pgconn.enter_pipeline_mode()
        for statement, values in steps:
            name = names.get(statement)
            formats = statement.formats or _binary(len(values or ()))
            if name is None:
                pgconn.send_query_params(statement.command, values, statement.types or None, formats, Format.BINARY)
            elif values is None:
                pgconn.send_prepare(name, statement.command, statement.types)
            else:
                pgconn.send_query_prepared(name, values, formats, Format.BINARY)
        if pipelined:
            pgconn.pipeline_sync()
        return _replies(pgconn, pipelined=pipelined)
    finally:
        # Not where it is gone, or where this was interrupted and something is still to come.
        if pgconn.status == ConnStatus.OK and pgconn.transaction_status != TransactionStatus.ACTIVE:
            pgconn.exit_pipeline_mode()


@cache
def _binary(count: int) -> Sequence[int]:
    return [Format.BINARY] * count


def _replies(pgconn: PGconn, *, pipelined: bool) -> list[PGresult]:
    """What the server answers.

    It is waited for here and not in libpq, so that Ctrl-C is seen.
    """
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN | select.POLLOUT)
    while pgconn.flush():
        poll.poll()
        pgconn.consume_input()
    poll.modify(pgconn.socket, select.POLLIN)
    found: list[PGresult] = []
    ends = 0
    while ends <= pipelined:
        while pgconn.is_busy():
            poll.poll()
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:
            ends += 1  # of one of several statements, and a second time in succession of what is to come at all
        elif result.status == ExecStatus.PIPELINE_SYNC:
            break
        else:
            ends = 0
            found.append(result)
    return found


def numbers(result: PGresult) -> list[int]:
    """The numbers of an answer that has one column of them, without nulls."""
    found = map(result.get_value, range(result.ntuples), repeat(0))
    return [_INT8.unpack(each)[0] for each in found if each is not None]


def rows(result: PGresult) -> list[tuple[Any, ...]]:
    """The rows of an answer: numbers, and of any other type than that of numbers the bytes."""
    are_numbers = [result.ftype(column) == INT8_TYPE for column in range(result.nfields)]
    return [
        tuple([_value(result.get_value(row, column), is_number) for column, is_number in enumerate(are_numbers)])
        for row in range(result.ntuples)
    ]


def _value(found: bytes | None, is_number: bool) -> int | bytes | None:  # noqa: FBT001 - of a column
    return int(_INT8.unpack(found)[0]) if is_number and found is not None else found


_PLACE = re.compile(r"%(?:\((\w+)\))?([bs])|%%")


class Numbered(NamedTuple):
    """A statement whose parameters are ``$1`` and so on."""

    command: bytes
    keys: Sequence[Any]
    """Of the values in their order: names, or numbers from 0."""
    formats: Sequence[PyFormat]


@lru_cache(maxsize=1_024)
def numbered(sql: str) -> Numbered:
    """A statement of the driver's: ``%(name)b`` or ``%b`` is a value in binary, with ``s`` in whatever form."""
    found: dict[Any, PyFormat] = {}

    def number(place: re.Match[str]) -> str:
        name, form = place.groups()
        if form is None:
            return "%"
        key = len(found) if name is None else name
        found.setdefault(key, PyFormat.BINARY if form == "b" else PyFormat.AUTO)
        return f"${[*found].index(key) + 1}"

    command = _PLACE.sub(number, sql).encode()
    return Numbered(command, [*found], [*found.values()])


@lru_cache(maxsize=1_024)
def _statement(command: bytes, types: tuple[int, ...], formats: tuple[int, ...]) -> Statement:
    return Statement(command, types, formats)


def asked(connection: psycopg.Connection[Any], sql: str, values: Mapping[str, Any] | Sequence[Any] | None) -> Asked:
    """A statement of the driver's with its values, as the driver would say them."""
    command, keys, formats = numbered(sql)
    if values is None or not keys:
        return Statement(command), ()
    transformer = Transformer(connection)
    dumped = transformer.dump_sequence([values[key] for key in keys], formats)
    return _statement(command, tuple(transformer.types or ()), tuple(transformer.formats or ())), dumped


def found(connection: psycopg.Connection[Any], result: PGresult) -> list[tuple[Any, ...]]:
    """The rows of an answer, as the driver would give them."""
    transformer = Transformer(connection)
    transformer.set_pgresult(result)
    return transformer.load_rows(0, result.ntuples, tuple)
