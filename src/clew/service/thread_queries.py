"""The queries of a thread: its history, events and state at any version, its summary and its forks."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from clew.domain.authorization import Action
from clew.domain.decider import check_readable, check_version
from clew.domain.decider_state import Control, detached
from clew.domain.errors import (
    CorruptEventError,
    InvalidContentError,
    InvalidNameError,
    InvalidTimeError,
    StoreError,
    UnknownCheckpointError,
    UnknownThreadError,
    UnknownVersionError,
)
from clew.domain.event_index import CHECKPOINTS, RECORDS, REWINDS, number_of
from clew.domain.event_types import Status
from clew.domain.events import CheckpointMade, Event, to_microseconds, to_time
from clew.domain.history import (
    History,
    HistoryBuilder,
    HistoryMessage,
    NeededHistory,
    ThreadState,
    Walk,
    previous_version,
)
from clew.domain.json_values import JsonObject, check_count, check_flags
from clew.domain.models.client import ThreadKind
from clew.domain.ports import Cut, EventLog, IntegrityFault, StreamInfo, Verdict
from clew.domain.records import ThreadRecord, as_record, check_record_key, check_record_type
from clew.domain.streams import check_id, is_version, message_number, moment, parse_stream_name, stream_id
from clew.service.authorization import check, permitted
from clew.service.child_runs import with_children
from clew.service.core import CachedHistory, Core, load, with_checkpoint, with_checkpoints
from clew.service.effects import Operation, Read, read, undamaged
from clew.service.history_reads import PAGE, back, read_part

At: TypeAlias = int | str | datetime | None
"""A version, a checkpoint's name, an aware datetime, or None for the newest version."""

NAMED = 10
"""Most checkpoints that the error for an unknown one names: the newest."""

MessageRef: TypeAlias = HistoryMessage | int
"""A message of a thread's history, or its version."""


class ThreadSummary(NamedTuple):
    """A thread in a list. ``head`` is its newest hash, in hex; ``metadata`` has an imported thread's ``source_id``.

    ``kind`` says where the history is: ``local`` in Clew, ``remote`` at a service. If something in the thread was said
    before the thread began, as in an imported conversation, lists and trees have ``first_said_at`` and
    ``last_said_at``: when the first and the last of its own messages and records were said. Otherwise, and in
    ``thread.summary()``, they are None.
    """

    id: str
    title: str | None
    status: Status
    version: int
    messages: int
    parent_id: str | None
    forked_at: int | None
    head: str
    created_at: datetime
    updated_at: datetime
    metadata: JsonObject
    labels: JsonObject
    checkpoints: dict[str, int]
    imported: bool
    kind: ThreadKind = "local"
    first_said_at: datetime | None = None
    last_said_at: datetime | None = None


def existing(
    core: Core, thread_id: str, action: Action = "read", *, not_deleted: str | None = None
) -> Operation[Control]:
    """The control of a thread that must exist. Raises NotAuthorizedError or UnknownThreadError.

    If ``not_deleted`` is given, a deleted thread raises ThreadDeletedError, which names the request ``not_deleted``.
    """
    if core.authorize is not None:
        yield from check(core, action, thread_id)
    control = yield from load(core, thread_id)
    if not control.version:
        raise UnknownThreadError(thread_id)
    if not_deleted is not None:
        check_readable(thread_id, control, not_deleted)
    return control


def readable(core: Core, thread_id: str, request: str, action: Action = "read") -> Operation[Control]:
    """The control of a thread that exists and is not deleted. Raises ThreadDeletedError and what existing() raises."""
    return existing(core, thread_id, action, not_deleted=request)


def resolve(core: Core, thread_id: str, control: Control, at: At, at_message: int | None = None) -> Operation[int]:
    """The version that ``at`` or ``at_message`` means.

    Raises UnknownVersionError, UnknownCheckpointError or InvalidTimeError.
    """
    if at_message is not None:
        if at is not None:
            raise UnknownVersionError("Both at= and at_message= were given. Give one of them.")
        return (yield from _at_message(core, thread_id, control, at_message))
    if isinstance(at, datetime):
        return (yield from _at_time(core, thread_id, control, at))
    if isinstance(at, str):
        if at not in control.checkpoints:
            control = yield from with_checkpoint(core, thread_id, control, at)
        if at not in control.checkpoints:
            raise UnknownCheckpointError(thread_id, at, (yield from _newest(core, thread_id, control)), _advice(at))
        return control.checkpoints[at]
    return _at(thread_id, control, at)


def history(
    core: Core,
    thread_id: str,
    at: At = None,
    at_message: int | None = None,
    *,
    last: int | None = None,
    before: MessageRef | None = None,
    after: MessageRef | None = None,
) -> Operation[History]:
    """The messages on the path at a version, or a part of them, which is read backwards from its end.

    The messages have ``after`` < version < ``before``, and of those they are the ``last`` ones. A message is on the
    path at its own version, so ``before`` moves the end of the path. Raises ThreadDeletedError, what resolve() raises,
    and UnknownVersionError for a part that these arguments do not describe.
    """
    control = yield from readable(core, thread_id, "history")
    version = control.version
    if at is not None or at_message is not None:
        version = yield from resolve(core, thread_id, control, at, at_message)
    if before is not None:
        version = min(version, max(0, _end(thread_id, control, before) - 1))
    if last is None and after is None:
        messages: History = yield Read(partial(whole_history, core, thread_id, control.version, version))
        return messages
    first = 0 if after is None else _bound("after", after)
    count = version if last is None else _whole("last", last, "a number of messages")
    path = Walk(version)
    yield from back(core, core.stream(thread_id), path, lambda: len(path.messages) >= count, first)
    part: History = yield Read(partial(with_media, core, History(thread_id, version, path.last(count))))
    return part


def needed_history(core: Core, thread_id: str, version: int, needed: NeededHistory | None) -> Operation[History]:
    """The messages on the path at a version, or the part that runs on a fork from there need."""
    control = yield from readable(core, thread_id, "history")
    messages: History = yield Read(partial(whole_history, core, thread_id, control.version, version, needed))
    return messages


def events(
    core: Core, thread_id: str, after: int, upto: int | None, types: frozenset[str] | None = None
) -> Operation[tuple[list[Event], int]]:
    """One page of a thread's lineage, and the version up to which it was read, which is ``after`` at the end.

    With ``types`` only events of these types. Versions have no gaps, so versions limit a page. The permission is
    checked for every page. A page ends before a damaged event; the next page raises CorruptEventError.
    """
    check_count(after, "after")
    yield from check(core, "read", thread_id)
    stream = core.stream(thread_id)

    def page(size: int) -> tuple[list[Event], int]:
        if upto is not None:
            last = max(after, min(after + size, upto))
            return core.log.with_blobs(core.log.lineage(stream, after=after, upto=last, types=types)), last
        events = core.log.lineage(stream, after=after, upto=after + size)
        return core.log.with_blobs([each for each in events if types is None or each.type in types]), (
            events[-1].version if events else after
        )

    return (yield from read(partial(undamaged, page, PAGE)))


def checked_types(types: Collection[str] | None) -> frozenset[str] | None:
    """The types of events to read, None for all. Raises InvalidNameError for anything but names of types."""
    if types is None:
        return None
    if isinstance(types, str) or not isinstance(types, Collection):
        raise InvalidNameError(f"types={types!r} is not a list of event types. Write types=['message-appended'].")
    for each in types:
        check_id(each, "event type")
    return frozenset(types)


def records(
    core: Core,
    thread_id: str,
    types: Collection[str] = (),
    *,
    key: str | None = None,
    after: int = 0,
    last: int | None = None,
    at: At = None,
) -> Operation[list[ThreadRecord]]:
    """The records on the path after a version, in order; at most the ``last`` ones. Without ``types`` of all types.

    An index finds them: events that are no such records are not read. Raises what readable() and resolve() raise, and
    InvalidContentError or UnknownVersionError for arguments of other types.
    """
    for type_ in types:
        check_record_type(type_)
    if key is not None:
        check_record_key(key)
    _whole("after", after, "a version")
    if last is not None:
        _whole("last", last, "a number of records")
    control = yield from readable(core, thread_id, "records")
    version = yield from resolve(core, thread_id, control, at)
    numbers = [number_of(type_, key) for type_ in dict.fromkeys(types)]
    if not types:
        numbers = [RECORDS if key is None else number_of(None, key)]
    stream, found = core.stream(thread_id), list[ThreadRecord]()
    while version > after and len(found) != last:
        # The path from here back to the last rewind has no gaps.
        rewinds = yield from read(partial(core.log.indexed, stream, REWINDS, after=after, upto=version, limit=1))
        first = rewinds[0].version if rewinds else after
        while version > first and len(found) != last:
            limit = PAGE if last is None else min(PAGE, last - len(found))
            page = yield from read(partial(_indexed, core.log, stream, numbers, first, version, limit))
            # Other records may have the same number.
            wanted = [event for event in page if _records([event], types, key)]
            found += _records((yield from read(partial(core.log.with_blobs, wanted))), types, key)
            version = page[-1].version - 1 if len(page) == limit else first
        version = previous_version(first, rewinds[0]) if rewinds else after
    return found[::-1]


def _records(events: Iterable[Event], types: Collection[str], key: str | None) -> list[ThreadRecord]:
    """Those of the events that are records of one of the types and with the key."""
    records = filter(None, map(as_record, events))
    return [each for each in records if (not types or each.type in types) and key in {None, each.key}]


def _indexed(log: EventLog, stream: str, numbers: Iterable[int], after: int, upto: int, limit: int) -> list[Event]:
    """The newest events under any of the numbers, newest first."""
    found = {
        event.version: event
        for number in numbers
        for event in log.indexed(stream, number, after=after, upto=upto, limit=limit)
    }
    return [found[version] for version in sorted(found, reverse=True)[:limit]]


def upto(core: Core, thread_id: str, at: At, at_message: int | None) -> Operation[int | None]:
    """The version up to which events are read. Events of a deleted thread can be read, too.

    None means the newest version. It is returned if a damaged event prevents reading the control.
    """
    try:
        control = yield from existing(core, thread_id)
    except CorruptEventError:
        if at is None and at_message is None:
            return None
        raise
    return (yield from resolve(core, thread_id, control, at, at_message))


def event(core: Core, thread_id: str, version: int) -> Operation[Event]:
    """One event of a thread's lineage."""
    stream = core.stream(thread_id)
    events: list[Event] = yield Read(partial(core.log.lineage, stream, after=version - 1, upto=version))
    if not events:
        newest = (yield from load(core, thread_id)).version
        raise UnknownVersionError(f"Thread {thread_id!r} has no version {version}: its versions are 1 to {newest}.")
    return events[0]


def whole_event(core: Core, thread_id: str, version: int) -> Operation[Event]:
    """One event of a thread's lineage, with the bytes that the store has next to it."""
    found = yield from event(core, thread_id, version)
    (whole,) = yield from read(partial(core.log.with_blobs, [found]))
    return whole


def cut(core: Core, thread_id: str, version: int) -> Operation[Cut]:
    """The control of a thread at a version that exists, and the stream that holds the version."""
    at: Cut = yield Read(partial(core.log.cut, core.stream(thread_id), version))
    return at


def state(core: Core, thread_id: str, at: At = None, at_message: int | None = None) -> Operation[ThreadState]:
    """The control, the messages and the provider states of a thread at a version."""
    control = yield from readable(core, thread_id, "state")
    version = yield from resolve(core, thread_id, control, at, at_message)
    history: History = yield Read(partial(whole_history, core, thread_id, control.version, version))
    if version != control.version:
        control = (yield from cut(core, thread_id, version)).control
    control = yield from with_checkpoints(core, thread_id, control)
    return ThreadState(detached(control), history.messages, history.context)


def summary(core: Core, thread_id: str) -> Operation[ThreadSummary]:
    """The thread as it appears in a list."""
    control = yield from existing(core, thread_id)
    control = yield from with_checkpoints(core, thread_id, control)
    return _summary(core.stream(thread_id), control)


def forked_streams(
    core: Core, thread_id: str, control: Control, limit: int | None = None
) -> Operation[list[StreamInfo]]:
    """The first forks of a thread, without those of a purged thread that had its id before."""
    return (yield from read(partial(core.log.forks, core.stream(thread_id), cut=control.began, limit=limit)))


def logged_forks(core: Core, thread_id: str, control: Control) -> Operation[list[ThreadSummary]]:
    """The threads that were forked from this one, read from the log: several queries for each of them."""
    streams = yield from forked_streams(core, thread_id, control)
    summaries = yield from read(lambda: _summarise(core.log, streams))
    return list((yield from permitted(core, "list", summaries, attrgetter("id"))))


def verify(core: Core, thread_id: str | None, *, children: bool = False) -> Operation[Verdict]:
    """Verify a thread and its ancestors, or the whole store with all tenants.

    With ``children`` also the threads on which calls ran agents, and the links to them.
    """
    yield from check(core, "audit", thread_id)
    check_flags(children=children)
    if children:
        if thread_id is None:
            raise InvalidContentError("verify: children= needs a thread. Without one, all threads are verified.")
        verdict = yield from verify(core, thread_id)
        ids, cut = yield from read(partial(with_children, core, [thread_id]))
        for child in ids[1:]:
            other = yield from verify(core, child)
            first_bad = verdict.first_bad or other.first_bad
            verdict = Verdict(verdict.threads + other.threads, verdict.events + other.events, first_bad)
        return verdict if verdict.first_bad is not None else verdict._replace(first_bad=cut)
    if thread_id is None:
        return (yield from read(partial(verify_all, core)))
    stream = core.stream(thread_id)
    verdict = yield from read(lambda: core.log.verify(stream))
    if not verdict.threads:
        raise UnknownThreadError(thread_id)
    return verdict


def verify_all(core: Core) -> Verdict:
    """Verify the whole store, and that it is the one from which the read models were filled."""
    verdict = core.log.verify()
    if verdict.first_bad is not None and verdict.first_bad.kind == "changed":
        return verdict
    try:
        others = core.models.projector.other_logs()
    except StoreError:  # damaged read models say no more than missing ones; `clew doctor` names the damage
        return verdict
    for name, position in others.items():
        reason = (
            f"it was filled from another log, up to position {position}: this one is an older copy, or another file"
        )
        return verdict._replace(first_bad=IntegrityFault(f"#projection:{name}", 0, reason))
    return verdict


def _summarise(log: EventLog, streams: list[StreamInfo]) -> list[ThreadSummary]:
    controls = ((stream.name, log.control(stream.name)) for stream in streams)
    return [_summary(name, log.with_checkpoints(name, control)) for name, control in controls]


def _summary(stream: str, control: Control) -> ThreadSummary:
    control = detached(control)
    metadata = control.metadata if control.source_id is None else {**control.metadata, "source_id": control.source_id}
    return ThreadSummary(
        id=stream_id(stream),
        title=control.title,
        status=control.status,
        version=control.version,
        messages=control.messages,
        parent_id=control.parent_id,
        forked_at=control.forked_at,
        head=control.head.hex(),
        created_at=to_time(control.created_at),
        updated_at=to_time(control.updated_at),
        metadata=metadata,
        labels=control.labels,
        checkpoints=control.checkpoints,
        imported=control.imported,
        kind=control.kind,
    )


def whole_history(
    core: Core,
    thread_id: str,
    head: int | None = None,
    version: int | None = None,
    needed: NeededHistory | None = None,
) -> History:
    """The messages on the path, with the bytes of their media."""
    history, names_blobs = _stored_history(core, thread_id, head, version, needed)
    return with_media(core, history) if names_blobs else history


def with_media(core: Core, history: History) -> History:
    """The same history, with the bytes of its media."""
    return replace(history, messages=core.log.whole_messages(core.stream(history.thread_id), history.messages))


def _stored_history(
    core: Core, thread_id: str, head: int | None, version: int | None, needed: NeededHistory | None = None
) -> tuple[History, bool]:
    """The messages on the path as they are stored, and whether some name bytes that are next to their events.

    They come from a cached builder if it has them and nothing was shredded since it was built: it has no such bytes.
    """
    stream = core.stream(thread_id)
    shredded = core.log.shredded()
    cached = core.caches.histories.get(stream)
    if cached is not None and cached.shredded == shredded:
        builder = cached.builder
        after = builder.version
        events = [] if head is not None and after >= head else core.log.history(stream, after=after)
        with core.caches.lock(stream):  # another reader may have added to the same builder meanwhile
            builder.add(events[builder.version - after :])
            history = builder.history(version, needed) if builder.has(version, needed) else None
        if history is not None:
            core.caches.histories.put(stream, cached, builder.weight)
            return history, builder.names_blobs
    part = None if needed is None else read_part(core, thread_id, version, needed)
    builder = HistoryBuilder(thread_id, part)
    if part is None:
        builder.add(core.log.history(stream))  # without the lock: no other reader has it
    history = builder.history(version, needed)
    core.caches.histories.put(stream, CachedHistory(builder, shredded), builder.weight)
    return history, builder.names_blobs


def _bound(argument: str, ref: MessageRef) -> int:
    """The version of a message that limits a part of a history."""
    version = ref.version if isinstance(ref, HistoryMessage) else ref
    return _whole(argument, version, "a message of the history or its version")


def _end(thread_id: str, control: Control, before: MessageRef) -> int:
    """The version before which a part of a history ends: at most the one after the newest."""
    end = _bound("before", before)
    if end > control.version + 1:
        check_version(thread_id, control, end)
    return end


def _whole(argument: str, number: object, meaning: str) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise UnknownVersionError(f"{argument}={number!r} is not {meaning}. Give a whole number, 0 or more.")
    return number


def _newest(core: Core, thread_id: str, control: Control) -> Operation[list[str]]:
    """The names of the newest checkpoints, for an error."""
    first, last = control.made_checkpoints
    newest = partial(core.log.indexed, core.stream(thread_id), CHECKPOINTS, after=first - 1, upto=last, limit=NAMED)
    made = (yield from read(newest)) if last else []
    return sorted(each.data.name for each in made if isinstance(each.data, CheckpointMade) and each.data.name)


def _at(thread_id: str, control: Control, at: int | None) -> int:
    if at is None:
        return control.version
    if not isinstance(at, int) or isinstance(at, bool):
        kind = type(at).__name__
        raise UnknownVersionError(f"{kind} is not a version. Give a number, a checkpoint's name or an aware datetime.")
    check_version(thread_id, control, at)
    return at


def _advice(at: str) -> str:
    """What to pass instead of a text that can never be a checkpoint's name; empty for any other."""
    if is_version(at):
        return "This looks like a version: pass it as a number."
    if message_number(at) is not None:
        return f"This looks like the number of a message: pass at_message={message_number(at)}."
    return "This looks like a time: pass a datetime with a UTC offset." if moment(at) is not None else ""


def _at_message(core: Core, thread_id: str, control: Control, number: int) -> Operation[int]:
    if not isinstance(number, int) or isinstance(number, bool):
        raise UnknownVersionError(f"at_message={number!r} is not the number of a message. The first is 1.")
    history, _ = yield from read(partial(_stored_history, core, thread_id, control.version, control.version))
    messages = history.messages
    if not 0 <= number <= len(messages):
        message = f"Thread {thread_id!r} has no message {number}: there are {len(messages)} on its path."
        raise UnknownVersionError(message)
    if number:
        return messages[number - 1].version
    return messages[0].version - 1 if messages else control.version


def _at_time(core: Core, thread_id: str, control: Control, at: datetime) -> Operation[int]:
    if at.utcoffset() is None:
        message = f"{at.isoformat()} has no offset from UTC. Add one, as in {at.isoformat()}+00:00."
        raise InvalidTimeError(message)
    stream = core.stream(thread_id)
    version = yield from read(lambda: _last_until(core.log, stream, control.version, to_microseconds(at)))
    if not version:
        first = yield from event(core, thread_id, 1)
        message = f"Thread {thread_id!r} did not exist at {at.isoformat()}: it began at {first.time.isoformat()}."
        raise UnknownVersionError(message)
    check_version(thread_id, control, version)
    return version


def _last_until(log: EventLog, stream: str, head: int, time: int) -> int:
    """The last version at or before a time, 0 if none. A binary search, because recorded time never decreases."""
    low, high = 0, head
    while low < high:
        middle = (low + high + 1) // 2
        if _time_at(log, stream, middle) <= time:
            low = middle
        else:
            high = middle - 1
    return low


def _time_at(log: EventLog, stream: str, version: int) -> int:
    """The time of a version. An opaque event without a time has the time of the event before it."""
    recorded_at = 0
    while version and not recorded_at:
        recorded_at = log.lineage(stream, after=version - 1, upto=version)[0].recorded_at
        version -= 1
    return recorded_at


def with_lease(core: Core) -> Operation[list[str]]:
    """The ids of the threads with a run that a process executes, or executed when it ended."""
    names = yield from read(core.log.leased)
    streams = [name for name in map(parse_stream_name, names) if name is not None]
    ids = [name.id for name in streams if (name.tenant, name.kind) == (core.tenant, "thread")]
    return list((yield from permitted(core, "list", ids, lambda id_: id_)))
