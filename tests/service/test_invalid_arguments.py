"""Arguments of a wrong type, in both colours: an error of Clew's own, which says what was given and what to give."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from clew.conversations import Conversations
from clew.domain.errors import (
    ClewError,
    ImportFormatError,
    InvalidContentError,
    InvalidSearchError,
    InvalidTimeError,
    UnknownCheckpointError,
)
from clew.engine import Engine

Call = Callable[[Any], Any]

FLAG = "is not a bool. Give True or False."
NUMBER = "give a whole number, 0 or more."
DAY = "Give a datetime.date, the day in UTC."

CALLS: list[tuple[Call, type[ClewError], str]] = [
    (lambda store: store.threads(limit="x"), InvalidContentError, f"limit='x': {NUMBER}"),
    (lambda store: store.threads(limit=-1), InvalidContentError, f"limit=-1: {NUMBER}"),
    (lambda store: store.threads(limit=True), InvalidContentError, f"limit=True: {NUMBER}"),
    (lambda store: store.threads(labels="x"), InvalidContentError, "labels: str is not a mapping."),
    (lambda store: store.audit(limit="x"), InvalidContentError, f"limit='x': {NUMBER}"),
    (lambda store: store.audit(limit=-1), InvalidContentError, f"limit=-1: {NUMBER}"),
    (lambda store: store.audit(after="x"), InvalidContentError, f"after='x': {NUMBER}"),
    (lambda store: store.search(5), InvalidSearchError, "int is not a text. Give the words to search for."),
    (lambda store: store.search("a", limit="x"), InvalidContentError, f"limit='x': {NUMBER}"),
    (lambda store: store.search("a", limit=-1), InvalidContentError, f"limit=-1: {NUMBER}"),
    (lambda store: store.search("a", before="x"), InvalidContentError, f"before='x': {NUMBER}"),
    (lambda store: store.usage(since="2026-01-01"), InvalidTimeError, f"since: str is not a day. {DAY}"),
    (lambda store: store.usage(until=datetime.now(UTC)), InvalidTimeError, f"until: datetime is not a day. {DAY}"),
    (lambda store: store.subscribe(after="x"), InvalidContentError, f"after='x': {NUMBER}"),
    (lambda store: store.subscribe(after=-1), InvalidContentError, f"after=-1: {NUMBER}"),
    (lambda store: store.threads(newest_first=0), InvalidContentError, f"newest_first=0 {FLAG}"),
    (lambda store: store.tree(newest_first="no"), InvalidContentError, f"newest_first='no' {FLAG}"),
    (lambda store: store.audit(newest_first=None), InvalidContentError, f"newest_first=None {FLAG}"),
    (lambda store: store.start_thread(replace_deleted="no"), InvalidContentError, f"replace_deleted='no' {FLAG}"),
    (lambda store: store.restore_thread({}, as_new="no"), InvalidContentError, f"as_new='no' {FLAG}"),
    (lambda store: store.import_events(None), ImportFormatError, "NoneType is not a file."),
    (lambda store: store.import_events(""), ImportFormatError, "The path of the file is empty."),
    (lambda store: store.import_files(None), ImportFormatError, "NoneType is not a path."),
    (lambda store: store.import_files([7]), ImportFormatError, "int is not a path."),
    (lambda store: store.import_files(""), ImportFormatError, "A path is empty."),
    (lambda store: store.import_files(["", "x"]), ImportFormatError, "A path is empty."),
]


@pytest.mark.parametrize(("call", "error", "message"), CALLS, ids=map(str, range(len(CALLS))))
def test_a_wrong_argument_is_refused_with_what_to_give(call: Call, error: type[ClewError], message: str) -> None:
    with Conversations.open("memory:") as conversations, pytest.raises(error) as raised:
        call(conversations)
    assert str(raised.value).startswith(message)

    async def call_engine() -> None:
        async with Engine.open("memory:") as engine:
            result = call(engine)
            if asyncio.iscoroutine(result):
                await result

    with pytest.raises(error) as raised:
        asyncio.run(call_engine())
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda store: store.export(forks="no"), "forks='no'"),
        (lambda store: store.export_events(definitions=1), "definitions=1"),
        (lambda store: store.memory("user/1").facts(history="no"), "history='no'"),
        (lambda store: store.thread("t").purge(forks="no"), "forks='no'"),
        (lambda store: store.thread("t").rewind(1, abandon_run="no"), "abandon_run='no'"),
    ],
    ids=["export", "export_events", "facts", "purge", "rewind"],
)
def test_only_a_bool_is_a_flag(call: Call, message: str) -> None:
    with Conversations.open("memory:") as conversations:
        conversations.start_thread(thread_id="t")
        with pytest.raises(InvalidContentError) as raised:
            list(call(conversations))
        assert str(raised.value) == f"{message} {FLAG}"
    with pytest.raises(InvalidContentError, match=f"read_only='no' {FLAG}"):
        Conversations.open("memory:", read_only="no")  # type: ignore[arg-type]


def test_events_are_read_after_a_number() -> None:
    with Conversations.open("memory:") as conversations:
        thread: Any = conversations.start_thread()
        for call in (thread.subscribe, lambda after: next(thread.events(after=after))):
            with pytest.raises(InvalidContentError, match=f"after='x': {NUMBER}"):
                call(after="x")


def test_no_entries_are_a_valid_limit() -> None:
    with Conversations.open("memory:") as conversations:
        conversations.start_thread("A kettle")
        assert list(conversations.audit(limit=0)) == []
        assert list(conversations.threads(limit=0)) == []
        assert conversations.search("kettle", limit=0) == []


@pytest.mark.parametrize(
    ("at", "advice"),
    [
        ("2026-11-23T10:00:00Z", "This looks like a time: pass a datetime with a UTC offset."),
        ("2026-11-23", "This looks like a time: pass a datetime with a UTC offset."),
        ("7", "This looks like a version: pass it as a number."),
        ("message:3", "This looks like the number of a message: pass at_message=3."),
        ("later", "It has none."),
    ],
)
def test_a_text_that_cannot_be_a_checkpoint_is_refused_with_what_to_pass(at: str, advice: str) -> None:
    with Conversations.open("memory:") as conversations:
        thread = conversations.start_thread()
        with pytest.raises(UnknownCheckpointError) as raised:
            thread.history(at=at)
        assert str(raised.value).endswith(advice)
