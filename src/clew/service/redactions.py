"""Redactions and purges: they destroy texts of a thread, and the chain still verifies."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from clew.domain.decider import Delete, Intent, Purge, Redact
from clew.domain.decider_state import Control, holder_of
from clew.domain.errors import (
    ConflictError,
    NotRedactableError,
    StoreError,
    StoreUnavailableError,
    ThreadHasForksError,
)
from clew.domain.events import (
    APPENDED_TYPES,
    MESSAGE_APPENDED,
    REDACTABLE_TYPES,
    STATE_TYPES,
    Event,
    holds_text,
)
from clew.domain.ports import Claim, Draft, Forget, Shred
from clew.domain.purge_digest import statement
from clew.domain.runs.events import QUOTING, Failure, GuardrailTripped, HandedOff, RequestChanged, ToolProgressed
from clew.domain.streams import stream_id
from clew.service.authorization import check, permitted
from clew.service.child_runs import own_channels, own_children
from clew.service.core import ATTEMPTS, CommitOptions, Core, commit, load
from clew.service.effects import Operation, Pause, Read, read
from clew.service.thread_commands import ContentRef, content_event
from clew.service.thread_queries import event, existing, forked_streams

PAGE = 1_000
"""Rows in one read."""

MOST_FORKS = 1_000
"""Forks that the error of a purge counts."""

ERASE_SECONDS = 0.1
"""The pause between attempts to remove redacted text while another program reads it."""


_ALREADY = "Thread {!r} is already purged."


class Redaction(NamedTuple):
    """What a redaction has removed.

    ``version`` is that of the redaction's event, in the thread that recorded the content. ``errors`` are the versions
    of the errors that were redacted with a message, because a service may have quoted it in them. ``pending`` is true
    if another program still reads an older state of the store: until it ends, the content remains in the files of a
    SQLite store, where only other programs can find it. It is also true while tables of a projection still have the
    content that only another process can fill. ``erase()`` waits for that.
    """

    version: int
    errors: tuple[int, ...] = ()
    pending: bool = False


def redact(core: Core, thread_id: str, ref: ContentRef, reason: str | None, actor: str | None) -> Operation[Redaction]:
    """Shred the content of an event in the stream that owns it.

    With a message or a record, also the errors after it: their service may have quoted it.
    """
    yield from existing(core, thread_id)
    old = yield from content_event(core, thread_id, ref, "redact", REDACTABLE_TYPES)
    version = old.version
    if not old.redacted and old.type not in APPENDED_TYPES and not holds_text(old):
        raise NotRedactableError(f"redact: version {version} of thread {thread_id!r}, {old.type}, holds no text.")
    owner = old.thread_id
    if owner != thread_id:
        yield from check(core, "read", owner)  # the redaction is recorded there, and its readers lose the message
    conflict = ConflictError(thread_id, 0, 0)
    for _ in range(ATTEMPTS):
        errors = (yield from _quoting_errors(core, old)) if old.type in APPENDED_TYPES else ()
        shreds = yield from _shreds(core, old.stream, (version, *errors))
        if all(shred.version != version for shred in shreds):
            raise NotRedactableError(f"Version {version} of thread {thread_id!r} is already redacted.")
        intents = [Redact(each.version, each.digest.hex(), each.stub.decode("latin-1"), reason) for each in shreds]
        forgets = (Forget(old.stream),) if old.type in STATE_TYPES else ()
        options = CommitOptions(actor=actor, shreds=shreds, forgets=forgets, retry=False)
        try:
            by = (yield from commit(core, owner, intents, options)).versions[0]
        except ConflictError as error:
            conflict = error  # another process appended, or redacted the same message: try again
        else:
            if forgets and core.models.embedded:
                yield from core.models.wait(None)  # the read models have no log of what was in their rows
            if old.type == MESSAGE_APPENDED:
                yield from forget(core, old.stream, [version], by)
            gone = tuple(shred.version for shred in shreds[1:])
            return Redaction(by, gone, pending=not (yield from _is_erased(core)))
    raise conflict


class Purged(NamedTuple):
    """What a purge has destroyed.

    ``version`` is that of the purge's event, ``events`` the number of events whose texts were destroyed, without those
    of ``children``: the threads on which its calls ran agents, and those on which the turns of a chat did, which were
    purged with it. ``pending`` as in Redaction.
    """

    version: int
    events: int
    pending: bool = False
    children: tuple[str, ...] = ()


def check_purge(core: Core, thread_id: str, *, forks: bool) -> Operation[bool]:
    """Whether the thread is deleted. Raises the errors of a purge that is refused, before anything is destroyed."""
    control = yield from existing(core, thread_id)
    left = yield from read(partial(_not_purged, core, thread_id))
    if not left:
        raise NotRedactableError(_ALREADY.format(thread_id))
    for each, is_channel in left.items():
        if not (forks or is_channel):
            yield from _check_forks(core, each)
    return control.status == "deleted"


def _check_forks(core: Core, thread_id: str) -> Operation[None]:
    control = yield from load(core, thread_id)
    found = yield from forked_streams(core, thread_id, control, MOST_FORKS + 1)
    if found:
        counted = found[:MOST_FORKS]
        seen = yield from permitted(core, "list", counted, lambda each: stream_id(each.name))
        more = len(found) > MOST_FORKS
        raise ThreadHasForksError(thread_id, len(seen), hidden=len(seen) < len(counted), more=more)


def _not_purged(core: Core, thread_id: str) -> dict[str, bool]:
    """Of a thread and those on which its calls or turns ran agents, directly or not, those with texts; callers first.

    And whether each is a channel of a chat: its forks are channels of the same chat, after rewinds, or of forks of it.
    """
    found = {thread_id: False}
    waiting = [thread_id]
    for each in waiting:  # grows
        below = dict.fromkeys(own_children(core, each), False)
        below |= dict.fromkeys(own_channels(core, each), True)
        new = [child for child in below if child not in found]
        found |= {child: below[child] for child in new}
        waiting += new
    return {each: is_channel for each, is_channel in found.items() if not _is_purged(core, each)}


def _is_purged(core: Core, thread_id: str) -> bool:
    stream = core.stream(thread_id)
    last = core.log.lineage(stream, types=["thread-purged", "thread-restarted"])[-1:]
    return any(each.type == "thread-purged" and each.stream == stream for each in last)


def purge(core: Core, thread_id: str, reason: str | None, actor: str | None, *, forks: bool) -> Operation[Purged]:
    """Purge a thread, and before it the threads on which its own calls or turns ran agents.

    So the threads of a purged one are purged, too, and a purge that was interrupted is repeated like one that was not
    begun. A run in progress may ask another agent until its own thread is purged: therefore they are looked for again.
    """
    yield from check_purge(core, thread_id, forks=forks)
    by, events, pending, children = 0, 0, False, dict[str, None]()
    while left := (yield from read(partial(_not_purged, core, thread_id))):
        for each in reversed(left):
            try:
                purged = yield from _purge(core, each, reason, actor, forks=forks or left[each])
            except NotRedactableError:  # another process was faster
                if each == thread_id:
                    raise
                continue
            pending = pending or purged.pending
            if each == thread_id:
                by, events = purged.version, purged.events
            else:
                children[each] = None
    by = by or (yield from load(core, thread_id)).version  # only threads of its calls were left
    return Purged(by, events, pending, tuple(children))


def _purge(core: Core, thread_id: str, reason: str | None, actor: str | None, *, forks: bool) -> Operation[Purged]:
    """Shred every text in a thread's own events, in one commit, and delete the thread if it is not deleted.

    A run that is in progress loses its lease, so that it writes no draft any more.
    """
    stream = core.stream(thread_id)
    conflict = ConflictError(thread_id, 0, 0)
    for attempt in range(ATTEMPTS):
        if (yield from read(partial(_is_purged, core, thread_id))):
            raise NotRedactableError(_ALREADY.format(thread_id))
        if not forks:
            yield from _check_forks(core, thread_id)
        control = yield from load(core, thread_id)
        if attempt and control.status != "deleted":  # it is in use: nothing is appended to a deleted thread
            yield from commit(
                core, thread_id, Delete(), CommitOptions(actor=actor, claims=_release(core, stream, control))
            )
            continue
        messages, shreds = yield from _texts_of(core, stream)
        stated = statement((each.version, each.digest.hex(), each.stub.decode("latin-1")) for each in shreds)
        intents: list[Intent] = [] if control.status == "deleted" else [Delete()]
        intents.append(Purge(*stated, reason))
        options = CommitOptions(
            actor=actor,
            expected_version=control.version,
            shreds=shreds,
            forgets=(Forget(stream, keys=True, unforked_from=None if forks else control.began),),
            claims=_release(core, stream, control),
            drafts=(Draft(stream, "", None),),
            retry=False,
        )
        try:
            by = (yield from commit(core, thread_id, intents, options)).versions[-1]
        except ConflictError as error:
            conflict = error  # another process appended or forked: read its events, too
            core.caches.stored.drop(stream)
        else:
            if core.models.embedded:
                yield from core.models.wait(None)  # as after a redaction
            yield from forget(core, stream, messages, by)
            return Purged(by, len(shreds), pending=not (yield from _is_erased(core)))
    raise conflict


def _release(core: Core, stream: str, control: Control) -> tuple[Claim, ...]:
    """What releases the lease of a run that is in progress."""
    return () if control.run is None else (Claim(stream, holder_of(control.run), core.now(), 0),)


def _texts_of(core: Core, stream: str) -> Operation[tuple[list[int], tuple[Shred, ...]]]:
    """The versions of a stream's own messages, and how to shred all of its texts."""
    messages: list[int] = []
    shreds: list[Shred] = []
    after = 0
    while True:
        found, page, last = yield from read(partial(_page_of_texts, core, stream, after))
        messages += found
        shreds += page
        if last is None:
            return messages, tuple(shreds)
        after = last


def _page_of_texts(core: Core, stream: str, after: int) -> tuple[list[int], list[Shred], int | None]:
    rows = core.log.own_rows(stream, after=after, limit=PAGE)
    shreds = [
        Shred(stream, row.version, *found)
        for row, found in zip(rows, core.log.redactable_rows(rows), strict=True)
        if found is not None
    ]
    gone = {shred.version for shred in shreds}
    messages = [row.version for row in rows if row.type == MESSAGE_APPENDED and row.version in gone]
    return messages, shreds, rows[-1].version if rows else None


def _shreds(core: Core, stream: str, versions: Sequence[int]) -> Operation[tuple[Shred, ...]]:
    """How to shred these rows of a stream, without those that are shredded already."""
    found: list[Shred] = []
    for version in versions:
        redactable = yield from read(partial(core.log.redactable, stream, version))
        if redactable is not None:
            found.append(Shred(stream, version, *redactable))
    return tuple(found)


def _quoting_errors(core: Core, message: Event) -> Operation[tuple[int, ...]]:
    """The versions of the events after a message, in its own stream, that hold words of a service or of middleware."""
    found: list[int] = []
    after = message.version
    while rows := (yield from read(partial(core.log.own_rows, message.stream, after=after, limit=PAGE))):
        for row in rows:
            if row.type in QUOTING and row.digest is None:
                data = (yield from event(core, message.thread_id, row.version)).data
                error: Failure | None = getattr(data, "error", None)
                has_words = error is not None and (error.message or error.code)
                if has_words or isinstance(data, RequestChanged | GuardrailTripped | ToolProgressed | HandedOff):
                    found.append(row.version)
        after = rows[-1].version
    return tuple(found)


def erase(core: Core, timeout: float | None) -> Operation[bool]:
    """Remove what redactions have left in the files; False if some of it is still there after ``timeout``."""
    position = yield from core.models.position()
    until = None if timeout is None else time.monotonic() + timeout
    while not (yield Read(partial(_erase, core, position))):
        if until is not None and time.monotonic() >= until:
            return False
        yield Pause(ERASE_SECONDS)
    return True


def _is_erased(core: Core) -> Operation[bool]:
    """Remove what a redaction has left in the files, which is recorded now; False if that cannot be done yet."""
    position = yield from core.models.position()
    try:
        return (yield from read(partial(_erase, core, position)))
    except StoreError:
        return False  # ``erase()`` reports it


def _erase(core: Core, position: int) -> bool:
    return (core.log.erase() is None) & core.models.erase(position)


def forget(core: Core, stream: str, versions: Sequence[int], by: int) -> Operation[None]:
    """Remove the words of messages from the indexes. The event at version ``by`` is their redaction."""
    if not versions:
        return
    try:
        yield from read(partial(core.models.forget, stream, versions, by))
    except StoreError as error:
        raise StoreUnavailableError(
            f"{stream} version {versions[0]} is redacted, by version {by}; do not redact it again. "
            f"But its words are still in the search index until the index is rebuilt. {error}"
        ) from error
