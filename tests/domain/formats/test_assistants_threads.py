"""Threads of OpenAI's Assistants become threads, and continue with an agent on Responses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.servers.raw_server import RawServer, whole

from clew import Agent, Engine, Media, OpenAIResponsesClient
from clew.domain.formats.assistants_threads import is_assistants, read_assistants

BEGAN = 1_700_000_000


def listed(number: int, role: str, *content: Any, **more: Any) -> Any:
    about = {"id": f"msg_{number}", "object": "thread.message", "thread_id": "thread_1", "metadata": {}}
    return {**about, "created_at": BEGAN + 60 * number, "role": role, "content": list(content), **more}


def text(words: str, *annotations: Any) -> Any:
    return {"type": "text", "text": {"value": words, "annotations": list(annotations)}}


NOTE = {"type": "file_citation", "text": "[1]", "file_citation": {"file_id": "file_1"}}
PICTURE = {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}
MESSAGES = [
    listed(0, "user", text("Where is my parcel?"), PICTURE),
    listed(1, "assistant", text("On its way [1].", NOTE), run_id="run_1", assistant_id="asst_1"),
    listed(2, "user", text("Thanks!")),
]
SOURCE = {"id": "msg_1", "run_id": "run_1", "assistant_id": "asst_1", "annotations": [[NOTE]]}
PAGE = {"object": "list", "data": MESSAGES[::-1], "first_id": "msg_2", "last_id": "msg_0", "has_more": False}


@pytest.mark.anyio
@pytest.mark.parametrize("value", [PAGE, MESSAGES])
async def test_a_thread_keeps_its_times_and_continues_at_responses(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "thread.json"
    path.write_text(json.dumps(value))
    async with Engine.open(f"sqlite:///{tmp_path / 'clew.db'}") as engine:
        assert (await engine.import_files(path)).messages == 3
        (found,) = [each async for each in engine.threads()]
        thread = await engine.thread(found.id)
        history = [*await thread.history()]
        assert [(each.role, each.text) for each in history] == [
            ("user", "Where is my parcel?"),
            ("assistant", "On its way [1]."),
            ("user", "Thanks!"),
        ]
        assert [each.said_at.timestamp() for each in history if each.said_at] == [BEGAN, BEGAN + 60, BEGAN + 120]
        assert history[0].message is not None
        assert history[1].message is not None
        assert history[0].message.contents[1] == Media(uri="https://a.example/b.png")
        assert history[1].message.source["openai-assistants"] == SOURCE
        with RawServer() as server:
            item = {"type": "message", "id": "m", "role": "assistant", "status": "completed"}
            part = {"type": "output_text", "text": "You are welcome.", "annotations": []}
            reply = {
                "id": "resp_1",
                "object": "response",
                "status": "completed",
                "output": [{**item, "content": [part]}],
            }
            server.add_replies(whole(reply))
            agent = Agent(OpenAIResponsesClient("m-1", api_key="sk-x", base_url=server.url), engine=engine)
            there = await thread.fork(kind="remote")
            assert (await agent.run("Bye", thread=there)).text == "You are welcome."
            sent = server.requests[0].json()
        assert [each["role"] for each in sent["input"]] == ["user", "assistant", "user", "user"]
        assert sent.get("store", True)


def test_other_lists_are_not_threads_of_assistants() -> None:
    others: list[Any] = [
        None,
        [],
        {"data": []},
        {"data": [{"object": "model"}]},
        [*MESSAGES, {"role": "user"}],
        {"data": 3},
    ]
    for value in others:
        assert not is_assistants(value)
    assert is_assistants(PAGE)
    assert read_assistants(PAGE).id == "thread_1"
