"""Arguments and options that several commands share, what their values mean, and the store that they choose."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeAlias

import typer

from clew.cli.candidates import checkpoint_names, thread_ids
from clew.cli.errors import FAILED, WrongUsage

if TYPE_CHECKING:
    from clew.conversations import Conversations
    from clew.sync.threads import Thread


def _checked_actor(actor: str | None) -> str | None:
    """An actor that can be recorded. Raises InvalidNameError before anything is opened or made."""
    if actor is not None:
        from clew.domain.names import check_id

        check_id(actor, "actor")
    return actor


AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Write JSON, and errors as JSON too.")]

ThreadArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="THREAD", help="A thread's id, or the beginning of it that no other has.", autocompletion=thread_ids
    ),
]

LimitOption: TypeAlias = Annotated[
    int | None, typer.Option("--limit", "-n", metavar="N", min=1, help="The newest N of them, and no more.")
]

AllOption: TypeAlias = Annotated[bool, typer.Option("--all", help="All of them, however many; so does --json.")]

AtOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="X",
        help="A version, message:N, a time such as 2026-01-31T12:00:00Z, or a checkpoint's name; "
        "by default the newest version.",
        autocompletion=checkpoint_names,
    ),
]

ToOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="X",
        help="A version, message:N, a time such as 2026-01-31T12:00:00Z, or a checkpoint's name.",
        autocompletion=checkpoint_names,
    ),
]

MessageArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="MESSAGE", help="A message of the thread: message:N, or its version.")
]

ActorOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--actor",
        envvar="CLEW_ACTOR",
        metavar="A",
        callback=_checked_actor,
        help="Who does this, as the audit trail names it.",
    ),
]

ReasonOption: TypeAlias = Annotated[str | None, typer.Option("--reason", metavar="R", help="Why, for the audit trail.")]

YesOption: TypeAlias = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask; needed where there is no terminal to ask on.")
]


def must_ask(context: typer.Context, *, yes: bool) -> bool:
    """Whether somebody is there to be asked, and has not said yes beforehand.

    Raises WrongUsage where nobody is: what cannot be undone is done only when it was said that it shall be.
    """
    if yes:
        return False
    if not sys.stdin.isatty():
        raise WrongUsage(context, f"{context.info_name}: there is no terminal to ask on. Say --yes if it shall be done")
    return True


def ask(question: str) -> None:
    """Put a question, on one line that is safe for a terminal; ends the command unless the answer is yes."""
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        typer.echo("Nothing was changed.", err=True)
        raise typer.Exit(FAILED)


DEFAULT_URL = "sqlite:///clew.db"


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the options before the command say."""

    url: str
    tenant: str


class Moment(NamedTuple):
    """What ``--at`` says, as the service takes it: one of the two, or neither for the newest version."""

    at: int | str | datetime | None = None
    at_message: int | None = None


def opened(context: typer.Context, *, create: bool = False) -> Conversations:
    """The store that the command is for; without ``create`` it must be there. Raises what Conversations.open() does."""
    from clew.conversations import Conversations

    chosen: Chosen = context.obj
    return Conversations.open(chosen.url, tenant=chosen.tenant, create=create)


def moment(text: str | None, option: str = "--at") -> Moment:
    """What ``--at`` means: a version, ``message:N``, a time in ISO 8601 with an offset, or a checkpoint's name.

    ``option`` is what it is called on the command line. Raises InvalidTimeError for a time without an offset.
    """
    from clew.domain import names
    from clew.domain.errors import InvalidTimeError, UnknownVersionError

    if text is None:
        return Moment()
    if names.is_version(text):
        digits = text.lstrip("0") or "0"
        if len(digits) > 18:  # noqa: PLR2004  # as for messages; no thread has so many versions
            raise UnknownVersionError(f"{option}: no thread has a version of {len(digits)} digits.")
        return Moment(at=int(digits))
    number = names.message_number(text)
    if number is not None:
        return Moment(at_message=number)
    time = names.moment(text)
    if time is None:
        return Moment(at=text)
    if time.tzinfo is None:
        raise InvalidTimeError(
            f"{option} {text!r} has no offset, so it names no moment. Write {time.isoformat()}Z for UTC, or the offset."
        )
    return Moment(at=time)


def place(thread: Thread, when: Moment) -> int | str | datetime | None:
    """The same as one value, for what takes no number of a message: a version stands for it."""
    return when.at if when.at_message is None else thread.history(at_message=when.at_message).version


def message_version(context: typer.Context, thread: Thread, text: str) -> int:
    """The version that MESSAGE means: ``message:N`` of the thread as it is now, or the version itself.

    Raises WrongUsage for anything else.
    """
    from clew.cli.errors import WrongUsage

    when = moment(text, "MESSAGE") if text.startswith("message:") or text.isdecimal() else Moment()
    found = place(thread, when)
    if not isinstance(found, int):
        raise WrongUsage(context, f"MESSAGE {text!r}: give message:N for the N-th message, or its version")
    return found
