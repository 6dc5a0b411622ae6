"""The synchronous service and the one for asyncio say the same."""

from __future__ import annotations

import inspect

import pytest

from clew import conversations, engine
from clew.aio import memory as aio_memory
from clew.aio import runs as aio_runs
from clew.aio import threads as aio_threads
from clew.domain.runs.ports import EnginePort
from clew.service import async_operations, subscription
from clew.sync import memory, threads

PAIRS = [
    (conversations.Conversations, engine.Engine),
    (threads.LocalThread, aio_threads.LocalThread),
    (threads.RemoteThread, aio_threads.RemoteThread),
    (memory.MemoryScope, aio_memory.MemoryScope),
    (subscription.Subscription, async_operations.Subscription),
]
AWAITED = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__anext__": "__next__", "__aiter__": "__iter__"}


def public(cls: type) -> set[str]:
    """The public names that a class itself defines or annotates."""
    return {name for name in (*vars(cls), *inspect.get_annotations(cls)) if not name.startswith("_")}


# Agents run on an event loop, and so do the clients that ask a service what it holds: what they come in by is on the
# awaited face only, and nothing else is.
FOR_AGENTS = public(aio_runs.AgentThread) - {"id", "kind"}
AWAITED_ONLY: dict[type, set[str]] = {
    engine.Engine: (public(EnginePort) - {"start_thread", "thread", "restore_thread"}) | {"documents"},
    aio_memory.MemoryScope: {"of_thread", "reads", "tools"},
    aio_threads.LocalThread: FOR_AGENTS,
    aio_threads.RemoteThread: FOR_AGENTS | {"service_history", "reconcile"},
}
AWAITED_PARAMETERS: dict[tuple[type, str], set[str]] = {
    (engine.Engine, "start_thread"): {"context_providers"},
    (engine.Engine, "memory"): {"embedder"},
    (aio_threads.RemoteThread, "delete"): {"service", "client"},
}


def said(cls: type) -> dict[str, object]:
    """The public names of a class, with the parameters, kinds and defaults of those that are called."""
    found: dict[str, object] = {}
    for name in set(dir(cls)) - AWAITED_ONLY.get(cls, set()):
        shown = AWAITED.get(name, name)
        value = inspect.getattr_static(cls, name)
        if name.startswith("_") and name not in AWAITED and name not in AWAITED.values():
            continue
        if isinstance(value, property):
            found[shown] = "property"
        elif isinstance(value, str):
            found[shown] = value
        elif name in AWAITED or name in AWAITED.values():
            found[shown] = "called by Python"
        else:
            awaited_only = AWAITED_PARAMETERS.get((cls, name), set())
            parameters = inspect.signature(getattr(cls, name)).parameters.values()
            found[shown] = [
                (p.name, p.kind, p.default, str(p.annotation)) for p in parameters if p.name not in awaited_only
            ]
    return found


@pytest.mark.parametrize(("synchronous", "awaited"), PAIRS, ids=lambda cls: str(cls.__name__))
def test_both_faces_have_the_same_names_parameters_and_defaults(synchronous: type, awaited: type) -> None:
    assert said(synchronous) == said(awaited)
    assert len(said(synchronous)) >= 4


@pytest.mark.parametrize(("synchronous", "awaited"), PAIRS, ids=lambda cls: str(cls.__name__))
def test_what_agents_come_in_by_is_on_the_awaited_face_only(synchronous: type, awaited: type) -> None:
    only = AWAITED_ONLY.get(awaited, set())
    assert only <= set(dir(awaited))
    assert not only & set(dir(synchronous))


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

    assert classes(conversations) - {"Conversations"} == classes(engine) - {"Agent", "Engine"}
    assert classes(threads) == classes(aio_threads)
    assert classes(memory) == classes(aio_memory)
