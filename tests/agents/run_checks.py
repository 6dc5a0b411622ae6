"""Checks that hold for each thread with runs, after any fault."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from tests.domain.request_checks import check_chat, check_items
from tests.servers import strict_anthropic, strict_bedrock, strict_interactions
from tests.servers.strict_gemini import StrictGemini

from clew.aio.threads import Thread
from clew.domain.decider_state import Control, advance
from clew.domain.events import Event
from clew.domain.json_values import JsonObject
from clew.domain.models.anthropic_requests import ANTHROPIC
from clew.domain.models.bedrock_requests import BEDROCK
from clew.domain.models.gemini_requests import GEMINI
from clew.domain.models.interactions_requests import INTERACTIONS
from clew.domain.runs.events import ModelCalled
from clew.domain.runs.request_construction import Request
from clew.domain.streams import digest
from clew.engine import Engine

RoleAndText = tuple[str, str]
"""A short form of a message: its role, and its text or results."""


async def events_of(thread: Thread) -> list[Event]:
    """Return the events of a thread, oldest first."""
    return [event async for event in thread.events()]


async def short_history(thread: Thread) -> list[RoleAndText]:
    """Return the history in short form."""
    return [in_short(each.message) for each in await thread.history() if each.message is not None]


def in_short(message: Any) -> RoleAndText:
    """Return the short form of a message; a call becomes its name and arguments."""
    parts = [message.text, *(f"{each.name}{each.arguments}" for each in message.calls)]
    return message.role, " ".join(filter(None, [*parts, *(str(each.result) for each in message.results)]))


async def check_requests(thread: Thread, events: Iterable[Event]) -> list[Request]:
    """Rebuild and check the request of each model call among the events; return the requests."""
    requests: list[Request] = []
    for event in events:
        if isinstance(event.data, ModelCalled):
            request = await thread.request(event.version)
            assert request.verified is (request.sent is True), f"the request of version {event.version} differs"
            assert digest(request.content).hex() == event.data.as_sent
            check_body(request.body, event.data.wire)
            requests.append(request)
    return requests


def check_body(body: JsonObject, wire: str = "") -> None:
    """Check that each call has its result, in the wire format of that name or in one of OpenAI's."""
    sent: Any = body
    if wire in _STRICT:
        _STRICT[wire](sent)
    elif "messages" in sent:
        check_chat(sent["messages"], {each["function"]["name"] for each in sent.get("tools", ())})
    else:
        continues = bool({"previous_response_id", "conversation"} & set(sent))
        check_items(sent["input"], {each["name"] for each in sent.get("tools", ())}, remote=continues)


_STRICT: dict[str, Callable[[Any], None]] = {
    ANTHROPIC.name: partial(strict_anthropic.check, "/v1/messages"),
    BEDROCK.name: strict_bedrock.check,
    INTERACTIONS.name: lambda body: strict_interactions.check(body, [], None),
    GEMINI.name: lambda body: StrictGemini().check("m-1", body["contents"], signed=False),
}


async def check_store(engine: Engine, thread: Thread, events: Iterable[Event]) -> Control:
    """Check that the store verifies and that its control equals the folded events; return the control."""
    verdict = await engine.verify()
    assert verdict.first_bad is None
    folded = Control()
    for event in events:
        folded = advance(folded, event)
    stored = await thread.runs.control(fresh=True)
    assert folded.run == stored.run
    assert (folded.version, folded.messages, folded.agents) == (stored.version, stored.messages, stored.agents)
    return folded
