"""Context providers that record the calls of their hooks, for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from clew import Context, ContextProvider
from clew.domain.context.provider import ProviderContext
from clew.domain.history import HistoryMessage
from clew.domain.messages import Message

HookCall = tuple[Any, ...]


class Watching(ContextProvider):
    """Records each hook in ``calls``, which several can share, and counts the shown messages."""

    def __init__(
        self,
        id: str = "watching",
        calls: list[HookCall] | None = None,
        gives: Callable[[ProviderContext], Context | None] | None = None,
        **settings: Any,
    ) -> None:
        self.id = id
        self.calls: list[HookCall] = [] if calls is None else calls
        self._gives = gives
        for name, value in settings.items():
            setattr(self, name, value)

    def initial_state(self, ctx: ProviderContext) -> Any:
        self._note("initial_state")
        del ctx
        return {}

    async def on_thread_created(self, ctx: ProviderContext, input: Sequence[Message]) -> None:
        del ctx
        self._note("created", *(message.text for message in input))

    async def on_message(self, ctx: ProviderContext, message: HistoryMessage) -> None:
        ctx.state["shown"] = ctx.state.get("shown", 0) + 1
        self._note("message", message.text or "→")

    async def invoking(self, ctx: ProviderContext, messages: Sequence[HistoryMessage]) -> Context | None:
        self._note("invoking", *(message.text or "←" for message in messages))
        return None if self._gives is None else self._gives(ctx)

    async def invoked(
        self,
        ctx: ProviderContext,
        request_messages: Sequence[HistoryMessage],
        response_messages: Sequence[HistoryMessage] | None = None,
        exception: BaseException | None = None,
    ) -> None:
        del ctx
        asked = [message.text for message in request_messages]
        answered = None if response_messages is None else [message.text for message in response_messages]
        self._note("invoked", asked, answered, None if exception is None else type(exception).__name__)

    async def on_checkpoint(self, ctx: ProviderContext, name: str) -> None:
        ctx.state["checkpoint"] = name
        self._note("checkpoint", name)

    async def on_suspend(self, ctx: ProviderContext) -> None:
        ctx.state["suspended"] = True
        self._note("suspend")

    async def on_resume(self, ctx: ProviderContext) -> None:
        ctx.state["suspended"] = False
        self._note("resume")

    async def on_thread_ended(self, ctx: ProviderContext) -> None:
        ctx.state["ended"] = True
        self._note("ended")

    async def on_thread_deleted(self, ctx: ProviderContext) -> None:
        del ctx
        self._note("deleted")

    def _note(self, *hook: Any) -> None:
        self.calls.append((self.id, *hook) if self.id != "watching" else hook)


def instructions_of(text: str) -> Callable[[ProviderContext], Context]:
    """Return a function that provides these instructions."""
    return lambda _: Context(instructions=text)
