"""Writes docs/reference.md from the docstrings and signatures of what people use: ``make docs``."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from docs.reference_parts import BEHIND, CONSTRUCTED, ERRORS, PARTS, SHIPPED
from pydantic import BaseModel

import clew
from clew import Conversations, Engine, errors, projections, testing, types
from clew import events as public_events
from clew.aio.threads import Thread as AioThread
from clew.domain import events

PAGE = Path(__file__).parent / "reference.md"
WIDTH = 100
STANDS_FOR = {"LocalT_co": "LocalThread", "RemoteT_co": "RemoteThread", "ThreadT": "Thread", "ThreadT_co": "Thread"}
"""What the types of threads are in an application, by what agents call them."""

ANNOTATED = re.compile(r"Annotated\[(\w+), Field\([^)]*\)\]")

INTRODUCTION = """# Reference

What every name means, from the docstrings. It is written by `make docs`; a test tells when it is out of date.
New to Clew? Begin with [getting started](getting-started.md) and [the concepts](concepts.md).

Wherever a version is asked for, `at=` takes a version, a checkpoint's name or an aware `datetime`, and None means the
newest version; `at_message=` takes the number of a message, from 1. Times are UTC. `actor=` names who does it, as in
`"user:42"`; without it `acting_as()` says who. Of the short types, `At` is what `at=` takes, `Json` what JSON can hold,
a `Role` is system, developer, user, assistant or tool, a `Status` active, suspended, ended or deleted, a `Snippet` a
tuple of `Part`, and `Authorize` a function of [who does what with which thread](how-to/authorizing.md).
An `EnginePort` is an `Engine`, a `ThreadPort` one of its threads, an `Input` what `run` takes, and a
`ToolFunction` a `Tool` or a function. An engine's `Thread` is a `LocalThread`, whose history Clew holds, or a
`RemoteThread`; those of Conversations are `SyncLocalThread` and `SyncRemoteThread` in `clew.types`. `MemoryAt` is a
version of a scope or an aware `datetime`, a
`Screen` a function from a fact to `Allow`, `Redact` or `Refuse`. What `Conversations.memory` gives has the same methods
as a `MemoryScope`, not awaited.
"""


def reference() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for title, members in PARTS:
        parts += [f"## {title}", *(text for each in members for text in described(each))]
        if title == "Threads":
            parts += awaited()
    parts += ["## Errors", "All are in `clew.errors`; `ClewError` is in `clew`, too.", "\n".join(error_tree())]
    page = "\n\n".join(parts).replace("\n\n\n", "\n\n") + "\n"
    return re.sub(r"\b(?:Local|Remote|Thread)T(?:_co)?\b", lambda found: STANDS_FOR[found[0]], page)


def described(each: type | Callable[..., Any]) -> Iterator[str]:
    """A class: what it means, what it holds, what it does. Or a function."""
    if not isinstance(each, type):
        yield f"### {each.__name__}"
        signature = f"{'await ' if inspect.iscoroutinefunction(each) else ''}{signed(each.__name__, each)}"
        yield f"```python\n{import_of(each)}\n\n{signature}\n```"
        yield prose(each)
        return
    stored = events.TYPE_NAMES.get(each)
    yield f"### {each.__name__}" + (f" (`{stored}`)" if stored else "")
    held = list(fields(each))
    shape = f"\n\n{call(each.__name__, held)}" if held else ""
    if each in CONSTRUCTED:
        shape = f"\n\n{signed(each.__name__, members(each)['__init__'], made=True)}"
    yield f"```python\n{import_of(each)}{shape}\n```"
    yield prose(each)
    told = [f"| `{name}` | `{type_}` | {text} |" for name, type_, text in properties(each)]
    if told:
        yield "\n".join(["| it also tells | | |", "|---|---|---|", *told])
    for name, method in methods(each):
        yield f"#### {each.__name__}.{name}"
        awaited_first = "await " if inspect.iscoroutinefunction(method) else ""
        yield f"```python\n{awaited_first}{signed(name, method)}\n```"
        yield prose(method)


def import_of(each: type | Callable[..., Any]) -> str:
    """How people import it."""
    for room in (clew, types, public_events, errors, projections, testing):
        for name in room.__all__:
            if getattr(room, name) is each:
                return f"from {room.__name__} import {name}"
    raise ValueError(f"{each.__module__}.{each.__name__} is in the reference, and not in a public module")


def awaited() -> Iterator[str]:
    """The service for asyncio: the same names, so only how each is called."""
    yield "### Engine and its threads"
    yield "`from clew import Engine`"
    yield prose(Engine)
    yield "The methods, their parameters and their errors are those above. What differs is how they are called:"
    rows = ["| called as | names |", "|---|---|"]
    for cls, word in ((Engine, "engine"), (AioThread, "thread")):
        kinds: dict[str, list[str]] = {}
        for name, method in methods(cls):
            kinds.setdefault(how(method), []).append(f"`{name}`")
        rows += [f"| `{kind.format(word)}` | {', '.join(names)} |" for kind, names in kinds.items()]
    yield "\n".join(rows)
    shared = dict(methods(Conversations))
    for name, method in methods(Engine):
        if name not in shared:
            yield f"#### Engine.{name}"
            yield f"```python\nawait {signed(name, method)}\n```"
            yield prose(method)


def how(method: Callable[..., Any]) -> str:
    """How a method for asyncio is called."""
    if inspect.isasyncgenfunction(method):
        return "async for each in {}.…(…)"
    return "await {}.…(…)" if inspect.iscoroutinefunction(method) else "{}.…(…)"


def members(cls: type) -> dict[str, Any]:
    """What a class defines; of a class that fixes the types of a generic class of its name, also what that defines."""
    defining = [each for each in reversed(cls.__mro__) if each.__name__ == cls.__name__]
    return {name: found for each in defining for name, found in vars(each).items()}


def methods(cls: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public methods of a class in the order in which they are written, ``open`` first."""
    for name, found in members(cls).items():
        function = found.__func__ if isinstance(found, classmethod) else found
        if name.startswith("_") or f"{cls.__name__}.{name}" in BEHIND:
            continue
        if cls in SHIPPED and hasattr(clew.ContextProvider, name):
            continue  # a hook is told of once
        if inspect.isfunction(function) and inspect.getdoc(function):
            yield name, function


def fields(cls: type) -> Iterator[str]:
    """What a value holds: names, types and defaults."""
    if issubclass(cls, tuple | BaseModel) or dataclasses.is_dataclass(cls) or typing.is_typeddict(cls):
        for name, annotation in inspect.get_annotations(cls).items():
            type_ = ANNOTATED.sub(r"\1", str(getattr(annotation, "__forward_arg__", annotation)))
            tag = name == "type" and type_.startswith("Literal") and issubclass(cls, BaseModel)
            hidden = name.startswith(("_", "model_config")) or type_.startswith("ClassVar")
            if not hidden and not tag:
                yield f"{name}: {type_}{given(default_of(cls, name))}"


def default_of(cls: type, name: str) -> Any:
    """What a field is when it is not given; ``Parameter.empty`` when it must be."""
    if issubclass(cls, BaseModel):
        field = cls.model_fields[name]
        return inspect.Parameter.empty if field.is_required() else field.get_default(call_default_factory=True)
    if dataclasses.is_dataclass(cls):
        own = next(each for each in dataclasses.fields(cls) if each.name == name)
        if own.default_factory is not dataclasses.MISSING:
            return own.default_factory()
        return inspect.Parameter.empty if own.default is dataclasses.MISSING else own.default
    return getattr(cls, "_field_defaults", {}).get(name, inspect.Parameter.empty)


def properties(cls: type) -> Iterator[tuple[str, str, str]]:
    """What a value tells beside what it holds."""
    for name, found in members(cls).items():
        if isinstance(found, property) and not name.startswith("_") and f"{cls.__name__}.{name}" not in BEHIND:
            type_ = str(inspect.signature(found.fget).return_annotation) if found.fget else ""
            yield name, type_.replace("|", "\\|"), " ".join(prose(found).split())


def signed(name: str, method: Callable[..., Any], *, made: bool = False) -> str:
    """A signature as it is written; that of a class without what it returns."""
    signature = inspect.signature(method)
    shown: list[str] = []
    parameters = list(signature.parameters.values())
    for each, before in zip(parameters, [None, *(each.kind for each in parameters)], strict=False):
        if before is each.POSITIONAL_ONLY and each.kind is not before:
            shown.append("/")
        if before is not each.kind and each.kind is each.KEYWORD_ONLY:
            shown.append("*")
        if each.name not in {"self", "cls"}:
            star = "**" if each.kind is each.VAR_KEYWORD else ""
            shown.append(f"{star}{each.name}: {each.annotation}{given(each.default)}")
    return call(name, shown, "" if made else f" -> {signature.return_annotation}")


def given(default: object) -> str:
    """A default as it is written, nothing where there is none."""
    if default is inspect.Parameter.empty:
        return ""
    if inspect.isfunction(default):
        return f" = {default.__module__.rpartition('.')[2]}.{default.__qualname__}"
    if isinstance(default, str):
        return " = …" if "\n" in default else f' = "{default}"'
    return f" = {default!r}"


def call(name: str, parts: list[str], result: str = "") -> str:
    """A call with its parts on one line, or on one each where that is too long."""
    line = f"{name}({', '.join(parts)}){result}"
    return line if len(line) <= WIDTH else f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){result}"


def error_tree(root: type = errors.ClewError, depth: int = 0) -> Iterator[str]:
    """The errors, each under the one that catches it, too."""
    yield f"{'  ' * depth}- **{root.__name__}**: {' '.join(prose(root).split())}"
    there = dict.fromkeys(each for room in ERRORS for each in vars(room).values() if isinstance(each, type))
    for each in there:
        if each.__bases__[:1] == (root,):
            yield from error_tree(each, depth + 1)


def prose(of: object) -> str:
    """A docstring as Markdown."""
    return (inspect.getdoc(of) or "").replace("``", "`")


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
