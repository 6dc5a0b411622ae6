from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import pytest
from hypothesis import given as drawn
from tests.domain.strategies import event, messages, nested

from clew.domain.context.events import ContextStateRecorded
from clew.domain.decider import (
    Advance,
    Append,
    Branch,
    Checkpoint,
    Decided,
    Delete,
    End,
    Intent,
    Label,
    Purge,
    RecordEvents,
    Redact,
    Restart,
    Resume,
    Rewind,
    Start,
    Suspend,
    check_readable,
    decide,
)
from clew.domain.decider_state import Control, advance
from clew.domain.errors import (
    CheckpointExistsError,
    ClewError,
    InvalidContentError,
    InvalidNameError,
    ThreadDeletedError,
    ThreadExistsError,
    ThreadStatusError,
    UnknownThreadError,
    UnknownVersionError,
)
from clew.domain.event_types import Status
from clew.domain.events import (
    CheckpointMade,
    HistoryRewound,
    MessageAppended,
    MessageRedacted,
    ServiceDeletion,
    Source,
    ThreadDeleted,
    ThreadEnded,
    ThreadEvent,
    ThreadForked,
    ThreadLabelled,
    ThreadPurged,
    ThreadRestarted,
    ThreadResumed,
    ThreadStarted,
    ThreadSuspended,
)
from clew.domain.messages import Message
from clew.domain.runs.errors import RunTakenOverError
from clew.domain.runs.events import (
    AgentIdentity,
    Fingerprint,
    ModelAnswered,
    ModelCalled,
    RunAbandoned,
    RunCompleted,
    RunEvent,
    RunResumed,
    RunStarted,
    ServiceThreadBound,
)

HELLO = Message.user("Hello")
BYE = Message.assistant("Bye")
STARTED = ThreadStarted(title="Refund")
MESSAGE = MessageAppended(message=HELLO)
BRANCH = Branch("parent", 2, "ab", "What if")
RUN_STARTED = RunStarted(agent=AgentIdentity(id="joker"), fingerprint=Fingerprint(client="scripted", tools=("ab",)))
RUN_RESUMED = RunResumed(attempt=2, agent=RUN_STARTED.agent, fingerprint=RUN_STARTED.fingerprint)
BOUND = ServiceThreadBound(id="resp_1", kind="response")
STATE_RECORDED = ContextStateRecorded(provider="preferences", state={"units": "km"}, seen=2)


@dataclass(frozen=True)
class Given:
    control: Control

    def when(self, intent: Intent) -> When:
        return When(self.control, intent)


@dataclass(frozen=True)
class When:
    control: Control
    intent: Intent

    def then(self, *expected: ThreadEvent) -> list[int]:
        """Check the decided events; return the counts of messages after them."""
        decided = decide("t", self.control, self.intent)
        assert [each.data for each in decided] == list(expected)
        return [each.messages for each in decided]

    def then_refused(self, error: type[ClewError], reason: str = ".") -> None:
        with pytest.raises(error, match=reason) as caught:
            decide("t", self.control, self.intent)
        assert type(caught.value) is error


def given(*events: ThreadEvent) -> Given:
    """Fold the events; events of runs belong to the run ``r``."""
    control = Control()
    count = 0
    for version, data in enumerate(events, start=1):
        count += isinstance(data, MessageAppended)
        run_id = "r" if isinstance(data, RunEvent) else None
        control = advance(control, event(data, version, messages=count, run_id=run_id))
    return Given(control)


# The status table

STATUSES: dict[Status, tuple[ThreadEvent, ...]] = {
    "active": (),
    "suspended": (ThreadSuspended(),),
    "ended": (ThreadEnded(),),
    "deleted": (ThreadDeleted(),),
}
INTENTS: dict[str, tuple[Intent, *tuple[ThreadEvent, ...]]] = {
    "Branch": (BRANCH, ThreadForked(parent_id="parent", parent_version=2, parent_hash="ab", title="What if")),
    "Append": (Append((BYE,)), MessageAppended(message=BYE)),
    "Advance": (Advance("r", 1, (RUN_STARTED,)), RUN_STARTED),
    "RecordState": (RecordEvents((STATE_RECORDED,)), STATE_RECORDED),
    "RecordBinding": (RecordEvents((BOUND,)), BOUND),
    "Label": (Label({"a": 1}), ThreadLabelled(labels={"a": 1})),
    "Checkpoint": (Checkpoint("here", 2), CheckpointMade(name="here", at=2)),
    "Rewind": (Rewind(1, 0), HistoryRewound(to=1)),
    "Redact": (Redact(2, "d", "s", "asked"), MessageRedacted(version=2, digest="d", stub="s", reason="asked")),
    "Suspend": (Suspend("rest"), ThreadSuspended(reason="rest")),
    "Resume": (Resume(), ThreadResumed()),
    "End": (End("done"), ThreadEnded(reason="done")),
    "Delete": (
        Delete("wish", (ServiceDeletion(id="resp_1"),)),
        ThreadDeleted(reason="wish", service=(ServiceDeletion(id="resp_1"),)),
    ),
    "Purge": (Purge(2, "ab", "asked"), ThreadPurged(rows=2, digest="ab", reason="asked")),
    "Restart": (
        Restart("New", {"a": 1}),
        ThreadRestarted(title="New", labels={"a": 1}),
        HistoryRewound(to=1),
    ),
}
ALLOWED: dict[Status, set[str]] = {
    "active": {
        "Branch",
        "Append",
        "Advance",
        "RecordState",
        "RecordBinding",
        "Label",
        "Checkpoint",
        "Rewind",
        "Redact",
        "Suspend",
        "End",
        "Delete",
    },
    "suspended": {"Branch", "RecordState", "Label", "Checkpoint", "Rewind", "Redact", "Resume", "End", "Delete"},
    "ended": {"Branch", "RecordState", "Label", "Checkpoint", "Redact", "Delete"},
    "deleted": {"Redact", "Purge", "Restart"},
}


def test_the_table_has_every_intent_and_every_status() -> None:
    assert {Start, *(type(intent) for intent, *_ in INTENTS.values())} == set(get_args(Intent))
    assert set(STATUSES) == set(ALLOWED) == set(get_args(Status))


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("kind", INTENTS)
def test_each_status_allows_only_its_intents(status: Status, kind: str) -> None:
    intent, *outcome = INTENTS[kind]
    when = given(STARTED, MESSAGE, *STATUSES[status]).when(intent)
    if kind in ALLOWED[status]:
        when.then(*outcome)
    elif status == "deleted":
        when.then_refused(ThreadDeletedError, "is deleted")
    else:
        when.then_refused(ThreadStatusError, f"is {status}")


@pytest.mark.parametrize("status", STATUSES)
def test_no_thread_can_be_started_twice(status: Status) -> None:
    given(STARTED, *STATUSES[status]).when(Start()).then_refused(ThreadExistsError, "already a thread 't'")


@pytest.mark.parametrize("kind", [kind for kind in INTENTS if kind != "Branch"])
def test_refuses_every_intent_on_a_missing_thread(kind: str) -> None:
    given().when(INTENTS[kind][0]).then_refused(UnknownThreadError, "no thread 't'")


def test_a_resumed_thread_accepts_messages_again() -> None:
    given(STARTED, ThreadSuspended(), ThreadResumed()).when(Append((HELLO,))).then(MESSAGE)


def test_a_fork_of_an_ended_thread_accepts_messages() -> None:
    forked = ThreadForked(parent_id="p", parent_version=2, parent_hash="")
    given(STARTED, ThreadEnded(), forked).when(Append((HELLO,))).then(MESSAGE)


@pytest.mark.parametrize(
    ("status", "intent", "reason"),
    [
        ("suspended", Append((HELLO,)), "Thread 't' is suspended: append is refused. Resume it first."),
        ("ended", Append((HELLO,)), "Thread 't' is ended: append is refused. Fork it to continue."),
        ("suspended", Advance("r", 1, (RUN_STARTED,)), "Thread 't' is suspended: a run is refused. Resume it first."),
        ("ended", Advance("r", 1, (RUN_STARTED,)), "Thread 't' is ended: a run is refused. Fork it to continue."),
        ("deleted", Label({}), "Thread 't' is deleted: label is refused. Only its events can be read."),
    ],
)
def test_a_refusal_names_the_intent_the_status_and_the_next_step(status: Status, intent: Intent, reason: str) -> None:
    given(STARTED, *STATUSES[status]).when(intent).then_refused(
        ThreadDeletedError if status == "deleted" else ThreadStatusError, reason
    )


@pytest.mark.parametrize("status", STATUSES)
def test_all_but_a_deleted_thread_can_be_read(status: Status) -> None:
    control = given(STARTED, *STATUSES[status]).control
    if status == "deleted":
        with pytest.raises(ThreadDeletedError, match="history is refused"):
            check_readable("t", control, "history")
    else:
        check_readable("t", control, "history")


# Outcomes of each intent


def test_a_thread_starts_with_its_first_messages() -> None:
    source = Source(id=None, fields={"topic": None})
    intent = Start("Refund", {"a": 1}, {"b": None}, source, (HELLO, BYE))
    started = ThreadStarted(title="Refund", labels={"a": 1}, metadata={"b": None}, source=source)
    counts = given().when(intent).then(started, MESSAGE, MessageAppended(message=BYE))
    assert counts == [0, 1, 2]


def test_a_fork_continues_the_message_count_of_its_parent() -> None:
    forked = ThreadForked(parent_id="parent", parent_version=3, parent_hash="ab", metadata={"a": 1})
    intent = Branch("parent", 3, "ab", metadata={"a": 1})
    assert given(STARTED, MESSAGE, MESSAGE).when(intent).then(forked) == [2]


def test_each_message_is_one_event() -> None:
    assert given(STARTED, MESSAGE).when(Append((HELLO, HELLO))).then(MESSAGE, MESSAGE) == [2, 3]


@drawn(messages)
def test_a_message_is_recorded_unchanged(message: Message) -> None:
    given(STARTED).when(Append((message,))).then(MessageAppended(message=message))


# Runs


def model_called(definitions: int = 2, **fields: Any) -> ModelCalled:
    return ModelCalled(definitions=definitions, client="c", wire="openai-chat", model="m", digest="d", **fields)


def test_the_events_of_a_run_and_its_messages_are_recorded_together() -> None:
    steps = (RUN_STARTED, HELLO, model_called(-2), BYE, ModelAnswered(call=-2, message=-1, ms=5), RunCompleted())
    decided = decide("t", given(STARTED, MESSAGE).control, Advance("r", 1, steps))
    assert [each.data for each in decided] == [
        RUN_STARTED,
        MESSAGE,
        model_called(3),
        MessageAppended(message=BYE),
        ModelAnswered(call=5, message=6, ms=5),
        RunCompleted(),
    ]
    assert [each.messages for each in decided] == [1, 2, 2, 3, 3, 3]
    assert {each.run_id for each in decided} == {"r"}


def test_steps_of_a_run_are_decided_on_its_earlier_steps() -> None:
    given(STARTED, RUN_STARTED, MESSAGE).when(Advance("r", 1, (model_called(), RunAbandoned(reason="asked")))).then(
        model_called(), RunAbandoned(reason="asked")
    )
    started = given(STARTED, RUN_STARTED, MESSAGE, model_called())
    started.when(Advance("r", 1, (BYE, ModelAnswered(call=4, message=-1, ms=1)))).then(
        MessageAppended(message=BYE), ModelAnswered(call=4, message=5, ms=1)
    )
    started.when(Advance("r", 1, (model_called(),))).then_refused(RunTakenOverError)


@pytest.mark.parametrize(
    "step",
    [HELLO, model_called(), RunCompleted(), RunAbandoned(reason="asked"), BOUND],
    ids=lambda step: type(step).__name__,
)
@pytest.mark.parametrize(
    ("before", "run_id", "attempt"),
    [
        ((), "r", 1),
        ((RUN_STARTED,), "another", 1),
        ((RUN_STARTED,), "r", 2),
        ((RUN_STARTED, RUN_RESUMED), "r", 1),
        ((RUN_STARTED, RunCompleted()), "r", 1),
        ((RUN_STARTED, HistoryRewound(to=1)), "r", 1),
        ((RUN_STARTED, ThreadForked(parent_id="p", parent_version=2, parent_hash="")), "r", 1),
    ],
    ids=["none", "another run", "a later attempt", "resumed", "ended", "rewound", "forked"],
)
def test_only_the_current_attempt_adds_to_a_run(
    before: tuple[ThreadEvent, ...], run_id: str, attempt: int, step: RunEvent | Message
) -> None:
    given(STARTED, *before).when(Advance(run_id, attempt, (step,))).then_refused(RunTakenOverError, "the run")


def test_a_suspended_thread_records_its_open_run_and_starts_none() -> None:
    suspended = given(STARTED, RUN_STARTED, ThreadSuspended())
    suspended.when(Advance("r", 1, (HELLO, RunCompleted()))).then(MESSAGE, RunCompleted())
    suspended.when(Advance("r", 2, (RUN_RESUMED,))).then_refused(ThreadStatusError, "a run is refused")
    given(STARTED, RUN_STARTED, ThreadSuspended(), ThreadResumed()).when(Advance("r", 2, (RUN_RESUMED, HELLO))).then(
        RUN_RESUMED, MESSAGE
    )


def test_one_refused_step_refuses_all_steps() -> None:
    started = given(STARTED, RUN_STARTED)
    started.when(Advance("r", 1, (HELLO, RunCompleted(), HELLO))).then_refused(RunTakenOverError)
    assert started.control.run is not None


@pytest.mark.parametrize(
    "step",
    [
        model_called(options={"temperature": float("nan")}),
        model_called(options={"k": (1,)}),
        RunAbandoned(reason="\ud800"),
        RUN_STARTED.model_copy(update={"agent": AgentIdentity(id="\ud800")}),
        RUN_STARTED.model_copy(update={"fingerprint": Fingerprint(client="c", tools=("\ud800",))}),
        Message.user("\ud800"),
    ],
    ids=range(6),
)
def test_refuses_run_data_that_cannot_round_trip(step: RunEvent | Message) -> None:
    before = given(STARTED) if isinstance(step, RunStarted) else given(STARTED, RUN_STARTED)
    before.when(Advance("r", 1, (step,))).then_refused(InvalidContentError)


def test_a_checkpoint_names_the_newest_version_by_default() -> None:
    given(STARTED, MESSAGE).when(Checkpoint("here")).then(CheckpointMade(name="here", at=2))
    given(STARTED, MESSAGE).when(Checkpoint("here", 1)).then(CheckpointMade(name="here", at=1))


def test_a_rewind_restores_the_message_count() -> None:
    assert given(STARTED, MESSAGE, MESSAGE).when(Rewind(2, 1)).then(HistoryRewound(to=2)) == [1]


def test_other_events_do_not_change_the_message_count() -> None:
    for kind, (intent, *outcome) in INTENTS.items():
        if kind in ALLOWED["active"] and not isinstance(intent, Append | Rewind):
            assert given(STARTED, MESSAGE, MESSAGE).when(intent).then(*outcome) == [2]


def test_a_checkpoint_name_is_unique_in_the_lineage() -> None:
    made = CheckpointMade(name="here", at=1)
    forked = ThreadForked(parent_id="p", parent_version=2, parent_hash="")
    given(STARTED, made).when(Checkpoint("here", 1)).then_refused(CheckpointExistsError, "'here', at version 1")
    given(STARTED, made, forked).when(Checkpoint("here")).then_refused(CheckpointExistsError)


@pytest.mark.parametrize("version", [-1, 0, 3, 10**30])
@pytest.mark.parametrize(
    "make",
    [lambda version: Checkpoint("here", version), lambda version: Rewind(version, 0)],
    ids=["checkpoint", "rewind"],
)
def test_refuses_missing_versions(version: int, make: Callable[[int], Intent]) -> None:
    given(STARTED, MESSAGE).when(make(version)).then_refused(UnknownVersionError, "its versions are 1 to 2")


@pytest.mark.parametrize("name", ["", "12", "message:1", "2026-01-01", " a"])
def test_refuses_checkpoint_names_with_another_meaning(name: str) -> None:
    given(STARTED).when(Checkpoint(name)).then_refused(InvalidNameError)


def test_names_of_labels_have_a_maximum_length() -> None:
    longest, longer = "x" * 200, "x" * 201
    given().when(Start(labels={longer: 1})).then_refused(InvalidNameError)
    given(STARTED).when(Label({"a": 1, longer: None})).then_refused(InvalidNameError)
    given(STARTED).when(Label({longest: 1})).then(ThreadLabelled(labels={longest: 1}))


BAD: list[Any] = [float("nan"), float("-inf"), nested(101), "\ud800", {1: 2}, (1,), {"k": b""}, 1 << 20_000]


@pytest.mark.parametrize("value", BAD, ids=range(len(BAD)))
@pytest.mark.parametrize(
    "make",
    [
        lambda value: Start(labels={"k": value}),
        lambda value: Start(metadata={"k": [value]}),
        lambda value: Start(source=Source(id=value)),
        lambda value: Start(source=Source(fields={"k": value})),
        lambda value: Start(messages=(HELLO, Message.tool("c", value))),
        lambda value: Branch("p", 1, "", metadata={"k": value}),
        lambda value: Append((HELLO, Message(role="user", contents=(), source={"k": value}))),
        lambda value: Label({"k": value}),
    ],
    ids=["labels", "metadata", "source-id", "source", "first-messages", "branch", "say", "label"],
)
def test_refuses_content_that_cannot_round_trip(make: Callable[[Any], Intent], value: Any) -> None:
    intent = make(value)
    before = given() if isinstance(intent, Start) else given(STARTED, MESSAGE)
    before.when(intent).then_refused(InvalidContentError)


@pytest.mark.parametrize("text", ["\udfff", 5, b"x"])
@pytest.mark.parametrize("kind", [Start, Suspend, End, Delete, Branch, Redact])
def test_titles_and_reasons_need_to_be_text(kind: type[Any], text: Any) -> None:
    intents: dict[type[Any], Intent] = {
        Branch: Branch("p", 1, "", text),
        Redact: Redact(2, "", "", text),
    }
    intent = intents.get(kind) or kind(text)
    before = given() if kind is Start else given(STARTED, MESSAGE)
    before.when(intent).then_refused(InvalidContentError)


def test_deciding_is_pure() -> None:
    control = given(STARTED, MESSAGE).control
    shown = repr(control)
    for intent in [INTENTS[kind][0] for kind in sorted(ALLOWED["active"])]:
        first: list[Decided] = decide("t", control, intent)
        assert decide("t", control, intent) == first
    assert repr(control) == shown
