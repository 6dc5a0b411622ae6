"""What is said in a chat, line by line: typed at a prompt, or out of a pipe or a file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress

PROMPT = "> "


def prompted() -> Iterator[str]:
    """Lines from a terminal, edited and found again with the keys of readline, until Ctrl-D.

    Ctrl-C drops what was typed; when nothing was typed since the last one, it ends.
    """
    with suppress(ImportError):  # a Python without it has plainer lines
        import readline  # noqa: F401  # input() uses it when it is there
    again = False
    while True:
        try:
            line = input(PROMPT)
        except EOFError:
            sys.stdout.write("\n")
            return
        except KeyboardInterrupt:
            sys.stdout.write("\n")
            if again:
                return
            again = True
            sys.stdout.write("Ctrl-C again leaves, as Ctrl-D does.\n")
            continue
        again = False
        if line.strip():
            yield line


def piped() -> Iterator[str]:
    """Lines of standard input, as they come, those left out that say nothing. Raises InvalidContentError."""
    from clew.domain.errors import InvalidContentError

    if sys.stdin is None:  # it was closed before Python began
        return
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            text = line.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            message = f"stdin: byte {error.start} of line {number} is no UTF-8. Give the text in UTF-8."
            raise InvalidContentError(message) from None
        if text.strip():
            yield text
