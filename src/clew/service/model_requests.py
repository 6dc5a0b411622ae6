"""The requests of runs, rebuilt from the log alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from clew.domain.context.events import ContextProvided
from clew.domain.errors import UnknownVersionError
from clew.domain.events import Event
from clew.domain.history import History
from clew.domain.runs.errors import DefinitionMissingError, RequestAlteredError
from clew.domain.runs.events import (
    AnswerInterrupted,
    ModelAnswered,
    ModelCalled,
    ModelFailed,
    RequestChanged,
    RequestWithheld,
    RunAbandoned,
    RunCompleted,
    RunFailed,
    RunResumed,
    RunStarted,
    was_sent,
)
from clew.domain.runs.request_construction import Contributions, Request, read_definitions, read_tools, rebuilt
from clew.domain.runs.state import provided_to
from clew.infrastructure.wire_formats import wire_format
from clew.service.core import Core
from clew.service.effects import Operation, read
from clew.service.history_reads import PAGE
from clew.service.thread_queries import event, existing, history, readable


def request(core: Core, thread_id: str, version: int) -> Operation[Request]:
    """The request of the model call at a version, byte for byte.

    Raises UnknownVersionError for a version that is not a model call, DefinitionMissingError if the store lacks
    definitions of the agent, UnknownWireFormatError for a format that is not installed, and ThreadDeletedError.
    """
    yield from readable(core, thread_id, "request")
    call = yield from event(core, thread_id, version)
    if not isinstance(call.data, ModelCalled):
        raise UnknownVersionError(
            f"Version {version} of thread {thread_id!r} is {call.type}, not a model call: see `clew log`."
        )
    past: History = yield from history(core, thread_id, version)
    start: Event = yield from event(core, thread_id, call.data.definitions)
    if not isinstance(start.data, RunStarted | RunResumed):
        raise DefinitionMissingError(thread_id, version, [])
    given: list[Event] = yield from _given(core, thread_id, call)
    provided = provided_to(call.run_id or "", given)
    late: list[Event] = []
    for each in call.data.late or ():
        late.append((yield from event(core, thread_id, each)))  # noqa: PERF401  # a comprehension cannot yield from
    fingerprint = start.data.fingerprint
    tools = tuple(digest for each in provided for digest in each.tools)
    blobs = yield from _blobs(core, thread_id, version, (*fingerprint.digests, *tools))
    reduction = None if fingerprint.reducer is None else past.context.reductions.get(start.data.agent.id)
    changes: list[Event] = []
    if call.data.changes:
        upto = version + call.data.changes
        changes = yield from read(partial(core.log.lineage, core.stream(thread_id), after=version, upto=upto))
    made = rebuilt(
        version,
        wire_format(call.data.wire),
        call.data,
        read_definitions(fingerprint, blobs, start.data.agent.name),
        past,
        Contributions(provided, read_tools(tools, blobs), None if call.data.late is None else _unredacted(late)),
        None if reduction is None else reduction[1],
        [(each.version, each.data) for each in changes if isinstance(each.data, RequestChanged)],
    )
    made = yield from _as_sent(core, call, made)
    gone = {each.version for each in (*given, *late) if each.redacted}
    return replace(made, redacted=tuple(sorted({*made.redacted, *gone}))) if gone and not made.verified else made


def _as_sent(core: Core, call: Event, made: Request) -> Operation[Request]:
    """The request, verified only if the log says that it was sent, with these bytes.

    The end of a call may be behind the cut of a fork, so it is read in the stream of the call itself.
    """
    stream, after = call.stream, call.version
    while page := (yield from read(partial(core.log.lineage, stream, after=after, upto=after + PAGE))):
        for each in page:
            data = each.data
            if each.run_id != call.run_id:
                continue
            if isinstance(data, RequestWithheld):
                return replace(made, verified=False, sent=False, withheld_by=data.by)
            if isinstance(data, ModelFailed | ModelAnswered | AnswerInterrupted):
                error, sent = getattr(data, "error", None), was_sent(data)
                altered = error is not None and error.kind == RequestAlteredError.__name__
                return replace(made, sent=sent, verified=made.verified and sent is True and not altered)
            if isinstance(data, ModelCalled | RunCompleted | RunFailed | RunAbandoned):
                return replace(made, verified=False)
        after += PAGE
    return replace(made, verified=False)


def instructions(core: Core, thread_id: str, agent_id: str) -> Operation[str | None]:
    """The instructions that an agent last ran with on a thread; None if it had none, or the store lacks them.

    Raises UnknownThreadError.
    """
    control = yield from existing(core, thread_id)
    version = control.agents.get(agent_id)
    if version is None:
        return None
    data = (yield from event(core, thread_id, version)).data
    named = data.fingerprint.instructions if isinstance(data, RunStarted | RunResumed) else None
    if named is None:
        return None
    blob = yield from read(partial(core.log.blob, bytes.fromhex(named)))
    return None if blob is None else blob.data.decode()


def _unredacted(late: Sequence[Event]) -> tuple[ContextProvided, ...]:
    return tuple(each.data for each in late if isinstance(each.data, ContextProvided) and not each.redacted)


def _given(core: Core, thread_id: str, call: Event) -> Operation[list[Event]]:
    """What context providers gave to the run of a model call until then, also for its earlier calls."""
    stream = core.stream(thread_id)
    upto = call.version
    events: list[Event] = []
    while upto > 0:
        page = yield from read(partial(core.log.lineage, stream, after=max(upto - PAGE, 0), upto=upto))
        events = [*page, *events]
        if any(isinstance(each.data, RunStarted) and each.run_id == call.run_id for each in page):
            break
        upto -= PAGE
    return [each for each in events if each.run_id == call.run_id and isinstance(each.data, ContextProvided)]


def _blobs(core: Core, thread_id: str, version: int, digests: Sequence[str]) -> Operation[dict[str, bytes]]:
    data: dict[str, bytes] = {}
    for digest in digests:
        blob = yield from read(partial(core.log.blob, bytes.fromhex(digest)))
        if blob is not None:
            data[digest] = blob.data
    missing = [digest for digest in digests if digest not in data]
    if missing:
        raise DefinitionMissingError(thread_id, version, missing)
    return data
