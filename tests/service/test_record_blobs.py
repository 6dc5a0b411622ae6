"""Bytes of records that are not in their events: stored once, read like others, destroyed with their last record."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
from base64 import b64encode
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clew import Conversations, Engine, Fold, Message, Record
from clew.domain import records
from clew.domain.blobs import MOST_INSIDE
from clew.domain.errors import (
    ClewError,
    CorruptEventError,
    IdempotencyKeyReusedError,
    InvalidContentError,
    ThreadDocumentError,
)
from clew.domain.events import RecordAppended, Shredded
from clew.domain.json_values import MAX_BYTES
from clew.domain.streams import digest

LARGE, OTHER = b"large" * 1_000, b"other" * 1_000


def recorder_of(conversations: Conversations) -> Any:
    return conversations._core.log._recorder  # type: ignore[attr-defined]


def stored(conversations: Conversations, *blobs: bytes) -> list[bool]:
    """Whether the store has these bytes."""
    found = recorder_of(conversations).record_blobs(conversations._core.stream("t"), list(map(digest, blobs)))
    return [digest(blob) in found for blob in blobs]


def blobs_of(thread: Any, **options: Any) -> list[bytes | None]:
    return [record.blob for record in thread.records(**options)]


def exported(conversations: Conversations) -> bytes:
    return b"".join(conversations.export_events())


@contextmanager
def copied(conversations: Conversations) -> Iterator[Conversations]:
    with Conversations.open("memory:") as copy:
        copy.import_events(BytesIO(exported(conversations)))
        yield copy


def test_many_bytes_are_named_by_their_digest_and_few_are_in_the_event(conversations: Conversations) -> None:
    thread = conversations.start_thread(thread_id="t")
    few, many = bytes(MOST_INSIDE), bytes(MOST_INSIDE + 1)
    thread.append([Record("a", blob=few), Record("b", 1, many, "k"), Record("c", blob=many)])
    assert blobs_of(thread) == [few, many, many]
    appended: list[Any] = [event.data for event in thread.events(types=["record-appended"])]
    first, second, third = appended
    assert first == RecordAppended(type="a", base64=b64encode(few).decode())
    named = {"size": len(many), "digest": digest(many).hex()}
    assert [each.model_dump() for each in (second, third)] == [
        {"type": "b", "data": 1, "key": "k", **named},
        {"type": "c", **named},
    ]
    assert [second.blob, third.blob] == [many, many]
    assert stored(conversations, few, many) == [False, True]
    rows = recorder_of(conversations).own_rows("default/thread/t", limit=9)
    assert max(len(row.state) for row in rows[2:]) < 400


def test_every_kind_of_append_stores_the_bytes_in_its_commit(conversations: Conversations) -> None:
    thread = conversations.start_thread(thread_id="t")
    blobs = [bytes([number]) * 2_000 for number in range(6)]
    assert thread.append(Record("a", blob=blobs[0])).blob == blobs[0]
    with conversations.batch() as batch:
        of_batch: Any = batch.append(thread, [Record("a", blob=blobs[1]), Message.user("x")])
    assert of_batch.result[0].blob == blobs[1]
    fork = thread.fork(thread_id="f", then=Record("a", blob=blobs[2]))
    thread.rewind(to=2, then=[Record("a", blob=blobs[3])])
    thread.append([Record("a", blob=blobs[4]), Record("a", blob=blobs[4])])
    assert blobs_of(fork) == [blobs[0], blobs[1], blobs[2]]
    assert blobs_of(thread) == [blobs[0], blobs[3], blobs[4], blobs[4]]
    assert blobs_of(thread, last=1) == [blobs[4]]
    assert blobs_of(thread, at=2) == [blobs[0]]
    assert stored(conversations, *blobs) == [True] * 5 + [False]
    assert conversations.verify().first_bad is None


def test_an_engine_stores_and_reads_bytes_too(file_url: str) -> None:
    async def main() -> None:
        async with Engine.open(file_url) as engine:
            thread = await engine.start_thread(thread_id="t")
            record = await thread.append(Record("a", 1, LARGE, "k"))
            async with engine.batch() as batch:
                batch.append(thread, Record("a", blob=OTHER))
            assert [each.blob for each in await thread.records()] == [LARGE, OTHER]
            assert await thread.records(key="k") == [record]
            await thread.redact(record)
            assert [each.blob for each in await thread.records()] == [None, OTHER]
            assert (await engine.verify()).first_bad is None

    asyncio.run(main())


def test_a_repeated_append_returns_the_bytes_and_compares_them(conversations: Conversations) -> None:
    thread = conversations.start_thread(thread_id="t")
    first = thread.append([Record("a", blob=LARGE), Message.user("x")], idempotency_key="k")
    assert thread.append([Record("a", blob=LARGE), Message.user("x")], idempotency_key="k") == first
    with pytest.raises(IdempotencyKeyReusedError):
        thread.append([Record("a", blob=OTHER), Message.user("x")], idempotency_key="k")
    assert stored(conversations, LARGE, OTHER) == [True, False]


def test_folds_and_subscriptions_get_the_bytes(conversations: Conversations) -> None:
    thread = conversations.start_thread(thread_id="t")
    thread.append([Record("a", blob=LARGE), Record("a", blob=b"few")])

    def sizes(state: tuple[int, ...], event: Any) -> tuple[int, ...]:
        return (*state, len(event.data.blob))

    none: tuple[int, ...] = ()
    assert thread.fold(Fold("sizes", 1, none, sizes, types=["record-appended"])) == (5_000, 3)
    with conversations.subscribe(after=0) as all_events, thread.subscribe(after=1) as of_thread:
        read: list[Any] = [next(of_thread).data, *(next(all_events).data for _ in range(2))]
        assert (read[0].blob, read[2].blob) == (LARGE, LARGE)


def test_a_page_of_records_is_one_query_for_their_bytes(
    conversations: Conversations, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = conversations.start_thread(thread_id="t")
    blobs = [number.to_bytes(2) * 1_000 for number in range(50)]
    thread.append([Record("a", blob=blob) for blob in blobs])
    thread.append([Record("b", blob=b"few"), Message.user("x")])
    queries: list[int] = []
    recorder = recorder_of(conversations)
    read = recorder.record_blobs

    def counted(stream: str, digests: Collection[bytes]) -> dict[bytes, bytes]:
        queries.append(len(digests))
        found: dict[bytes, bytes] = read(stream, digests)
        return found

    monkeypatch.setattr(recorder, "record_blobs", counted)
    assert blobs_of(thread) == [*blobs, b"few"]
    assert queries == [50]
    assert blobs_of(thread, last=2) == [blobs[-1], b"few"]
    thread.history()
    thread.records("b")
    thread.append(Message.user("y"))
    assert queries == [50, 1]


def test_bytes_are_destroyed_with_the_last_record_that_has_them(conversations: Conversations) -> None:
    thread, other = conversations.start_thread(thread_id="t"), conversations.start_thread(thread_id="u")
    one, two = thread.append([Record("a", blob=LARGE), Record("a", blob=LARGE)])
    fork = thread.fork(thread_id="f", at=2)
    inherited, own = fork.records()[0], fork.append(Record("a", blob=LARGE))
    elsewhere = other.append(Record("a", blob=LARGE))
    fork.redact(inherited)
    assert blobs_of(thread) == [None, LARGE]
    assert blobs_of(fork) == [None, LARGE]
    for thread_, record in ((thread, two), (fork, own)):
        thread_.redact(record)
        assert stored(conversations, LARGE) == [True]
        assert blobs_of(other) == [LARGE]
    other.redact(elsewhere)
    assert stored(conversations, LARGE) == [False]
    assert conversations.verify().first_bad is None
    again = other.append(Record("a", blob=LARGE))
    assert blobs_of(other) == [None, LARGE]
    assert other.records(after=elsewhere.version) == [again]
    assert one.version == 2


def test_a_purge_destroys_the_bytes_that_no_other_thread_has(conversations: Conversations) -> None:
    thread, other = conversations.start_thread(thread_id="t"), conversations.start_thread(thread_id="u")
    thread.append([Record("a", blob=LARGE), Record("a", blob=OTHER), Record("a", blob=LARGE)])
    other.append(Record("a", blob=OTHER))
    fork = thread.fork(thread_id="f")
    thread.purge(forks=True)
    assert stored(conversations, LARGE, OTHER) == [False, True]
    assert blobs_of(fork) == [None, None, None]
    assert blobs_of(other) == [OTHER]
    assert conversations.verify().first_bad is None


def test_a_record_that_is_redacted_while_it_is_read_is_redacted(
    conversations: Conversations, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = conversations.start_thread(thread_id="t")
    record = thread.append(Record("a", 1, LARGE, "k"))
    recorder = recorder_of(conversations)
    read = recorder.record_blobs

    def after_a_redaction(stream: str, digests: Collection[bytes]) -> dict[bytes, bytes]:
        monkeypatch.setattr(recorder, "record_blobs", read)
        thread.redact(record)
        found: dict[bytes, bytes] = read(stream, digests)
        return found

    readings: tuple[Callable[[], list[bool]], ...] = (
        lambda: [each.redacted for each in thread.records()],
        lambda: [event.data == Shredded(None, "a") for event in thread.events(types=["record-appended"])][-1:],
        lambda: [b"large" not in exported(conversations)],
        lambda: ["large" not in json.dumps(thread.serialize())],
    )
    for reading in readings:
        monkeypatch.setattr(recorder, "record_blobs", after_a_redaction)
        assert reading()[-1:] == [True]
        monkeypatch.setattr(recorder, "record_blobs", read)
        record = thread.append(Record("a", 1, LARGE, "k"))
    monkeypatch.setattr(recorder, "record_blobs", after_a_redaction)
    assert thread.records(key="k") == []


def test_bytes_move_with_their_records(conversations: Conversations) -> None:
    thread = conversations.start_thread(thread_id="t")
    thread.append([Record("a", 1, LARGE, "k"), Record("a", blob=OTHER), Record("b", blob=LARGE)])
    fork = thread.fork(thread_id="f", at=3, then=Record("c", blob=LARGE))
    thread.redact(3)
    document: Any = fork.serialize()
    assert [blob["digest"] for blob in document["blobs"]] == [digest(LARGE).hex()]
    with copied(conversations) as copy, Conversations.open("memory:") as restored:
        restored.restore_thread(document)
        as_new = restored.restore_thread(document, as_new=True)
        assert copy.thread("t").records() == thread.records()
        assert exported(copy) == exported(conversations)
        for each in (copy, restored):
            assert each.thread("f").records() == fork.records()
            assert each.verify().first_bad is None
            assert stored(each, LARGE, OTHER) == [True, False]
        assert blobs_of(as_new) == [LARGE, LARGE]
        restored.thread("f").redact(5)
        assert copy.import_events(BytesIO(exported(conversations))).failed == []
        thread.redact(2)
        fork.redact(5)
        thread.redact(4)
        assert copy.import_events(BytesIO(exported(conversations))).failed == []  # it shreds what the store has
        assert stored(copy, LARGE, OTHER) == [False, False]
        assert copy.verify().first_bad is None


def lines_of(file: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.splitlines()]


def as_file(lines: list[dict[str, Any]]) -> BytesIO:
    return BytesIO(b"".join(json.dumps(line).encode() + b"\n" for line in lines))


def without(lines: list[dict[str, Any]]) -> None:
    del lines[2]


def damaged(lines: list[dict[str, Any]]) -> None:
    lines[2]["blob"]["text"] += "x"


def another(lines: list[dict[str, Any]]) -> None:
    lines[2]["blob"] |= {"text": "x", "digest": digest(b"x").hex()}


def of_another_kind(lines: list[dict[str, Any]]) -> None:
    lines[2]["blob"]["kind"] = "definition"


@pytest.mark.parametrize(
    ("change", "line", "words"),
    [
        (
            without,
            3,
            f"Thread 't', version 2: the bytes of the record, with the SHA-256 {digest(LARGE).hex()}, must come",
        ),
        (damaged, 3, "does not match its digest"),
        (another, 4, "is not named by the event after it"),
        (of_another_kind, 4, "must come before it"),
    ],
)
def test_a_file_without_the_bytes_of_a_record_is_refused(
    conversations: Conversations, change: Callable[[list[dict[str, Any]]], None], line: int, words: str
) -> None:
    thread = conversations.start_thread(thread_id="t")
    thread.append(Record("a", blob=LARGE))
    lines = lines_of(exported(conversations))
    change(lines)
    with Conversations.open("memory:") as copy:
        copy.start_thread(thread_id="u").append(Record("a", blob=LARGE))  # that the store has them does not help
        (refused,) = copy.import_events(as_file(lines)).failed
        assert (refused.line, words in str(refused.error)) == (line, True)
        assert copy.thread("t").version == 1
        assert copy.verify().first_bad is None


def test_an_end_of_a_file_with_another_number_of_bytes_says_what_it_counts(conversations: Conversations) -> None:
    conversations.start_thread(thread_id="t").append(Record("a", blob=LARGE))
    lines = lines_of(exported(conversations))
    lines[-1]["end"]["blobs"] = 2
    words = "should hold 2 definitions and bytes next to events, but 1 were found"
    with Conversations.open("memory:") as copy:
        (refused,) = copy.import_events(as_file(lines)).failed
        assert words in str(refused.error)


def test_a_refused_thread_does_not_take_bytes_along(conversations: Conversations) -> None:
    thread, other = conversations.start_thread(thread_id="t"), conversations.start_thread(thread_id="u")
    thread.append([Record("a", blob=LARGE), Record("a", blob=OTHER)])
    other.append(Record("a", blob=LARGE))
    with Conversations.open("memory:") as copy:
        copy.start_thread(thread_id="t", title="another one")
        (refused,) = copy.import_events(BytesIO(exported(conversations))).failed
        assert "diverge" in type(refused.error).__name__.lower()
        assert blobs_of(copy.thread("u")) == [LARGE]
        assert stored(copy, LARGE, OTHER) == [True, False]
        assert copy.verify().first_bad is None


def test_a_document_without_the_bytes_of_a_record_is_refused(conversations: Conversations) -> None:
    thread = conversations.start_thread(thread_id="t")
    thread.append([Record("a", blob=LARGE), Record("a", blob=OTHER)])
    whole: Any = thread.serialize()
    extra = {"digest": digest(b"x").hex(), "data": b64encode(b"x").decode()}
    for blobs, words in (
        (whole["blobs"][:1], "the bytes of version 3"),
        ([*whole["blobs"], extra], "does not match the events"),
        (whole["blobs"][::-1], "does not match the events"),
        ([whole["blobs"][0] | {"data": extra["data"]}, whole["blobs"][1]], "does not match the digest"),
        ([whole["blobs"][0] | {"data": "!"}, whole["blobs"][1]], "does not match the digest"),
    ):
        with Conversations.open("memory:") as copy:
            with pytest.raises(ThreadDocumentError, match=words):
                copy.restore_thread(whole | {"blobs": blobs})
            assert list(copy.threads()) == []
            assert stored(copy, LARGE) == [False]


def test_too_many_bytes_are_refused(conversations: Conversations) -> None:
    thread = conversations.start_thread(thread_id="t")
    with pytest.raises(InvalidContentError, match="16,777,217 bytes, but a record has at most 16,777,216"):
        thread.append(Record("a", blob=bytes(MAX_BYTES + 1)))
    thread.append(Record("a", blob=bytes(MAX_BYTES)))
    assert thread.version == 2


@pytest.mark.parametrize(
    "fields",
    [{"digest": "ab" * 32}, {"digest": "x", "size": 1}, {"digest": "ab" * 32, "size": 1, "base64": ""}, {"size": -1}],
)
def test_an_event_with_a_senseless_digest_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidContentError):
        RecordAppended(type="a", **fields)


def test_verification_finds_bytes_that_are_missing_damaged_or_unused_in_memory() -> None:
    with Conversations.open("memory:") as conversations:
        thread = conversations.start_thread(thread_id="t")
        thread.append([Record("a", blob=LARGE), Record("a", blob=OTHER)])
        assert conversations.verify().first_bad is None
        blobs = recorder_of(conversations)._events.record_blobs
        for change, words in ((None, "its bytes are missing"), (OTHER + b"x", "do not match")):
            whole = dict(blobs)
            del blobs[digest(OTHER)]
            if change is not None:
                blobs[digest(OTHER)] = change
            for verdict in (conversations.verify(), thread.verify()):
                assert verdict.first_bad is not None
                assert verdict.first_bad[:2] == ("t", 3)
                assert words in verdict.first_bad.reason
            with pytest.raises(CorruptEventError, match="version 3: the bytes of the record"):
                thread.records()
            with pytest.raises(CorruptEventError):
                exported(conversations)
            with pytest.raises(CorruptEventError):
                thread.serialize()
            assert [event.version for event in thread.events(at=2)] == [1, 2]
            assert thread.history().messages == ()
            blobs |= whole
        blobs[digest(b"x")] = b"x"
        fault = conversations.verify().first_bad
        assert fault is not None
        assert fault[:3] == (f"#blob:{digest(b'x').hex()}", 0, "no event has these bytes")
        del blobs[digest(OTHER)]
        thread.redact(3)  # also without its bytes
        assert [each.redacted for each in thread.records()] == [False, True]


@pytest.mark.parametrize(
    ("statement", "place", "words"),
    [
        ("DELETE FROM record_blob WHERE digest = ?", ("t", 3), "its bytes are missing"),
        ("UPDATE record_blob SET digest = NULL WHERE digest = ?", ("t", 3), "its bytes are missing"),
        ("UPDATE record_blob SET data = x'00' WHERE digest = ?", ("t", 3), "do not match their digest"),
        ("UPDATE record_blob SET data = 'text' WHERE digest = ?", ("t", 3), "do not match their digest"),
        ("UPDATE record_blob SET data = data || x'00' WHERE digest = ?", ("t", 3), "do not match their digest"),
        ("DELETE FROM entry WHERE number = (SELECT number FROM record_blob WHERE digest = ?)", ("t", 3), "index"),
        ("INSERT INTO record_blob SELECT x'ab', 1 + max(number), ? FROM record_blob", ("#blob:ab", 0), "no event"),
    ],
)
def test_verification_finds_bytes_that_another_program_has_changed_in_the_file(
    tmp_path: Path, statement: str, place: tuple[str, int], words: str
) -> None:
    path = tmp_path / "clew.db"
    with Conversations.open(path) as conversations:
        thread = conversations.start_thread(thread_id="t")
        thread.append([Record("a", blob=LARGE), Record("a", blob=OTHER)])
        assert conversations.verify().first_bad is None
    with sqlite3.connect(path) as connection:
        assert connection.execute(statement, (digest(OTHER),)).rowcount == 1
    connection.close()
    with Conversations.open(path) as conversations:
        fault = conversations.verify().first_bad
        assert fault is not None
        assert (fault[:2], words in fault.reason) == (place, True), fault
        assert conversations.thread("t").verify().first_bad == (fault if place[1] else None)


class Own(NamedTuple):
    """A record that a test has appended: its thread, its version, and the number of its bytes."""

    thread: str
    version: int
    number: int


SHARED = 8


def content(number: int) -> bytes:
    """Bytes with a mark in each part of them that can be in another page."""
    chance = random.Random(number)
    size = chance.choice([1_100, 2_000, 3_900, 4_200, 9_000])
    return (b"<BLOB-%04d>" % number * (size // 11 + 1))[:size]


STEPS = st.lists(
    st.tuples(st.sampled_from("aaaarfpbi"), st.integers(0, SHARED - 1), st.integers(0, 99)), min_size=10, max_size=40
)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@given(steps=STEPS)
@settings(deadline=None, max_examples=20)
def test_the_store_has_exactly_the_bytes_of_records_that_are_not_redacted(
    tmp_path_factory: pytest.TempPathFactory, kind: str, steps: list[tuple[str, int, int]]
) -> None:
    folder: Path = tmp_path_factory.mktemp("blobs")
    url = "memory:" if kind == "memory" else f"sqlite:///{folder}/clew.db?synchronous=OFF"
    live: set[Own] = set()
    threads = ["t"]
    with Conversations.open(url, projections=[]) as conversations:
        conversations.start_thread(thread_id="t")
        for step, number, pick in steps:
            thread = conversations.thread(threads[pick % len(threads)])
            if step == "a":
                live.add(Own(thread.id, thread.append(Record("x", blob=content(number))).version, number))
            elif step == "b":
                items = [Record("x", blob=content((number + each) % SHARED)) for each in range(3)]
                with conversations.batch() as batch:
                    result = batch.append(thread, items)
                live |= {Own(thread.id, r.version, (number + each) % SHARED) for each, r in enumerate(result.result)}
            elif step == "f":
                fork = thread.fork(then=Record("x", blob=content(number)))
                threads.append(fork.id)
                live.add(Own(fork.id, fork.version, number))
            elif step == "r" and live:
                gone = sorted(live)[pick % len(live)]
                conversations.thread(gone.thread).redact(gone.version)
                live.remove(gone)
            elif step == "p" and len(threads) > 1:
                threads.remove(thread.id)
                thread.purge(forks=True)
                live = {each for each in live if each.thread != thread.id}
            elif step == "i":
                conversations.import_events(BytesIO(exported(conversations)))
        used = {each.number for each in live}
        assert stored(conversations, *map(content, range(SHARED))) == [number in used for number in range(SHARED)]
        assert conversations.verify().first_bad is None
        for own in live:
            try:
                (record,) = conversations.thread(own.thread).records(after=own.version - 1, at=own.version)
            except ClewError:
                continue  # deleted
            assert record.blob == content(own.number)
        with copied(conversations) as copy:
            assert stored(copy, *map(content, range(SHARED))) == [number in used for number in range(SHARED)]
            assert copy.verify().first_bad is None
        files = b"\n".join(path.read_bytes() for path in folder.iterdir() if path.is_file())
        assert [number for number in range(SHARED) if number not in used and b"BLOB-%04d" % number in files] == []


def test_an_event_of_an_older_clew_has_its_bytes_inside(
    conversations: Conversations, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = conversations.start_thread(thread_id="t")
    with monkeypatch.context() as older:
        older.setattr(records, "MOST_INSIDE", MAX_BYTES)
        thread.append(Record("a", 1, LARGE, "k"), idempotency_key="k")
    assert stored(conversations, LARGE) == [False]
    assert thread.append(Record("a", 1, LARGE, "k"), idempotency_key="k").version == 2
    thread.append(Record("a", blob=LARGE))
    assert blobs_of(thread) == [LARGE, LARGE]
    with copied(conversations) as copy:
        assert copy.thread("t").records() == thread.records()
    thread.redact(3)
    assert blobs_of(thread) == [LARGE, None]
    assert stored(conversations, LARGE) == [False]
    assert conversations.verify().first_bad is None
