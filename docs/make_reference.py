"""Writes docs/reference.md from the signatures and docstrings of the public modules: ``make docs``."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

from docs.reference_parts import CONSTRUCTED, INTERNAL, PARTS, PROVIDERS
from pydantic import BaseModel

import clew
from clew import errors, events, projections, testing, types
from clew.domain.events import TYPE_NAMES, AnyEvent

PAGE = Path(__file__).parent / "reference.md"
WIDTH = 100
MODULES: tuple[ModuleType, ...] = (clew, types, events, projections, testing, errors)
ANNOTATED = re.compile(r"Annotated\[(\w+), Field\([^)]*\)\]")
TYPE_VARIABLE = re.compile(r"\b(?:Local|Remote|Thread)T(?:_co)?\b")
CLASS_VARIABLE = re.compile(r"^ClassVar\[(.*)\]$")
WORD = re.compile(r"""("[^"]*"|'[^']*')|(?<![\w.])([A-Za-z_]\w*)""")
THREAD_OF = {"LocalT_co": "LocalThread", "RemoteT_co": "RemoteThread", "ThreadT": "Thread", "ThreadT_co": "Thread"}
"""The classes that stand for the type variables of agents."""

SAME_NAMES = {"Engine": "Conversations", "Thread": "SyncThread", "Subscription": "SyncSubscription"}
"""Classes for asyncio, and the class whose methods they share. Only the others are described in full."""

SYNC_OF = {"SyncMemoryScope": "MemoryScope"}

INTRODUCTION = """# Reference

All public names, generated from their docstrings by `make docs`; a test fails if this page is out of date. New to Clew?
Start with [getting started](getting-started.md) and [the concepts](concepts.md).

- `at=` takes a version, a checkpoint's name or an aware `datetime`; None means the newest version. `at_message=` takes
  the number of a message, from 1. Times are UTC.
- `actor=` names who acts, such as `"user:42"`. The default is the actor of `acting_as()`.
- `await`, `for … in` and `async for … in` before a signature show how to call it.
- Public modules are `clew`, `clew.types`, `clew.events`, `clew.projections`, `clew.testing` and `clew.errors`. All
  other modules are private and may change.
- The classes of Conversations begin with `Sync` in `clew.types`; signatures write them without it.
  `type(thread).__name__` is that shorter name, too: `LocalThread` for a `SyncLocalThread`.
"""


def reference() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    listed = {title: names.split() for title, names in PARTS.items()}
    listed["Events"] += event_names()
    listed["Other types"] = list(unlisted({id(public(name)[-1]) for names in listed.values() for name in names}))
    for title, names in listed.items():
        parts.append(f"## {title}")
        for name in names:
            parts += described(*public(name))
    parts += ["## Short types", *aliases()]
    parts += ["## Errors", "All errors are in `clew.errors`. `ClewError` is also in `clew`.", "\n".join(error_tree())]
    page = "\n\n".join(parts).replace("\n\n\n", "\n\n") + "\n"
    return TYPE_VARIABLE.sub(lambda found: THREAD_OF.get(found[0], found[0]), page)


def public(path: str) -> tuple[str, str, Any]:
    """The module's name, the name and the object of a dotted path below ``clew``."""
    module, _, name = f"clew.{path}".rpartition(".")
    return module, name, getattr({each.__name__: each for each in MODULES}[module], name)


def event_names() -> Iterator[str]:
    """The models of all event types in their order, then the values that they contain."""
    stored = [model.__name__ for model in typing.get_args(AnyEvent)]
    yield from (f"events.{name}" for name in stored)
    listed = {*stored, "Event"}
    yield from (f"events.{name}" for name in events.__all__ if name not in listed and is_class(getattr(events, name)))


def unlisted(listed: set[int]) -> Iterator[str]:
    """The public classes and functions that are in no part."""
    for module in MODULES[:-1]:
        for name in module.__all__:
            found = getattr(module, name)
            in_errors = getattr(errors, name, None) is found
            if (is_class(found) or inspect.isfunction(found)) and id(found) not in listed and not in_errors:
                listed.add(id(found))
                yield f"{module.__name__.removeprefix('clew').removeprefix('.')}.{name}".lstrip(".")


def is_class(found: Any) -> bool:
    """Whether a public object is a class, and not a type alias."""
    return isinstance(found, type) and found is not Any and not typing.get_args(found)


# One name


def described(module: str, name: str, each: Any) -> Iterator[str]:
    """The description of a class with its fields, properties and methods, or of a function."""
    if not is_class(each):
        yield f"### {name}"
        yield f"```python\nfrom {module} import {name}\n\n{signature(name, each)}\n```"
        yield prose(each)
        return
    stored = TYPE_NAMES.get(each)
    yield f"### {name}" + (f" (`{stored}`)" if stored else "")
    held = list(fields(each))
    shape = f"\n\n{call(name, held)}" if held else ""
    if name in CONSTRUCTED:
        constructor = members(each).get("__init__")
        shape = f"\n\n{signature(name, constructor, constructor=True)}" if constructor else f"\n\n{name}()"
    yield f"```python\nfrom {module} import {name}{shape}\n```"
    yield prose(each)
    if name in SYNC_OF:
        yield f"It has the methods of [{SYNC_OF[name]}](#{SYNC_OF[name].lower()}), called without `await`."
        return
    if base := next((base for base in each.__mro__[1:] if documented(base)), None):
        yield f"It also has everything of [{public_name(base)}](#{public_name(base).lower()})."
    attributes = [] if held else [*declared_attributes(name, each)]
    rows = [f"| `{each}` | `{type_}` | {text} |" for each, type_, text in (*attributes, *properties(name, each))]
    if rows:
        yield "\n".join(["| attribute | type | meaning |", "|---|---|---|", *rows])
    if name in SAME_NAMES:
        yield from shared(name, each)
    known = set(members(public_class(SAME_NAMES[name]))) if name in SAME_NAMES else set()
    for method_name, method in methods(name, each):
        if method_name not in known:
            yield f"#### {name}.{method_name}"
            yield f"```python\n{signature(method_name, method)}\n```"
            yield prose(method)
    if internal := [f"`{each}`" for each in internals(name, each)]:
        yield f"For Clew's own agents and engines, not for applications: {', '.join(internal)}."


def shared(name: str, each: type) -> Iterator[str]:
    """The methods that a class for asyncio shares with its synchronous twin, by the way they are called."""
    twin = SAME_NAMES[name]
    yield f"It has the methods of [{twin}](#{twin.lower()}), with the same parameters, results and errors:"
    names = set(members(public_class(twin)))
    groups: dict[str, list[str]] = {}
    for method_name, method in methods(name, each):
        if method_name in names:
            groups.setdefault(calling(method) or "without await", []).append(f"`{method_name}`")
    properties_ = [
        f"`{found}`" for found, member in members(each).items() if awaited_property(member) and found in names
    ]
    if properties_:
        groups["await, without parentheses"] = properties_
    rows = [f"| {way} | {', '.join(found)} |" for way, found in groups.items()]
    yield "\n".join(["| called with | names |", "|---|---|", *rows])


def documented(base: type) -> bool:
    """Whether a base class has an entry of its own."""
    return public_name(base) != "" and base is not object


def public_name(each: type) -> str:
    """The public name of a class; empty for a private one."""
    for module in MODULES:
        for name in module.__all__:
            if getattr(module, name) is each:
                return str(name)
    return ""


def public_class(name: str) -> type:
    """The class with a public name."""
    found: type = next(getattr(module, name) for module in MODULES if name in module.__all__)
    return found


def members(cls: type) -> dict[str, Any]:
    """What a class defines itself or inherits from private classes of Clew, in the order of definition."""
    own = [
        base for base in cls.__mro__ if base is cls or (base.__module__.startswith("clew.") and not documented(base))
    ]
    return {name: found for base in reversed(own) for name, found in vars(base).items()}


def methods(name: str, cls: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public methods of a class, without those for Clew's own use."""
    hooks = set(members(clew.ContextProvider)) if name in PROVIDERS.split() else set()
    for method_name, found in members(cls).items():
        function = getattr(found, "__func__", found)
        if method_name.startswith("_") or is_internal(name, cls, method_name) or method_name in hooks:
            continue
        if inspect.isfunction(function) and inspect.getdoc(function):
            yield method_name, function


def internals(name: str, cls: type) -> list[str]:
    """The names of a class that are only for Clew's own use."""
    return [each for each in members(cls) if is_internal(name, cls, each)]


def is_internal(name: str, cls: type, member: str) -> bool:
    """Whether a member is only for Clew's own use."""
    return not INTERNAL.isdisjoint({f"{name}.{member}", *(f"{base.__name__}.{member}" for base in cls.__mro__)})


def properties(name: str, cls: type) -> Iterator[tuple[str, str, str]]:
    """The attributes of a class that are not fields: how each is read, its type and its meaning."""
    known = set(members(public_class(SAME_NAMES[name]))) if name in SAME_NAMES else set()
    for each, found in members(cls).items():
        if isinstance(found, property) and not each.startswith("_") and not is_internal(name, cls, each):
            if each in known:
                continue
            type_ = with_public_names(inspect.signature(found.fget).return_annotation, found.fget) if found.fget else ""
            way = f"await {each}" if awaited_property(found) else each
            yield way, type_.replace("|", "\\|"), " ".join(prose(found).split())


def declared_attributes(name: str, cls: type) -> Iterator[tuple[str, str, str]]:
    """The attributes that a class declares with a docstring: the name of each, its type and its meaning."""
    if not cls.__module__.startswith("clew."):
        return
    [body] = (node.body for node in ast.parse(dedent(inspect.getsource(cls))).body if isinstance(node, ast.ClassDef))
    for node, following in pairwise(body):
        match node, following:
            case ast.AnnAssign(target=ast.Name(each)), ast.Expr(ast.Constant(str(text))):
                if not each.startswith("_") and not is_internal(name, cls, each):
                    type_ = with_public_names(CLASS_VARIABLE.sub(r"\1", ast.unparse(node.annotation)), cls)
                    yield each, type_.replace("|", "\\|"), " ".join(inspect.cleandoc(text).replace("``", "`").split())


def awaited_property(found: Any) -> bool:
    """Whether a member is a property that is awaited."""
    return isinstance(found, property) and inspect.iscoroutinefunction(found.fget)


# Fields and signatures


def fields(cls: type) -> Iterator[str]:
    """The fields of a value: names, types and defaults."""
    if issubclass(cls, tuple | BaseModel) or dataclasses.is_dataclass(cls) or typing.is_typeddict(cls):
        for name, annotation in inspect.get_annotations(cls).items():
            type_ = ANNOTATED.sub(r"\1", str(getattr(annotation, "__forward_arg__", annotation)))
            type_ = with_public_names(type_, cls)
            tag = name == "type" and type_.startswith("Literal") and issubclass(cls, BaseModel)
            hidden = name.startswith(("_", "model_config")) or type_.startswith("ClassVar")
            if not hidden and not tag:
                yield f"{name}: {type_}{default(default_of(cls, name))}"


def default_of(cls: type, name: str) -> Any:
    """The default of a field; ``Parameter.empty`` if it is required."""
    if issubclass(cls, BaseModel):
        field = cls.model_fields[name]
        return inspect.Parameter.empty if field.is_required() else field.get_default(call_default_factory=True)
    if dataclasses.is_dataclass(cls):
        own = next(each for each in dataclasses.fields(cls) if each.name == name)
        if own.default_factory is not dataclasses.MISSING:
            return own.default_factory()
        return inspect.Parameter.empty if own.default is dataclasses.MISSING else own.default
    return getattr(cls, "_field_defaults", {}).get(name, inspect.Parameter.empty)


def calling(function: Callable[..., Any]) -> str:
    """The keywords with which a function is called; empty for a plain call."""
    returned = str(inspect.signature(function).return_annotation)
    if inspect.isasyncgenfunction(function) or returned.startswith(("AsyncIterator", "AsyncGenerator")):
        return "async for … in"
    if inspect.iscoroutinefunction(function) or returned.startswith("Coroutine"):
        return "await"
    return "for … in" if returned.startswith("Iterator") else ""


def signature(name: str, function: Callable[..., Any], *, constructor: bool = False) -> str:
    """A signature as it is called; that of a constructor without its result."""
    found = inspect.signature(function)
    shown: list[str] = []
    parameters = list(found.parameters.values())
    for each, before in zip(parameters, [None, *(each.kind for each in parameters)], strict=False):
        if before is each.POSITIONAL_ONLY and each.kind is not before:
            shown.append("/")
        if before is not each.kind and each.kind is each.KEYWORD_ONLY:
            shown.append("*")
        if each.name not in {"self", "cls"}:
            star = "**" if each.kind is each.VAR_KEYWORD else ("*" if each.kind is each.VAR_POSITIONAL else "")
            shown.append(f"{star}{each.name}: {with_public_names(each.annotation, function)}{default(each.default)}")
    if constructor:
        return call(name, shown)
    way = calling(function)
    streamed = f"\nasync for update in {name}(…, stream=True)" if "AgentStream" in str(found.return_annotation) else ""
    result = with_public_names(found.return_annotation, function)
    return f"{way} {call(name, shown, f' -> {result}')}".lstrip() + streamed


def with_public_names(annotation: object, owner: Any) -> str:
    """An annotation in the module of ``owner``, with the names that readers can import."""

    def public_word(found: re.Match[str]) -> str:
        return found[0] if found[1] else public_names_in(owner.__module__).get(found[2], found[2])

    return WORD.sub(public_word, str(annotation))


@cache
def public_names_in(module_name: str) -> dict[str, str]:
    """The names in a module whose objects have another public name; classes of Conversations stay without ``Sync``."""
    module = sys.modules[module_name]
    known = dict(vars(module))
    for node in ast.walk(ast.parse(inspect.getsource(module))):  # also what only type checkers import
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("clew"):
            source = importlib.import_module(node.module)
            known |= {each.asname or each.name: getattr(source, each.name) for each in node.names}
    public_names = {name: ("Any", "Json") if found is Any else names_of(id(found)) for name, found in known.items()}
    return {
        name: names[0]
        for name, names in public_names.items()
        if names and name not in names and f"Sync{name}" not in names
    }


@cache
def names_of(identity: int) -> tuple[str, ...]:
    """The public names of an object."""
    return tuple(name for module in MODULES for name in module.__all__ if id(getattr(module, name)) == identity)


def default(value: object) -> str:
    """A default as it is written; empty without one."""
    if value is inspect.Parameter.empty:
        return ""
    if inspect.isfunction(value):
        return f" = {value.__module__.rpartition('.')[2]}.{value.__qualname__}"
    if isinstance(value, str):
        return " = …" if "\n" in value else f' = "{value}"'
    return f" = {value!r}"


def call(name: str, parts: list[str], result: str = "") -> str:
    """A call on one line, or with one argument per line if it is too long."""
    line = f"{name}({', '.join(parts)}){result}"
    return line if len(line) <= WIDTH else f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){result}"


# Short types and errors


def aliases() -> Iterator[str]:
    """The type aliases of the public modules."""
    yield "Names for annotations:"
    rows = ["| name | is |", "|---|---|"]
    for module in MODULES:
        for name in module.__all__:
            found = getattr(module, name)
            if module is not errors and not is_class(found) and not inspect.isfunction(found):
                rows.append(f"| `{module.__name__}.{name}` | {definition(found)} |")
    yield "\n".join(rows)


def definition(alias: Any) -> str:
    """A type alias as it is written."""
    if isinstance(alias, tuple):
        return "a tuple of " + ", ".join(f"`{type(each).__name__}()`" for each in alias)
    text = re.sub(r"\b(?:\w+\.)+(?=\w)", "", str(alias)).replace("NoneType", "None").replace("~", "")
    return f"`{text}`".replace("|", "\\|")


def error_tree(root: type = errors.ClewError, depth: int = 0) -> Iterator[str]:
    """The errors, each below the one that also catches it."""
    yield f"{'  ' * depth}- **{root.__name__}**: {' '.join(prose(root).split())}"
    for name in errors.__all__:
        each = getattr(errors, name)
        if each.__bases__[:1] == (root,):
            yield from error_tree(each, depth + 1)
    if depth == 0:
        warnings = [getattr(errors, name) for name in errors.__all__ if issubclass(getattr(errors, name), Warning)]
        yield from (f"- **{each.__name__}**, a warning: {' '.join(prose(each).split())}" for each in warnings)


def prose(of: object) -> str:
    """A docstring as Markdown."""
    return re.sub(r":(class|func):(?=`)", "", (inspect.getdoc(of) or "").replace("``", "`"))


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
