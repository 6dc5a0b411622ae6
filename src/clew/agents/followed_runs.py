"""Runs as other callers see them, in any process: their updates, read from the log while they run and afterwards."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator, Sequence
from functools import reduce
from operator import attrgetter
from typing import Any, Generic, NamedTuple, Self

from clew.agents.response import AgentResponse, AgentUpdate, ThreadT_co, pending_approvals
from clew.agents.tool_progress import progress_update
from clew.domain.events import Event
from clew.domain.history import HistoryMessage
from clew.domain.messages import FunctionCall, Message, Reasoning
from clew.domain.runs.errors import RunNotCompletedError, UnknownRunError
from clew.domain.runs.events import HandedOff, RunAbandoned, RunCompleted, RunFailed, RunStarted, ToolProgressed
from clew.domain.runs.ports import RunLog
from clew.domain.runs.state import RunState, after, drafted, joined_runs

_PAGE = 256
_POLL_SECONDS = 1.0
_DRAFT_SECONDS = 0.1
"""Seconds between two looks at an answer that is arriving. Its process writes it four times a second."""


class Position(NamedTuple):
    """A place among the updates of a run: after a message or a report, and that many characters of the next answer."""

    version: int = 0
    text: int = 0
    reasoning: int = 0

    @classmethod
    def parsed(cls, position: str) -> Self:
        """The position in a text. Raises UnknownRunError for any other text."""
        try:
            version, text, reasoning = map(int, position.split("-"))
        except (AttributeError, ValueError):
            raise UnknownRunError(
                f"follow: after={position!r} is not a position. Give the position of an update of this run."
            ) from None
        return cls(version, text, reasoning)

    def __str__(self) -> str:
        return f"{self.version}-{self.text}-{self.reasoning}"


async def find_run(log: RunLog, run_id: str | None) -> int:
    """The version at which a run began; without an id, that of the newest run. Raises UnknownRunError.

    It reads backwards from the newest event, page by page.
    """
    control = await log.control(fresh=True)
    if control.run is not None and run_id in {None, control.run.id}:
        return control.run.began
    upto = control.version
    while upto > 0:
        for event in reversed(await log.events(max(upto - _PAGE, 0), upto)):
            if isinstance(event.data, RunStarted) and run_id in {None, event.run_id}:
                return event.version
        upto -= _PAGE
    what = "has no run" if run_id is None else f"has no run {run_id!r}"
    raise UnknownRunError(f"follow: thread {log.thread_id!r} {what}. Give the run_id of a response.")


async def read_run(log: RunLog, began: int) -> RunState:
    """The state of the run that began at a version, read up to its end."""
    reader = RunReader(log, began)
    while await reader.read():
        pass
    return reader.state


async def read_runs(log: RunLog, began: int) -> list[RunState]:
    """The state of the run that began at a version, and of those that continue its conversation with other agents."""
    states: list[RunState] = []
    while True:
        reader = RunReader(log, began)
        while await reader.read():
            pass
        states.append(reader.state)
        if not reader.has_successor:
            return states
        began = reader.version + 1


class RunReader:
    """Reads the events of one run. ``state`` is that after the events up to ``version``."""

    def __init__(self, log: RunLog, began: int) -> None:
        self.state = RunState("")
        self.version = began - 1
        self.notes: list[Event] = []
        """What tools reported of their progress, and handoffs, that nobody has taken."""
        self._log = log

    @property
    def has_successor(self) -> bool:
        """Whether the next event is the start of a run that continues the conversation with another agent."""
        return self.state.handed_off is not None and isinstance(self.state.ended, RunCompleted)

    async def read(self) -> list[Event]:
        """Read the next events of the thread; returns them, none at the end of the run or of the thread."""
        events: list[Event] = [] if self.state.ended else await self._log.events(self.version, self.version + _PAGE)
        for event in events:
            self.version = event.version
            if not self.state.run_id:
                self.state = RunState(event.run_id or "")
            if event.run_id == self.state.run_id:
                self.state = after(self.state, event)
                if isinstance(event.data, ToolProgressed | HandedOff):
                    self.notes.append(event)
                if self.state.ended:
                    break
        return events


async def follow(log: RunLog, began: int, position: Position = Position()) -> AsyncGenerator[AgentUpdate]:  # noqa: B008  # immutable
    """The updates of the run that began at a version, after a position, until it ends or waits for approvals.

    Raises RunNotCompletedError if the run failed, was abandoned, or is not executed by any process.
    """
    follower, is_new = _Follower(log, began, position), True
    while True:
        while is_new and await follower.reader.read():
            pass  # to the newest event: a later one may say that a guardrail stopped an answer
        for update in follower.recorded():
            yield update
        if follower.is_over():
            if not follower.continues():
                return
            continue
        for update in await follower.arriving():
            yield update
        is_new = await follower.wait()


class FollowedRun(AsyncIterator[AgentUpdate], Generic[ThreadT_co]):
    """The updates of a run, read from the log: ``async for update in thread.follow(run_id)``.

    ``await thread.follow(run_id)`` raises UnknownRunError before the first update is read.
    """

    def __init__(
        self,
        thread: ThreadT_co,
        run_id: str | None,
        position: Position,
        continue_lost: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._thread = thread
        self._run_id = run_id
        self._position = position
        self._continue_lost = continue_lost
        self._began = 0
        self._updates: AsyncGenerator[AgentUpdate] | None = None

    def __await__(self) -> Generator[Any, None, Self]:
        return self._found().__await__()

    async def __anext__(self) -> AgentUpdate:
        """The next update. Raises RunNotCompletedError at the end of a run that was not completed."""
        while True:
            await self._found()
            if self._updates is None:
                self._updates = follow(self._thread.runs, self._began, self._position)
            try:
                update = await anext(self._updates)
            except RunNotCompletedError as error:
                if error.outcome != "interrupted" or self._continue_lost is None:
                    raise
                await self._continue_lost()
                self._updates = None
            else:
                self._position = Position.parsed(update.position)
                return update

    async def response(self) -> AgentResponse[ThreadT_co]:
        """Wait until the run ends or waits for approvals, and return its recorded response. Skips further updates.

        Raises UnknownRunError and RunNotCompletedError.
        """
        async for _ in self:
            pass
        log = self._thread.runs
        states = await read_runs(log, self._began)
        state = reduce(joined_runs, states)
        return AgentResponse(
            run_id=states[0].run_id,
            thread=self._thread,
            messages=list(state.added),
            usage=state.usage,
            cost=state.cost,
            finish_reason=state.finish_reason,
            approvals=await pending_approvals(log, state),
        )

    async def aclose(self) -> None:
        """Stop to follow. The run continues."""
        if self._updates is not None:
            await self._updates.aclose()

    async def _found(self) -> Self:
        if not self._began:
            self._began = await find_run(self._thread.runs, self._run_id)
        return self


class _Follower:
    """Where one caller is in a run."""

    def __init__(self, log: RunLog, began: int, position: Position) -> None:
        self.reader = RunReader(log, began)
        self._log = log
        self._position = position
        self._messages = 0
        self._called = 0
        self._next_check = 0.0

    def recorded(self) -> Iterator[AgentUpdate]:
        """The updates of the messages that were read since the last time."""
        added, notes = self.reader.state.added, self.reader.notes
        items: list[HistoryMessage | Event] = [*added[self._messages :], *notes]
        for item in sorted(items, key=attrgetter("version")):
            if item.version <= self._position.version:
                continue
            if isinstance(item, Event):
                yield from _note(item, added)
            else:
                yield from _whole(item, self._position)
            self._position = Position(item.version)
        self._messages = len(added)
        notes.clear()

    def is_over(self) -> bool:
        """Whether the run was completed or waits for approvals. Raises RunNotCompletedError for another end."""
        state = self.reader.state
        if state.ended is None or isinstance(state.ended, RunCompleted):
            return state.ended is not None or any(call.status == "asked" for call in state.calls)
        raise _not_completed(self._log.thread_id, state.run_id, state.ended)

    def continues(self) -> bool:
        """Whether another agent continues the conversation: its run is followed next."""
        if not self.reader.has_successor:
            return False
        self.reader, self._messages, self._called = RunReader(self._log, self.reader.version + 1), 0, 0
        return True

    async def arriving(self) -> list[AgentUpdate]:
        """The updates of the answer that is arriving."""
        state = self.reader.state
        if state.called != self._called:
            if self._called:  # the part that was sent belongs to an earlier call
                self._position = Position(self._position.version)
            self._called = state.called
        draft = await self._log.draft() if state.called else None
        if draft is None or draft.run_id != state.run_id or draft.data is None:
            return []
        partial = drafted(draft.data, state.called)
        updates = [] if partial is None else list(_pieces(partial, self._position))
        if updates:
            self._position = Position.parsed(updates[-1].position)
        return updates

    async def wait(self) -> bool:
        """Wait until there may be more; returns whether there are new events.

        Raises RunNotCompletedError if no process executes the run, which is looked up once a second.
        """
        log, version = self._log, self.reader.version
        if (now := time.monotonic()) >= self._next_check:
            self._next_check = now + _POLL_SECONDS
            lease = await log.lease()  # before the version: the last write of a run releases its lease
            if (await log.control(fresh=True)).version > version:
                return True
            if lease is None:
                reason = "no process executes it any more"
                raise RunNotCompletedError(log.thread_id, self.reader.state.run_id, "interrupted", reason)
        return await log.changed(version, _DRAFT_SECONDS if self._called else _POLL_SECONDS)


def _note(event: Event, added: Sequence[HistoryMessage]) -> Iterator[AgentUpdate]:
    """The update of a handoff, or of a report on the progress of a call; none if the call was redacted."""
    data = event.data
    if isinstance(data, HandedOff):
        name = data.agent.name or data.agent.id
        yield AgentUpdate("handoff", data.reason, name=name, position=str(Position(event.version)))
    if isinstance(data, ToolProgressed):
        contents = next((each.contents for each in added if each.version == data.message), ())
        call = contents[data.index] if data.index < len(contents) else None
        if isinstance(call, FunctionCall):
            yield progress_update(data, call.call_id, call.name, str(Position(event.version)))


def _pieces(message: Message, position: Position) -> Iterator[AgentUpdate]:
    """The parts of an answer's texts that are not sent yet."""
    version, sent, thought = position
    thoughts = _reasoning(message)
    if len(thoughts) > thought:
        place = Position(version, sent, len(thoughts))
        yield AgentUpdate("reasoning", thoughts[thought:], position=str(place))
        thought = len(thoughts)
    if len(message.text) > sent:
        yield AgentUpdate("text", message.text[sent:], position=str(Position(version, len(message.text), thought)))


def _whole(message: HistoryMessage, position: Position) -> Iterator[AgentUpdate]:
    """The updates of a recorded message: what is not sent yet of its texts, its calls, and the message."""
    if message.role == "assistant" and message.message is not None:
        yield from _pieces(message.message, position)
        for call in message.message.calls:
            yield AgentUpdate("call", call.arguments, call.call_id, call.name, position=str(position))
    yield AgentUpdate(
        "answer" if message.role == "assistant" else "result", message=message, position=str(Position(message.version))
    )


def _reasoning(message: Message) -> str:
    return "".join(each.text for each in message.contents if isinstance(each, Reasoning))


def _not_completed(thread_id: str, run_id: str, ended: RunFailed | RunAbandoned) -> RunNotCompletedError:
    if isinstance(ended, RunAbandoned):
        return RunNotCompletedError(thread_id, run_id, "abandoned", ended.reason)
    error = ended.error
    return RunNotCompletedError(
        thread_id, run_id, "failed", error.kind if error.message is None else f"{error.kind}: {error.message}"
    )
