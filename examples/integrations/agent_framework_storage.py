"""Microsoft's Agent Framework: the messages of a session in a thread, the checkpoints of a workflow in a scope."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from agent_framework import HistoryProvider, Message, WorkflowCheckpoint, WorkflowCheckpointException
from agent_framework._workflows._checkpoint_encoding import decode_checkpoint_value, encode_checkpoint_value
from examples.integrations.items import as_items, as_message, text_paths

from clew import Engine
from clew.types import LocalThread, RemoteThread

WORKFLOWS = "workflows"
"""The scope that has the name of each checkpoint's workflow."""


class ClewHistoryProvider(HistoryProvider):
    """The messages of a session, in the thread of its id."""

    def __init__(self, engine: Engine, source_id: str = "clew", **options: Any) -> None:
        super().__init__(source_id, **options)
        self.engine = engine

    async def get_messages(
        self, session_id: str | None, *, state: dict[str, Any] | None = None, **_: Any
    ) -> list[Message]:
        history = await (await self._thread(session_id, state)).history()
        return [Message.from_dict(item) for item in as_items(history)]

    async def save_messages(
        self, session_id: str | None, messages: Sequence[Message], *, state: dict[str, Any] | None = None, **_: Any
    ) -> None:
        items = [message.to_dict() for message in messages]
        if items:
            thread = await self._thread(session_id, state)
            await thread.append(
                [
                    as_message(item["role"], item, text_paths(item, "contents"), author=item.get("author_name"))
                    for item in items
                ]
            )

    async def _thread(self, session_id: str | None, state: dict[str, Any] | None) -> LocalThread | RemoteThread:
        """Without a session's id, the id of its thread is in the session's state."""
        if session_id is None and state is not None:
            session_id = state.get("thread_id") or (await self.engine.start_thread()).id
            state["thread_id"] = session_id
        return await self.engine.open_thread(session_id or "default")


class ClewCheckpointStorage:
    """Checkpoints of workflows: each workflow has a scope, and another scope finds the workflow of a checkpoint."""

    def __init__(self, engine: Engine, *, allowed_types: frozenset[str] | None = None) -> None:
        self.engine = engine
        self.allowed_types = allowed_types

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        workflow, all_workflows = await self._scope(checkpoint.workflow_name), await self.engine.memory(WORKFLOWS)
        async with self.engine.batch() as batch:
            batch.put(workflow, checkpoint.checkpoint_id, encode_checkpoint_value(checkpoint.to_dict()), text="-")
            batch.put(all_workflows, checkpoint.checkpoint_id, checkpoint.workflow_name)
        return str(checkpoint.checkpoint_id)

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        named = await (await self.engine.memory(WORKFLOWS)).get(checkpoint_id)
        fact = named and await (await self._scope(named.value)).get(checkpoint_id)
        if fact is None:
            raise WorkflowCheckpointException(f"No checkpoint found with ID {checkpoint_id}")
        return self._checkpoint(fact)

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        return [self._checkpoint(fact) for fact in await (await self._scope(workflow_name)).facts()]

    async def delete(self, checkpoint_id: str) -> bool:
        all_workflows = await self.engine.memory(WORKFLOWS)
        named = await all_workflows.get(checkpoint_id)
        if named is None:
            return False
        workflow = await self._scope(named.value)
        async with self.engine.batch() as batch:
            batch.delete(workflow, checkpoint_id)
            batch.delete(all_workflows, checkpoint_id)
        return True

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        facts = await (await self._scope(workflow_name)).facts()
        newest = max(facts, key=lambda fact: datetime.fromisoformat(fact.value["timestamp"]), default=None)
        return newest and self._checkpoint(newest)

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[str]:
        return [str(fact.key) for fact in await (await self._scope(workflow_name)).facts()]

    async def _scope(self, workflow_name: Any) -> Any:
        return await self.engine.memory(f"workflow/{workflow_name}")

    def _checkpoint(self, fact: Any) -> WorkflowCheckpoint:
        value = decode_checkpoint_value(fact.value, allowed_types=self.allowed_types)
        return WorkflowCheckpoint.from_dict(value)
