"""Contributions: what context providers add to the requests of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clew.domain.context.events import ContextProvided
from clew.domain.history import HistoryMessage
from clew.domain.messages import Message
from clew.domain.models.client import ToolSchema

if TYPE_CHECKING:
    from clew.domain.events import Event


@dataclass(frozen=True, slots=True)
class Contributions:
    """What providers gave to a run, in order; ``tools`` are the schemas of the tools that it names by digest."""

    provided: tuple[ContextProvided, ...] = ()
    tools: tuple[ToolSchema, ...] = ()

    @property
    def digests(self) -> tuple[str, ...]:
        """The digests of all tools, in their order."""
        return tuple(digest for each in self.provided for digest in each.tools)

    def instructions(self, own: str | None, *, with_messages: bool) -> str | None:
        """The agent's own instructions and those of providers, with a blank line between them.

        ``with_messages`` adds the providers' messages: a service that holds the history would keep them as messages.
        """
        if not self.provided:
            return own
        parts = [own]
        for each in self.provided:
            parts.append(each.instructions)
            if with_messages:
                parts += [message.text for message in each.messages]
        return "\n\n".join(part for part in parts if part) or own

    def messages(self, view: Sequence[tuple[int, Message]]) -> tuple[Message, ...]:
        """A view, as versions and messages, with the providers' messages inserted."""
        if not self.provided:
            return tuple([message for _, message in view])
        found: list[tuple[int, Message]] = list(view)
        for each in self.provided:
            if each.messages:
                place = next(
                    (n for n, (version, _) in enumerate(found) if each.before and version >= each.before), len(found)
                )
                while place < len(found) and found[place][1].results:  # results stay with their calls
                    place += 1
                found[place:place] = [(0, message) for message in each.messages]
        return tuple(message for _, message in found)


NO_CONTRIBUTIONS = Contributions()


def with_newest(provided: tuple[ContextProvided, ...], newest: ContextProvided) -> tuple[ContextProvided, ...]:
    """What providers gave, with the newest contribution of one of them in place of its earlier one."""
    if any(each.provider == newest.provider for each in provided):
        return tuple(newest if each.provider == newest.provider else each for each in provided)
    return (*provided, newest)


def provided_to(run_id: str, events: Iterable[Event]) -> tuple[ContextProvided, ...]:
    """What providers gave to a run, from the events of its thread."""
    found: tuple[ContextProvided, ...] = ()
    for event in events:
        if event.run_id == run_id and isinstance(event.data, ContextProvided):
            found = with_newest(found, event.data)
    return found


def new_messages(history: Sequence[HistoryMessage]) -> list[HistoryMessage]:
    """The messages since the last answer."""
    for place in range(len(history), 0, -1):
        if history[place - 1].role == "assistant":
            return list(history[place:])
    return list(history)
