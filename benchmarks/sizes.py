"""Bytes per turn: a message and an answer of 200 characters each, in files with empty write-ahead logs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.measurement import Setting, size_on_disk, store_url
from benchmarks.report import Budget, Figure, at_most
from benchmarks.synthetic_data import MessageGenerator
from clew import Conversations
from clew.domain.projection import Projection
from clew.projections import SHIPPED, Directory, Search

PEERS = {10: 3_277, 100: 1_024, 1_000: 799}
"""openai-agents' SQLiteSession, the smallest of the peers: whole file, measured once by the project."""

SETS: dict[str, tuple[tuple[Projection, ...], Budget | None]] = {
    "the log alone": ((), None),
    "log and directory": ((Directory(),), at_most(799)),
    "log, directory and search": ((Directory(), Search()), None),
    "log and all read models": (SHIPPED, at_most(1_250)),
}


def run(setting: Setting) -> Iterator[Figure]:
    """Bytes of the log and of its read models, in new files for each length."""
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
                note=f"whole files: {whole / turns:,.0f} B per turn",
            )


def _filled(path: Path, projections: Sequence[Projection], turns: int) -> int:
    """The bytes of a closed store with a thread of that many turns (or without one), and of its read models."""
    generator = MessageGenerator(turns)
    with Conversations.open(store_url(path), projections=projections) as conversations:
        if turns:
            thread = conversations.start_thread()
            for _ in range(turns):
                for message in generator.turn():
                    thread.append(message)
        conversations.wait()
    tables = path.with_name(path.name + ".projections")
    return size_on_disk(path) + (size_on_disk(tables) if tables.exists() else 0)
