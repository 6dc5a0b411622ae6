"""Commands that show what memory scopes know and knew, and where from, and that take a fact back: memory."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from shlex import quote
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from clew.cli.candidates import scope_names
from clew.cli.errors import USAGE, WrongUsage
from clew.cli.options import ActorOption, AsJson, moment, opened
from clew.cli.output import one_line, write_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clew.conversations import Conversations
    from clew.domain.memory.facts import Fact
    from clew.domain.memory.ports import MemoryAt
    from clew.sync.memory import MemoryScope

CANDIDATES = 5
"""Facts that an ambiguous beginning is answered with."""

ScopeArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="SCOPE", help="A memory scope, such as user/42.", autocompletion=scope_names)
]

FactArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="FACT", help="A fact's id, or the beginning of it that no other of the scope has.")
]

KnownAtOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="WHEN",
        help="What was known then: a version of the scope, or a time such as 2026-01-31T12:00:00Z.",
    ),
]

ValidAtOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--valid-at", metavar="TIME", help="What is held to be true of that time, instead of now."),
]


def list_(
    context: typer.Context,
    scope: Annotated[
        str | None,
        typer.Argument(
            metavar="SCOPE", help="A memory scope, such as user/42; by default all.", autocompletion=scope_names
        ),
    ] = None,
    at: KnownAtOption = None,
    valid_at: ValidAtOption = None,
    history: Annotated[bool, typer.Option("--history", help="Also facts that were replaced or taken back.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the memory scopes, or what one of them knows."""
    if scope is None and (at is not None or valid_at is not None or history):
        raise WrongUsage(context, "Missing argument 'SCOPE': --at, --valid-at and --history are about the facts of one")
    when, valid = _when(context, at, "--at"), _time(context, valid_at)
    with opened(context) as conversations:
        if scope is None:
            _print_scopes(conversations, as_json=as_json)
        else:
            memory = _scope(conversations, scope)
            _print_facts(memory, memory.facts(at=when, valid_at=valid, history=history), as_json=as_json, at=at)


def at(
    context: typer.Context,
    scope: ScopeArgument,
    when: Annotated[
        str,
        typer.Argument(metavar="WHEN", help="A version of the scope, or a time such as 2026-01-31T12:00:00Z."),
    ],
    as_json: AsJson = False,
) -> None:
    """Show what a memory scope knew at a version or a time."""
    known = _when(context, when, "WHEN")
    with opened(context) as conversations:
        memory = _scope(conversations, scope)
        _print_facts(memory, memory.facts(at=known), as_json=as_json, at=when)


def search(
    context: typer.Context,
    scope: ScopeArgument,
    words: Annotated[list[str], typer.Argument(metavar="WORDS…", help="What the facts are to be about.")],
    top: Annotated[int, typer.Option("--top", metavar="N", min=1, help="The best N of them, and no more.")] = 5,
    at: KnownAtOption = None,
    as_json: AsJson = False,
) -> None:
    """Find the facts of a memory scope that have most to do with some words."""
    when = _when(context, at, "--at")
    with opened(context) as conversations:
        found = _scope(conversations, scope).search(" ".join(words), top=top, at=when)
    if as_json:
        from clew.cli import json_shapes

        for each in found:
            write_json(json_shapes.found(each))
    else:
        from clew.cli import memory_rendering, rendering

        console = rendering.console()
        for each in found:
            console.print(memory_rendering.fact(each.fact, score=each.score), soft_wrap=True)
        if not found:
            console.print("Nothing that the scope knows has to do with that.")


def why(context: typer.Context, scope: ScopeArgument, fact: FactArgument, as_json: AsJson = False) -> None:
    """Show where a fact came from, and which model calls were given it."""
    with opened(context) as conversations:
        memory = _scope(conversations, scope)
        found = _fact(context, memory, fact)
        told, uses = memory.why(found), memory.used_by(found)
    if as_json:
        from clew.cli import json_shapes

        write_json(json_shapes.why(told, uses))
        return
    from clew.cli import memory_rendering, rendering

    console = rendering.console()
    for line in memory_rendering.why(told, uses):
        console.print(line, soft_wrap=True)


def forget(
    context: typer.Context,
    scope: ScopeArgument,
    fact: FactArgument,
    reason: Annotated[str | None, typer.Option("--reason", metavar="R", help="Why, for the audit trail.")] = None,
    actor: ActorOption = None,
    as_json: AsJson = False,
) -> None:
    """Take a fact back: it is not known any more from now on. The past keeps it."""
    with opened(context) as conversations:
        memory = _scope(conversations, scope)
        found = _fact(context, memory, fact)
        memory.retract(found, reason=reason, actor=actor)
        after = next(each for each in memory.facts(history=True) if each.id == found.id)
    if as_json:
        from clew.cli import json_shapes

        write_json(json_shapes.fact(after))
    else:
        past = f"clew memory at {quote(one_line(scope))} {found.version}"
        typer.echo(f"{one_line(scope)} does not know {one_line(found.id)} any more. The past keeps it: {past}")


commands = typer.Typer(
    name="memory",
    invoke_without_command=True,
    rich_markup_mode=None,
    epilog="A scope holds facts outside any one thread: of a user, an agent, a group. `clew memory COMMAND --help` "
    "shows examples.",
)


@commands.callback()
def memory(context: typer.Context) -> None:
    """Show what memory scopes know and knew, and take facts back."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(USAGE)


COMMANDS: tuple[tuple[str, Callable[..., None], tuple[str, ...]], ...] = (
    (
        "list",
        list_,
        (
            "clew memory list",
            "clew memory list user/42",
            "clew memory list user/42 --history --json",
            "clew memory list user/42 --valid-at 2026-01-31T12:00:00Z",
        ),
    ),
    ("at", at, ("clew memory at user/42 5", "clew memory at user/42 2026-01-31T12:00:00Z")),
    ("search", search, ("clew memory search user/42 units of distance",)),
    ("why", why, ("clew memory why user/42 3f2a", "clew memory why user/42 3f2a --json")),
    ("forget", forget, ('clew memory forget user/42 3f2a --reason "The user asked"',)),
)
"""The commands of the group, each with examples."""


def _when(context: typer.Context, text: str | None, name: str) -> MemoryAt:
    """A version of a scope or a time. Raises WrongUsage, or InvalidTimeError for a time without an offset."""
    found = moment(text, name)
    if found.at_message is not None or isinstance(found.at, str):
        raise WrongUsage(
            context, f"{name} {text!r}: give a version of the scope, or a time such as 2026-01-31T12:00:00Z"
        )
    return found.at


def _time(context: typer.Context, text: str | None) -> datetime | None:
    found = moment(text, "--valid-at")
    if found.at_message is None and (found.at is None or isinstance(found.at, datetime)):
        return found.at
    raise WrongUsage(context, f"--valid-at {text!r}: give a time such as 2026-01-31T12:00:00Z")


def _scope(conversations: Conversations, name: str) -> MemoryScope:
    """A scope that something was remembered in. Raises ScopeError for any other."""
    from clew.domain.errors import ScopeError

    try:
        memory = conversations.memory(name)
    except ScopeError:
        if not any(each.name == name for each in conversations.scopes()):
            raise
        trail = f"clew audit --scope {quote(name)}"
        raise ScopeError(
            f"Scope {name!r} holds documents, not facts. `{trail}` lists those that came and went."
        ) from None
    if not memory.facts(history=True):
        raise ScopeError(f"There is no memory scope {name!r}. `clew memory list` shows those that there are.")
    return memory


def _fact(context: typer.Context, memory: MemoryScope, begun: str) -> Fact:
    """The one fact, live or not, with this id, or else whose id begins so. Raises UnknownFactError or WrongUsage."""
    from clew.domain.errors import UnknownFactError

    known = memory.facts(history=True)
    found = [each for each in known if each.id == begun] or [each for each in known if each.id.startswith(begun)]
    if not found or not begun:
        raise UnknownFactError(memory.name, begun)
    if len(found) > 1:
        some = ", ".join(each.id for each in found[:CANDIDATES]) + ("…" if len(found) > CANDIDATES else "")
        raise WrongUsage(context, f"FACT {begun!r}: the ids of {len(found)} facts begin so: {some}")
    return found[0]


def _print_scopes(conversations: Conversations, *, as_json: bool) -> None:
    if as_json:
        from clew.cli import json_shapes

        for each in conversations.scopes():
            write_json(json_shapes.scope(each))
        return
    from clew.cli import memory_rendering, rendering

    console, scopes = rendering.console(), list(conversations.scopes())
    if scopes:
        console.print(memory_rendering.scope_table(console, scopes))
    else:
        console.print("There are no memory scopes. What agents remember outside their threads is kept in them.")


def _print_facts(memory: MemoryScope, facts: Sequence[Fact], *, as_json: bool, at: str | None = None) -> None:
    if as_json:
        from clew.cli import json_shapes

        for each in facts:
            write_json(json_shapes.fact(each))
        return
    from clew.cli import memory_rendering, rendering

    console = rendering.console()
    console.print(memory_rendering.heading(memory.name, len(facts), at))
    for each in facts:
        console.print(memory_rendering.fact(each), soft_wrap=True)
