"""One statement and its reply straight through libpq: the driver's cursor costs more than the rest of an append."""

from __future__ import annotations

import select
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, repeat
from struct import Struct
from typing import Any

import psycopg
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGconn, PGresult

INT8_TYPE, BYTEA_TYPE = 20, 17

_INT8 = Struct(">q")

int8 = _INT8.pack
"""A number as PostgreSQL takes it in binary; bytes are what they are."""

_DONE = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)

_names = count()
"""Of prepared statements: none has the name of one before it."""


@dataclass(frozen=True, slots=True, eq=False)
class Statement:
    """A statement whose parameters are ``$1`` and so on, of these types, and that answers numbers."""

    command: bytes
    types: Sequence[int]


Values = Sequence[bytes | None]


def numbers(
    connection: psycopg.Connection[Any], known: dict[Statement, bytes], *asked: tuple[Statement, Values]
) -> list[int]:
    """What the last of these statements answers, which are one transaction; raises what the driver's cursor would.

    ``known`` are those that this connection has prepared.
    """
    pgconn = connection.pgconn
    prepares = connection.prepare_threshold is not None
    try:
        return _numbers(_sent(pgconn, known if prepares else None, asked))
    except psycopg.errors.InvalidSqlStatementName:
        known.clear()  # the driver has the server forget all that is prepared when it rolls back
        return _numbers(_sent(pgconn, known, asked))


def _sent(pgconn: PGconn, known: dict[Statement, bytes] | None, asked: Sequence[tuple[Statement, Values]]) -> PGresult:
    if known is not None:
        for statement, _ in asked:
            if statement not in known:
                name = b"clew_%d" % next(_names)
                pgconn.send_prepare(name, statement.command, statement.types)
                _checked(pgconn, _reply(pgconn))
                known[statement] = name
    pipelined = len(asked) > 1
    if pipelined:
        pgconn.enter_pipeline_mode()
    for statement, values in asked:
        formats = [Format.BINARY] * len(values)
        if known is None:
            pgconn.send_query_params(statement.command, values, statement.types, formats, Format.BINARY)
        else:
            pgconn.send_query_prepared(known[statement], values, formats, Format.BINARY)
    if pipelined:
        pgconn.pipeline_sync()
    reply = _reply(pgconn, pipelined=pipelined)
    if pipelined:
        pgconn.exit_pipeline_mode()
    return _checked(pgconn, reply)


def _reply(pgconn: PGconn, *, pipelined: bool = False) -> PGresult | None:
    """What the server answers last, or its first error.

    It is waited for here and not in libpq, so that Ctrl-C is seen.
    """
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN | select.POLLOUT)
    while pgconn.flush():
        poll.poll()
        pgconn.consume_input()
    poll.modify(pgconn.socket, select.POLLIN)
    last: PGresult | None = None
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
            if last is None or last.status in _DONE:
                last = result
    return last


def _checked(pgconn: PGconn, result: PGresult | None) -> PGresult:
    if result is None:
        raise psycopg.OperationalError(pgconn.get_error_message())
    if result.status not in _DONE:
        raise psycopg.errors.error_from_result(result)
    return result


def _numbers(result: PGresult) -> list[int]:
    found = map(result.get_value, range(result.ntuples), repeat(0))
    return [_INT8.unpack(each)[0] for each in found if each is not None]
