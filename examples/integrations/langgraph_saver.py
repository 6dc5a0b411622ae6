"""LangGraph's checkpoints in a store of Clew: each thread of LangGraph is a thread of Clew."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

from examples.integrations import langgraph_records as stored
from langgraph.checkpoint import base

from clew import Conversations
from clew.errors import ThreadExistsError, UnknownThreadError

PREFIX = "langgraph/"
LABELS: dict[str, Any] = {"framework": "langgraph"}


def awaited(method: Any) -> Any:
    """The same method for asyncio. It runs in a thread."""

    async def call(self: Any, *args: Any, **options: Any) -> Any:
        return await asyncio.to_thread(method, self, *args, **options)

    return call


class ClewSaver(base.BaseCheckpointSaver[str]):
    """A deleted thread is purged: its content is destroyed unless it has copies. The log keeps the rest."""

    def __init__(self, conversations: Conversations, *, serde: Any = None) -> None:
        super().__init__(serde=serde)
        self.conversations = conversations

    def get_tuple(self, config: Any) -> base.CheckpointTuple | None:
        thread_id, ns, _ = stored.asked(config)
        tree = self._tree(thread_id)
        id = base.get_checkpoint_id(config) or max(stored.look(tree, "checkpoint", ns), default="")
        return self._tuple(thread_id, tree, ns, id) if stored.look(tree, "checkpoint", ns, id) else None

    def list(
        self, config: Any, *, filter: dict[str, Any] | None = None, before: Any = None, limit: int | None = None
    ) -> Iterator[base.CheckpointTuple]:
        asked = config["configurable"] if config else {}
        below = base.get_checkpoint_id(before) if before else None
        for thread_id in [asked["thread_id"]] if "thread_id" in asked else self._thread_ids():
            tree = self._tree(thread_id)
            for ns, there in stored.look(tree, "checkpoint").items():
                for id in sorted(there if asked.get("checkpoint_ns", ns) == ns else (), reverse=True):
                    if asked.get("checkpoint_id", id) == id and (below is None or id < below):
                        found = self._tuple(thread_id, tree, ns, id)
                        if all(found.metadata.get(key) == value for key, value in (filter or {}).items()):
                            if limit is not None and (limit := limit - 1) < 0:
                                return
                            yield found

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        thread_id, ns, parent = stored.asked(config)
        tree, values = self._tree(thread_id), checkpoint["channel_values"]
        before = stored.look(tree, "checkpoint", ns, parent)
        old = before.data["versions"] if before else {}
        records = [
            stored.value_record(self.serde, tree, ["value", ns, channel, version], old.get(channel), values[channel])
            for channel, version in new_versions.items()
            if channel in values and not stored.look(tree, "value", ns, channel, version)  # a version has one value
        ]
        versions = {channel: each for channel, each in checkpoint["channel_versions"].items() if channel in values}
        rest = {key: value for key, value in checkpoint.items() if key != "channel_values"}
        content = [rest, base.get_checkpoint_metadata(config, metadata)]
        path, data = ["checkpoint", ns, checkpoint["id"]], {"parent": parent, "versions": versions}
        self._thread(thread_id).append([*records, stored.record(self.serde, path, content, **data)])
        return stored.config(thread_id, ns, checkpoint["id"])

    def put_writes(self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = "") -> None:
        thread_id, ns, id = stored.asked(config)
        there = stored.look(self._tree(thread_id), "write", ns, id, task_path, task_id)
        places = [base.WRITES_IDX_MAP.get(channel, index) for index, (channel, _) in enumerate(writes)]
        records = [
            stored.record(self.serde, ["write", ns, id, task_path, task_id, place], value, channel=channel)
            for place, (channel, value) in zip(places, writes, strict=True)
            if place < 0 or place not in there  # only an error or an interrupt is replaced
        ]
        if records:
            self._thread(thread_id).append(records)

    def delete_thread(self, thread_id: str) -> None:
        if (thread := self._thread(thread_id, start=False)) is not None:
            thread.rewind(1) if thread.forks() else thread.purge()  # copies keep what they share

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        for thread_id in self._thread_ids():
            self._drop(thread_id, lambda made, _: stored.load(self.serde, made)[1].get("run_id") in run_ids)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        for thread_id in thread_ids:
            if strategy == "delete":
                self.delete_thread(thread_id)
            else:
                self._drop(thread_id, lambda made, needed: made.data["path"][2] not in needed)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        if (thread := self._thread(source_thread_id, start=False)) is not None:
            thread.fork(thread_id=f"{PREFIX}{target_thread_id}")

    def get_next_version(self, current: str | None, channel: None) -> str:
        del channel
        number = int((current or "0").partition(".")[0]) + 1
        return f"{number:032}.{uuid4().hex}"  # no two branches have the same version

    aget_tuple, aput, aput_writes, acopy_thread = map(awaited, (get_tuple, put, put_writes, copy_thread))
    adelete_thread, adelete_for_runs, aprune = map(awaited, (delete_thread, delete_for_runs, prune))

    async def alist(self, config: Any, **options: Any) -> AsyncIterator[base.CheckpointTuple]:
        for each in await asyncio.to_thread(lambda: [*self.list(config, **options)]):
            yield each

    def _thread(self, thread_id: Any, *, start: bool = True) -> Any:
        name = f"{PREFIX}{thread_id}"
        with suppress(UnknownThreadError):
            if (thread := self.conversations.thread(name)).status != "deleted":
                return thread
        with suppress(ThreadExistsError):  # another process was faster
            start_thread = self.conversations.start_thread
            return start_thread(thread_id=name, labels=LABELS, replace_deleted=True) if start else None
        return self.conversations.thread(name)

    def _thread_ids(self) -> Iterator[str]:
        for each in self.conversations.threads(status="active", labels=LABELS):
            yield each.id.removeprefix(PREFIX)

    def _tree(self, thread_id: Any) -> Any:
        thread = self._thread(thread_id, start=False)
        return {} if thread is None else thread.fold(stored.TREE)

    def _tuple(self, thread_id: Any, tree: Any, ns: str, id: str) -> base.CheckpointTuple:
        made = stored.look(tree, "checkpoint", ns, id)
        rest, metadata = stored.load(self.serde, made)
        whole = {**rest, "channel_values": stored.values_of(self.serde, tree, made)}
        parent = made.data["parent"] and stored.config(thread_id, ns, made.data["parent"])
        pending = stored.pending_writes(self.serde, stored.look(tree, "write", ns, id))
        return base.CheckpointTuple(stored.config(thread_id, ns, id), whole, metadata, parent, pending)

    def _drop(self, thread_id: Any, is_dropped: Callable[[Any, set[str]], bool]) -> None:
        dropped = []
        for checkpoints in stored.look(self._tree(thread_id), "checkpoint").values():
            needed = stored.needed_for_the_newest(self.serde, checkpoints)
            dropped += [stored.cleared(made) for made in checkpoints.values() if is_dropped(made, needed)]
        if dropped:
            self._thread(thread_id).append(dropped)
