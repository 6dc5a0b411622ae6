"""Arguments and options that several commands share, their values, and the store or thread that they name."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias, TypeVar

import typer

from clew.cli.candidates import checkpoint_names, thread_ids
from clew.cli.errors import FAILED, WrongUsage
from clew.cli.output import NO_THREADS

if TYPE_CHECKING:
    from clew.conversations import Conversations
    from clew.domain.json_values import Json
    from clew.sync.threads import Thread

T = TypeVar("T", datetime, date)

NO_EVENTS = "No matching events."

DEFAULT_URL = "sqlite:///clew.db"

DEFAULT_TENANT = "default"

MOST_DIGITS = 18
"""Digits of a version or of a message's number; none has more."""

DEFAULT_LIMIT = 50
"""The number of entries that a list for people has without --limit."""

TIME = "a time such as 2026-01-31T12:00:00Z, a date (the start of that day in UTC)"
"""The values of an option for a time, for its help."""

AGO = f"{TIME}, or an age such as 30m, 12h, 7d or 2w"

_AGE = re.compile(r"([0-9]{1,6})([mhdw])")
_DATE_AND_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}([Tt ][0-9]{2}:.*)?")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def _check_actor(actor: str | None) -> str | None:
    """Raise InvalidNameError for an invalid actor, before a database is opened or created."""
    if actor is not None:
        from clew.domain.streams import check_id

        check_id(actor, "actor")
    return actor


AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Write JSON, and errors as JSON too.")]


def thread_argument(help_: str, *, metavar: str = "THREAD") -> Any:
    """An argument that names a thread, with tab completion."""
    return typer.Argument(metavar=metavar, help=help_, autocompletion=thread_ids)


def version_option(name: str, help_: str, *, metavar: str = "X") -> Any:
    """An option that names a version of a thread, with tab completion of checkpoints."""
    return typer.Option(name, metavar=metavar, help=help_, autocompletion=checkpoint_names)


ThreadArgument: TypeAlias = Annotated[str, thread_argument("A thread's id, or a unique prefix of it.")]

SaidSinceOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--said-since", metavar="TIME", help=f"Only what was said from then on: {AGO}."),
]

SaidUntilOption: TypeAlias = Annotated[
    str | None, typer.Option("--said-until", metavar="TIME", help="Only what was said before, as for --said-since.")
]

LimitOption: TypeAlias = Annotated[
    int | None, typer.Option("--limit", "-n", metavar="N", min=1, help="Only the newest N.")
]

AllOption: TypeAlias = Annotated[
    bool, typer.Option("--all", help="No limit, even with --limit; this is the default with --json.")
]

AtOption: TypeAlias = Annotated[
    str | None,
    version_option("--at", f"A version, message:N, {TIME}, or a checkpoint's name; by default the newest version."),
]

MessageArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="MESSAGE", help="A message of the thread: message:N, or its version.")
]

ActorOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--actor", envvar="CLEW_ACTOR", metavar="A", callback=_check_actor, help="Who does this, for the audit trail."
    ),
]

ReasonOption: TypeAlias = Annotated[str | None, typer.Option("--reason", metavar="R", help="Why, for the audit trail.")]

YesOption: TypeAlias = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask first. Required without a terminal.")
]


@dataclass(slots=True)
class GlobalOptions:
    """The values of ``--db`` and ``--tenant``, and the command's name; empty while the command line is parsed."""

    url: str = DEFAULT_URL
    tenant: str = DEFAULT_TENANT
    command: str = ""


class Moment(NamedTuple):
    """The version that ``--at`` names, for the service: one of the two fields, or neither for the newest version."""

    at: int | str | datetime | None = None
    at_message: int | None = None


def open_store(context: typer.Context, *, create: bool = False) -> Conversations:
    """Open the store that ``--db`` names; without ``create`` it must exist. Raises what Conversations.open() raises.

    A store that this user cannot write to is opened for reading: a command that writes to it fails.
    """
    from clew.conversations import Conversations
    from clew.infrastructure.stores import store_at

    options: GlobalOptions = context.obj
    read_only = not store_at(options.url).can_be_written()
    return Conversations.open(options.url, tenant=options.tenant, create=create, read_only=read_only)


def no_threads(context: typer.Context) -> str:
    """What a list of threads says if the tenant has none."""
    tenant = context.obj.tenant
    if tenant == DEFAULT_TENANT:
        return NO_THREADS
    return f"Tenant {tenant!r} has no threads. `clew --tenant {quote(tenant)} import FILE` adds some."


@contextmanager
def open_thread(context: typer.Context, prefix: str) -> Iterator[Thread]:
    """Open the store, and the thread whose id has this prefix. Raises UnknownThreadError or AmbiguousThreadError."""
    with open_store(context) as conversations:
        yield conversations.thread(conversations.find(prefix))


def list_limit(limit: int | None, *, all_: bool, as_json: bool) -> int | None:
    """The number of entries to list; None for all."""
    if all_:
        return None
    return limit if as_json else limit or DEFAULT_LIMIT


def parse_moment(text: str | None, option: str = "--at") -> Moment:
    """A version, ``message:N``, a time in ISO 8601 with an offset, a date, or a checkpoint's name.

    ``option`` is the name that errors give it. Raises InvalidTimeError for a time without an offset.
    """
    from clew.domain import streams
    from clew.domain.errors import UnknownVersionError

    if text is None:
        return Moment()
    if not text:
        raise WrongUsage(f"{option} '' is empty. Give a version, message:N, a time, a date or a checkpoint's name")
    of_message = text.startswith("message:")
    digits = text.removeprefix("message:")
    if streams.is_version(digits):
        digits = digits.lstrip("0") or "0"
        if len(digits) > MOST_DIGITS:
            what = "message number" if of_message else "version"
            raise UnknownVersionError(f"{option}: no thread has a {what} of {len(digits)} digits.")
        return Moment(at_message=int(digits)) if of_message else Moment(at=int(digits))
    time = streams.moment(text)
    return Moment(at=text if time is None else _with_offset(time, text, option))


def parse_time(text: str | None, option: str) -> datetime | None:
    """A time in ISO 8601 with an offset, a date, or an age such as 7d. Raises InvalidTimeError or WrongUsage."""
    from clew.domain import streams

    if text is None:
        return None
    if age := _AGE.fullmatch(text):
        try:
            return datetime.now(UTC) - timedelta(**{_UNITS[age[2]]: int(age[1])})
        except OverflowError:
            raise WrongUsage(f"{option} {text!r}: that is before the year 1") from None
    time = streams.moment(text) if _DATE_AND_TIME.fullmatch(text) else None
    if time is None:
        raise WrongUsage(f"{option} {text!r} is not a time. Give {AGO}")
    return _with_offset(time, text, option)


def check_order(since: T | None, until: T | None, prefix: str = "--") -> None:
    """Raise WrongUsage if a range of times or days ends before it begins. Its options begin with the prefix."""
    if since is not None and until is not None and since > until:
        raise WrongUsage(f"{prefix}since {since} is after {prefix}until {until}. Exchange them")


def parse_said(since: str | None, until: str | None) -> tuple[datetime | None, datetime | None]:
    """The times of --said-since and --said-until. Raises InvalidTimeError or WrongUsage."""
    start, end = parse_time(since, "--said-since"), parse_time(until, "--said-until")
    check_order(start, end, "--said-")
    return start, end


def _with_offset(time: datetime, text: str, option: str) -> datetime:
    from clew.domain.errors import InvalidTimeError

    if time.tzinfo is not None:
        return time
    if "T" not in text.upper() and ":" not in text and " " not in text:  # a date: it starts in UTC
        return time.replace(tzinfo=UTC)
    raise InvalidTimeError(
        f"{option} {text!r} has no UTC offset, so it names no moment. Write {time.isoformat()}Z for UTC."
    )


def version_of(thread: Thread, when: Moment) -> int | str | datetime | None:
    """A moment as one value: the number of a message becomes its version."""
    return when.at if when.at_message is None else thread.history(at_message=when.at_message).version


def message_version(thread: Thread, text: str) -> int:
    """The version that MESSAGE names: ``message:N`` of the current thread, or a version. Raises WrongUsage."""
    when = parse_moment(text, "MESSAGE") if text.startswith("message:") or text.isdecimal() else Moment()
    if when.at_message == 0:  # elsewhere this is the version before the first message
        raise WrongUsage(f"MESSAGE {text!r}: not a message. The first is message:1")
    version = version_of(thread, when)
    if not isinstance(version, int):
        raise WrongUsage(f"MESSAGE {text!r}: give message:N for the N-th message, or its version")
    return version


def parse_label(text: str, *, removes: bool = True) -> tuple[str, Json]:
    """The name and the JSON value of NAME=VALUE; the value is None for NAME=. Raises WrongUsage.

    ``removes`` says whether the command removes labels, for the error.
    """
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise WrongUsage(f"{text!r} is not a label. Write NAME=VALUE{', or NAME= to remove it' if removes else ''}")
    if not value:
        return name, None

    def integer(digits: str) -> int:
        try:
            return int(digits)
        except ValueError:  # longer than Python converts
            raise WrongUsage(
                f"Label {name!r}: a number of {len(digits):,} digits is too long. To store it as text, put it in "
                "JSON's quotes: NAME='\"VALUE\"'"
            ) from None

    def constant(word: str) -> float:
        raise ValueError(f"JSON has no {word}")

    try:
        return name, json.loads(value, parse_int=integer, parse_constant=constant)
    except (ValueError, RecursionError):
        return name, value


def imported(option: str, text: str) -> Any:
    """The object that MODULE:OBJECT names, imported from this folder or from Python's path. Raises WrongUsage."""
    module, _, name = text.partition(":")
    if not module or not name:
        raise WrongUsage(f"{option} {text!r}: write the name of a module, a colon and the name of an object")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise WrongUsage(f"{option} {text!r}: {error}") from error
    except Exception as error:  # the module's own
        raise WrongUsage(f"{option} {text!r}: the module fails with {type(error).__name__}: {error}") from error


def must_confirm(context: typer.Context, *, yes: bool) -> bool:
    """Whether to ask before an irreversible change. Raises WrongUsage without --yes and without a terminal."""
    if yes:
        return False
    if not sys.stdin.isatty():
        raise WrongUsage(f"{context.info_name}: there is no terminal for a confirmation. Add --yes to skip it")
    return True


def confirm(question: str) -> None:
    """Ask a question, which must be safe for a terminal; ends the command unless the answer is yes."""
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        typer.echo("Nothing was changed.", err=True)
        raise typer.Exit(FAILED)
