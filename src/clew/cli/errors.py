"""Errors: each as one line of text or JSON on stderr, and the exit code that it leads to."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

from typer import Context, TyperException

from clew.cli import INTERRUPTED
from clew.cli.output import json_text, one_line, with_fields, without_middle

FAILED = 1
USAGE = 2
NOT_VERIFIED = 3

LONGEST = 2_000
"""Characters of a message: a wrong URL or name can have any length."""


class WrongUsage(TyperException):
    """A command line with invalid or contradictory values. The message ends without a full stop."""

    exit_code = USAGE

    def __init__(self, context: Context, message: str) -> None:
        super().__init__(message)
        self.ctx = context


def report(error: BaseException, *, as_json: bool) -> int:
    """Write the error to stderr; returns the exit code."""
    if isinstance(error, TyperException):
        return _write("UsageError", _usage(error), error.exit_code, as_json=as_json)
    if isinstance(error, KeyboardInterrupt):
        return _write("KeyboardInterrupt", "interrupted.", INTERRUPTED, as_json=as_json)
    if isinstance(error, OSError):
        where = "" if error.filename is None else f"{error.filename}: "
        return _write(
            type(error).__name__,
            f"{where}{error.strerror or error}. Check the paths of the files and the output.",
            FAILED,
            as_json=as_json,
        )

    from clew.domain import errors

    if isinstance(error, errors.ClewError):
        wrong = isinstance(
            error, errors.StoreUrlError | errors.InvalidNameError | errors.InvalidTimeError | errors.InvalidSearchError
        )
        return _write(_public_name(error), str(error), USAGE if wrong else FAILED, as_json=as_json)
    return _write(type(error).__name__, _bug(error), FAILED, as_json=as_json)


def _write(kind: str, message: str, code: int, *, as_json: bool) -> int:
    line = without_middle(one_line(message), LONGEST)
    if as_json:
        error = with_fields({"error": {"type": kind, "message": line}})
        print(json_text(error), file=sys.stderr)  # noqa: T201  # stderr is where errors go
    else:
        print(f"clew: {line}", file=sys.stderr)  # noqa: T201  # stderr is where errors go
    return code


def _public_name(error: BaseException) -> str:
    """The name of the error in clew.errors; a store's private subclass is reported as its public parent."""
    for each in type(error).__mro__:
        if each.__module__.startswith("clew.domain."):
            return each.__name__
    return type(error).__name__


def _usage(error: TyperException) -> str:
    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    path = "clew" if context is None else context.command_path
    if any(f"No such option: {name}" in message for name in ("--db", "--tenant")):
        return f"{message}: write it before the command, as in clew --db sqlite:///clew.db threads."
    return f"{message}. Try '{path} --help'."


def _bug(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f" in {Path(frame.filename).name}, line {frame.lineno}" for frame in last)
    return f"this is a bug in Clew, please report it: {type(error).__name__}{where}: {str(error) or 'no details'}"
