"""The commands of a thread: start, append, label, checkpoint, fork, rewind, edit and redact."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from shlex import quote
from typing import NamedTuple, TypeAlias, get_args

from clew.domain.decider import (
    Advance,
    Append,
    Branch,
    Checkpoint,
    Delete,
    End,
    Intent,
    Label,
    RecordEvents,
    Restart,
    Rewind,
    Said,
    Start,
    check_allowed,
)
from clew.domain.decider_state import Control, OpenRun, holder_of
from clew.domain.errors import (
    ConflictError,
    InvalidContentError,
    InvalidNameError,
    NotRedactableError,
    ThreadExistsError,
    UnknownVersionError,
)
from clew.domain.events import (
    MESSAGE_APPENDED,
    Event,
    MemoryReading,
    MessageAppended,
    RecordAppended,
    Shredded,
    ThreadPurged,
    to_utc_microseconds,
)
from clew.domain.history import HistoryMessage, as_message
from clew.domain.json_values import Json, JsonObject, check_json, check_text
from clew.domain.messages import Message, Text, check_message
from clew.domain.models.client import ServiceReference, ThreadKind
from clew.domain.ports import Claim, Draft, Fork, Key
from clew.domain.records import Record, ThreadRecord, as_record, record_appended
from clew.domain.runs.errors import RunInProgressError, RunTakenOverError
from clew.domain.runs.events import RunAbandoned, ServiceThreadBound
from clew.domain.runs.state import fold, interrupted
from clew.domain.streams import check_id, check_idempotency_key, digest, stream_id
from clew.service.authorization import check
from clew.service.chat_turns import waiting_turns
from clew.service.child_runs import abandon_children, waiting_children
from clew.service.core import ATTEMPTS, CommitOptions, Committed, Core, commit, load
from clew.service.effects import Operation, Read, read
from clew.service.remote_threads import check_fork, check_rewind, kind_of_fork
from clew.service.thread_queries import At, MessageRef, cut, event, existing, readable, resolve, whole_event

ContentRef: TypeAlias = HistoryMessage | ThreadRecord | int
"""An existing message or record, or its version."""

Appendable: TypeAlias = Message | Record
"""What can be appended to a thread."""

Items: TypeAlias = list[HistoryMessage | ThreadRecord]
"""What was appended, in its order."""


def start(
    core: Core,
    thread_id: str | None,
    intent: Start,
    actor: str | None,
    appended: Sequence[Appendable] = (),
    *,
    replace_deleted: bool = False,
) -> Operation[str]:
    """Begin a thread, with what is appended to it in the same commit; returns its id. Raises ThreadExistsError.

    With ``replace_deleted``, the id of a purged thread can be used again.
    """
    _check_messages([item for item in intent.messages if not isinstance(item, MessageAppended | RecordAppended)])
    intents: list[Intent] = [intent, Append(checked_items(appended))] if appended else [intent]
    id_ = core.thread_id() if thread_id is None else thread_id
    try:
        yield from commit(core, id_, intents, CommitOptions(actor=actor, base=Control()))
    except ConflictError:
        if not replace_deleted:
            raise ThreadExistsError(id_) from None
        yield from _restart(core, id_, intents, actor)
    return id_


class NewThread(NamedTuple):
    """A thread that was started; ``is_new`` is False if an earlier call with the same key started it."""

    thread_id: str
    is_new: bool = True


def start_new(
    core: Core,
    intent: Start,
    actor: str | None,
    appended: Sequence[Appendable],
    *,
    thread_id: str | None,
    key: str | None,
    replace_deleted: bool,
) -> Operation[NewThread]:
    """Begin a thread with a new id, this one, or the one that the actor and an idempotency key name.

    Raises ThreadExistsError and IdempotencyKeyReusedError.
    """
    if key is None:
        started = yield from start(core, thread_id, intent, actor, appended, replace_deleted=replace_deleted)
        return NewThread(started)
    check_idempotency_key(key)
    if thread_id is not None or replace_deleted:
        raise InvalidNameError(
            "start_thread: idempotency_key= names the thread. Leave out thread_id= and replace_deleted=."
        )
    items = checked_items(appended)
    begins_with = [intent.title, intent.labels, intent.metadata]
    check_json(begins_with, "start_thread")
    content = [*begins_with, key_content(items, None, None)]
    name = digest(json.dumps(["start_thread", core.actor if actor is None else actor, key]).encode()).hex()
    id_ = name[:_KEYED_ID]
    # Stored under its digest, so that the first run on the thread can have the same key.
    stored_key = Key(core.stream(id_), name, json.dumps(content, sort_keys=True).encode())
    intents: list[Intent] = [intent, Append(items)] if items else [intent]
    committed = yield from commit(core, id_, intents, CommitOptions(actor, key=stored_key, base=Control()))
    if not committed.events:
        yield from readable(core, id_, "start_thread")
    return NewThread(id_, bool(committed.events))


_KEYED_ID = 26
"""Hex digits of the id of a thread that is derived from an idempotency key: two keys never have the same."""


def _restart(core: Core, thread_id: str, intents: Sequence[Intent], actor: str | None) -> Operation[None]:
    """Use the id of a purged thread again: its history begins anew. Raises ThreadExistsError for any other thread."""
    control = yield from existing(core, thread_id)
    newest = yield from event(core, thread_id, control.version)
    if not isinstance(newest.data, ThreadPurged):
        if control.status != "deleted":
            raise ThreadExistsError(thread_id)
        raise ThreadExistsError(
            thread_id, ", which is deleted, but not purged", "Purge it to use its id again, choose another id, or"
        )
    first, *appended = intents
    again = [Restart(first.title, first.labels, first.metadata)] if isinstance(first, Start) else []
    options = CommitOptions(actor=actor, expected_version=control.version, retry=False)
    try:
        yield from commit(core, thread_id, [*again, *appended], options)
    except ConflictError:
        raise ThreadExistsError(thread_id) from None  # another process was first


def start_remote(
    core: Core, service_thread: str | ServiceReference | None, held: Sequence[Message] = ()
) -> Operation[str]:
    """Begin a thread that a service holds, with its id and messages there if known; returns its id in Clew."""
    thread_id = core.thread_id()
    intents: list[Intent] = [Start(kind="remote")]
    if service_thread is not None:
        id_ = service_thread.id if isinstance(service_thread, ServiceReference) else service_thread
        check_text(id_, "service_thread_id")
        if held:
            intents.append(Append(checked_items(held)))
        named = service_thread if isinstance(service_thread, ServiceReference) else ServiceReference.named(id_)
        intents.append(RecordEvents((ServiceThreadBound(id=named.id, kind=named.kind),)))
    yield from commit(core, thread_id, intents, CommitOptions(base=Control()))
    return thread_id


def open_or_start(core: Core, thread_id: str, actor: str | None) -> Operation[Control]:
    """Begin a thread if it does not exist. Raises ThreadDeletedError if it is deleted."""
    control = yield from load(core, thread_id)
    if not control.version:
        with suppress(ThreadExistsError):
            yield from start(core, thread_id, Start(), actor)
            return (yield from load(core, thread_id))
    return (yield from readable(core, thread_id, "open"))


def append(
    core: Core,
    thread_id: str,
    appended: Appendable | Sequence[Appendable],
    *,
    actor: str | None,
    expected_version: int | None,
    idempotency_key: str | None,
    said_at: datetime | None = None,
    on_behalf_of: str | None = None,
) -> Operation[Items]:
    """Append one or more messages and records in one commit; returns them as the thread has them."""
    # An append of one message is the most frequent: it makes as few calls as it can.
    items = (appended,) if isinstance(appended, Message) else checked_items(appended)
    if expected_version is not None:
        check_expected_version(expected_version)
    if not items:
        raise InvalidContentError("append: the list of messages is empty. Give a message, or a list of messages.")
    said = None if said_at is None else to_utc_microseconds(said_at, "said_at")
    if on_behalf_of is not None:
        check_id(on_behalf_of, "on_behalf_of")
    key = None if idempotency_key is None else _key(core, thread_id, items, idempotency_key, said, on_behalf_of)
    if core.authorize is not None:
        yield from check(core, "read", thread_id)
    options = CommitOptions(actor, expected_version, key, said=said, on_behalf_of=on_behalf_of)
    committed = yield from commit(core, thread_id, Append(items), options)
    as_item = as_message if isinstance(appended, Message) else appended_item
    if committed.events:
        return list(filter(None, map(as_item, committed.events)))
    first: Items = []  # an earlier append with the same key wrote them
    for version in committed.versions:
        item = as_item((yield from whole_event(core, thread_id, version)))
        if item is not None:
            first.append(item)
    return first


def check_expected_version(version: int) -> None:
    """Raise UnknownVersionError for what is not an integer."""
    if type(version) is not int:
        raise UnknownVersionError(f"expected_version: {type(version).__name__} is not a version. Give an int.")


def appended_item(event: Event) -> HistoryMessage | ThreadRecord | None:
    """An appended message or record as callers see it, None for other events."""
    return as_message(event) or as_record(event)


def change(core: Core, thread_id: str, intent: Intent, actor: str | None) -> Operation[Committed]:
    """Commit an intent. Deleting a thread also removes its draft of an answer.

    The end of a thread also ends its open run: before it, agents that wait on behalf of its calls are abandoned, and
    those that have a turn in it.
    """
    yield from check(core, "read", thread_id)
    if isinstance(intent, End | Delete):
        control = yield from load(core, thread_id)
        children = yield from waiting_children(core, thread_id, control.run, in_progress=True)
        children += yield from waiting_turns(core, thread_id, control)
        if children:
            check_allowed(thread_id, control, intent)
            yield from abandon_children(core, children, actor)
    drafts = (Draft(core.stream(thread_id), "", None),) if isinstance(intent, Delete) else ()
    return (yield from commit(core, thread_id, intent, CommitOptions(actor=actor, drafts=drafts)))


def labels(mapping: Mapping[str, Json] | None, keywords: JsonObject) -> JsonObject:
    """Labels from a mapping and from keyword arguments. Raises InvalidContentError for anything else."""
    if mapping is not None and not isinstance(mapping, Mapping):
        raise InvalidContentError(f"label: {type(mapping).__name__} is not a mapping of names to values. Give a dict.")
    return {**(mapping or {}), **keywords}


def label(core: Core, thread_id: str, labels: JsonObject, actor: str | None) -> Operation[Committed]:
    """Set labels, or with None remove them."""
    if not labels:
        raise InvalidContentError("label: no label was given. Write label(topic='refund'), or topic=None to remove it.")
    yield from check(core, "read", thread_id)
    return (yield from commit(core, thread_id, Label(labels), CommitOptions(actor=actor)))


def checkpoint(core: Core, thread_id: str, name: str, at: At, actor: str | None) -> Operation[int]:
    """Name a version; returns it."""
    yield from check(core, "read", thread_id)
    version: int | None = None
    if at is not None:
        control = yield from readable(core, thread_id, "checkpoint")
        version = yield from resolve(core, thread_id, control, at)
    committed = yield from commit(core, thread_id, Checkpoint(name, version), CommitOptions(actor=actor))
    return committed.versions[0] - 1 if version is None else version


class ForkStart(NamedTuple):
    """How a fork begins. By default it has its parent's title, kind, labels and metadata, and nothing is appended.

    ``then`` is appended in the commit of the fork, or else ``events``, which are checked, with the times when they were
    ``said``. ``memory`` is how it reads memory scopes; None means like its
    parent. ``labels`` are set in addition to the parent's.
    """

    title: str | None = None
    kind: ThreadKind | None = None
    then: Appendable | Sequence[Appendable] = ()
    memory: MemoryReading | None = None
    labels: Mapping[str, Json] | None = None
    metadata: JsonObject | None = None
    events: tuple[MessageAppended | RecordAppended, ...] = ()
    said: Said = ()


def fork(
    core: Core,
    thread_id: str,
    fork_start: ForkStart,
    *,
    at: At,
    at_message: int | None,
    new_id: str | None,
    actor: str | None,
) -> Operation[str]:
    """Begin a thread at a version of this one; returns its id.

    If the version is inherited, the parent of the fork is the ancestor that owns the version. Raises
    ServiceCannotForkError.
    """
    then = checked_items(fork_start.then) if fork_start.then != () else fork_start.events
    shredded = (yield from read(core.log.shredded)) if then else 0  # only many events get a snapshot
    control = yield from readable(core, thread_id, "fork")
    if fork_start.memory not in (None, *get_args(MemoryReading)):
        raise InvalidContentError(f"fork: memory={fork_start.memory!r} is not valid. Give 'live', 'as-of', or nothing.")
    kind = control.kind if fork_start.kind is None else kind_of_fork(fork_start.kind)
    version = control.version
    if at is not None or at_message is not None:
        version = yield from _cut(core, thread_id, control, at, at_message)
    if kind == "remote":
        yield from check_fork(core, thread_id, version)
    stream = owner = core.stream(thread_id)
    base, parent_id = control, thread_id
    if version != control.version:
        owner, base = yield Read(partial(core.log.cut, stream, version))
    if owner != stream:
        parent_id = stream_id(owner)
    if base is not control or control.parent_id is None:  # what was read before, or has no inherited text
        base = base._replace(shredded=shredded)
    new_kind = None if kind == base.kind else kind
    title, memory, metadata = fork_start.title, fork_start.memory, fork_start.metadata
    intents: list[Intent] = [Branch(parent_id, version, base.head.hex(), title, new_kind, memory, metadata)]
    if fork_start.labels:
        intents.append(Label(labels(fork_start.labels, {})))
    if then:
        intents.append(Append(then, fork_start.said))
    options = CommitOptions(actor=actor, base=base, fork=Fork(owner, version))
    fork_id = core.thread_id() if new_id is None else new_id
    try:
        yield from commit(core, fork_id, intents, options)
    except ConflictError:
        raise ThreadExistsError(fork_id) from None
    return fork_id


def _cut(core: Core, thread_id: str, control: Control, at: At, at_message: int | None) -> Operation[int]:
    """The version after which a fork begins."""
    version = yield from resolve(core, thread_id, control, at, at_message)
    # Version 1 is of the purged thread that had the id before, and this thread continues from there at its rewind.
    return control.began + 1 if version < control.began else version


def rewind(
    core: Core,
    thread_id: str,
    to: At,
    then: Appendable | Sequence[Appendable] = (),
    *,
    expected_version: int | None = None,
    abandon_run: bool,
    actor: str | None,
) -> Operation[int]:
    """Continue from an earlier version, or from an abandoned one; returns the version of the rewind.

    ``then`` is appended in the same commit. Agents on other threads that the open run waits for are abandoned before,
    and those that have a turn in the chat.
    Raises RunInProgressError while a run holds the lease, unless ``abandon_run``, and ServiceCannotForkError.
    """
    control = yield from readable(core, thread_id, "rewind")
    children = yield from waiting_children(core, thread_id, control.run, in_progress=abandon_run)
    children += yield from waiting_turns(core, thread_id, control)
    if children:
        if expected_version not in {None, control.version}:
            raise ConflictError(thread_id, expected_version or 0, control.version)
        check_allowed(thread_id, control, (yield from rewind_intent(core, thread_id, control, to)))
        yield from abandon_children(core, children, actor)
    rewinding = _rewind(core, thread_id, to, then, expected_version, abandon_run=abandon_run, actor=actor)
    return (yield from rewinding)


def _rewind(
    core: Core,
    thread_id: str,
    to: At,
    then: Appendable | Sequence[Appendable],
    expected_version: int | None,
    *,
    abandon_run: bool,
    actor: str | None,
) -> Operation[int]:
    items = checked_items(then)
    if expected_version is not None:
        check_expected_version(expected_version)
    control = yield from readable(core, thread_id, "rewind")
    rewinding: list[Intent] = [(yield from rewind_intent(core, thread_id, control, to))]
    if items:
        rewinding.append(Append(items))
    rewind_place = -1 - len(items)
    if not abandon_run:
        options = CommitOptions(actor, expected_version, claims=_without_run(core, thread_id))
        try:
            return (yield from commit(core, thread_id, rewinding, options)).versions[rewind_place]
        except RunInProgressError as error:
            raise RunInProgressError(thread_id, error.holder, _END_RUN) from None
    conflict: ConflictError | None = None
    for _ in range(ATTEMPTS):
        run = control.run
        ending: list[Intent] = []
        options = CommitOptions(actor=actor, claims=_without_run(core, thread_id))
        if run is not None:
            ending, options = yield from _abandoned(core, thread_id, run, actor)
        options = options._replace(expected_version=expected_version)
        try:
            return (yield from commit(core, thread_id, [*ending, *rewinding], options)).versions[rewind_place]
        except (RunTakenOverError, RunInProgressError) as error:  # another run has begun: try again
            conflict = error
            control = yield from load(core, thread_id)
    raise conflict or ConflictError(thread_id, 0, 0)


def rewind_intent(core: Core, thread_id: str, control: Control, to: At) -> Operation[Rewind]:
    """The rewind of a thread with this control to a version. Raises ServiceCannotForkError."""
    if to is None:
        raise UnknownVersionError("rewind: to= is missing. Give a version, a checkpoint's name or an aware datetime.")
    version = yield from resolve(core, thread_id, control, to)
    messages = (yield from event(core, thread_id, version)).messages
    if messages < 0:  # an opaque event has no count: the event before it has one
        messages = (yield from cut(core, thread_id, version)).control.messages
    return Rewind(version, messages, (yield from check_rewind(core, thread_id, version, control)))


_END_RUN = "Wait until it ends, or end it: abandon_run=True, on the command line --abandon-run."


def _abandoned(
    core: Core, thread_id: str, run: OpenRun, actor: str | None
) -> Operation[tuple[list[Intent], CommitOptions]]:
    """The intents and options of a commit that ends an open run and removes its lease and its draft."""
    stream = core.stream(thread_id)
    draft = yield from read(lambda: core.log.draft(stream))
    steps = (*interrupted(run, draft, "stopped"), RunAbandoned(reason="asked"))
    release = Claim(stream, holder_of(run), core.now(), 0)
    options = CommitOptions(
        actor=actor, claims=(release, *_without_run(core, thread_id)), drafts=(Draft(stream, run.id, None),)
    )
    began = yield from read(lambda: core.log.lineage(stream, after=run.began - 1, upto=run.began))
    return [Advance(run.id, run.attempt, steps, fold(run.id, began).by)], options


def _without_run(core: Core, thread_id: str) -> tuple[Claim, Claim]:
    """Claims that fail while a run holds the lease of the thread. They take the lease and release it."""
    stream, now = core.stream(thread_id), core.now()
    return Claim(stream, "rewind", now, now + 1), Claim(stream, "rewind", now, 0)


def edit(
    core: Core,
    thread_id: str,
    ref: MessageRef,
    new: Message | str,
    *,
    title: str | None,
    new_id: str | None,
    actor: str | None,
) -> Operation[str]:
    """Fork before a message and append another message there; returns the fork's id."""
    yield from readable(core, thread_id, "edit")
    version = _version(ref)
    old = yield from content_event(core, thread_id, ref, "edit", {MESSAGE_APPENDED})
    message = _replacement(old, new)
    check_message(message)
    fork_start = ForkStart(title, then=message)
    return (yield from fork(core, thread_id, fork_start, at=version - 1, at_message=None, new_id=new_id, actor=actor))


def checked_items(items: Appendable | Sequence[Appendable]) -> tuple[Message | RecordAppended, ...]:
    """The items of an append. Raises InvalidContentError for anything else."""
    if isinstance(items, Message):
        return (items,)
    if isinstance(items, Record):
        return (record_appended(items),)
    if isinstance(items, str) or not isinstance(items, Sequence):
        kind = type(items).__name__
        text = f"append: {kind} is neither a Message nor a list of them. Use Message.user(…), Message.assistant(…)."
        raise InvalidContentError(text)
    checked = tuple([record_appended(item) if isinstance(item, Record) else item for item in items])
    _check_messages([item for item in checked if not isinstance(item, RecordAppended)])
    return checked


def _check_messages(messages: Sequence[Message]) -> None:
    for number, message in enumerate(messages):
        if not isinstance(message, Message):
            kind = type(message).__name__
            text = f"item {number} is {kind}, not a Message. Use Message.user(…), Message.assistant(…)."
            raise InvalidContentError(text)


def _key(
    core: Core,
    thread_id: str,
    items: Sequence[Message | RecordAppended],
    key: str,
    said: int | None,
    on_behalf_of: str | None,
) -> Key:
    check_idempotency_key(key)
    content = key_content(items, said, on_behalf_of)
    return Key(core.stream(thread_id), key, json.dumps(content, sort_keys=True).encode())


def key_content(
    items: Sequence[Message | MessageAppended | RecordAppended], said: int | None, on_behalf_of: str | None
) -> list[object]:
    """What an idempotency key stands for."""
    for item in items:
        if isinstance(item, Message):
            check_message(item)
    content: list[object] = [_content(item) for item in items]
    if said is not None or on_behalf_of is not None:
        content += [said, on_behalf_of]
    return content


def _content(item: Message | MessageAppended | RecordAppended) -> JsonObject:
    """An item as an older Clew stored it, so that its keys are known: with the bytes of a record inside."""
    fields = item.model_dump()
    if isinstance(item, RecordAppended) and item.digest is not None and item.blob is not None:
        del fields["size"], fields["digest"]
        fields["base64"] = b64encode(item.blob).decode()
    return fields


def _version(ref: ContentRef) -> int:
    version = ref if isinstance(ref, int) else getattr(ref, "version", None)
    if not isinstance(version, int) or isinstance(version, bool):
        kind = type(ref).__name__
        raise NotRedactableError(f"{kind} is not a message of a thread. Give a message of its history, or a version.")
    return version


def content_event(
    core: Core, thread_id: str, ref: ContentRef, command: str, types: Collection[str]
) -> Operation[Event]:
    """The event of a message or a record. Raises NotRedactableError for events of other types."""
    version = _version(ref)
    old = yield from event(core, thread_id, version)
    if isinstance(ref, HistoryMessage | ThreadRecord) and ref.event_id != old.event_id:
        raise NotRedactableError(
            f"{command}: the message belongs to another thread, not to {thread_id!r}. Use the thread that it came from."
        )
    if old.type not in types:
        raise NotRedactableError(
            f"{command}: version {version} of thread {thread_id!r} is {old.type}, not a message{_or_text(command)}. "
            f"The versions of its messages are in its history: `clew show {quote(thread_id)}` lists them."
        )
    return old


def _or_text(command: str) -> str:
    return ", and holds no text of a user or a service" if command == "redact" else ""


def _replacement(old: Event, new: Message | str) -> Message:
    if isinstance(new, Message):
        return new
    if not isinstance(new, str):
        raise InvalidContentError(f"edit: {type(new).__name__} is neither a Message nor a string.")
    match old.data:
        case MessageAppended(message=message):
            return Message(role=message.role, author=message.author, contents=(Text(text=new),))
        case Shredded(role=role) if role is not None:
            return Message(role=role, contents=(Text(text=new),))
        case _:
            raise InvalidContentError(f"edit: version {old.version} cannot be read. Give a whole Message.")
