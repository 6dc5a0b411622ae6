"""The commands within a chat: lines that begin with a slash."""

from __future__ import annotations

from collections.abc import Callable
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

import typer

from clew.cli.commands.branches import checkpoint_text, fork_text
from clew.cli.commands.history import print_thread, runs_of
from clew.cli.commands.threads import print_tree
from clew.cli.errors import WrongUsage
from clew.cli.options import Moment, parse_moment
from clew.cli.output import one_line, plural, shortened, write_json
from clew.cli.rendering import json_shapes
from clew.domain.runs.events import RunStarted

if TYPE_CHECKING:
    from clew.cli.chat.session import Chat
    from clew.domain.history import History, HistoryMessage
    from clew.sync.threads import Thread

BEGINNING = 60
"""Characters of an unknown command in its error."""


class Command(NamedTuple):
    """A command: its argument, its help and its function."""

    argument: str
    help: str
    run: Callable[[Chat, str], None]


def run_command(chat: Chat, line: str) -> None:
    """Run the command of a line. Raises WrongUsage for an unknown one, and what the command raises."""
    name, _, rest = line[1:].strip().partition(" ")
    command, given = COMMANDS.get(name), rest.strip()
    if command is None:
        unknown = f"{one_line(shortened(f'/{name}', BEGINNING))!r} is not a command; /help lists them. "
        raise WrongUsage(chat.context, f"{unknown}To send a message that begins with /, put a space before it")
    if given and not command.argument:
        raise WrongUsage(chat.context, f"/{name} takes no argument")
    command.run(chat, given)


def _fork(chat: Chat, title: str) -> None:
    before = chat.thread.id
    chat.fork(title or None)
    summary = chat.thread.summary()
    if chat.as_json:
        write_json(json_shapes.thread(summary))
    else:
        typer.echo(f"{fork_text(summary)} You are in it now. To go back: clew chat {quote(before)}")


def _checkpoint(chat: Chat, name: str) -> None:
    if not name:
        raise WrongUsage(chat.context, "/checkpoint needs a NAME")
    version = chat.thread.checkpoint(name)
    if chat.as_json:
        write_json(json_shapes.checkpoint(chat.thread.id, name, version))
    else:
        typer.echo(checkpoint_text(chat.thread.id, name, version))


def _rewind(chat: Chat, to: str) -> None:
    thread = chat.thread
    if to:
        when = parse_moment(to, "/rewind")
        target = thread.history(at=when.at, at_message=when.at_message)
    else:
        target = thread.history(at=_before(chat, thread, thread.history()))
    version = thread.rewind(to=target.version)
    if chat.as_json:
        write_json(json_shapes.rewound(target, version))
        return
    typer.echo(
        f"Back at version {target.version} with {plural(len(target), 'message')}. Nothing was deleted: "
        f"/rewind {version - 1} undoes it."
    )


def _before(chat: Chat, thread: Thread, history: History) -> int:
    """The version before the user's last message, and before the run that it started."""
    last: HistoryMessage | None = next((each for each in reversed(history.messages) if each.role == "user"), None)
    if last is None:
        raise WrongUsage(chat.context, "/rewind: there is no user message to go back to")
    before = next(thread.events(after=last.version - 2, at=last.version - 1))
    return before.version - 1 if isinstance(before.data, RunStarted) else before.version


def _tree(chat: Chat, _: str) -> None:
    id_ = chat.thread.id
    if chat.as_json:
        for branch in chat.conversations.tree(id_):
            write_json(json_shapes.branch(branch))
    else:
        print_tree(chat.conversations, id_, chat.console)


def _history(chat: Chat, _: str) -> None:
    if chat.as_json:
        found = chat.thread.history()
        write_json(json_shapes.history(found, runs_of(chat.conversations, found)))
    else:
        print_thread(chat.conversations, chat.thread.id, Moment(), chat.console)


def _help(chat: Chat, _: str) -> None:
    for name, command in COMMANDS.items():
        typer.echo(f"{f'/{name} {command.argument}':<24} {command.help}", err=chat.as_json)


def _quit(chat: Chat, _: str) -> None:
    chat.over = True


COMMANDS: dict[str, Command] = {
    "fork": Command("[TITLE]", "Continue in a new thread with the same past", _fork),
    "checkpoint": Command("NAME", "Name the current version of the thread", _checkpoint),
    "rewind": Command("[X]", "Go back before your last message, or to a version or a checkpoint", _rewind),
    "tree": Command("", "Draw the thread with its forks", _tree),
    "history": Command("", "Show the messages", _history),
    "help": Command("", "List these commands", _help),
    "quit": Command("", "Leave, as Ctrl-D does. Ctrl-C stops an answer", _quit),
}
