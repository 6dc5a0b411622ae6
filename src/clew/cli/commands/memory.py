"""Commands that show the facts of memory scopes and where they come from, and that retract one: memory."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from clew.cli.candidates import scope_names
from clew.cli.command import group
from clew.cli.errors import WrongUsage
from clew.cli.options import AGO, TIME, ActorOption, AsJson, ReasonOption, open_store, parse_moment, parse_time
from clew.cli.output import console as new_console
from clew.cli.output import one_line, write_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clew.conversations import Conversations
    from clew.domain.memory.facts import Fact
    from clew.domain.memory.ports import MemoryAt
    from clew.sync.memory import MemoryScope

CANDIDATES = 5
"""Facts that the error for an ambiguous id lists."""

commands = group(
    "memory",
    heading="Read",
    help_="Show what memory scopes know and knew, and retract facts.",
    epilog="A scope holds facts outside any thread: of a user, an agent or a group. `clew memory COMMAND --help` "
    "shows examples.",
)

ScopeArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="SCOPE", help="A memory scope, such as user/42.", autocompletion=scope_names)
]

FactArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="FACT", help="A fact's id, or a prefix of it that is unique in the scope.")
]

KnownAtOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--at", metavar="WHEN", help=f"What was known then: a version of the scope, {AGO}."),
]

ValidAtOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--valid-at", metavar="TIME", help=f"The facts that are true of that time, not of now: {AGO}."),
]


@commands.declare(
    "clew memory list",
    "clew memory list user/42",
    "clew memory list user/42 --history --json",
    "clew memory list user/42 --valid-at 2026-01-31T12:00:00Z",
    name="list",
)
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
    history: Annotated[bool, typer.Option("--history", help="Also facts that were replaced or retracted.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the memory scopes, or the facts of one."""
    if scope is None and (at is not None or valid_at is not None or history):
        raise WrongUsage(context, "Missing argument 'SCOPE': --at, --valid-at and --history need one")
    when, valid = _known_at(context, at, "--at"), parse_time(context, valid_at, "--valid-at")
    with open_store(context) as conversations:
        if scope is None:
            _print_scopes(conversations, as_json=as_json)
        else:
            memory = _scope(conversations, scope)
            _print_facts(memory, memory.facts(at=when, valid_at=valid, history=history), as_json=as_json, at=at)


@commands.declare("clew memory at user/42 5", "clew memory at user/42 2026-01-31T12:00:00Z")
def at(
    context: typer.Context,
    scope: ScopeArgument,
    when: Annotated[str, typer.Argument(metavar="WHEN", help=f"A version of the scope, {TIME}, or an age such as 7d.")],
    as_json: AsJson = False,
) -> None:
    """Show what a memory scope knew at a version or a time."""
    known = _known_at(context, when, "WHEN")
    with open_store(context) as conversations:
        memory = _scope(conversations, scope)
        _print_facts(memory, memory.facts(at=known), as_json=as_json, at=when)


@commands.declare("clew memory search user/42 units of distance")
def search(
    context: typer.Context,
    scope: ScopeArgument,
    words: Annotated[list[str], typer.Argument(metavar="WORDS…", help="What the facts should be about.")],
    top: Annotated[int, typer.Option("--top", metavar="N", min=1, help="Only the N best.")] = 5,
    at: KnownAtOption = None,
    as_json: AsJson = False,
) -> None:
    """Find the facts of a memory scope that match some words best."""
    when = _known_at(context, at, "--at")
    with open_store(context) as conversations:
        found = _scope(conversations, scope).search(" ".join(words), top=top, at=when)
    if as_json:
        from clew.cli.rendering import json_shapes

        for each in found:
            write_json(json_shapes.found_fact(each))
        return
    from clew.cli.rendering.memory import fact_text

    console = new_console()
    for each in found:
        console.print(fact_text(each.fact, score=each.score), soft_wrap=True)
    if not found:
        console.print("No matching facts.")


@commands.declare("clew memory why user/42 3f2a", "clew memory why user/42 3f2a --json")
def why(context: typer.Context, scope: ScopeArgument, fact: FactArgument, as_json: AsJson = False) -> None:
    """Show where a fact comes from, and which model calls received it."""
    with open_store(context) as conversations:
        memory = _scope(conversations, scope)
        id_ = _fact(context, memory, fact).id
        origin, uses = memory.why(id_), memory.used_by(id_)
    if as_json:
        from clew.cli.rendering import json_shapes

        write_json(json_shapes.why(origin, uses))
        return
    from clew.cli.rendering.memory import origin_lines

    console = new_console()
    for line in origin_lines(origin, uses):
        console.print(line, soft_wrap=True)


@commands.declare('clew memory forget user/42 3f2a --reason "The user asked"')
def forget(
    context: typer.Context,
    scope: ScopeArgument,
    fact: FactArgument,
    reason: ReasonOption = None,
    actor: ActorOption = None,
    as_json: AsJson = False,
) -> None:
    """Retract a fact: the scope does not know it from now on. Earlier versions still do."""
    with open_store(context) as conversations:
        memory = _scope(conversations, scope)
        before = _fact(context, memory, fact)
        memory.retract(before.id, reason=reason, actor=actor)
        after = next(each for each in memory.facts(history=True) if each.id == before.id)
    if as_json:
        from clew.cli.rendering import json_shapes

        write_json(json_shapes.fact(after))
    else:
        earlier = f"clew memory at {quote(one_line(scope))} {before.version}"
        typer.echo(f"{one_line(scope)} does not know {one_line(before.id)} any more. Earlier versions do: {earlier}")


def _known_at(context: typer.Context, text: str | None, name: str) -> MemoryAt:
    """A version of a scope, or a time. Raises WrongUsage, or InvalidTimeError for a time without an offset."""
    version = parse_moment(text, name).at if text is not None and text.isdecimal() else None
    if isinstance(version, int):
        return version
    try:
        return parse_time(context, text, name)
    except WrongUsage:
        raise WrongUsage(context, f"{name} {text!r}: give a version of the scope, {AGO}") from None


def _scope(conversations: Conversations, name: str) -> MemoryScope:
    """A scope that has held a fact. Raises ScopeError for any other."""
    from clew.domain.errors import ScopeError

    try:
        memory = conversations.memory(name)
    except ScopeError:
        if not any(each.name == name for each in conversations.scopes()):
            raise
        raise ScopeError(
            f"Scope {name!r} holds documents, not facts. `clew audit --scope {quote(name)}` lists its events."
        ) from None
    if not memory.facts(history=True):
        raise ScopeError(f"There is no memory scope {name!r}. `clew memory list` shows the scopes.")
    return memory


def _fact(context: typer.Context, memory: MemoryScope, prefix: str) -> Fact:
    """The one fact, live or not, with this id or prefix. Raises UnknownFactError or WrongUsage."""
    from clew.domain.errors import UnknownFactError

    known = memory.facts(history=True)
    found = [each for each in known if each.id == prefix] or [each for each in known if each.id.startswith(prefix)]
    if not found or not prefix:
        raise UnknownFactError(memory.name, prefix)
    if len(found) > 1:
        some = ", ".join(each.id for each in found[:CANDIDATES]) + ("…" if len(found) > CANDIDATES else "")
        raise WrongUsage(context, f"FACT {prefix!r} is not unique, it matches {len(found)} facts: {some}")
    return found[0]


def _print_scopes(conversations: Conversations, *, as_json: bool) -> None:
    if as_json:
        from clew.cli.rendering import json_shapes

        for each in conversations.scopes():
            write_json(json_shapes.scope(each))
        return
    from clew.cli.rendering.memory import scope_table

    console, scopes = new_console(), list(conversations.scopes())
    if scopes:
        console.print(scope_table(console, scopes))
    else:
        console.print("There are no memory scopes. Agents use them to remember facts outside their threads.")


def _print_facts(memory: MemoryScope, facts: Sequence[Fact], *, as_json: bool, at: str | None = None) -> None:
    if as_json:
        from clew.cli.rendering import json_shapes

        for each in facts:
            write_json(json_shapes.fact(each))
        return
    from clew.cli.rendering.memory import fact_text, scope_heading

    console = new_console()
    console.print(scope_heading(memory.name, len(facts), at))
    for each in facts:
        console.print(fact_text(each), soft_wrap=True)
