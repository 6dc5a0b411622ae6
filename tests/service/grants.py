"""An application's authorization function, for tests."""

from __future__ import annotations


class Grants:
    """Grants each actor some threads, and "operator" all of them; all actors may do the ``open_actions``."""

    def __init__(self, **threads: set[str]) -> None:
        self.threads = threads
        self.open_actions: set[str] = set()
        self.asked: list[tuple[str | None, str, str | None]] = []

    def __call__(self, actor: str | None, action: str, thread: str | None) -> bool:
        self.asked.append((actor, action, thread))
        granted = action in self.open_actions if thread is None else thread in self.threads.get(actor or "", ())
        return actor == "operator" or granted
