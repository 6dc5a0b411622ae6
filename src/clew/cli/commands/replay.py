"""The command that replays a thread: in a stepper on a terminal, otherwise as a list of steps: replay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from clew.cli.command import command
from clew.cli.options import AsJson, AtOption, ThreadArgument, open_store, parse_moment
from clew.cli.output import console as new_console
from clew.cli.output import write_json

if TYPE_CHECKING:
    from clew.cli.stepper.state import Stepper
    from clew.cli.stepper.terminal import Screen
    from clew.domain.history import Step
    from clew.sync.threads import Thread

NEAR = 100
"""Events that are read at once in the search for the next or the previous message."""


@command("clew replay 3f2a", 'clew replay 3f2a --at "before refund"', "clew replay 3f2a --json", heading="Read")
def replay(context: typer.Context, thread: ThreadArgument, at: AtOption = None, as_json: AsJson = False) -> None:
    """Step through a thread, forward and back. Keys: → ← and ? for all of them; q quits."""
    with open_store(context) as conversations:
        found, when = conversations.thread(conversations.find(thread)), parse_moment(at)
        first = found.step(at=when.at, at_message=when.at_message)
        if as_json:
            from clew.cli.rendering import json_shapes

            for step in steps(found, first):
                write_json(json_shapes.step(step))
            return

        from clew.cli.stepper import terminal

        if terminal.is_available():
            with terminal.full_screen() as screen:
                step_through(found, first, screen)
        else:
            from clew.cli.rendering.events import lookup
            from clew.cli.stepper import frames

            console, look = new_console(), lookup(lambda _: found)
            for step in steps(found, first):
                for line in frames.block(step, found.id, look):
                    console.print(line, soft_wrap=True)


def steps(thread: Thread, last: Step) -> Iterator[Step]:
    """Every step up to ``last``, in order, in one pass. Each contains only the message that it appended."""
    from clew.domain.decider_state import Control, advance
    from clew.domain.history import Step, as_message

    control = Control()
    for event in thread.events(at=last.version):
        control, said = advance(control, event), as_message(event)
        yield Step(event, control, last.head, () if said is None else (said,))


def step_through(thread: Thread, step: Step, screen: Screen) -> None:
    """Show a step, and then the steps that the user goes to, until the user quits."""
    from clew.cli.rendering.events import lookup
    from clew.cli.stepper.frames import frame
    from clew.cli.stepper.state import Stepper, press, with_newest

    stepper, look = Stepper(step.version, step.newest), lookup(lambda _: thread)
    while not stepper.ended:
        size = screen.size
        screen.draw(frame(step, stepper, thread.id, size.columns, size.lines, look))
        pressed = screen.keys()
        summary = thread.summary()
        stepper = with_newest(stepper, summary.version, tuple(sorted(set(summary.checkpoints.values()))))
        for key in pressed:
            if not stepper.ended:
                stepper = _after_search(thread, press(stepper, key))
        step = thread.step(at=stepper.version, last=max(screen.size.lines, 1))


def _after_search(thread: Thread, stepper: Stepper) -> Stepper:
    """The stepper after the search that the key started, if it started one."""
    if not stepper.seeking:
        return stepper

    from clew.cli.stepper.state import after_search

    seek = next_message if stepper.seeking > 0 else previous_message
    return after_search(stepper, seek(thread, stepper.version))


def next_message(thread: Thread, version: int) -> int | None:
    """The first version after this one at which a message was appended, on the path or not."""
    newest = thread.version
    for after in range(version, newest, NEAR):
        versions = _messages(thread, after, min(after + NEAR, newest))
        if versions:
            return versions[0]
    return None


def previous_message(thread: Thread, version: int) -> int | None:
    """The last version before this one at which a message was appended, on the path or not."""
    for upto in range(version - 1, 0, -NEAR):
        versions = _messages(thread, max(0, upto - NEAR), upto)
        if versions:
            return versions[-1]
    return None


def _messages(thread: Thread, after: int, upto: int) -> list[int]:
    from clew.domain.events import MESSAGE_APPENDED

    return [event.version for event in thread.events(after=after, at=upto) if event.type == MESSAGE_APPENDED]
