"""One statement and its reply straight through libpq: the driver's cursor costs more than the rest of an append."""

from __future__ import annotations

import re
import select
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import count
from struct import Struct
from typing import Any

import psycopg
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGconn, PGresult

_PLACE = re.compile(r"%\((\w+)\)b")
_INT8 = Struct(">q")
_INT8_TYPE, _BYTEA_TYPE = 20, 17
_DONE = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)

_numbers = count()
"""Of prepared statements: none has the name of one before it."""


def number(
    connection: psycopg.Connection[Any], known: dict[str, bytes], sql: str, parameters: Mapping[str, int | bytes]
) -> int | None:
    """The lowest number that a statement answers, None when it has no row; raises what the driver's cursor would.

    ``known`` are the statements that this connection has prepared, by their text.
    """
    pgconn = connection.pgconn
    command, names = _positional(sql)
    given = [parameters[name] for name in names]
    values = [_INT8.pack(each) if isinstance(each, int) else each for each in given]
    formats = [Format.BINARY] * len(values)
    name = known.get(sql)
    if name is not None:
        pgconn.send_query_prepared(name, values, formats, Format.BINARY)
        try:
            return _smallest(_reply(pgconn))
        except psycopg.errors.InvalidSqlStatementName:
            known.clear()  # the driver has the server forget all that is prepared when it rolls back
    types = [_INT8_TYPE if isinstance(each, int) else _BYTEA_TYPE for each in given]
    if connection.prepare_threshold is None:
        pgconn.send_query_params(command, values, types, formats, Format.BINARY)
        return _smallest(_reply(pgconn))
    name = b"clew_%d" % next(_numbers)
    pgconn.send_prepare(name, command, types)
    _reply(pgconn)
    known[sql] = name
    pgconn.send_query_prepared(name, values, formats, Format.BINARY)
    return _smallest(_reply(pgconn))


@cache
def _positional(sql: str) -> tuple[bytes, Sequence[str]]:
    """A statement with numbers for names, and the names in their order."""
    names = list(dict.fromkeys(_PLACE.findall(sql)))
    return _PLACE.sub(lambda found: f"${names.index(found[1]) + 1}", sql).encode(), names


def _reply(pgconn: PGconn) -> PGresult:
    """What the server answers. It is waited for here and not in libpq, so that Ctrl-C is seen."""
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN | select.POLLOUT)
    while pgconn.flush():
        poll.poll()
        pgconn.consume_input()
    poll.modify(pgconn.socket, select.POLLIN)
    last: PGresult | None = None
    while True:
        while pgconn.is_busy():
            poll.poll()
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:
            break
        if last is None or last.status in _DONE:
            last = result
    if last is None or last.status not in _DONE:
        raise _error(pgconn, last)
    return last


def _error(pgconn: PGconn, result: PGresult | None) -> psycopg.Error:
    if result is None:
        return psycopg.OperationalError(pgconn.get_error_message())
    return psycopg.errors.error_from_result(result)


def _smallest(result: PGresult) -> int | None:
    found = [result.get_value(row, 0) for row in range(result.ntuples)]
    return min((_INT8.unpack(each)[0] for each in found if each is not None), default=None)
