from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.domain.strategies import jsons, objects, texts

from clew.conversations import Conversations
from clew.domain.decider_state import SNAPSHOT_EVERY, CallLocation, Control, OpenRun, advance, without_checkpoints
from clew.domain.events import Event
from clew.domain.messages import Message
from clew.domain.ports import Appended, Blob, Claim, Draft, Lease, Write
from clew.domain.runs.errors import RunInProgressError
from clew.domain.streams import digest
from clew.infrastructure.event_log import ConversationLog, EnvelopeMapper
from clew.infrastructure.recorder_ports import read_control, write_control
from clew.infrastructure.stores import store_at

ROOT = "default/thread/root"
FORK = "default/thread/fork"

HOSTILE = {
    "COMPRESSOR_TOPIC": "zlib",
    "CIPHER_TOPIC": "nowhere:Cipher",
    "CIPHER_KEY": "x",
    "MAPPER_TOPIC": "nowhere:Mapper",
    "TRANSCODER_TOPIC": "nowhere:Transcoder",
    "FACTORY_TOPIC": "nowhere:Factory",
    "INFRASTRUCTURE_FACTORY": "nowhere:Factory",
    "PERSISTENCE_MODULE": "nowhere",
    "IS_SNAPSHOTTING_ENABLED": "y",
    "SNAPSHOTTING_INTERVAL": "1",
    "CREATE_TABLE": "n",
    "SQLITE_DBNAME": "/nowhere/host.db",
    "SQLITE_SYNCHRONOUS": "MAYBE",
    "ORIGINATOR_ID_TYPE": "uuid",
}


@pytest.mark.parametrize("prefix", ["", "CLEW_", "clew_"])
@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_ignores_environment_variables(
    store: str, prefix: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in HOSTILE.items():
        monkeypatch.setitem(os.environ, prefix + name, value)
    url = "memory:" if store == "memory" else f"sqlite:///{tmp_path}/a.db"
    with Conversations.open(url) as conversations:
        thread = conversations.start_thread(messages=[Message.user("hello " * 100)])
        assert thread.history().messages[0].text == "hello " * 100
        log = conversations._core.log
        assert isinstance(log, ConversationLog)
        assert type(log.mapper) is EnvelopeMapper
        assert (log.mapper.compressor, log.mapper.cipher, log.snapshots) == (None, None, None)
        assert not set(HOSTILE) & {key for key in log.env if log.env[key] == HOSTILE.get(key)}
        rows = log._recorder.rows(after=0, limit=10)
        assert b"hello hello" in rows[1].state


@pytest.fixture(scope="module")
def store_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a long thread that is suspended, rewound and forked, with snapshots of its control state."""
    path = tmp_path_factory.mktemp("application") / "store.db"
    with Conversations.open(f"sqlite:///{path}?synchronous=OFF") as conversations:
        root = conversations.start_thread("Refund", thread_id="root", labels={"a": 1}, metadata={"n": None})
        for number in range(40):
            root.append([Message.user(f"{number}.{part}") for part in range(6)])
            labels: dict[str, Any] = {f"label{number % 5}": number}
            root.label(**labels)
            if number % 10 == 3:
                root.checkpoint(f"here {number}")
                root.rewind(to=root.version - 4)
            if number % 10 == 7:
                root.suspend()
                root.resume()
        fork = root.fork(at=200, thread_id="fork", title="What if")
        for number in range(20):
            fork.append([Message.user(f"{number}.{part}") for part in range(10)])
        fork.end(reason="done")
    return path


@pytest.fixture
def log(store_path: Path) -> Iterator[ConversationLog]:
    with closing(store_at(f"sqlite:///{store_path}").open_log()) as opened:
        yield opened


def fold(events: list[Event]) -> Control:
    control = Control()
    for event in events:
        control = advance(control, event)
    return control


@pytest.mark.parametrize("stream", [ROOT, FORK])
def test_a_control_state_from_a_snapshot_equals_the_complete_fold(log: ConversationLog, stream: str) -> None:
    events = log.lineage(stream)
    assert len(events) > 2 * SNAPSHOT_EVERY
    assert log.with_checkpoints(stream, log.control(stream)) == fold(events)
    for version in (
        *range(1, len(events) + 1, 7),
        SNAPSHOT_EVERY - 1,
        SNAPSHOT_EVERY,
        SNAPSHOT_EVERY + 1,
        199,
        200,
        201,
    ):
        assert log.with_checkpoints(stream, log.control(stream, version)) == fold(events[:version])
        assert log.control(stream, version)._replace(checkpoints={}, unnamed=0) == fold(events[:version])._replace(
            checkpoints={}
        )


def test_a_snapshot_limits_the_number_of_folded_events(log: ConversationLog, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    recorder = log._recorder
    lineage = recorder.lineage

    def count_rows(stream: str, *, after: int = -1, upto: int | None = None) -> list[object]:
        rows = lineage(stream, after=after, upto=upto)
        read.append(len(rows))
        return list(rows)

    monkeypatch.setattr(recorder, "lineage", count_rows)
    for stream in (ROOT, FORK):
        log.control(stream)
        log.control(stream, 250)
    assert len(read) == 4
    # The append that crosses a multiple writes the snapshot, so the snapshot can be one append later.
    assert max(read) < SNAPSHOT_EVERY + 10


def test_a_missing_thread_has_an_empty_control_state(log: ConversationLog) -> None:
    assert log.control("default/thread/missing") == Control()


@pytest.mark.parametrize(
    "state",
    [
        b"",
        b"0",
        b"1[]",
        b'1[3,"ab","active",null,{},{},false,null,{},1,null,null,1,1]',
        b"2",
        b"2{",
        b"2[",
        b"2null",
        b'2["three"]',
        b'2[3,"ab"]',
        b'2[3,"ab","asleep",null,{},{},false,null,{},1,null,null,1,1,"local",null]',
        b'2[3,"ab","active",null,{},{},false,null,{},1,null,null,1,1,"local",["r"]]',
        b"\xff" * 20,
        b"2[" + b"[" * 9000,
    ],
    ids=range(14),
)
def test_ignores_an_unreadable_snapshot(store_path: Path, tmp_path: Path, state: bytes) -> None:
    copy = tmp_path / "copy.db"
    copy.write_bytes(store_path.read_bytes())
    with closing(sqlite3.connect(copy)) as raw, raw:
        assert raw.execute("UPDATE snapshot SET state = ?", (state,)).rowcount > 2
    with closing(store_at(f"sqlite:///{copy}").open_log()) as log:
        for stream in (ROOT, FORK):
            assert log.control(stream) == fold(log.lineage(stream))
            assert log.control(stream, 210) == fold(log.lineage(stream, upto=210))


def test_works_without_snapshots(store_path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    copy.write_bytes(store_path.read_bytes())
    with closing(sqlite3.connect(copy)) as raw, raw:
        raw.execute("DELETE FROM snapshot")
    with closing(store_at(f"sqlite:///{copy}").open_log()) as log:
        assert log.control(FORK) == fold(log.lineage(FORK))


places = st.builds(CallLocation, message=st.integers(min_value=1), content=st.integers(min_value=0))
controls = st.builds(
    Control,
    version=st.integers(min_value=0),
    status=st.sampled_from(["active", "suspended", "ended", "deleted"]),
    title=st.none() | texts,
    labels=objects,
    metadata=objects,
    imported=st.booleans(),
    source_id=jsons,
    checkpoints=st.dictionaries(texts, st.integers(min_value=1)),
    messages=st.integers(min_value=0),
    parent_id=st.none() | texts,
    forked_at=st.none() | st.integers(min_value=1),
    created_at=st.integers(min_value=0),
    updated_at=st.integers(min_value=0),
    kind=st.sampled_from(["local", "remote"]),
    made_checkpoints=st.sampled_from([(0, 0), (3, 7)]),
    unnamed=st.just(0),
    run=st.none()
    | st.builds(
        OpenRun,
        id=texts,
        began=st.integers(min_value=1),
        attempt=st.integers(min_value=1),
        call=st.integers(min_value=0),
        tools=st.lists(places, max_size=2).map(tuple),
        approvals=st.lists(st.tuples(st.integers(min_value=1), places), max_size=2).map(tuple),
    ),
)


@given(controls)
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_a_snapshot_restores_the_control_state(control: Control) -> None:
    assert repr(read_control(write_control(control))) == repr(without_checkpoints(control)._replace(shredded=0))


def test_ignores_a_snapshot_with_other_fields() -> None:
    state = write_control(Control(version=7))
    assert read_control(state) == Control(version=7)
    assert read_control(state[:-1] + b',"more"]') is None
    assert read_control(b"1" + state[1:]) is None


def test_unreadable_messages_do_not_change_the_control_state(tmp_path: Path) -> None:
    with Conversations.open(f"sqlite:///{tmp_path}/a.db") as conversations:
        for name, unreadable in (("end", {4, 5}), ("middle", {3}), ("all", {2, 3, 4, 5})):
            conversations.start_thread(thread_id=name, messages=[Message.user("Hello")] * 4)
            with closing(sqlite3.connect(tmp_path / "a.db")) as raw, raw:
                for version in unreadable:  # a codec that this version of Clew does not know
                    raw.execute(
                        "UPDATE event SET state = CAST(x'01' || state AS BLOB) WHERE version = ? AND stream = "
                        "(SELECT id FROM stream WHERE name = ?)",
                        (version, f"default/thread/{name}"),
                    )
            log = conversations._core.log
            assert log.control(f"default/thread/{name}") == fold(log.lineage(f"default/thread/{name}"))


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_the_log_writes_and_reads_the_side_tables(store: str, tmp_path: Path) -> None:
    url = "memory:" if store == "memory" else f"sqlite:///{tmp_path}/a.db"
    blob = Blob(digest(b"Be kind."), "definition", b"Be kind.")
    with Conversations.open(url) as conversations:
        conversations.start_thread("Refund", thread_id="root")
        log = conversations._core.log
        written = log.submit(
            Write(
                [],
                {ROOT: log.control(ROOT).head},
                blobs=[blob],
                claims=[Claim(ROOT, "me", 10, 20)],
                drafts=[Draft(ROOT, "run", b"He")],
            )
        )
        assert written.outcome.result() == Appended((), (), ())
        assert written.heads == {ROOT: log.control(ROOT).head}
        assert log.blob(blob.digest) == blob
        assert log.blob(b"x" * 32) is None
        assert log.lease(ROOT) == Lease(ROOT, "me", 20)
        assert log.draft(ROOT) == Draft(ROOT, "run", b"He")
        second = log.submit(Write([], {}, claims=[Claim(ROOT, "you", 19, 30)]))
        with pytest.raises(RunInProgressError, match=r"a run is under way \(me\)"):
            second.outcome.result()
