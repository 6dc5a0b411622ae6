"""Agents for the tests of group chats: their models are stateless, so any process can continue a chat."""

from __future__ import annotations

from typing import Any

from clew.agents.agent import Agent as AnyAgent
from clew.domain.json_values import JsonObject
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
