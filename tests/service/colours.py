"""Both APIs as one: a test that is written for Conversations also runs on an Engine."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from clew import Conversations, Engine
from clew.aio import batch, memory, subscription, threads

COLOURS = ("blocking", "awaited")

_AWAITED = (Engine, batch.Batch, memory.MemoryScope, threads.Thread, subscription.Subscription)


class Awaited:
    """An object of an Engine whose calls are awaited in a loop before they return."""

    def __init__(self, loop: asyncio.AbstractEventLoop, wrapped: Any) -> None:
        self._loop = loop
        self._wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._wrapped, name)
        return self._call(found) if inspect.ismethod(found) else self._result(found)

    def _call(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            return self._result(method(*map(_bare, arguments), **{name: _bare(each) for name, each in options.items()}))

        return call

    def _result(self, value: Any) -> Any:
        if inspect.isawaitable(value):
            value = self._loop.run_until_complete(_completed(value))
        if isinstance(value, AsyncIterator) and not isinstance(value, _AWAITED):
            return iter(self._loop.run_until_complete(_listed(value)))
        return Awaited(self._loop, value) if isinstance(value, _AWAITED) else value

    def __enter__(self) -> Self:
        self._result(self._wrapped.__aenter__())
        return self

    def __exit__(self, *raised: object) -> Any:
        return self._result(self._wrapped.__aexit__(*raised))


@contextmanager
def opened(colour: str, url: str, **options: Any) -> Iterator[Any]:
    """An open service, to be called like Conversations."""
    if colour == "blocking":
        with Conversations.open(url, **options) as conversations:
            yield conversations
        return
    with asyncio.Runner() as runner, Awaited(runner.get_loop(), Engine.open(url, **options)) as engine:
        yield engine


def _bare(value: Any) -> Any:
    return value._wrapped if isinstance(value, Awaited) else value


async def _completed(value: Any) -> Any:
    return await value


async def _listed(values: AsyncIterator[Any]) -> list[Any]:
    return [each async for each in values]
