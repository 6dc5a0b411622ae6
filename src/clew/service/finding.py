"""Finding a thread by the beginning of its id."""

from __future__ import annotations

from clew.domain.errors import AmbiguousThreadError, UnknownThreadError
from clew.domain.names import parse_stream_name
from clew.service.core import Core, load
from clew.service.operations import Operation, read

CANDIDATES = 5
"""Threads that an ambiguous prefix is answered with."""


def find(core: Core, prefix: str) -> Operation[str]:
    """The id of the one thread that is named so, or else whose id begins so.

    Raises UnknownThreadError, AmbiguousThreadError or InvalidNameError.
    """
    control = yield from load(core, prefix)
    if control.version:
        return prefix
    begun = core.prefix(prefix)
    streams = yield from read(lambda: core.log.streams(prefix=begun, limit=CANDIDATES + 1))
    names = [name.id for stream in streams if (name := parse_stream_name(stream.name)) is not None]
    if not names:
        raise UnknownThreadError(prefix)
    if len(names) > 1:
        raise AmbiguousThreadError(prefix, names[:CANDIDATES], more=len(names) > CANDIDATES)
    return names[0]
