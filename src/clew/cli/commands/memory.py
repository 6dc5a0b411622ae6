"""Commands that show the facts of memory scopes and their origins, and that retract a fact: memory."""

from __future__ import annotations

from itertools import islice
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from clew.cli.app import group
from clew.cli.candidates import scope_names
from clew.cli.errors import WrongUsage
from clew.cli.options import AGO, TIME, ActorOption, AsJson, ReasonOption, open_store, parse_moment, parse_time
from clew.cli.output import console as new_console
from clew.cli.output import one_line, print_lines, write_json, write_json_lines, write_result
from clew.cli.rendering import json_shapes

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


def _scope_argument(help_: str) -> Any:
    return typer.Argument(metavar="SCOPE", help=help_, autocompletion=scope_names)


ScopeArgument: TypeAlias = Annotated[str, _scope_argument("A memory scope, such as user/42.")]

FactArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="FACT", help="A fact's id, or a prefix of it that is unique in the scope.")
]

KnownAtOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--at", metavar="WHEN", help=f"What was known then: a version of the scope, {AGO}."),
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
    scope: Annotated[str | None, _scope_argument("A memory scope, such as user/42; by default all.")] = None,
    at: KnownAtOption = None,
    valid_at: Annotated[
        str | None,
        typer.Option("--valid-at", metavar="TIME", help=f"The facts that are true of that time, not of now: {AGO}."),
    ] = None,
    history: Annotated[bool, typer.Option("--history", help="Also facts that were replaced or retracted.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the memory scopes, or the facts of one."""
    if scope is None and (at is not None or valid_at is not None or history):
        raise WrongUsage("Missing argument 'SCOPE': --at, --valid-at and --history need one")
    known_at, valid = _parse_known_at(at, "--at"), parse_time(valid_at, "--valid-at")
    with open_store(context) as conversations:
        if scope is None:
            _write_scopes(conversations, as_json=as_json)
        else:
            memory = _memory_scope(conversations, scope)
            _write_facts(memory, memory.facts(at=known_at, valid_at=valid, history=history), as_json=as_json, at=at)


@commands.declare("clew memory at user/42 5", "clew memory at user/42 2026-01-31T12:00:00Z")
def at(
    context: typer.Context,
    scope: ScopeArgument,
    when: Annotated[str, typer.Argument(metavar="WHEN", help=f"A version of the scope, {TIME}, or an age such as 7d.")],
    as_json: AsJson = False,
) -> None:
    """Show what a memory scope knew at a version or a time."""
    known_at = _parse_known_at(when, "WHEN")
    with open_store(context) as conversations:
        memory = _memory_scope(conversations, scope)
        _write_facts(memory, memory.facts(at=known_at), as_json=as_json, at=when)


@commands.declare("clew memory search user/42 units of distance")
def search(
    context: typer.Context,
    scope: ScopeArgument,
    words: Annotated[list[str], typer.Argument(metavar="WORDS", help="What the facts should be about.")],
    top: Annotated[int, typer.Option("--top", metavar="N", min=1, help="Only the N best.")] = 5,
    at: KnownAtOption = None,
    as_json: AsJson = False,
) -> None:
    """Find the facts of a memory scope that match some words best."""
    known_at = _parse_known_at(at, "--at")
    if not "".join(words).strip():
        raise WrongUsage("WORDS '' is empty. Give what the facts should be about")
    with open_store(context) as conversations:
        results = _memory_scope(conversations, scope).search(" ".join(words), top=top, at=known_at)
    if as_json:
        write_json_lines(map(json_shapes.found_fact, results))
    elif results:
        from clew.cli.rendering.memory import fact_text

        print_lines(fact_text(result.fact, score=result.score) for result in results)
    else:
        typer.echo("No matching facts.")


@commands.declare("clew memory why user/42 3f2a", "clew memory why user/42 3f2a --json")
def why(context: typer.Context, scope: ScopeArgument, fact: FactArgument, as_json: AsJson = False) -> None:
    """Show where a fact comes from, and which model calls received it."""
    with open_store(context) as conversations:
        memory = _memory_scope(conversations, scope)
        id_ = _find_fact(memory, fact).id
        origin, uses = memory.why(id_), memory.used_by(id_)
    if as_json:
        write_json(json_shapes.fact_origin(origin, uses))
    else:
        from clew.cli.rendering.memory import origin_lines

        print_lines(origin_lines(origin, uses))


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
        memory = _memory_scope(conversations, scope)
        before = _find_fact(memory, fact)
        memory.retract(before.id, reason=reason, actor=actor)
        after = next(each for each in memory.facts(history=True) if each.id == before.id)
    earlier = f"clew memory at {quote(one_line(scope))} {before.version}"
    text = f"{one_line(scope)} does not know {one_line(before.id)} any more. Earlier versions do: {earlier}"
    write_result(json_shapes.fact(after), text, as_json=as_json)


def _parse_known_at(text: str | None, name: str) -> MemoryAt:
    """A version of a scope, or a time. Raises WrongUsage, or InvalidTimeError for a time without an offset."""
    version = parse_moment(text, name).at if text is not None and text.isdecimal() else None
    if isinstance(version, int):
        return version
    try:
        return parse_time(text, name)
    except WrongUsage:
        raise WrongUsage(f"{name} {text!r}: give a version of the scope, {AGO}") from None


def _memory_scope(conversations: Conversations, name: str) -> MemoryScope:
    """A scope that has held a fact. Raises ScopeError for any other."""
    from clew.domain.errors import ScopeError

    try:
        memory = conversations.memory(name)
    except ScopeError:
        if not any(scope.name == name for scope in islice(conversations.scopes(prefix=name), 1)):
            raise
        raise ScopeError(
            f"Scope {name!r} holds documents, not facts. `clew audit --scope {quote(name)}` lists its events."
        ) from None
    if not memory.facts(history=True):
        raise ScopeError(f"There is no memory scope {name!r}. `clew memory list` shows the scopes.")
    return memory


def _find_fact(memory: MemoryScope, prefix: str) -> Fact:
    """The one fact, live or not, with this id or prefix. Raises UnknownFactError or WrongUsage."""
    from clew.domain.errors import UnknownFactError

    if not prefix:
        raise WrongUsage("FACT '' is empty. Give a fact's id, or a prefix of it")
    facts = memory.facts(history=True)
    matches = [fact for fact in facts if fact.id == prefix] or [fact for fact in facts if fact.id.startswith(prefix)]
    if not matches:
        raise UnknownFactError(memory.name, prefix)
    if len(matches) > 1:
        ids = ", ".join(fact.id for fact in matches[:CANDIDATES]) + ("…" if len(matches) > CANDIDATES else "")
        raise WrongUsage(f"FACT {prefix!r} is not unique, it matches {len(matches)} facts: {ids}")
    return matches[0]


def _write_scopes(conversations: Conversations, *, as_json: bool) -> None:
    if as_json:
        write_json_lines(map(json_shapes.scope, conversations.scopes()))
        return
    from clew.cli.rendering.memory import scope_table

    console, scopes = new_console(), list(conversations.scopes())
    if scopes:
        console.print(scope_table(console, scopes))
    else:
        console.print("There are no memory scopes. Agents use them to remember facts outside their threads.")


def _write_facts(memory: MemoryScope, facts: Sequence[Fact], *, as_json: bool, at: str | None = None) -> None:
    if as_json:
        write_json_lines(map(json_shapes.fact, facts))
        return
    from clew.cli.rendering.memory import fact_text, scope_heading

    print_lines([scope_heading(memory.name, len(facts), at), *map(fact_text, facts)])
