from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.infrastructure.model_streams import EventDecoder


def decode(*pieces: bytes) -> list[str]:
    decoder = EventDecoder()
    return [data for piece in pieces for data in decoder.feed(piece)] + list(decoder.finish())


@given(
    texts=st.lists(st.text("ab{}: é🧶", max_size=5), max_size=4),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    data=st.data(),
)
def test_decodes_the_same_events_from_any_pieces(texts: list[str], end: str, data: st.DataObject) -> None:
    text = "".join(f": beat{end}event: x{end}data: {each}{end}id: 1{end}{end}" for each in texts).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert decode(*pieces) == texts


@pytest.mark.parametrize(
    ("text", "events"),
    [
        (b"data:a\ndata: b\n\n", ["a\nb"]),
        (b"event: done\n\n", []),
        (b"data: a\n\ndata: b", ["a", "b"]),
        (b"data\n\n", [""]),
        (b"", []),
        (b"\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n", ["a"]),  # only a byte order mark at the start is removed
    ],
)
def test_decodes_like_the_standard_and_accepts_an_unterminated_last_event(text: bytes, events: list[str]) -> None:
    assert decode(text) == events


def test_returns_an_event_as_soon_as_it_is_complete() -> None:
    decoder = EventDecoder()
    assert list(decoder.feed(b"data: a\n")) == []
    assert list(decoder.feed(b"\n")) == ["a"]


def test_a_long_line_in_many_pieces_is_one_event() -> None:
    piece = b"x" * 1024
    assert decode(b"data: ", *[piece] * 1024, b"\n\n") == ["x" * 1024 * 1024]
