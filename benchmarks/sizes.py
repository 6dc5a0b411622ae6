"""Bytes a turn: a message of 200 characters and an answer of 200, in a file whose write-ahead log is empty."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.figures import Figure, at_most
from benchmarks.measuring import Setting, size_on_disk, store_url
from benchmarks.words import Speaker
from clew import Conversations

PEERS = {10: 3_277, 100: 1_024, 1_000: 799}
"""openai-agents' SQLiteSession, the leanest of the peers, whole file, measured once by the project."""


def run(setting: Setting) -> Iterator[Figure]:
    """Each length in a file of its own; the log only, for there is no directory yet."""
    empty = setting.fresh("empty")
    with Conversations.open(store_url(empty)):
        pass
    for turns, peer in PEERS.items():
        path = setting.fresh("turns")
        speaker = Speaker(turns)
        with Conversations.open(store_url(path)) as conversations:
            thread = conversations.start_thread()
            for _ in range(turns):
                question, answer = speaker.turn()
                thread.append(question)
                thread.append(answer)
        whole = size_on_disk(path)
        measured = (whole - size_on_disk(empty)) / turns
        yield Figure(
            f"{turns:,} turns",
            measured,
            "B",
            baseline=peer,
            ratio=measured / peer,
            budget=at_most(1_000) if turns == 1_000 else None,
            note=f"the whole file: {whole / turns:,.0f} B a turn",
        )
