"""The store that ``--db`` names, and the moment that ``--at`` means."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import typer

    from clew.conversations import Conversations
    from clew.sync.threads import Thread

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
    from clew.cli.failures import WrongUsage

    when = moment(text, "MESSAGE") if text.startswith("message:") or text.isdecimal() else Moment()
    found = place(thread, when)
    if not isinstance(found, int):
        raise WrongUsage(context, f"MESSAGE {text!r}: give message:N for the N-th message, or its version")
    return found
