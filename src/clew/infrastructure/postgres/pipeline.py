"""Statements that are sent to the server together, directly through libpq: one round trip for all of them.

The driver's cursor costs more than the rest of an append. The driver's own pipeline mode reports of a failed statement
only that later ones were not executed, and ends with a flush request, for which a pooler assigns another session.

Elsewhere a statement names its parameters as the driver does, ``%(name)b``; `bind` numbers them.
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

MAX_PREPARED = 400
"""Prepared statements per connection; later ones are not prepared."""

_INT8 = Struct(">q")
_ARRAY = Struct(">iiiii")
_LENGTH = Struct(">i")
_NULL = _LENGTH.pack(-1)

_SUCCESS = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)

_PARAMETER = re.compile(r"%(?:\((\w+)\))?([bs])|%%")

_names = count()
"""For the names of prepared statements, so that no two are the same."""


@dataclass(frozen=True, slots=True, eq=False)
class Statement:
    """A statement with parameters ``$1``, ``$2``, … of these types; without types PostgreSQL infers them.

    A statement with parameters is prepared.
    """

    command: bytes
    types: Sequence[int] = ()
    formats: Sequence[int] = ()
    """Of the parameters; binary by default."""


Values: TypeAlias = Sequence[Buffer | None]

BoundStatement: TypeAlias = tuple[Statement, Values]


# Values and results in PostgreSQL's binary format

int8 = _INT8.pack
"""A number as a parameter. Bytes are passed as they are."""


def int8s(numbers: Iterable[int | None]) -> bytes:
    """Numbers as an array parameter."""
    return _array(INT8_TYPE, [None if number is None else int8(number) for number in numbers])


def byteas(values: Iterable[bytes | None]) -> bytes:
    """Values of bytes as an array parameter."""
    return _array(BYTEA_TYPE, list(values))


def _array(type_: int, items: Sequence[bytes | None]) -> bytes:
    """One dimension that may contain nulls; then the type, the length and the first index; then each item."""
    parts = [_ARRAY.pack(1, 1, type_, len(items), 1)]
    for item in items:
        parts += (_NULL,) if item is None else (_LENGTH.pack(len(item)), item)
    return b"".join(parts)


def read_numbers(result: PGresult) -> list[int]:
    """The numbers in a result with one column, without nulls."""
    values = map(result.get_value, range(result.ntuples), repeat(0))
    return [_INT8.unpack(value)[0] for value in values if value is not None]


def read_rows(result: PGresult) -> list[tuple[Any, ...]]:
    """The rows of a result: int8 columns as numbers, every other type as bytes."""
    are_numbers = [result.ftype(column) == INT8_TYPE for column in range(result.nfields)]
    return [
        tuple([_value(result.get_value(row, column), is_number) for column, is_number in enumerate(are_numbers)])
        for row in range(result.ntuples)
    ]


def _value(value: bytes | None, is_number: bool) -> int | bytes | None:  # noqa: FBT001 - of a column
    return int(_INT8.unpack(value)[0]) if is_number and value is not None else value


# Execution


def execute(
    connection: psycopg.Connection[Any],
    prepared: dict[Statement, bytes],
    *bound: BoundStatement,
    is_transaction: bool = False,
) -> list[PGresult]:
    """Execute statements in one round trip, and return all results. Statements after a failed one are not executed.

    ``prepared`` has the names of the statements that this connection has prepared; new ones are added. If the session
    has lost them, statements that are a transaction together (``is_transaction``) are sent again. Raises for the first
    failed statement what the driver's cursor would raise.
    """
    pgconn = connection.pgconn
    steps: list[tuple[Statement, Values | None]] = []
    """Without values a step prepares the statement."""
    new: dict[Statement, bytes] = {}
    limit = 0 if connection.prepare_threshold is None else MAX_PREPARED
    for statement, values in bound:
        if values and statement not in prepared and statement not in new and len(prepared) + len(new) < limit:
            new[statement] = b"clew_%d" % next(_names)
            steps.append((statement, None))
        steps.append((statement, values))
    replies = _send(pgconn, {**prepared, **new} if new else prepared, steps)
    results: list[PGresult] = []
    for (statement, given), reply in zip(steps, replies, strict=False):
        if reply.status not in _SUCCESS:
            error = psycopg.errors.error_from_result(reply)
            if isinstance(error, psycopg.errors.InvalidSqlStatementName):
                prepared.clear()  # the session forgot its prepared statements: prepare them again next time
                if is_transaction:
                    return execute(connection, prepared, *bound)
            raise error
        if given is None:
            prepared[statement] = new[statement]
        else:
            results.append(reply)
    if len(replies) < len(steps):
        raise psycopg.OperationalError(pgconn.get_error_message())
    return results


def _send(
    pgconn: PGconn, names: Mapping[Statement, bytes], steps: Sequence[tuple[Statement, Values | None]]
) -> list[PGresult]:
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
        return _receive(pgconn, pipelined=pipelined)
    finally:
        # Not on a broken connection, nor after an interruption that left replies unread.
        if pgconn.status == ConnStatus.OK and pgconn.transaction_status != TransactionStatus.ACTIVE:
            pgconn.exit_pipeline_mode()


@cache
def _binary(count: int) -> Sequence[int]:
    return [Format.BINARY] * count


def _receive(pgconn: PGconn, *, pipelined: bool) -> list[PGresult]:
    """The server's replies. Waits here and not in libpq, so that Ctrl-C interrupts the wait."""
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN | select.POLLOUT)
    while pgconn.flush():
        poll.poll()
        pgconn.consume_input()
    poll.modify(pgconn.socket, select.POLLIN)
    replies: list[PGresult] = []
    ends = 0
    while ends <= pipelined:
        while pgconn.is_busy():
            poll.poll()
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:
            ends += 1  # one ends a statement, two in a row end everything
        elif result.status == ExecStatus.PIPELINE_SYNC:
            break
        else:
            ends = 0
            replies.append(result)
    return replies


# The driver's form of statements


class NumberedStatement(NamedTuple):
    """A statement with numbered parameters."""

    command: bytes
    keys: Sequence[Any]
    """The names of the parameters in order, or numbers from 0."""
    formats: Sequence[PyFormat]


@lru_cache(maxsize=1_024)
def number_parameters(sql: str) -> NumberedStatement:
    """Number the parameters of the driver's form: ``%(name)b`` or ``%b`` for binary, ``s`` for any format."""
    formats: dict[Any, PyFormat] = {}

    def number(parameter: re.Match[str]) -> str:
        name, form = parameter.groups()
        if form is None:
            return "%"
        key = len(formats) if name is None else name
        formats.setdefault(key, PyFormat.BINARY if form == "b" else PyFormat.AUTO)
        return f"${[*formats].index(key) + 1}"

    command = _PARAMETER.sub(number, sql).encode()
    return NumberedStatement(command, [*formats], [*formats.values()])


@lru_cache(maxsize=1_024)
def _statement(command: bytes, types: tuple[int, ...], formats: tuple[int, ...]) -> Statement:
    return Statement(command, types, formats)


def bind(
    connection: psycopg.Connection[Any], sql: str, values: Mapping[str, Any] | Sequence[Any] | None
) -> BoundStatement:
    """A statement in the driver's form with its values, converted as the driver does."""
    command, keys, formats = number_parameters(sql)
    if values is None or not keys:
        return Statement(command), ()
    transformer = Transformer(connection)
    dumped = transformer.dump_sequence([values[key] for key in keys], formats)
    return _statement(command, tuple(transformer.types or ()), tuple(transformer.formats or ())), dumped


def load_rows(connection: psycopg.Connection[Any], result: PGresult) -> list[tuple[Any, ...]]:
    """The rows of a result, converted as the driver does."""
    transformer = Transformer(connection)
    transformer.set_pgresult(result)
    return transformer.load_rows(0, result.ntuples, tuple)
