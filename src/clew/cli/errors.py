"""Errors: each one is a line of text or JSON on stderr, and gives an exit code."""

from __future__ import annotations

import os
import re
import traceback
from datetime import date
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import typer
from typer import BadParameter, TyperException

from clew.cli import INTERRUPTED
from clew.cli.output import json_text, one_line, with_fields, without_middle

if TYPE_CHECKING:
    from clew.cli.options import GlobalOptions
    from clew.domain.errors import ClewError

FAILED = 1
USAGE = 2
NOT_VERIFIED = 3
PENDING = 5

LONGEST = 2_000
"""Characters of a message: a wrong URL or name can have any length."""

_PLAIN_WORDS = tuple(
    (re.compile(words), plain)
    for words, plain in (
        ("Value error, ", ""),
        ("(Input should be a valid integer|Unable to parse input string as an integer).*", "it must be a whole number"),
        ("Input should be ", "it must be "),
        ("greater than or equal to", "at least"),
        ("less than or equal to", "at most"),
    )
)
"""The words of Typer's validation, and those that a user of the command line reads instead."""


class WrongUsage(BadParameter):
    """A command line with invalid or contradictory values. The message ends without a full stop."""

    def format_message(self) -> str:
        """The message as it is; the parent would put other words before it."""
        return self.message


def report(error: BaseException, *, as_json: bool, options: GlobalOptions | None = None) -> int:
    """Write the error to stderr; returns the exit code. ``options`` are those of the command that failed."""
    if isinstance(error, TyperException):
        return _write("UsageError", _usage(error, options), error.exit_code, as_json=as_json)
    if isinstance(error, KeyboardInterrupt):
        return _write("KeyboardInterrupt", "interrupted.", INTERRUPTED, as_json=as_json)
    if isinstance(error, OSError):
        file = "" if error.filename is None else f"{error.filename}: "
        message = f"{file}{error.strerror or error}. Check the paths of the files and the output."
        return _write(type(error).__name__, message, FAILED, as_json=as_json)

    from clew.domain import errors

    if isinstance(error, errors.ClewError):
        usage = isinstance(
            error, errors.StoreUrlError | errors.InvalidNameError | errors.InvalidTimeError | errors.InvalidSearchError
        )
        message = str(error) if options is None else _for_the_command_line(error, options)
        return _write(_public_name(error), message, USAGE if usage else FAILED, as_json=as_json)
    return _write(type(error).__name__, _bug(error), FAILED, as_json=as_json)


def _write(kind: str, message: str, code: int, *, as_json: bool) -> int:
    line = without_middle(one_line(message), LONGEST)
    text = json_text(with_fields({"error": {"type": kind, "message": line}})) if as_json else f"clew: {line}"
    typer.echo(text, err=True)
    return code


def _for_the_command_line(error: ClewError, options: GlobalOptions) -> str:
    """The message of an error, with advice that names commands instead of calls."""
    from clew.domain.errors import (
        StoreUrlError,
        ThreadDeletedError,
        UnknownCheckpointError,
        UnknownProjectionError,
        UnknownThreadError,
    )
    from clew.infrastructure.stores import store_at

    if isinstance(error, UnknownThreadError):
        from clew.cli.options import DEFAULT_TENANT  # it imports this module

        of_tenant = "" if options.tenant == DEFAULT_TENANT else f"of tenant {options.tenant!r} "
        place = f"{of_tenant}in {store_at(options.url).name}"
        return f"There is no thread {error.thread_id!r}. `clew threads` lists the threads {place}."
    if isinstance(error, ThreadDeletedError):
        log = f"clew log {quote(error.thread_id)}"
        return (
            f"Thread {error.thread_id!r} is deleted, so `clew {options.command}` cannot read it. "
            f"`{log}` lists its events."
        )
    if isinstance(error, UnknownCheckpointError):
        forms = "Give a version, message:N, a time, a date or a checkpoint's name."
        return " ".join(filter(None, (str(error), forms, _no_moment(error.name))))
    if isinstance(error, StoreUrlError) and options.url == os.environ.get("CLEW_DB"):
        return f"CLEW_DB: {error}"
    if isinstance(error, UnknownProjectionError) and error.known:
        known = ", ".join(error.known)
        return f"There is no projection {error.name!r}. There are: {known}. To load your own, add --load MODULE:OBJECT."
    return str(error)


def _no_moment(text: str) -> str:
    """Why a text that is not a checkpoint, but looks like a message or a time, is neither; otherwise empty."""
    if text.startswith("message:"):
        return "The N of message:N is a whole number."
    if not re.match(r"[0-9]{4}-[0-9]+-[0-9]", text):
        return ""
    try:
        date.fromisoformat(text[:10])
    except ValueError as error:
        if "isoformat" not in str(error):  # Python found a month or a day that does not exist
            return f"It is not a date: {error}."
    return "It is not a time: write it as 2026-01-31T12:00:00Z."


def _public_name(error: BaseException) -> str:
    """The name of the error in clew.errors; a store's private subclass is reported as its public parent."""
    classes = type(error).__mro__
    return next((each for each in classes if each.__module__.startswith("clew.domain.")), classes[0]).__name__


def _usage(error: TyperException, options: GlobalOptions | None) -> str:
    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    # Typer's parser of a command does not know its name; by then the options before the command are parsed.
    name = "" if options is None else options.command
    path = f"clew {name}".strip() if context is None else context.command_path
    parameters = [] if context is None else context.command.params
    for option in ("--db", "--tenant"):
        if f"No such option: {option}" in message:  # within the name of a command of two words
            return f"{message}: write it after the whole command, as in clew {name} list {option} NAME."
    if context is not None and context.parent is None and message.startswith("No such option: --json"):
        return "No such option: --json: write it after the command, as in clew threads --json."
    for words, plain in _PLAIN_WORDS:
        message = words.sub(plain, message)
    if re.match("No such option: -[^-]", message) and any(each.param_type_name == "argument" for each in parameters):
        return f"{message}. Write -- before words that begin with -: {path} -- -broken. Try '{path} --help'."
    return f"{message}{'' if message.endswith('?') else '.'} Try '{path} --help'."


def _bug(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1:]
    place = "".join(f" in {Path(frame.filename).name}, line {frame.lineno}" for frame in last)
    return f"this is a bug in Clew, please report it: {type(error).__name__}{place}: {str(error) or 'no details'}"
