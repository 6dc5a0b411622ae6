"""Rebuilding requests: what a model was asked, from the log alone."""

from __future__ import annotations

from functools import partial

from clew.domain.errors import UnknownVersionError
from clew.domain.events import Event
from clew.domain.history import History
from clew.domain.runs.asking import Request, rebuilt
from clew.domain.runs.definitions import Definitions, read_definitions
from clew.domain.runs.errors import DefinitionMissingError
from clew.domain.runs.events import Fingerprint, ModelCalled, RunResumed, RunStarted
from clew.service.core import Core
from clew.service.operations import Operation, read
from clew.service.reading import event, existing, history, readable


def request(core: Core, thread_id: str, version: int) -> Operation[Request]:
    """The request of the model call at a version, byte for byte.

    Raises UnknownVersionError for a version that is no model call, DefinitionMissingError when the store has not what
    the agent was made of, and ThreadDeletedError.
    """
    yield from readable(core, thread_id, "request")
    found = yield from event(core, thread_id, version)
    if not isinstance(found.data, ModelCalled):
        raise UnknownVersionError(
            f"Version {version} of thread {thread_id!r} is {found.type}, no model call. Those are in `clew log`."
        )
    said: History = yield from history(core, thread_id, version)
    definitions = yield from _definitions(core, thread_id, version, found.data)
    return rebuilt(version, found.data, definitions, said)


def instructions(core: Core, thread_id: str, agent_id: str) -> Operation[str | None]:
    """The instructions that an agent last ran with on a thread; None when it had none, or the store has them not.

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


def _definitions(core: Core, thread_id: str, version: int, call: ModelCalled) -> Operation[Definitions]:
    named: Event = yield from event(core, thread_id, call.definitions)
    if not isinstance(named.data, RunStarted | RunResumed):
        raise DefinitionMissingError(thread_id, version, [])
    fingerprint: Fingerprint = named.data.fingerprint
    data: dict[str, bytes] = {}
    for digest in fingerprint.digests:
        blob = yield from read(partial(core.log.blob, bytes.fromhex(digest)))
        if blob is not None:
            data[digest] = blob.data
    missing = [digest for digest in fingerprint.digests if digest not in data]
    if missing:
        raise DefinitionMissingError(thread_id, version, missing)
    return read_definitions(fingerprint, data)
