"""The open run of a thread: the state that decisions need, and the steps that may come next."""

from __future__ import annotations

from typing import NamedTuple

from clew.domain.events import AnyEvent, Opaque, Shredded, ThreadEvent
from clew.domain.runs.errors import ApprovalNotPendingError, RunTakenOverError
from clew.domain.runs.events import (
    AnswerInterrupted,
    ApprovalGiven,
    ApprovalRequested,
    ModelAnswered,
    ModelCalled,
    ModelFailed,
    RunAbandoned,
    RunCompleted,
    RunFailed,
    RunResumed,
    RunStarted,
    ToolFailed,
    ToolFinished,
    ToolStarted,
)


class Place(NamedTuple):
    """The place of a function call: the version of its message, and its index among the contents."""

    message: int
    content: int


class OpenRun(NamedTuple):
    """A run that has begun and not ended.

    ``call`` is the version of the model call without an answer, 0 if there is none; ``tools`` are the started calls
    without an outcome; ``asked`` are the pending approvals, each with the version of its request.
    """

    id: str
    began: int
    attempt: int = 1
    call: int = 0
    tools: tuple[Place, ...] = ()
    asked: tuple[tuple[int, Place], ...] = ()


def holder_of(run: OpenRun) -> str:
    """The name under which this attempt of the run holds the lease."""
    return f"{run.id}/{run.attempt}"


def run_after(
    run: OpenRun | None, version: int, run_id: str | None, data: AnyEvent | Opaque | Shredded
) -> OpenRun | None:
    """The open run after an event of its thread, recorded at ``version`` under ``run_id``."""
    match data:
        case RunStarted():
            return OpenRun(run_id or "", version)
        case RunCompleted() | RunFailed() | RunAbandoned():
            return None
    return None if run is None else _after_step(run, version, data)


def _after_step(run: OpenRun, version: int, data: AnyEvent | Opaque | Shredded) -> OpenRun:
    match data:
        case RunResumed(attempt=attempt):
            return run._replace(attempt=attempt)
        case ModelCalled():
            return run._replace(call=version)
        case ModelAnswered() | ModelFailed() | AnswerInterrupted():
            return run._replace(call=0)
        case ToolStarted(message=message, index=index):
            place = Place(message, index)
            return run if place in run.tools else run._replace(tools=(*run.tools, place))
        case ToolFinished(message=message, index=index) | ToolFailed(message=message, index=index):
            return run._replace(tools=_without(run.tools, Place(message, index)))
        case ApprovalRequested(message=message, index=index):
            place = Place(message, index)
            return run._replace(tools=_without(run.tools, place), asked=(*run.asked, (version, place)))
        case ApprovalGiven(request=request):
            return run._replace(asked=tuple(each for each in run.asked if each[0] != request))
        case _:
            return run


def check_step(thread_id: str, run: OpenRun | None, run_id: str, attempt: int, step: ThreadEvent) -> None:
    """Raise unless ``step`` may come next in this attempt of the run.

    Raises RunTakenOverError if another process ended or continued the run, and ApprovalNotPendingError for an approval
    that is not pending, also because it was given before.
    """
    if isinstance(step, ApprovalGiven):
        asked = () if run is None or run.id != run_id else run.asked
        if all(version != step.request for version, _ in asked):
            raise ApprovalNotPendingError(thread_id, step.request)
        return
    if isinstance(step, RunStarted):
        allowed = run is None
    elif run is None or run.id != run_id:
        allowed = False
    elif isinstance(step, RunResumed):
        allowed = step.attempt == run.attempt + 1
    else:
        allowed = attempt == run.attempt and _fits(run, step)
    if not allowed:
        raise RunTakenOverError(thread_id, run_id)


def _fits(run: OpenRun, step: ThreadEvent) -> bool:
    match step:
        case ModelCalled():
            return run.call == 0 and not run.asked
        case ModelAnswered(call=call) | ModelFailed(call=call) | AnswerInterrupted(call=call):
            return run.call == call != 0
        case ToolStarted(message=message, index=index) | ApprovalRequested(message=message, index=index):
            return all(place != Place(message, index) for _, place in run.asked)  # a call that needs approval waits
        case ToolFinished(message=message, index=index):
            return Place(message, index) in run.tools
        case RunCompleted():
            return run.call == 0 and not run.tools and not run.asked
        case _:
            return True


def _without(places: tuple[Place, ...], gone: Place) -> tuple[Place, ...]:
    return tuple(place for place in places if place != gone)
