"""Middleware: the order in which it is put around something, and what it may and may not do."""

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


class Noting(Middleware):
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
    assert around_tool_call(Noting("a", notes), Noting("b", notes)) == ToolOutcome("found")
    assert notes == ["a before look_up", "b before look_up", "b after found", "a after found"]


def test_without_middleware_what_is_inside_is_done() -> None:
    assert around_tool_call() == ToolOutcome("found")


def test_by_itself_it_only_goes_on() -> None:
    async def response() -> str:
        return "response"

    async def answer() -> Answer:
        return ANSWER

    async def all_of_them() -> tuple[str, Answer]:
        called = ModelCallContext(**RUN, round=1, request={})
        return (
            await compose([Middleware()] * 2, "run", RunContext(**RUN), response),
            await compose([Middleware()] * 2, "model_call", called, answer),
        )

    assert asyncio.run(all_of_them()) == ("response", ANSWER)
    assert around_tool_call(Middleware(), Middleware()) == ToolOutcome("found")


def test_what_is_returned_instead_is_the_outcome_also_for_those_outside() -> None:
    class Censor(Middleware):
        async def tool_call(self, context: ToolCallContext, proceed: Proceed[ToolOutcome]) -> ToolOutcome:
            outcome = await proceed()
            return ToolOutcome(f"{context.arguments} gave {len(str(outcome.result))} characters")

    notes: list[str] = []
    outcome = around_tool_call(Noting("a", notes), Censor(), Noting("b", notes))
    assert outcome == ToolOutcome('{"order": 7} gave 5 characters')
    assert notes[2:] == ["b after found", f"a after {outcome.result}"]


def test_one_that_does_not_go_on_keeps_what_is_inside_from_being_done() -> None:
    class Cached(Middleware):
        async def tool_call(self, context: ToolCallContext, proceed: Proceed[ToolOutcome]) -> ToolOutcome:
            del proceed
            return ToolOutcome(f"{context.name} from the cache")

    notes: list[str] = []
    assert around_tool_call(Cached(), Noting("inside", notes)) == ToolOutcome("look_up from the cache")
    assert notes == []


def test_raising_refuses_and_those_outside_see_it() -> None:
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


def test_going_on_twice_is_refused() -> None:
    notes: list[str] = []

    class Again(Middleware):
        async def tool_call(self, context: ToolCallContext, proceed: Proceed[ToolOutcome]) -> ToolOutcome:
            del context
            await proceed()
            return await proceed()

    with pytest.raises(AgentConfigurationError, match=r"Again\.tool_call called proceed\(\) twice"):
        around_tool_call(Again(), Noting("inside", notes))
    assert notes == ["inside before look_up", "inside after found"]


@pytest.mark.parametrize("wrong", [None, "words", ANSWER])
def test_what_is_no_outcome_is_refused(wrong: Any) -> None:
    class Forgetful(Middleware):
        async def tool_call(self, context: ToolCallContext, proceed: Proceed[ToolOutcome]) -> ToolOutcome:
            del context
            await proceed()
            return wrong  # type: ignore[no-any-return]  # it is what this is about

    with pytest.raises(AgentConfigurationError, match=rf"returned {type(wrong).__name__}\..*another ToolOutcome"):
        around_tool_call(Forgetful())


def test_the_body_of_a_request_is_a_copy() -> None:
    request: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
    context = ModelCallContext(**RUN, round=1, request=request)
    body: Any = context.body
    body["messages"].clear()
    assert context.body == request == {"messages": [{"role": "user", "content": "Hi"}]}
    assert "Hi" not in repr(context)
