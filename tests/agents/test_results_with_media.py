"""Tools whose results are images, files or several contents: on the log, at the service, and for readers."""

from __future__ import annotations

import warnings
from base64 import b64encode
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from tests.agents.run_checks import check_requests, events_of
from tests.agents.scripted_wires import WIRES
from tests.agents.services import calls, service_of
from tests.agents.tool_calls import outcome

from clew import Agent, Audio, Engine, File, Image, Message, Middleware, ScriptedChatClient
from clew.domain.json_values import MAX_BYTES
from clew.domain.messages import FunctionResult, Media, Text
from clew.domain.models.chat_requests import RETURNED
from clew.errors import InvalidContentError, MediaNotSentWarning
from clew.testing import call

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\n" + b"picture" * 500
PDF = b"%PDF-1.7 " + b"report" * 500
WAV = b"RIFF\x01\x02\x03\x04WAVEfmt " + b"sound" * 500

SENDS_SOUND = {"chat": True, "gemini": True, "interactions": True}
SHOWN = (Text(text="The damage:"), Image(PNG), Text(text='{"cost": 7}'), File(PDF, name="report.pdf"))


def inspect(parcel: int) -> list[Any]:
    """Inspect a parcel."""
    del parcel
    return ["The damage:", Image(PNG), {"cost": 7}, File(PDF, name="report.pdf")]


def listen(parcel: int) -> Media:
    """Listen to a parcel."""
    del parcel
    return Audio(WAV)


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    async with Engine.open(f"sqlite:///{tmp_path}/clew.db?synchronous=OFF") as engine:
        yield engine


@pytest.mark.parametrize("kind", WIRES)
async def test_the_service_gets_the_contents_of_results(kind: str, engine: Engine) -> None:
    with service_of(kind) as service, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        both = calls(("inspect", '{"parcel": 7}'), ("listen", '{"parcel": 7}'))
        service.add_replies(both, "It is broken.", "Yes.", streams=False)
        agent = Agent(service.client(), engine=engine, tools=[inspect, listen])
        response = await agent.run("Look at parcel 7.")
        await agent.run("Really?", thread=response.thread)
        requests = await check_requests(response.thread, await events_of(response.thread))
        assert service.received(requests)
    for request in requests[1:]:
        assert all(b64encode(data) in request.content for data in (PNG, PDF))
        assert (b64encode(WAV) in request.content) == SENDS_SOUND.get(kind, False)
        assert "The damage:" in str(request.body)
    words = {str(each.message) for each in caught if each.category is MediaNotSentWarning}
    assert len(words) == (0 if SENDS_SOUND.get(kind) else 1)
    assert all("audio/wav" in each and "image/png" not in each for each in words)
    results = [each.contents for message in await response.thread.history() for each in message.results]
    assert results == [SHOWN, (Audio(WAV),)]
    assert (await engine.verify()).first_bad is None


async def test_chat_completions_has_the_media_in_a_message_after_all_results(engine: Engine) -> None:
    client = ScriptedChatClient([[call("inspect", parcel=7), call("listen", parcel=7)], "Broken."])
    await Agent(client, engine=engine, tools=[inspect, listen]).run("Look.")
    body: Any = client.requests[1]
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "tool", "tool", "user"]
    assert body["messages"][2]["content"] == (
        'The damage:\n[image/png, in the next message of the user]\n{"cost": 7}\n'
        "[application/pdf, in the next message of the user]"
    )
    words, *media = body["messages"][4]["content"]
    assert words == {"type": "text", "text": RETURNED}
    assert [part["type"] for part in media] == ["image_url", "file", "input_audio"]


async def test_a_result_is_exported_imported_forked_and_redacted_with_its_bytes(engine: Engine) -> None:
    client = ScriptedChatClient([call("inspect", parcel=7), "Broken."])
    thread = (await Agent(client, engine=engine, tools=[inspect]).run("Look.")).thread
    history = await thread.history()
    exported = b"".join([part async for part in engine.export_events()])
    document = await thread.serialize()
    async with Engine.open("memory:") as copy:
        await copy.import_events(BytesIO(exported))
        assert [each.message for each in await (await copy.thread(thread.id)).history()] == [
            each.message for each in history
        ]
        assert (await copy.verify()).first_bad is None
    async with Engine.open("memory:") as copy:
        restored = await copy.restore_thread(document)
        assert (await restored.history()).messages[2].results == history.messages[2].results
    fork = await thread.fork()
    await thread.redact(history.messages[2].version, reason="shows a face")
    assert (await fork.history()).messages[2].contents == ()
    left = b"".join([part async for part in engine.export_events()])
    assert b64encode(PNG) in exported
    assert b64encode(PNG) not in left
    assert (await engine.verify()).first_bad is None


def test_a_result_is_read_back_from_chat_completions() -> None:
    from clew.domain.formats.openai_messages import decode, encode

    message = Message(role="tool", contents=(FunctionResult(call_id="c", name="inspect", contents=SHOWN),))
    (written,) = encode(message)
    assert decode(written) == message
    plain = {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "as before"}]}
    assert decode(plain).results[0].result == plain["content"]
    assert encode(decode(plain)) == [plain]


def test_what_a_tool_may_return() -> None:
    assert outcome(lambda: Image(PNG), name="f").contents == (Image(PNG),)
    assert outcome(lambda: ("a", Text(text="b")), name="f").contents == (Text(text="a"), Text(text="b"))
    assert outcome(lambda: ["a", "b"], name="f").result == ["a", "b"]
    assert outcome(lambda: [*()], name="f").result == []
    odd = outcome(lambda: [Image(PNG), object()], name="f")
    assert (odd.error, odd.contents) == ("TypeError", ())
    large = Media(uri="data:image/png;base64," + b64encode(bytes(MAX_BYTES + 1)).decode(), media_type="image/png")
    assert "too large" in str(outcome(lambda: [large], name="f").result)
    stored = Media(uri="data:image/png;base64,", size=1, digest="ab" * 32)
    assert "Error" in str(outcome(lambda: stored, name="f").result)
    with pytest.raises(InvalidContentError, match="contents or JSON, not both"):
        FunctionResult(call_id="c", result="a", contents=(Text(text="b"),))


async def test_middleware_may_return_contents() -> None:
    class Blurs(Middleware):
        async def tool_call(self, context: Any, proceed: Any) -> Any:
            del context
            outcome = await proceed()
            return type(outcome)(None, contents=(Text(text=f"{len(outcome.contents)} contents"),))

    async with Engine.open("memory:") as engine:
        client = ScriptedChatClient([call("inspect", parcel=7), "Broken."])
        response = await Agent(client, engine=engine, tools=[inspect], middleware=[Blurs()]).run("Look.")
        assert response.messages[1].results[0].contents == (Text(text="4 contents"),)
