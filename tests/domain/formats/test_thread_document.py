"""Thread documents: their content, and the detection of every change."""

from __future__ import annotations

import json
import random
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from copy import deepcopy
from hashlib import sha256
from pathlib import Path
from typing import Any

import fastjsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.service.transferred_stores import (
    HELLO,
    STARTED,
    STORED_MESSAGE,
    STUB,
    ForgedRow,
    fill,
    forged,
    redaction,
    state,
    unknown,
)

from clew.conversations import Conversations
from clew.domain.errors import ThreadDocumentError
from clew.domain.formats.lineage import StreamRows, verify_streams
from clew.domain.formats.thread_document import json_schema, read_document, write_document
from clew.domain.json_values import MAX_BYTES
from clew.domain.messages import FunctionCall, Message
from clew.domain.ports import Fork, Row
from clew.domain.streams import digest, link
from clew.infrastructure.envelope import decode_row

ROOT = Path(__file__).parent.parent.parent.parent
GOLDEN = ROOT / "tests" / "golden" / "thread-document-1.json"
SCHEMA = ROOT / "docs" / "thread-document.schema.json"


def fork_document() -> dict[str, Any]:
    """Return the document of a fork with a rewind and with redacted messages, both new and inherited."""
    with Conversations.open("memory:") as store:
        fill(store)
        call = FunctionCall(call_id="c", name="look_up", arguments="{}")
        branch = store.thread("branch")
        branch.append([Message.assistant("I look.", calls=[call]), Message.tool("c", {"found": [1.5, None]})])
        document: dict[str, Any] = json.loads(json.dumps(branch.serialize()))
        return document


DOCUMENT = fork_document()


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in a document."""
    if at:
        yield at
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*at, key))


PLACES = list(places(DOCUMENT))


def changed(place: tuple[Any, ...], change: Callable[[Any, Any], None]) -> dict[str, Any]:
    document = deepcopy(DOCUMENT)
    holder: Any = document
    for key in place[:-1]:
        holder = holder[key]
    change(holder, place[-1])
    return document


def another(value: Any, chance: random.Random) -> Any:
    """Return a different value that is as similar as possible."""
    match value:
        case bool():
            return not value
        case int() | float():
            return chance.choice([value + 1, value - 1, float(value) if isinstance(value, int) else -value - 1, None])
        case str() if value:
            at = chance.randrange(len(value))
            other = chance.choice([each for each in "aA0f+= \x00é" if each != value[at]])
            return chance.choice([value[:at] + other + value[at + 1 :], value[:at] + value[at + 1 :], value + other])
        case str() | None:
            return "a"
        case list():
            return chance.choice([value[:-1], [*value, *value[-1:]], value[::-1]]) if len(value) > 1 else [*value, {}]
        case _:
            return {**value, "more": None}


@given(st.data())
def test_detects_every_change(data: st.DataObject) -> None:
    place = data.draw(st.sampled_from(PLACES))
    chance = random.Random(data.draw(st.integers(0, 2**32)))

    def replace(holder: Any, key: Any) -> None:
        holder[key] = another(holder[key], chance)

    def remove(holder: Any, key: Any) -> None:
        del holder[key]

    def double(holder: Any, key: Any) -> None:
        if isinstance(holder, list):
            holder.insert(key, deepcopy(holder[key]))
        else:
            holder[f"{key}_"] = holder[key]

    document = changed(place, data.draw(st.sampled_from([replace, remove, double])))
    if json.dumps(document) == json.dumps(DOCUMENT):  # reversing equal items changes nothing
        return
    with pytest.raises(ThreadDocumentError) as caught:
        read_document(document, decode_row)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600


def test_reading_and_writing_round_trip() -> None:
    lineage = read_document(DOCUMENT, decode_row)
    assert json.loads(json.dumps(write_document(lineage))) == DOCUMENT
    assert lineage.head.hash.hex() == DOCUMENT["thread"]["head"]
    assert [event.version for event in lineage.events] == list(range(1, lineage.head.version + 1))


def test_keys_may_come_in_any_order() -> None:
    reordered = json.loads(json.dumps(DOCUMENT, sort_keys=True))
    assert list(reordered) != list(DOCUMENT)
    read_document(reordered, decode_row)


def test_a_document_is_readable() -> None:
    assert DOCUMENT["thread"]["title"] == "Branch"
    assert [(each["role"], each["text"]) for each in DOCUMENT["history"]] == [
        ("user", "One"),
        ("assistant", "I look."),
        ("tool", ""),
    ]
    assert DOCUMENT["history"][1]["contents"] == [
        {"type": "function-call", "call_id": "c", "name": "look_up", "arguments": "{}"}
    ]
    assert DOCUMENT["history"][2]["contents"][0]["result"] == {"found": [1.5, None]}


def test_marks_a_redacted_message() -> None:
    with Conversations.open("memory:") as store:
        thread = store.start_thread(messages=[Message.user("Secret"), Message.user("Hello")])
        thread.redact(2)
        document: Any = thread.serialize()
    assert [(each["text"], each.get("redacted")) for each in document["history"]] == [("", True), ("Hello", None)]
    shredded, whole = document["streams"][0]["rows"][1:3]
    assert "digest" in shredded
    assert "digest" not in whole
    assert b"Secret" not in b"".join(b64decode(row["state"]) for row in document["streams"][0]["rows"])
    assert "Secret" not in json.dumps(document)


def changed_to(**more: Any) -> dict[str, Any]:
    return {**DOCUMENT, **more}


def state_of(row: int, text: str) -> dict[str, Any]:
    return changed(("streams", 0, "rows", row, "state"), lambda holder, key: holder.update({key: text}))


def type_of(row: int, text: str) -> dict[str, Any]:
    return changed(("streams", 0, "rows", row, "type"), lambda holder, key: holder.update({key: text}))


SHAPES: dict[str, tuple[object, str]] = {
    "nothing": (None, "NoneType is not a thread document"),
    "text": (json.dumps(DOCUMENT), "str is not a thread document"),
    "a list": ([DOCUMENT], "list is not a thread document"),
    "another document": ({"clew": "chat", "version": 1}, "is not a thread document"),
    "a newer version": (changed_to(version=2, more={}), "the document has version 2, and this Clew reads version 1."),
    "a version that is too long to show": (changed_to(version=10**5000), "document.version: "),
    "an older version": (changed_to(version=0), "document.version: Input should be 1"),
    "true for 1": (changed_to(version=True), "version"),
    "a version in words": (changed_to(version="1"), "document.version"),
    "an empty list of streams": (changed_to(streams=[]), "streams: the list is empty"),
    "streams that are not a list": (changed_to(streams={}), "document.streams: Input should be a valid list"),
    "more": (changed_to(**{"x" * 10_000: 1}), "Extra inputs are not permitted"),
    "half of it": ({key: DOCUMENT[key] for key in list(DOCUMENT)[:5]}, "document.blobs: Field required"),
    "a state that is too long": (state_of(1, "A" * (MAX_BYTES * 4 // 3 + 8)), "String should have at most"),
    "not base64": (state_of(1, "?"), "streams[0].rows[1].state: it is not base64"),
    "an empty state": (state_of(1, ""), "streams[0].rows[1].state: it is not base64"),
    "a type that is not valid text": (type_of(1, "a\ud800"), "streams[0].rows[1].type: it is not the name of a type"),
    "a type that some stores cannot hold": (type_of(1, "a\0"), "streams[0].rows[1].type: it is not the name of a type"),
    "an unreferenced blob": (
        changed_to(blobs=[{"digest": sha256(b"x").hexdigest(), "data": "eA=="}]),
        "blobs[0]: it does not match the events",
    ),
    "a damaged blob": (
        changed_to(blobs=[{"digest": "0" * 64, "data": "eA=="}]),
        "blobs[0]: the data does not match the digest",
    ),
    "a state of an unknown provider": (changed_to(states={"\x1b" * 500: 1}), "states.????"),
    "a surrogate": (changed_to(states={"\ud800": 1}), "states.?: it does not match the events"),
}


@pytest.mark.parametrize("name", SHAPES)
def test_refuses_an_invalid_document_with_the_reason(name: str) -> None:
    document, reason = SHAPES[name]
    with pytest.raises(ThreadDocumentError) as caught:
        read_document(document, decode_row)
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 600


SHREDDED = digest(STORED_MESSAGE)
FORK = state(parent_id="f", parent_version=1, parent_hash="0" * 64)
START: ForgedRow = ("thread-started", STARTED)


def enveloped(**fields: int) -> bytes:
    """Return the stored bytes of an event without data, with other fields in its envelope."""
    return bytes(17) + json.dumps({"i": "e", "t": 1, "n": 0, "d": {}, **fields}).encode()


FORGED: dict[str, tuple[list[ForgedRow], str]] = {
    "a start that is a message": (
        [("thread-started", STORED_MESSAGE)],
        "rows[0]: its bytes are not an event of its type",
    ),
    "no start": (
        [("message-appended", STORED_MESSAGE)],
        "rows[0]: the first event must be 'thread-started'",
    ),
    "two starts": ([START, START], "rows[1]: 'thread-started' begins a thread, but"),
    "a fork in the middle": (
        [START, ("thread-forked", FORK)],
        "rows[1]: 'thread-forked' begins a thread, but",
    ),
    "a stub alone": ([START, ("message-appended", STUB)], "both a digest and a stub, or neither"),
    "a digest alone": ([START, ("message-appended", STORED_MESSAGE, SHREDDED)], "both a digest and a stub, or neither"),
    "a shredded start": ([("thread-started", STUB, SHREDDED)], "events of its type are never shredded"),
    "shredded without a redaction": ([START, ("message-appended", STUB, SHREDDED)], "the stub of redacted version 2"),
    "redacted but still present": (
        [START, ("message-appended", STORED_MESSAGE), ("message-redacted", redaction(2))],
        "the stub of redacted version 2 does not match",
    ),
    "another stub": (
        [START, ("message-appended", STUB, SHREDDED), ("message-redacted", redaction(2, stub=STUB.decode() + " "))],
        "the stub of redacted version 2",
    ),
    "an uncounted message": (
        [START, ("message-appended", state(message=HELLO))],
        "rows[1]: it counts 0 messages on the path, but there are 1",
    ),
    "too many counted messages": (
        [START, ("thread-ended", enveloped(n=7))],
        "rows[1]: it counts 7 messages on the path, but there are 0",
    ),
    "a rewind to a later version": (
        [START, ("history-rewound", state(to=3))],
        "rows[1]: it names version 3, but only",
    ),
    "a rewind to itself": (
        [START, ("history-rewound", state(to=2))],
        "rows[1]: it names version 2, but only",
    ),
    "an invalid time": (
        [START, ("thread-ended", enveloped(t=10**30))],
        "rows[1]: its time is 1000",
    ),
    "a time before the previous event": (
        [START, ("thread-ended", enveloped(t=0))],
        "rows[1]: it was recorded 1 micro",
    ),
    "a redaction of nothing": ([START, ("message-redacted", redaction(7, n=0))], "the stub of redacted version 7"),
}


def own_rows(
    *rows: ForgedRow, name: str = "default/thread/f", cut: int = 0, after: StreamRows | None = None
) -> StreamRows:
    entries = forged(*rows, name=name, cut=cut, after=[] if after is None else _entries(after))
    return StreamRows(name, entries[0].fork, tuple(entry.row for entry in entries))


def _entries(of: StreamRows) -> list[Any]:
    return forged(*((row.type, row.state, row.digest) for row in of.rows), name=of.name)


@pytest.mark.parametrize("name", FORGED)
def test_refuses_forged_events_with_correct_hashes(name: str) -> None:
    rows, reason = FORGED[name]
    with pytest.raises(ThreadDocumentError) as caught:
        verify_streams([own_rows(*rows)], decode_row)
    assert reason in str(caught.value)


def fork_of(
    parent: StreamRows, *, cut: int = 1, name: str = "default/thread/g", hash_: bytes | None = None
) -> StreamRows:
    named = (parent.rows[cut - 1].hash if hash_ is None else hash_).hex()
    forked = state(parent_id="f", parent_version=cut, parent_hash=named)
    return own_rows(("thread-forked", forked), name=name, cut=cut, after=parent)


def test_a_fork_follows_its_parent() -> None:
    parent = own_rows(START, ("thread-labelled", state(labels={"a": 1})))
    fork = fork_of(parent)
    assert [event.version for event in verify_streams([parent, fork], decode_row).events] == [1, 2]
    for streams, reason in (
        ([fork], "streams[0]: it is not a fork of the stream before it"),
        ([fork, parent], "streams[0]: it is not a fork"),
        ([parent, parent], "occurs twice"),
        ([parent, fork, own_rows(START, name="default/thread/h")], "streams[2]: it is not a fork"),
        ([parent, fork._replace(fork=None)], "streams[1]: it is not a fork"),
        ([parent, fork._replace(fork=Fork("default/thread/h", 1))], "streams[1]: it is not a fork"),
        ([parent._replace(rows=parent.rows[:0]), fork], "streams[0]: it has no rows"),
        ([parent, fork_of(parent, hash_=bytes(32))], "as the hash of the cut, which is"),
        ([parent, fork_of(parent, name="other/thread/g")], "belongs to another tenant than the thread"),
        ([parent, fork_of(parent, name="default/memory/g")], "is not the name of a thread"),
        ([parent, fork_of(parent, name="default/thread/%67")], "is not the name of a thread"),
        ([parent, fork_of(parent, name="default/thread/")], "is not the name of a thread"),
    ):
        with pytest.raises(ThreadDocumentError) as caught:
            verify_streams(streams, decode_row)
        assert reason in str(caught.value)
    beyond = fork_of(parent, cut=2)
    with pytest.raises(ThreadDocumentError, match="its fork point, version 2, is missing from the stream before it"):
        verify_streams([parent._replace(rows=parent.rows[:1]), beyond], decode_row)


def test_refuses_a_gap_between_versions() -> None:
    started = own_rows(START).rows[0]
    later = link(started.hash, started.stream, 3, "message-appended", digest(STORED_MESSAGE))
    skipping = Row(0, started.stream, 3, "message-appended", STORED_MESSAGE, later, None)
    with pytest.raises(ThreadDocumentError, match=r"rows\[1\]: found version 3, expected 2"):
        verify_streams([StreamRows(started.stream, None, (started, skipping))], decode_row)


def test_includes_unknown_event_types() -> None:
    with Conversations.open("memory:") as store:
        store.start_thread(thread_id="t", messages=[Message.user("Hello")])
        unknown(store, "t", "run-paused", b'\0sixteen bytes...{"i":"x","t":7,"n":1,"d":{}}')
        document: Any = store.thread("t").serialize()
    assert json.loads(json.dumps(write_document(read_document(document, decode_row)))) == document
    document["history"] = []
    with pytest.raises(ThreadDocumentError, match="Version 3 has a type or a form that this Clew does not know"):
        read_document(document, decode_row)


def test_reads_a_stored_document_of_version_1() -> None:
    document = json.loads(GOLDEN.read_text(encoding="utf-8"))
    with Conversations.open("memory:") as store:
        thread = store.restore_thread(document)
        assert [each.text for each in thread.history()] == ["Where is my parcel?", "It is on its way.", ""]
        assert thread.history().messages[-1].redacted
        assert thread.state().states == {"preferences": {"language": "ga"}}
        assert json.loads(json.dumps(thread.serialize())) == document


def test_the_published_schema_matches_the_documents() -> None:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    assert schema == json_schema()
    validate = fastjsonschema.compile(schema)
    for document in (DOCUMENT, json.loads(GOLDEN.read_text(encoding="utf-8"))):
        validate(document)
    for place, change in (
        (("version",), lambda holder, key: holder.update({key: 2})),
        (("streams", 0, "rows", 0, "hash"), lambda holder, key: holder.update({key: "0"})),
        (("thread", "head"), lambda holder, key: holder.pop(key)),
        (("history", 0, "role"), lambda holder, key: holder.update({key: "unknown"})),
        (("heads",), lambda holder, _: holder.update(more=1)),
    ):
        with pytest.raises(fastjsonschema.JsonSchemaValueException):
            validate(changed(place, change))


def test_accepts_only_canonical_base64() -> None:
    row = DOCUMENT["streams"][0]["rows"][0]
    padded = next(row for row in DOCUMENT["streams"][0]["rows"] if row["state"].endswith("="))
    at = DOCUMENT["streams"][0]["rows"].index(padded)
    text = padded["state"]
    last = text.rstrip("=")[-1]
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    other = alphabet[alphabet.index(last) + 1]
    loose = text.rstrip("=")[:-1] + other + "=" * text.count("=")
    assert b64decode(loose, validate=True) == b64decode(text)
    assert b64encode(b64decode(row["state"])).decode() == row["state"]
    with pytest.raises(ThreadDocumentError, match="it is not base64"):
        read_document(state_of(at, loose), decode_row)
