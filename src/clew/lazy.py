"""Public modules that import a name when it is first used: ``import clew`` stays fast."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType


def resolver(module: str, homes: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The ``__getattr__`` and the ``__dir__`` of a module whose names are defined elsewhere.

    ``homes`` maps each name to where it is defined: ``package.module``, or ``package.module:other_name``.
    """
    namespace = vars(sys.modules[module])

    def getattribute(name: str) -> object:
        if name not in homes:
            message = f"module {module!r} has no attribute {name!r}"
            raise AttributeError(message)
        home, _, original = homes[name].partition(":")
        namespace[name] = found = getattr(_imported(home), original or name)
        return found

    return getattribute, lambda: sorted({*namespace, *homes})


def _imported(module: str) -> ModuleType:
    """The module. Raises ImportError where Clew cannot run.

    orjson is not declared safe without the global interpreter lock: its import turns the lock on, unless PYTHON_GIL=0
    forbids that. A subinterpreter cannot load pydantic, or, on Python 3.11, cannot start threads.
    """
    if _in_subinterpreter():
        message = (
            "Clew runs in the main interpreter only, and this is a subinterpreter. Use a thread or a process instead."
        )
        raise ImportError(message, name=module)
    imported = import_module(module)
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        message = "Clew needs the global interpreter lock (GIL), because orjson is not safe without it. "
        message += "Start Python with PYTHON_GIL=1, or use a Python that is not free-threaded."
        raise ImportError(message, name=module)
    return imported


def _in_subinterpreter() -> bool:
    # Python 3.14 has a public module for it, which imports much; before, only these know.
    for name in ("_interpreters", "_xxsubinterpreters"):
        with contextlib.suppress(ImportError):
            interpreters = import_module(name)
            return bool(interpreters.get_current() != interpreters.get_main())
    return False
