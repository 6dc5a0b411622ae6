"""What commands show to people: tables and conversations, as wide as the terminal, in colour where there is any."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from clew.cli.event_rendering import (
    Lookup,
    context_words,
    memory_words,
    nowhere,
    partial_answer,
    run_lines,
    run_words,
    type_of,
)
from clew.cli.output import one_line, safe, shortened, shown_time
from clew.domain import events as happened
from clew.domain import messages as said_as
from clew.domain.context.events import ContextEvent
from clew.domain.events import StateClaimed
from clew.domain.memory.events import MemoryEvent
from clew.domain.runs.events import RunEvent, RunStarted

if TYPE_CHECKING:
    from clew.domain.event_types import Status
    from clew.domain.events import Event
    from clew.domain.history import History, HistoryMessage
    from clew.domain.json_values import Json
    from clew.domain.ports import Verdict
    from clew.domain.runs.summaries import RunSummary
    from clew.service.thread_queries import ThreadSummary

ROLE_STYLES = {"system": "magenta", "developer": "magenta", "user": "green", "assistant": "cyan", "tool": "yellow"}
STATUS_STYLES: dict[Status, str] = {"active": "green", "suspended": "yellow", "ended": "blue", "deleted": "red"}

BEGINNING = 200
"""Characters of a message that a list can show at the most."""

INDENT = "    "

ROOMY = 72
"""Columns of a terminal from which on a list says everything."""

LONGEST_URI = 120
"""Characters of an address; what is longer is a file in the address itself."""


def console(*, stderr: bool = False, width: int | None = None, quiet: bool = False) -> Console:
    """Where people read: nothing in the text is taken for markup, emoji codes or numbers to be coloured."""
    return Console(stderr=stderr, width=width, quiet=quiet, markup=False, emoji=False, highlight=False)


def thread_table(
    threads: Sequence[tuple[ThreadSummary, str | None]], console: Console, *, nested: bool = True
) -> Table:
    """A line for each thread, forks under their parents; with each comes how it begins, for want of a title.

    Not ``nested`` they stay in the order given.
    """
    roomy = console.width >= ROOMY
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), expand=True)
    table.add_column("Thread", overflow="fold", no_wrap=False, min_width=12)
    table.add_column("Title", overflow="ellipsis", no_wrap=True, ratio=1, min_width=8)
    table.add_column("Status", no_wrap=True)
    table.add_column("Msgs", justify="right", no_wrap=True)
    if roomy:
        table.add_column("Ver", justify="right", no_wrap=True)
        table.add_column("Updated", no_wrap=True)
    for depth, summary, beginning in _forks_under_parents(threads) if nested else ((0, *each) for each in threads):
        branch = "  " * (depth - 1) + "└ " if depth else ""
        table.add_row(
            Text.assemble((branch, "dim"), (one_line(summary.id), "bold")),
            Text(beginning or "", style="dim italic") if summary.title is None else Text(one_line(summary.title)),
            Text(summary.status, style=STATUS_STYLES[summary.status]),
            str(summary.messages),
            *((str(summary.version), shown_time(summary.updated_at)[:16]) if roomy else ()),
        )
    return table


def _forks_under_parents(
    threads: Sequence[tuple[ThreadSummary, str | None]],
) -> Iterator[tuple[int, ThreadSummary, str | None]]:
    """Depth first, siblings in the order in which they were made; without recursion, for forks of any depth."""
    there = {summary.id for summary, _ in threads}
    children: dict[str | None, list[tuple[ThreadSummary, str | None]]] = {}
    for summary, beginning in threads:
        parent = summary.parent_id if summary.parent_id in there else None
        children.setdefault(parent, []).append((summary, beginning))
    waiting = [(0, *each) for each in reversed(children.get(None, []))]
    while waiting:
        depth, summary, beginning = waiting.pop()
        yield min(depth, 5), summary, beginning
        waiting += [(depth + 1, *each) for each in reversed(children.get(summary.id, []))]


def conversation(
    found: History, title: str | None, newest: int, console: Console, runs: Sequence[RunSummary] = ()
) -> Iterator[Text]:
    """The lines of a thread's messages at a version, whole; wrapped on a terminal, and left as they are elsewhere.

    Each run has a line of its own, after the last message that it added.
    """
    count = len(found)
    place = f"version {found.version}" + ("" if found.version == newest else f" of {newest}")
    if title is not None:
        yield Text(one_line(title), style="bold")
    yield Text(f"{one_line(found.thread_id)} · {place} · {count} message{'' if count == 1 else 's'}", style="dim")
    messages = {said.version: said for said in found}
    partial = {each.message: each.reason for run in runs for each in run.interrupted}
    left = list(reversed(runs))
    for number, said in enumerate(found, start=1):
        while left and left[-1].last_version < said.version:
            yield from _run(left.pop(), messages, console)
        yield Text()
        yield heading(number, said)
        for content in contents(said):
            yield from _indented(content, console)
        if said.version in partial:
            yield from _indented(partial_answer(partial[said.version]), console)
    while left:
        yield from _run(left.pop(), messages, console)


def _run(run: RunSummary, messages: Mapping[int, HistoryMessage], console: Console) -> Iterator[Text]:
    yield Text()
    for line in run_lines(run, messages):
        yield from _indented(line, console)


def _indented(text: Text, console: Console) -> Iterator[Text]:
    width = max(console.width - len(INDENT), len(INDENT))
    lines = text.wrap(console, width, overflow="fold") if console.is_terminal else text.split(allow_blank=True)
    for line in lines:
        line.rstrip()
        yield Text(INDENT).append_text(line) if line else line


def heading(number: int, said: HistoryMessage) -> Text:
    """The line above a message: its number in the conversation, who speaks, its version and its time."""
    return Text.assemble(
        (f"{number:>3} ", "dim"),
        (said.role, f"bold {ROLE_STYLES[said.role]}"),
        "" if said.author is None else f" {one_line(said.author)}",
        (f"  version {said.version} · {shown_time(said.time)}", "dim"),
    )


def contents(said: HistoryMessage) -> Iterator[Text]:
    """What a message holds, whole, each content as a text of one line or many."""
    if said.redacted:
        yield Text("[redacted]", style="dim italic")
    elif not said.contents:
        yield Text("[no content]", style="dim italic")
    for content in said.contents:
        yield content_text(content)


def content_text(content: said_as.Content) -> Text:
    """A content, whole and safe for a terminal."""
    match content:
        case said_as.Text(text=text):
            return Text(safe(text))
        case said_as.Reasoning(text=text):
            return Text(safe(text), style="dim italic")
        case said_as.Media(uri=uri, media_type=kind):
            return Text(f"[{one_line(kind or 'media')}: {one_line(_address(uri))}]", style="blue")
        case said_as.FunctionCall():
            return _call("→", content)
        case said_as.FunctionResult(name=name, result=result):
            by = "" if name is None else f"{one_line(name)}: "
            return Text.assemble(("← ", "yellow"), (by, "bold yellow"), safe(_json(result)))
        case said_as.ApprovalRequest(call=call):
            return _call("approve?", call)
        case said_as.ApprovalResponse(approved=approved, reason=reason):
            word, style = ("approved", "bold green") if approved else ("rejected", "bold red")
            return Text(word if reason is None else f"{word}: {safe(reason)}", style=style)
        case said_as.Raw(value=value):
            return Text(safe(_json(value)), style="dim")


def _call(sign: str, call: said_as.FunctionCall) -> Text:
    return Text.assemble((f"{sign} ", "cyan"), (one_line(call.name), "bold cyan"), f"({safe(call.arguments)})")


def _address(uri: str) -> str:
    if len(uri) <= LONGEST_URI:
        return uri
    return f"{uri[:40]}… ({len(uri):,} characters)"


def _json(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def event_table(events: Iterable[Event], thread_id: str, console: Console, look: Lookup = nowhere) -> Table:
    """A line for each event; those of ancestors are dim. What events of runs name by its version is looked up.

    Within a run only somebody else than who began it is named.
    """
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), expand=True)
    table.add_column("Ver", justify="right", no_wrap=True)
    roomy = console.width >= ROOMY
    if roomy:
        table.add_column("Time", no_wrap=True)
    table.add_column("Event", no_wrap=True)
    table.add_column("What", overflow="ellipsis", no_wrap=True, ratio=1, min_width=10)
    began: dict[str | None, str | None] = {None: None}
    for event in events:
        style = "" if event.thread_id == thread_id else "dim"
        by = "" if event.actor in {None, began.get(event.run_id)} else f" by {one_line(event.actor or '')}"
        if isinstance(event.data, RunStarted):
            began = {None: None, event.run_id: event.actor}
        table.add_row(
            str(event.version),
            *((shown_time(event.time),) if roomy else ()),
            type_of(event),
            Text(shortened(f"{what_happened(event, look)}{by}", BEGINNING)),
            style=style,
        )
    return table


def event_line(event: Event, look: Lookup = nowhere, *, of_store: bool) -> Text:
    """An event on a line of its own; among those of a whole store it names its thread."""
    by = "" if event.actor is None else f" by {one_line(event.actor)}"
    return Text.assemble(
        (f"{shown_time(event.time)} ", "dim"),
        (f"{one_line(event.thread_id)} " if of_store else "", "bold"),
        f"{event.version:>5} ",
        (f"{type_of(event).plain:<24} ", "cyan"),
        shortened(f"{what_happened(event, look)}{by}", BEGINNING),
    )


def what_happened(event: Event, look: Lookup = nowhere) -> str:
    """What an event says beside its type, on one line."""
    match event.data:
        case happened.Shredded(role=role):
            return f"{role or 'content'}: [redacted]"
        case happened.Opaque():
            return "of a type that this Clew does not know"
        case happened.MessageAppended(message=message):
            return f"{message.role}: {beginning(message)}"
        case happened.ThreadSuspended(reason=reason) | happened.ThreadEnded(reason=reason):
            return one_line(reason or "")
        case happened.ThreadResumed():
            return ""
        case data if isinstance(data, RunEvent):
            return one_line(run_words(event, data, look))
        case data if isinstance(data, ContextEvent):
            return one_line(context_words(event, data, look))
        case data if isinstance(data, MemoryEvent):
            return one_line(memory_words(data))
        case data:
            return one_line(_of_the_thread(data))


def _of_the_thread(data: happened.ThreadEvent | StateClaimed) -> str:
    match data:
        case happened.ThreadStarted(title=title, source=source, kind=kind):
            origin = None if source is None else "imported" if source.id is None else f"imported: {source.id}"
            return ", ".join(part for part in (title, origin, kind if kind != "local" else None) if part)
        case happened.ThreadForked(parent_id=parent, parent_version=version, title=title):
            as_ = "" if data.kind is None else f", {data.kind}"
            as_ += "" if data.memory is None else f", memory {data.memory}"
            return f"from {parent} at version {version}{as_}" + ("" if title is None else f": {title}")
        case happened.HistoryRewound(to=to):
            return f"to version {to}"
        case happened.CheckpointMade(name=name, at=at):
            return f"{name}: version {at}"
        case happened.MessageRedacted(version=version, reason=reason):
            return f"version {version}" + ("" if reason is None else f": {reason}")
        case happened.ThreadLabelled(labels=labels):
            return ", ".join(f"{key}={_json(value)}" for key, value in labels.items())
        case StateClaimed(provider=provider, thread_id=thread_id):
            return f"{provider}: {thread_id}"
        case happened.ThreadDeleted(reason=reason, service=service):
            there = (f"{each.id} {'deleted' if each.failed is None else 'remains'} at the service" for each in service)
            return ", ".join(part for part in (reason, *there) if part)
        case _:
            declared = happened.EVENT_TYPES[happened.TYPE_NAMES[type(data)]]
            return declared.describe(data.model_dump(mode="json", exclude_none=True))


def beginning(message: said_as.Message) -> str:
    """How a message begins, on one line: its words, else what it calls or was given back."""
    words = message.text.strip()
    if not words and message.calls:
        words = ", ".join(f"→ {call.name}({call.arguments})" for call in message.calls)
    if not words and message.results:
        words = ", ".join(f"← {_json(result.result)}" for result in message.results)
    return shortened(one_line(words[: 4 * BEGINNING]), BEGINNING)


def verdict(found: Verdict) -> Text:
    """One line on what verification found."""
    looked = f"{found.threads:,} {'thread' if found.threads == 1 else 'threads'}, {found.events:,} events"
    bad = found.first_bad
    if bad is None:
        return Text.assemble(("Verified", "bold green"), f": {looked}, every hash follows from what is stored.")
    return Text.assemble(
        ("NOT VERIFIED", "bold red"),
        f": thread {one_line(bad.thread_id)}, version {bad.version}: {one_line(bad.reason)}. Looked at {looked}.",
    )
