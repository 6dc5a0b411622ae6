"""Commands that list threads and find messages: threads, tree and search."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from clew.cli.app import command
from clew.cli.candidates import thread_ids
from clew.cli.chat_flows import check_picture, print_flow
from clew.cli.errors import WrongUsage
from clew.cli.options import (
    DEFAULT_LIMIT,
    AllOption,
    AsJson,
    LimitOption,
    SaidSinceOption,
    SaidUntilOption,
    list_limit,
    no_threads,
    open_store,
    parse_label,
    parse_said,
    thread_argument,
)
from clew.cli.output import NO_THREADS, catch_up, one_line, safe, write_json_lines
from clew.cli.output import console as new_console
from clew.cli.rendering import json_shapes

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from clew.conversations import Conversations
    from clew.domain.event_types import Status
    from clew.domain.fork_tree import Branch
    from clew.domain.json_values import Json
    from clew.service.message_search import Hit
    from clew.service.thread_queries import ThreadSummary

FIRST_EVENTS = 8
"""Events at the start of a thread that may contain its first words."""

NAMED_FORKS = 3
"""Forks that a hit names; the others are counted."""


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
    said_since: SaidSinceOption = None,
    said_until: SaidUntilOption = None,
    limit: LimitOption = None,
    all_: AllOption = False,
    as_json: AsJson = False,
) -> None:
    """List the threads, forks under their parents."""
    checked = _check_status(status)
    required = dict(_required_label(label) for label in labels or ())
    most = list_limit(limit, all_=all_, as_json=as_json)
    said_start, said_end = parse_said(said_since, said_until)
    with open_store(context) as conversations:
        catch_up(conversations, "directory")
        wanted = partial(
            conversations.threads, status=checked, labels=required, said_since=said_start, said_until=said_end
        )
        if as_json:
            write_json_lines(map(json_shapes.thread, _list_threads(wanted, most, newest=newest)))
        else:
            is_filtered = bool(checked or required or said_start or said_end)
            nothing = "No matching threads." if is_filtered else no_threads(context)
            print_threads(conversations, new_console(), wanted, most, newest=newest, nothing=nothing)


@command(
    "clew tree",
    "clew tree 3f2a --json",
    "clew tree --chat 3f2a",
    "clew tree --chat 3f2a --format svg > chat.svg",
    heading="Read",
)
def tree(
    context: typer.Context,
    thread: Annotated[
        str | None,
        thread_argument("A thread's id, or a unique prefix of it: draws its whole tree. By default all trees."),
    ] = None,
    chat: Annotated[
        str | None,
        typer.Option(
            "--chat", metavar="CHAT", help="Draw the flow of a group chat instead.", autocompletion=thread_ids
        ),
    ] = None,
    form: Annotated[
        str, typer.Option("--format", metavar="F", help="With --chat: text, mermaid or svg. Default: text.")
    ] = "text",
    all_: AllOption = False,
    as_json: AsJson = False,
) -> None:
    """Draw threads with their forks and checkpoints, or the flow of a group chat."""
    check_picture(thread, chat, form, as_json=as_json)
    with open_store(context) as conversations:
        if chat is not None:
            shown = "json" if as_json else form
            print_flow(conversations, conversations.find(chat), shown, None if all_ else DEFAULT_LIMIT)
            return
        id_ = None if thread is None else conversations.find(thread)
        catch_up(conversations, "directory")
        if as_json:
            write_json_lines(map(json_shapes.branch, conversations.tree(id_)))
        else:
            most = list_limit(None, all_=all_, as_json=as_json)
            print_tree(conversations, id_, new_console(), most=most, nothing=no_threads(context))


@command(
    "clew search teapot refund",
    "clew search '\"green glaze\" teapot* -broken'",
    "clew search -- -broken 'teapot*'",
    "clew search teapot --thread 3f2a --said-since 30d",
    heading="Read",
)
def search(
    context: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(metavar="WORDS", help="All of these words; '\"a phrase\"', 'prefix*', '-without' (after --)."),
    ],
    thread: Annotated[
        str | None,
        typer.Option("--thread", metavar="THREAD", help="Only in this thread.", autocompletion=thread_ids),
    ] = None,
    said_since: SaidSinceOption = None,
    said_until: SaidUntilOption = None,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="Only the newest N.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Find messages by their words, newest first.

    Tool calls and results are searched, too.
    """
    said_start, said_end = parse_said(said_since, said_until)
    with open_store(context) as conversations:
        id_ = None if thread is None else conversations.find(thread)
        catch_up(conversations, "search")
        hits = conversations.search(
            " ".join(words), thread=id_, said_since=said_start, said_until=said_end, limit=limit
        )
        if as_json:
            write_json_lines(map(json_shapes.hit, hits))
            return
        print_hits(conversations, hits, new_console())
        if len(hits) == limit:
            typer.echo(f"\nThese are the newest {limit:,}. There may be more: `--limit N`.")


def print_threads(
    conversations: Conversations,
    console: Console,
    wanted: Callable[..., Iterator[ThreadSummary]] | None = None,
    most: int | None = DEFAULT_LIMIT,
    *,
    newest: bool = False,
    nothing: str = NO_THREADS,
) -> None:
    """Print the output of ``clew threads``: of all threads, or those that ``wanted`` lists; ``nothing`` without any."""
    from clew.cli.rendering.threads import thread_table

    listed = list(_list_threads(wanted or conversations.threads, None if most is None else most + 1, newest=newest))
    more = most is not None and len(listed) > most
    if more:
        listed = listed[:most] if newest else listed[1:]
    if listed:
        rows = [(summary, _first_words(conversations, summary)) for summary in listed]
        console.print(thread_table(rows, console, nested=not newest))
    else:
        console.print(nothing)
    if more:
        console.print(f"These are the newest {len(listed):,}. `--limit N` shows more, `--all` shows every one.")


def print_tree(
    conversations: Conversations,
    id_: str | None,
    console: Console,
    *,
    most: int | None = DEFAULT_LIMIT,
    nothing: str = NO_THREADS,
) -> None:
    """Print the output of ``clew tree``; ``nothing`` if the tenant has no threads."""
    from clew.cli.rendering.threads import tree_lines

    trees = _newest_trees(conversations, most) if id_ is None else [list(conversations.tree(id_))]
    more = id_ is None and most is not None and len(trees) > most
    previous_tall = False
    for number, branches in enumerate(trees[1:] if more else trees):
        tall = len(branches) > 1 or bool(branches[0].checkpoints)
        if number and (previous_tall or tall):
            console.print()
        previous_tall = tall
        title = partial(_tree_title, conversations, {branch.thread.id: branch.thread for branch in branches})
        for line in tree_lines(branches, console.width, title, marked=id_, most=most):
            console.print(line, soft_wrap=True)
    if not trees:
        console.print(nothing)
    if more:
        console.print(f"These are the newest {most:,} trees. `--all` draws every one.")


def _list_threads(
    wanted: Callable[..., Iterator[ThreadSummary]], limit: int | None, *, newest: bool
) -> Iterator[ThreadSummary]:
    """With ``newest`` the threads that changed last first; otherwise the newest in the order of their start."""
    if newest:
        return wanted(order="updated", newest_first=True, limit=limit)
    if limit is None:
        return wanted()
    return reversed(list(wanted(newest_first=True, limit=limit)))


def _newest_trees(conversations: Conversations, most: int | None) -> list[list[Branch[ThreadSummary]]]:
    """The newest trees, the newest last. If more than ``most`` exist, there is one more than ``most``."""
    trees: list[list[Branch[ThreadSummary]]] = []
    for branch in conversations.tree(newest_first=True):
        if branch.depth:
            trees[-1].append(branch)
        elif most is not None and len(trees) > most:
            break
        else:
            trees.append([branch])
    trees.reverse()
    return trees


def _check_status(status: str | None) -> Status | None:
    from clew.domain.event_types import Status

    if status is None:
        return None
    statuses: dict[str, Status] = {each: each for each in get_args(Status)}
    if status not in statuses:
        raise WrongUsage(f"--status {status!r} does not exist. Give {', '.join(statuses)}")
    return statuses[status]


def _required_label(text: str) -> tuple[str, Json]:
    name, value = parse_label(text, removes=False)
    if value is None:
        raise WrongUsage(f"--label {text!r} has no value. Write NAME=VALUE")
    return name, value


def _tree_title(conversations: Conversations, tree: Mapping[str, ThreadSummary], thread: ThreadSummary) -> Text:
    """A thread's title. Without one, or in a fork with its parent's title, the first words after the cut."""
    from rich.text import Text

    parent = None if thread.parent_id is None else tree.get(thread.parent_id)
    if thread.title is not None and (parent is None or parent.title != thread.title):
        return Text(one_line(thread.title))
    return Text(_first_words(conversations, thread, after=thread.forked_at or 0) or "", style="dim italic")


def _first_words(conversations: Conversations, summary: ThreadSummary, after: int | None = None) -> str | None:
    """The first words of the user in a thread without a title, or after a version. None for a deleted thread."""
    from clew.cli.rendering.conversation import message_start
    from clew.domain.events import MessageAppended

    if (summary.title is not None and after is None) or summary.status == "deleted":
        return None
    first = after or 0
    events = conversations.thread(summary.id).events(after=first, at=min(first + FIRST_EVENTS, summary.version))
    messages = [event.data.message for event in events if isinstance(event.data, MessageAppended)]
    user_messages = [message for message in messages if message.role == "user"]
    return next((message_start(message) for message in user_messages or messages), None)


def print_hits(conversations: Conversations, hits: Sequence[Hit], console: Console) -> None:
    """Print the output of ``clew search``: the messages by thread, the thread with the newest hit first."""
    from rich.text import Text

    if not hits:
        console.print("No matching messages.")
    by_thread: dict[str, list[Hit]] = {}
    for hit in hits:
        by_thread.setdefault(hit.thread_id, []).append(hit)
    for number, (id_, thread_hits) in enumerate(by_thread.items()):
        if number:
            console.print()
        title = conversations.thread(id_).summary().title
        heading = Text.assemble((one_line(id_), "bold"), "" if title is None else f"  {one_line(title)}")
        heading.truncate(console.width, overflow="ellipsis")
        console.print(heading, soft_wrap=True)
        for hit in thread_hits:
            for line in _hit_lines(hit):
                console.print(line)


def _hit_lines(hit: Hit) -> Iterator[RenderableType]:
    from clew.cli.rendering.conversation import message_heading

    yield message_heading(hit.number, hit)
    yield _indented(*((_one_line(part.text), "bold black on yellow" if part.found else "") for part in hit.snippet))
    if hit.fork_count:
        forks = ", ".join(one_line(fork) for fork in hit.forks[:NAMED_FORKS])
        more = f" and {hit.fork_count - NAMED_FORKS:,} more" if hit.fork_count > NAMED_FORKS else ""
        yield _indented((f"also in {forks}{more}", "dim"))
    yield _indented((f"clew show {shlex.quote(one_line(hit.thread_id))} --at {hit.version}", "dim"))


def _indented(*parts: tuple[str, str]) -> RenderableType:
    from rich.padding import Padding
    from rich.text import Text

    return Padding(Text.assemble(*parts, overflow="fold"), (0, 0, 0, 4), expand=False)


def _one_line(text: str) -> str:
    """Like one_line(), but keeps a space at either end."""
    return safe(re.sub(r"\s+", " ", text))
