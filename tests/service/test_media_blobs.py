"""Media of messages: bytes that are stored once, next to the events, and destroyed with the last message."""

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
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clew import Conversations, Engine, File, Fold, Image, Media, Message, Record
from clew.domain import blobs
from clew.domain.blobs import MOST_INSIDE
from clew.domain.errors import CorruptEventError, IdempotencyKeyReusedError, InvalidContentError, ThreadDocumentError
from clew.domain.events import MessageAppended
from clew.domain.formats.conversation_import import Item
from clew.domain.json_values import MAX_BYTES
from clew.domain.streams import digest

PNG = b"\x89PNG\r\n\x1a\n"
LARGE, OTHER = PNG + b"large" * 1_000, PNG + b"other" * 1_000
LOOK = Message.user("Look:", Image(LARGE), author="ann")
COMPARE = Message.user("Compare:", Image(LARGE), Image(OTHER), Image("https://example.com/a.png"), Image(LARGE))


def recorder_of(conversations: Conversations) -> Any:
    return conversations._core.log._recorder  # type: ignore[attr-defined]


def stored(conversations: Conversations, *data: bytes) -> list[bool]:
    """Whether the store has these bytes."""
    found = recorder_of(conversations).record_blobs(conversations._core.stream("t"), list(map(digest, data)))
    return [digest(each) in found for each in data]


def messages_of(thread: Any, **options: Any) -> list[Message | None]:
    return [item.message for item in thread.history(**options)]


def exported(conversations: Conversations) -> bytes:
    return b"".join(conversations.export_events())


def with_bytes(total: int, event: Any) -> int:
    return total + len(event.data.message.contents[-1].data)


@contextmanager
def copied(conversations: Conversations) -> Iterator[Conversations]:
    with Conversations.open("memory:") as copy:
        copy.import_events(BytesIO(exported(conversations)))
        yield copy


def test_many_bytes_are_named_by_their_digest_and_few_are_in_the_event(conversations: Conversations) -> None:
    thread = conversations.start_thread(thread_id="t")
    few, many = bytes(MOST_INSIDE), bytes(MOST_INSIDE + 1)
    inside = Message.user("few", File(few, media_type="application/x-few", name="few"))
    outside = Message.user("many", File(many, media_type="application/x-many", name="many"))
    thread.append([inside, outside])
    assert messages_of(thread) == [inside, outside]
    assert stored(conversations, few, many) == [False, True]
    rows = [json.loads(row.state[17:]) for row in recorder_of(conversations).own_rows("default/thread/t", limit=9)]
    assert rows[1]["d"] == MessageAppended(message=inside).model_dump(mode="json")
    assert rows[2]["d"]["message"]["contents"][1] == {
        "type": "media",
        "uri": "data:application/x-many;base64,",
        "media_type": "application/x-many",
        "name": "many",
        "size": len(many),
        "digest": digest(many).hex(),
    }
    assert conversations.verify().first_bad is None


def test_every_way_to_read_messages_gives_the_bytes(conversations: Conversations) -> None:
    thread = conversations.start_thread(thread_id="t", messages=[LOOK])
    appended = thread.append([COMPARE, Message.assistant("Two.")])
    first = thread.history().messages[0]
    fork = thread.fork(thread_id="f", then=LOOK)
    thread.rewind(to=2, then=[COMPARE])
    assert appended[0].message == COMPARE
    assert messages_of(thread) == [LOOK, COMPARE]
    assert messages_of(thread) == [LOOK, COMPARE]  # from the cache
    assert messages_of(fork) == [LOOK, COMPARE, Message.assistant("Two."), LOOK]
    assert messages_of(thread, at=3) == [LOOK, COMPARE]
    assert messages_of(thread, last=1) == [COMPARE]
    assert messages_of(thread, before=3) == [LOOK]
    assert [item.message for item in thread.state().messages] == [LOOK, COMPARE]
    assert list(thread.view().messages) == [LOOK, COMPARE]
    assert [state.messages[-1].message for event, state in thread.replay() if event.version in {2, 3}] == [
        LOOK,
        COMPARE,
    ]
    events: list[Any] = [event.data for event in thread.events(types=["message-appended"])]
    assert [data.message for data in events] == [LOOK, COMPARE, Message.assistant("Two."), COMPARE]
    assert [each.message.message for each in thread.variants(3)] == [COMPARE, COMPARE]
    assert json.dumps(thread.edit(first, "No image").state().title) == "null"
    with conversations.subscribe(after=0) as all_events:
        everything: list[Any] = [next(all_events) for _ in range(9)]
    read = [event.data.message for event in everything if event.type == "message-appended"]
    assert read[:2] == [LOOK, COMPARE]
    assert thread.fold(Fold("bytes", 1, 0, with_bytes, types=["message-appended"]), at=3) == 2 * len(LARGE)
    assert stored(conversations, LARGE, OTHER) == [True, True]
    assert conversations.verify().first_bad is None


def test_an_engine_stores_and_reads_media_too(file_url: str) -> None:
    async def main() -> None:
        async with Engine.open(file_url) as engine:
            thread = await engine.start_thread(thread_id="t")
            item = await thread.append(LOOK)
            async with engine.batch() as batch:
                batch.append(thread, COMPARE)
            assert [each.message for each in await thread.history()] == [LOOK, COMPARE]
            await thread.redact(item)
            assert [each.message for each in await thread.history()] == [None, COMPARE]
            assert (await engine.verify()).first_bad is None

    asyncio.run(main())


def test_a_new_process_reads_the_media_and_only_that_of_the_messages_that_it_returns(
    file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Conversations.open(file_url) as conversations:
        thread = conversations.start_thread(thread_id="t")
        thread.append([Message.user(f"{n}", Image(PNG + bytes([n]) * 2_000)) for n in range(30)])
    with Conversations.open(file_url) as conversations:
        asked: list[int] = []
        recorder = recorder_of(conversations)
        again, read = conversations.thread("t"), recorder.record_blobs

        def counted(stream: str, digests: Collection[bytes]) -> dict[bytes, bytes]:
            asked.append(len(digests))
            found: dict[bytes, bytes] = read(stream, digests)
            return found

        monkeypatch.setattr(recorder, "record_blobs", counted)
        assert [item.text for item in again.history(last=2)] == ["28", "29"]
        assert asked == [2]
        assert again.summary().messages == 30
        assert again.history(at_message=3).version == 4
        assert asked == [2, 3]
        assert len(again.history()) == 30
        assert asked == [2, 3, 30]


def test_a_repeated_append_returns_the_media_and_compares_it(conversations: Conversations) -> None:
    thread = conversations.start_thread(thread_id="t")
    first = thread.append(LOOK, idempotency_key="k")
    assert thread.append(LOOK, idempotency_key="k") == first
    with pytest.raises(IdempotencyKeyReusedError):
        thread.append(Message.user("Look:", Image(OTHER), author="ann"), idempotency_key="k")
    assert stored(conversations, LARGE, OTHER) == [True, False]


def test_bytes_are_destroyed_with_the_last_message_or_record_that_has_them(conversations: Conversations) -> None:
    thread = conversations.start_thread(thread_id="t")
    thread.append([LOOK, COMPARE, Record("a", blob=OTHER)])
    fork = thread.fork(thread_id="f", then=LOOK)
    thread.redact(2)
    assert messages_of(fork) == [None, COMPARE, LOOK]
    assert stored(conversations, LARGE, OTHER) == [True, True]
    thread.redact(3)
    assert messages_of(fork) == [None, None, LOOK]
    assert stored(conversations, LARGE, OTHER) == [True, True]
    fork.redact(6)
    assert stored(conversations, LARGE, OTHER) == [False, True]
    thread.redact(4)
    assert stored(conversations, LARGE, OTHER) == [False, False]
    assert conversations.verify().first_bad is None
    assert fork.append(LOOK).message == LOOK
    assert stored(conversations, LARGE, OTHER) == [True, False]


def test_a_purge_destroys_the_bytes_that_no_other_thread_has(conversations: Conversations) -> None:
    thread, other = conversations.start_thread(thread_id="t"), conversations.start_thread(thread_id="u")
    thread.append([LOOK, COMPARE])
    other.append(LOOK)
    thread.purge()
    assert stored(conversations, LARGE, OTHER) == [True, False]
    assert messages_of(other) == [LOOK]
    other.purge()
    assert stored(conversations, LARGE, OTHER) == [False, False]
    assert conversations.verify().first_bad is None


def test_a_message_that_is_redacted_while_it_is_read_is_returned_as_redacted(
    conversations: Conversations, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = conversations.start_thread(thread_id="t")
    recorder = recorder_of(conversations)
    read = recorder.record_blobs
    readings: tuple[Callable[[], list[bool]], ...] = (
        lambda: [item.redacted for item in thread.history(last=1)],
        lambda: [event.redacted for event in thread.events(types=["message-appended"])][-1:],
        lambda: [b"large" not in exported(conversations)],
        lambda: [digest(LARGE).hex() not in json.dumps(thread.serialize())],
    )
    for reading in readings:
        item = thread.append(LOOK)

        def after_a_redaction(
            stream: str, digests: Collection[bytes], version: int = item.version
        ) -> dict[bytes, bytes]:
            monkeypatch.setattr(recorder, "record_blobs", read)
            thread.redact(version)
            found: dict[bytes, bytes] = read(stream, digests)
            return found

        monkeypatch.setattr(recorder, "record_blobs", after_a_redaction)
        assert reading() == [True]


def test_bytes_move_with_their_messages(conversations: Conversations) -> None:
    thread = conversations.start_thread(thread_id="t")
    thread.append([LOOK, COMPARE, LOOK])
    fork = thread.fork(thread_id="f", at=4, then=LOOK)
    thread.redact(3)
    document: Any = fork.serialize()
    assert [blob["digest"] for blob in document["blobs"]] == [digest(LARGE).hex()]
    assert json.dumps(document).count(b64encode(LARGE).decode()) == 1
    assert exported(conversations).count(b64encode(LARGE)) == 3
    with copied(conversations) as copy, Conversations.open("memory:") as restored:
        restored.restore_thread(document)
        as_new = restored.restore_thread(document, as_new=True)
        assert messages_of(copy.thread("t")) == messages_of(thread)
        assert exported(copy) == exported(conversations)
        for each in (copy, restored):
            assert messages_of(each.thread("f")) == [LOOK, None, LOOK, LOOK]
            assert each.verify().first_bad is None
            assert stored(each, LARGE, OTHER) == [True, False]
        assert messages_of(as_new) == [LOOK, LOOK, LOOK]
        for version in (2, 4):
            thread.redact(version)
        fork.redact(6)
        assert copy.import_events(BytesIO(exported(conversations))).failed == []  # it shreds what the store has
        assert stored(copy, LARGE, OTHER) == [False, False]
        assert copy.verify().first_bad is None


def test_a_file_or_document_without_the_bytes_is_refused(conversations: Conversations) -> None:
    thread = conversations.start_thread(thread_id="t")
    thread.append(LOOK)
    lines = exported(conversations).splitlines(keepends=True)
    document: Any = thread.serialize()
    words = f"the bytes of the media, with the SHA-256 {digest(LARGE).hex()}, must come before it"
    with Conversations.open("memory:") as copy:
        (refused,) = copy.import_events(BytesIO(b"".join(line for line in lines if b'"blob"' not in line))).failed
        assert words in str(refused.error)
        with pytest.raises(ThreadDocumentError, match="the bytes of version 2"):
            copy.restore_thread(document | {"blobs": []})
        assert stored(copy, LARGE) == [False]


def test_a_conversation_with_media_is_imported_once(conversations: Conversations) -> None:
    part = {"type": "image_url", "image_url": {"url": Image(LARGE).uri}}
    conversation: Any = {"id": "c", "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, part]}]}
    reports = [conversations.import_items([Item("here", 1, conversation)]) for _ in range(2)]
    assert [(report.messages, report.failed) for report in reports] == [(1, []), (0, [])]
    assert list(conversations.export()) == [conversation]
    assert stored(conversations, LARGE) == [True]


def test_a_diff_names_the_bytes_that_differ_and_markdown_their_number(conversations: Conversations) -> None:
    thread = conversations.start_thread(thread_id="t")
    thread.append(LOOK)
    other = thread.fork(thread_id="f", at=1, then=Message.user("Look:", Image(OTHER), author="ann"))
    (row,) = conversations.diff("t", "f").rows
    (content,) = [each for each in row.contents if each.fields]
    sides = [{"length": len(data), "sha256": digest(data).hex()} for data in (LARGE, OTHER)]
    assert [(field.path, field.a, field.b) for field in content.fields] == [
        (("bytes", "sha256"), sides[0]["sha256"], sides[1]["sha256"])
    ]
    markdown = thread.markdown()
    assert "5,008 bytes" in markdown
    assert "base64" not in markdown
    assert other.version == 3


def test_the_search_and_the_audit_have_words_and_no_bytes(conversations: Conversations) -> None:
    thread = conversations.start_thread(thread_id="t")
    thread.append(COMPARE)
    assert [hit.version for hit in conversations.search("compare")] == [2]
    assert [hit.version for hit in conversations.search("png")] == [2]
    assert list(conversations.search("base64")) == []
    assert all("base64" not in entry.what for entry in conversations.audit(thread="t"))


def test_too_many_bytes_are_refused(conversations: Conversations) -> None:
    thread = conversations.start_thread(thread_id="t")
    with pytest.raises(InvalidContentError, match="16,777,217 bytes, but one content has at most 16,777,216"):
        File(bytes(MAX_BYTES + 1), media_type="application/x-zeros")
    encoded = b64encode(bytes(MAX_BYTES + 1)).decode()
    with pytest.raises(InvalidContentError, match="16,777,217 bytes"):
        thread.append(Message.user("x", Media(uri=f"data:application/x-zeros;base64,{encoded}")))
    most = Message.user("x", File(bytes(MAX_BYTES), media_type="application/x-zeros"))
    thread.append(most)
    assert messages_of(thread) == [most]


@pytest.mark.parametrize(
    "fields",
    [
        {"uri": "data:image/png;base64,", "digest": "ab" * 32},
        {"uri": "data:image/png;base64,AA==", "digest": "ab" * 32, "size": 1},
        {"uri": "https://example.com", "digest": "ab" * 32, "size": 1},
        {"uri": "data:image/png;base64,", "digest": "x", "size": 1},
        {"uri": "data:image/png;base64,", "size": -1},
    ],
)
def test_media_with_a_senseless_digest_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidContentError):
        Media(**fields)


def test_a_message_that_only_names_bytes_is_not_appended(conversations: Conversations) -> None:
    thread = conversations.start_thread(thread_id="t")
    named = Media(uri="data:image/png;base64,", size=2_000, digest=digest(LARGE).hex())
    with pytest.raises(InvalidContentError, match=r"contents\[1\].digest: only a stored event has it"):
        thread.append(Message.user("x", named))
    assert thread.version == 1


def test_verification_finds_bytes_that_are_missing_damaged_or_unused_in_memory() -> None:
    with Conversations.open("memory:") as conversations:
        thread = conversations.start_thread(thread_id="t")
        thread.append([LOOK, COMPARE])
        assert conversations.verify().first_bad is None
        held = recorder_of(conversations)._events.record_blobs
        for change, words in ((None, "its bytes are missing"), (OTHER + b"x", "do not match")):
            kept = dict(held)
            del held[digest(OTHER)]
            if change is not None:
                held[digest(OTHER)] = change
            for verdict in (conversations.verify(), thread.verify()):
                assert verdict.first_bad is not None
                assert verdict.first_bad[:2] == ("t", 3)
                assert words in verdict.first_bad.reason
            for read in (
                thread.history,
                lambda: thread.history(last=1),
                thread.serialize,
                lambda: list(thread.events()),
            ):
                with pytest.raises(CorruptEventError, match=r"version 3: the bytes of the media|does not verify"):
                    read()
            with pytest.raises(CorruptEventError):
                exported(conversations)
            assert messages_of(thread, at=2) == [LOOK]
            held |= kept
        held[digest(b"x")] = b"x"
        fault = conversations.verify().first_bad
        assert fault is not None
        assert fault[:3] == (f"#blob:{digest(b'x').hex()}", 0, "no event has these bytes")
        del held[digest(b"x")], held[digest(OTHER)]
        thread.redact(3)  # also without its bytes
        assert conversations.verify().first_bad is None


@pytest.mark.parametrize(
    ("statement", "version", "words"),
    [
        ("DELETE FROM record_blob WHERE digest = ?", 3, "its bytes are missing"),
        ("UPDATE record_blob SET data = x'00' WHERE digest = ?", 3, "do not match their digest"),
        ("DELETE FROM entry WHERE number = (SELECT number FROM record_blob WHERE digest = ?)", 3, "index"),
        (
            "INSERT INTO entry SELECT stream, 1 + number, 2 FROM entry JOIN record_blob USING (number) WHERE digest=?",
            2,
            "the index has bytes that it does not have",
        ),
    ],
)
def test_verification_finds_bytes_that_another_program_has_changed_in_the_file(
    tmp_path: Path, statement: str, version: int, words: str
) -> None:
    path = tmp_path / "clew.db"
    with Conversations.open(path) as conversations:
        thread = conversations.start_thread(thread_id="t")
        thread.append([LOOK, COMPARE])
        thread.redact(2)
        assert conversations.verify().first_bad is None
    with sqlite3.connect(path) as connection:
        assert connection.execute(statement, (digest(OTHER),)).rowcount == 1
    connection.close()
    with Conversations.open(path) as conversations:
        for fault in (conversations.verify().first_bad, conversations.thread("t").verify().first_bad):
            assert fault is not None
            assert (fault[:2], words in fault.reason) == (("t", version), True), fault


def test_an_event_of_an_older_clew_has_its_bytes_inside_and_keeps_them(
    conversations: Conversations, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = conversations.start_thread(thread_id="t")
    with monkeypatch.context() as older:
        older.setattr(blobs, "MOST_INSIDE", 10 * MAX_BYTES)
        thread.append(LOOK, idempotency_key="k")
    assert stored(conversations, LARGE) == [False]
    assert thread.append(LOOK, idempotency_key="k").version == 2
    thread.append(COMPARE)
    assert messages_of(thread) == [LOOK, COMPARE]
    document: Any = thread.serialize()
    with copied(conversations) as copy, Conversations.open("memory:") as restored:
        restored.restore_thread(document)
        for each in (copy, restored):
            assert messages_of(each.thread("t")) == [LOOK, COMPARE]
            assert each.verify().first_bad is None
    thread.redact(3)
    assert messages_of(thread) == [LOOK, None]
    assert stored(conversations, LARGE, OTHER) == [False, False]
    assert conversations.verify().first_bad is None


@given(
    data=st.one_of(
        st.binary(max_size=3_000), st.integers(1_000, 5_000).map(lambda size: random.Random(size).randbytes(size))
    ),
    head=st.sampled_from(
        ["data:;base64,", "data:image/png;base64,", "data:a/b;x=1;base64,", "data:a/b;base64;base64,"]
    ),
    tail=st.sampled_from(["", "", "", "=", "\n", " ", "é", "AA"]),
)
@settings(deadline=None, max_examples=60)
def test_any_uri_is_read_as_it_was_appended(data: bytes, head: str, tail: str) -> None:
    message = Message.user("x", Media(uri=head + b64encode(data).decode() + tail, media_type="a/b"))
    with Conversations.open("memory:", projections=[]) as conversations:
        thread = conversations.start_thread(thread_id="t")
        thread.append(message)
        assert messages_of(thread) == [message]
        with copied(conversations) as copy:
            assert messages_of(copy.thread("t")) == [message]
            assert copy.thread("t").summary().head == thread.summary().head
        assert conversations.verify().first_bad is None
