"""ConversationSummaries: what a thread was about is kept when it ends, and told where it matters."""

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
    """What a model answers that sums up so."""
    return json.dumps({"summary": text})


def shown(client: ScriptedChatClient) -> Any:
    """The messages that the last request shows."""
    messages: Any = client.requests[-1]["messages"]
    return json.loads(messages[-1]["content"])["messages"]


@pytest.mark.parametrize("scope", [None, ""])
def test_a_scope_that_is_none_is_an_error(scope: str | None) -> None:
    with pytest.raises(ScopeError, match="ConversationSummaries"):
        ConversationSummaries(scope)


async def test_a_thread_that_ends_is_summed_up_and_told_in_others_of_the_scope_only() -> None:
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
    told = await summaries.invoking(two, two.thread.say("Which slogan was chosen?"))
    assert told is not None
    assert str(told.instructions).splitlines()[1:] == ["- 2026-03-04: A slogan for lamps of bark was chosen."]
    assert [each.id for each in told.facts] == [fact.id]
    assert await summaries.invoking(one, one.thread.say("Which slogan was chosen?")) is None
    assert await summaries.invoking(two, two.thread.say("Zzz")) is None
    assert await summaries.invoking(two, two.thread.say("")) is None
    other = ConversationSummaries("group/chairs", client)
    assert await other.invoking(NaiveContext(other, memory), two.thread.say("Which slogan was chosen?")) is None


async def test_a_checkpoint_is_summed_up_only_where_that_is_wanted() -> None:
    client = ScriptedChatClient([summary("First.")])
    for at_checkpoints in (False, True):
        summaries = ConversationSummaries("group/lamps", client, at_checkpoints=at_checkpoints)
        ctx = NaiveContext(summaries)
        await ctx.run("Hello.")
        await summaries.on_checkpoint(ctx, "here")
        assert ctx.store.texts("group/lamps", kind=KIND) == (["First."] if at_checkpoints else [])


async def test_a_later_summary_takes_the_place_of_the_earlier_and_nothing_new_is_not_summed_up_again() -> None:
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


async def test_a_summary_that_was_taken_back_meanwhile_is_no_fault() -> None:
    async def meanwhile(_: JsonObject) -> str:
        await ctx.scope.retract("group/lamps-1")
        return summary("Second.")

    summaries = ConversationSummaries("group/lamps", ScriptedChatClient(meanwhile))
    ctx = NaiveContext(summaries)
    await ctx.scope.remember("First.", key=ctx.thread.id, kind=KIND)
    await ctx.run("Hello.")
    await summaries.on_thread_ended(ctx)
    assert ctx.store.texts("group/lamps", kind=KIND) == ["Second."]


async def test_a_thread_in_which_nothing_was_said_is_not_summed_up() -> None:
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


async def test_nonsense_of_the_model_is_an_error_and_nothing_is_remembered() -> None:
    summaries = ConversationSummaries("group/lamps", ScriptedChatClient("A summary."))
    ctx = NaiveContext(summaries)
    await ctx.run("Hello.")
    with pytest.raises(AnswerFormatError):
        await summaries.on_thread_ended(ctx)
    assert await ctx.scope.facts(history=True) == []


async def test_a_summary_of_no_words_is_not_kept() -> None:
    summaries = ConversationSummaries("group/lamps", ScriptedChatClient(summary(" ")))
    ctx = NaiveContext(summaries)
    await ctx.run("Hello.")
    await summaries.on_thread_ended(ctx)
    assert await ctx.scope.facts(history=True) == []


async def test_a_long_thread_is_shown_without_its_middle_and_with_calls_and_results() -> None:
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


async def test_at_most_the_best_few_are_told() -> None:
    summaries = ConversationSummaries("group/lamps", top=2, min_score=0.5)
    ctx = NaiveContext(summaries)
    for key, text in (("thread-1", "red lamp"), ("a", "red lamp"), ("b", "red lamp"), ("c", "red lamp"), ("d", "red")):
        await ctx.scope.remember(text, key=key, kind=KIND)
    given = await summaries.invoking(ctx, ctx.thread.say("red lamp or not"))
    assert given is not None
    assert [fact.key for fact in given.facts] == ["a", "b"]
