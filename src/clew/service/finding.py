"""Finding a thread by the beginning of its id."""

from __future__ import annotations

from functools import partial

from clew.domain.errors import AmbiguousThreadError, UnknownThreadError
from clew.domain.names import parse_stream_name
from clew.service.authorizing import permitted
from clew.service.core import Core, load
from clew.service.operations import Operation, read
from clew.service.thread_queries import PAGE

CANDIDATES = 5
"""Threads that an ambiguous prefix is answered with."""


def find(core: Core, prefix: str) -> Operation[str]:
    """The id of the one thread that is named so, or else whose id begins so; others' are not looked at.

    Raises UnknownThreadError, AmbiguousThreadError or InvalidNameError.
    """
    control = yield from load(core, prefix)
    if control.version and (yield from permitted(core, "list", [prefix], lambda id_: id_)):
        return prefix
    begun = core.prefix(prefix)
    names: list[str] = []
    after, limit, more = 0, CANDIDATES + 1, True
    while more and len(names) <= CANDIDATES:
        streams = yield from read(partial(core.log.streams, prefix=begun, after=after, limit=limit))
        found = [name.id for stream in streams if (name := parse_stream_name(stream.name)) is not None]
        names += yield from permitted(core, "list", found, lambda id_: id_)
        more = len(streams) == limit
        after, limit = streams[-1].key if streams else after, min(2 * limit, PAGE)  # most may be others'
    if not names:
        raise UnknownThreadError(prefix)
    if len(names) > 1:
        raise AmbiguousThreadError(prefix, names[:CANDIDATES], more=len(names) > CANDIDATES)
    return names[0]
