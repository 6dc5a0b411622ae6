"""Remote threads: the state of a thread at the service that holds it, and a comparison with its record."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from clew.domain.context.state import in_spans
from clew.domain.differences.diff import Diff, diff
from clew.domain.events import Event, HistoryRewound
from clew.domain.history import History, HistoryMessage, spans
from clew.domain.messages import Message, Text
from clew.domain.models.a2a_answers import WAITING
from clew.domain.models.client import RemoteTask, ServiceReference, WireFormat
from clew.domain.models.native import bare
from clew.domain.runs.errors import RemoteTaskError
from clew.domain.runs.events import (
    AnswerInterrupted,
    Failure,
    ModelAnswered,
    ModelCalled,
    ModelFailed,
    ServiceCall,
    ServiceThreadBound,
)

TASK_ENDED = RemoteTaskError.__name__
"""The kind of the error with which a task of a remote agent ended."""

_WAITING = frozenset({*WAITING.values(), "tool_calls"})
"""Finish reasons of answers whose task waits for input or for results."""


class Bound(NamedTuple):
    """An id from the service: the version and the stream of the event that recorded it.

    ``is_initial`` is True if the thread began with this id. Then the service already has the messages before it.
    """

    version: int
    stream: str
    reference: ServiceReference
    is_initial: bool = False
    task: str | None = None
    run_id: str | None = None


class Tasks(NamedTuple):
    """The tasks of a remote agent that matter for the next request of a thread.

    ``open`` is the task that has not answered yet, ``failed`` the last one if it ended without an answer, and
    ``waiting`` the one whose answer asks for input or for results. For the first two, ``run_id`` is their run, and
    ``heard`` the version of the call whose message they have. ``lost`` is what the last call sent, if its message may
    have arrived and its task is not known; ``lost_run`` is the run of that call.
    """

    open: str | None = None
    run_id: str | None = None
    waiting: str | None = None
    failed: str | None = None
    heard: int = 0
    lost: RemoteTask | None = None
    lost_run: str | None = None


class ServiceState(NamedTuple):
    """The state of a thread at its service, at a version.

    ``bound`` are the service's ids on the path, oldest first; one that was read from the end has the last of them.
    ``call`` is what the next request continues: for a chain
    of responses, the last complete one. ``diverged`` is True for a conversation that this thread cannot continue: it
    has messages that are not on the path, or another thread writes to it.
    """

    bound: tuple[Bound, ...] = ()
    call: ServiceCall = ServiceCall()
    diverged: bool = False
    tasks: Tasks = Tasks()


class _Lineage:
    """The events of a lineage that concern the service."""

    def __init__(self, events: Iterable[Event], after_cuts: Iterable[Event]) -> None:
        self.bound: list[Bound] = []
        self.calls: dict[int, ServiceReference | None] = {}
        self.answers: list[ModelAnswered] = []
        rewinds: dict[int, int] = {}
        failed: set[int] = set()
        self.ended_tasks: list[int] = []
        self.asked: dict[int, tuple[RemoteTask | None, str | None]] = {}
        self.reads: set[int] = set()
        self.refused: set[int] = set()
        version = 0
        for event in events:
            version = event.version
            match event.data:
                case HistoryRewound(to=to):
                    rewinds[version] = to
                case ServiceThreadBound(id=id_, kind=kind, task=task):
                    reference = ServiceReference(kind=kind, id=id_)
                    run_id = event.run_id
                    self.bound.append(Bound(version, event.stream, reference, run_id is None, task, run_id))
                case ModelCalled(service=service):
                    self._add_call(event, service)
                case ModelFailed(call=call, error=error):
                    failed.add(call)
                    self._add_failure(version, call, error)
                case AnswerInterrupted(error=Failure(kind=kind)) if kind == TASK_ENDED:
                    self.ended_tasks.append(version)
                case ModelAnswered():
                    self.answers.append(event.data)
        self.answers += [event.data for event in after_cuts if isinstance(event.data, ModelAnswered)]
        self.calls = {at: reference for at, reference in self.calls.items() if at not in failed}
        self.on_path = in_spans(spans(rewinds, version))

    def _add_call(self, event: Event, service: ServiceCall | None) -> None:
        self.calls[event.version] = None if service is None else service.reference
        if service is not None and service.task is not None and service.task.reads:
            self.reads.add(event.version)
        elif service is not None:
            self.asked[event.version] = service.task, event.run_id

    def _add_failure(self, version: int, call: int, error: Failure) -> None:
        if error.kind == TASK_ENDED:
            self.ended_tasks.append(version)
        if error.status is not None and 400 <= error.status < 500:  # noqa: PLR2004  # HTTP's refusals
            self.refused.add(call)


def service_state(stream: str, events: Iterable[Event], after_cuts: Iterable[Event] = ()) -> ServiceState:
    """The state at the service of the thread with this stream, from the events of its lineage.

    An answer counts if its message is on the path, even if a cut lies between the message and the event that names its
    call. ``after_cuts`` are the events right after the cuts of forks.
    """
    lineage = _Lineage(events, after_cuts)
    bound = tuple(each for each in lineage.bound if lineage.on_path(each.version))
    if not bound:
        return ServiceState()
    answers = [answer for answer in lineage.answers if lineage.on_path(answer.message)]
    last = bound[-1]
    if last.reference.kind == "conversation":
        into = {at for at, reference in lineage.calls.items() if reference == last.reference}
        holds = (*into, *(answer.message for answer in lineage.answers if answer.call in into))
        diverged = last.stream != stream or not all(map(lineage.on_path, holds))
        return ServiceState(bound, _conversation(last, answers, lineage), diverged, _tasks(last, answers, lineage))
    return ServiceState(bound, _chain(bound, answers))


def _tasks(last: Bound, answers: Sequence[ModelAnswered], lineage: _Lineage) -> Tasks:
    known = max([each.call for each in answers[-1:]] + ([] if last.task is None else [last.version]), default=0)
    newest = max(lineage.asked, default=0)
    is_lost = newest > known and newest not in lineage.refused
    lost, lost_run = lineage.asked[newest] if is_lost else (None, None)
    if answers and (last.task is None or answers[-1].message > last.version):
        answer = answers[-1]
        waits = answer.finish_reason in _WAITING
        return Tasks(waiting=answer.response_id if waits else None, lost=lost, lost_run=lost_run)
    heard = 0 if last.task is None else max([at for at in lineage.asked if at < last.version], default=0)
    run_id = lineage.asked[heard][1] if heard else last.run_id
    about = Tasks(run_id=run_id, heard=heard, lost=lost, lost_run=lost_run)
    if any(version > last.version for version in lineage.ended_tasks):
        return about._replace(failed=last.task)
    return about._replace(open=last.task)


def _conversation(last: Bound, answers: Sequence[ModelAnswered], lineage: _Lineage) -> ServiceCall:
    """The conversation has everything up to its last answer. A request that was cut off may not have arrived."""
    for answer in reversed(answers):
        into = lineage.calls.get(answer.call)
        named = into is None and answer.call < last.version < answer.message  # its id came with this answer
        if into == last.reference or named:
            sent = answer.call
            if sent in lineage.reads:  # it sent nothing: the task has the message of the call before
                sent = max([at for at in lineage.asked if at < sent], default=0)
            return ServiceCall(reference=last.reference, sent=sent, answer=answer.message)
    return ServiceCall(reference=last.reference, sent=last.version if last.is_initial else 0)


def _chain(bound: Sequence[Bound], answers: Sequence[ModelAnswered]) -> ServiceCall:
    """The newest complete response, else the one that the thread began with."""
    complete = {answer.response_id: answer for answer in answers if answer.response_id is not None}
    for each in reversed(bound):
        answer = complete.get(each.reference.id)
        if answer is not None:
            return ServiceCall(reference=each.reference, sent=answer.call, answer=answer.message)
        if each.is_initial:
            return ServiceCall(reference=each.reference, sent=each.version)
    return ServiceCall()


def reconciled(record: History, held: Sequence[Message], wire: WireFormat) -> Diff:
    """The difference between the record, ``a``, and the messages that a service holds, ``b``.

    A service does not store all that a message has. So the record is compared as the format of its requests says that
    the service lists it. Adjacent messages of the assistant become one, with the version of the last. ``b`` counts
    messages where ``a`` has versions. A redacted message differs from every message of the service.
    """
    ours = History(record.thread_id, record.version, tuple(_joined(_as_service_messages(record, wire))))
    authors = {each.author for each in record if each.author is not None and each.role == "user"}
    numbered = (
        HistoryMessage(number, message.role, _anonymous(_bare(message), authors), "", 0)
        for number, message in enumerate(held, start=1)
    )
    theirs = tuple(_joined(numbered))
    return diff(ours, History(record.thread_id, len(held), theirs))


def _bare(message: Message) -> Message:
    return Message(role=message.role, contents=tuple(bare(content) for content in message.contents))


def _anonymous(message: Message, authors: Collection[str]) -> Message:
    """A message of the user without the prefix that names its author, which its request had."""
    contents = message.contents
    place = next((number for number, content in enumerate(contents) if isinstance(content, Text)), -1)
    if message.role != "user" or place < 0:
        return message
    before, after = contents[:place], contents[place + 1 :]
    first = message.model_copy(update={"contents": contents[place : place + 1]}).text
    for author in authors:
        if first == f"{author}:" and len(contents) > 1:
            return message.model_copy(update={"contents": (*before, *after)})
        if first.startswith(f"{author}: "):
            rest = Text(text=first.removeprefix(f"{author}: "))
            return message.model_copy(update={"contents": (*before, rest, *after)})
    return message


def _as_service_messages(record: Iterable[HistoryMessage], wire: WireFormat) -> Iterator[HistoryMessage]:
    for recorded in record:
        if recorded.message is None:
            yield recorded
            continue
        anonymous = recorded.message.model_copy(update={"author": None, "cut": False})
        for message in [anonymous] if wire.as_held is None else wire.as_held(anonymous):
            yield recorded._replace(role=message.role, message=_bare(message))


def _joined(messages: Iterable[HistoryMessage]) -> Iterator[HistoryMessage]:
    """The messages, with adjacent ones of the assistant joined."""
    last: HistoryMessage | None = None
    for item in messages:
        if last is None or last.message is None or item.message is None or not last.role == item.role == "assistant":
            if last is not None:
                yield last
            last = item
            continue
        contents = (*last.message.contents, *item.message.contents)
        last = item._replace(message=Message(role="assistant", contents=contents))
    if last is not None:
        yield last
