"""The contract of context providers, as a test: it runs a provider on real threads in a separate store."""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeAlias, TypeVar, get_args

from pydantic import BaseModel

from clew.aio.threads import LocalThread, RemoteThread
from clew.domain.context.events import ContextFailed, ContextProvided, ContextStateRecorded
from clew.domain.context.provider import ContextProvider, OnFailure
from clew.domain.errors import InvalidNameError
from clew.domain.messages import Message
from clew.domain.models.client import ThreadKind
from clew.domain.runs.errors import ContextProviderError, ModelRequestError, ProviderContractError
from clew.domain.streams import check_id
from clew.engine import Agent, Engine
from clew.infrastructure.scripted_client import Line, ScriptedChatClient, call

T = TypeVar("T")

_ARGUMENTS = {
    "initial_state": 1,
    "on_thread_created": 2,
    "on_message": 2,
    "invoking": 2,
    "invoked": 4,
    "on_checkpoint": 2,
    "on_suspend": 1,
    "on_resume": 1,
    "on_thread_ended": 1,
    "on_thread_deleted": 1,
}
"""The hooks, and the number of arguments that each gets."""

MakeProvider: TypeAlias = Callable[[], ContextProvider | Awaitable[ContextProvider]]
"""Returns a new provider on each call, as each process of an application has its own."""

AnyThread: TypeAlias = LocalThread | RemoteThread

TEXTS = ("Hello, my name is Caoimhe.", "I prefer kilometres.", "How far is it to Cork?")

_ANSWER = "Noted."


class _Effects(NamedTuple):
    """The context and the states that a provider added in one run, as JSON."""

    given: str
    kept: str


_VERBS = _Effects("gave", "kept")


async def check_context_provider(
    make: MakeProvider,
    *,
    texts: Sequence[str] = TEXTS,
    shared: bool = False,
    repeatable: bool = True,
) -> None:
    """Run a context provider on threads of all kinds. Raises ProviderContractError, which names the broken rule.

    ``make`` returns a new provider on each call. ``texts`` are at least two messages of users, in this order; include
    texts that the provider reacts to. Set ``shared`` for a provider that remembers outside the thread, so that one
    thread may affect others. Set ``repeatable=False`` for a provider whose context may differ for the same
    conversation, such as one with the time of day. Fewer rules apply to these.

    The check covers: runs one after the other, with and without streaming, on local and remote threads; several
    threads at once; a fork, a rewind, and a thread that a new instance continues in another engine; tool calls, a
    redacted message, a model that fails and a stream that is closed early; and the hooks of a thread's life.
    """
    if len(texts) < 2:  # noqa: PLR2004  # a fork needs a text before it and one after
        raise ValueError("check_context_provider needs at least two texts, to fork between them.")
    contract = _Contract(make, tuple(texts), shared=shared, same=repeatable and not shared)
    for check in (_check_ids, _check_runs, _check_branches, _check_resumed, _check_faults, _check_life):
        await check(contract)


class _Contract:
    """The provider and its rules: ``shared`` threads may affect each other; the ``same`` runs must be equal."""

    def __init__(self, make: MakeProvider, texts: tuple[str, ...], *, shared: bool, same: bool) -> None:
        self._make = make
        self.texts = texts
        self.shared = shared
        self.same = same
        self.provider = ""

    async def made(self) -> ContextProvider:
        made = self._make()
        provider = _check_shape(await made if inspect.isawaitable(made) else made)
        self.provider = provider.id
        return provider

    @asynccontextmanager
    async def opened(self, url: str = "memory:") -> AsyncIterator[_Process]:
        async with Engine.open(url) as engine:
            yield _Process(self, engine, await self.made())

    def broken(self, rule: str, found: str) -> NoReturn:
        raise ProviderContractError(repr(self.provider), rule, found)

    def equal(self, rule: str, these: Sequence[_Effects], those: Sequence[_Effects]) -> None:
        """Raise if the same runs had different effects."""
        if not self.same:
            return
        for number, runs in enumerate(zip(these, those, strict=True), 1):
            for verb, one, other in zip(_VERBS, *runs, strict=True):
                if one != other:
                    self.broken(
                        rule, f"in run {number} it {verb} {_short(one)}, and {_short(other)} in the same run before."
                    )

    def apart(self, rule: str, seen: Sequence[_Effects], *marks: str) -> None:
        """Raise if an effect contains a mark of another thread."""
        if self.shared:
            return
        for each in seen:
            for verb, text in zip(_VERBS, each, strict=True):
                for mark in marks:
                    if mark in text:
                        self.broken(rule, f"it {verb} content of another thread ({mark}): {_short(text)}")


class _Process:
    """An engine with one instance of the provider, as a process of an application has them."""

    def __init__(self, contract: _Contract, engine: Engine, provider: ContextProvider) -> None:
        self.contract = contract
        self.engine = engine
        self.provider = provider

    def agent(self, *script: Line, kind: ThreadKind = "local") -> Agent:
        client = ScriptedChatClient(list(script) or [_ANSWER], loop=True, thread_kinds=(kind,))
        return Agent(client=client, engine=self.engine, name="Contract", context_providers=self.provider)

    async def thread(self, kind: ThreadKind = "local") -> AnyThread:
        agent = self.agent(kind=kind)
        return await self.unbroken(agent.get_remote_thread() if kind == "remote" else agent.get_local_thread())

    async def say(self, thread: AnyThread, text: str, mark: str, *, stream: bool = False) -> _Effects:
        """One run, in which the user says a text with a mark."""
        agent, before, said = self.agent(kind=thread.kind), await thread.version, f"{text} {mark}"
        await self.unbroken(_streamed(agent, said, thread) if stream else agent.run(said, thread=thread))
        return await self.seen(thread, before)

    async def talk(self, thread: AnyThread, mark: str, *, stream: bool = False) -> list[_Effects]:
        """A run for each text."""
        return [await self.say(thread, text, mark, stream=stream) for text in self.contract.texts]

    async def seen(self, thread: AnyThread, after: int = 0) -> _Effects:
        """The provider's effects after a version. Raises for a hook that failed."""
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
        return _Effects(*(json.dumps(each, ensure_ascii=False, sort_keys=True) for each in (given, kept)))

    async def unbroken(self, work: Awaitable[T]) -> T:
        """The outcome of work that must not fail because of the provider."""
        try:
            return await work
        except ContextProviderError as error:
            self._failed(error.hook, f"{error} ({error.__cause__!r})")

    def _failed(self, hook: str, why: str) -> NoReturn:
        self.contract.broken("none of its hooks fails", f"{hook} does. {why}")


async def _check_ids(contract: _Contract) -> None:
    one, other = await contract.made(), await contract.made()
    if one is other:
        contract.broken(
            "each call of make returns another one",
            "it returned the same object twice. Create the provider in the function.",
        )
    if one.id != other.id:
        contract.broken(
            "its id is always the same",
            f"two of them have the ids {one.id!r} and {other.id!r}, and cannot share their state.",
        )


async def _check_runs(contract: _Contract) -> None:
    """Runs one after the other and at once, with and without streaming, on local and remote threads."""
    async with contract.opened() as process:
        alone = await process.talk(await process.thread(), "mark-0")
    async with contract.opened() as process:
        threads = [await process.thread() for _ in range(3)]
        at_once: list[list[_Effects]] = [[] for _ in threads]
        for text in contract.texts:
            turns = (process.say(thread, text, f"mark-{n}") for n, thread in enumerate(threads))
            for seen, found in zip(at_once, await asyncio.gather(*turns), strict=True):
                seen.append(found)
    for n, seen in enumerate(at_once):
        contract.apart("threads share nothing", seen, *(f"mark-{other}" for other in range(3) if other != n))
    contract.equal("a thread is treated as if it were the only one", at_once[0], alone)
    async with contract.opened() as process:
        streamed = await process.talk(await process.thread(), "mark-0", stream=True)
        contract.equal("it does the same in a streamed run", streamed, alone)
    async with contract.opened() as process:
        remote = await process.talk(await process.thread("remote"), "mark-0")
        contract.equal("it does the same on a remote thread", remote, alone)


async def _check_branches(contract: _Contract) -> None:
    """A fork and a rewind do not see later messages."""
    async with contract.opened() as process:
        thread = await process.thread()
        await process.say(thread, contract.texts[0], "mark-0")
        cut = await thread.version
        first = await process.say(thread, contract.texts[1], "mark-1")
        forked = await process.say(await thread.fork(at=cut), contract.texts[1], "mark-2")
        contract.apart("a fork does not see what comes after its cut", [forked], "mark-1")
        forked = await process.say(await thread.fork(at=cut), contract.texts[1], "mark-1")
        contract.equal("a fork continues as its parent did", [forked], [first])
        await thread.rewind(to=cut)
        rewound = await process.say(thread, contract.texts[1], "mark-3")
        contract.apart("a rewound message is not seen", [rewound], "mark-1", "mark-2")
        await thread.rewind(to=cut)
        rewound = await process.say(thread, contract.texts[1], "mark-1")
        contract.equal("a rewound thread continues as it did before", [rewound], [first])


async def _check_resumed(contract: _Contract) -> None:
    """Another instance continues the thread: it has the recorded state only."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder, 'clew.db')}"
        async with contract.opened(url) as process:
            thread = await process.thread()
            await process.talk(thread, "mark-0")
            cut = await thread.version
            here = await process.say(await thread.fork(at=cut), contract.texts[0], "mark-0")
        async with contract.opened(url) as process:
            again = await process.engine.thread(thread.id)
            there = await process.say(await again.fork(at=cut), contract.texts[0], "mark-0")
    contract.equal("it keeps what it knows of a thread in ctx.state, not in itself", [there], [here])


async def _check_faults(contract: _Contract) -> None:
    """A model that fails, a stream that is closed early, tool calls, and a redacted message."""
    async with contract.opened() as process:
        thread = await process.thread()
        fails = process.agent(ModelRequestError("The model fails on purpose."))
        with suppress(ModelRequestError):
            await process.unbroken(fails.run(f"{contract.texts[0]} mark-0", thread=thread))
        await process.unbroken(_streamed(process.agent("One two three."), contract.texts[0], thread, closes=True))
        calls = process.agent(call("contract_tool"), _ANSWER)
        await process.unbroken(calls.run(contract.texts[1], thread=thread, tools=[contract_tool]))
        await thread.redact((await thread.history()).messages[0])
        await process.say(thread, contract.texts[1], "mark-0")
        await thread.append(Message.user(contract.texts[0]))
        await process.unbroken(process.agent().run(thread=thread))
        await process.seen(thread)


async def _check_life(contract: _Contract) -> None:
    """The hooks of a thread's life."""
    async with contract.opened() as process:
        thread = await process.thread()
        await process.say(thread, contract.texts[0], "mark-0")
        named = partial(thread.checkpoint, "contract")
        for step in (thread.suspend, thread.resume, named, thread.end, thread.delete):
            await process.unbroken(step())
        await process.seen(thread)


async def _streamed(agent: Agent, said: str, thread: AnyThread, *, closes: bool = False) -> None:
    """A run whose answer is streamed; with ``closes`` the stream is closed at its first word."""
    async with agent.run(said, thread=thread, stream=True) as stream:
        async for _ in stream:
            if closes:
                return


def contract_tool() -> str:
    """Answer with a word."""
    return "word"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 300 else f"{text[:299]}…"  # noqa: PLR2004  # enough to recognise it


def _check_shape(provider: object) -> ContextProvider:
    if not isinstance(provider, ContextProvider):
        raise ProviderContractError(repr(provider), "it is an instance of ContextProvider", f"it is {_kind(provider)}.")
    _check_fields(provider)
    for name in dir(type(provider)):
        if name.startswith("on_") and name not in {*_ARGUMENTS, "on_failure"}:
            _broken(provider, "each method named on_… is a hook", f"there is no hook {name!r}, so it is never called.")
    for name, count in _ARGUMENTS.items():
        _check_hook(provider, name, count)
    return provider


def _check_fields(provider: ContextProvider) -> None:
    try:
        check_id(provider.id, "id")
    except InvalidNameError as error:
        _broken(provider, "its id is a name of 1 to 200 characters", str(error))
    if provider.scope is not None and not (isinstance(provider.scope, str) and provider.scope.strip()):
        _broken(provider, "its scope is a name, or None", f"it is {provider.scope!r}.")
    if provider.on_failure not in get_args(OnFailure):
        _broken(provider, "on_failure is 'fail' or 'continue'", f"it is {provider.on_failure!r}.")
    timeout: Any = provider.timeout
    if timeout is not None and not (
        isinstance(timeout, int | float) and not isinstance(timeout, bool) and 0 < timeout < math.inf
    ):
        _broken(provider, "its timeout is a number of seconds above 0, or None", f"it is {timeout!r}.")
    model: Any = provider.state_model
    if model is not None and not (isinstance(model, type) and issubclass(model, BaseModel)):
        _broken(provider, "its state_model is a pydantic model class, or None", f"it is {model!r}.")


def _check_hook(provider: ContextProvider, name: str, count: int) -> None:
    hook = getattr(provider, name)
    if not callable(hook):
        _broken(provider, "its hooks are methods", f"{name} is {_kind(hook)}.")
    if name != "initial_state" and not inspect.iscoroutinefunction(hook):
        _broken(
            provider, "its hooks are async", f"{name} is not, and would block the event loop. Define it with async def."
        )
    try:
        inspect.signature(hook).bind(*range(count))
    except TypeError as error:
        _broken(provider, "its hooks accept their arguments", f"{name} does not: {error}.")


def _broken(provider: ContextProvider, rule: str, found: str) -> None:
    raise ProviderContractError(repr(provider.id), rule, found)


def _kind(value: object) -> str:
    return (
        f"the class {value.__name__}, give a function that makes an instance"
        if isinstance(value, type)
        else type(value).__name__
    )
