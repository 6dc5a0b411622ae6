"""Importing conversations: each in one commit, and none of them twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

from clew.domain.control import Control, advance
from clew.domain.decider import Say
from clew.domain.errors import (
    ConflictError,
    ImportFormatError,
    InvalidContentError,
    NotAuthorizedError,
    ThreadExistsError,
)
from clew.domain.events import ThreadStarted
from clew.domain.formats.conversation_import import (
    Begin,
    Conversation,
    Extend,
    Failure,
    ImportReport,
    Item,
    Occurrences,
    Refuse,
    Skip,
    There,
    failure,
    plan,
    read_conversation,
    thread_id,
)
from clew.domain.history import HistoryBuilder
from clew.service.authorization import check_there
from clew.service.core import ATTEMPTS, Core, Terms, commit
from clew.service.operations import Operation, read
from clew.service.thread_commands import start

Progress: TypeAlias = Callable[[ImportReport], None]
"""Told after every conversation what was done so far."""


class Imported(NamedTuple):
    """What became of one conversation: nothing was written when its thread had all of it."""

    thread_id: str
    messages: int
    events: int


def import_conversations(
    core: Core, items: Iterator[Item | Failure], *, actor: str | None = None, progress: Progress | None = None
) -> Operation[ImportReport]:
    """Import one conversation after the other; what cannot be imported is in the report, and the rest goes on.

    Raises what the reader of the items raises, and StoreError when the store fails: what was imported until then stays.
    """
    occurrences = Occurrences()
    report = ImportReport(0, 0, 0, 0, [])
    while (item := (yield from read(lambda: next(items, None)))) is not None:
        if isinstance(item, Failure):
            report.failed.append(item)
        else:
            try:
                done = yield from _import_item(core, item, occurrences, actor)
            except (ImportFormatError, InvalidContentError, NotAuthorizedError) as error:
                report.failed.append(failure(item, error))
            else:
                report = _with(report, done)
        if progress is not None:
            progress(report)
    return report


def import_conversation(
    core: Core, conversation: Conversation, occurrence: int, actor: str | None = None
) -> Operation[Imported]:
    """Start the thread of a conversation, append what it lacks, or leave it as it is.

    ``occurrence`` tells equal conversations without ids apart. Raises ImportFormatError for a conversation that is not
    the thread's, with the thread's state, InvalidContentError for a message that is too large, and NotAuthorizedError
    for a thread that is there and may not be read.
    """
    id_ = thread_id(conversation.key(occurrence))
    attempts = 0
    while True:
        there = yield from _there(core, id_)
        try:
            match plan(conversation, there):
                case Skip():
                    return Imported(id_, 0, 0)
                case Refuse(reason=reason):
                    raise ImportFormatError(f"Conversation of thread {id_!r}: {reason}.")
                case Begin(intent=intent):
                    yield from start(core, id_, intent, actor)
                    return Imported(id_, len(intent.messages), 1 + len(intent.messages))
                case Extend(messages=messages, expected_version=version):
                    terms = Terms(actor=actor, expected_version=version)
                    yield from commit(core, id_, Say(messages), terms)
                    return Imported(id_, len(messages), len(messages))
        except (ConflictError, ThreadExistsError):  # somebody else wrote to the thread: look again
            attempts += 1
            if attempts == ATTEMPTS:
                raise


def _import_item(core: Core, item: Item, occurrences: Occurrences, actor: str | None) -> Operation[Imported]:
    conversation = yield from read(lambda: read_conversation(item.value))
    return (yield from import_conversation(core, conversation, occurrences.next(conversation), actor))


def _with(report: ImportReport, done: Imported) -> ImportReport:
    if not done.events:
        return report._replace(skipped=report.skipped + 1)
    return report._replace(
        threads=report.threads + 1, messages=report.messages + done.messages, events=report.events + done.events
    )


def _there(core: Core, id_: str) -> Operation[There | None]:
    """The thread as the log has it, deleted or not."""
    stream = core.stream(id_)
    yield from read(lambda: check_there(core, stream))
    events = yield from read(lambda: core.log.lineage(stream))
    if not events:
        return None
    control = Control()
    for event in events:
        control = advance(control, event)
    builder = HistoryBuilder(id_)
    builder.add(events)
    first = events[0]
    started = first.data if first.stream == stream and isinstance(first.data, ThreadStarted) else None
    return There(started, control, builder.history().messages)
