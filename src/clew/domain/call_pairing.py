"""The model view: the messages that are sent to a model. Every call in it is followed by its result.

Providers refuse a call without its result, and a result without its call. Crashes, forks, rewinds and redactions leave
both in real logs. The log does not change; the view repairs them and lists the repairs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Literal, TypeAlias

from clew.domain.messages import Content, FunctionCall, FunctionResult, Message, Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clew.domain.history import HistoryMessage

NO_RESULT = "No result was recorded for this call."
"""The result that is sent to a model for a call without a result on the path."""

RepairReason: TypeAlias = Literal["result-missing", "result-moved", "result-without-call", "redacted"]


@dataclass(frozen=True, slots=True)
class Repair:
    """A difference between a history and its view: its version, its reason and its call."""

    version: int
    reason: RepairReason
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class ModelView:
    """The messages that a model receives, and the repairs.

    ``versions`` has the version of each message; an added result has the version of its call.
    """

    messages: tuple[Message, ...]
    repairs: tuple[Repair, ...]
    versions: tuple[int, ...] = field(default=(), compare=False)


@dataclass(slots=True)
class _Call:
    """A call, its number in its message, and its result if there is one."""

    version: int
    number: int
    call: FunctionCall
    result: FunctionResult | None = None
    result_message: Message | None = None
    result_version: int = 0


class _Pairing:
    """Matches results with calls, message by message."""

    def __init__(self) -> None:
        self.calls: dict[int, list[_Call]] = {}
        self.repairs: list[Repair] = []
        self._open: dict[str, list[list[_Call]]] = {}
        self._caller: int | None = None
        self._answered = -1

    def add(self, version: int, message: Message | None) -> bool:
        """Add the next message, None for a redacted one. Returns whether it may contain calls or results."""
        if message is None:
            self.repairs.append(Repair(version, "redacted"))
            return False
        contents = message.contents
        if len(contents) == 1 and isinstance(contents[0], Text):  # most messages
            self._caller = None
            return False
        if not _holds_only_results(message):
            self._caller = None
        for content in contents:
            if isinstance(content, FunctionResult):
                self._answer(version, message, content)
            elif isinstance(content, FunctionCall):
                self._ask(version, content)
        if version in self.calls:
            self._caller, self._answered = version, -1
        return True

    def _ask(self, version: int, call: FunctionCall) -> None:
        calls = self.calls.setdefault(version, [])
        pending = _Call(version, len(calls), call)
        calls.append(pending)
        waiting = self._open.setdefault(call.call_id, [])
        if waiting and waiting[-1][0].version == version:
            waiting[-1].append(pending)
        else:
            waiting.append([pending])

    def _answer(self, version: int, message: Message, result: FunctionResult) -> None:
        waiting = self._open.get(result.call_id)
        if not waiting:
            self.repairs.append(Repair(version, "result-without-call", result.call_id))
            return
        call = waiting[-1].pop(0)
        if not waiting[-1]:
            waiting.pop()
        call.result, call.result_message, call.result_version = result, message, version
        if call.version == self._caller and call.number > self._answered:
            self._answered = call.number
        else:
            self.repairs.append(Repair(version, "result-moved", result.call_id))


def model_view(history: Iterable[HistoryMessage]) -> ModelView:
    """The view of a history.

    Results follow the message with their calls, in the order of the calls. A call without a result gets NO_RESULT.
    Results without a call and redacted messages are left out. Call ids repeat within a conversation: a result belongs
    to the first open call with its id in the newest message that has one. Without repairs the view equals the history.
    """
    whole = [*history]
    if (plain := _plain(whole)) is not None:
        return ModelView(plain, (), tuple(map(attrgetter("version"), whole)))
    messages = [(each.version, each.message) for each in whole]
    pairing = _Pairing()
    paired = [pairing.add(version, message) for version, message in messages]
    view: list[tuple[int, Message]] = []
    for (version, message), has_parts in zip(messages, paired, strict=True):
        if message is None:
            continue
        if not has_parts:
            view.append((version, message))
            continue
        rest = tuple(content for content in message.contents if not isinstance(content, FunctionResult))
        if rest or not message.contents:
            view.append((version, _with_contents(message, rest)))
        view += _results(pairing, version)
    repairs = tuple(sorted(pairing.repairs, key=attrgetter("version")))
    return ModelView(tuple([message for _, message in view]), repairs, tuple([version for version, _ in view]))


def _plain(history: Sequence[HistoryMessage]) -> tuple[Message, ...] | None:
    """The messages, if every one is a single text. Then there are no calls to pair with results."""
    messages: list[Message] = []
    for each in history:
        message = each.message
        if message is None or len(message.contents) != 1 or not isinstance(message.contents[0], Text):
            return None
        messages.append(message)
    return tuple(messages)


def _results(pairing: _Pairing, caller: int) -> list[tuple[int, Message]]:
    """The results after a message with calls. Parallel results that arrived in one message stay in one message."""
    groups: list[tuple[int, Message, tuple[FunctionResult, ...]]] = []
    last = 0
    for call in pairing.calls.get(caller, ()):
        if call.result is None or call.result_message is None:
            pairing.repairs.append(Repair(caller, "result-missing", call.call.call_id))
            added = Message.tool(call.call.call_id, NO_RESULT, name=call.call.name)
            groups.append((caller, added, added.results))
        elif call.result_version == last:
            groups[-1] = (last, call.result_message, (*groups[-1][2], call.result))
        else:
            groups.append((call.result_version, call.result_message, (call.result,)))
        last = call.result_version
    return [(version, _with_contents(message, results)) for version, message, results in groups]


def _with_contents(message: Message, contents: tuple[Content, ...]) -> Message:
    """The message with some of its contents.

    The source describes the whole message, so a part has none. Results from among other contents get the role ``tool``.
    """
    if contents == message.contents:
        return message
    changes: dict[str, object] = {"contents": contents, "source": {}, "native": None}
    if not _holds_only_results(message) and isinstance(contents[0], FunctionResult):
        changes["role"] = "tool"
    return message.model_copy(update=changes)


def _holds_only_results(message: Message) -> bool:
    for content in message.contents:
        if not isinstance(content, FunctionResult):
            return False
    return bool(message.contents)
