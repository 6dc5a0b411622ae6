"""Bytes a turn: a message of 200 characters and an answer of 200, in files whose write-ahead logs are empty."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.figures import Budget, Figure, at_most
from benchmarks.measurement import Setting, size_on_disk, store_url
from benchmarks.words import Speaker
from clew import Conversations
from clew.domain.projection import Projection
from clew.projections import SHIPPED, Directory, Search

PEERS = {10: 3_277, 100: 1_024, 1_000: 799}
"""openai-agents' SQLiteSession, the leanest of the peers, whole file, measured once by the project."""

SETS: dict[str, tuple[tuple[Projection, ...], Budget | None]] = {
    "the log alone": ((), None),
    "log and directory": ((Directory(),), at_most(1_000)),
    "log, directory and search": ((Directory(), Search()), at_most(1_250)),
    "log and all that are shipped": (SHIPPED, None),
}


def run(setting: Setting) -> Iterator[Figure]:
    """Each length in files of its own: the log, and the read models beside it."""
    for name, (projections, budget) in SETS.items():
        empty = _filled(setting.fresh("empty"), projections, 0)
        for turns, peer in PEERS.items():
            whole = _filled(setting.fresh("turns"), projections, turns)
            measured = (whole - empty) / turns
            yield Figure(
                f"{name}, {turns:,} turns",
                measured,
                "B",
                baseline=peer,
                ratio=measured / peer,
                budget=budget if turns == 1_000 else None,
                note=f"whole files: {whole / turns:,.0f} B a turn",
            )


def _filled(path: Path, projections: Sequence[Projection], turns: int) -> int:
    """The bytes of a closed store with a thread of so many turns, or with none, and of its read models."""
    speaker = Speaker(turns)
    with Conversations.open(store_url(path), projections=projections) as conversations:
        if turns:
            thread = conversations.start_thread()
            for _ in range(turns):
                for message in speaker.turn():
                    thread.append(message)
        conversations.wait()
    tables = path.with_name(path.name + ".projections")
    return size_on_disk(path) + (size_on_disk(tables) if tables.exists() else 0)
