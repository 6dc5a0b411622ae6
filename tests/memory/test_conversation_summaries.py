"""ConversationSummaries: a summary of an ended thread is stored and provided where it matters."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.memory.naive_memory import NaiveContext, NaiveMemory, NaiveThread

from clew.domain.errors import ScopeError
from clew.domain.json_values import JsonObject
from clew.domain.memory.events import Provenance
from clew.domain.messages import FunctionCall, Message
from clew.domain.runs.errors import AnswerFormatError
from clew.infrastructure.scripted_client import ScriptedChatClient
from clew.memory.conversation_summaries import KIND, ConversationSummaries

pytestmark = pytest.mark.anyio


def summary(text: str) -> str:
    """Return the answer of a model with this summary."""
    return json.dumps({"summary": text})


def shown(client: ScriptedChatClient) -> Any:
    """Return the messages in the last request."""
    messages: Any = client.requests[-1]["messages"]
    return json.loads(messages[-1]["content"])["messages"]


@pytest.mark.parametrize("scope", [None, ""])
def test_refuses_a_missing_scope(scope: str | None) -> None:
    with pytest.raises(ScopeError, match="ConversationSummaries"):
        ConversationSummaries(scope)


async def test_an_ended_thread_is_summarised_for_other_threads_of_the_scope() -> None:
    client = ScriptedChatClient(summary("A slogan for lamps\nof bark was chosen."))
    summaries = ConversationSummaries("group/lamps", client)
    memory = NaiveMemory()
    one = NaiveContext(summaries, memory, NaiveThread("one"))
    await one.run("A slogan for lamps?", "Bark up the right tree.")
    await summaries.on_thread_ended(one)
    (fact,) = await one.scope.facts(kind=KIND)
    assert fact.learned == Provenance(thread="one", version=one.thread.messages[-1].version)
    assert fact.key == "one"
    assert [(each["role"], each["said"]) for each in shown(client)] == [
        ("user", "A slogan for lamps?"),
        ("assistant", "Bark up the right tree."),
    ]
    two = NaiveContext(summaries, memory, NaiveThread("two"))
    context = await summaries.invoking(two, two.thread.say("Which slogan was chosen?"))
    assert context is not None
    assert str(context.instructions).splitlines()[1:] == ["- 2026-03-04: A slogan for lamps of bark was chosen."]
    assert [each.id for each in context.facts] == [fact.id]
    assert await summaries.invoking(one, one.thread.say("Which slogan was chosen?")) is None
    assert await summaries.invoking(two, two.thread.say("Zzz")) is None
    assert await summaries.invoking(two, two.thread.say("")) is None
    other = ConversationSummaries("group/chairs", client)
    assert await other.invoking(NaiveContext(other, memory), two.thread.say("Which slogan was chosen?")) is None


async def test_a_checkpoint_is_summarised_only_on_request() -> None:
    client = ScriptedChatClient([summary("First.")])
    for at_checkpoints in (False, True):
        summaries = ConversationSummaries("group/lamps", client, at_checkpoints=at_checkpoints)
        ctx = NaiveContext(summaries)
        await ctx.run("Hello.")
        await summaries.on_checkpoint(ctx, "here")
        assert ctx.store.texts("group/lamps", kind=KIND) == (["First."] if at_checkpoints else [])


async def test_a_later_summary_replaces_the_earlier_one() -> None:
    client = ScriptedChatClient([summary("First."), summary("Second.")])
    summaries = ConversationSummaries("group/lamps", client, at_checkpoints=True)
    ctx = NaiveContext(summaries)
    await ctx.run("Hello.")
    await summaries.on_checkpoint(ctx, "here")
    await summaries.on_checkpoint(ctx, "and here")
    assert len(client.requests) == 1
    await ctx.run("One more.")
    await summaries.on_thread_ended(ctx)
    past = await ctx.scope.facts(history=True)
    assert [(fact.text, fact.status) for fact in past] == [("First.", "superseded"), ("Second.", "live")]


async def test_a_summary_retracted_meanwhile_is_not_an_error() -> None:
    async def meanwhile(_: JsonObject) -> str:
        await ctx.scope.retract("group/lamps-1")
        return summary("Second.")

    summaries = ConversationSummaries("group/lamps", ScriptedChatClient(meanwhile))
    ctx = NaiveContext(summaries)
    await ctx.scope.remember("First.", key=ctx.thread.id, kind=KIND)
    await ctx.run("Hello.")
    await summaries.on_thread_ended(ctx)
    assert ctx.store.texts("group/lamps", kind=KIND) == ["Second."]


async def test_an_empty_thread_is_not_summarised() -> None:
    client = ScriptedChatClient([])
    summaries = ConversationSummaries("group/lamps", client)
    ctx = NaiveContext(summaries)
    await summaries.on_thread_ended(ctx)
    ctx.thread.say(Message.system("You sell lamps."))
    await summaries.on_thread_ended(ctx)
    reading = ConversationSummaries("group/lamps")
    ctx.thread.say("Hello.")
    await reading.on_thread_ended(ctx)
    assert client.requests == []


async def test_an_invalid_answer_is_an_error_and_nothing_is_stored() -> None:
    summaries = ConversationSummaries("group/lamps", ScriptedChatClient("A summary."))
    ctx = NaiveContext(summaries)
    await ctx.run("Hello.")
    with pytest.raises(AnswerFormatError):
        await summaries.on_thread_ended(ctx)
    assert await ctx.scope.facts(history=True) == []


async def test_an_empty_summary_is_not_stored() -> None:
    summaries = ConversationSummaries("group/lamps", ScriptedChatClient(summary(" ")))
    ctx = NaiveContext(summaries)
    await ctx.run("Hello.")
    await summaries.on_thread_ended(ctx)
    assert await ctx.scope.facts(history=True) == []


async def test_a_long_thread_is_summarised_without_its_middle() -> None:
    client = ScriptedChatClient(summary("long " * 1_000))
    summaries = ConversationSummaries("group/lamps", client)
    ctx = NaiveContext(summaries)
    ctx.thread.say(*(f"Message {number}." for number in range(298)))
    call = FunctionCall(call_id="1", name="price", arguments='{"lamp": "bark"}')
    ctx.thread.say(Message.assistant(calls=[call]), Message.tool("1", {"cents": 4_800}))
    await summaries.on_thread_ended(ctx)
    messages = shown(client)
    assert len(messages) == 201
    assert messages[49]["said"] == "Message 49."
    assert messages[50] == {"left_out": 100}
    assert [each["said"] for each in messages[-3:]] == [
        "Message 297.",
        '[calls price with {"lamp": "bark"}]',
        '[is given {"cents": 4800}]',
    ]
    assert [len(text) for text in ctx.store.texts("group/lamps", kind=KIND)] == [2_000]


async def test_provides_at_most_the_best_summaries() -> None:
    summaries = ConversationSummaries("group/lamps", top=2, min_score=0.5)
    ctx = NaiveContext(summaries)
    for key, text in (("thread-1", "red lamp"), ("a", "red lamp"), ("b", "red lamp"), ("c", "red lamp"), ("d", "red")):
        await ctx.scope.remember(text, key=key, kind=KIND)
    context = await summaries.invoking(ctx, ctx.thread.say("red lamp or not"))
    assert context is not None
    assert [fact.key for fact in context.facts] == ["a", "b"]
