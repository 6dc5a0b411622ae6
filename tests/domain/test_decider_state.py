from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.domain.strategies import DATA, event, events_of

from clew.domain.decider_state import Control, OpenRun, advance
from clew.domain.events import (
    CheckpointMade,
    Event,
    HistoryRewound,
    MessageAppended,
    MessageRedacted,
    Opaque,
    Shredded,
    Source,
    ThreadDeleted,
    ThreadEnded,
    ThreadEvent,
    ThreadForked,
    ThreadLabelled,
    ThreadResumed,
    ThreadStarted,
    ThreadSuspended,
)
from clew.domain.messages import Message
from clew.domain.runs.events import AgentIdentity, Fingerprint, RunCompleted, RunStarted, ServiceThreadBound

STARTED = ThreadStarted(title="Refund", labels={"a": 1}, metadata={"m": None}, source=Source(id="conv-1"))
FORKED = ThreadForked(parent_id="p", parent_version=4, parent_hash="00")


def folded(*events: ThreadEvent) -> Control:
    control = Control()
    for version, data in enumerate(events, start=1):
        control = advance(control, event(data, version))
    return control


def test_a_started_thread_is_active_with_its_first_values() -> None:
    control = advance(Control(), event(STARTED, 1, recorded_at=7))
    assert control == Control(
        version=1,
        title="Refund",
        labels={"a": 1},
        metadata={"m": None},
        imported=True,
        source_id="conv-1",
        created_at=7,
        updated_at=7,
    )


def test_a_thread_with_any_source_is_imported() -> None:
    assert folded(ThreadStarted(source=Source())).imported
    assert not folded(ThreadStarted()).imported


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (ThreadSuspended(), "suspended"),
        (ThreadResumed(), "active"),
        (ThreadEnded(), "ended"),
        (ThreadDeleted(), "deleted"),
    ],
)
def test_lifecycle_events_set_the_status(data: ThreadEvent, status: str) -> None:
    assert folded(STARTED, data).status == status
    assert folded(STARTED, ThreadSuspended(), data).status == status


@pytest.mark.parametrize("before", [ThreadSuspended(), ThreadEnded(), ThreadDeleted()])
def test_a_fork_is_active_for_any_status_of_its_parent(before: ThreadEvent) -> None:
    assert folded(STARTED, before, FORKED).status == "active"


def test_a_fork_inherits_labels_metadata_and_checkpoints_but_not_the_source() -> None:
    control = folded(STARTED, CheckpointMade(name="here", at=1), FORKED)
    assert (control.title, control.labels, control.metadata) == ("Refund", {"a": 1}, {"m": None})
    assert control.checkpoints == {"here": 1}
    assert (control.imported, control.source_id) == (False, None)
    assert (control.parent_id, control.forked_at, control.created_at) == ("p", 4, 3)


def test_a_fork_may_have_its_own_title() -> None:
    assert folded(STARTED, FORKED.model_copy(update={"title": "What if"})).title == "What if"


def test_a_fork_inherits_the_kind_by_default() -> None:
    assert folded(STARTED).kind == "local"
    remote = ThreadStarted(kind="remote")
    assert folded(remote).kind == folded(remote, FORKED).kind == "remote"
    assert folded(remote, FORKED.model_copy(update={"kind": "local"})).kind == "local"


def test_the_service_thread_id_is_the_last_one_on_the_path() -> None:
    named = [ServiceThreadBound(id=id_, kind="response") for id_ in ("resp_1", "resp_2")]
    remote = ThreadStarted(kind="remote")
    assert folded(remote).service_thread_id is None
    assert folded(remote, *named).service_thread_id == "resp_2"
    assert folded(remote, *named, FORKED).service_thread_id == "resp_2"
    back = HistoryRewound(to=2, service_thread_id="resp_1")
    assert folded(remote, *named, back).service_thread_id == "resp_1"
    assert folded(remote, *named, back, HistoryRewound(to=1)).service_thread_id is None


RUN_STARTED = RunStarted(agent=AgentIdentity(id="joker"), fingerprint=Fingerprint(client="scripted"))


@pytest.mark.parametrize("cut", [FORKED, HistoryRewound(to=2), ThreadEnded(), ThreadDeleted(), RunCompleted()])
def test_a_run_is_open_until_it_ends_or_the_path_is_cut(cut: ThreadEvent) -> None:
    control = advance(folded(STARTED), event(RUN_STARTED, 2, run_id="r"))
    assert control.run == OpenRun("r", 2)
    for data in (ThreadSuspended(), ThreadLabelled(labels={}), CheckpointMade(name="x", at=1)):
        assert advance(control, event(data, 3)).run == OpenRun("r", 2)
    assert advance(control, event(cut, 3, run_id="r")).run is None


def test_labels_are_merged_and_none_removes_one() -> None:
    control = folded(STARTED, ThreadLabelled(labels={"b": {"x": None}}), ThreadLabelled(labels={"a": None, "c": 0}))
    assert control.labels == {"b": {"x": None}, "c": 0}


def test_events_of_the_history_change_only_counts_and_times() -> None:
    before = folded(STARTED)
    history_events: list[ThreadEvent] = [
        MessageAppended(message=Message.user("x")),
        MessageRedacted(version=1, digest="", stub=""),
        HistoryRewound(to=1),
    ]
    for data in history_events:
        after = advance(before, event(data, 2, messages=5, recorded_at=9))
        assert after == before._replace(version=2, messages=5, updated_at=9)


@pytest.mark.parametrize("data", [Opaque(b"\x01"), Shredded("user"), Shredded(None)])
def test_unreadable_events_change_only_version_count_and_time(data: Opaque | Shredded) -> None:
    before = folded(STARTED)
    read = Event("default/thread/a", 2, "message-appended", "e", 9, 3, data)
    assert advance(before, read) == before._replace(version=2, messages=3, updated_at=9)


def test_an_opaque_event_without_a_count_keeps_the_count() -> None:
    before = folded(STARTED)._replace(messages=4)
    after = advance(before, Event("default/thread/a", 2, "song-sung", "", 0, -1, Opaque(b"")))
    assert (after.messages, after.updated_at) == (4, before.updated_at)


@given(st.lists(events_of(st.sampled_from(sorted(DATA, key=repr)).flatmap(lambda each: DATA[each])), max_size=4))
def test_advancing_never_changes_the_previous_control(events: list[Event]) -> None:
    control = Control()
    seen: list[tuple[Control, Any]] = []
    for each in events:
        seen.append((control, repr(control)))
        control = advance(control, each)
        assert control.version == each.version
        assert control.updated_at >= each.recorded_at
    assert [repr(before) for before, _ in seen] == [text for _, text in seen]
    assert Control() == Control(0, b"", 0, 0, "active", None, {}, {}, False, None, {}, None, None, 0)  # noqa: FBT003  # all fields
