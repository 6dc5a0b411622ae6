"""Every type in a public signature, and every name that examples and pages import, comes from a public module."""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import re
import sys
import types
import typing
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PUBLIC = ("clew", "clew.agui", "clew.errors", "clew.events", "clew.projections", "clew.testing", "clew.types")
MODULES = [importlib.import_module(name) for name in PUBLIC]
BUILT_BY_METHODS = {"Conversations", "DocumentStore", "Engine", "MemoryScope"}
"""Classes in ``clew`` that users get from a method. The parameters of their constructors are private."""

FOR_AGENTS = {"RunLog"}
"""Users meet these classes as the type of ``thread.runs``. Only Clew's own agents use their members."""

PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
CODE = re.compile(r"^```(?:python|py)\n(.*?)^```", re.MULTILINE | re.DOTALL)
IMPORT = re.compile(r"^ *((?:from clew[\w.]* import (?:\([^)]*\)|[^\n]*))|import clew[^\n]*)", re.MULTILINE)

exported: list[Any] = [getattr(module, name) for module in MODULES for name in module.__all__]
public = {id(each) for each in exported}
base_classes = {(base.__name__, base) for each in exported if isinstance(each, type) for base in each.__mro__}
"""The base classes of public classes: clew.Agent is the generic Agent, for an Engine's threads."""


def is_public(name: str, value: Any) -> bool:
    return id(value) in public or (isinstance(value, type) and (name, value) in base_classes)


def hints(each: Any) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Each annotation of a public class or function: where it is, the annotation, and the names in its scope."""
    if inspect.isfunction(each):
        yield from ((f"{each.__name__}({name})", hint, each.__globals__) for name, hint in each.__annotations__.items())
    if not isinstance(each, type):
        return
    for cls in each.__mro__:
        if not cls.__module__.startswith("clew.") or cls.__name__ in FOR_AGENTS:
            continue
        names = vars(sys.modules[cls.__module__])
        for name, hint in inspect.get_annotations(cls).items():
            if not name.startswith("_"):
                yield f"{each.__name__}.{name}", hint, names
        for name, function in functions(each, cls):
            for parameter, hint in function.__annotations__.items():
                yield f"{each.__name__}.{name}({parameter})", hint, function.__globals__
        for name, created in created_attributes(cls):
            yield f"{each.__name__}.{name}", created, names


def functions(each: type, cls: type) -> Iterator[tuple[str, Any]]:
    """The methods and properties that a class or its base defines for users.

    These are the public ones, those that Python calls, such as ``__aiter__``, and the constructor if users call it.
    """
    constructed = each.__name__ in MODULES[0].__all__ and each.__name__ not in BUILT_BY_METHODS
    for name, member in vars(cls).items():
        function = member.func if isinstance(member, cached_property) else member
        function = getattr(function, "fget", getattr(function, "__func__", function))
        is_special = name.startswith("__") and name.endswith("__") and name not in {"__init__", "__new__"}
        is_shown = not name.startswith("_") or is_special or (name == "__init__" and constructed)
        if is_shown and inspect.isfunction(function):
            yield name, function


def created_attributes(cls: type) -> Iterator[tuple[str, str]]:
    """The public attributes that a constructor sets to a new object and no annotation declares, and their classes."""
    constructor = vars(cls).get("__init__")
    if not inspect.isfunction(constructor) or constructor.__code__.co_filename != inspect.getsourcefile(cls):
        return  # none, or made by a dataclass
    declared = {name for each in cls.__mro__ for name in inspect.get_annotations(each)}
    for node in ast.walk(ast.parse(dedent(inspect.getsource(constructor)))):
        match node:
            case ast.Assign([ast.Attribute(ast.Name("self"), name)], ast.Call(ast.Name(created))):
                if not name.startswith("_") and name not in declared:
                    yield name, created


class Inner:
    """A private class of this test."""


class Outer:
    """A class that reveals the private class in every way that the test must find."""

    def __init__(self) -> None:
        self.created = Inner()

    def __aiter__(self) -> Inner:
        return self.created

    @cached_property
    def cached(self) -> Inner:
        return self.created

    @classmethod
    def made(cls, inner: Inner) -> None: ...


def test_private_types_are_found_wherever_a_class_reveals_them() -> None:
    found = {name: function.__annotations__ for name, function in functions(Outer, Outer)}
    assert {name for name, annotations in found.items() if "Inner" in annotations.values()} == {
        "__aiter__",
        "cached",
        "made",
    }
    assert list(created_attributes(Outer)) == [("created", "Inner")]


def clew_types_in(hint: Any, names: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The classes and type aliases of Clew that an annotation names."""
    hint = getattr(hint, "__forward_arg__", hint)  # annotations of a named tuple
    if not isinstance(hint, str):
        yield from ((each.__name__, each) for each in classes(hint))
        return
    for node in ast.walk(ast.parse(hint, mode="eval")):
        if isinstance(node, ast.Name):
            value = names.get(node.id, getattr(builtins, node.id, None)) or imported_for_types(names, node.id)
            if typing.get_args(value) or (isinstance(value, type) and value.__module__.startswith("clew.")):
                yield node.id, value


def imported_for_types(names: dict[str, Any], name: str) -> Any:
    """The object that a module imports by that name under TYPE_CHECKING; None if it is not from Clew."""
    source = Path(names["__file__"]).read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and name in {each.asname or each.name for each in node.names}
        ):
            return getattr(importlib.import_module(node.module), name) if node.module.startswith("clew.") else None
    return None


def classes(hint: Any) -> Iterator[Any]:
    """Clew's classes in a type, at any depth."""
    if isinstance(hint, list | tuple):
        for each in hint:
            yield from classes(each)
    elif isinstance(hint, type) and hint.__module__.startswith("clew.") and not typing.get_args(hint):
        yield hint
    elif typing.get_origin(hint) is not typing.Literal:
        yield from classes(typing.get_args(hint))


def test_every_type_in_a_public_signature_is_public() -> None:
    missing: dict[str, str] = {}
    seen: set[int] = set()
    pending = list(exported)
    while pending:
        each = pending.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        pending += classes(each) if typing.get_args(each) else ()
        for where, hint, names in hints(each):
            for name, value in clew_types_in(hint, names):
                pending.append(value)
                if not is_public(name, value):
                    missing[name] = f"{where}: {hint}"
    assert missing == {}, "Import each in clew/types.py, then run `make generate`."
    assert len(seen) > 150


@pytest.mark.parametrize("module", MODULES, ids=PUBLIC)
def test_a_public_module_defines_each_name_that_it_lists(module: types.ModuleType) -> None:
    assert module.__all__ == sorted(set(module.__all__), key=lambda name: (not name.isupper(), name))
    assert set(module.__all__) <= set(dir(module))
    assert (module.__doc__ or "").strip()


@pytest.mark.parametrize("name", ["__init__.py", "errors.py", "events.py", "types.py"])
def test_the_generated_list_of_a_public_module_is_up_to_date(name: str) -> None:
    path = ROOT / "src/clew" / name
    assert path.read_text(encoding="utf-8") == generator().written(path), f"{name} is out of date: run `make generate`"


def generator() -> Any:
    spec = importlib.util.spec_from_file_location("public_names", ROOT / "tools/public_names.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_event_model_is_public() -> None:
    from clew import events
    from clew.domain.events import EVENT_TYPES

    assert {each.model.__name__ for each in EVENT_TYPES.values()} <= set(events.__all__)


def private_imports(code: str) -> Iterator[str]:
    """The private modules and names of Clew that a piece of code imports."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name.startswith("clew.") and each.name not in PUBLIC)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "clew":
            module = sys.modules[node.module] if node.module in PUBLIC else None
            for each in node.names:
                submodule = f"{node.module}.{each.name}" in PUBLIC
                if module is None or (each.name not in module.__all__ and not submodule):
                    yield f"{node.module}.{each.name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_imports_only_public_names(page: Path) -> None:
    for block in CODE.findall(page.read_text(encoding="utf-8")):
        for statement in IMPORT.findall(block):
            assert list(private_imports(statement)) == [], f"{page.name} imports private names"


@pytest.mark.parametrize("example", sorted((ROOT / "examples").rglob("*.py")), ids=lambda path: path.name)
def test_an_example_imports_only_public_names(example: Path) -> None:
    assert list(private_imports(example.read_text(encoding="utf-8"))) == []


def test_a_public_name_refers_to_one_object() -> None:
    objects: dict[str, set[int]] = {}
    for module in MODULES:
        for name in module.__all__:
            objects.setdefault(name, set()).add(id(getattr(module, name)))
    assert [name for name, ids in objects.items() if len(ids) > 1] == []


def test_signatures_in_the_reference_use_public_names() -> None:
    page = (ROOT / "docs" / "reference.md").read_text("utf-8")
    for signature in (
        "async for … in ask(request: ModelRequest) -> AsyncGenerator[ModelUpdate]",
        "    script: ScriptLine | ScriptFunction | Sequence[ScriptLine | ScriptFunction],",
        '    by: UsageBy = "total",',
        '    kind: ColumnKind = "text",',
    ):
        assert signature in page
    assert re.findall(r"\b(?:Intent|LineFunction)\b", page) == []
    assert re.findall(r": (?:By|Kind|Line|Update|When)\b", page) == []
