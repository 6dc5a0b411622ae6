"""Calls a test server with the openai package, without retries, because retries hide faults."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import openai

Result = TypeVar("Result")


def with_client(
    base_url: str, work: Callable[[openai.AsyncOpenAI], Coroutine[Any, Any, Result]], timeout: float = 60
) -> Result:
    """Run the work with a client. The timeout, in seconds, applies to each wait for the server."""

    async def run() -> Result:
        async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=timeout) as client:
            return await work(client)

    return asyncio.run(run())
