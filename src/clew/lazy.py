"""Public modules that import a name when it is first used: ``import clew`` stays fast."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


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
        namespace[name] = found = getattr(import_module(home), original or name)
        return found

    return getattribute, lambda: sorted({*namespace, *homes})
