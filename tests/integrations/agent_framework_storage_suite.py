"""Agent Framework's messages and checkpoints in Clew: the same calls to its own storages, and real runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from agent_framework import (
    Agent,
    BaseChatClient,
    ChatResponse,
    Content,
    Executor,
    InMemoryCheckpointStorage,
    InMemoryHistoryProvider,
    Message,
    WorkflowBuilder,
    WorkflowCheckpoint,
    WorkflowContext,
    handler,
)
from examples.integrations.agent_framework_storage import ClewCheckpointStorage, ClewHistoryProvider

from clew import Engine

MESSAGES = [
    Message("user", ["Where is parcel 7?"], author_name="Ada"),
    Message("assistant", [Content.from_function_call("c1", "track", arguments={"parcel": 7})]),
    Message("tool", [Content.from_function_result("c1", result="In Cork.")]),
    Message("assistant", [Content.from_text("In "), Content.from_data(b"\0png", media_type="image/png"), "Cork."]),
    Message("system", ["Be brief."]),
]


def test_messages_come_back_equal_and_can_be_read_in_clew(tmp_path: Path) -> None:
    async def save() -> Any:
        async with Engine.open(tmp_path / "clew.db") as engine:
            provider = ClewHistoryProvider(engine)
            assert await provider.get_messages("s") == []
            await provider.save_messages("s", [])
            await provider.save_messages("s", MESSAGES[:2])
            await provider.save_messages("s", MESSAGES[2:])
            history = await (await engine.thread("s")).history()
            return await provider.get_messages("s"), [(each.role, each.author, each.text) for each in history]

    messages, history = asyncio.run(save())
    assert [message.to_dict() for message in messages] == [message.to_dict() for message in MESSAGES]
    assert history == [
        ("user", "Ada", "Where is parcel 7?"),
        ("assistant", None, ""),
        ("tool", None, ""),
        ("assistant", None, "In Cork."),
        ("system", None, "Be brief."),
    ]


class Counter(BaseChatClient):
    """A model that says what it was asked."""

    def _inner_get_response(self, *, messages: Any, **_: Any) -> Any:
        async def answer() -> ChatResponse:
            return ChatResponse(messages=[Message("assistant", ["|".join(message.text for message in messages)])])

        return answer()


def test_an_agent_is_asked_the_same_with_both_providers(tmp_path: Path) -> None:
    async def talk(provider: Any) -> list[str]:
        agent = Agent(Counter(), context_providers=[provider])
        session = agent.create_session()
        return [(await agent.run(words, session=session)).text for words in ("one", "two", "three")]

    async def both() -> Any:
        async with Engine.open(tmp_path / "clew.db") as engine:
            return await talk(ClewHistoryProvider(engine)), await talk(InMemoryHistoryProvider())

    clew, own = asyncio.run(both())
    assert clew == own == ["one", "one|one|two", "one|one|two|one|one|two|three"]


def checkpoint(number: int, workflow: str = "orders") -> WorkflowCheckpoint:
    return WorkflowCheckpoint(
        workflow_name=workflow,
        graph_signature_hash="hash",
        checkpoint_id=f"c{number}",
        timestamp=f"2026-01-0{9 - number}T09:00:00+00:00",
        state={"number": number, "pair": (1, 2), "bytes": b"\0\xff", "nested": {"at": [1.5, None]}},
        iteration_count=number,
    )


async def answers(storage: Any) -> dict[str, Any]:
    """What a storage answers to the same calls, by name."""

    async def outcome(awaitable: Any) -> Any:
        try:
            return await awaitable
        except Exception as error:  # noqa: BLE001  # which error it is, is compared
            return type(error).__name__, str(error)

    said: dict[str, Any] = {"nothing": await storage.list_checkpoints(workflow_name="orders")}
    said["no latest"] = await storage.get_latest(workflow_name="orders")
    said["unknown"] = await outcome(storage.load("c1"))
    said["saved"] = [await storage.save(checkpoint(number)) for number in (1, 2, 3)]
    await storage.save(checkpoint(4, "other"))
    said["loaded"] = await storage.load("c2")
    said["of the other workflow"] = await storage.load("c4")
    said["list"] = await storage.list_checkpoints(workflow_name="orders")
    said["ids"] = await storage.list_checkpoint_ids(workflow_name="orders")
    said["latest"] = await storage.get_latest(workflow_name="orders")
    again = checkpoint(2)
    again.state["number"] = "again"
    await storage.save(again)
    said["saved again"] = await storage.load("c2")
    said["deleted"] = [await storage.delete("c1"), await storage.delete("c1"), await storage.delete("none")]
    said["after the deletion"] = sorted(await storage.list_checkpoint_ids(workflow_name="orders"))
    said["of a deleted one"] = await outcome(storage.load("c1"))
    said["others"] = await storage.list_checkpoint_ids(workflow_name="other")
    return said


def test_checkpoints_are_answered_as_by_the_storage_of_the_framework(tmp_path: Path) -> None:
    async def both() -> Any:
        async with Engine.open(tmp_path / "clew.db") as engine:
            clew = await answers(ClewCheckpointStorage(engine))
            assert (await engine.verify()).first_bad is None
        return clew, await answers(InMemoryCheckpointStorage())

    clew, own = asyncio.run(both())
    assert clew == own
    assert len(clew) == 14


class Adder(Executor):
    """Add one until it is enough."""

    @handler
    async def add(self, number: int, ctx: WorkflowContext[int, int]) -> None:
        if number < 3:
            await ctx.send_message(number + 1)
        else:
            await ctx.yield_output(number)


def test_a_workflow_resumes_from_a_checkpoint_of_another_process(tmp_path: Path) -> None:
    def workflow(storage: Any) -> Any:
        first, second = Adder(id="first"), Adder(id="second")
        builder = WorkflowBuilder(name="count", start_executor=first, checkpoint_storage=storage)
        return builder.add_edge(first, second).add_edge(second, first).build()

    async def run() -> Any:
        async with Engine.open(tmp_path / "clew.db") as engine:
            storage = ClewCheckpointStorage(engine)
            outputs = (await workflow(storage).run(0)).get_outputs()
            ids = await storage.list_checkpoint_ids(workflow_name="count")
        async with Engine.open(tmp_path / "clew.db") as engine:
            storage = ClewCheckpointStorage(engine)
            resumed = workflow(storage)
            again = (await resumed.run(checkpoint_id=ids[1], checkpoint_storage=storage)).get_outputs()
        return outputs, again, len(ids)

    outputs, again, count = asyncio.run(run())
    assert outputs == again == [3]
    assert count >= 4
