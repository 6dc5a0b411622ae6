"""Errors: each one is a line of text or JSON on stderr, and gives an exit code."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

import typer
from typer import BadParameter, TyperException

from clew.cli import INTERRUPTED
from clew.cli.output import json_text, one_line, with_fields, without_middle

FAILED = 1
USAGE = 2
NOT_VERIFIED = 3

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


def report(error: BaseException, *, as_json: bool) -> int:
    """Write the error to stderr; returns the exit code."""
    if isinstance(error, TyperException):
        return _write("UsageError", _usage(error), error.exit_code, as_json=as_json)
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
        return _write(_public_name(error), str(error), USAGE if usage else FAILED, as_json=as_json)
    return _write(type(error).__name__, _bug(error), FAILED, as_json=as_json)


def _write(kind: str, message: str, code: int, *, as_json: bool) -> int:
    line = without_middle(one_line(message), LONGEST)
    text = json_text(with_fields({"error": {"type": kind, "message": line}})) if as_json else f"clew: {line}"
    typer.echo(text, err=True)
    return code


def _public_name(error: BaseException) -> str:
    """The name of the error in clew.errors; a store's private subclass is reported as its public parent."""
    classes = type(error).__mro__
    return next((each for each in classes if each.__module__.startswith("clew.domain.")), classes[0]).__name__


def _usage(error: TyperException) -> str:
    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    path = "clew" if context is None else context.command_path
    if any(f"No such option: {name}" in message for name in ("--db", "--tenant")):
        return f"{message}: write it before the command, as in clew --db sqlite:///clew.db threads."
    for words, plain in _PLAIN_WORDS:
        message = words.sub(plain, message)
    return f"{message}{'' if message.endswith('?') else '.'} Try '{path} --help'."


def _bug(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1:]
    place = "".join(f" in {Path(frame.filename).name}, line {frame.lineno}" for frame in last)
    return f"this is a bug in Clew, please report it: {type(error).__name__}{place}: {str(error) or 'no details'}"
