"""Group chats: turns, channels, participants who come and go, forks and rewinds, and what waits for people."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, assert_type

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.agents.group_chats import agent_of, grow_chat, heard, requests_of

from clew import (
    Agent,
    ContextProvider,
    Engine,
    FunctionSelection,
    GroupChat,
    HandoffSelection,
    Human,
    ManualSelection,
    MaxTokens,
    MaxTurns,
    Message,
    ModelSelection,
    ModelTermination,
    OpenAIResponsesClient,
    Participant,
    ScriptedChatClient,
    TextMentioned,
    Together,
    tool,
)
from clew.chats.participants import member_of
from clew.domain.chats.channels import AgentChannel, channel_key
from clew.domain.chats.errors import ChannelContractError, ChatRunAbandonedError, ChatRunOpenError, NextSpeakerError
from clew.domain.context.provider import Context
from clew.domain.runs.errors import AgentConfigurationError, ModelError, NoOpenRunError, UnsupportedThreadError
from clew.testing import call, check_channel, fault
from clew.types import ChatResponse, ChatStream

pytestmark = pytest.mark.anyio


@pytest.fixture
def url(any_url: str) -> str:
    return any_url


async def said(chat: GroupChat) -> list[tuple[str, str]]:
    return [((each.message and each.message.author) or each.role, each.text) for each in await chat.history()]


async def test_participants_take_turns_and_hear_each_other(url: str) -> None:
    async with Engine.open(url) as engine:
        writer, editor = agent_of(engine, "Writer"), agent_of(engine, "Editor")
        chat = await engine.start_chat([writer, editor, writer], max_turns=3)
        response = await chat.run("A slogan.", actor="user:ann")
        assert await said(chat) == [
            ("user", "A slogan."),
            ("Writer", "I heard 1."),
            ("Editor", "I heard 2."),
            ("Writer", "I heard 3."),
        ]
        assert (response.reason, response.text) == ("max-turns", "I heard 3.")
        assert [heard(each) for each in requests_of(editor)] == [["A slogan.", "Writer: I heard 1."]]
        assert heard(requests_of(writer)[1]) == ["A slogan.", "I heard 1.", "Editor: I heard 2."]
        assert response.usage == (await chat.state()).usage
        assert {who: each.output_tokens for who, each in response.usage.items()} == {"Writer": 6, "Editor": 3}
        assert len({chat.id, *(each.thread.id for each in chat.participants)}) == len(["chat", "Writer", "Editor"])
        assert (await engine.verify()).first_bad is None


async def test_a_stream_names_the_author_of_each_update(url: str) -> None:
    async with Engine.open(url) as engine:
        chat = await engine.start_chat([agent_of(engine, "Writer"), agent_of(engine, "Editor")], max_turns=2)
        stream = assert_type(chat.run("A slogan.", stream=True), ChatStream)
        texts: dict[str | None, str] = {}
        async for update in stream:
            if update.type == "text":
                texts[update.author] = texts.get(update.author, "") + update.text
        assert texts == {"Writer": "I heard 1.", "Editor": "I heard 2."}
        assert assert_type(await stream.get_final_response(), ChatResponse).reason == "max-turns"
        assert_type(await chat.run("Another.", stream=False), ChatResponse)
        with pytest.raises(NoOpenRunError):
            assert_type(await chat.continue_run(), ChatResponse)
        with pytest.raises(NoOpenRunError):
            await assert_type(chat.continue_run(stream=True), ChatStream)


@pytest.mark.parametrize("remote", [False, True])
async def test_a_fork_continues_apart_and_costs_one_event(url: str, *, remote: bool) -> None:
    async with Engine.open(url) as engine:
        writer, editor = agent_of(engine, "Writer", remote=remote), agent_of(engine, "Editor")
        chat = await engine.start_chat([writer, editor], max_turns=2)
        await chat.run("One.")
        before = await chat.thread.version
        fork = await chat.fork(title="What if")
        own = [event async for event in fork.thread.events(after=before)]
        assert [event.type for event in own] == ["thread-forked"]
        await fork.run("Two of the fork.")
        await chat.run("Two of the chat.")
        assert [text for _, text in await said(fork)][3] == "Two of the fork."
        assert [text for _, text in await said(chat)][3] == "Two of the chat."
        in_fork, in_chat = heard(requests_of(editor)[-2]), heard(requests_of(editor)[-1])
        assert in_fork[-2] == "Two of the fork."
        assert in_chat[-2] == "Two of the chat."
        assert len(in_fork) == len(in_chat)
        if remote:  # both continue the response of the first turn
            assert [each["previous_response_id"] for each in requests_of(writer)[1:]] == ["resp_1", "resp_1"]
        threads = {each.thread.id for each in (*chat.participants, *fork.participants)}
        assert len(threads) == len(["Writer", "Editor"]) * 2
        assert (await engine.verify()).first_bad is None


async def test_a_rewind_takes_the_channels_along(url: str) -> None:
    async with Engine.open(url) as engine:
        writer, editor = agent_of(engine, "Writer"), agent_of(engine, "Editor")
        chat = await engine.start_chat([writer, editor], max_turns=2)
        await chat.run("One.")
        await chat.thread.checkpoint("one")
        await chat.run("Two.")
        await chat.thread.rewind("one")
        await chat.run("Two, again.")
        assert [text for _, text in await said(chat)] == [
            "One.", "I heard 1.", "I heard 2.", "Two, again.", "I heard 4.", "I heard 5.",
        ]  # fmt: skip
        assert "Two." not in heard(requests_of(editor)[-1])
        assert (await chat.state(at="one")).taken == len(["Writer", "Editor"])


async def test_a_newcomer_hears_the_chat_and_one_who_comes_back_what_it_missed(url: str) -> None:
    async with Engine.open(url) as engine:
        writer, editor, critic = (agent_of(engine, name) for name in ("Writer", "Editor", "Critic"))
        chat = await engine.start_chat([writer, editor], max_turns=2, newcomers_read=2)
        await chat.run("One.")
        await chat.remove("Editor")
        await chat.add(critic)
        await chat.run("Two.", next_speaker="Critic")
        assert heard(requests_of(critic)[0]) == ["Editor: I heard 2.", "Two."]
        await chat.add(editor)
        await chat.run("Three.", next_speaker="Editor")
        assert heard(requests_of(editor)[1]) == [
            "One.", "Writer: I heard 1.", "I heard 2.", "Two.", "Critic: I heard 2.", "Writer: I heard 5.", "Three.",
        ]  # fmt: skip
        with pytest.raises(NextSpeakerError, match="Nobody"):
            await chat.remove("Nobody")


async def test_end_ends_the_threads_that_the_chat_began_and_no_other(url: str) -> None:
    async with Engine.open(url) as engine:
        writer, editor, silent = (agent_of(engine, name) for name in ("Writer", "Editor", "Silent"))
        brought = await engine.start_thread(messages=[Message.user("We know each other.")])
        chat = await engine.start_chat([Participant(writer, thread=brought), editor, silent], max_turns=2)
        await chat.run("Hello.")
        assert heard(requests_of(writer)[0]) == ["We know each other.", "Hello."]
        own = [each.thread for each in chat.participants]
        await chat.end(reason="done")
        assert await chat.thread.status == "ended"
        assert [await thread.status for thread in own[:2]] == ["active", "ended"]


async def test_a_person_takes_a_turn_and_a_call_waits_for_approval(shared_url: str) -> None:
    @tool(approval="always")
    def publish() -> str:
        """Publish it."""
        return "published"

    async with Engine.open(shared_url) as engine:
        writer = agent_of(engine, "Writer", [call("publish"), "Done."], tools=[publish])
        chat = await engine.start_chat([writer, Human("ann", "Ann")], max_turns=2)
        response = await chat.run("Publish.")
        assert [each.call.name for each in response.approvals] == ["publish"]
        assert response.reason is None
        with pytest.raises(ChatRunOpenError):
            await chat.run("Again.")
        (pending,) = await chat.approvals()
        await pending.approve(actor="user:ann")
        response = await chat.continue_run()
        assert response.waiting_for == ("ann",)
    async with Engine.open(shared_url) as other:
        chat = await other.chat(chat.id, [agent_of(other, "Writer", [], tools=[publish]), Human("ann", "Ann")])
        await chat.respond("ann", "Thank you.")
        response = await chat.continue_run()
        assert response.reason == "max-turns"
        assert await said(chat) == [("user", "Publish."), ("Writer", "Done."), ("Ann", "Thank you.")]
        with pytest.raises(NoOpenRunError):
            await chat.continue_run()


async def test_a_failed_turn_is_recorded_and_given_again() -> None:
    async with Engine.open("memory:") as engine:
        writer = agent_of(engine, "Writer", [fault("context-window"), "Better."])
        chat = await engine.start_chat([writer], max_turns=1)
        with pytest.raises(ModelError):
            await chat.run("Hello.", idempotency_key="k")
        response = await chat.continue_run()
        assert response.text == "Better."
        assert heard(requests_of(writer)[1]) == ["Hello."]
        assert (await chat.run("Hello.", idempotency_key="k")).text == "Better."
        assert len(requests_of(writer)) == len(["failed", "answered"])


async def test_an_abandoned_run_is_not_continued() -> None:
    async with Engine.open("memory:") as engine:
        chat = await engine.start_chat([agent_of(engine, "Writer"), Human("ann")], max_turns=2)
        await chat.run("One.", idempotency_key="one")
        assert (await chat.run("Two.", abandon_run=True, idempotency_key="two")).waiting_for == ("ann",)
        with pytest.raises(ChatRunAbandonedError):
            await chat.run("One.", idempotency_key="one")
        assert (await chat.run("Two.", idempotency_key="two")).waiting_for == ("ann",)


async def test_all_speak_at_once_without_hearing_each_other(url: str) -> None:
    async with Engine.open(url) as engine:
        experts = [agent_of(engine, name) for name in ("A", "B", "C")]
        chat = await engine.start_chat(experts, selection=Together())
        response = await chat.run("What do you think?")
        assert sorted((each.message and each.message.author, each.text) for each in response.messages) == [
            ("A", "I heard 1."), ("B", "I heard 1."), ("C", "I heard 1."),
        ]  # fmt: skip
        await chat.run("And now?")
        assert len(heard(requests_of(experts[0])[1])) == len(["question", "own", "B", "C", "and now"])


async def test_a_model_and_a_function_select_and_a_person_does() -> None:
    async with Engine.open("memory:") as engine:
        a, b = agent_of(engine, "A"), agent_of(engine, "B", description="Knows parcels.")
        chooser = agent_of(engine, "Chooser", ["B.", "yes"])
        chat = await engine.start_chat([a, b], selection=ModelSelection(chooser), termination=ModelTermination(chooser))
        assert (await chat.run("Where is it?")).reason == "model"
        assert "- B: Knows parcels." in heard(requests_of(chooser)[0])[0]
        assert len(requests_of(b)) == len(["selected"])
        fixed = await engine.start_chat([a, b], selection=FunctionSelection(lambda chat: ["A", "B", None][chat.turns]))
        assert (await fixed.run("Hello.")).reason == "nobody"
        manual = await engine.start_chat([a, b], selection=ManualSelection())
        assert [
            each.message and each.message.author for each in (await manual.run("Hi.", next_speaker="B")).messages
        ] == ["B"]
        with pytest.raises(NextSpeakerError, match="'C'"):
            await manual.run("Hi.", next_speaker="C")
        with pytest.raises(AgentConfigurationError, match="selection"):
            await engine.chat(fixed.id, [a, b])


async def test_a_handoff_gives_the_turn_to_another_participant(url: str) -> None:
    async with Engine.open(url) as engine:
        triage = agent_of(engine, "Triage", [call("hand_off_to_Refunds", reason="a refund"), "Refunds takes over."])
        refunds = agent_of(engine, "Refunds", ["Done.", "Again."])
        chat = await engine.start_chat([triage, refunds], selection=HandoffSelection("Triage"))
        response = await chat.run("I want a refund.")
        assert await said(chat) == [
            ("user", "I want a refund."), ("Triage", "Refunds takes over."), ("Refunds", "Done."),
        ]  # fmt: skip
        assert response.reason == "nobody"
        reopened = await engine.chat(chat.id, [triage, refunds])
        assert (await reopened.run("And another.")).text == "Again."


async def test_a_run_ends_by_text_and_by_budget() -> None:
    async with Engine.open("memory:") as engine:
        editor = agent_of(
            engine,
            "Editor",
            ["Not yet.", "APPROVED", "No."],
        )
        chat = await engine.start_chat([editor], termination=TextMentioned("APPROVED", by="Editor"))
        assert (await chat.run("Is it?")).reason == "text"
        assert (await chat.state()).taken == len(["not yet", "approved"])
        spender = await engine.start_chat([agent_of(engine, "A")], termination=[MaxTokens(10), MaxTurns(9)])
        assert (await spender.run("Hello.")).reason == "max-tokens"


class Own(ContextProvider):
    """Gives what it was made with, and remembers the messages that it has seen."""

    def __init__(self, id: str, text: str) -> None:
        self.id, self.text, self.seen = id, text, list[str]()

    def initial_state(self, ctx: Any) -> Any:
        del ctx
        return {"of": self.text}

    async def invoking(self, ctx: Any, messages: Any) -> Context:
        del messages
        assert ctx.state == {"of": self.text}
        return Context(instructions=f"<{self.text}>")

    async def invoked(
        self, ctx: Any, request_messages: Any, response_messages: Any = None, exception: Any = None
    ) -> None:
        del ctx, exception
        self.seen += [each.text for each in (*request_messages, *(response_messages or ()))]


@settings(max_examples=8, deadline=None)
@given(st.lists(st.sampled_from(["run", "fork", "rewind", "leave"]), max_size=5), st.integers(2, 3))
def test_own_memories_stay_apart_and_the_chats_memory_is_seen_by_all(steps: list[str], many: int) -> None:
    asyncio.run(_check_memories(steps, many))


async def _check_memories(steps: list[str], many: int) -> None:
    async with Engine.open("memory:") as engine:
        names = [f"P{number}" for number in range(many)]
        agents = [agent_of(engine, name, context_providers=Own("user-memory", f"secret of {name}")) for name in names]
        shared = Own("shared", "known to all")
        chat = await engine.start_chat(agents, max_turns=many, context_providers=shared)
        await chat.run("Start.")
        await chat.thread.checkpoint("start")
        for step in steps:
            if step == "fork":
                chat = await chat.fork()
            elif step == "rewind":
                await chat.thread.rewind("start")
            elif step == "leave":
                await chat.remove("P0")
                await chat.add(agents[0])
            await chat.run(f"Then {step}.")
        for name, agent in zip(names, agents, strict=True):
            for body in requests_of(agent):
                (system,) = [text for text in heard(body) if "<" in text]
                assert "<known to all>" in system
                assert [each for each in names if f"<secret of {each}>" in system] == [name]
        assert shared.seen[: many + 1] == ["Start.", *[f"I heard {each + 2}." for each in range(many)]]
        assert max(Counter(shared.seen).values()) <= many * (len(steps) + 1)


def test_the_key_of_a_channel_is_stable_and_has_no_secrets() -> None:
    assert channel_key(AgentChannel()) == ("43106f7a1e6c032a5fb4ccf5aceb43532490490973a05d836f1e345f2f6cc2c9")
    with_secrets = AgentChannel("remote:x", "https://me:pw@Api.Example.com/v1/?api-key=sk#f", "remote")
    assert channel_key(with_secrets) == channel_key(AgentChannel("remote:x", "api.example.com/v1", "remote"))
    assert channel_key(with_secrets) != channel_key(AgentChannel("remote:y", "api.example.com/v1", "remote"))


async def test_the_channel_of_a_service_has_its_host_in_the_key() -> None:
    addresses = "https://me:pw@example.com/v1", "https://example.com/v1", "https://example.org/v1"
    keys = []
    for address in addresses:
        agent = Agent(OpenAIResponsesClient(model="m", api_key="sk-canary", base_url=address), name="A")
        keys.append(member_of(Participant(agent, thread_kind="remote")).identity.channel)
        assert member_of(agent).identity.channel == channel_key(AgentChannel())
    assert keys[0] == keys[1] != keys[2]
    with pytest.raises(UnsupportedThreadError):
        member_of(Participant(Agent(ScriptedChatClient("Hi."), name="A"), thread_kind="remote"))


def test_the_contract_of_channels_accepts_clews_own_and_finds_what_breaks_it() -> None:
    check_channel(AgentChannel)

    class Forgetful(AgentChannel):
        def adapt(self, messages: Any, author: str, *, newcomer: bool) -> list[Message]:
            return super().adapt(messages[1:], author, newcomer=newcomer)

    class Parrot(AgentChannel):
        def adapt(self, messages: Any, author: str, *, newcomer: bool) -> list[Message]:
            del newcomer
            return super().adapt(messages, author, newcomer=True)

    class Leaky(AgentChannel):
        def __init__(self) -> None:
            super().__init__("local", "https://me:password1@example.com")

    for broken, rule in ((Forgetful, "heard once"), (Parrot, "heard once"), (Leaky, "not secret")):
        with pytest.raises(ChannelContractError, match=rule):
            check_channel(broken)


async def test_a_long_chat_is_forked_rewound_and_read_in_constant_time(tmp_path: Path, scale: float) -> None:
    url = f"sqlite:///{tmp_path}/long.db?synchronous=OFF"
    async with Engine.open(url, embedded=False) as engine:
        before = await grow_chat(engine, turns=10_000 if scale >= 1 else 3_000)
    took: dict[str, list[float]] = {}
    for place in (3, 5, 7):  # each in a process that has not read the chat
        async with Engine.open(url, embedded=False) as engine:
            agents = [agent_of(engine, f"P{each}") for each in range(10)]
            chat = await engine.chat("long", agents)
            end, at = await chat.thread.version, before * place // 10
            steps: dict[str, Callable[[], Awaitable[Any]]] = {
                "at=": partial(chat.state, at=at),
                "what-if": partial(chat.fork, at=at - 200),
                "fork": chat.fork,
                "rewind": partial(chat.thread.rewind, to=end - 50),
                "after a rewind": chat.refresh,
            }
            for name, step in steps.items():
                began = time.perf_counter()
                await step()
                took.setdefault(name, []).append(time.perf_counter() - began)
            assert await chat.thread.version == end + 1, "a rewind is one event"
            if place == 7:
                await _check_branches(chat, await chat.fork(at=at), agents)
    assert {name: sorted(each)[1] for name, each in took.items() if sorted(each)[1] > 0.05} == {}, took


async def _check_branches(chat: GroupChat, fork: GroupChat, agents: list[Agent]) -> None:
    """Both continue apart, with the same participants and channels of their own."""
    for each, text in ((chat, "Of the chat."), (fork, "Of the fork.")):
        await each.run(text, next_speaker="P3")
        assert heard(requests_of(agents[3])[-1])[-1] == text
    own = {each.thread.id for each in chat.participants} | {each.thread.id for each in fork.participants}
    assert len(own) == len(agents) * 2
    assert "Of the chat." not in str(requests_of(agents[4])[-1])
