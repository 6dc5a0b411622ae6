"""Commands that show which threads there are: threads and tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from clew.cli.candidates import thread_ids
from clew.cli.changes import named_label
from clew.cli.errors import WrongUsage
from clew.cli.options import AllOption, AsJson, LimitOption, opened
from clew.cli.output import catch_up, one_line, write_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from clew.conversations import Conversations
    from clew.domain.event_types import Status
    from clew.domain.json_values import Json
    from clew.domain.views.fork_tree import Branch
    from clew.service.thread_queries import ThreadSummary

FIRST_EVENTS = 8
"""Events at the beginning of a thread among which its first words are looked for."""

SHOWN = 50
"""Threads, trees and entries that are shown to people who do not say how many; the newest."""


def threads(
    context: typer.Context,
    status: Annotated[
        str | None,
        typer.Option("--status", metavar="S", help="Only those that are active, suspended, ended or deleted."),
    ] = None,
    labels: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="NAME=VALUE", help="Only those with this label, and others given."),
    ] = None,
    newest: Annotated[bool, typer.Option("--newest", help="Those that changed last come first.")] = False,
    limit: LimitOption = None,
    all_: AllOption = False,
    as_json: AsJson = False,
) -> None:
    """List the threads, forks under their parents."""
    which = _which(context, status)
    having = dict(_having(context, each) for each in labels or ())
    with opened(context) as conversations:
        catch_up(conversations, "directory")
        if as_json:
            from clew.cli import json_shapes

            for summary in _listed(conversations, which, having, limit, newest=newest):
                write_json(json_shapes.thread(summary))
        else:
            from clew.cli import rendering

            most = None if all_ else limit or SHOWN
            print_threads(conversations, rendering.console(), which, having, most, newest=newest)


def tree(
    context: typer.Context,
    thread: Annotated[
        str | None,
        typer.Argument(
            metavar="THREAD",
            help="A thread's id, or the beginning of it: the tree that it is in. By default all trees.",
            autocompletion=thread_ids,
        ),
    ] = None,
    all_: AllOption = False,
    as_json: AsJson = False,
) -> None:
    """Draw threads with their forks, checkpoints and heads."""
    with opened(context) as conversations:
        id_ = None if thread is None else conversations.find(thread)
        catch_up(conversations, "directory")
        if as_json:
            from clew.cli import json_shapes

            for branch in conversations.tree(id_):
                write_json(json_shapes.branch(branch))
        else:
            from clew.cli import rendering

            print_tree(conversations, id_, rendering.console(), most=None if all_ else SHOWN)


def print_threads(
    conversations: Conversations,
    console: Console,
    status: Status | None = None,
    labels: dict[str, Json] | None = None,
    most: int | None = SHOWN,
    *,
    newest: bool = False,
) -> None:
    """Write what ``clew threads`` shows to people."""
    from clew.cli import rendering

    found = list(_listed(conversations, status, labels or {}, None if most is None else most + 1, newest=newest))
    more = most is not None and len(found) > most
    if more:
        found = found[:most] if newest else found[1:]
    if found:
        shown = [(summary, _beginning(conversations, summary)) for summary in found]
        console.print(rendering.thread_table(shown, console, nested=not newest))
    elif status or labels:
        console.print("There are no such threads.")
    else:
        console.print("There are no threads. `clew import FILE` brings some in.")
    if more:
        console.print(f"These are the newest {len(found):,}. `--limit N` shows more of them, `--all` every one.")


def print_tree(conversations: Conversations, id_: str | None, console: Console, *, most: int | None = SHOWN) -> None:
    """Write what ``clew tree`` shows to people."""
    from clew.cli.thread_rendering import drawn

    found = _newest_trees(conversations, most) if id_ is None else [list(conversations.tree(id_))]
    more = id_ is None and most is not None and len(found) > most
    tall = False
    for number, branches in enumerate(found[1:] if more else found):
        before, tall = tall, len(branches) > 1 or bool(branches[0].checkpoints)
        if number and (before or tall):
            console.print()
        parents = {branch.thread.id: branch.thread for branch in branches}
        for line in drawn(
            branches,
            console.width,
            lambda thread, there=parents: _said(conversations, thread, there),  # type: ignore[misc]  # bound for the loop
            marked=id_,
            most=most,
        ):
            console.print(line, soft_wrap=True)
    if not found:
        console.print("There are no threads. `clew import FILE` brings some in.")
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
    """The threads, those that changed last first; else in the order in which they began, the newest if not all."""
    if newest:
        return conversations.threads(status=status, labels=labels, order="updated", newest_first=True, limit=limit)
    if limit is None:
        return conversations.threads(status=status, labels=labels)
    found = list(conversations.threads(status=status, labels=labels, newest_first=True, limit=limit))
    return reversed(found)


def _newest_trees(conversations: Conversations, most: int | None) -> list[list[Branch[ThreadSummary]]]:
    """The newest trees, one more than are shown if there are; the newest comes last."""
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


def _which(context: typer.Context, status: str | None) -> Status | None:
    from clew.cli.rendering import STATUS_STYLES

    if status is None:
        return None
    for each in STATUS_STYLES:
        if each == status:
            return each
    raise WrongUsage(context, f"--status {status!r} is none. Say {', '.join(STATUS_STYLES)}")


def _having(context: typer.Context, text: str) -> tuple[str, Json]:
    name, value = named_label(context, text)
    if value is None:
        raise WrongUsage(context, f"--label {text!r} names no value. Write NAME=VALUE")
    return name, value


def _said(conversations: Conversations, thread: ThreadSummary, there: Mapping[str, ThreadSummary]) -> Text:
    """What a thread is called in a tree; one without a name of its own begins so, a fork where it goes its own way."""
    from rich.text import Text

    parent = None if thread.parent_id is None else there.get(thread.parent_id)
    if thread.title is not None and (parent is None or parent.title != thread.title):
        return Text(one_line(thread.title))
    return Text(_beginning(conversations, thread, after=thread.forked_at or 0) or "", style="dim italic")


def _beginning(conversations: Conversations, summary: ThreadSummary, after: int | None = None) -> str | None:
    """How a thread without a title begins: what the first user says. None for a deleted thread."""
    from clew.cli.rendering import beginning
    from clew.domain.events import MessageAppended

    if (summary.title is not None and after is None) or summary.status == "deleted":
        return None
    first = after or 0
    begun = conversations.thread(summary.id).events(after=first, at=min(first + FIRST_EVENTS, summary.version))
    messages = [event.data.message for event in begun if isinstance(event.data, MessageAppended)]
    users = [message for message in messages if message.role == "user"]
    return next((beginning(message) for message in users or messages), None)
