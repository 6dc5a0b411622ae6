"""Definitions of agents in Clew's own JSONL: only where they are asked for, and checked by their digests."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator

import pytest
from tests.service.moving_stores import STARTED, copied, file_of, forged, state

from clew.conversations import Conversations
from clew.domain.errors import CorruptEventError
from clew.domain.formats.clew_jsonl import read_line, write_line
from clew.domain.messages import Message
from clew.domain.ports import Blob, Write
from clew.domain.streams import digest
from clew.engine import Engine
from clew.service import event_transfer

KIND = Blob(digest(b"Be kind."), "definition", b"Be kind.")
TOOL = Blob(digest(b'{"name":"look"}'), "definition", b'{"name":"look"}')
FORM = Blob(digest(b"\xff"), "definition", b"\xff")


def started(*tools: Blob, instructions: Blob | None = KIND, form: Blob | None = None) -> tuple[str, bytes]:
    """The type and the stored bytes of an event that begins a run."""
    fingerprint = {"client": "chat", "tools": [tool.digest.hex() for tool in tools]}
    for name, blob in (("instructions", instructions), ("response_format", form)):
        fingerprint |= {} if blob is None else {name: blob.digest.hex()}
    return "run-started", state(agent={"id": "joker"}, fingerprint=fingerprint)


def put(store: Conversations, *blobs: Blob) -> None:
    store._core.log.submit(Write((), {}, blobs=blobs)).outcome.result()


def exported(store: Conversations) -> list[bytes]:
    return list(store.export_events(definitions=True))


def named(lines: list[bytes]) -> list[Blob | str]:
    """The blobs of a file, and for each event its type."""
    said = [read_line(line) for line in lines[1:-1]]
    return [each if isinstance(each, Blob) else each.row.type for each in said]  # type: ignore[union-attr]  # an event's


def there(store: Conversations) -> list[Blob]:
    return [blob for blob in (KIND, TOOL, FORM) if store._core.log.blob(blob.digest) is not None]


@pytest.fixture
def source() -> Iterator[Conversations]:
    """Two threads, on which agents ran, and of whose definitions one is missing."""
    with Conversations.open("memory:") as store:
        copied(store, file_of(*forged(("thread-started", STARTED), started(TOOL), started(TOOL, form=FORM))))
        missing = Blob(digest(b"gone"), "definition", b"gone")
        copied(store, file_of(*forged(("thread-started", STARTED), started(missing, TOOL), name="default/thread/g")))
        put(store, FORM, KIND, TOOL)
        yield store


def test_definitions_are_not_exported_unless_they_are_asked_for(source: Conversations) -> None:
    lines = list(source.export_events())
    assert not any(b'"blob"' in line for line in lines)
    assert not any(blob.data in line for blob in (KIND, TOOL) for line in lines)
    with Conversations.open("memory:") as copy:
        assert copied(copy, lines).definitions == 0
        assert there(copy) == []


def test_each_definition_comes_once_before_the_first_event_that_names_it(source: Conversations) -> None:
    lines = exported(source)
    began, ran = "thread-started", "run-started"
    assert named(lines) == [began, KIND, TOOL, ran, FORM, ran, began, ran]
    assert json.loads(lines[-1]) == {"end": {"threads": 2, "events": 5, "blobs": 3}}


def test_asyncio_exports_the_same(source: Conversations, url: str) -> None:
    async def move() -> list[bytes]:
        async with Engine.open(url) as engine:
            found = await engine.import_events(io.BytesIO(b"".join(exported(source))))
            assert found.definitions == 3
            assert [line async for line in engine.export_events()] == list(source.export_events())
            return [line async for line in engine.export_events(definitions=True)]

    assert asyncio.run(move()) == exported(source)


def test_the_schemas_of_tools_that_context_providers_gave_are_definitions_too() -> None:
    given = ("context-provided", state(provider="memory", tools=[TOOL.digest.hex()]))
    with Conversations.open("memory:") as store, Conversations.open("memory:") as copy:
        copied(store, file_of(*forged(("thread-started", STARTED), started(), given)))
        put(store, KIND, TOOL)
        assert copied(copy, exported(store)).definitions == 2
        assert there(copy) == [KIND, TOOL]


def test_a_copy_with_definitions_gives_equal_bytes(source: Conversations, url: str) -> None:
    lines = exported(source)
    with Conversations.open(url) as copy:
        found = copied(copy, lines)
        assert (found.events, found.definitions, found.failed) == (5, 3, [])
        assert exported(copy) == lines
        assert list(copy.export_events()) == list(source.export_events())
        assert copy.verify().first_bad is None
        assert copied(copy, lines).definitions == 0


def test_definitions_reach_a_copy_that_has_the_events(source: Conversations) -> None:
    with Conversations.open("memory:") as copy:
        copied(copy, source.export_events())
        put(copy, TOOL)
        found = copied(copy, exported(source))
        assert (found.events, found.skipped, found.definitions) == (0, 5, 2)
        assert exported(copy) == exported(source)


def test_a_definition_of_a_thread_that_is_refused_serves_the_others(source: Conversations) -> None:
    with Conversations.open("memory:") as copy:
        copy.start_thread(thread_id="f", messages=[Message.user("Mine")])
        found = copied(copy, exported(source))
        assert (len(found.failed), found.events) == (1, 2)
        assert there(copy) == [KIND, TOOL, FORM]
        assert copy.verify().first_bad is None


@pytest.mark.parametrize("keep", range(2, 10))
def test_a_torn_file_has_the_definitions_of_what_it_has(source: Conversations, keep: int) -> None:
    lines = exported(source)
    with Conversations.open("memory:") as copy:
        assert copied(copy, lines[:keep]).torn
        events = [name for name in named(exported(copy)) if isinstance(name, str)]
        assert len(there(copy)) == (0, 0, 2, 3, 3, 3)[len(events)]
        assert copied(copy, lines).failed == []
        assert exported(copy) == lines


def test_an_event_that_cannot_be_read_names_nothing(source: Conversations) -> None:
    rows = (("thread-started", STARTED), ("run-started", b"\1key\xff"))
    odd = started(instructions=Blob(b"", "definition", b""))
    lines = file_of(*forged(*rows, odd, name="default/thread/h"))
    assert copied(source, lines).events == 3
    assert len(named(exported(source))) == 11
    blob, wrong = write_line(KIND), [*lines]
    wrong.insert(3, blob)
    damaged = file_of(*forged(rows[0], ("run-started", bytes(17) + b"{"), name="default/thread/h"))
    damaged.insert(2, blob)
    for each, place in ((wrong, 5), (damaged, 4)):
        with Conversations.open("memory:") as copy:
            ((line, error),) = copied(copy, each).failed
            assert line == place
            assert "is not named by the event after it" in str(error)
            assert there(copy) == []


def test_more_than_any_agent_has_is_refused(source: Conversations, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_transfer, "MOST_HELD", 20)
    with Conversations.open("memory:") as copy:
        ((line, error),) = copied(copy, exported(source)).failed
        assert line == 4
        assert "than any agent has" in str(error)


def test_a_damaged_definition_is_neither_exported_nor_written_over(
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
    found = copied(conversations, lines)
    assert (found.events, found.definitions, found.failed) == (5, 0, [])
