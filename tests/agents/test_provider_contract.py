from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from pydantic import BaseModel

from clew.domain.context.provider import Context, ContextProvider
from clew.domain.messages import Message
from clew.errors import ProviderContractError
from clew.testing import check_context_provider

pytestmark = pytest.mark.anyio


class Preferences(ContextProvider):
    """Stores the user's preferences: a correct provider."""

    def initial_state(self, *_: Any) -> Any:
        return {}

    async def invoking(self, ctx: Any, *_: Any) -> Context | None:
        return Context(instructions=f"The user prefers {ctx.state['prefers']}.") if ctx.state else None

    async def invoked(self, ctx: Any, request_messages: Any, *_: Any) -> None:
        for message in request_messages:
            if message.text.startswith("I prefer "):
                ctx.state["prefers"] = message.text.removeprefix("I prefer ")


class Turns(BaseModel):
    count: int = 0
    notes: list[str] = []


class Counting(ContextProvider):
    """Uses many hooks, has a state model, and provides a tool and messages."""

    state_model = Turns
    every_model_call = True

    async def on_message(self, ctx: Any, message: Any) -> None:
        ctx.state.notes.append(message.text[:20])

    async def invoking(self, ctx: Any, *_: Any) -> Context:
        def look_up(word: str) -> str:
            """Look a word up."""
            return word

        return Context(messages=[Message.user(f"{ctx.state.count} turns.")], tools=[look_up])

    async def invoked(self, ctx: Any, *_: Any) -> None:
        ctx.state.count += 1

    async def on_suspend(self, ctx: Any) -> None:
        ctx.state.notes.append("suspended")

    async def on_thread_ended(self, ctx: Any) -> None:
        ctx.state.notes.append("ended")


class StateInInstance(Preferences):
    """Stores messages in the instance."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    async def invoking(self, _: Any, messages: Any) -> Context:
        self.heard += [message.text for message in messages]
        return Context(instructions=" ".join(self.heard))


class CountInInstance(ContextProvider):
    def __init__(self) -> None:
        self.turns = 0

    async def invoking(self, *_: Any) -> Context:
        self.turns += 1
        return Context(instructions=f"Turn {self.turns}.")


class StateByThread(ContextProvider):
    """Stores counts by thread in the instance: other instances and forks do not know them."""

    def __init__(self) -> None:
        self.turns: dict[str, int] = {}

    async def invoking(self, ctx: Any, *_: Any) -> Context:
        self.turns[ctx.thread.id] = self.turns.get(ctx.thread.id, 0) + 1
        return Context(instructions=f"Turn {self.turns[ctx.thread.id]}.")


ONE_STATE: dict[str, Any] = {}


class SharedState(Preferences):
    def initial_state(self, *_: Any) -> Any:
        return ONE_STATE


class WrongContext(ContextProvider):
    async def invoking(self, *_: Any) -> Any:
        return "Be nice."


class WrongInstructions(ContextProvider):
    async def invoking(self, *_: Any) -> Any:
        return Context(instructions=7)  # type: ignore[arg-type]


class WrongMessage(ContextProvider):
    async def invoking(self, *_: Any) -> Any:
        return Context(messages=["Be nice."])  # type: ignore[list-item]


class WrongTool(ContextProvider):
    async def invoking(self, *_: Any) -> Any:
        return Context(tools=["search"])


class WrongCitation(ContextProvider):
    async def invoking(self, *_: Any) -> Any:
        return Context(instructions="x", citations=[{"score": float("nan")}])


class WrongState(ContextProvider):
    async def invoking(self, ctx: Any, *_: Any) -> None:
        ctx.state = {"seen": {1, 2}}


class WrongInitialState(ContextProvider):
    def initial_state(self, *_: Any) -> Any:
        return object()


class FailingHook(ContextProvider):
    async def invoked(self, *_: Any) -> None:
        raise LookupError("nothing there")


class SkippedFailingHook(FailingHook):
    on_failure = "continue"


class ExpectsAnswer(ContextProvider):
    """Expects that a run always has an answer."""

    async def invoked(self, ctx: Any, _: Any, response_messages: Any = None, *__: Any) -> None:
        ctx.state = response_messages[-1].text


class ExpectsContent(ContextProvider):
    """Expects that no message is redacted."""

    async def invoking(self, ctx: Any, *_: Any) -> Context:
        history = await ctx.thread.history()
        return Context(instructions=" ".join(each.message.text for each in history))


class FailsAtEnd(ContextProvider):
    async def on_thread_ended(self, *_: Any) -> None:
        raise LookupError("no summary")


class SlowHook(ContextProvider):
    timeout = 0.01

    async def invoking(self, *_: Any) -> None:
        await asyncio.Event().wait()


class SyncHook(ContextProvider):
    def invoking(self, *_: Any) -> Any:
        return Context()


class MissingParameters(ContextProvider):
    async def invoked(self, ctx: Any, request_messages: Any) -> None:  # type: ignore[override]
        pass


class MisspeltHook(ContextProvider):
    async def on_thread_end(self, ctx: Any) -> None:
        pass


class HookIsText(ContextProvider):
    invoking = "Be nice."  # type: ignore[assignment]


def with_field(**fields: Any) -> type[ContextProvider]:
    return type("Strange", (ContextProvider,), fields)


@pytest.mark.parametrize("provider", [Preferences, Counting, with_field()])
async def test_a_correct_provider_passes(provider: Any) -> None:
    await check_context_provider(provider, texts=("I prefer kilometres", "How far is Cork?"))


async def test_make_may_be_async() -> None:
    async def make() -> ContextProvider:
        return Preferences()

    await check_context_provider(make)


@pytest.mark.parametrize(
    ("provider", "rule"),
    [
        (StateInInstance, "threads share nothing"),
        (CountInInstance, "as if it were the only one"),
        (StateByThread, "a fork continues as its parent did"),
        (SharedState, "threads share nothing"),
        (WrongContext, "none of its hooks fails: invoking does.*not a Context"),
        (WrongInstructions, "none of its hooks fails: invoking does.*instructions"),
        (WrongMessage, "none of its hooks fails: invoking does.*messages"),
        (WrongTool, "none of its hooks fails: invoking does"),
        (WrongCitation, "none of its hooks fails: invoking does.*citation"),
        (WrongState, "none of its hooks fails: invoking does.*state"),
        (WrongInitialState, "none of its hooks fails: initial_state does.*state"),
        (FailingHook, "none of its hooks fails: invoked does.*nothing there"),
        (SkippedFailingHook, "none of its hooks fails: invoked does.*LookupError"),
        (ExpectsAnswer, "none of its hooks fails: invoked does.*TypeError"),
        (ExpectsContent, "none of its hooks fails: invoking does.*AttributeError"),
        (FailsAtEnd, "none of its hooks fails: on_thread_ended does.*no summary"),
        (SlowHook, "none of its hooks fails: invoking does.*0.01 s"),
        (SyncHook, "its hooks are async: invoking"),
        (MissingParameters, "its hooks accept their arguments: invoked"),
        (MisspeltHook, "on_thread_end'"),
        (HookIsText, "its hooks are methods: invoking is str"),
        (with_field(id=7), "its id is a name.*int"),
        (with_field(id="x" * 201), "its id is a name.*201"),
        (with_field(scope=""), "its scope is a name"),
        (with_field(on_failure="ignore"), "on_failure is"),
        (with_field(timeout=0), "its timeout is.*0"),
        (with_field(timeout=True), "its timeout is.*True"),
        (with_field(state_model=dict), "its state_model is"),
        (lambda: Preferences, "an instance of ContextProvider: it is the class Preferences"),
        (object, "an instance of ContextProvider"),
    ],
)
async def test_names_the_broken_rule(provider: Any, rule: str) -> None:
    with pytest.raises(ProviderContractError, match=rule):
        await check_context_provider(provider, texts=("I prefer kilometres", "How far is Cork?"))


async def test_make_must_return_a_new_provider() -> None:
    one = Preferences()
    with pytest.raises(ProviderContractError, match="returns another"):
        await check_context_provider(lambda: one)


async def test_refuses_an_id_that_changes() -> None:
    numbers = itertools.count()

    def make() -> ContextProvider:
        provider = Preferences()
        provider.id = f"preferences-{next(numbers)}"
        return provider

    with pytest.raises(ProviderContractError, match="its id is always the same"):
        await check_context_provider(make)


async def test_fewer_rules_apply_to_shared_and_unrepeatable_providers() -> None:
    await check_context_provider(StateInInstance, shared=True)
    with pytest.raises(ProviderContractError):
        await check_context_provider(StateInInstance, repeatable=False)
    await check_context_provider(CountInInstance, repeatable=False)


async def test_a_broken_rule_is_an_assertion_error_and_an_error_of_clew() -> None:
    with pytest.raises(AssertionError) as raised:
        await check_context_provider(object)  # type: ignore[arg-type]
    assert isinstance(raised.value, ProviderContractError)
    assert raised.value.rule == "it is an instance of ContextProvider"


async def test_needs_two_texts() -> None:
    with pytest.raises(ValueError, match="two texts"):
        await check_context_provider(Preferences, texts=("Hello.",))
