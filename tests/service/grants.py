"""An application's function that says who may read what, for tests."""

from __future__ import annotations


class Grants:
    """An application's function: each may read these threads, and "operator" all; ``of_none`` is for everybody."""

    def __init__(self, **threads: set[str]) -> None:
        self.threads = threads
        self.of_none: set[str] = set()
        self.asked: list[tuple[str | None, str, str | None]] = []

    def __call__(self, actor: str | None, action: str, thread: str | None) -> bool:
        self.asked.append((actor, action, thread))
        theirs = action in self.of_none if thread is None else thread in self.threads.get(actor or "", ())
        return actor == "operator" or theirs
