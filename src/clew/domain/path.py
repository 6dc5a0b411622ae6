"""Previous and path: what a conversation consists of after forks and rewinds.

Every version has one ``previous``: for ``history-rewound`` the version in the event, else the version before it (for a
fork's first event, the cut). The path at a version is the chain of its previous versions. A lineage has no gaps, so a
path is a few spans of versions: one more than the rewinds on it.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def spans(rewinds: Mapping[int, int], at: int) -> list[tuple[int, int]]:
    """The path at version ``at`` as spans ``(first, last)`` of versions, both included, in ascending order.

    ``rewinds`` maps the version of each ``history-rewound`` event of the lineage to its target.
    """
    jumps = sorted(rewinds)
    found: list[tuple[int, int]] = []
    last = at
    while last > 0:
        index = bisect_right(jumps, last) - 1
        if index < 0:
            found.append((1, last))
            break
        jump = jumps[index]
        found.append((jump, last))
        last = min(rewinds[jump], jump - 1)  # ends even with a target ahead, which no append makes
    found.reverse()
    return found
