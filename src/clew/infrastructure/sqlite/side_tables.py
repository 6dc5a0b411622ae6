"""The side tables of a SQLite store: blobs, leases and drafts, which are outside the chain."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import TYPE_CHECKING

from clew.infrastructure.sqlite.reads import BLOB, DRAFT, LEASE

if TYPE_CHECKING:
    from clew.infrastructure.append_plan import Plan
    from clew.infrastructure.recorder import Draft, Lease

_STREAM = "(SELECT id FROM stream WHERE name = ?)"
_PUT_BLOB = "INSERT OR IGNORE INTO blob (digest, kind, data) VALUES (?, ?, ?)"
_TAKE_LEASE = f"INSERT OR REPLACE INTO lease (stream, holder, until) VALUES ({_STREAM}, ?, ?)"  # noqa: S608 - of constants
_DROP_LEASE = f"DELETE FROM lease WHERE stream = {_STREAM}"  # noqa: S608 - of constants
_PUT_DRAFT = (
    "INSERT OR REPLACE INTO draft (stream, run, margin, data) "  # noqa: S608 - of constants
    f"VALUES ({_STREAM}, ?, zeroblob((SELECT page_size FROM pragma_page_size)), ?)"
)
_DROP_DRAFT = f"DELETE FROM draft WHERE stream = {_STREAM}"  # noqa: S608 - of constants


def put(connection: sqlite3.Connection, made: Plan) -> None:
    """Write the side tables of an append in its transaction, after its streams."""
    for blob in made.append.blobs:
        connection.execute(_PUT_BLOB, blob)
    for name, lease in made.leases:
        if lease is None:
            connection.execute(_DROP_LEASE, (name,))
        else:
            connection.execute(_TAKE_LEASE, lease)
    for draft in made.append.drafts:
        if draft.data is None:
            connection.execute(_DROP_DRAFT, (draft.stream,))
        else:
            connection.execute(_PUT_DRAFT, draft)


def size(made: Plan) -> int:
    """About how many bytes they add to the write-ahead log."""
    sizes = [len(blob.data) for blob in made.append.blobs]
    return sum(sizes) + sum(len(draft.data or b"") for draft in made.append.drafts)


def is_stored(connection: sqlite3.Connection, plans: Sequence[Plan]) -> bool:
    """Whether the tables hold what a transaction of these plans writes: for a lease or a draft the last value."""
    leases: dict[str, Lease | None] = {}
    drafts: dict[str, Draft] = {}
    for made in plans:
        leases.update(made.leases)
        drafts.update((draft.stream, draft) for draft in made.append.drafts)
    return (
        all(connection.execute(BLOB, (blob.digest,)).fetchone() for made in plans for blob in made.append.blobs)
        and all(
            connection.execute(LEASE, (name,)).fetchone() == (None if lease is None else lease[1:])
            for name, lease in leases.items()
        )
        and all(
            connection.execute(DRAFT, (name,)).fetchone() == (None if draft.data is None else draft[1:])
            for name, draft in drafts.items()
        )
    )
