"""Tools: making them from functions and calling them with a model's arguments."""

from __future__ import annotations

import asyncio
import contextvars
import json
import math
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.agents.tool_calls import CONTEXT, Address, Colour, Point, outcome, properties

from clew.agents.tools import ToolContext, ToolOutcome, as_tools, call_tool, tool, unknown_tool
from clew.domain.json_values import Json, check_json
from clew.domain.runs.errors import InvalidToolError


@pytest.mark.parametrize(
    "options",
    [
        {"approval": "ask"},
        {"errors": "hide"},
        {"timeout": 0},
        {"timeout": math.inf},
        {"name": "a b"},
        {"name": "a" * 65},
    ],
)
def test_refuses_invalid_options(options: dict[str, Any]) -> None:
    def now() -> str:
        return "noon"

    with pytest.raises(
        InvalidToolError, match=next(iter(options.values())) if "name" in options else next(iter(options))
    ):
        tool(now, **options)


def test_refuses_two_tools_with_one_name() -> None:
    def now() -> str:
        return "noon"

    with pytest.raises(InvalidToolError, match="Two tools have the name 'now'"):
        as_tools([now, tool(now)])
    with pytest.raises(InvalidToolError, match="is a tool already"):
        tool(tool(now))


def test_plain_functions_become_tools_with_defaults_and_tools_stay() -> None:
    def now() -> str:
        return "noon"

    @tool(approval="always", idempotent=True, timeout=2, errors="raise", name="then", description="Later.")
    def later() -> str:
        return "night"

    plain, given_tool = as_tools([now, later])
    assert (plain.approval, plain.idempotent, plain.timeout, plain.errors) == ("never", False, None, "tell")
    assert given_tool is later
    assert (later.approval, later.idempotent, later.timeout, later.errors) == ("always", True, 2, "raise")
    assert (later.name, later.description) == ("then", "Later.")


# Given schemas


def test_a_given_schema_is_used_unchanged_without_validation() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}

    @tool(name="remote_search", schema=schema)
    def search(context: ToolContext, **arguments: Any) -> Json:
        """Search."""
        return [context.call_id, arguments]

    assert search.schema.parameters == schema
    assert search.schema.parameters is not schema
    assert search.description == "Search."
    assert outcome(search, '{"a": "not checked", "b": 1}').result == ["c1", {"a": "not checked", "b": 1}]
    assert outcome(search, "[]").error == "InvalidArgumentsError"


def test_a_missing_argument_with_a_given_schema_is_an_error() -> None:
    @tool(schema={"type": "object"})
    def search(a, b=1):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202  # types are not needed here
        return [a, b]

    assert outcome(search, '{"a": 2}').result == [2, 1]
    assert (
        outcome(search, '{"b": 2}').result
        == "Error: the arguments for search do not fit: missing a required argument: 'a'."
    )


@pytest.mark.parametrize("schema", [{"type": "array"}, {"type": "object", "default": math.nan}, {"type": {1, 2}}])
def test_refuses_an_invalid_schema(schema: Any) -> None:
    with pytest.raises(InvalidToolError, match="its schema is not"):
        tool(lambda: 1, name="one", schema=schema)


# The context


def test_a_context_parameter_is_passed_and_not_in_the_schema() -> None:
    async def who(context: ToolContext, greeting: str) -> str:
        return f"{greeting}, {context.actor}: {context.idempotency_key}"

    assert list(properties(tool(who))) == ["greeting"]
    assert outcome(who, '{"greeting": "Hi"}').result == "Hi, user:42: k1"
    assert outcome(who, '{"greeting": "Hi", "context": 1}').error == "InvalidArgumentsError"


def test_the_context_annotation_may_be_a_string() -> None:
    code: dict[str, Any] = {}
    exec("def who(context: 'ToolContext', /, greeting: str): return greeting + context.call_id", code)  # noqa: S102
    assert outcome(code["who"], '{"greeting": "Hi "}').result == "Hi c1"


def test_the_context_may_be_optional() -> None:
    def who(greeting: str, context: ToolContext | None = None) -> str:
        return greeting + ("" if context is None else context.call_id)

    assert list(properties(tool(who))) == ["greeting"]
    assert outcome(who, '{"greeting": "Hi "}').result == "Hi c1"
    assert tool(who)("Hi") == "Hi"


# Outcomes of a call


def test_results_are_converted_to_json() -> None:
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    cases: list[tuple[Any, Json]] = [
        ("words", "words"),
        (None, None),
        (True, True),
        (10**30, 10**30),
        ({"a": [1, 2.5, None]}, {"a": [1, 2.5, None]}),
        ((1, 2), [1, 2]),
        ({1: "x"}, {"1": "x"}),
        (Point(1), {"x": 1, "y": 0}),
        (Address(street="A 1"), {"street": "A 1"}),
        (moment, "2026-01-02T00:00:00Z"),
        (Decimal("1.50"), "1.50"),
        (Colour.BLUE, "blue"),
    ]
    for result, expected in cases:
        assert outcome(lambda result=result: result, name="give", schema={"type": "object"}) == ToolOutcome(expected)


def test_a_result_is_a_copy() -> None:
    shared = [1]
    result = outcome(lambda: shared, name="give").result
    shared.append(2)
    assert result == [1]


@pytest.mark.parametrize("result", [object(), math.nan, "\ud800", b"\xff", {"a": {1, object()}}, lambda: 1])
def test_a_result_that_is_not_json_is_an_error(result: object) -> None:
    actual = outcome(lambda: result, name="give")
    assert actual.result == "Error: the result of give is not JSON and cannot be sent."
    assert actual.error == "TypeError"
    assert isinstance(actual.raised, TypeError)


def test_an_exception_is_reported_by_class_and_message() -> None:
    class SilentError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def fails(error: Exception) -> Callable[[], None]:
        def fail() -> None:
            raise error

        return fail

    async def later() -> None:
        raise ValueError("no")

    expected = {
        KeyError("order"): "Error: KeyError: 'order'",
        ValueError(): "Error: ValueError",
        ValueError("\ud800"): "Error: ValueError: \\ud800",
        StopIteration("over"): "Error: StopIteration: over",
        TimeoutError("its own"): "Error: TimeoutError: its own",
        SilentError(): "Error: SilentError",
        ValueError("x" * 5000): "Error: ValueError: " + "x" * 1999 + "…",
    }
    for error, text in expected.items():
        assert outcome(fails(error), timeout=60) == ToolOutcome(text, type(error).__name__, error)
    assert outcome(later).result == "Error: ValueError: no"


def test_invalid_arguments_are_explained() -> None:
    calls: list[Any] = []

    @tool
    def look_up(order: int, where: Address | None = None) -> None:
        calls.append((order, where))

    actual = outcome(look_up, '{"order": "x", "where": {}, "more": 1}')
    assert (actual.error, actual.reason, actual.raised) == ("InvalidArgumentsError", "invalid-arguments", None)
    assert actual.result == (
        "Error: the arguments for look_up do not fit.\n"
        '- order: Input should be a valid integer, unable to parse string as an integer (given: "x").\n'
        "- where.street: it is missing.\n"
        "- more: there is no such parameter.\n"
        "Call it again with arguments that fit its schema."
    )
    assert "- arguments: they must be one JSON object." in str(outcome(look_up, "[1]").result)
    assert "- arguments: Invalid JSON" in str(outcome(look_up, '{"order": ').result)
    assert calls == []


@given(st.text(st.characters(exclude_categories=())))
@example("\ud800")
@example('{"order": "\ud800"}')
@example('{"order": "\\ud800"}')
@example('{"\\ud800": 1}')
@example('{"order": 1' + "0" * 5000 + "}")
@example('{"order": 1e999}')
@example('{"order": NaN}')
@example('{"order": ' + "[" * 5000)
@example('{"order": ' + "[" * 150 + "]" * 150 + "}")
def test_invalid_argument_text_gives_an_error(text: str) -> None:
    def look_up(order: int) -> int:
        return order

    actual = outcome(look_up, text)
    assert actual.error == "InvalidArgumentsError"
    assert str(actual.result).startswith("Error: the arguments for look_up")
    check_json(actual.result, "result")


@given(
    st.fixed_dictionaries(
        {"a": st.integers(), "b": st.text(), "c": st.lists(st.floats(allow_nan=False, allow_infinity=False))},
        optional={
            "d": st.one_of(st.none(), st.booleans()),
            "e": st.dictionaries(st.text(), st.integers()),
            "f": st.sampled_from(["red", "blue"]),
        },
    )
)
def test_valid_arguments_reach_the_function_unchanged(arguments: dict[str, Any]) -> None:
    assert ROUND_TRIP.arguments(json.dumps(arguments)) == arguments


@tool
def ROUND_TRIP(  # noqa: N802  # a constant of the test above
    *,
    a: int,
    b: str,
    c: list[float],
    d: bool | None = None,
    e: dict[str, int] | None = None,
    f: Literal["red", "blue"] = "red",
) -> None:
    """Take one of each."""


def test_an_unknown_tool_error_lists_the_tools() -> None:
    def now() -> str:
        return "noon"

    assert unknown_tool("then", as_tools([now])) == ToolOutcome(
        "Error: there is no tool 'then'. There are: now.", "UnknownToolError", None, "unknown-tool"
    )
    assert unknown_tool("then", []).result == "Error: there is no tool 'then'. There are none."


def test_an_async_tool_is_cancelled_at_its_timeout() -> None:
    ended = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    actual = outcome(wait, timeout=0.01)
    assert actual.result == "Error: wait gave no result in 0.01 s."
    assert (actual.error, actual.reason) == ("TimeoutError", "timeout")
    assert isinstance(actual.raised, TimeoutError)
    assert ended == [True]


def test_a_sync_tool_is_not_awaited_after_its_timeout() -> None:
    may_end = threading.Event()

    async def main() -> ToolOutcome:
        try:
            return await call_tool(
                tool(may_end.wait, name="wait", timeout=0.01, schema={"type": "object"}), "", CONTEXT
            )
        finally:
            may_end.set()

    assert asyncio.run(main()).error == "TimeoutError"


def test_sync_tools_run_in_threads_with_the_callers_context() -> None:
    who = contextvars.ContextVar("who", default="unknown")
    both = threading.Barrier(2, timeout=30)

    def meet() -> list[Any]:
        both.wait()
        return [who.get(), threading.current_thread() is threading.main_thread()]

    async def main() -> list[ToolOutcome]:
        who.set("ada")
        return await asyncio.gather(*(call_tool(tool(meet), "", CONTEXT) for _ in range(2)))

    assert [each.result for each in asyncio.run(main())] == [["ada", False]] * 2


@pytest.mark.parametrize("error", [asyncio.CancelledError, KeyboardInterrupt])
def test_base_exceptions_pass_through(error: type[BaseException]) -> None:
    async def stop() -> None:
        raise error

    with pytest.raises(error):
        outcome(stop, timeout=60)


def test_cancelling_the_caller_cancels_an_async_tool() -> None:
    async def main() -> bool:
        started, ended = asyncio.Event(), asyncio.Event()

        async def wait() -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        task = asyncio.create_task(call_tool(tool(wait), "", CONTEXT))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return ended.is_set()

    assert asyncio.run(main())
