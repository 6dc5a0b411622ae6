"""The stepper without a terminal: decoded keys, and their effects."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.cli.stepper import HELP, MOVES, Stepper, after_search, press, with_newest
from clew.cli.terminal import decode_incomplete, decode_keys

SENT = {
    b"\x1b[C": "right",
    b"\x1bOC": "right",
    b"\x1b[D": "left",
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1b[1;5C": "right",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b"\x1b[H": "home",
    b"\x1bOH": "home",
    b"\x1b[1~": "home",
    b"\x1b[F": "end",
    b"\x1b[4~": "end",
    b"\r": "enter",
    b"\n": "enter",
    b"\x7f": "backspace",
    b"q": "q",
    b" ": " ",
    "ü".encode(): "ü",
    "漢".encode(): "漢",
    "😀".encode(): "😀",
}
KEYS = [
    *MOVES,
    "home",
    "end",
    "g",
    "G",
    "[",
    "]",
    "c",
    ":",
    "?",
    "enter",
    "escape",
    "backspace",
    "resize",
    "z",
    *"0123",
]


@pytest.mark.parametrize(("sent", "key"), SENT.items())
def test_decodes_the_keys_of_terminals(sent: bytes, key: str) -> None:
    assert decode_keys(sent) == ([key], b"")


@given(st.lists(st.sampled_from([*SENT])), st.integers(0, 40))
def test_keys_are_the_same_wherever_the_bytes_are_split(sent: list[bytes], cut: int) -> None:
    whole = b"".join(sent)
    first, rest = decode_keys(whole[:cut])
    second, end = decode_keys(rest + whole[cut:])
    assert first + second == [SENT[each] for each in sent]
    assert end == b""


@given(st.binary())
def test_any_bytes_are_decoded(sent: bytes) -> None:
    keys, rest = decode_keys(sent)
    assert all(keys)
    assert len(rest) < 4 or rest.startswith(b"\x1b")
    assert decode_incomplete(rest) in ([], ["escape"])


def test_escape_without_more_bytes_is_a_key() -> None:
    assert decode_keys(b"\x1b") == ([], b"\x1b")
    assert decode_incomplete(b"\x1b") == ["escape"]
    assert decode_incomplete(b"") == decode_incomplete("漢".encode()[:2]) == []
    assert decode_keys(b"\x1bq") == (["escape", "q"], b"")


def test_unknown_sequences_are_no_keys() -> None:
    assert decode_keys(b"\x1b[99~\x1b[Z\xff\xfeq") == (["q"], b"")


def pressed(stepper: Stepper, *keys: str) -> Stepper:
    for key in keys:
        stepper = press(stepper, key)
    return stepper


@given(st.integers(1, 50).flatmap(lambda n: st.tuples(st.integers(1, n), st.just(n))), st.lists(st.sampled_from(KEYS)))
def test_versions_stay_within_the_thread(where: tuple[int, int], keys: list[str]) -> None:
    stepper = Stepper(*where, stops=(1, where[1]))
    for key in keys:
        stepper = press(stepper, key)
        assert 1 <= stepper.version <= stepper.newest == where[1]
        assert stepper.direction in {-1, 0, 1}
        assert not stepper.ended
    assert press(pressed(stepper, "escape", "escape"), "q").ended


@pytest.mark.parametrize(
    ("keys", "version"),
    [
        (["right"], 41),
        (["l", "n", " ", "down"], 44),
        (["left", "h", "p", "up"], 36),
        (["page down"], 50),
        (["page up"], 30),
        (["home"], 1),
        (["g"], 1),
        (["end"], 95),
        (["G"], 95),
        (["c"], 60),
        (["c", "c"], 80),
        (["c", "c", "c"], 80),
        (["7", "enter"], 7),
        ([":", "1", "2", "backspace", "3", "enter"], 13),
        (["7", "escape"], 40),
        (["7", "backspace", "backspace", "right"], 41),
        ([":", "enter", "right"], 41),
        (["9", "9", "9", "enter"], 40),
        (["0", "enter"], 40),
        (["?", "right", "right"], 41),
        (["x", "enter", "escape"], 40),
    ],
)
def test_keys_lead_to_versions(keys: list[str], version: int) -> None:
    assert pressed(Stepper(40, 95, (10, 60, 80)), *keys).version == version


def test_notes_why_a_key_has_no_effect() -> None:
    stepper = Stepper(1, 2)
    assert pressed(stepper, "left").note == "This is the first version."
    assert pressed(stepper, "right").note == ""
    assert pressed(stepper, "right", "right").note == "This is the newest version."
    assert pressed(stepper, "c").note == "There is no checkpoint after this version."
    assert pressed(stepper, "3", "enter").note == "There is no version 3. The thread has versions 1 to 2."
    assert pressed(stepper, "left", "x").note == ""


def test_a_search_for_a_message_ends_there_or_with_a_note() -> None:
    stepper = Stepper(4, 9)
    assert (press(stepper, "]").direction, press(stepper, "[").direction) == (1, -1)
    assert after_search(press(stepper, "]"), 7) == stepper._replace(version=7)
    assert after_search(press(stepper, "]"), None).note == "There is no message after this version."
    assert after_search(press(stepper, "["), None).note == "There is no message before this version."


def test_end_goes_to_the_newest_event() -> None:
    stepper = with_newest(Stepper(4, 4), 9, (8,))
    assert stepper.version == 4
    assert press(stepper, "end").version == 9
    assert press(stepper, "c").version == 8


def test_any_key_closes_the_help_and_the_end_of_input_quits() -> None:
    helping = press(Stepper(1, 2), "?")
    assert helping.helping
    assert press(helping, "resize").helping
    assert press(helping, "q") == Stepper(1, 2)
    assert press(helping, "closed").ended


def test_typed_digits_are_limited() -> None:
    assert pressed(Stepper(1, 2), *"9" * 5_000, "enter").version == 1


def test_the_help_names_every_key() -> None:
    keys_of_help = " ".join(keys for keys, _ in HELP)
    for key in ("l", "n", "space", "h", "p", "PgUp", "PgDn", "Home", "g", "End", "G", "]", "[", "c", ":", "?", "q"):
        assert key in keys_of_help.split()
