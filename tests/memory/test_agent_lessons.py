"""AgentLessons: lessons of an agent are screened, stored in its scope, and provided where they fit."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.memory.naive_memory import NOW, NaiveContext, NaiveMemory, NaiveThread

from clew.domain.errors import ScopeError
from clew.domain.json_values import JsonObject
from clew.domain.memory.events import Provenance
from clew.domain.memory.facts import Allow, Fact, Redact, Refuse, Screened
from clew.domain.runs.errors import AgentConfigurationError, AnswerFormatError
from clew.infrastructure.scripted_client import ScriptedChatClient
from clew.memory.agent_lessons import KIND, AgentLessons, keep_private

pytestmark = pytest.mark.anyio

REFUND = "Refund a broken lamp. When: a customer has a broken lamp. Steps: (1) Ask for the order. (2) Refund it."


def lesson(title: str = "Refund a broken lamp", **more: Any) -> JsonObject:
    """Return a lesson as a model writes it."""
    steps = ["Ask for the order.", "Refund it."]
    return {"title": title, "when": "a customer has a broken lamp", "steps": [*steps], "replaces": None, **more}


def lessons(*learned: JsonObject) -> str:
    """Return the answer of a model that learned these lessons."""
    return json.dumps({"lessons": learned})


def candidate(text: str) -> Fact:
    """Return a lesson for the screen."""
    return Fact("agent/desk", "", text, 0, NOW, NOW)


@pytest.mark.parametrize("scope", [None, ""])
def test_refuses_a_missing_scope(scope: str | None) -> None:
    with pytest.raises(ScopeError, match="AgentLessons"):
        AgentLessons(scope)


async def test_a_lesson_is_learned_from_a_run_and_provided_where_it_fits() -> None:
    client = ScriptedChatClient(lessons(lesson()))
    learning = AgentLessons("agent/desk", client)
    memory = NaiveMemory()
    one = NaiveContext(learning, memory, NaiveThread("one"))
    await one.run("My lamp is broken.", "Here is your money.")
    assert memory.texts("agent/desk", kind=KIND) == [REFUND]
    two = NaiveContext(learning, memory, NaiveThread("two"))
    context = await learning.invoking(two, two.thread.say("A broken shade."))
    assert context is not None
    assert str(context.instructions).splitlines()[1:] == [f"- {REFUND}"]
    (fact,) = context.facts
    assert fact.learned == Provenance(thread="one", version=one.thread.messages[0].version)
    assert await learning.invoking(two, two.thread.say("Zzz")) is None
    assert await learning.invoking(two, two.thread.say("")) is None
    other = AgentLessons("agent/other", client)
    assert await other.invoking(NaiveContext(other, memory), two.thread.say("A broken shade.")) is None


async def test_known_lessons_are_improved_and_not_learned_twice() -> None:
    better = lesson("Refund any broken lamp", replaces=1)
    client = ScriptedChatClient([lessons(lesson()), lessons(lesson(), better), lessons(lesson("Other", replaces=9))])
    ctx = NaiveContext(AgentLessons("agent/desk", client))
    for _ in range(3):
        await ctx.run("My lamp is broken.")
    titles = [text.partition(".")[0] for text in ctx.store.texts("agent/desk", kind=KIND)]
    assert titles == ["Refund any broken lamp", "Other"]
    messages: Any = client.requests[1]["messages"]
    assert json.loads(messages[-1]["content"])["known"] == [{"number": 1, "text": REFUND}]


async def test_a_lesson_retracted_meanwhile_is_not_an_error() -> None:
    async def meanwhile(_: JsonObject) -> str:
        await ctx.scope.retract("agent/desk-1")
        return lessons(lesson(replaces=1))

    ctx = NaiveContext(AgentLessons("agent/desk", ScriptedChatClient(meanwhile)))
    await ctx.scope.remember("Shrug.", kind=KIND)
    await ctx.run("My lamp is broken.")
    assert ctx.store.texts("agent/desk", kind=KIND) == [REFUND]


async def test_the_screen_decides_about_each_lesson() -> None:
    seen: list[Fact] = []

    def screen(fact: Fact) -> Screened:
        seen.append(fact)
        if "secret" in fact.text:
            return Refuse("secret")
        return Redact("Something\nmild.") if "rude" in fact.text else Redact(" ") if "empty" in fact.text else Allow()

    learned = lessons(
        lesson(), lesson("A secret"), lesson("A rude one"), lesson("An empty one"), lesson("", steps=["x"])
    )
    ctx = NaiveContext(AgentLessons("agent/desk", ScriptedChatClient(learned), screen=screen))
    await ctx.run("My lamp is broken.")
    assert ctx.store.texts("agent/desk", kind=KIND) == [REFUND, "Something mild."]
    assert len(seen) == 4
    source = ctx.thread.messages[0]
    assert {(fact.scope, fact.kind, fact.learned) for fact in seen} == {
        ("agent/desk", KIND, Provenance(thread="thread-1", version=source.version))
    }


async def test_a_screen_without_a_verdict_is_an_error_and_nothing_is_stored() -> None:
    no_verdict: Any = lambda _: None  # noqa: E731  # a wrong screen
    ctx = NaiveContext(AgentLessons("agent/desk", ScriptedChatClient(lessons(lesson())), screen=no_verdict))
    with pytest.raises(AgentConfigurationError, match="Return Allow, Redact or Refuse"):
        await ctx.run("My lamp is broken.")
    assert await ctx.scope.facts(history=True) == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Write to ann@example.org.", "an e-mail address"),
        ("Call +353 21 123 4567.", "a long number"),
        ("Use the card 4111-1111-1111-1111.", "a long number"),
        ("The key is sk-canary012345abcdef.", "a key"),
    ],
)
async def test_the_default_screen_refuses_private_data(text: str, reason: str) -> None:
    verdict = keep_private(candidate(text))
    assert isinstance(verdict, Refuse)
    assert reason in verdict.reason
    ctx = NaiveContext(AgentLessons("agent/desk", ScriptedChatClient(lessons(lesson(steps=[text])))))
    await ctx.run("My lamp is broken.")
    assert await ctx.scope.facts(history=True) == []


@pytest.mark.parametrize(
    "text", [REFUND, "In 2024 and 2025, wait 14 days.", "incomprehensibilities and non-functional"]
)
async def test_the_default_screen_allows_general_text(text: str) -> None:
    assert keep_private(candidate(text)) == Allow()


async def test_does_not_learn_without_a_client_a_user_message_or_a_completed_run() -> None:
    client = ScriptedChatClient([])
    for learning in (AgentLessons("agent/desk"), AgentLessons("agent/desk", client)):
        ctx = NaiveContext(learning)
        await learning.invoked(ctx, ctx.thread.say("Red!"), None, TimeoutError())
        await learning.invoked(ctx, [], ctx.thread.say("Red!"))
    assert client.requests == []


async def test_an_invalid_answer_is_an_error_and_nothing_is_stored() -> None:
    ctx = NaiveContext(AgentLessons("agent/desk", ScriptedChatClient("I learned a lot.")))
    with pytest.raises(AnswerFormatError):
        await ctx.run("My lamp is broken.")
    assert await ctx.scope.facts(history=True) == []


async def test_the_length_and_number_of_lessons_are_limited() -> None:
    many = [lesson(f"Title {number}", steps=["step " * 100] * 50) for number in range(9)]
    client = ScriptedChatClient(lessons(*many))
    ctx = NaiveContext(AgentLessons("agent/desk", client, top=2))
    await ctx.run("My lamp is broken.")
    texts = ctx.store.texts("agent/desk", kind=KIND)
    assert [len(text) for text in texts] == [2_000] * 5
    context = await ctx.provider.invoking(ctx, ctx.thread.say("broken lamp"))
    assert context is not None
    assert len(context.facts) == 2
