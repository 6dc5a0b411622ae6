"""Opening the store that ``--db`` names, and finding what the arguments of a command mean in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    import typer

    from clew.conversations import Conversations
    from clew.service.core import Core

DEFAULT_URL = "sqlite:///clew.db"

CANDIDATES = 5
"""Threads that an ambiguous prefix is answered with."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the options before the command say."""

    url: str
    tenant: str


class Store(NamedTuple):
    """An open store: the service for people who program, and the core that the rest of the service works on."""

    conversations: Conversations
    core: Core


class Moment(NamedTuple):
    """What ``--at`` says, as the service takes it: one of the two, or neither for the newest version."""

    at: int | str | datetime | None = None
    at_message: int | None = None


@contextmanager
def opened(context: typer.Context, *, create: bool = False) -> Iterator[Store]:
    """The store that the command is for, closed in the end.

    Without ``create`` a database that is not there is an error, and is not made. Raises StoreUrlError,
    StoreSchemaError, StoreUnavailableError or InvalidNameError.
    """
    chosen: Chosen = context.obj
    if not create:
        _check_there(chosen.url)

    from clew.conversations import Conversations
    from clew.infrastructure import clock
    from clew.infrastructure.urls import open_log
    from clew.service.core import new_core

    core = new_core(open_log(chosen.url), chosen.tenant, clock.now)
    with Conversations(core) as conversations:
        yield Store(conversations, core)


def _check_there(url: str) -> None:
    from clew.domain.errors import StoreUnavailableError

    parts = urlsplit(url)
    path = unquote(parts.path).removeprefix("/")
    if parts.scheme != "sqlite" or parts.netloc or not path or path == unquote(parts.path) or "\0" in path:
        return  # a URL that names no file is told when it is opened
    file = Path(path)
    if not file.exists():
        raise StoreUnavailableError(
            f"{path}: there is no database. Make it with `clew import FILE`, or name another with --db or CLEW_DB."
        )
    if file.is_file() and not file.stat().st_size:
        raise StoreUnavailableError(
            f"{path}: the file is empty, no database. Fill it with `clew import FILE`, or name another with --db."
        )


def thread_id(core: Core, text: str) -> str:
    """The id of the thread that ``text`` names: the whole id, or the beginning of one thread's only.

    Raises UnknownThreadError, AmbiguousThreadError or InvalidNameError.
    """
    from clew.domain.errors import AmbiguousThreadError, UnknownThreadError
    from clew.domain.names import parse_stream_name
    from clew.service.core import load
    from clew.service.operations import run

    if run(load(core, text)).version:
        return text
    streams = core.log.streams(prefix=core.prefix(text), limit=CANDIDATES + 1)
    names = [name.id for stream in streams if (name := parse_stream_name(stream.name)) is not None]
    if not names:
        raise UnknownThreadError(text)
    if len(names) > 1:
        raise AmbiguousThreadError(text, names[:CANDIDATES], more=len(names) > CANDIDATES)
    return names[0]


def moment(text: str | None) -> Moment:
    """What ``--at`` means: a version, ``message:N``, a time in ISO 8601 with an offset, or a checkpoint's name.

    Raises InvalidTimeError for a time without an offset.
    """
    from clew.domain import names
    from clew.domain.errors import InvalidTimeError, UnknownVersionError

    if text is None:
        return Moment()
    if names.is_version(text):
        digits = text.lstrip("0") or "0"
        if len(digits) > 18:  # noqa: PLR2004  # as for messages; no thread has so many versions
            raise UnknownVersionError(f"--at: no thread has a version of {len(digits)} digits.")
        return Moment(at=int(digits))
    number = names.message_number(text)
    if number is not None:
        return Moment(at_message=number)
    time = names.moment(text)
    if time is None:
        return Moment(at=text)
    if time.tzinfo is None:
        raise InvalidTimeError(
            f"--at {text!r} has no offset, so it names no moment. Write {time.isoformat()}Z for UTC, or the offset."
        )
    return Moment(at=time)
