"""The contract of context providers: what anybody's own must hold, tried on real threads in a store of its own."""

from __future__ import annotations

import asyncio
import inspect
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeAlias, TypeVar

from clew.aio.threads import LocalThread, RemoteThread
from clew.domain.context.errors import ProviderContractError
from clew.domain.context.events import ContextFailed, ContextProvided, ContextStateRecorded
from clew.domain.context.provider import ContextProvider
from clew.domain.messages import Message
from clew.domain.models.client import ThreadKind
from clew.domain.runs.errors import ContextProviderError, ModelRequestError
from clew.engine import Agent, Engine
from clew.infrastructure.scripted_client import Line, ScriptedChatClient, call
from clew.testing.provider_shape import check_shape

T = TypeVar("T")

MakeProvider: TypeAlias = Callable[[], ContextProvider | Awaitable[ContextProvider]]
"""Makes a provider; each call makes another one, as each process of an application does."""

AnyThread: TypeAlias = LocalThread | RemoteThread

TEXTS = ("Hello, my name is Caoimhe.", "I prefer kilometres.", "How far is it to Cork?")

_ANSWER = "Noted."


class _Seen(NamedTuple):
    """What a provider gave and kept in one run, as JSON."""

    given: str
    kept: str


_SAYS = _Seen("gave", "kept")


async def check_context_provider(
    make: MakeProvider,
    *,
    texts: Sequence[str] = TEXTS,
    shared: bool = False,
    repeatable: bool = True,
) -> None:
    """Try a context provider on threads of all kinds. Raises ProviderContractError, which names the rule it breaks.

    ``make`` makes one, and another each time. ``texts`` are what users say, in turn, two at least; say what the
    provider listens for. A provider is ``shared`` when what it is told on one thread may reach others, because it
    remembers outside the thread; and it is not ``repeatable`` when the same conversation may give another context, as
    with the time of day. For such a provider less can be said.

    Tried are: a run after the other, streamed and not, on local and on remote threads; several threads at once; a
    fork, a rewind, and a thread that is taken up with another instance in another engine; calls of tools, a message
    that was redacted, a model that fails and a stream that is left; and the hooks of the thread's life.
    """
    if len(texts) < 2:  # noqa: PLR2004  # a fork needs something before it and something after
        raise ValueError("check_context_provider needs two texts at least, to fork between them.")
    lab = _Lab(make, tuple(texts), shared=shared, same=repeatable and not shared)
    for check in (_check_ids, _check_runs, _check_branches, _check_resumed, _check_trouble, _check_life):
        await check(lab)


class _Lab:
    """Where a provider is tried: ``shared`` says that threads may share, ``same`` that what is repeated is equal."""

    def __init__(self, make: MakeProvider, texts: tuple[str, ...], *, shared: bool, same: bool) -> None:
        self._make = make
        self.texts = texts
        self.shared = shared
        self.same = same
        self.provider = ""

    async def made(self) -> ContextProvider:
        """A provider."""
        found = self._make()
        provider = check_shape(await found if inspect.isawaitable(found) else found)
        self.provider = provider.id
        return provider

    @asynccontextmanager
    async def opened(self, url: str = "memory:") -> AsyncIterator[_Room]:
        """An engine on a store, and one instance in it, as in a process."""
        async with Engine.open(url) as engine:
            yield _Room(self, engine, await self.made())

    def broken(self, rule: str, found: str) -> NoReturn:
        """The provider breaks a rule."""
        raise ProviderContractError(repr(self.provider), rule, found)

    def equal(self, rule: str, these: Sequence[_Seen], those: Sequence[_Seen]) -> None:
        """Say what differs between the same runs, where nothing may."""
        if not self.same:
            return
        for number, runs in enumerate(zip(these, those, strict=True), 1):
            for what, one, other in zip(_SAYS, *runs, strict=True):
                if one != other:
                    self.broken(
                        rule, f"in run {number} it {what} {_short(one)}, and {_short(other)} in the same run before."
                    )

    def apart(self, rule: str, seen: Sequence[_Seen], *marks: str) -> None:
        """Say what came from where it may not."""
        if self.shared:
            return
        for each in seen:
            for what, text in zip(_SAYS, each, strict=True):
                for mark in marks:
                    if mark in text:
                        self.broken(rule, f"it {what} what was said elsewhere ({mark}): {_short(text)}")


class _Room:
    """An engine with one instance of the provider."""

    def __init__(self, lab: _Lab, engine: Engine, provider: ContextProvider) -> None:
        self.lab = lab
        self.engine = engine
        self.provider = provider

    def agent(self, *script: Line, kind: ThreadKind = "local") -> Agent:
        """An agent that the provider serves."""
        client = ScriptedChatClient(list(script) or [_ANSWER], loop=True, thread_kinds=(kind,))
        return Agent(client=client, engine=self.engine, name="Contract", context_providers=self.provider)

    async def thread(self, kind: ThreadKind = "local") -> AnyThread:
        """A new thread."""
        agent = self.agent(kind=kind)
        return await self.unbroken(agent.get_remote_thread() if kind == "remote" else agent.get_local_thread())

    async def say(self, thread: AnyThread, text: str, mark: str, *, stream: bool = False) -> _Seen:
        """One run, in which the user says something and the mark."""
        agent, before, said = self.agent(kind=thread.kind), await thread.version, f"{text} {mark}"
        await self.unbroken(_streamed(agent, said, thread) if stream else agent.run(said, thread=thread))
        return await self.seen(thread, before)

    async def talk(self, thread: AnyThread, mark: str, *, stream: bool = False) -> list[_Seen]:
        """A run for each text."""
        return [await self.say(thread, text, mark, stream=stream) for text in self.lab.texts]

    async def seen(self, thread: AnyThread, after: int = 0) -> _Seen:
        """What the provider gave and kept since a version. A hook that failed breaks the contract."""
        given: list[Any] = []
        kept: list[Any] = []
        async for event in thread.events(after=after):
            match event.data:
                case ContextFailed(provider=provider, hook=hook, error=error) if provider == self.provider.id:
                    self._failed(hook, f"{error.kind}: {error.message}" if error.message else error.kind)
                case ContextProvided(provider=provider) if provider == self.provider.id:
                    given.append(event.data.model_dump(mode="json", exclude={"before", "reads", "facts"}))
                case ContextStateRecorded(provider=provider, state=state) if provider == self.provider.id:
                    kept.append(state)
                case _:
                    pass
        return _Seen(*(json.dumps(each, ensure_ascii=False, sort_keys=True) for each in (given, kept)))

    async def unbroken(self, work: Awaitable[T]) -> T:
        """What comes of something that must not fail because of the provider."""
        try:
            return await work
        except ContextProviderError as error:
            self._failed(error.hook, f"{error} ({error.__cause__!r})")

    def _failed(self, hook: str, why: str) -> NoReturn:
        self.lab.broken("none of its hooks fails", f"{hook} does. {why}")


async def _check_ids(lab: _Lab) -> None:
    one, other = await lab.made(), await lab.made()
    if one is other:
        lab.broken("each call of what makes it makes another", "it is the same object twice. Make it in the function.")
    if one.id != other.id:
        lab.broken("its id stays", f"two of it are called {one.id!r} and {other.id!r}, and could not find their state.")


async def _check_runs(lab: _Lab) -> None:
    """One after the other and at once, streamed and not, on local and remote threads."""
    async with lab.opened() as room:
        alone = await room.talk(await room.thread(), "mark-0")
    async with lab.opened() as room:
        threads = [await room.thread() for _ in range(3)]
        at_once: list[list[_Seen]] = [[] for _ in threads]
        for text in lab.texts:
            turns = (room.say(thread, text, f"mark-{n}") for n, thread in enumerate(threads))
            for seen, found in zip(at_once, await asyncio.gather(*turns), strict=True):
                seen.append(found)
    for n, seen in enumerate(at_once):
        lab.apart("threads share nothing", seen, *(f"mark-{other}" for other in range(3) if other != n))
    lab.equal("a thread is served as if it were the only one", at_once[0], alone)
    async with lab.opened() as room:
        streamed = await room.talk(await room.thread(), "mark-0", stream=True)
        lab.equal("it does the same in a run that is streamed", streamed, alone)
    async with lab.opened() as room:
        remote = await room.talk(await room.thread("remote"), "mark-0")
        lab.equal("it does the same on a remote thread", remote, alone)


async def _check_branches(lab: _Lab) -> None:
    """A fork and a rewind know nothing of what was said after them."""
    async with lab.opened() as room:
        thread = await room.thread()
        await room.say(thread, lab.texts[0], "mark-0")
        cut = await thread.version
        first = await room.say(thread, lab.texts[1], "mark-1")
        forked = await room.say(await thread.fork(at=cut), lab.texts[1], "mark-2")
        lab.apart("a fork knows nothing of what comes after its cut", [forked], "mark-1")
        forked = await room.say(await thread.fork(at=cut), lab.texts[1], "mark-1")
        lab.equal("a fork goes on as its parent did", [forked], [first])
        await thread.rewind(to=cut)
        rewound = await room.say(thread, lab.texts[1], "mark-3")
        lab.apart("what was rewound is not known", [rewound], "mark-1", "mark-2")
        await thread.rewind(to=cut)
        rewound = await room.say(thread, lab.texts[1], "mark-1")
        lab.equal("a thread that was rewound goes on as it did before", [rewound], [first])


async def _check_resumed(lab: _Lab) -> None:
    """Another instance goes on where one left off: nothing but the state may be needed."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder, 'clew.db')}"
        async with lab.opened(url) as room:
            thread = await room.thread()
            await room.talk(thread, "mark-0")
            cut = await thread.version
            here = await room.say(await thread.fork(at=cut), lab.texts[0], "mark-0")
        async with lab.opened(url) as room:
            again = await room.engine.thread(thread.id)
            there = await room.say(await again.fork(at=cut), lab.texts[0], "mark-0")
    lab.equal("it keeps what it knows of a thread in ctx.state, and not in itself", [there], [here])


async def _check_trouble(lab: _Lab) -> None:
    """A model that fails, a stream that is left, calls of tools, and a message whose content is gone."""
    async with lab.opened() as room:
        thread = await room.thread()
        fails = room.agent(ModelRequestError("The model fails, as it is to."))
        with suppress(ModelRequestError):
            await room.unbroken(fails.run(f"{lab.texts[0]} mark-0", thread=thread))
        await room.unbroken(_streamed(room.agent("One two three."), lab.texts[0], thread, left=True))
        calls = room.agent(call("contract_tool"), _ANSWER)
        await room.unbroken(calls.run(lab.texts[1], thread=thread, tools=[contract_tool]))
        await thread.redact((await thread.history()).messages[0])
        await room.say(thread, lab.texts[1], "mark-0")
        await thread.append(Message.user(lab.texts[0]))
        await room.unbroken(room.agent().run(thread=thread))
        await room.seen(thread)


async def _check_life(lab: _Lab) -> None:
    """The hooks of a thread's life."""
    async with lab.opened() as room:
        thread = await room.thread()
        await room.say(thread, lab.texts[0], "mark-0")
        named = partial(thread.checkpoint, "contract")
        for step in (thread.suspend, thread.resume, named, thread.end, thread.delete):
            await room.unbroken(step())
        await room.seen(thread)


async def _streamed(agent: Agent, said: str, thread: AnyThread, *, left: bool = False) -> None:
    """A run whose answer is streamed; one that is ``left`` is so at its first word."""
    async with agent.run(said, thread=thread, stream=True) as stream:
        async for _ in stream:
            if left:
                return


def contract_tool() -> str:
    """Answer with a word."""
    return "word"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 300 else f"{text[:299]}…"  # noqa: PLR2004  # enough to tell by
