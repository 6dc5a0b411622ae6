from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.domain.errors import ImportFormatError
from clew.domain.formats.clew_jsonl import End, Entry, Header, is_header, read_line, write_line
from clew.domain.ports import Blob, Fork, Row
from clew.domain.streams import digest

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
STATES = (
    st.binary(max_size=40)
    | st.builds(lambda salt, text: b"\0" + salt + text.encode(), st.binary(min_size=16, max_size=16), TEXTS)
    | st.builds(lambda text: b"\2" + text.encode(), TEXTS)
)
HASHES = st.binary(min_size=32, max_size=32)
ENTRIES = st.builds(
    Entry,
    st.builds(
        Row, st.just(0), TEXTS, st.integers(0, 2**63 - 1), TEXTS, STATES, HASHES, st.none() | HASHES
    ),
    st.none() | st.builds(Fork, TEXTS, st.integers(0, 2**63 - 1)),
)  # fmt: skip
NUMBERS = st.integers(0, 2**63 - 1)
BLOBS = st.builds(
    lambda kind, data: Blob(digest(data), kind, data),
    st.sampled_from(["definition", "content"]),
    st.binary(max_size=40) | TEXTS.map(str.encode),
)
LINES = ENTRIES | BLOBS | st.builds(End, NUMBERS, NUMBERS, NUMBERS) | st.just(Header())

EVENT = {
    "stream": "default/thread/a",
    "version": 2,
    "type": "message-appended",
    "hash": "ab" * 32,
    "salt": base64.b64encode(bytes(16)).decode(),
    "json": '{"i":"é"}',
}


def line(**more: Any) -> bytes:
    """Return the line of an event with some fields changed; None removes a field."""
    return json.dumps({"event": {key: value for key, value in {**EVENT, **more}.items() if value is not None}}).encode()


def blob(**more: Any) -> bytes:
    """Return the line of a blob with some fields changed; None removes a field."""
    fields = {"digest": digest(b"Be kind.").hex(), "kind": "definition", "text": "Be kind.", **more}
    return json.dumps({"blob": {key: value for key, value in fields.items() if value is not None}}).encode()


def test_a_blob_is_written_as_text_if_possible() -> None:
    assert write_line(read_line(blob())) == blob().replace(b": ", b":").replace(b", ", b",") + b"\n"
    assert b'"data":"/w=="' in write_line(Blob(digest(b"\xff"), "content", b"\xff"))


def test_an_end_counts_blobs_only_if_some_exist() -> None:
    assert write_line(End(1, 2)) == b'{"end":{"threads":1,"events":2}}\n'
    assert write_line(End(1, 2, 3)) == b'{"end":{"threads":1,"events":2,"blobs":3}}\n'


@given(LINES)
def test_a_line_survives_a_round_trip(written: Any) -> None:
    text = write_line(written)
    assert read_line(text) == written
    assert write_line(read_line(text)) == text


@given(LINES)
def test_a_line_has_no_line_ends_and_no_control_characters(written: Any) -> None:
    text = write_line(written).decode()
    assert text.endswith("\n")
    assert len(text.splitlines()) == 1
    assert text[:-1].isprintable() or not set(text[:-1]) & {*map(chr, (*range(0x20), *range(0x7F, 0xA0), 0x202E))}


def test_text_is_written_as_text_and_bytes_in_base64() -> None:
    def written(state: bytes) -> dict[str, Any]:
        row = Row(7, "default/thread/a", 2, "message-appended", state, b"h" * 32, None)
        fields: dict[str, Any] = json.loads(write_line(Entry(row)))["event"]
        return {key: value for key, value in fields.items() if key not in {"stream", "version", "type", "hash"}}

    salt = base64.b64encode(b"s" * 16).decode()
    assert written(b"\0" + b"s" * 16 + '{"d":"é"}'.encode()) == {"salt": salt, "json": '{"d":"é"}'}
    assert written(b"\0" + b"s" * 16) == {"salt": salt, "json": ""}
    assert written(b'\2{"o":"user"}') == {"stub": '{"o":"user"}'}
    for state in (b"", b"\0short", b"\0" + b"s" * 16 + b"\xff", b"\2\xff", b"\1key"):
        assert written(state) == {"state": base64.b64encode(state).decode()}


def test_recognises_a_header_of_any_version() -> None:
    assert is_header(write_line(Header()))
    assert is_header(b'{"format": {"name": "clew", "version": 9, "more": 1}}')
    for other in (
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"format":"clew"}',
        b'{"format":{"name":"other"}}',
        b"\xff",
        b'{"messages":[]}',
    ):
        assert not is_header(other)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"format":{"name":"clew","version":2}}', "version 2 of Clew's own JSONL, and this Clew reads version 1"),
        (b'{"format":{"name":"clew","version":1,"packed":true}}', "A newer Clew"),
        (b'{"bolt":{"digest":"00"}}', "'bolt' is not a kind of line that this Clew knows. A newer Clew"),
        (b'{"blob":{"digest":"00"}}', "'kind' is missing"),
        (blob(kind="picture"), "'picture' is not a kind of blob that this Clew knows. A newer Clew"),
        (blob(digest="00"), "'digest' is not 64 hex digits"),
        (blob(text="Be cruel."), "does not match its digest"),
        (blob(text=None), "A blob has 'text' or 'data'"),
        (blob(data="AA=="), "A blob has 'text' or 'data'"),
        (blob(text=None, data="*"), "'data' is not base64"),
        (blob(size=3), "'size' is not a field that this Clew knows. A newer Clew"),
        (line(encrypted="x"), "'encrypted' is not a field that this Clew knows. A newer Clew"),
        (b'{"format":{"name":"clew"}}', "does not name a version"),
        (b'{"format":{"name":"clew","version":"1"}}', "does not name a version"),
        (b'{"event":1}', "is not an object"),
        (b'{"event":{},"end":{}}', "each is a JSON object with one field"),
        (b"[1]", "each is a JSON object with one field"),
        (b'{"event":', "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"end":{"threads":1,"events":' + b"9" * 5_000 + b"}}", "not valid JSON"),
        (b'{"end":\xff}', "not UTF-8, at byte 8"),
        (b'{"end":{"threads":1}}', "'events' is missing"),
        (b'{"end":{"threads":1,"events":-1}}', "'events' has the wrong type"),
        (b'{"end":{"threads":1,"events":true}}', "'events' has the wrong type"),
        (line(version=2**63), "'version' has the wrong type"),
        (line(version=1.0), "'version' has the wrong type"),
        (line(stream=None), "'stream' is missing"),
        (line(type=7), "'type' has the wrong type"),
        (line(stream="\ud800"), "lone surrogate"),
        (line(hash="ab"), "'hash' is not 64 hex digits"),
        (line(hash="é" * 64), "'hash' is not 64 hex digits"),
        (line(digest="ab"), "'digest' is not 64 hex digits"),
        (line(parent="default/thread/b"), "needs parent and cut"),
        (line(salt="AAAA"), "'salt' holds 3 bytes, not 16"),
        (line(salt="*"), "'salt' is not base64"),
        (line(salt=None), "or 'stub', or 'state'"),
        (line(state=""), "or 'stub', or 'state'"),
        (line(salt=None, json=None, state="AA"), "'state' is not base64"),
        (line(json="\udfff"), "lone surrogate"),
    ],
)  # fmt: skip
def test_refuses_an_invalid_line(text: bytes, reason: str) -> None:
    with pytest.raises(ImportFormatError) as refused:
        read_line(text)
    assert reason in str(refused.value)
    assert len(str(refused.value)) < 300


@given(
    st.binary(max_size=60)
    | LINES.map(write_line).flatmap(lambda text: st.integers(0, len(text)).map(lambda n: text[:n]))
)
def test_any_bytes_are_a_line_or_refused(text: bytes) -> None:
    is_header(text)
    try:
        read_line(text)
    except ImportFormatError:
        return
    assert text.strip().endswith(b"}")
