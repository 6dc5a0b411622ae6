"""AgentLessons: what an agent learned to do is screened, kept in its own scope, and told where it fits."""

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

REFUND = "Refund a broken lamp. When: somebody has a broken lamp. Steps: (1) Ask for the order. (2) Refund it."


def lesson(title: str = "Refund a broken lamp", **more: Any) -> JsonObject:
    """A lesson as a model answers with it."""
    steps = ["Ask for the order.", "Refund it."]
    return {"title": title, "when": "somebody has a broken lamp", "steps": [*steps], "replaces": None, **more}


def lessons(*found: JsonObject) -> str:
    """What a model answers that finds these lessons."""
    return json.dumps({"lessons": found})


def candidate(text: str) -> Fact:
    """A lesson that is to be screened."""
    return Fact("agent/desk", "", text, 0, NOW, NOW)


@pytest.mark.parametrize("scope", [None, ""])
def test_a_scope_that_is_none_is_an_error(scope: str | None) -> None:
    with pytest.raises(ScopeError, match="AgentLessons"):
        AgentLessons(scope)


async def test_a_lesson_is_learned_from_a_run_and_told_where_it_fits() -> None:
    client = ScriptedChatClient(lessons(lesson()))
    learning = AgentLessons("agent/desk", client)
    memory = NaiveMemory()
    one = NaiveContext(learning, memory, NaiveThread("one"))
    await one.run("My lamp is broken.", "Here is your money.")
    assert memory.texts("agent/desk", kind=KIND) == [REFUND]
    two = NaiveContext(learning, memory, NaiveThread("two"))
    given = await learning.invoking(two, two.thread.say("A broken shade."))
    assert given is not None
    assert str(given.instructions).splitlines()[1:] == [f"- {REFUND}"]
    (fact,) = given.facts
    assert fact.learned == Provenance(thread="one", version=one.thread.messages[0].version)
    assert await learning.invoking(two, two.thread.say("Zzz")) is None
    assert await learning.invoking(two, two.thread.say("")) is None
    other = AgentLessons("agent/other", client)
    assert await other.invoking(NaiveContext(other, memory), two.thread.say("A broken shade.")) is None


async def test_known_lessons_are_bettered_and_not_learned_twice() -> None:
    better = lesson("Refund any broken lamp", replaces=1)
    client = ScriptedChatClient([lessons(lesson()), lessons(lesson(), better), lessons(lesson("Other", replaces=9))])
    ctx = NaiveContext(AgentLessons("agent/desk", client))
    for _ in range(3):
        await ctx.run("My lamp is broken.")
    titles = [text.partition(".")[0] for text in ctx.store.texts("agent/desk", kind=KIND)]
    assert titles == ["Refund any broken lamp", "Other"]
    messages: Any = client.requests[1]["messages"]
    assert json.loads(messages[-1]["content"])["known"] == [{"number": 1, "text": REFUND}]


async def test_a_lesson_that_was_taken_back_meanwhile_is_no_fault() -> None:
    async def meanwhile(_: JsonObject) -> str:
        await ctx.scope.retract("agent/desk-1")
        return lessons(lesson(replaces=1))

    ctx = NaiveContext(AgentLessons("agent/desk", ScriptedChatClient(meanwhile)))
    await ctx.scope.remember("Shrug.", kind=KIND)
    await ctx.run("My lamp is broken.")
    assert ctx.store.texts("agent/desk", kind=KIND) == [REFUND]


async def test_the_screen_sees_each_lesson_and_decides_about_it() -> None:
    seen: list[Fact] = []

    def screen(fact: Fact) -> Screened:
        seen.append(fact)
        if "secret" in fact.text:
            return Refuse("secret")
        return Redact("Something\nmild.") if "rude" in fact.text else Redact(" ") if "empty" in fact.text else Allow()

    found = lessons(lesson(), lesson("A secret"), lesson("A rude one"), lesson("An empty one"), lesson("", steps=["x"]))
    ctx = NaiveContext(AgentLessons("agent/desk", ScriptedChatClient(found), screen=screen))
    await ctx.run("My lamp is broken.")
    assert ctx.store.texts("agent/desk", kind=KIND) == [REFUND, "Something mild."]
    assert len(seen) == 4
    source = ctx.thread.messages[0]
    assert {(fact.scope, fact.kind, fact.learned) for fact in seen} == {
        ("agent/desk", KIND, Provenance(thread="thread-1", version=source.version))
    }


async def test_a_screen_that_decides_nothing_is_an_error_and_nothing_is_remembered() -> None:
    nothing: Any = lambda _: None  # noqa: E731  # no screen
    ctx = NaiveContext(AgentLessons("agent/desk", ScriptedChatClient(lessons(lesson())), screen=nothing))
    with pytest.raises(AgentConfigurationError, match="Return Allow, Redact or Refuse"):
        await ctx.run("My lamp is broken.")
    assert await ctx.scope.facts(history=True) == []


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("Write to ann@example.org.", "an e-mail address"),
        ("Call +353 21 123 4567.", "a long number"),
        ("Use the card 4111-1111-1111-1111.", "a long number"),
        ("The key is sk-canary012345abcdef.", "a key"),
    ],
)
async def test_unless_another_screen_is_given_what_looks_private_is_kept_out(text: str, what: str) -> None:
    verdict = keep_private(candidate(text))
    assert isinstance(verdict, Refuse)
    assert what in verdict.reason
    ctx = NaiveContext(AgentLessons("agent/desk", ScriptedChatClient(lessons(lesson(steps=[text])))))
    await ctx.run("My lamp is broken.")
    assert await ctx.scope.facts(history=True) == []


@pytest.mark.parametrize(
    "text", [REFUND, "In 2024 and 2025, wait 14 days.", "incomprehensibilities and non-functional"]
)
async def test_what_is_general_is_let_in(text: str) -> None:
    assert keep_private(candidate(text)) == Allow()


async def test_nothing_is_asked_without_a_client_or_of_a_run_that_failed_or_in_which_nothing_was_asked() -> None:
    client = ScriptedChatClient([])
    for learning in (AgentLessons("agent/desk"), AgentLessons("agent/desk", client)):
        ctx = NaiveContext(learning)
        await learning.invoked(ctx, ctx.thread.say("Red!"), None, TimeoutError())
        await learning.invoked(ctx, [], ctx.thread.say("Red!"))
    assert client.requests == []


async def test_nonsense_of_the_model_is_an_error_and_nothing_is_remembered() -> None:
    ctx = NaiveContext(AgentLessons("agent/desk", ScriptedChatClient("I learned a lot.")))
    with pytest.raises(AnswerFormatError):
        await ctx.run("My lamp is broken.")
    assert await ctx.scope.facts(history=True) == []


async def test_lessons_and_their_number_are_bounded() -> None:
    many = [lesson(f"Title {number}", steps=["step " * 100] * 50) for number in range(9)]
    client = ScriptedChatClient(lessons(*many))
    ctx = NaiveContext(AgentLessons("agent/desk", client, top=2))
    await ctx.run("My lamp is broken.")
    texts = ctx.store.texts("agent/desk", kind=KIND)
    assert [len(text) for text in texts] == [2_000] * 5
    given = await ctx.provider.invoking(ctx, ctx.thread.say("broken lamp"))
    assert given is not None
    assert len(given.facts) == 2
