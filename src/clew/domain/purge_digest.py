"""The statement that a purge makes about the rows that it shredded: one digest, however many rows there are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from hashlib import sha256
from typing import NamedTuple

from clew.domain.events import ThreadPurged


class Statement(NamedTuple):
    """The number of rows, and the SHA-256, in hex, of their versions, digests and stubs."""

    rows: int
    digest: str


def statement(rows: Iterable[tuple[int, str, str]]) -> Statement:
    """The statement about shredded rows in the order of their versions.

    Each has its version, the digest of its bytes in hex, and its stub as text with a character for each byte.
    """
    hashed, count = sha256(), 0
    for version, digest, stub in rows:
        hashed.update(b"%d %b %d " % (version, digest.encode(), len(stub)) + stub.encode("latin-1", errors="replace"))
        count += 1
    return Statement(count, hashed.hexdigest())


def purged_rows(
    shredded: Mapping[int, tuple[str, str]], explained: AbstractSet[int], version: int, purged: ThreadPurged
) -> set[int] | None:
    """The versions of the rows that a purge at ``version`` shredded; None if its statement does not fit them.

    ``shredded`` has digest and stub of each shredded row of the stream, ``explained`` the rows that other events
    shredded.
    """
    rows = [each for each in sorted(shredded) if each < version and each not in explained]
    stated = statement((each, *shredded[each]) for each in rows)
    return set(rows) if stated == (purged.rows, purged.digest) else None
