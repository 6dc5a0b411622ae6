"""The check of events that Clew did not decide itself: whether an event makes sense after the events before it.

An event with a correct hash can still be forged: anybody can compute hashes. Import, restore and verification therefore
check each event against the state after the events before it. The state and most rules are those of the decider, so
that every sequence of its decisions passes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from clew.domain.decider import Advance, RecordEvents, RunStep, check_allowed, check_step, check_version
from clew.domain.decider_state import Control
from clew.domain.errors import ClewError, ThreadStatusError
from clew.domain.event_types import EventType
from clew.domain.events import (
    APPENDED_TYPES,
    EVENT_TYPES,
    FIRST_MICROSECOND,
    LAST_MICROSECOND,
    MESSAGE_APPENDED,
    CheckpointMade,
    Event,
    HistoryRewound,
    Opaque,
    RecordAppended,
    Shredded,
    ThreadForked,
)
from clew.domain.memory.events import (
    DocumentAdded,
    DocumentRemoved,
    FactRemembered,
    FactRetracted,
    FactSuperseded,
    ScopeOpened,
    Statement,
)
from clew.domain.records import LONGEST_KEY
from clew.domain.runs.events import REFERENCES
from clew.domain.streams import MAX_LENGTH, Kind

_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f]")

FIRST_TYPES = {"thread-started", "thread-forked"}
"""The types of which every thread has one event, its first."""


def thread_problem(
    control: Control, event: Event, count_at: Callable[[int], int], *, begins: bool = False
) -> str | None:
    """Why an event cannot follow in a thread, in words that continue its address; None if it can.

    ``control`` is the thread's state before the event. For the first event of a thread, which ``begins`` it, that is
    ``Control()``, or for a fork the parent's state at the cut. ``count_at`` gives the messages that the event of an
    earlier version of the lineage counts.

    It checks the first event, the status, the count of messages, the time, rewinds, checkpoints, the types and keys of
    records, the steps of runs, and that references are to earlier versions. It does not check the content of messages,
    labels and names, who may do what, whether a time is in the future, whether a reference is to the right kind of
    event, nor, of events that this Clew does not know, more than their numbers. The import and the verification check
    redactions and fork points.
    """
    if control.status == "active" and is_next_message(event, control.messages, control.updated_at) and not begins:
        return None  # most events
    problem = _first_problem(control, event, begins=begins) or number_problem(control.updated_at, event)
    if problem is None and not isinstance(event.data, Opaque):
        problem = _status_problem(control, event) or _data_problem(control, event)
    return problem or _count_problem(control, event, count_at)


def is_next_message(event: Event, messages: int, recorded_at: int) -> bool:
    """Whether an event is a message outside a run that can follow in any active thread.

    ``messages`` and ``recorded_at`` are those of the event before it. After such messages, one after the other, the
    state of the thread has changed only by the newest of them.
    """
    return (
        event.type == MESSAGE_APPENDED
        and event.run_id is None
        and recorded_at <= event.recorded_at <= LAST_MICROSECOND
        and event.messages == messages + 1
    )


def number_problem(recorded_at: int, event: Event) -> str | None:
    """Why the time of an event cannot follow ``recorded_at``, the newest time before it; None if it can.

    An event that this Clew does not know can have no time, or an earlier one. The event after one beyond the year 9999
    has the last time that can be shown.
    """
    if event.recorded_at > LAST_MICROSECOND:
        return (
            f"its time is {event.recorded_at} microseconds after 1970, but the last one that exists is the end of 9999"
        )
    if event.recorded_at < 0:
        return f"its time is {-event.recorded_at} microseconds before 1970, but no event is older"
    if event.recorded_at < min(recorded_at, LAST_MICROSECOND) and not isinstance(event.data, Opaque):
        return f"it was recorded {recorded_at - event.recorded_at} microseconds before the event that it follows"
    return None


def kind_problem(event: Event, kind: Kind) -> str | None:
    """Why an event cannot be in a stream of this kind; None if it can."""
    declared: EventType | None = EVENT_TYPES.get(event.type)
    if declared is None or declared.stream == kind:
        return None
    return f"{event.type!r} is an event of {declared.stream!r} streams, and this is a {kind!r} stream"


def _first_problem(control: Control, event: Event, *, begins: bool) -> str | None:
    if not begins:
        return f"{event.type!r} begins a thread, but it is not the first event" if event.type in FIRST_TYPES else None
    expected = "thread-forked" if control.version else "thread-started"
    if event.type != expected:
        return f"the first event must be {expected!r}, but it is {event.type!r}"
    if isinstance(event.data, ThreadForked):
        if control.status == "deleted":
            return "it forks a thread that is deleted at the cut"
        if event.data.parent_hash != control.head.hex():
            return f"it names {event.data.parent_hash!r} as the hash of the cut, which is {control.head.hex()}"
    return None


def _status_problem(control: Control, event: Event) -> str | None:
    """Why the thread's status or its open run does not accept an event."""
    data: Any = event.data
    is_appended, run_id = event.type in APPENDED_TYPES, event.run_id
    if event.type in FIRST_TYPES or (is_appended and run_id is None and control.status == "active"):
        return None
    if isinstance(data, Shredded) and not is_appended:
        return None
    if is_appended and run_id is None:
        return f"the thread is {control.status}, and accepts no {event.type!r}"
    in_run = run_id is not None and (is_appended or isinstance(data, RunStep))
    if not in_run and not EVENT_TYPES[event.type].statuses:
        return kind_problem(event, "thread") or f"{event.type!r} is a step of a run, but the event names no run"
    run = control.run
    attempt = 1 if run is None else run.attempt
    try:
        # What is allowed does not depend on the content that is appended, so a shredded event needs none.
        check_allowed("", control, Advance(run_id or "", attempt, (data,)) if in_run else RecordEvents((data,)))
        if in_run and not is_appended:
            check_step("", run, run_id or "", attempt, data)
    except ThreadStatusError:
        return f"the thread is {control.status}, and accepts no {event.type!r}"
    except ClewError:
        found = "no run is open" if run is None else f"the open run is {run.id!r}, which does not allow this step now"
        return f"{event.type!r} is a step of the run {run_id!r}, but {found}"
    if in_run and is_appended and (run is None or run.id != run_id):
        return f"it belongs to the run {run_id!r}, which is not open"
    return None


def _data_problem(control: Control, event: Event) -> str | None:
    """Why the content of an event does not fit the events before it."""
    data = event.data
    try:
        if isinstance(data, HistoryRewound):
            check_version("", control, data.to)
        elif isinstance(data, CheckpointMade):
            check_version("", control, data.at)
            if data.name and data.name in control.checkpoints:
                return f"it makes a checkpoint of a name that version {control.checkpoints[data.name]} already has"
    except ClewError:
        target = data.to if isinstance(data, HistoryRewound) else getattr(data, "at", 0)
        return f"it names version {target}, but only versions 1 to {control.version} are before it"
    if isinstance(data, RecordAppended):
        return _record_problem(data)
    if isinstance(data, RunStep):
        for name in REFERENCES:
            version = getattr(data, name, None)
            if type(version) is int and not 0 <= version < event.version:
                return f"{name!r} is version {version}, but only versions 1 to {control.version} are before it"
    return None


def _record_problem(record: RecordAppended) -> str | None:
    """Why no application can have appended a record. Which characters are printable depends on Python's version."""
    if not 1 <= len(record.type) <= MAX_LENGTH:
        return f"its record's type has {len(record.type)} characters, but it must have 1 to {MAX_LENGTH}"
    if _CONTROL_CHARACTER.search(record.type):
        return "its record's type has a control character"
    if record.key is not None and not 1 <= len(record.key) <= LONGEST_KEY:
        return f"its record's key has {len(record.key)} characters, but it must have 1 to {LONGEST_KEY}"
    return None


def _count_problem(control: Control, event: Event, count_at: Callable[[int], int]) -> str | None:
    """Why the number of messages on the path is wrong. Events that this Clew does not know may have none."""
    data = event.data
    if isinstance(data, Opaque):
        if -1 <= event.messages <= event.version:
            return None
        return f"it counts {event.messages} messages, but has version {event.version}"
    expected = control.messages
    if isinstance(data, HistoryRewound):
        expected = count_at(data.to)
    elif event.type == MESSAGE_APPENDED:
        expected += 1
    if event.messages == expected:
        return None
    unknown = expected if isinstance(data, HistoryRewound) else count_at(control.version) if control.version else 0
    if unknown < 0 <= event.messages <= event.version:
        return None  # after an event without a count
    return f"it counts {event.messages} messages on the path, but there are {expected}"


class ScopeSequence:
    """The state of a memory scope that its events are checked against: its facts, and the documents in it.

    ``version`` is that of the newest event, ``recorded_at`` the newest time. Only ids are held, and no texts.
    """

    def __init__(self) -> None:
        self.version = 0
        self.recorded_at = 0
        self._holds: str | None = None
        self._facts: set[str] = set()
        self._documents: set[str] = set()

    def __len__(self) -> int:
        return len(self._facts) + len(self._documents)

    def problem(self, event: Event) -> str | None:
        """Why an event cannot follow in the scope, in words that continue its address; None if it can.

        It checks the first event, the kind of the scope, the times, that a fact or a document is new when it is added
        and exists when it is ended, and that it is true for some time. It does not check texts, keys and metadata,
        where a fact was learned, nor whether the fact was still live for the thread that ended it: threads that read a
        scope as of a cut can each end the same fact.
        """
        problem = number_problem(self.recorded_at, event) or kind_problem(event, "memory")
        if problem is None and not isinstance(event.data, Opaque | Shredded):
            problem = self._opening_problem(event) or self._content_problem(event)
        return problem

    def add(self, event: Event) -> None:
        """Add the next event of the scope."""
        self.version, self.recorded_at = event.version, max(self.recorded_at, event.recorded_at)
        match event.data:
            case ScopeOpened(holds=holds):
                self._holds = holds
            case FactRemembered(fact=fact) | FactSuperseded(by=fact):
                self._facts.add(fact)
            case DocumentAdded(document=document, replaces=replaces):
                self._documents.discard(replaces or "")
                self._documents.add(document)
            case DocumentRemoved(document=document):
                self._documents.discard(document)
            case _:
                pass

    def _opening_problem(self, event: Event) -> str | None:
        opens = isinstance(event.data, ScopeOpened)
        if opens != (event.version == 1):
            return f"the first event of a scope, and no other, must be 'scope-opened', but this is {event.type!r}"
        holds = "documents" if isinstance(event.data, DocumentAdded | DocumentRemoved) else "facts"
        if not opens and self._holds not in {None, holds}:
            return f"{event.type!r} is about {holds}, but the scope holds {self._holds}"
        return None

    def _content_problem(self, event: Event) -> str | None:
        match event.data:
            case FactRemembered(fact=fact, statement=statement):
                return self._fact_problem(fact, new=True) or _statement_problem(statement, event)
            case FactSuperseded(fact=fact, by=by, statement=statement):
                known = self._fact_problem(fact, new=False) or self._fact_problem(by, new=True)
                return known or _statement_problem(statement, event)
            case FactRetracted(fact=fact, valid_to=valid_to):
                return self._fact_problem(fact, new=False) or _valid_time_problem(valid_to)
            case DocumentAdded(document=document, replaces=replaces):
                if document in self._documents:
                    return f"it adds the document {document!r}, which the scope has already"
                return None if replaces is None else self._document_problem(replaces)
            case DocumentRemoved(document=document):
                return self._document_problem(document)
            case _:
                return None

    def _fact_problem(self, fact: str, *, new: bool) -> str | None:
        if new == (fact not in self._facts):
            return None
        return f"the scope has a fact {fact!r} already" if new else f"the scope has no fact {fact!r}"

    def _document_problem(self, document: str) -> str | None:
        return None if document in self._documents else f"the scope has no document {document!r}"


def _statement_problem(statement: Statement, event: Event) -> str | None:
    """Why a statement can be true at no time. Times are microseconds since 1970."""
    begins = event.recorded_at if statement.valid_from is None else statement.valid_from
    if statement.valid_to is not None and statement.valid_to <= begins:
        return f"its fact is true until {statement.valid_to}, which is not after {begins}, when it begins"
    return _valid_time_problem(statement.valid_from) or _valid_time_problem(statement.valid_to)


def _valid_time_problem(time: int | None) -> str | None:
    if time is None or FIRST_MICROSECOND <= time <= LAST_MICROSECOND:
        return None
    return f"its fact begins or ends {time} microseconds after 1970, which is not in the years 1 to 9999"
