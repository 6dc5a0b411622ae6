"""Runs with images, audio and files: what a service receives, and what it cannot be sent."""

from __future__ import annotations

import warnings
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.agents.scripted_wires import WIRES
from tests.agents.services import calls, service_of

from clew import Agent, Audio, Context, ContextProvider, Engine, File, Image, KeepLast, Message, ScriptedChatClient
from clew.domain.runs.events import ModelCalled
from clew.errors import AgentChangedWarning, InvalidContentError, MediaNotSentError, MediaNotSentWarning

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\n" + b"picture" * 500
WAV = b"RIFF\x01\x02\x03\x04WAVEfmt " + b"sound" * 500
PDF = b"%PDF-1.7 " + b"report" * 500

SENDS: dict[str, tuple[bool, bool, bool]] = {
    "chat": (True, True, True),
    "responses": (True, False, True),
    "anthropic": (True, False, True),
    "gemini": (True, True, True),
    "interactions": (True, True, True),
    "bedrock": (True, True, True),
}
"""Whether a service can be sent the image, the audio and the file."""

MESSAGE = Message.user("Compare:", Image(PNG), Audio(WAV), File(PDF, name="report.pdf"), author="ann")


@pytest.fixture
async def engine(tmp_path: Any) -> AsyncIterator[Engine]:
    async with Engine.open(f"sqlite:///{tmp_path}/clew.db?synchronous=OFF") as engine:
        yield engine


def look_up(order: int) -> str:
    """Look up an order."""
    return f"Order {order} is on its way."


async def requests_of(thread: Any) -> list[Any]:
    return [
        await thread.request(event.version) async for event in thread.events() if isinstance(event.data, ModelCalled)
    ]


@pytest.mark.parametrize("kind", WIRES)
@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
async def test_the_service_gets_the_bytes_and_the_run_warns_once_of_what_it_cannot_be_sent(
    kind: str,
    streams: bool,  # noqa: FBT001  # pytest passes it
    engine: Engine,
) -> None:
    with service_of(kind) as service, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        service.add_replies(calls(("look_up", '{"order": 7}')), "They differ.", "Still.", streams=streams)
        agent, thread = Agent(service.client(), engine=engine, tools=[look_up]), await engine.start_thread()
        for given in (MESSAGE, "And now?"):
            if streams:
                await agent.run(given, thread=thread, stream=True).get_final_response()
            else:
                await agent.run(given, thread=thread)
        requests = await requests_of(thread)
        assert service.received(requests)
    assert [request.verified for request in requests] == [True] * 3
    for request in requests:
        found = [b64encode(data) in request.content for data in (PNG, WAV, PDF)]
        assert tuple(found) == SENDS[kind]
    words = [str(each.message) for each in caught if each.category is MediaNotSentWarning]
    assert len(words) == (0 if all(SENDS[kind]) else 2), "once in each run, which has up to two requests"
    assert all("audio/wav of version 3" in each and thread.id in each for each in words)
    assert (await thread.history()).messages[0].message == MESSAGE
    assert (await engine.verify()).first_bad is None


@pytest.mark.parametrize("kind", ["responses", "anthropic"])
async def test_a_strict_run_fails_before_anything_is_sent(kind: str, engine: Engine) -> None:
    with service_of(kind) as service:
        service.add_replies("Only words.", streams=False)
        thread = await engine.start_thread()
        strict = Agent(service.client(), engine=engine, strict_media=True)
        with pytest.raises(MediaNotSentError, match=r"audio/wav of version 3.*strict_media=False") as raised:
            await strict.run(MESSAGE, thread=thread)
        assert [(each.version, each.media_type) for each in raised.value.media] == [(3, "audio/wav")]
        assert (raised.value.thread_id, raised.value.client) == (thread.id, strict.client.kind)
        assert await requests_of(thread) == []
        assert service.received([])
        with pytest.warns(MediaNotSentWarning, match="audio/wav"):
            response = await strict.run("Go on.", thread=thread, strict_media=False)
        assert response.text == "Only words."
        with pytest.raises(MediaNotSentError):
            await Agent(service.client(), engine=engine).run("Go on.", thread=thread, strict_media=True)
        assert service.received(await requests_of(thread))


async def test_media_that_are_reduced_away_are_no_loss(engine: Engine) -> None:
    with service_of("anthropic") as service:
        service.add_replies("Yes.", "Hello.", streams=False)
        agent = Agent(service.client(), engine=engine, reducer=KeepLast(2), strict_media=True)
        thread = await engine.start_thread(messages=[MESSAGE, Message.assistant("Hm."), Message.user("Well?")])
        assert (await agent.run("Are you there?", thread=thread)).text == "Yes."


async def test_a_fork_and_another_process_send_the_same_bytes(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/clew.db?synchronous=OFF"
    with service_of("gemini") as service:
        service.add_replies("One.", "Two.", streams=False)
        async with Engine.open(url) as engine:
            thread = await engine.start_thread(thread_id="t")
            await Agent(service.client(), engine=engine).run([Message.user("Look."), MESSAGE], thread=thread)
        async with Engine.open(url) as engine:
            fork = await (await engine.thread("t")).fork(thread_id="f")
            await Agent(service.client(), engine=engine).run("Again.", thread=fork)
            requests = await requests_of(fork)
            assert service.received(requests)
            assert all(request.verified and b64encode(PNG) in request.content for request in requests)
            await (await engine.thread("t")).redact((await fork.history()).messages[1])
            (first, _) = await requests_of(fork)
            assert (first.verified, b64encode(PNG) in first.content) == (False, False)


class Shows(ContextProvider):
    """Gives a picture to each run."""

    async def invoking(self, ctx: Any, messages: Any) -> Context:
        del ctx, messages
        return Context(messages=[Message(role="system", contents=(Image(PNG),))])


@pytest.mark.filterwarnings(f"ignore::{AgentChangedWarning.__module__}.{AgentChangedWarning.__qualname__}")
async def test_media_of_a_context_provider_are_named_too(engine: Engine) -> None:
    agent = Agent(ScriptedChatClient("Yes."), engine=engine, context_providers=[Shows()], strict_media=True)
    with pytest.raises(MediaNotSentError, match="image/png of a context provider"):
        await agent.run("Hello?")


async def test_a_remote_thread_has_no_place_for_media_of_a_context_provider(engine: Engine) -> None:
    with service_of("responses") as service:
        agent = Agent(service.client(), engine=engine, context_providers=[Shows()], strict_media=True)
        with pytest.raises(MediaNotSentError, match="image/png of a context provider"):
            await agent.run("Hello?", thread=await agent.get_remote_thread())


async def test_strict_media_is_a_bool(engine: Engine) -> None:
    with pytest.raises(InvalidContentError, match="strict_media='no' is not a bool"):
        Agent(ScriptedChatClient("x"), engine=engine, strict_media="no")  # type: ignore[arg-type]  # that is the point
    with pytest.raises(InvalidContentError, match="strict_media='no' is not a bool"):
        await Agent(ScriptedChatClient("x"), engine=engine).run("x", strict_media="no")  # type: ignore[call-overload]  # as above
