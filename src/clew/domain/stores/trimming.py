"""How a store that bounds itself lets go of the oldest messages: a call goes together with its results."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from clew.domain.messages import FunctionCall, FunctionResult, Message


class _Groups:
    """The groups in a list that grows at its end and is cut at its front.

    A group begins with a message and holds all up to the last result of a call in it. A result without its call is in
    the group before it. ``first`` is the place of the first message that is left.
    """

    def __init__(self) -> None:
        self.first = 0
        self._starts: deque[int] = deque()
        self._open: dict[str, list[list[int]]] = {}

    def add(self, place: int, message: Message) -> None:
        """Take in the next message."""
        self._starts.append(place)
        for content in message.contents:
            if isinstance(content, FunctionCall):
                self._ask(place, content.call_id)
            elif isinstance(content, FunctionResult):
                self._answer(place, content.call_id)

    def cut(self, end: int, most: int) -> None:
        """Let go of groups at the front until there are at most so many messages before ``end``."""
        while end - self.first > most:
            self._starts.popleft()
            self.first = self._starts[0] if self._starts else end

    def _ask(self, place: int, call_id: str) -> None:
        waiting = self._open.setdefault(call_id, [])
        if waiting and waiting[-1][0] == place:
            waiting[-1][1] += 1
        else:
            waiting.append([place, 1])

    def _answer(self, place: int, call_id: str) -> None:
        """Pair as the model view does: with the newest message that has an open call of that id."""
        waiting = self._open.get(call_id)
        if not waiting or waiting[-1][0] < self.first:
            self._orphan(place)
            return
        caller = waiting[-1]
        caller[1] -= 1
        if not caller[1]:
            waiting.pop()
        while self._starts[-1] > caller[0]:
            self._starts.pop()

    def _orphan(self, place: int) -> None:
        if self._starts and self._starts[-1] == place:
            self._starts.pop()
        if not self._starts:
            self.first = place + 1


def kept_from(messages: Sequence[Message], most: int | None) -> int:
    """The place of the first message to keep when a store holds at most so many; with None all are kept.

    Messages are looked at one after the other, as they come to a store: so it does not matter how many come at once, or
    whether what is left is cut again. What is left never begins with a result. A group larger than ``most`` goes whole.
    """
    if most is None:
        return 0
    groups = _Groups()
    for place, message in enumerate(messages):
        groups.add(place, message)
        groups.cut(place + 1, most)
    return groups.first
