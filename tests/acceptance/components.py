"""A component of an application: a context provider that keeps its state in the thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clew import Context, ContextProvider


class Preferences(ContextProvider):
    """The user's preferences, kept in the thread."""

    id = "preferences"

    def __init__(self) -> None:
        self.failures: list[BaseException | None] = []

    def initial_state(self, ctx: Any) -> dict[str, str]:
        del ctx
        return {}

    async def invoking(self, ctx: Any, messages: Sequence[Any]) -> Context:
        del messages
        instructions = "User preferences: " + ", ".join(f"{k}: {v}" for k, v in ctx.state.items())
        return Context(instructions=instructions) if ctx.state else Context()

    async def invoked(
        self,
        ctx: Any,
        request_messages: Sequence[Any],
        response_messages: Sequence[Any] | None = None,
        exception: BaseException | None = None,
    ) -> None:
        del response_messages
        self.failures.append(exception)
        for message in request_messages:
            if message.text.startswith("I prefer "):
                ctx.state["units"] = message.text.removeprefix("I prefer ")
