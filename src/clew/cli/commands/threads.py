"""Commands that list threads: threads and tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from clew.cli.candidates import thread_ids
from clew.cli.command import command
from clew.cli.errors import WrongUsage
from clew.cli.options import AllOption, AsJson, LimitOption, open_store, parse_label
from clew.cli.output import NO_THREADS, catch_up, one_line, write_json
from clew.cli.output import console as new_console

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from clew.conversations import Conversations
    from clew.domain.event_types import Status
    from clew.domain.fork_tree import Branch
    from clew.domain.json_values import Json
    from clew.service.thread_queries import ThreadSummary

FIRST_EVENTS = 8
"""Events at the start of a thread in which its first words are looked for."""

SHOWN = 50
"""Threads or trees without --limit."""


@command(
    "clew threads",
    "clew threads --label topic=refund --newest",
    "clew threads --json | jq -r .thread_id",
    heading="Read",
)
def threads(
    context: typer.Context,
    status: Annotated[
        str | None,
        typer.Option("--status", metavar="S", help="Only threads that are active, suspended, ended or deleted."),
    ] = None,
    labels: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="NAME=VALUE", help="Only threads with this label; repeatable."),
    ] = None,
    newest: Annotated[bool, typer.Option("--newest", help="Sort by the last change, newest first.")] = False,
    limit: LimitOption = None,
    all_: AllOption = False,
    as_json: AsJson = False,
) -> None:
    """List the threads, forks under their parents."""
    checked = _checked_status(context, status)
    wanted = dict(_wanted_label(context, each) for each in labels or ())
    with open_store(context) as conversations:
        catch_up(conversations, "directory")
        if as_json:
            from clew.cli.rendering import json_shapes

            for summary in _listed(conversations, checked, wanted, limit, newest=newest):
                write_json(json_shapes.thread(summary))
        else:
            most = None if all_ else limit or SHOWN
            print_threads(conversations, new_console(), checked, wanted, most, newest=newest)


@command("clew tree", "clew tree 3f2a --json", heading="Read")
def tree(
    context: typer.Context,
    thread: Annotated[
        str | None,
        typer.Argument(
            metavar="THREAD",
            help="A thread's id, or a unique prefix of it: draws the tree that it belongs to. By default all trees.",
            autocompletion=thread_ids,
        ),
    ] = None,
    all_: AllOption = False,
    as_json: AsJson = False,
) -> None:
    """Draw threads with their forks and checkpoints."""
    with open_store(context) as conversations:
        id_ = None if thread is None else conversations.find(thread)
        catch_up(conversations, "directory")
        if as_json:
            from clew.cli.rendering import json_shapes

            for branch in conversations.tree(id_):
                write_json(json_shapes.branch(branch))
        else:
            print_tree(conversations, id_, new_console(), most=None if all_ else SHOWN)


def print_threads(
    conversations: Conversations,
    console: Console,
    status: Status | None = None,
    labels: dict[str, Json] | None = None,
    most: int | None = SHOWN,
    *,
    newest: bool = False,
) -> None:
    """Print what ``clew threads`` shows."""
    from clew.cli.rendering.threads import thread_table

    found = list(_listed(conversations, status, labels or {}, None if most is None else most + 1, newest=newest))
    more = most is not None and len(found) > most
    if more:
        found = found[:most] if newest else found[1:]
    if found:
        shown = [(summary, _first_words(conversations, summary)) for summary in found]
        console.print(thread_table(shown, console, nested=not newest))
    else:
        console.print("No matching threads." if status or labels else NO_THREADS)
    if more:
        console.print(f"These are the newest {len(found):,}. `--limit N` shows more, `--all` shows every one.")


def print_tree(conversations: Conversations, id_: str | None, console: Console, *, most: int | None = SHOWN) -> None:
    """Print what ``clew tree`` shows."""
    from clew.cli.rendering.threads import tree_lines

    found = _newest_trees(conversations, most) if id_ is None else [list(conversations.tree(id_))]
    more = id_ is None and most is not None and len(found) > most
    before_tall = False
    for number, branches in enumerate(found[1:] if more else found):
        tall = len(branches) > 1 or bool(branches[0].checkpoints)
        if number and (before_tall or tall):
            console.print()
        before_tall = tall
        name = partial(_tree_name, conversations, {branch.thread.id: branch.thread for branch in branches})
        for line in tree_lines(branches, console.width, name, marked=id_, most=most):
            console.print(line, soft_wrap=True)
    if not found:
        console.print(NO_THREADS)
    if more:
        console.print(f"These are the newest {most:,} trees. `--all` draws every one.")


def _listed(
    conversations: Conversations,
    status: Status | None,
    labels: dict[str, Json],
    limit: int | None,
    *,
    newest: bool,
) -> Iterator[ThreadSummary]:
    """With ``newest`` the threads that changed last first; otherwise the newest in the order of their start."""
    if newest:
        return conversations.threads(status=status, labels=labels, order="updated", newest_first=True, limit=limit)
    if limit is None:
        return conversations.threads(status=status, labels=labels)
    return reversed(list(conversations.threads(status=status, labels=labels, newest_first=True, limit=limit)))


def _newest_trees(conversations: Conversations, most: int | None) -> list[list[Branch[ThreadSummary]]]:
    """The newest trees, one more than ``most`` if there are, the newest last."""
    found: list[list[Branch[ThreadSummary]]] = []
    for branch in conversations.tree(newest_first=True):
        if branch.depth:
            found[-1].append(branch)
        elif most is not None and len(found) > most:
            break
        else:
            found.append([branch])
    found.reverse()
    return found


def _checked_status(context: typer.Context, status: str | None) -> Status | None:
    from clew.domain.event_types import Status

    if status is None:
        return None
    known: dict[str, Status] = {each: each for each in get_args(Status)}
    if status not in known:
        raise WrongUsage(context, f"--status {status!r} does not exist. Give {', '.join(known)}")
    return known[status]


def _wanted_label(context: typer.Context, text: str) -> tuple[str, Json]:
    name, value = parse_label(context, text)
    if value is None:
        raise WrongUsage(context, f"--label {text!r} has no value. Write NAME=VALUE")
    return name, value


def _tree_name(conversations: Conversations, tree: Mapping[str, ThreadSummary], thread: ThreadSummary) -> Text:
    """A thread's title. Without one, or in a fork with its parent's title, the first words after the cut."""
    from rich.text import Text

    parent = None if thread.parent_id is None else tree.get(thread.parent_id)
    if thread.title is not None and (parent is None or parent.title != thread.title):
        return Text(one_line(thread.title))
    return Text(_first_words(conversations, thread, after=thread.forked_at or 0) or "", style="dim italic")


def _first_words(conversations: Conversations, summary: ThreadSummary, after: int | None = None) -> str | None:
    """The first words of the user in a thread without a title, or after a version. None for a deleted thread."""
    from clew.cli.rendering.messages import beginning
    from clew.domain.events import MessageAppended

    if (summary.title is not None and after is None) or summary.status == "deleted":
        return None
    first = after or 0
    events = conversations.thread(summary.id).events(after=first, at=min(first + FIRST_EVENTS, summary.version))
    messages = [event.data.message for event in events if isinstance(event.data, MessageAppended)]
    users = [message for message in messages if message.role == "user"]
    return next((beginning(message) for message in users or messages), None)
