"""Many rows of events at once: COPY in PostgreSQL's binary format, inside a transaction that is under way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct

from clew.infrastructure.append_plan import PlannedRow
from clew.infrastructure.postgres.encoding import stream_id, tenant_id
from clew.infrastructure.postgres.session import Session
from clew.infrastructure.postgres.sql_files import statements

LEAST_ROWS = 50
"""As many rows are copied sooner than inserted, by measurement: COPY takes round trips of its own."""

ROWS_AT_A_TIME = 500

_SQL = statements("appends.sql")

# The format is in PostgreSQL's manual, under COPY: a signature, flags and the length of nothing more; then each row as
# the number of its fields and each field after its length, all big-endian; then -1 for a number of fields.
_BEGINNING = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
_END = b"\xff\xff"
_NUMBERS = Struct(">hiqiqiqiqi")
_LENGTH = Struct(">i")
_NOTHING = _LENGTH.pack(-1)
_FIELDS = 8


def copy_rows(session: Session, rows: Sequence[PlannedRow], digests: Sequence[bytes | None], first: int) -> None:
    """Write rows from the position ``first`` of a transaction on. Raises what an INSERT of them would."""
    with session.connection.cursor() as cursor, cursor.copy(_SQL["copy"].encode()) as copy:
        for part in _parts(rows, digests, first):
            copy.write(part)


def _parts(rows: Sequence[PlannedRow], digests: Sequence[bytes | None], first: int) -> Iterator[bytes]:
    """The rows as COPY takes them, in the order in which all writers write: of streams and versions."""
    ids = {name: (tenant_id(name), stream_id(name)) for name in {row[0] for row in rows}}
    ordered = sorted(range(len(rows)), key=lambda number: (ids[rows[number][0]][1], rows[number][1]))
    yield _BEGINNING
    for begin in range(0, len(ordered), ROWS_AT_A_TIME):
        part: list[bytes] = []
        for number in ordered[begin : begin + ROWS_AT_A_TIME]:
            name, version, type_, state, hashed = rows[number]
            named, digest = type_.encode(), digests[number] if digests else None
            tenant, stream = ids[name]
            part += (
                _NUMBERS.pack(_FIELDS, 8, first | number, 8, tenant, 8, stream, 8, version, len(named)),
                named,
                _LENGTH.pack(len(state)),
                state,
                _LENGTH.pack(len(hashed)),
                hashed,
                _NOTHING if digest is None else _LENGTH.pack(len(digest)) + digest,
            )
        yield b"".join(part)
    yield _END
