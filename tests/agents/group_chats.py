"""Agents for the tests of group chats: their models are stateless, so any process can continue a chat."""

from __future__ import annotations

from typing import Any

from clew.agents.agent import Agent as AnyAgent
from clew.domain.chats.events import ChatRunEnded, ChatRunStarted, TurnFinished, TurnStarted
from clew.domain.decider import Append, Intent, RecordEvents
from clew.domain.json_values import JsonObject
from clew.domain.messages import Message
from clew.domain.models.client import TokenUsage
from clew.engine import Agent, Engine
from clew.infrastructure.scripted_client import ScriptedChatClient


def heard(body: JsonObject) -> list[str]:
    """Return what a request to a model says, with the authors of others: a name, or a prefix of the text."""
    messages: Any = body.get("messages", body.get("input"))
    return [f"{each['name']}: {each['content']}" if "name" in each else _text(each) for each in messages]


def _text(message: Any) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def counting(body: JsonObject) -> str:
    """Answer with the number of messages in the request, so that equal requests have equal answers."""
    return f"I heard {len(heard(body))}."


def agent_of(engine: Engine, name: str, script: Any = counting, *, remote: bool = False, **options: Any) -> Agent:
    client = ScriptedChatClient(script, thread_kinds=("remote",) if remote else ("local",))
    return Agent(client, engine=engine, name=name, **options)


def requests_of(agent: AnyAgent[Any, Any]) -> list[JsonObject]:
    client: Any = agent.client
    requests: list[JsonObject] = client.requests
    return requests


async def grow_chat(engine: Engine, *, turns: int, chat_id: str = "long") -> int:
    """Store a chat of ten agents with that many turns, and return its version. Only the first round is really taken."""
    agents = [agent_of(engine, f"P{each}") for each in range(10)]
    chat = await engine.start_chat(agents, max_turns=len(agents), chat_id=chat_id)
    await chat.run("Begin.")
    channels, version = (await chat.state()).channels, await chat.thread.version
    for number in range(turns // len(agents)):
        run = version + 1
        steps: list[Intent] = [RecordEvents((ChatRunStarted(),)), Append((Message.user(f"Question {number}."),))]
        for turn, (who, channel) in enumerate(channels.items()):
            started = TurnStarted(participant=who, thread_id=channel.thread_id)
            usage = TokenUsage(input_tokens=7, output_tokens=3)
            finished = TurnFinished(turn=run + 2 + 3 * turn, thread_version=channel.version, usage=usage)
            answer = Message.assistant(f"Answer {number}.", author=who)
            steps += [RecordEvents((started,)), Append((answer,)), RecordEvents((finished,))]
        steps.append(RecordEvents((ChatRunEnded(run=run, reason="max-turns"),)))
        version += len(steps)
        await chat.thread.runs.record(steps)
        await chat.refresh()
    return version
