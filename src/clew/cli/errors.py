"""Failures: what is said of an error, in one line or in JSON, and the exit code that it gives."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

from typer import Context, TyperException

from clew.cli import INTERRUPTED
from clew.cli.output import json_text, one_line, with_names, without_middle

FAILED = 1
USAGE = 2
NOT_VERIFIED = 3

LONGEST = 2_000
"""Characters of a message: a URL or a name that is wrong may be of any length."""


class WrongUsage(TyperException):
    """A command line that is well formed, and cannot be meant so; the message ends without a full stop."""

    exit_code = USAGE

    def __init__(self, context: Context, message: str) -> None:
        super().__init__(message)
        self.ctx = context


def report(error: BaseException, *, as_json: bool) -> int:
    """Say on stderr what went wrong; returns the exit code."""
    if isinstance(error, TyperException):
        return _say("UsageError", _usage(error), error.exit_code, as_json=as_json)
    if isinstance(error, KeyboardInterrupt):
        return _say("KeyboardInterrupt", "interrupted.", INTERRUPTED, as_json=as_json)
    if isinstance(error, OSError):
        where = "" if error.filename is None else f"{error.filename}: "
        return _say(
            type(error).__name__,
            f"{where}{error.strerror or error}. Check where the files and the output go.",
            FAILED,
            as_json=as_json,
        )

    from clew.domain import errors

    if isinstance(error, errors.ClewError):
        wrong = isinstance(
            error, errors.StoreUrlError | errors.InvalidNameError | errors.InvalidTimeError | errors.InvalidSearchError
        )
        return _say(_public_name(error), str(error), USAGE if wrong else FAILED, as_json=as_json)
    return _say(type(error).__name__, _mistake(error), FAILED, as_json=as_json)


def _say(kind: str, message: str, code: int, *, as_json: bool) -> int:
    line = without_middle(one_line(message), LONGEST)
    if as_json:
        error = with_names({"error": {"type": kind, "message": line}})
        print(json_text(error), file=sys.stderr)  # noqa: T201  # where errors go
    else:
        print(f"clew: {line}", file=sys.stderr)  # noqa: T201  # where errors go
    return code


def _public_name(error: BaseException) -> str:
    """The error's name in Clew's tree of errors: a store's own subclass of it is nobody's business."""
    for each in type(error).__mro__:
        if each.__module__.startswith("clew.domain."):
            return each.__name__
    return type(error).__name__


def _usage(error: TyperException) -> str:
    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    path = "clew" if context is None else context.command_path
    if any(f"No such option: {name}" in message for name in ("--db", "--tenant")):
        return f"{message}: it stands before the command, as in clew --db sqlite:///clew.db threads."
    return f"{message}. Try '{path} --help'."


def _mistake(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f" in {Path(frame.filename).name}, line {frame.lineno}" for frame in last)
    said = str(error) or "no more is known"
    return f"this is a mistake in Clew, please report it: {type(error).__name__}{where}: {said}"
