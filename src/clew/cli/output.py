"""Output: text that is safe for a terminal, JSON with nothing lost, and progress bars."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clew.conversations import Conversations
    from clew.domain.runs.events import Failure

_names: ContextVar[dict[str, str] | None] = ContextVar("names", default=None)

# What a terminal obeys, or a reader of lines takes for the end of one, and json.dumps leaves as it is.
_NOT_IN_JSON = re.compile("[\x7f-\x9f\u061c\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

# Control characters but for tab and newline; what turns the direction of text; line ends that are none of a terminal's;
# lone surrogates, which come from arguments that are no UTF-8.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def safe(text: str) -> str:
    """The text with every control character shown as an escape, but for tabs and newlines."""
    return _UNSAFE.sub(lambda found: ascii(found[0])[1:-1], text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """The text on one line, safe for a terminal: line ends and what is around them become one space."""
    return safe(re.sub(r"\s*[\r\n]\s*", " ", text).replace("\t", " ").strip())


def shortened(text: str, longest: int) -> str:
    """The text, or its beginning with an ellipsis if it is longer."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def without_middle(text: str, longest: int) -> str:
    """The text, or its beginning and its end if it is longer."""
    if len(text) <= longest:
        return text
    end = longest // 3
    return f"{text[: longest - end - 1]}…{text[-end:]}"


def json_text(value: Any) -> str:
    """JSON on one line. The standard library's: it writes integers of any size, and Unicode as it is.

    But for what could steer a terminal or end a line there: that is escaped, which is equal JSON.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _NOT_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def pretty_json(value: Any) -> str:
    """JSON on many lines, for people; safe for a terminal, and equal all the same."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    return _NOT_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def write_json(value: Any) -> None:
    """One value on a line of stdout, in UTF-8 wherever that goes."""
    utf_8_output()
    sys.stdout.write(json_text(with_names(value)) + "\n")


def with_names(value: Any) -> Any:
    """The object with the fields before it that ``named`` says."""
    names = _names.get()
    return value if names is None else {**names, **value}


@contextmanager
def named(**names: str) -> Iterator[None]:
    """Let each object that is written in the block begin with these fields."""
    before = _names.set(names)
    try:
        yield
    finally:
        _names.reset(before)


def utf_8_output() -> None:
    """Write UTF-8 to stdout, whatever the terminal's own encoding is."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.encoding != "utf-8":
        sys.stdout.reconfigure(encoding="utf-8", errors="strict")


def json_time(time: datetime) -> str:
    """A moment in JSON: ISO 8601 in UTC, to the microsecond."""
    return time.astimezone(UTC).isoformat(timespec="microseconds")


def shown_time(time: datetime) -> str:
    """A moment for people, in UTC, to the second; ``--at`` takes it."""
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def counted(number: int, word: str) -> str:
    """A number of things, empty for none."""
    return f"{number:,} {word}{'' if number == 1 else 's'}" if number else ""


def joined(*parts: str) -> str:
    """The parts that there are, in a row."""
    return " · ".join(part for part in parts if part)


def failure(error: Failure, *, said: bool = True) -> str:
    """What went wrong, on one line: the class, what a service said of it, and, if it is to be ``said``, the words."""
    told = " ".join(str(each) for each in (error.kind, error.status, error.code) if each is not None)
    return f"{told}: {error.message}" if said and error.message is not None else told


MANY = 10_000
"""Events that take long enough to be told of."""


@contextmanager
def position_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Takes how far it is and how far there is to go, in positions: shown as a share, as those may have gaps."""
    if not sys.stderr.isatty():
        yield lambda _reached, _last: None
        return

    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from clew.cli import rendering

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=rendering.console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda reached, last: progress.update(task, completed=max(0, reached), total=last)


def catch_up(conversations: Conversations, projection: str) -> None:
    """Let a projection take in what was written, with a bar if that is much; otherwise reading it does so anyway."""
    if not sys.stderr.isatty():
        return
    for status in conversations.projections():
        if status.name == projection and status.lag >= MANY and status.state in {"live", "waiting"}:
            with position_bar(f"Reading what is new for {projection}") as progress:
                conversations.wait(projection=projection, progress=progress)
