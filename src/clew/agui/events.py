"""Updates of a run as events of AG-UI."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping

from ag_ui.core import (
    BaseEvent,
    CustomEvent,
    ReasoningEndEvent,
    ReasoningMessageContentEvent,
    ReasoningMessageEndEvent,
    ReasoningMessageStartEvent,
    ReasoningStartEvent,
    RunFinishedEvent,
    RunStartedEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
)
from ag_ui.core.version import PROTOCOL_VERSION

from clew.agents.response import AgentUpdate
from clew.agui.messages import (
    Pairing,
    call_id,
    message_id,
    reasoning_id,
    reasoning_text,
    result_content,
    result_id,
    result_of,
)
from clew.domain.history import HistoryMessage


async def agui_events(updates: AsyncIterable[AgentUpdate], *, thread_id: str, run_id: str) -> AsyncIterator[BaseEvent]:
    """The updates of a run as events of AG-UI, from RUN_STARTED to RUN_FINISHED.

    ``updates`` are those of ``agent.run(…, stream=True)``, ``chat.run(…, stream=True)`` or ``thread.follow(run_id)``.
    The ids of messages begin with ``run_id``. An error of the run is raised: send a RUN_ERROR then.
    """
    yield RunStartedEvent(thread_id=thread_id, run_id=run_id, protocol_version=PROTOCOL_VERSION)
    mappers: dict[str | None, EventMapper] = {}
    try:
        async for update in updates:
            speaker = update.author
            if speaker not in mappers:  # several participants of a chat can speak at the same time
                mappers[speaker] = EventMapper(run_id if speaker is None else f"{run_id}.{speaker}")
            for event in mappers[speaker].events(update):
                yield event
    finally:
        open_ = [event for mapper in mappers.values() for event in mapper.close()]
    for event in open_:
        yield event
    yield RunFinishedEvent(thread_id=thread_id, run_id=run_id)


class EventMapper:
    """Makes the events of one run, update by update.

    ``run`` begins the ids of its messages. ``known`` says how many characters the reader has of a message, of a call's
    arguments or of reasoning, by id: it gets only the rest.
    """

    def __init__(self, run: str, known: Mapping[str, int] | None = None) -> None:
        self._run = run
        self._known = known or {}
        self._number = 0
        self._pairing = Pairing()
        self._has_result = False
        """Whether the reader has the last result, and so what was reported before it and of it."""
        self._open: dict[str, str] = {}
        """What was begun and not ended, by id: text, reasoning or call."""
        self._begin_answer()

    def _begin_answer(self) -> None:
        self._answer = message_id(self._run, self._number)
        self._seen: dict[str, int] = {}
        """How many characters came of the texts of the answer, by id."""
        self._calls: list[str] = []
        """The call ids of the answer, in order."""

    def events(self, update: AgentUpdate) -> Iterator[BaseEvent]:
        """The events of an update."""
        match update.type:
            case "text":
                yield from self._text(update.text, update.author)
            case "reasoning":
                yield from self._reasoning(update.text)
            case "call" if not update.position:  # in a run that is followed, the answer comes next, and has its calls
                yield from self._call(update.call_id or "", update.name or "", update.text)
            case "answer" if update.message is not None:
                yield from self._whole(update.message, update.author)
            case "result" if update.message is not None:
                yield from self._results(update.message)
            case "progress":
                call = self._pairing.call(update.call_id or "")
                if result_of(call) in self._known:
                    return
                value = {"name": update.name, "text": update.text, "fraction": update.fraction, "data": update.data}
                yield CustomEvent(name="clew:progress", value={"toolCallId": call, **value})
            case "handoff" if not self._has_result:
                yield CustomEvent(name="clew:handoff", value={"agent": update.name, "reason": update.text})
            case _:
                pass

    def close(self) -> list[BaseEvent]:
        """The events that end what is open."""
        return [event for id_ in reversed(list(self._open)) for event in self._end(id_)]

    def _text(self, text: str, author: str | None) -> Iterator[BaseEvent]:
        rest = self._new(self._answer, text)
        if not rest and (text or self._answer in self._known):
            return  # the reader has it
        yield from self._end(reasoning_id(self._answer))
        if self._answer not in self._open:
            self._open[self._answer] = "text"
            yield TextMessageStartEvent(message_id=self._answer, role="assistant", name=author)
        if rest:
            yield TextMessageContentEvent(message_id=self._answer, delta=rest)

    def _reasoning(self, text: str) -> Iterator[BaseEvent]:
        id_ = reasoning_id(self._answer)
        if not (rest := self._new(id_, text)):
            return
        if id_ not in self._open:
            self._open[id_] = "reasoning"
            yield ReasoningStartEvent(message_id=id_)
            yield ReasoningMessageStartEvent(message_id=id_)
        yield ReasoningMessageContentEvent(message_id=id_, delta=rest)

    def _call(self, call: str, name: str, arguments: str) -> Iterator[BaseEvent]:
        if call not in self._calls:
            self._calls.append(call)
        yield from self._call_at(self._calls.index(call), name, arguments)

    def _call_at(self, index: int, name: str, arguments: str) -> Iterator[BaseEvent]:
        id_ = call_id(self._answer, index)
        rest = self._new(id_, arguments)
        if id_ in self._open or (not rest and id_ in self._known):
            pass
        else:
            yield from self._end(reasoning_id(self._answer))
            self._open[id_] = "call"
            yield ToolCallStartEvent(tool_call_id=id_, tool_call_name=name, parent_message_id=self._answer)
        if rest:
            yield ToolCallArgsEvent(tool_call_id=id_, delta=rest)

    def _whole(self, message: HistoryMessage, author: str | None) -> Iterator[BaseEvent]:
        """What did not come in pieces of a recorded answer, and its end."""
        thoughts = reasoning_text(message)
        yield from self._reasoning(thoughts[self._seen.get(reasoning_id(self._answer), 0) :])
        text = message.text[self._seen.get(self._answer, 0) :]
        if text or not (any(self._seen.values()) or message.calls):
            yield from self._text(text, author)
        for index, call in enumerate(message.calls):
            seen = self._seen.get(call_id(self._answer, index), 0)
            yield from self._call_at(index, call.name, call.arguments[seen:])
        yield from self.close()
        self._pairing.answered(self._answer, message)
        self._number += 1
        self._begin_answer()

    def _results(self, message: HistoryMessage) -> Iterator[BaseEvent]:
        for index, result in enumerate(message.results):
            id_, call = result_id(message_id(self._run, self._number), index), self._pairing.taken(result.call_id)
            self._has_result = result_of(call) in self._known
            if not self._has_result:
                content = result_content(result)
                yield ToolCallResultEvent(message_id=id_, tool_call_id=call, content=content, role="tool")
        self._number += 1
        self._begin_answer()

    def _new(self, id_: str, text: str) -> str:
        """The part of a piece that the reader does not have."""
        seen = self._seen.get(id_, 0)
        self._seen[id_] = seen + len(text)
        return text[max(0, self._known.get(id_, 0) - seen) :]

    def _end(self, id_: str) -> Iterator[BaseEvent]:
        match self._open.pop(id_, None):
            case "text":
                yield TextMessageEndEvent(message_id=id_)
            case "call":
                yield ToolCallEndEvent(tool_call_id=id_)
            case "reasoning":
                yield ReasoningMessageEndEvent(message_id=id_)
                yield ReasoningEndEvent(message_id=id_)
            case _:
                pass
