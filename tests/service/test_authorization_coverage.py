"""Nothing leaves the service without a grant: every public name of both APIs is called, or listed as harmless."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from io import BytesIO
from typing import Any, NamedTuple

import pytest

from clew import Agent, Context, ContextProvider, Conversations, Engine, Fold, Message, Record, ScriptedChatClient
from clew.aio import memory as aio_memory
from clew.aio import subscription as aio_subscription
from clew.aio import threads as aio_threads
from clew.domain.context.provider import ProviderContext
from clew.domain.formats.conversation_import import Item
from clew.domain.history import HistoryMessage
from clew.domain.memory.events import Provenance
from clew.domain.memory.facts import Document
from clew.domain.models.responses_requests import OPENAI_RESPONSES
from clew.domain.projection import Query
from clew.errors import ClewError, NotAuthorizedError
from clew.service import run_log
from clew.sync import memory, subscription, threads

CANARY = "xyzzy"
HIDDEN = "hidden"


class Ask(NamedTuple):
    """A call, its outcome without access, and whether it shows data with full access."""

    call: Callable[[Any], Any]
    outcome_without_access: str = "refused"
    shows: bool = True


def refused(call: Callable[[Any], Any], *, shows: bool = True) -> Ask:
    return Ask(call, "refused", shows)


def nothing(call: Callable[[Any], Any], *, shows: bool = True) -> Ask:
    return Ask(call, "nothing", shows)


def writes(call: Callable[[Any], Any]) -> Ask:
    return Ask(call, "refused", shows=False)


IMPORTED = {"id": "source", "messages": [{"role": "user", "content": f"{CANARY} imported"}]}

SERVICE = {
    "open_thread": [refused(lambda held: held.service.open_thread("hidden-1"))],
    "thread": [refused(lambda held: held.service.thread("hidden-1"))],
    "restore_thread": [refused(lambda held: held.service.restore_thread(held.document))],
    "find": [Ask(lambda held: held.service.find("hidden-"), "unknown", shows=False)],
    "threads": [
        nothing(lambda held: held.service.threads()),
        nothing(lambda held: held.service.threads(labels={"topic": CANARY}, order="updated", limit=3)),
        nothing(lambda held: held.service.threads(parent="hidden-1")),
        refused(lambda held: held.service.threads(after="hidden-1")),
    ],
    "tree": [nothing(lambda held: held.service.tree()), refused(lambda held: held.service.tree("hidden-1"))],
    "search": [
        nothing(lambda held: held.service.search(CANARY)),
        refused(lambda held: held.service.search(CANARY, thread="hidden-1")),
    ],
    "audit": [
        nothing(lambda held: held.service.audit()),
        nothing(lambda held: held.service.audit(scope="hidden-scope")),
        refused(lambda held: held.service.audit(thread="hidden-1")),
    ],
    "costs": [
        nothing(lambda held: held.service.costs(by="thread"), shows=False),
        refused(lambda held: held.service.costs(thread="hidden-1"), shows=False),
    ],
    "usage": [
        nothing(lambda held: held.service.usage(by="thread")),
        nothing(lambda held: held.service.usage(by="day"), shows=False),
        refused(lambda held: held.service.usage(thread="hidden-1"), shows=False),
    ],
    "import_items": [nothing(lambda held: held.service.import_items([Item("memory", None, IMPORTED)]), shows=False)],
    "import_events": [refused(lambda held: held.service.import_events(BytesIO(held.file)), shows=False)],
    "export": [
        nothing(lambda held: held.service.export(forks=True)),
        refused(lambda held: held.service.export("hidden-1")),
    ],
    "export_events": [
        nothing(lambda held: held.service.export_events(definitions=True)),
        refused(lambda held: held.service.export_events("hidden-1")),
        refused(lambda held: held.service.export_events("hidden-fork")),
    ],
    "subscribe": [nothing(lambda held: held.service.subscribe())],
    "fork_point": [refused(lambda held: held.service.fork_point("hidden-1", "hidden-fork"))],
    "diff": [refused(lambda held: held.service.diff("hidden-1", "hidden-fork"))],
    "rows": [refused(lambda held: held.service.rows("directory", Query("thread")))],
    "projections": [refused(lambda held: held.service.projections(), shows=False)],
    "verify": [
        refused(lambda held: held.service.verify(), shows=False),
        refused(lambda held: held.service.verify("hidden-1"), shows=False),
    ],
    "threads_with_lease": [nothing(lambda held: held.service.threads_with_lease(), shows=False)],
    "approvals": [nothing(lambda held: held.service.approvals(), shows=False)],
    "chat": [refused(lambda held: held.service.chat("hidden-1"), shows=False)],
    "memory": [refused(lambda held: held.service.memory("hidden-scope"))],
    "scopes": [refused(lambda held: held.service.scopes())],
    "documents": [refused(lambda held: held.service.documents("shelf", namespace="all"), shows=False)],
}
HARMLESS_ON_SERVICE = {
    *("open", "actor", "acting_as", "close", "blocking", "awaited"),
    "batch",  # test_batches.py checks its parts
    *("start_thread", "unstarted_thread", "start_remote_thread", "start_chat"),  # a new thread
    *("wait", "rebuild", "position", "erase"),  # return only numbers of the whole store, or whether it is done
    "import_files",  # calls import_items
}

THREAD = {
    "summary": [refused(lambda held: held.thread.summary())],
    "append": [writes(lambda held: held.thread.append(Message.user("More")))],
    "label": [writes(lambda held: held.thread.label(topic="mine"))],
    "checkpoint": [writes(lambda held: held.thread.checkpoint("mine"))],
    "fork": [writes(lambda held: held.thread.fork()), writes(lambda held: held.thread.fork(kind="local", at=2))],
    "rewind": [writes(lambda held: held.thread.rewind(2))],
    "edit": [writes(lambda held: held.thread.edit(2, "Else"))],
    "redact": [writes(lambda held: held.thread.redact(2))],
    "purge": [writes(lambda held: held.thread.purge(forks=True))],
    "suspend": [writes(lambda held: held.thread.suspend())],
    "resume": [writes(lambda held: held.thread.resume())],
    "end": [writes(lambda held: held.thread.end())],
    "delete": [writes(lambda held: held.thread.delete())],
    "history": [
        refused(lambda held: held.thread.history()),
        refused(lambda held: held.thread.history(at_message=1)),
        refused(lambda held: held.thread.history(last=1)),
    ],
    "view": [refused(lambda held: held.thread.view())],
    "request": [refused(lambda held: held.thread.request(held.call))],
    "markdown": [refused(lambda held: held.thread.markdown())],
    "serialize": [refused(lambda held: held.thread.serialize())],
    "variants": [refused(lambda held: held.thread.variants(2))],
    "state": [refused(lambda held: held.thread.state(at=3))],
    "events": [
        refused(lambda held: held.thread.events()),
        refused(lambda held: held.thread.events(types=["record-appended"])),
    ],
    "records": [
        refused(lambda held: held.thread.records()),
        refused(lambda held: held.thread.records("note", last=1)),
    ],
    "fold": [refused(lambda held: held.thread.fold(Fold("texts", 1, "", lambda text, event: f"{text} {event.data}")))],
    "replay": [refused(lambda held: held.thread.replay())],
    "step": [refused(lambda held: held.thread.step(at=2))],
    "forks": [refused(lambda held: held.thread.forks())],
    "subscribe": [refused(lambda held: held.thread.subscribe())],
    "verify": [refused(lambda held: held.thread.verify(), shows=False)],
    "version": [refused(lambda held: held.thread.version, shows=False)],
    "status": [refused(lambda held: held.thread.status, shows=False)],
    "open_run": [refused(lambda held: held.thread.open_run, shows=False)],
    # For agents, so only in the engine.
    "run": [writes(lambda held: held.thread.bound_to(held.agent).run("More"))],
    "continue_run": [writes(lambda held: held.thread.bound_to(held.agent).continue_run())],
    "follow": [
        refused(lambda held: held.thread.follow()),
        refused(lambda held: held.thread.follow().response()),
    ],
    "stop_run": [writes(lambda held: held.thread.stop_run())],
    "approvals": [refused(lambda held: held.thread.approvals(), shows=False)],
    "standing_approvals": [refused(lambda held: held.thread.standing_approvals(), shows=False)],
    "revoke_standing_approval": [refused(lambda held: held.thread.revoke_standing_approval("pay"), shows=False)],
    "context": [writes(lambda held: held.provided.context("More"))],
    "notify": [writes(lambda held: held.provided.notify("on_suspend"))],
    "branch": [writes(lambda held: held.thread.branch())],
    "rewound": [writes(lambda held: held.thread.rewound(2))],
    "service_history": [refused(lambda held: held.remote.service_history(client=held.holder), shows=False)],
    "reconcile": [refused(lambda held: held.remote.reconcile(client=held.holder), shows=False)],
    "service_thread_id": [refused(lambda held: held.remote.service_thread_id)],
}
HARMLESS_OF_THREAD = {
    *("id", "kind", "agent", "context_providers", "runs"),
    *("bound_to", "unstarted"),  # return an object without reading
    "scope",  # for the context providers of a run, which are code
}
ONLY_ASYNC = {"delete": [writes(lambda held: held.remote.delete(service=True, client=held.holder))]}
"""Deletes also at the service, so only with asyncio."""

RUNS = {
    "control": [
        refused(lambda held: held.thread.runs.control()),
        refused(lambda held: held.thread.runs.control(fresh=True)),
    ],
    "history": [refused(lambda held: held.thread.runs.history())],
    "history_part": [refused(lambda held: held.thread.runs.history_part(1, None))],
    "service_state": [
        refused(lambda held: held.remote.runs.service_state()),
        refused(lambda held: held.remote.runs.service_state(3), shows=False),
    ],
    "channel": [refused(lambda held: held.thread.runs.channel("hidden-fork"), shows=False)],
    "events": [refused(lambda held: held.thread.runs.events(0))],
    "event": [refused(lambda held: held.thread.runs.event(2))],
    "blob": [refused(lambda held: held.thread.runs.blob("00" * 32), shows=False)],
    "lease": [refused(lambda held: held.thread.runs.lease(), shows=False)],
    "draft": [refused(lambda held: held.thread.runs.draft(), shows=False)],
}
HARMLESS_OF_RUNS = {
    *("is_in", "begins", "reads_at", "of", "inner", "outer"),
    "repeated",  # finds nothing without the key
    "cost",  # looks a price up
    *("claim_state", "supply", "record", "hold", "put_draft", "changed"),  # write, or wait
}

SCOPE = {
    "remember": [writes(lambda held: held.scope.remember("More"))],
    "supersede": [writes(lambda held: held.scope.supersede(held.fact, "Else"))],
    "retract": [writes(lambda held: held.scope.retract(held.fact))],
    "put": [writes(lambda held: held.scope.put("key", "More"))],
    "get": [refused(lambda held: held.scope.get("key"))],
    "delete": [writes(lambda held: held.scope.delete("key"))],
    "facts": [refused(lambda held: held.scope.facts())],
    "search": [refused(lambda held: held.scope.search(CANARY))],
    "why": [refused(lambda held: held.scope.why(held.fact))],
    "used_by": [refused(lambda held: held.scope.used_by(held.fact))],
    "promote": [writes(lambda held: held.scope.promote(held.fact, to=held.wider))],
}
HARMLESS_OF_SCOPE = {"name", "of_thread", "reads", "tools"}  # tools call the others

DOCUMENTS = {
    "upsert": [writes(lambda held: held.documents.upsert([held.more]))],
    "remove": [writes(lambda held: held.documents.remove("link"))],
    "search": [refused(lambda held: held.documents.search(CANARY))],
}

SUBSCRIPTION = {"wait": [nothing(lambda held: held.subscription.wait(0), shows=False)]}  # a skipped event stays skipped


class Passing(ContextProvider):
    """Passes on what a scope knows."""

    scope = "hidden-scope"

    async def invoking(self, ctx: ProviderContext, messages: Sequence[HistoryMessage]) -> Context:
        del messages
        return Context(facts=await ctx.scope.facts())


class Holder:
    """The service of a remote thread; no call may reach it."""

    wire = OPENAI_RESPONSES

    async def service_history(self, service: object) -> list[Message]:
        raise AssertionError(service)

    async def delete_service_thread(self, service: object) -> None:
        raise AssertionError(service)


class Rule:
    """Allows everything to all actors, or only to the operator."""

    def __init__(self) -> None:
        self.allows_all = True

    def authorize(self, actor: str | None, action: str, thread: str | None) -> bool:
        del action, thread
        return self.allows_all or actor == "operator"


class Held:
    """Objects that an actor obtained with full access, before it was revoked."""

    service: Any
    thread: Any
    remote: Any

    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)


async def build(url: str) -> dict[str, Any]:
    """Fill a store with private data; return what the calls need."""
    async with Engine.open(url) as engine:
        scope = await engine.memory("hidden-scope")
        thread = await engine.start_thread(
            f"{CANARY} title", thread_id="hidden-1", labels={"topic": CANARY}, metadata={"m": CANARY}
        )
        shown = await thread.append(Message.user(f"{CANARY} one"))
        source = Provenance(thread="hidden-1", version=shown.version)
        await scope.remember(f"{CANARY} fact", key="key", source=source)
        client = ScriptedChatClient(lambda _: f"{CANARY} answer")
        agent = Agent(client, engine=engine, instructions=f"{CANARY} instructions", context_providers=Passing())
        await agent.run(f"{CANARY} question", thread=thread)
        await thread.append(Record("note", {"text": f"{CANARY} note"}))
        await thread.checkpoint(f"{CANARY} point")
        await (await thread.fork(thread_id="hidden-fork")).append(Message.user(f"{CANARY} forked"))
        shelf = await engine.documents("shelf", namespace="all")
        await shelf.upsert([Document(f"{CANARY} document", namespaces=["all"], source_link="link")])
        await engine.import_items([Item("memory", None, IMPORTED)])
        remote = await agent.engine.start_remote_thread(f"resp_{CANARY}")
        file = b"".join([line async for line in engine.export_events()])
        (call,) = [event.version async for event in thread.events() if event.type == "model-called"]
        return {"document": await thread.serialize(), "file": file, "remote_id": remote.id, "call": call}


async def resolve(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def hold(service: Any, seeded: dict[str, Any]) -> Any:
    """Collect the objects to call, from a service of either API."""
    client = ScriptedChatClient(lambda _: f"{CANARY} answer")
    scope = await resolve(service.memory("hidden-scope"))
    thread = await resolve(service.thread("hidden-1"))
    held: Any = Held(
        **seeded,
        service=service,
        thread=thread,
        remote=await resolve(service.thread(seeded["remote_id"])),
        scope=scope,
        wider=await resolve(service.memory("wider")),
        fact=(await resolve(scope.facts()))[0],
        subscription=service.subscribe(),
    )
    if isinstance(service, Engine):
        held.holder = Holder()
        held.agent = Agent(client, engine=service)
        held.provided = thread.bound_to(Agent(client, engine=service, context_providers=Passing()))
        held.documents = await service.documents("shelf", namespace="all")
        held.more = Document("More", namespaces=["all"])
    return held


async def outcome(ask: Ask, held: Held) -> tuple[type[BaseException] | None, str]:
    """Return the error type, and the repr of the result or of the error with its causes."""
    try:
        result = await resolve(ask.call(held))
        if isinstance(result, subscription.Subscription | aio_subscription.Subscription):
            result = await resolve(result.wait(0))
        elif isinstance(result, AsyncIterator):
            result = [each async for each in result]
        elif isinstance(result, Iterator):
            result = list(result)
    except ClewError as error:
        return type(error), f"{error!r} {error.__cause__!r} {error.__context__!r} {vars(error)}"
    return None, repr(result)


def public(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


def calls_of(held: Held) -> list[tuple[str, Ask]]:
    """Return all calls that the service's API offers."""
    is_async = isinstance(held.service, Engine)
    names = {id(SERVICE): public(type(held.service)), id(THREAD): public(type(held.thread)) | public(type(held.remote))}
    tables = [SERVICE, THREAD, SCOPE, SUBSCRIPTION, *((ONLY_ASYNC, RUNS, DOCUMENTS) if is_async else ())]
    return [
        (name, ask)
        for table in tables
        for name, asks in table.items()
        for ask in asks
        if name in names.get(id(table), table)
    ]


@pytest.mark.parametrize(
    ("classes", "asked", "harmless"),
    [
        ((Conversations, Engine), SERVICE, HARMLESS_ON_SERVICE),
        ((threads.LocalThread, threads.RemoteThread), THREAD, HARMLESS_OF_THREAD),
        ((aio_threads.LocalThread, aio_threads.RemoteThread), THREAD, HARMLESS_OF_THREAD),
        ((run_log.ThreadRuns,), RUNS, HARMLESS_OF_RUNS),
        ((memory.MemoryScope, aio_memory.MemoryScope), SCOPE, HARMLESS_OF_SCOPE),
        ((aio_memory.DocumentStore,), DOCUMENTS, {"name", "namespace"}),
        ((subscription.Subscription, aio_subscription.Subscription), SUBSCRIPTION, {"close"}),
    ],
)
def test_every_public_name_is_called_or_listed_as_harmless(
    classes: Sequence[type], asked: dict[str, Any], harmless: set[str]
) -> None:
    assert not asked.keys() & harmless
    for cls in classes:
        assert public(cls) - asked.keys() - harmless == set(), f"{cls}: does it read data? Classify it above."


@pytest.mark.parametrize("face", [Conversations, Engine])
def test_nothing_leaves_a_service_without_access(face: type[Any], shared_url: str) -> None:
    rule = Rule()

    async def check() -> None:
        seeded = await build(shared_url)
        service = face.open(shared_url, authorize=rule.authorize)
        held = await hold(service.acting_as("stranger"), seeded)
        before = await resolve(service.acting_as("operator").position())
        rule.allows_all = False
        for name, ask in calls_of(held):
            raised, shown = await outcome(ask, held)
            assert CANARY not in shown, (name, shown)
            assert (raised is NotAuthorizedError) == (ask.outcome_without_access == "refused"), (name, shown)
            assert ask.outcome_without_access != "nothing" or HIDDEN not in shown, (name, shown)
        assert await resolve(service.acting_as("operator").position()) == before
        rule.allows_all = True
        for name, ask in calls_of(held):
            if ask.shows:
                raised, shown = await outcome(ask, held)
                assert raised is None, (name, shown)
                assert CANARY in shown or HIDDEN in shown, (name, shown)
        await resolve(service.close())

    asyncio.run(check())
