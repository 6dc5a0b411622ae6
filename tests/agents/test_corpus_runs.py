"""Agents on real conversations cut at each message: requests are valid and contain the result of each call."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest
from tests.agents.run_checks import check_body, check_requests, events_of
from tests.agents.services import as_json

from clew.domain.call_pairing import NO_RESULT
from clew.domain.formats.conversation_import import read_conversation
from clew.domain.messages import FunctionCall, FunctionResult, Message
from clew.engine import Agent, Engine
from clew.infrastructure.scripted_client import ScriptedChatClient

WIRES = {"openai-chat": ("local",), "openai-responses": ("local", "remote")}

Turn = tuple[str, str]
"""A turn of a request: its role or kind, and its content; a result follows its call."""


def turns_of(messages: Sequence[Message]) -> list[Turn]:
    """Return the expected turns of a request: texts, and after each message its calls and their results in order."""
    turns: list[Turn] = []
    for number, message in enumerate(messages):
        turns += [(message.role, message.text)] if message.text else []
        turns += [("call", f"{each.name} {each.arguments}") for each in message.calls]
        following = messages[number + 1 : number + 1 + len(message.calls)]
        results = [each.results[0] for each in following if each.role == "tool"]
        for function_call, result in zip(message.calls, [*results, *[None] * len(message.calls)], strict=False):
            assert result is None or result.call_id == function_call.call_id
            turns.append(("result", NO_RESULT if result is None else str(result.result)))
    return turns


def sent_turns(body: Any) -> list[Turn]:
    """Return the turns of a request."""
    turns: list[Turn] = []
    for each in body.get("messages", body.get("input")):
        match each:
            case {"role": "tool", "content": content} | {"type": "function_call_output", "output": content}:
                turns.append(("result", content))
            case {"type": "function_call", "name": name, "arguments": arguments}:
                turns.append(("call", f"{name} {arguments}"))
            case {"role": role, "content": content}:
                turns += [(role, text_of(content))] if content else []
                made = [call["function"] for call in each.get("tool_calls", ())]
                turns += [("call", f"{call['name']} {call['arguments']}") for call in made]
    return turns


def text_of(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


@pytest.mark.parametrize("wire", WIRES)
def test_a_conversation_cut_at_any_message_gives_a_valid_request(
    wire: str, corpus: list[dict[str, Any]], scale: float
) -> None:
    sample = random.Random(11).sample(corpus, max(1, min(len(corpus), round(len(corpus) * scale))))
    conversations = [read_conversation(each).messages for each in sample]
    asyncio.run(cut_everywhere(conversations, wire))


async def cut_everywhere(conversations: Sequence[Sequence[Message]], wire: str) -> None:
    client = ScriptedChatClient(lambda _: "I see.", thread_kinds=WIRES[wire])  # type: ignore[arg-type]  # they are
    assert client.wire.name == wire
    async with Engine.open("memory:", projections=()) as engine:
        agent = Agent(client, engine=engine, name="Clerk")
        for messages in conversations:
            for cut in range(1, len(messages) + 1):
                thread = await engine.start_thread(messages=messages[:cut])
                response = await (agent.run("And now?", thread=thread) if cut % 2 else agent.run(thread=thread))
                body = client.requests.pop()
                check_body(body)
                later = [("user", "And now?")] if cut % 2 else []
                assert sent_turns(body) == [*turns_of(messages[:cut]), *later]
                assert [each.message for each in (await thread.history()).messages[:cut]] == list(messages[:cut])
                assert response.text == "I see."
                await check_requests(thread, await events_of(thread))


def test_call_ids_that_recur_pair_up_in_order() -> None:
    def function_call(number: int) -> Message:
        call = FunctionCall(call_id="call_0", name="lookup", arguments=as_json(order=number))
        return Message(role="assistant", contents=(call,))

    def answered(number: int) -> Message:
        return Message(role="tool", contents=(FunctionResult(call_id="call_0", result=f"order {number}"),))

    messages = [Message.user("Look up all.")]
    for number in range(4):
        messages += [function_call(number), answered(number)]
    for wire in WIRES:
        asyncio.run(cut_everywhere([messages], wire))


@pytest.mark.parametrize("wire", WIRES)
def test_equal_texts_are_separate_messages(wire: str) -> None:
    async def converse() -> None:
        client = ScriptedChatClient("Are you sure?", loop=True, thread_kinds=WIRES[wire])  # type: ignore[arg-type]
        async with Engine.open("memory:") as engine:
            agent = Agent(client, engine=engine)
            thread = await agent.get_local_thread()
            for _ in range(3):
                await agent.run("yes", thread=thread)
            await thread.append([Message.user("yes")] * 3)
            await agent.run(thread=thread)
            expected = [("user", "yes"), ("assistant", "Are you sure?")] * 3 + [("user", "yes")] * 3
            assert sent_turns(client.requests[-1]) == expected
            history = await thread.history()
            assert [(each.role, each.text) for each in history] == [*expected, ("assistant", "Are you sure?")]
            assert len({each.version for each in history}) == len(history)

    asyncio.run(converse())
