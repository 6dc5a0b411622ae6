"""The model view: the messages that a model is sent, with every call followed by its result.

Providers refuse a call without its result and a result without its call. Real logs hold both, after crashes, forks,
rewinds and redactions. The log keeps what was; the view is repaired, and says where.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from clew.domain.messages import FunctionCall, FunctionResult, Message

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clew.domain.history import HistoryMessage

NO_RESULT = "No result was recorded for this call."
"""What a model is told of a call whose result is not on the path."""

RepairReason: TypeAlias = Literal["result-missing", "result-moved", "result-without-call", "redacted"]


@dataclass(frozen=True, slots=True)
class Repair:
    """One difference between a history and its view: at which version, why, and of which call."""

    version: int
    reason: RepairReason
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class ModelView:
    """What a model is sent, and what was repaired to make it so."""

    messages: tuple[Message, ...]
    repairs: tuple[Repair, ...]


@dataclass(slots=True)
class _Asked:
    """A call, and its result as far as it was found."""

    version: int
    call: FunctionCall
    result: FunctionResult | None = None
    said: HistoryMessage | None = None


class _Pairing:
    """Gives each result its call while a history is walked."""

    def __init__(self) -> None:
        self.asked: dict[int, list[_Asked]] = {}
        self.in_place: set[int] = set()
        self.repairs: list[Repair] = []
        self._open: dict[str, list[list[_Asked]]] = {}
        self._caller: int | None = None

    def walk(self, said: HistoryMessage) -> None:
        """Take in the next message."""
        message = said.message
        if message is None:
            self.repairs.append(Repair(said.version, "redacted"))
            self._caller = None
            return
        for result in message.results:
            self._answer(said, result)
        if message.calls:
            self._ask(said, message.calls)
        elif not message.results:
            self._caller = None

    def _ask(self, said: HistoryMessage, calls: tuple[FunctionCall, ...]) -> None:
        self._caller = said.version
        asked = self.asked[said.version] = [_Asked(said.version, call) for call in calls]
        for call_id in dict.fromkeys(call.call_id for call in calls):
            same = [each for each in asked if each.call.call_id == call_id]
            self._open.setdefault(call_id, []).append(same)

    def _answer(self, said: HistoryMessage, result: FunctionResult) -> None:
        waiting = self._open.get(result.call_id)
        if not waiting:
            self.repairs.append(Repair(said.version, "result-without-call", result.call_id))
            return
        asked = waiting[-1].pop(0)
        if not waiting[-1]:
            waiting.pop()
        asked.result, asked.said = result, said
        if asked.version == self._caller:
            self.in_place.add(said.version)


def model_view(history: Iterable[HistoryMessage]) -> ModelView:
    """The view of a history.

    Results come right after the message with their calls, in the order of the calls; a call without a result gets one
    that says so; a result without its call and a redacted message are left out. Call ids recur within one conversation:
    a result belongs to the first open call of its id in the newest message that has one.
    """
    messages = list(history)
    pairing = _Pairing()
    for said in messages:
        pairing.walk(said)
    view: list[Message] = []
    for said in messages:
        if said.message is None:
            continue
        rest = said.message if not said.message.results else _without_results(said.message)
        if rest is not None:
            view.append(rest)
        view += _results(pairing, said.version)
    return ModelView(tuple(view), tuple(sorted(pairing.repairs, key=lambda repair: repair.version)))


def _results(pairing: _Pairing, caller: int) -> list[Message]:
    found: list[Message] = []
    last: HistoryMessage | None = None
    for asked in pairing.asked.get(caller, ()):
        if asked.result is None or asked.said is None or asked.said.message is None:
            pairing.repairs.append(Repair(caller, "result-missing", asked.call.call_id))
            found.append(Message.tool(asked.call.call_id, NO_RESULT, name=asked.call.name))
            last = None
            continue
        if asked.said.version not in pairing.in_place:
            pairing.repairs.append(Repair(asked.said.version, "result-moved", asked.call.call_id))
        if asked.said is last:  # parallel results that came as one message stay one
            previous = found.pop()
            found.append(previous.model_copy(update={"contents": (*previous.contents, asked.result)}))
        else:
            found.append(asked.said.message.model_copy(update={"contents": (asked.result,)}))
        last = asked.said
    return found


def _without_results(message: Message) -> Message | None:
    rest = tuple(content for content in message.contents if not isinstance(content, FunctionResult))
    return message.model_copy(update={"contents": rest}) if rest else None
