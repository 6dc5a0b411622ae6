"""A session of the OpenAI Agents SDK in Clew: the same calls to the SDK's own session, and real runs of an agent."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, Model, ModelResponse, Runner, SQLiteSession, Usage, function_tool, set_tracing_disabled
from examples.integrations.openai_agents_session import ClewSession
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from clew import Engine, Message

CALL = {"type": "function_call", "call_id": "c1", "name": "track", "arguments": '{"parcel": 7}', "id": "fc_1"}
ITEMS: list[Any] = [
    {"role": "user", "content": "Where is parcel 7?"},
    CALL,
    {"type": "function_call_output", "call_id": "c1", "output": "In Cork."},
    {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "In Cork."}]},
    {
        "id": "rs_1",
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "Easy."}],
        "encrypted_content": "x",
    },
    {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [
            {"type": "output_text", "text": "In ", "annotations": []},
            {"type": "output_text", "text": "Cork."},
        ],
    },
    {
        "role": "user",
        "content": [{"type": "input_image", "image_url": "data:x"}, {"type": "input_text", "text": "ü\n"}],
    },
    {"role": "developer", "content": "Be brief."},
    {"type": "function_call", "name": "broken", "arguments": None},
    {"role": "user", "content": None},
    {"role": "someone", "content": "?"},
    {"type": "web_search_call", "id": "ws_1", "status": "completed"},
]


def answers(session: Any) -> Any:
    """What a session answers to the same calls."""

    async def calls() -> list[Any]:
        said = [await session.get_items(), await session.pop_item()]
        await session.add_items([])
        await session.add_items(ITEMS[:5])
        await session.add_items(ITEMS[5:])
        said += [await session.get_items(limit) for limit in (None, 0, 1, 3, 100, -1)]
        said += [await session.pop_item(), await session.pop_item(), await session.get_items(2)]
        await session.add_items(ITEMS[:1])
        said.append(await session.get_items(2))
        await session.clear_session()
        said += [await session.get_items(), await session.pop_item()]
        await session.clear_session()
        await session.add_items(ITEMS[:1])
        return [*said, await session.get_items()]

    return calls()


async def in_clew(path: Path, **settings: Any) -> Any:
    async with Engine.open(path / "clew.db") as engine:
        session = ClewSession("s", engine, **settings)
        said = await answers(session)
        assert (await engine.verify()).first_bad is None
        return said


@pytest.mark.parametrize("settings", [{}, {"session_settings": {"limit": 2}}], ids=["plain", "limited"])
def test_answers_as_the_session_of_the_sdk_does(tmp_path: Path, settings: dict[str, Any]) -> None:
    own = SQLiteSession("s", tmp_path / "own.db", **settings)
    assert asyncio.run(in_clew(tmp_path, **settings)) == asyncio.run(answers(own))
    own.close()


def test_items_are_messages_calls_and_results_in_clew(tmp_path: Path) -> None:
    async def read() -> list[Any]:
        async with Engine.open(tmp_path / "clew.db") as engine:
            session = ClewSession("s", engine)
            await session.add_items(ITEMS[:6])
            thread = await session.thread()
            await thread.append(Message.user("From elsewhere."))
            history = await thread.history()
            assert (await session.get_items())[-1] == {"role": "user", "content": "From elsewhere."}
            assert [hit.version for hit in await engine.search("Cork")] != []
            return [(each.role, each.text, len(each.calls), len(each.results)) for each in history]

    assert asyncio.run(read()) == [
        ("user", "Where is parcel 7?", 0, 0),
        ("assistant", "", 1, 0),
        ("tool", "", 0, 1),
        ("tool", "", 0, 1),
        ("assistant", "", 0, 0),
        ("assistant", "In Cork.", 0, 0),
        ("user", "From elsewhere.", 0, 0),
    ]


def test_of_eight_pops_at_once_each_gets_another_item(tmp_path: Path) -> None:
    items: list[Any] = [{"role": "user", "content": str(number)} for number in range(10)]

    async def pop() -> Any:
        async with Engine.open(tmp_path / "clew.db") as engine:
            await ClewSession("s", engine).add_items(items)
            sessions = [ClewSession("s", engine) for _ in range(8)]
            popped = await asyncio.gather(*(session.pop_item() for session in sessions))
            return popped, await sessions[0].get_items()

    popped, rest = asyncio.run(pop())
    assert sorted(popped, key=lambda item: item["content"]) == items[2:]
    assert rest == items[:2]


set_tracing_disabled(disabled=True)  # nothing is sent to a service


class Script(Model):
    """A model with prepared answers. It remembers what it was asked."""

    def __init__(self, *outputs: Any) -> None:
        self.outputs, self.inputs = list(outputs), []  # type: ignore[var-annotated]

    async def get_response(self, *positional: Any, **named: Any) -> ModelResponse:
        self.inputs.append(named.get("input", positional[1] if len(positional) > 1 else None))
        return ModelResponse(output=[self.outputs.pop(0)], usage=Usage(), response_id=None)

    def stream_response(self, *positional: Any, **named: Any) -> Any:
        raise NotImplementedError


def text(words: str) -> Any:
    part = ResponseOutputText(type="output_text", text=words, annotations=[])
    return ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[part])


@function_tool
def track(parcel: int) -> str:
    """Say where a parcel is."""
    return f"Parcel {parcel} is in Cork."


def test_an_agent_is_asked_the_same_with_both_sessions(tmp_path: Path) -> None:
    async def play(session: Any) -> Any:
        script = Script(ResponseFunctionToolCall(**CALL), text("In Cork."), text("Good bye."))  # type: ignore[arg-type]
        agent = Agent(name="depot", model=script, tools=[track])
        await Runner.run(agent, "Where is parcel 7?", session=session)
        await Runner.run(agent, "Thanks.", session=session)
        return script.inputs, await session.get_items()

    async def in_both() -> Any:
        async with Engine.open(tmp_path / "clew.db") as engine:
            return await play(ClewSession("s", engine)), await play(SQLiteSession("s"))

    clew, own = asyncio.run(in_both())
    assert clew == own
    assert len(clew[0]) == 3


def test_a_fork_continues_from_the_middle(tmp_path: Path) -> None:
    async def fork() -> Any:
        async with Engine.open(tmp_path / "clew.db") as engine:
            session = ClewSession("s", engine)
            await session.add_items(ITEMS[:3])
            thread = await session.thread()
            other = await thread.fork(at=2, thread_id="other")
            branch = ClewSession(other.id, engine)
            await branch.add_items(ITEMS[5:6])
            return await branch.get_items(), await session.get_items()

    branch, items = asyncio.run(fork())
    assert branch == [ITEMS[0], ITEMS[5]]
    assert items == ITEMS[:3]
