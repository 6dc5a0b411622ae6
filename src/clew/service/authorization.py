"""Authorization: the service calls the application's ``authorize`` function here, for every read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from clew.domain.authorization import Action, ThreadFilter
from clew.domain.errors import InvalidAuthorizeError, NotAuthorizedError
from clew.domain.json_values import JsonObject
from clew.domain.projection import Query, Where
from clew.domain.streams import parse_stream_name
from clew.service.core import Core, newest_control
from clew.service.effects import Operation, read
from clew.service.read_models import DIRECTORY

T = TypeVar("T")

AT_ONCE = 500
"""Threads whose labels are read together."""


def allows(core: Core, action: Action, thread_id: str | None) -> bool:
    """Whether the actor may do this. The function may block, and so may reading the labels that a filter needs.

    Raises the function's own errors, and InvalidAuthorizeError for an answer of another type.
    """
    if core.authorize is None:
        return True
    answer = _answer(core, action, thread_id)
    if isinstance(answer, bool):
        return answer
    if thread_id is None:
        return False  # a filter names threads
    return _matches(answer, thread_id, _labels_in_log(core, (thread_id,)))


def check(core: Core, action: Action, thread_id: str | None = None) -> Operation[None]:
    """Raise NotAuthorizedError unless the actor may do this; checked before the thread is looked up."""
    if core.authorize is None:
        return
    if thread_id is not None:
        core.stream(thread_id)  # the function only receives valid ids
    if not (yield from read(lambda: allows(core, action, thread_id))):
        raise NotAuthorizedError(core.actor, action, thread_id)


def permitted(
    core: Core, action: Action, results: Sequence[T], thread_of: Callable[[T], str | None]
) -> Operation[Sequence[T]]:
    """The results that the actor may see; the function is asked once for each thread.

    In a call that reads read models, the labels that filters need are those of the directory, else those in the log.
    """
    if core.authorize is None or not results:
        return results
    ids = [thread_of(result) for result in results]
    answers = yield from read(lambda: {id_: _answer(core, action, id_) for id_ in dict.fromkeys(ids)})
    filtered = [id_ for id_, answer in answers.items() if id_ is not None and not isinstance(answer, bool)]
    labels: Mapping[str, JsonObject] = {}
    if filtered:
        labels = yield from _labels(core, filtered)
    allowed = {
        id_: answer if isinstance(answer, bool) else id_ is not None and _matches(answer, id_, labels)
        for id_, answer in answers.items()
    }
    return [result for result, id_ in zip(results, ids, strict=True) if allowed[id_]]


def filter_of(core: Core, action: Action) -> Operation[ThreadFilter | None]:
    """The filter for the threads of an action; None if there is none, and the function decides for each thread.

    Results of threads that do not match need not be read. Those that match are checked as usual.
    """
    if core.authorize is None:
        return None
    answer = yield from read(lambda: _answer(core, action, None))
    return None if isinstance(answer, bool) else answer


def check_existing_stream(core: Core, stream: str) -> None:
    """Raise NotAuthorizedError for an existing stream that the actor may not read: a write would reveal it."""
    if core.authorize is None or core.log.stream(stream) is None:
        return
    action, thread_id = action_on(stream, "read")
    if not allows(core, action, thread_id):
        raise NotAuthorizedError(core.actor, action, thread_id)


def action_on(stream: str, action: Action) -> tuple[Action, str | None]:
    """The action and the thread to check for a stream; the stream of a memory scope has no thread."""
    name = parse_stream_name(stream)
    if name is not None and name.kind == "thread":
        return action, name.id
    return ("memory" if action == "read" else action), None


def _answer(core: Core, action: Action, thread_id: str | None) -> bool | ThreadFilter:
    answer: object = core.authorize is None or core.authorize(core.actor, action, thread_id)
    if not isinstance(answer, bool | ThreadFilter):
        raise InvalidAuthorizeError(
            f"authorize({core.actor!r}, {action!r}, {thread_id!r}) returned {type(answer).__name__}. "
            "Return True, False or a ThreadFilter."
        )
    return answer


def _matches(answer: ThreadFilter, thread_id: str, labels: Mapping[str, JsonObject]) -> bool:
    """Whether an existing thread matches; a missing one has no labels."""
    return thread_id in labels and answer.matches(thread_id, labels[thread_id])


def _labels(core: Core, ids: Sequence[str]) -> Operation[Mapping[str, JsonObject]]:
    """The labels of those threads that exist."""
    if not core.models.sees_all(DIRECTORY):
        return (yield from read(partial(_labels_in_log, core, ids)))
    labels: dict[str, JsonObject] = {}
    for start in range(0, len(ids), AT_ONCE):
        where = (Where("tenant", "=", core.tenant), Where("thread_id", "in", ids[start : start + AT_ONCE]))
        rows = yield from core.models.select(DIRECTORY, Query("thread", where, columns=["thread_id", "labels"]))
        labels |= {row["thread_id"]: row["labels"] or {} for row in rows}
    return labels


def _labels_in_log(core: Core, ids: Sequence[str]) -> Mapping[str, JsonObject]:
    streams = {id_: core.stream(id_) for id_ in ids}
    controls = {id_: newest_control(core, stream) for id_, stream in streams.items()}
    return {id_: control.labels for id_, control in controls.items() if control.version}
