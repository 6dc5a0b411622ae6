"""Following live: events on the terminal, or in a pipe, as they are recorded."""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from clew.cli import INTERRUPTED
from clew.cli.text import write_json

if TYPE_CHECKING:
    from clew.conversations import Conversations
    from clew.domain.events import Event
    from clew.service.subscription import Subscription

PATIENCE = 0.5
"""Seconds after which it is looked whether anybody still reads the output."""


def follow(conversations: Conversations, id_: str | None, after: int, *, as_json: bool) -> None:
    """Write the events of a thread, or of all of them, those that are there and then those that come.

    It ends when the store is closed, with Ctrl-C (SystemExit, as quiet as ``tail -f``), or with BrokenPipeError when
    nobody reads the output any more.
    """
    write = _json if as_json else _line(conversations, of_store=id_ is None)
    try:
        followed = conversations if id_ is None else conversations.thread(id_)
        with followed.subscribe(after=after) as events:
            for event in _while_read(events):
                write(event)
                sys.stdout.flush()
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


def _while_read(events: Subscription) -> Iterator[Event]:
    """The events, as long as the output has a reader: a pipe does not say by itself that it has none."""
    while True:
        event = events.wait(PATIENCE)
        if event is not None:
            yield event
        elif _nobody_reads():
            raise BrokenPipeError


def _nobody_reads() -> bool:
    try:
        output = sys.stdout.fileno()
        mode = os.fstat(output).st_mode
    except (OSError, ValueError):  # an output without a file behind it
        return False
    if not stat.S_ISFIFO(mode) and not stat.S_ISSOCK(mode):
        return False
    poll = select.poll()
    poll.register(output, 0)
    return any(happened & (select.POLLERR | select.POLLHUP) for _, happened in poll.poll(0))


def _json(event: Event) -> None:
    from clew.cli import shapes

    write_json(shapes.event(event))


def _line(conversations: Conversations, *, of_store: bool) -> Callable[[Event], None]:
    """Writes an event on a line of its own, cut to the width of the terminal if there is one."""
    from clew.cli import rendering
    from clew.cli.named_events import lookup

    console, look = rendering.console(), lookup(conversations.thread)

    def write(event: Event) -> None:
        line = rendering.event_line(event, look, of_store=of_store)
        if console.is_terminal:
            line.truncate(console.width, overflow="ellipsis")
        console.print(line, soft_wrap=True)

    return write
