"""The synchronous service and the one for asyncio say the same."""

from __future__ import annotations

import inspect

import pytest

from clew import conversations, engine, engine_threads, threads
from clew.service import awaiting, subscription

PAIRS = [
    (conversations.Conversations, engine.Engine),
    (threads.LocalThread, engine_threads.LocalThread),
    (subscription.Subscription, awaiting.Subscription),
]
AWAITED = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__anext__": "__next__", "__aiter__": "__iter__"}


def said(cls: type) -> dict[str, object]:
    """The public names of a class, with the parameters, kinds and defaults of those that are called."""
    found: dict[str, object] = {}
    for name in dir(cls):
        shown = AWAITED.get(name, name)
        value = inspect.getattr_static(cls, name)
        if name.startswith("_") and name not in AWAITED and name not in AWAITED.values():
            continue
        if isinstance(value, property):
            found[shown] = "property"
        elif name in AWAITED or name in AWAITED.values():
            found[shown] = "called by Python"
        else:
            parameters = inspect.signature(getattr(cls, name)).parameters.values()
            found[shown] = [(p.name, p.kind, p.default, str(p.annotation)) for p in parameters]
    return found


@pytest.mark.parametrize(("synchronous", "awaited"), PAIRS, ids=lambda cls: str(cls.__name__))
def test_both_faces_have_the_same_names_parameters_and_defaults(synchronous: type, awaited: type) -> None:
    assert said(synchronous) == said(awaited)
    assert len(said(synchronous)) >= 4


@pytest.mark.parametrize(("synchronous", "awaited"), PAIRS, ids=lambda cls: str(cls.__name__))
def test_both_faces_document_the_same_names(synchronous: type, awaited: type) -> None:
    for name in said(synchronous):
        if not name.startswith("_"):
            assert inspect.getdoc(getattr(synchronous, name))
            assert inspect.getdoc(getattr(awaited, name))


def test_both_modules_offer_the_same_classes() -> None:
    def classes(module: object) -> set[str]:
        name = getattr(module, "__name__", "")
        return {key for key, value in vars(module).items() if inspect.isclass(value) and value.__module__ == name}

    assert classes(conversations) - {"Conversations"} == classes(engine) - {"Engine"}
    assert classes(threads) == classes(engine_threads)
