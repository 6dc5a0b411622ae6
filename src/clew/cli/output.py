"""Output: text that cannot control a terminal, JSON that loses nothing, and progress on a terminal."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from decimal import Decimal

    from rich.console import Console
    from rich.text import Text

    from clew.conversations import Conversations
    from clew.domain.runs.events import Failure

NO_THREADS = "There are no threads. `clew import FILE` adds some."
"""What a list of threads says in an empty store of the default tenant."""

MANY_EVENTS = 10_000
"""Number of events from which catching up takes long enough for a progress bar."""

KILO = 1_000

_fields: ContextVar[dict[str, str] | None] = ContextVar("fields", default=None)

# Characters that control a terminal or end a line for some readers, and that json.dumps leaves unescaped.
_UNSAFE_IN_JSON = re.compile("[\x7f-\x9f\u061c\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

# Control characters except tab and newline, changes of text direction, Unicode's line ends, and lone surrogates, which
# come from arguments that are not UTF-8.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def console(*, stderr: bool = False, width: int | None = None, quiet: bool = False) -> Console:
    """A Rich console that prints text as it is: no markup, no emoji codes, no coloured numbers."""
    from rich.console import Console

    return Console(stderr=stderr, width=width, quiet=quiet, markup=False, emoji=False, highlight=False)


def safe(text: str) -> str:
    """The text with its control characters escaped, except tabs and newlines."""
    return _UNSAFE.sub(lambda match: ascii(match[0])[1:-1], text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """The text on one line, safe for a terminal. A line end and the space around it become one space."""
    return safe(re.sub(r"\s*[\r\n]\s*", " ", text).replace("\t", " ").strip())


def shortened(text: str, longest: int) -> str:
    """The text; a longer one is cut and ends with an ellipsis."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def without_middle(text: str, longest: int) -> str:
    """The text; a longer one loses its middle."""
    if len(text) <= longest:
        return text
    end = longest // 3
    return f"{text[: longest - end - 1]}…{text[-end:]}"


def plural(number: int, word: str) -> str:
    """A number and a word in its singular or plural, as in ``2 threads``."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def plural_if_any(number: int, word: str) -> str:
    """A number and a word, or an empty text for zero."""
    return plural(number, word) if number else ""


def joined(*parts: str) -> str:
    """The parts that are not empty, with dots between them."""
    return " · ".join(part for part in parts if part)


def dollars_text(amount: Decimal) -> str:
    """An amount of US dollars, with at least two digits after the point and with all that it has."""
    whole, _, digits = f"{amount:,f}".partition(".")
    return f"${whole}.{digits.rstrip('0'):0<2}"


def size_text(size: float) -> str:
    """A number of bytes for people, in powers of 1,000."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < KILO:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= KILO
    return f"{size:,.1f} TB"


def failure_text(error: Failure, *, message: bool = True) -> str:
    """An error on one line: its class, the service's status and code and, with ``message``, its message."""
    name = " ".join(str(part) for part in (error.kind, error.status, error.code) if part is not None)
    return f"{name}: {error.message}" if message and error.message is not None else name


def time_text(time: datetime) -> str:
    """A time for people, in UTC, to the second; ``--at`` accepts it."""
    return f"{time.astimezone(UTC).replace(tzinfo=None).isoformat(' ', 'seconds')}Z"


def minute_text(time: datetime) -> str:
    """A time for people, in UTC, to the minute, without a zone: for columns that have a heading."""
    return time_text(time)[:16]


def json_time(time: datetime) -> str:
    """A time for JSON: ISO 8601 in UTC, to the microsecond."""
    return time.astimezone(UTC).isoformat(timespec="microseconds")


def json_text(value: Any, *, indent: int | None = None) -> str:
    """JSON with Unicode unescaped, except what could control a terminal or end a line. On one line without ``indent``.

    The standard library writes it: it takes integers of any size.
    """
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=None if indent else (",", ":"))
    return _UNSAFE_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def write_json(value: Any) -> None:
    """Write one value on a line of stdout, in UTF-8 on every terminal."""
    use_utf_8()
    sys.stdout.write(json_text(with_fields(value)) + "\n")


def write_json_lines(values: Iterable[Any]) -> None:
    """Write each value on a line of its own, as soon as it comes."""
    for value in values:
        write_json(value)


def warn(message: str) -> None:
    """Write a line to stderr."""
    typer.echo(f"clew: {one_line(message)}", err=True)


def write_result(shape: Any, text: str, *, as_json: bool) -> None:
    """Write the result of a command: its JSON shape, or its text for people."""
    if as_json:
        write_json(shape)
    else:
        typer.echo(text)


def print_lines(lines: Iterable[Text]) -> None:
    """Write lines of Rich text to stdout, each whole: the terminal wraps them."""
    out = console()
    for line in lines:
        out.print(line, soft_wrap=True)


def with_fields(value: Any) -> Any:
    """The object, preceded by the fields of ``first_fields``."""
    fields = _fields.get()
    return value if fields is None else {**fields, **value}


@contextmanager
def first_fields(**fields: str) -> Iterator[None]:
    """Start each JSON object that is written in the block with these fields."""
    token = _fields.set(fields)
    try:
        yield
    finally:
        _fields.reset(token)


def use_utf_8() -> None:
    """Write UTF-8 to stdout, whatever the encoding of the terminal."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.encoding != "utf-8":
        sys.stdout.reconfigure(encoding="utf-8", errors="strict")


@contextmanager
def progress_bar(what: str, *, hidden: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that takes the finished and the total amount. The bar appears only on a terminal.

    It shows a percentage and no counts, as positions of a log may have gaps.
    """
    if hidden or not sys.stderr.isatty():
        yield lambda _done, _total: None
        return

    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=max(0, done), total=total)


def catch_up(conversations: Conversations, projection: str) -> None:
    """Show a progress bar while a projection that is far behind catches up. Other reads catch up without a bar."""
    if not sys.stderr.isatty():
        return
    for status in conversations.projections():
        if status.name == projection and status.lag >= MANY_EVENTS and status.state in {"live", "waiting"}:
            with progress_bar(f"Catching up: {projection}") as progress:
                conversations.wait(projection=projection, progress=progress)
