"""Records: an application's own events, which are forked, rewound, redacted and read at any version like messages."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.domain.strategies import jsons
from tests.service.settable_clock import SettableClock

from clew import Conversations, Engine, Message, Record, ThreadRecord
from clew.domain.errors import (
    ClewError,
    ConflictError,
    IdempotencyKeyReusedError,
    InvalidContentError,
    InvalidNameError,
    InvalidTimeError,
    NotRedactableError,
    ThreadDeletedError,
    ThreadStatusError,
    UnknownVersionError,
)
from clew.domain.events import HistoryRewound, MessageAppended, RecordAppended, Shredded
from clew.domain.records import as_record
from clew.sync.threads import Thread

BYTES = bytes(range(256))


def contents(records: list[ThreadRecord]) -> list[tuple[str, Any, bytes | None, str | None]]:
    return [(each.type, each.data, each.blob, each.key) for each in records]


def test_a_record_is_read_back_as_it_was_appended(conversations: Conversations, clock: SettableClock) -> None:
    thread = conversations.start_thread()
    appended = thread.append(Record("state", {"a": [1, None], "b": None}, BYTES, "main"), actor="app:1")
    assert thread.records() == [appended]
    assert appended == ThreadRecord(
        2, "state", {"a": [1, None], "b": None}, BYTES, "main", appended.event_id, clock(), "app:1"
    )
    thread.append([Record("state", None, b""), Record("state", 0), Record("state", data=False)])
    assert contents(thread.records(after=2)) == [
        ("state", None, b"", None),
        ("state", 0, None, None),
        ("state", False, None, None),
    ]
    (event,) = thread.events(types=["record-appended"], at=2)
    assert isinstance(event.data, RecordAppended)
    assert event.data.blob == BYTES


def test_a_list_of_messages_and_records_is_one_commit(conversations: Conversations) -> None:
    thread = conversations.start_thread()
    items: list[Message | Record] = [Record("run", 1), Message.user("Hello"), Record("run", 2), Message.assistant("Hi")]
    appended = thread.append(items, expected_version=1, idempotency_key="turn")
    assert [each.version for each in appended] == [2, 3, 4, 5]
    assert [type(each).__name__ for each in appended] == ["ThreadRecord", "HistoryMessage"] * 2
    assert thread.append(items, idempotency_key="turn") == appended
    with pytest.raises(IdempotencyKeyReusedError):
        thread.append([Record("run", 3), *items[1:]], idempotency_key="turn")
    with pytest.raises(ConflictError):
        thread.append(Record("run", 3), expected_version=4)
    with pytest.raises(InvalidContentError):
        thread.append([Message.user("not stored"), Record("run", float("nan"))])
    assert thread.version == 5
    assert len({event.recorded_at for event in thread.events(after=1)}) == 1


def test_records_are_not_in_the_history_the_view_and_the_counts(conversations: Conversations) -> None:
    thread = conversations.start_thread("Refund", messages=[Message.user("Where is it?")])
    thread.append([Record("trace", "x" * 100), Message.assistant("Here."), Record("trace")])
    assert [message.text for message in thread.history()] == ["Where is it?", "Here."]
    assert len(thread.view().messages) == 2
    assert thread.summary().messages == thread.state().control.messages == 2
    assert [event.messages for event in thread.events()] == [0, 1, 1, 2, 2]
    (listed,) = conversations.threads()
    assert listed == thread.summary()
    assert listed.updated_at == thread.records(last=1)[0].time
    assert [hit.version for hit in conversations.search("where here trace")] == []
    assert [hit.version for hit in conversations.search("here")] == [4]


def test_records_are_found_by_type_and_key_from_either_end(conversations: Conversations) -> None:
    thread = conversations.start_thread()
    for number in range(700):  # more than one page
        thread.append([Record("state" if number % 2 else "trace", number, key=f"k{number % 3}"), Message.user("x")])
    assert [each.data for each in thread.records()] == list(range(700))
    assert [each.data for each in thread.records("state")] == list(range(1, 700, 2))
    assert [each.data for each in thread.records("state", "trace", key="k0", last=2)] == [696, 699]
    newest = thread.records("trace", last=3)
    assert [each.data for each in newest] == [694, 696, 698]
    assert [each.data for each in thread.records("trace", last=2, at=newest[0].version - 1)] == [690, 692]
    assert [each.data for each in thread.records("trace", after=newest[0].version)] == [696, 698]
    assert thread.records("none") == thread.records(last=0) == thread.records(after=10_000) == []


def test_a_fork_a_rewind_and_a_past_version_have_the_records_of_their_path(conversations: Conversations) -> None:
    thread = conversations.start_thread(thread_id="t")
    thread.append([Record("state", 1), Record("state", 2)])
    thread.checkpoint("two")
    thread.append(Record("state", 3))
    fork = thread.fork(at="two")
    fork.append(Record("state", 4))
    thread.rewind(to=2)
    thread.append(Record("state", 5))
    assert [each.data for each in thread.records()] == [1, 5]
    assert [each.data for each in thread.records(at="two")] == [1, 2]
    assert [each.data for each in fork.records()] == [1, 2, 4]
    assert fork.records()[:2] == thread.records(at="two")


def test_a_redaction_destroys_data_bytes_and_key_in_every_fork(conversations: Conversations) -> None:
    thread = conversations.start_thread(thread_id="t")
    record, other = thread.append([Record("state", "secret", b"secret", "secret"), Record("state", "stays")])
    fork = thread.fork()
    redaction = fork.redact(record, reason="asked")
    for each in (thread, fork):
        first, second = each.records()
        assert first == record._replace(data=None, blob=None, key=None, redacted=True)
        assert second == other
        assert each.records("state", last=2) == [first, second]
        assert each.records(key="secret") == []
        (event,) = each.events(after=1, at=2)
        assert event.data == Shredded(None, "state")
    assert next(thread.events(after=redaction.version - 1)).type == "message-redacted"
    assert conversations.verify().first_bad is None
    with pytest.raises(NotRedactableError, match="already redacted"):
        thread.redact(record.version)
    entries = [each.what for each in conversations.audit(thread="t")]
    assert entries[1:3] == ["appended a record (redacted since)", "appended a record of type 'state'"]
    assert "secret" not in str(entries)
    with pytest.raises(NotRedactableError, match="not a message"):
        thread.edit(3, "x")


def test_a_redaction_leaves_no_byte_of_a_record_in_the_file(tmp_path: Path) -> None:
    with Conversations.open(tmp_path / "clew.db") as conversations:
        thread = conversations.start_thread()
        for number in range(40):
            thread.append(Record("state", {"text": f"S3cret-{number:04}"}, b"B1nary" * 9, f"K3y-{number:04}"))
            thread.append(Message.user("between"))
        for record in thread.records():
            thread.redact(record)
        assert all(each.redacted for each in thread.records())
        stored = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
    for secret in (b"S3cret", b"B1nary", b"K3y-", b"QjFuYXJ5"):  # the last one is base64
        assert secret not in stored
    with Conversations.open(tmp_path / "clew.db") as conversations:
        assert conversations.verify().first_bad is None


def test_status_decides_on_records_as_on_messages(conversations: Conversations) -> None:
    thread = conversations.start_thread()
    thread.append(Record("state", 1))
    thread.suspend()
    with pytest.raises(ThreadStatusError):
        thread.append(Record("state"))
    thread.resume()
    thread.end()
    with pytest.raises(ThreadStatusError):
        thread.append(Record("state"))
    assert len(thread.records()) == 1
    thread.delete()
    with pytest.raises(ThreadDeletedError):
        thread.append(Record("state"))
    with pytest.raises(ThreadDeletedError):
        thread.records()
    thread.redact(2)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (Record(""), "record type: it must be 1 to 200 printable characters"),
        (Record("x" * 201), "record type"),
        (Record("a\nb"), "record type"),
        (Record("a\ud800"), "record type"),
        (Record(5), "record type: int is not a string"),  # type: ignore[arg-type]  # wrong on purpose
        (Record("a", {1}), "record data: set is not JSON"),  # type: ignore[arg-type]  # wrong on purpose
        (Record("a", {"n": float("nan")}), r"record data\.n: nan is not a JSON number"),
        (Record("a", key=""), "record key: 0 characters, but it must have 1 to 1,000"),
        (Record("a", key="x" * 1_001), "record key"),
        (Record("a", key="\ud800"), "record key"),
        (Record("a", key=5), "record key: int is not a string"),  # type: ignore[arg-type]  # wrong on purpose
        (Record("a", blob="text"), "record blob: str is not bytes"),  # type: ignore[arg-type]  # wrong on purpose
    ],
)
def test_what_cannot_be_stored_is_refused(conversations: Conversations, record: Record, words: str) -> None:
    thread = conversations.start_thread()
    with pytest.raises(InvalidContentError, match=words):
        thread.append(record)
    with pytest.raises(InvalidContentError, match=words):
        thread.append([Message.user("x"), record])
    assert thread.version == 1


def test_wrong_arguments_of_a_query_are_refused(conversations: Conversations) -> None:
    thread = conversations.start_thread()
    wrong: Any = ["a"]
    arguments: list[dict[str, Any]] = [{"last": -1}, {"last": True}, {"after": -1}, {"after": "1"}]
    for each in arguments:
        with pytest.raises(UnknownVersionError):
            thread.records(**each)
    with pytest.raises(InvalidContentError):
        thread.records(wrong)
    with pytest.raises(InvalidContentError):
        thread.records(key=wrong)
    for types in ("message-appended", 5, [5]):
        with pytest.raises(InvalidNameError):
            list(thread.events(types=types))  # type: ignore[arg-type]  # wrong on purpose


def test_events_of_some_types_are_read_over_many_pages(conversations: Conversations) -> None:
    thread = conversations.start_thread()
    thread.append([Message.user("x")] * 1_200)
    thread.append(Record("state"))
    thread.append([Message.user("x")] * 600)
    thread.label(topic="y")
    assert [event.version for event in thread.events(types={"record-appended", "thread-labelled"})] == [1202, 1803]
    assert [event.version for event in thread.events(types=["record-appended"], after=1202)] == []
    assert len(list(thread.events(types=["message-appended"], at=1_000))) == 999
    assert len(list(thread.events())) == 1_803


def test_records_move_with_their_thread(conversations: Conversations, tmp_path: Path) -> None:
    thread = conversations.start_thread(thread_id="t")
    thread.append([Record("state", {"a": 1}, BYTES, "k"), Record("state", "secret"), Message.user("Hello")])
    thread.redact(3)
    (tmp_path / "events.jsonl").write_bytes(b"".join(conversations.export_events()))
    document = thread.serialize()
    with Conversations.open("memory:") as imported, Conversations.open("memory:") as restored:
        imported.import_events(tmp_path / "events.jsonl")
        restored.restore_thread(document)
        for other in (imported, restored):
            assert other.thread("t").records() == thread.records()
            assert other.verify().first_bad is None
        assert "secret" not in (tmp_path / "events.jsonl").read_text()


def test_an_engine_has_records_too(file_url: str) -> None:
    async def main() -> None:
        async with Engine.open(file_url) as engine:
            thread = await engine.start_thread()
            record = await thread.append(Record("state", 1, b"x", "k"))
            assert await thread.records("state", key="k") == [record]
            assert [event.type async for event in thread.events(types=["record-appended"])] == ["record-appended"]

    asyncio.run(main())


@dataclass
class Model:
    """The events of one thread as simple values, and what was redacted."""

    line: list[tuple[str, Any]] = field(default_factory=lambda: [("start", None)])

    def path(self, at: int) -> list[int]:
        """The versions on the path."""
        versions: list[int] = []
        while at > 0:
            kind, value = self.line[at - 1]
            versions.append(at)
            at = min(value, at - 1) if kind == "rewind" else at - 1
        return versions[::-1]


KEYS = st.sampled_from([None, "a", "b"])
TYPES = st.sampled_from(["state", "trace"])
ITEMS = st.lists(
    st.builds(Record, type=TYPES, data=jsons, blob=st.none() | st.binary(max_size=9), key=KEYS)
    | st.builds(Message.user, st.text(st.characters(codec="utf-8"), max_size=3)),
    min_size=1,
    max_size=4,
)
STEPS = st.lists(
    st.tuples(st.just("append"), ITEMS) | st.tuples(st.sampled_from(["rewind", "redact", "fork"]), st.integers(0, 99)),
    max_size=12,
)


@given(
    steps=STEPS, types=st.sets(TYPES), key=KEYS, after=st.integers(0, 9), last=st.none() | st.integers(0, 5),
    at=st.integers(0, 99),
)  # fmt: skip
@settings(deadline=None)
def test_records_equal_the_filter_of_all_events_and_the_history_is_that_without_records(
    steps: list[tuple[str, Any]], types: set[str], key: str | None, after: int, last: int | None, at: int
) -> None:
    with Conversations.open("memory:") as conversations:
        thread: Thread = conversations.start_thread()
        model, redacted = Model(), set[int]()
        for kind, value in steps:
            newest = len(model.line)
            if kind == "append":
                thread.append(value)
                model.line += [("item", item) for item in value]
                continue
            version = value % newest + 1
            if kind == "rewind":
                thread.rewind(to=version)
                model.line.append(("rewind", version))
            elif kind == "fork":
                thread = thread.fork(at=version)
                model.line = [*model.line[:version], ("fork", None)]
                redacted = {each for each in redacted if each <= version}
            else:
                before = thread.version
                try:
                    thread.redact(version)
                except ClewError:
                    assert model.line[version - 1][0] != "item" or version in redacted
                    continue
                redacted.add(version)
                if thread.version > before:  # not in an ancestor
                    model.line.append(("redaction", None))
        at = at % len(model.line) + 1
        path = [(version, *model.line[version - 1]) for version in model.path(at)]
        found = [
            (version, item.type, *((None, None, None) if version in redacted else (item.data, item.blob, item.key)))
            for version, kind, item in path
            if kind == "item" and isinstance(item, Record) and version > after and (not types or item.type in types)
        ]
        found = [each for each in found if key in {None, each[4]}]
        read = thread.records(*types, key=key, after=after, last=last, at=at)
        expected = found if last is None else found[len(found) - last :] if last < len(found) else found
        assert [(each.version, each.type, each.data, each.blob, each.key) for each in read] == expected
        history = [(version, item) for version, kind, item in path if kind == "item" and isinstance(item, Message)]
        assert [(each.version, each.message) for each in thread.history(at=at)] == [
            (version, None if version in redacted else item) for version, item in history
        ]
        appended = list(thread.events(types=["message-appended"], at=at))
        assert all(isinstance(each.data, MessageAppended | Shredded) for each in appended)
        assert conversations.verify().first_bad is None


def test_a_thread_starts_with_records_in_its_first_commit(conversations: Conversations) -> None:
    thread = conversations.start_thread(
        thread_id="t", messages=[Record("state", 1), Message.user("Hello"), Record("state", 2)]
    )
    assert [each.data for each in thread.records()] == [1, 2]
    assert [each.text for each in thread.history()] == ["Hello"]
    assert len({event.recorded_at for event in thread.events()}) == 1
    with pytest.raises(InvalidContentError, match="item 1 is int, not a Message"):
        conversations.start_thread(messages=[Message.user("x"), 5])  # type: ignore[list-item]  # wrong on purpose
    with pytest.raises(InvalidContentError, match="record type"):
        conversations.start_thread(thread_id="u", messages=[Record("")])
    assert [each.id for each in conversations.threads()] == ["t"]


def test_a_document_restored_as_new_has_the_records_of_its_path(conversations: Conversations) -> None:
    thread = conversations.start_thread()
    thread.append([Record("state", 1, b"x", "k"), Message.user("Hello"), Record("state", 2), Record("state", "secret")])
    thread.redact(5)
    thread.append([Message.user("taken back"), Record("state", 3)])
    thread.rewind(to=6)
    thread.append([Record("state", 4), Message.assistant("Hi")])
    copy = conversations.restore_thread(thread.serialize(), as_new=True)
    assert contents(copy.records()) == [
        ("state", 1, b"x", "k"),
        ("state", 2, None, None),
        ("state", 4, None, None),
    ]
    assert [each.text for each in copy.history()] == ["Hello", "Hi"]
    assert [event.type for event in copy.events()] == [
        "thread-started",
        "record-appended",
        "message-appended",
        "record-appended",
        "record-appended",
        "message-appended",
    ]


def test_a_diff_has_the_records_of_both_sides(conversations: Conversations) -> None:
    thread = conversations.start_thread(thread_id="a", messages=[Message.user("Hello")])
    thread.append([Record("state", {"n": 1}, key="x"), Record("trace", "common")])
    fork = thread.fork(thread_id="b")
    thread.append([Record("state", {"n": 2}, key="y"), Record("state", {"n": 2}, b"1", key="x"), Record("log", 1)])
    fork.append([Record("state", {"n": 2}, b"2", key="x"), Record("log", 1), Record("other")])
    result = conversations.diff("a", "b")
    assert [(row.kind, row.a and row.a.version, row.b and row.b.version) for row in result.records] == [
        ("only-a", 5, None),
        ("changed", 6, 6),
        ("same", 7, 7),
        ("only-b", None, 8),
    ]
    assert [field.path for field in result.records[1].fields] == [("bytes", "sha256")]
    assert conversations.diff("a", "a").records == ()
    reverse = conversations.diff("b", "a")
    assert [(row.b, row.a) for row in reverse.records if row.kind != "same"] == [
        (row.a, row.b) for row in result.records if row.kind != "same"
    ]
    assert result.counts.same == 1


def test_what_was_said_earlier_and_for_somebody_shows_both(conversations: Conversations) -> None:
    said = datetime(2020, 2, 3, 4, 5, 6, 789, tzinfo=timezone(timedelta(hours=2)))
    thread = conversations.start_thread(thread_id="t")
    given: dict[str, Any] = {"said_at": said, "on_behalf_of": "user:42", "actor": "mail", "idempotency_key": "k"}
    appended = thread.append([Message.user("Hello"), Record("mail", 1), Record("mail", 2)], **given)
    assert thread.append([Message.user("Hello"), Record("mail", 1), Record("mail", 2)], **given) == appended
    with pytest.raises(IdempotencyKeyReusedError):
        thread.append([Message.user("Hello"), Record("mail", 1), Record("mail", 2)], idempotency_key="k")
    plain = thread.append(Message.user("now"))
    assert (plain.said_at, plain.on_behalf_of) == (None, None)
    thread.redact(4)
    thread.redact(2)
    restored = thread.fork(thread_id="f")
    events = list(restored.events(after=1, at=4))
    items: list[Any] = [*events, restored.history().messages[0], *restored.records()]
    items += [entry for entry in conversations.audit(thread="t") if entry.version in {2, 3, 4}]
    assert len(items) == 9
    assert {(each.said_at, each.on_behalf_of, each.actor) for each in items} == {(said, "user:42", "mail")}
    assert {each.time for each in events} == {plain.time}
    assert conversations.verify().first_bad is None


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"said_at": datetime(2020, 1, 1)}, InvalidTimeError),  # noqa: DTZ001  # wrong on purpose
        ({"said_at": "2020-01-01"}, InvalidTimeError),
        ({"said_at": datetime.max.replace(tzinfo=timezone(-timedelta(hours=9)))}, InvalidTimeError),
        ({"on_behalf_of": ""}, InvalidNameError),
        ({"on_behalf_of": 5}, InvalidNameError),
    ],
)
def test_a_wrong_time_or_person_is_refused(
    conversations: Conversations, arguments: dict[str, Any], error: type[ClewError]
) -> None:
    thread = conversations.start_thread()
    with pytest.raises(error):
        thread.append(Message.user("x"), **arguments)
    with pytest.raises(error):
        thread.append(Message.user("x"), idempotency_key="k", **arguments)
    assert thread.version == 1


class CountedRows:
    """Counts the rows that a store reads."""

    def __init__(self, conversations: Conversations, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows = 0
        recorder: Any = conversations._core.log._recorder  # type: ignore[attr-defined]
        for name in ("lineage", "own_rows", "indexed"):
            monkeypatch.setattr(recorder, name, self.counted(getattr(recorder, name)))

    def counted(self, read: Any) -> Any:
        def reading(*arguments: Any, **named: Any) -> Any:
            found = read(*arguments, **named)
            self.rows += len(found)
            return found

        return reading


def test_only_the_wanted_records_are_read(conversations: Conversations, monkeypatch: pytest.MonkeyPatch) -> None:
    thread = conversations.start_thread()
    first = thread.append(Record("state", "first", key="old"))
    for _ in range(4):
        thread.append([Message.user("x"), Record("trace", key="main"), Record("state", key="main")] * 100)
    thread.append(Record("state", "last", key="main"))
    fork = thread.fork()
    fork.append([Message.user("x")] * 300)
    fork.rewind(to=thread.version)
    fork.append([Message.user("x")] * 300)
    for each in (thread, fork):
        each.version  # noqa: B018 - reads what this service does not know of the thread
        reads = CountedRows(conversations, monkeypatch)
        assert each.records("state", key="old") == each.records(key="old", last=1) == [first]
        assert reads.rows <= 8
        assert each.records("state", key="main", last=1)[0].data == each.records(last=1)[0].data == "last"
        assert each.records("trace", "state", last=2)[1].data == "last"
        assert each.records("none", last=1) == each.records(key="none") == []
        assert reads.rows <= 24
        monkeypatch.undo()


CHANGES = st.lists(
    st.tuples(st.sampled_from(["append"] * 5 + ["rewind", "fork", "redact"]), st.integers(0, 99), st.integers(0, 999)),
    max_size=40,
)


@settings(max_examples=25)
@given(changes=CHANGES)
def test_records_are_those_of_the_path(changes: list[tuple[str, int, int]]) -> None:
    with Conversations.open("memory:") as conversations:
        threads: list[Thread] = [conversations.start_thread()]
        for kind, choice, number in changes:
            thread = threads[choice % len(threads)]
            version = 1 + number % thread.version
            if kind == "append":
                key = None if number % 3 == 0 else f"k{number % 3}"
                items: list[Message | Record] = [Record(f"t{number % 2}", number, key=key), Message.user("x")]
                thread.append(items[: 1 + number % 2])
            elif kind == "rewind":
                thread.rewind(version)
            elif kind == "fork":
                threads.append(thread.fork(at=version))
            elif redactable := [each for each in thread.records() if not each.redacted]:
                thread.redact(redactable[number % len(redactable)])
        for thread in threads:
            for version in range(1, thread.version + 1):
                check_records(thread, version)


def check_records(thread: Thread, version: int) -> None:
    path = records_of_path(thread, version)
    assert thread.records(at=version) == path
    assert thread.records("t1", at=version) == [each for each in path if each.type == "t1"]
    assert thread.records("t1", "t0", at=version, last=2) == path[-2:]
    assert thread.records(key="k1", at=version) == [each for each in path if each.key == "k1"]
    both = [each for each in path if (each.type, each.key) == ("t0", "k2")]
    assert thread.records("t0", key="k2", at=version, after=version // 2) == [
        each for each in both if each.version > version // 2
    ]
    assert thread.records("t0", key="k2", at=version, last=1) == both[-1:]


def records_of_path(thread: Thread, version: int) -> list[ThreadRecord]:
    """The definition: the records that are met when walking back from a version."""
    events = {event.version: event for event in thread.events()}
    path = []
    while version:
        path.append(as_record(events[version]))
        data = events[version].data
        version = data.to if isinstance(data, HistoryRewound) else version - 1
    return [each for each in reversed(path) if each is not None]
