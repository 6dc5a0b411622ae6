"""UserPreferences: one value per name, set by tool or extraction, provided in all threads of a user."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.memory.naive_memory import NaiveContext, NaiveMemory, NaiveThread

from clew.agents.tools import as_tools
from clew.domain.context.provider import Context
from clew.domain.errors import InvalidContentError, ScopeError
from clew.domain.json_values import JsonObject
from clew.domain.memory.events import Provenance
from clew.domain.runs.errors import AnswerFormatError
from clew.infrastructure.scripted_client import ScriptedChatClient
from clew.memory.user_preferences import KIND, UserPreferences

pytestmark = pytest.mark.anyio


async def context_of(ctx: NaiveContext, text: str = "Hello.") -> Context:
    """Return the context of a run with this text."""
    context = await ctx.provider.invoking(ctx, ctx.thread.say(text))
    assert context is not None
    return context


async def tools_of(ctx: NaiveContext, text: str = "Hello.") -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the tools to set and to forget a preference."""
    setting, forgetting = (await context_of(ctx, text)).tools
    return setting, forgetting


def preferred(*preferences: JsonObject, forget: tuple[str, ...] = ()) -> str:
    """Return the answer of a model that finds these preferences."""
    return json.dumps({"preferences": preferences, "forget": forget})


@pytest.mark.parametrize("scope", [None, ""])
def test_refuses_a_missing_scope(scope: str | None) -> None:
    with pytest.raises(ScopeError, match="UserPreferences"):
        UserPreferences(scope)


async def test_the_tools_are_provided_by_default_without_preferences() -> None:
    context = await context_of(NaiveContext(UserPreferences("user/42")))
    assert context.instructions is None
    schemas = [tool.schema for tool in as_tools(context.tools)]
    assert [(schema.name, [*schema.parameters["properties"]]) for schema in schemas] == [  # type: ignore[misc]
        ("set_preference", ["name", "value"]),
        ("forget_preference", ["name"]),
    ]
    assert all("preference" in schema.description or "prefers" in schema.description for schema in schemas)
    assert await context_of(NaiveContext(UserPreferences("user/42", tools=False))) == Context(facts=[])


async def test_a_preference_is_provided_in_all_threads_of_its_scope_only() -> None:
    memory = NaiveMemory()
    preferences = UserPreferences("user/42")
    one = NaiveContext(preferences, memory, NaiveThread("one"))
    setting, _ = await tools_of(one, "Kilometres, please.")
    assert await setting(name=" Units ", value="kilometres") == "Noted: units: kilometres"
    provided = await context_of(NaiveContext(preferences, memory, NaiveThread("two")))
    assert str(provided.instructions).splitlines()[1:] == ["- units: kilometres"]
    (fact,) = provided.facts
    assert (fact.key, fact.kind) == ("units", KIND)
    assert fact.learned == Provenance(thread="one", version=one.thread.messages[0].version)
    other = await context_of(NaiveContext(UserPreferences("user/777"), memory))
    assert other.instructions is None


async def test_each_name_has_one_live_value() -> None:
    ctx = NaiveContext(UserPreferences("user/42"))
    setting, forgetting = await tools_of(ctx)
    for value in ("kilometres", "miles", "miles", "kilometres"):
        await setting("units", value)
    await setting("tone", "short")
    past = await ctx.scope.facts(key="units", history=True)
    assert [(fact.text, fact.status) for fact in past] == [
        ("kilometres", "superseded"),
        ("miles", "superseded"),
        ("kilometres", "live"),
    ]
    assert await forgetting("UNITS") == "Forgotten."
    assert await forgetting("units") == "There is no preference of that name."
    assert ctx.store.texts("user/42", kind=KIND) == ["short"]
    await setting("units", "kilometres")
    assert ctx.store.texts("user/42", kind=KIND) == ["short", "kilometres"]


async def test_one_of_two_concurrent_values_stays() -> None:
    ctx = NaiveContext(UserPreferences("user/42"))
    for value in ("miles", "yards"):
        await ctx.scope.remember(value, key="units", kind=KIND)
    setting, forgetting = await tools_of(ctx)
    assert str((await context_of(ctx)).instructions).splitlines()[1:] == ["- units: yards"]
    await setting("units", "yards")
    assert ctx.store.texts("user/42", kind=KIND) == ["yards"]
    await forgetting("units")
    assert await forgetting("") == "There is no preference of that name."
    assert ctx.store.texts("user/42", kind=KIND) == []


async def test_a_repeated_call_after_a_crash_acts_once() -> None:
    ctx = NaiveContext(UserPreferences("user/42"))
    for _ in range(2):
        setting, _ = await tools_of(ctx)
        await setting("units", "miles")
    assert len(await ctx.scope.facts(history=True)) == 1


@pytest.mark.parametrize(("name", "value"), [("", "miles"), ("units", " \n")])
async def test_refuses_a_preference_without_a_name_or_value(name: str, value: str) -> None:
    setting, _ = await tools_of(NaiveContext(UserPreferences("user/42")))
    with pytest.raises(InvalidContentError, match="give both"):
        await setting(name, value)


async def test_preferences_are_learned_from_user_messages() -> None:
    client = ScriptedChatClient(
        [
            preferred({"name": "Units", "value": "miles", "message": 1}, {"name": "tone", "value": "short"}),
            preferred({"name": "units", "value": "kilometres"}, {"name": "", "value": "x"}, forget=("tone", "none")),
        ]
    )
    ctx = NaiveContext(UserPreferences("user/42", client))
    await ctx.run("Miles, and be short.", "The user likes yards.")
    provided = str(await ctx.run("No, kilometres, and at any length."))
    assert provided.splitlines()[1:] == ["- units: miles", "- tone: short"]
    assert ctx.store.texts("user/42", kind=KIND) == ["kilometres"]
    messages: Any = client.requests[1]["messages"]
    request = json.loads(messages[-1]["content"])
    assert request["known"] == {"units": "miles", "tone": "short"}
    assert "yards" not in json.dumps(client.requests)


@pytest.mark.parametrize(
    "name", ["\N{GREEK SMALL LETTER IOTA WITH DIALYTIKA AND TONOS}" * 100, "ß" * 100, "a/b: c\0\u200b"]
)
async def test_unusual_names_can_be_forgotten_as_they_are_provided(name: str) -> None:
    ctx = NaiveContext(UserPreferences("user/42"))
    setting, forgetting = await tools_of(ctx)
    await setting(name, "some")
    (fact,) = await ctx.scope.facts()
    assert len(str(fact.key)) <= 100
    assert await forgetting(str(fact.key)) == "Forgotten."
    assert await ctx.scope.facts() == []


async def test_forgets_at_most_a_hundred_names() -> None:
    client = ScriptedChatClient(preferred(forget=tuple(f"key {number}" for number in range(1_000))))
    ctx = NaiveContext(UserPreferences("user/42", client))
    for number in (99, 100):
        await ctx.scope.remember("some", key=f"key {number}", kind=KIND)
    await ctx.run("Forget everything.")
    assert [fact.key for fact in await ctx.scope.facts()] == ["key 100"]


async def test_does_not_learn_without_a_client_or_from_a_failed_run() -> None:
    client = ScriptedChatClient([])
    for preferences in (UserPreferences("user/42"), UserPreferences("user/42", client)):
        ctx = NaiveContext(preferences)
        await preferences.invoked(ctx, ctx.thread.say("Miles, please."), None, TimeoutError())
        await preferences.invoked(ctx, [], [])
    assert client.requests == []


async def test_an_invalid_answer_is_an_error_and_nothing_is_stored() -> None:
    ctx = NaiveContext(UserPreferences("user/42", ScriptedChatClient("Gladly!")))
    with pytest.raises(AnswerFormatError):
        await ctx.run("Miles, please.")
    assert await ctx.scope.facts(history=True) == []


async def test_preferences_are_limited_and_provided_on_one_line() -> None:
    ctx = NaiveContext(UserPreferences("user/42"))
    setting, _ = await tools_of(ctx)
    await setting("n" * 1_000, "v\n" * 1_000)
    (fact,) = await ctx.scope.facts()
    assert (len(str(fact.key)), len(fact.text)) == (100, 500)
    for number in range(150):
        await ctx.scope.remember("new\nline", key=f"key {number}", kind=KIND)
    provided = str((await context_of(ctx)).instructions).splitlines()
    assert (len(provided), provided[-1]) == (101, "- key 149: new\\nline")
