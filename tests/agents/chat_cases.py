"""The cases of restoring chats: one process writes the chats of all combinations of agents, others restore them.

``python -m tests.agents.chat_cases write|restore STORE SERVICE FOLDER`` prints what it found, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from openai import AsyncOpenAI

from clew import (
    Agent,
    ChatSerializer,
    Engine,
    GroupChat,
    Human,
    MaxTurns,
    Message,
    OpenAIChatClient,
    OpenAIResponsesClient,
    Participant,
)
from clew.domain.chats.channels import AgentChannel
from clew.domain.chats.errors import ChatNotRestoredError
from clew.domain.history import HistoryMessage
from clew.domain.models.client import ThreadKind

KINDS = "CRTHX"
"""An agent on chat completions, one on responses, one whose service holds its thread, a person, and one of an own kind
of channel. The first two and the last are on threads that Clew holds."""


@dataclass(frozen=True)
class Shouting:
    """A channel of an application: its agents hear everything in capitals."""

    kind: str = "shouting"
    address: str = ""
    thread_kind: ThreadKind = "local"

    def adapt(self, messages: Sequence[HistoryMessage], author: str, *, newcomer: bool) -> list[Message]:
        heard = AgentChannel().adapt(messages, author, newcomer=newcomer)
        return [Message(role=each.role, author=each.author, contents=_loud(each)) for each in heard]


def _loud(message: Message) -> Any:
    return [{"type": "text", "text": message.text.upper()}]


def befores() -> list[str]:
    """Return the combinations of one to three kinds of agents. In those of three, the last one never has a turn."""
    chosen = ["".join(each) for many in (1, 2, 3) for each in combinations(KINDS, many)]
    return [each[number % len(each) :] + each[: number % len(each)] for number, each in enumerate(chosen)]


def afters(before: str) -> list[str]:
    """Return who is there when a chat is restored: the same, one more, every part of them, or nobody."""
    more = [before + kind for kind in KINDS if kind not in before]
    fewer = ["".join(each) for many in range(1, len(before)) for each in combinations(before, many)]
    return [before, *more, *fewer, ""]


def cases_in(store: str, before: str, number: int) -> list[str]:
    """Return the cases for a store: in a database one for each combination, in turn; else each in a file of its own.

    Of the many cases with one more, or with fewer, there is one for each combination, or all at full scale.
    """
    cases = afters(before)
    if "{" not in store:
        return [cases[number % len(cases)]]
    if float(os.environ.get("CLEW_SCALE", "0.1")) >= 1:
        return cases
    more = [after for after in cases if len(after) > len(before)]
    fewer = [after for after in cases if 0 < len(after) < len(before)]
    return [before, more[number % len(more)], *fewer[number % max(1, len(fewer)) :][:1], ""]


def service_of(before: str) -> Literal["response", "conversation"]:
    """Return what the service calls the thread that it holds."""
    return "conversation" if len(before) == 2 else "response"  # pairs


class Agents:
    """Agents of one chat in one process. Their keys say whose request the service receives."""

    def __init__(self, engine: Engine, client: AsyncOpenAI, before: str, phase: str) -> None:
        self._engine, self._client, self._before, self._phase = engine, client, before, phase

    def make(self, kind: str) -> Any:
        if kind == "H":
            return Human("H", description="of kind H")
        options: Any = {"client": self._client.with_options(api_key=f"{self._phase}/{kind}")}
        client: Any = OpenAIChatClient("m-1", **options)
        if kind in "RT":
            remote = kind == "T"
            client = OpenAIResponsesClient("m-1", store=remote, service=service_of(self._before), **options)
        agent: Any = Agent(client, engine=self._engine, name=kind, instructions="Count.", description=f"of kind {kind}")
        return Participant(agent, channel=Shouting()) if kind == "X" else agent


async def take_turns(chat: GroupChat, text: str, turns: int, speaker: str | None = None) -> None:
    """Run a chat for a number of turns. The person in it always says the same."""
    chat.termination = (MaxTurns(turns),)
    response = await chat.run(text, next_speaker=speaker)
    while response.waiting_for:
        await chat.respond("H", "I am here.")
        response = await chat.continue_run()


def threads_of(chat: GroupChat) -> dict[str, str]:
    return {each.id: each.thread.id for each in chat.participants if each.type != "human"}


async def write(store: str, url: str, folder: Path) -> Any:
    found = {}
    async with Engine.open(store) as engine, AsyncOpenAI(api_key="-", base_url=url) as client:
        for before in befores():
            agents = Agents(engine, client, before, f"{before}:first")
            chat = await engine.start_chat([agents.make(kind) for kind in before])
            await take_turns(chat, "One.", min(2, len(before)))
            with (folder / f"{before}.json").open("w", encoding="utf-8") as stream:
                await ChatSerializer.serialize(chat, stream)
            found[before] = {"threads": threads_of(chat)}
            then = Agents(engine, client, before, before)
            same = await engine.chat(chat.id, [then.make(kind) for kind in before])
            await take_turns(same, "Two.", len(before))
    return found


async def restore(store: str, url: str, folder: Path) -> Any:
    found: dict[str, Any] = {}
    async with AsyncOpenAI(api_key="-", base_url=url) as client:
        for number, before in enumerate(befores()):
            with (folder / f"{before}.json").open(encoding="utf-8") as stream:
                document = await ChatSerializer.deserialize(stream)
            for after in cases_in(store, before, number):
                async with Engine.open(store.format(before=before, after=after)) as engine:
                    case = await _restore_one(engine, client, document, before, after)
                    case["first bad"] = (await engine.verify()).first_bad
                    found[f"{before}>{after}"] = case
    return found


async def _restore_one(engine: Engine, client: AsyncOpenAI, document: Any, before: str, after: str) -> Any:
    agents = Agents(engine, client, before, f"{before}>{after}")
    found: dict[str, Any] = {
        "participants": [[each.id, each.name, each.type, each.description] for each in document.participants]
    }
    chat = await engine.start_chat([agents.make(kind) for kind in after])
    if not after:
        try:
            await document.restore(chat)
        except ChatNotRestoredError as error:
            found["needed"] = error.needed
        for kind in before:
            await chat.add(agents.make(kind))
    report = await document.restore(chat)
    found |= {"restored": report.restored, "new": report.new, "missing": report.missing, "threads": threads_of(chat)}
    version = await chat.thread.version
    try:
        await document.restore(chat)
    except ChatNotRestoredError:
        found["untouched"] = await chat.thread.version == version
    await take_turns(chat, "Two.", len(after or before))
    for kind in report.missing:
        await chat.add(agents.make(kind))
        await take_turns(chat, "Welcome back.", 1, kind)
    found["threads later"] = threads_of(chat)
    return found


if __name__ == "__main__":
    command, store, url, folder = sys.argv[1:]
    work = {"write": write, "restore": restore}[command]
    print(json.dumps(asyncio.run(work(store, url, Path(folder)))))  # noqa: T201  # the result of the process
