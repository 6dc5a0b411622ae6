"""The frames of the stepper, without a terminal: they fit, and describe each event."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from clew.cli.stepper import HELP, Stepper, event_text, frame, press, step_lines
from clew.conversations import Conversations
from clew.domain.decider_state import Control
from clew.domain.events import Event, MessageAppended, Opaque
from clew.domain.history import HistoryMessage, Step
from clew.domain.messages import Message

nasty = st.text(alphabet=st.sampled_from("a b\t\n\r\x1b[2J\x07漢字é\u0301\u202e😀\u200d\u2028")) | st.text()


def history_message(text: str, version: int, role: Any = "user") -> HistoryMessage:
    message = Message.user(text) if role == "user" else Message.assistant(text)
    return HistoryMessage(version, role, message, f"e{version}", 0)


def step(texts: Sequence[str], taken: Sequence[str] = (), *, count: int = 0, **control: Any) -> Step:
    messages = tuple(history_message(text, version) for version, text in enumerate(texts, start=2))
    gone = tuple(history_message(text, version) for version, text in enumerate(taken, start=100))
    data = MessageAppended(message=Message.user(texts[-1] if texts else ""))
    event = Event("default/thread/a", len(texts) + 1, "message-appended", "e", 0, len(texts), data, "user:42")
    then = Control(version=event.version, messages=count or len(texts), **control)
    return Step(event, then, then._replace(version=200), messages, gone)


def frame_lines(result: Step, stepper: Stepper | None = None, *, width: int = 80, height: int = 24) -> list[str]:
    lines = frame(result, stepper or Stepper(result.version, result.newest), "a", width, height)
    return [line.plain for line in lines]


@given(
    st.lists(nasty, max_size=8),
    st.lists(nasty, max_size=3),
    st.none() | nasty,
    st.integers(1, 60),
    st.integers(1, 40),
    st.sampled_from(["x", "?", "7", "right"]),
)
def test_a_frame_fits_the_screen_and_is_safe_for_the_terminal(
    texts: list[str], taken: list[str], title: str | None, width: int, height: int, key: str
) -> None:
    result = step(texts, taken, title=title)
    lines = frame(result, press(Stepper(result.newest, result.newest), key), "a", width, height)
    assert len(lines) == height
    for line in lines:
        assert line.cell_len <= width
        assert re.search("[\x00-\x1f\x7f-\x9f\u2028-\u202e]", line.plain) is None


def test_the_newest_message_is_marked_and_the_number_of_each_is_its_own() -> None:
    lines = frame_lines(step(["one", "two", "three"], count=7))
    heads = [line for line in lines if " user  version" in line]
    assert [head[:3] for head in heads] == ["  5", "  6", "▶ 7"]
    assert "    … 4 earlier" in lines
    assert lines[1] == "version 4 of 200 · active · 7 messages"
    assert lines[2] == "message-appended · 1970-01-01 00:00:00Z · by user:42"
    assert lines[-1].startswith("? help · q quit")


def test_messages_that_a_rewind_removed_are_struck_out() -> None:
    result = step(["one"], ["two", "three"])
    lines = frame(result, Stepper(1, 1), "a", 80, 24)
    plain = [line.plain for line in lines]
    at = plain.index("Taken back by the rewind:")
    assert plain.index("    one") < at < plain.index("    two") < plain.index("    three")
    assert any("strike" in str(span.style) for span in lines[plain.index("    two")].spans)
    assert not any("strike" in str(span.style) for span in lines[plain.index("    one")].spans)
    many = frame_lines(step(["one"], [f"gone {number}" for number in range(30)]))
    assert "    … and earlier ones" in many
    assert "    gone 29" in many
    assert "    one" in many


def test_a_long_message_is_cut_and_says_so() -> None:
    lines = frame_lines(step(["old", "word " * 100_000]))
    assert "    … cut here; clew show --at 3 shows all of it" in lines
    assert "    old" in lines
    lines = frame_lines(step(["long " * 100, "new"]))
    assert "    … cut here; clew show --at 2 shows all of it" in lines
    assert "    new" in lines


def test_a_small_screen_shows_the_newest_message_first() -> None:
    assert "    three" in frame_lines(step(["one", "two", "three"]), height=9)
    assert len(frame_lines(step(["one"]), height=1)) == 1


def test_shows_the_help_and_typed_digits() -> None:
    result = step(["one"])
    helping = "\n".join(frame_lines(result, press(Stepper(2, 9), "?")))
    assert all(texts in helping for _, texts in HELP)
    assert frame_lines(result, press(Stepper(2, 9), "7"))[-1].startswith("Go to version: 7")
    assert frame_lines(result, press(Stepper(9, 9), "right"))[-1] == "This is the newest version."


def test_describes_each_event() -> None:
    with Conversations.open("memory:") as conversations:
        thread = conversations.start_thread("Refund", thread_id="a", messages=[Message.user("Hi")])
        thread.append(Message.assistant("Yes?"))
        thread.checkpoint("here")
        thread.label(topic="refund")
        thread.rewind(to=2)
        thread.redact(3, reason="a number")
        thread.suspend(reason="lunch")
        thread.resume()
        thread.end()
        fork = thread.fork(title="What if")
        texts = [event_text(fork.step(at=version), fork.id).plain for version in range(1, fork.version + 1)]
        own = event_text(fork.step(), fork.id).plain
    inherited = " (inherited from a)"
    assert all(each.endswith(inherited) for each in texts[:-1])
    assert [each.removesuffix(inherited) for each in texts] == [
        "The thread began: Refund",
        "A message was appended: user",
        "A message was appended: assistant",
        "A checkpoint was made: here: version 3",
        "Labels were set: topic=refund",
        "The history was rewound: to version 2",
        "Content was redacted: version 3: a number",
        "The thread was suspended: lunch",
        "The thread was resumed.",
        "The thread was ended.",
        "The thread was forked: from a at version 10: What if",
    ]
    assert own == texts[-1]
    opaque = Event("default/thread/a", 1, "\x1b[2J", "e", 0, 0, Opaque(b""))
    assert event_text(Step(opaque, Control(), Control(), ()), "a").plain == "of a type that this Clew does not know"


def test_a_block_has_the_whole_message_and_the_checkpoints() -> None:
    text = "line one\n\nline \x1b[2J" + "x" * 3_000
    result = step([text])
    result = Step(
        result.event, result.control, result.head._replace(checkpoints={"here": 2, "there": 1}), result.messages
    )
    lines = [line.plain if isinstance(line, Text) else line for line in step_lines(result, "a")]
    assert lines[0].startswith("version 2 of 200 · active · 1 message · checkpoint here · message-appended · 1970-")
    assert lines[1:] == [
        "    A message was appended: user",
        "    line one",
        "",
        "    line \\x1b[2J" + "x" * 3_000,
        "",
    ]
