"""Middleware: the order of wrapped calls and the permitted actions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clew.agents.middleware import Middleware, ModelCallContext, Proceed, RunContext, ToolCallContext, compose
from clew.agents.tools import ToolOutcome
from clew.domain.messages import Message
from clew.domain.models.client import Answer
from clew.domain.runs.errors import AgentConfigurationError

RUN: dict[str, Any] = {"agent_id": "joker", "agent_name": "Joker", "thread_id": "t1", "run_id": "r1"}
TOOL_CALL = ToolCallContext(**RUN, name="look_up", call_id="c1", arguments='{"order": 7}')
ANSWER = Answer(Message.assistant("Hello"))


def around_tool_call(*middlewares: Middleware, result: str = "found") -> ToolOutcome:
    async def innermost() -> ToolOutcome:
        return ToolOutcome(result)

    return asyncio.run(compose(middlewares, "tool_call", TOOL_CALL, innermost))


class NotingMiddleware(Middleware):
    def __init__(self, name: str, notes: list[str]) -> None:
        self.name = name
        self.notes = notes

    async def tool_call(self, context: ToolCallContext, proceed: Proceed[ToolOutcome]) -> ToolOutcome:
        self.notes.append(f"{self.name} before {context.name}")
        outcome = await proceed()
        self.notes.append(f"{self.name} after {outcome.result}")
        return outcome


def test_the_first_is_outermost() -> None:
    notes: list[str] = []
    assert around_tool_call(NotingMiddleware("a", notes), NotingMiddleware("b", notes)) == ToolOutcome("found")
    assert notes == ["a before look_up", "b before look_up", "b after found", "a after found"]


def test_the_call_is_made_without_middleware() -> None:
    assert around_tool_call() == ToolOutcome("found")


def test_the_default_middleware_only_proceeds() -> None:
    async def response() -> str:
        return "response"

    async def answer() -> Answer:
        return ANSWER

    async def both() -> tuple[str, Answer]:
        called = ModelCallContext(**RUN, round=1, request={})
        return (
            await compose([Middleware()] * 2, "run", RunContext(**RUN), response),
            await compose([Middleware()] * 2, "model_call", called, answer),
        )

    assert asyncio.run(both()) == ("response", ANSWER)
    assert around_tool_call(Middleware(), Middleware()) == ToolOutcome("found")


def test_outer_middleware_sees_a_replaced_outcome() -> None:
    class Censor(Middleware):
        async def tool_call(self, context: ToolCallContext, proceed: Proceed[ToolOutcome]) -> ToolOutcome:
            outcome = await proceed()
            return ToolOutcome(f"{context.arguments} gave {len(str(outcome.result))} characters")

    notes: list[str] = []
    outcome = around_tool_call(NotingMiddleware("a", notes), Censor(), NotingMiddleware("b", notes))
    assert outcome == ToolOutcome('{"order": 7} gave 5 characters')
    assert notes[2:] == ["b after found", f"a after {outcome.result}"]


def test_middleware_that_does_not_proceed_prevents_the_call() -> None:
    class Cached(Middleware):
        async def tool_call(self, context: ToolCallContext, proceed: Proceed[ToolOutcome]) -> ToolOutcome:
            del proceed
            return ToolOutcome(f"{context.name} from the cache")

    notes: list[str] = []
    assert around_tool_call(Cached(), NotingMiddleware("inside", notes)) == ToolOutcome("look_up from the cache")
    assert notes == []


def test_outer_middleware_sees_an_error_of_inner_middleware() -> None:
    seen: list[BaseException] = []

    class Refusing(Middleware):
        async def tool_call(self, context: ToolCallContext, proceed: Proceed[ToolOutcome]) -> ToolOutcome:
            del proceed
            raise PermissionError(context.name)

    class Watching(Middleware):
        async def tool_call(self, context: ToolCallContext, proceed: Proceed[ToolOutcome]) -> ToolOutcome:
            del context
            try:
                return await proceed()
            except PermissionError as error:
                seen.append(error)
                raise

    with pytest.raises(PermissionError, match="look_up"):
        around_tool_call(Watching(), Refusing())
    assert len(seen) == 1


def test_refuses_to_proceed_twice() -> None:
    notes: list[str] = []

    class Again(Middleware):
        async def tool_call(self, context: ToolCallContext, proceed: Proceed[ToolOutcome]) -> ToolOutcome:
            del context
            await proceed()
            return await proceed()

    with pytest.raises(AgentConfigurationError, match=r"Again\.tool_call called proceed\(\) twice"):
        around_tool_call(Again(), NotingMiddleware("inside", notes))
    assert notes == ["inside before look_up", "inside after found"]


def test_refuses_to_proceed_after_the_end() -> None:
    kept: list[Proceed[ToolOutcome]] = []
    notes: list[str] = []

    class Later(Middleware):
        async def tool_call(self, context: ToolCallContext, proceed: Proceed[ToolOutcome]) -> ToolOutcome:
            del context
            kept.append(proceed)
            return ToolOutcome("mine")

    async def late() -> None:
        await kept[0]()

    around_tool_call(Later(), NotingMiddleware("inside", notes))
    with pytest.raises(AgentConfigurationError, match=r"Later\.tool_call called proceed\(\) after it had returned"):
        asyncio.run(late())
    assert notes == []


@pytest.mark.parametrize("wrong", [None, "words", ANSWER])
def test_refuses_a_wrong_outcome(wrong: Any) -> None:
    class Forgetful(Middleware):
        async def tool_call(self, context: ToolCallContext, proceed: Proceed[ToolOutcome]) -> ToolOutcome:
            del context
            await proceed()
            return wrong  # type: ignore[no-any-return]  # the test returns a wrong type

    with pytest.raises(AgentConfigurationError, match=rf"returned {type(wrong).__name__}\..*another ToolOutcome"):
        around_tool_call(Forgetful())


def test_the_body_of_a_request_is_a_copy() -> None:
    request: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
    context = ModelCallContext(**RUN, round=1, request=request)
    body: Any = context.body
    body["messages"].clear()
    assert context.body == request == {"messages": [{"role": "user", "content": "Hi"}]}
    assert "Hi" not in repr(context)
