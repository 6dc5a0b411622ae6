"""Definitions of agents in Clew's JSONL: exported only on request, and checked by their digests."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator

import pytest
from tests.service.transferred_stores import STARTED, file_of, forged, import_lines, state

from clew.conversations import Conversations
from clew.domain.errors import CorruptEventError
from clew.domain.formats.clew_jsonl import read_line, write_line
from clew.domain.messages import Message
from clew.domain.ports import Blob, Write
from clew.domain.streams import digest
from clew.engine import Engine
from clew.service import event_import

KIND = Blob(digest(b"Be kind."), "definition", b"Be kind.")
TOOL = Blob(digest(b'{"name":"look"}'), "definition", b'{"name":"look"}')
FORM = Blob(digest(b"\xff"), "definition", b"\xff")


def started(
    *tools: Blob, instructions: Blob | None = KIND, form: Blob | None = None, again: bool = False
) -> tuple[str, bytes]:
    """Return the type and stored bytes of an event that starts a run, or resumes it ``again``."""
    fingerprint = {"client": "chat", "tools": [tool.digest.hex() for tool in tools]}
    for name, blob in (("instructions", instructions), ("response_format", form)):
        fingerprint |= {} if blob is None else {name: blob.digest.hex()}
    attempt = {"attempt": 2} if again else {}
    return "run-resumed" if again else "run-started", state(
        r="run-1", agent={"id": "joker"}, fingerprint=fingerprint, **attempt
    )


def put(store: Conversations, *blobs: Blob) -> None:
    store._core.log.submit(Write((), {}, blobs=blobs)).outcome.result()


def exported(store: Conversations) -> list[bytes]:
    return list(store.export_events(definitions=True))


def blobs_and_types(lines: list[bytes]) -> list[Blob | str]:
    """Return the blobs of a file and the type of each event, in order."""
    entries = [read_line(line) for line in lines[1:-1]]
    return [each if isinstance(each, Blob) else each.row.type for each in entries]  # type: ignore[union-attr]  # an event has a row


def stored_definitions(store: Conversations) -> list[Blob]:
    return [blob for blob in (KIND, TOOL, FORM) if store._core.log.blob(blob.digest) is not None]


@pytest.fixture
def source() -> Iterator[Conversations]:
    """Return a store with two threads with runs; one of their definitions is missing."""
    with Conversations.open("memory:") as store:
        import_lines(
            store, file_of(*forged(("thread-started", STARTED), started(TOOL), started(TOOL, form=FORM, again=True)))
        )
        missing = Blob(digest(b"gone"), "definition", b"gone")
        import_lines(
            store, file_of(*forged(("thread-started", STARTED), started(missing, TOOL), name="default/thread/g"))
        )
        put(store, FORM, KIND, TOOL)
        yield store


def test_exports_definitions_only_on_request(source: Conversations) -> None:
    lines = list(source.export_events())
    assert not any(b'"blob"' in line for line in lines)
    assert not any(blob.data in line for blob in (KIND, TOOL) for line in lines)
    with Conversations.open("memory:") as copy:
        assert import_lines(copy, lines).definitions == 0
        assert stored_definitions(copy) == []


def test_exports_each_definition_once_before_the_first_event_that_names_it(source: Conversations) -> None:
    lines = exported(source)
    thread, run, again = "thread-started", "run-started", "run-resumed"
    assert blobs_and_types(lines) == [thread, KIND, TOOL, run, FORM, again, thread, run]
    assert json.loads(lines[-1]) == {"end": {"threads": 2, "events": 5, "blobs": 3}}


def test_the_engine_exports_the_same(source: Conversations, url: str) -> None:
    async def move() -> list[bytes]:
        async with Engine.open(url) as engine:
            result = await engine.import_events(io.BytesIO(b"".join(exported(source))))
            assert result.definitions == 3
            assert [line async for line in engine.export_events()] == list(source.export_events())
            return [line async for line in engine.export_events(definitions=True)]

    assert asyncio.run(move()) == exported(source)


def test_exports_the_tool_schemas_of_context_providers() -> None:
    provided = ("context-provided", state(r="run-1", provider="memory", tools=[TOOL.digest.hex()]))
    with Conversations.open("memory:") as store, Conversations.open("memory:") as copy:
        import_lines(store, file_of(*forged(("thread-started", STARTED), started(), provided)))
        put(store, KIND, TOOL)
        assert import_lines(copy, exported(store)).definitions == 2
        assert stored_definitions(copy) == [KIND, TOOL]


def test_a_copy_with_definitions_exports_equal_bytes(source: Conversations, url: str) -> None:
    lines = exported(source)
    with Conversations.open(url) as copy:
        result = import_lines(copy, lines)
        assert (result.events, result.definitions, result.failed) == (5, 3, [])
        assert exported(copy) == lines
        assert list(copy.export_events()) == list(source.export_events())
        assert copy.verify().first_bad is None
        assert import_lines(copy, lines).definitions == 0


def test_an_import_adds_definitions_to_existing_events(source: Conversations) -> None:
    with Conversations.open("memory:") as copy:
        import_lines(copy, source.export_events())
        put(copy, TOOL)
        result = import_lines(copy, exported(source))
        assert (result.events, result.skipped, result.definitions) == (0, 5, 2)
        assert exported(copy) == exported(source)


def test_a_definition_from_a_refused_thread_is_stored_for_the_others(source: Conversations) -> None:
    with Conversations.open("memory:") as copy:
        copy.start_thread(thread_id="f", messages=[Message.user("Mine")])
        result = import_lines(copy, exported(source))
        assert (len(result.failed), result.events) == (1, 2)
        assert stored_definitions(copy) == [KIND, TOOL, FORM]
        assert copy.verify().first_bad is None


@pytest.mark.parametrize("count", range(2, 10))
def test_imports_the_definitions_of_a_torn_file_up_to_the_tear(source: Conversations, count: int) -> None:
    lines = exported(source)
    with Conversations.open("memory:") as copy:
        assert import_lines(copy, lines[:count]).torn
        events = [name for name in blobs_and_types(exported(copy)) if isinstance(name, str)]
        assert len(stored_definitions(copy)) == (0, 0, 2, 3, 3, 3)[len(events)]
        assert import_lines(copy, lines).failed == []
        assert exported(copy) == lines


def test_an_unreadable_event_names_no_definition(source: Conversations) -> None:
    rows = (("thread-started", STARTED), ("run-started", b"\1key\xff"))
    odd = started(instructions=Blob(b"", "definition", b""))
    lines = file_of(*forged(*rows, odd, name="default/thread/h"))
    assert import_lines(source, lines).events == 3
    assert len(blobs_and_types(exported(source))) == 11
    blob, wrong = write_line(KIND), [*lines]
    wrong.insert(3, blob)
    damaged = file_of(*forged(rows[0], ("run-started", bytes(17) + b"{"), name="default/thread/h"))
    damaged.insert(2, blob)
    for each, place in ((wrong, 5), (damaged, 4)):
        with Conversations.open("memory:") as copy:
            ((line, error),) = import_lines(copy, each).failed
            assert line == place
            assert "is not named by the event after it" in str(error)
            assert stored_definitions(copy) == []


def test_refuses_more_definitions_than_an_agent_can_have(
    source: Conversations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_import, "MOST_WAITING_BYTES", 20)
    with Conversations.open("memory:") as copy:
        ((line, error),) = import_lines(copy, exported(source)).failed
        assert line == 4
        assert "than it can name" in str(error)


def test_a_damaged_definition_is_neither_exported_nor_overwritten(
    source: Conversations, conversations: Conversations, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(_: bytes) -> Blob:
        raise CorruptEventError("It is damaged.")

    lines = exported(source)
    monkeypatch.setattr(source._core.log, "blob", damaged)
    with pytest.raises(CorruptEventError):
        exported(source)
    assert len(list(source.export_events())) == 7
    monkeypatch.setattr(conversations._core.log, "blob", damaged)
    result = import_lines(conversations, lines)
    assert (result.events, result.definitions, result.failed) == (5, 0, [])
