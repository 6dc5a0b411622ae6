"""What holds of every thread that agents ran on, whatever went wrong."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.domain.request_checks import check_chat, check_items

from clew.aio.threads import Thread
from clew.domain.decider_state import Control, advance
from clew.domain.events import Event
from clew.domain.json_values import JsonObject
from clew.domain.runs.requests import Request
from clew.engine import Engine

Told = tuple[str, str]
"""A message in short: its role, and its words or what its results say."""


async def events_of(thread: Thread) -> list[Event]:
    """The events of a thread, oldest first."""
    return [event async for event in thread.events()]


async def told(thread: Thread) -> list[Told]:
    """The history in short."""
    return [in_short(each.message) for each in await thread.history() if each.message is not None]


def in_short(message: Any) -> Told:
    """A message in short: a call is its name and arguments."""
    said = [message.text, *(f"{each.name}{each.arguments}" for each in message.calls)]
    return message.role, " ".join(filter(None, [*said, *(str(each.result) for each in message.results)]))


async def check_requests(thread: Thread, events: Iterable[Event]) -> list[Request]:
    """The requests of the model calls among events, each rebuilt as it was sent, and one that services take."""
    found: list[Request] = []
    for event in events:
        if event.type == "model-called":
            request = await thread.request(event.version)
            assert request.verified, f"the request of version {event.version} is another than was sent"
            check_body(request.body)
            found.append(request)
    return found


def check_body(body: JsonObject) -> None:
    """Every call has its result, whatever form it is."""
    sent: Any = body
    if "messages" in sent:
        check_chat(sent["messages"], {each["function"]["name"] for each in sent.get("tools", ())})
    else:
        goes_on = bool({"previous_response_id", "conversation"} & set(sent))
        check_items(sent["input"], {each["name"] for each in sent.get("tools", ())}, remote=goes_on)


async def check_store(engine: Engine, thread: Thread, events: Iterable[Event]) -> Control:
    """The store verifies, and what decisions go by is what the events say; returns that."""
    verdict = await engine.verify()
    assert verdict.first_bad is None
    folded = Control()
    for event in events:
        folded = advance(folded, event)
    known = await thread.runs.control(fresh=True)
    assert folded.run == known.run
    assert (folded.version, folded.messages, folded.agents) == (known.version, known.messages, known.agents)
    return folded
