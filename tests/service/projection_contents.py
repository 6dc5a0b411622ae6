"""Histories with every kind of event, and the contents of projections, for the tests of the projection runner."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from eventsourcing.persistence import StoredEvent
from tests.service import recorded_runs

from clew.conversations import Conversations
from clew.domain.errors import ClewError
from clew.domain.events import to_time
from clew.domain.json_values import Json, JsonObject
from clew.domain.messages import FunctionCall, FunctionResult, Message, Text
from clew.domain.ports import EventLog
from clew.domain.projection import Projection, Query, Recorded, Words
from clew.domain.projection_store import ProjectionStore
from clew.domain.records import Record
from clew.domain.search_terms import searchable
from clew.infrastructure import code_digest
from clew.infrastructure.recorder_ports import Append
from clew.projections import SHIPPED
from clew.service.projector import Projector

TENANTS = ("default", "other")
CANARY = "Canarybird"

OPERATIONS = (
    *("start", "start", "start", "append", "append", "append", "append", "append", "append", "fork", "fork"),
    *("rewind", "label", "label", "checkpoint", "run", "run"),
    *("redact", "redact", "redact any", "suspend", "resume", "end", "delete", "opaque", "edit", "purge", "again"),
)
REMOVING = {"redact", "redact any", "purge", "again"}


class History:
    """Threads of two tenants in one log; ``step`` changes one, and a refused step changes nothing."""

    def __init__(self, conversations: Conversations) -> None:
        core = conversations._core
        self.log: Any = core.log
        self.tenants = [Conversations(replace(core, tenant=tenant)) for tenant in TENANTS]
        self.threads: list[tuple[int, str]] = []
        self.texts = 0

    def step(self, operation: str, choice: int, version: int) -> None:
        with suppress(ClewError):
            if operation == "start" or not self.threads:
                self._start(choice)
                return
            tenant, thread_id = self.threads[choice % len(self.threads)]
            if operation in REMOVING:
                self._remove(operation, tenant, thread_id, version)
            else:
                self._change(operation, tenant, thread_id, version)

    def _start(self, choice: int) -> None:
        tenant, thread_id = choice % len(TENANTS), f"thread-{len(self.threads)}"
        self.tenants[tenant].start_thread(f"title {choice}", thread_id=thread_id, labels={"topic": choice % 3})
        self.threads.append((tenant, thread_id))

    def _remove(self, operation: str, tenant: int, thread_id: str, version: int) -> None:
        thread = self.tenants[tenant].thread(thread_id)
        at = version % thread.version + 1
        match operation:
            case "redact":
                unredacted = [each.version for each in thread.history() if not each.redacted]
                thread.redact(unredacted[version % len(unredacted)] if unredacted else at)
            case "redact any":
                thread.redact(at)
            case "purge":
                if not version % 3:  # seldom enough that threads get long
                    thread.purge(forks=True)
            case _:
                labels: JsonObject = {"topic": version % 3}
                self.tenants[tenant].start_thread("again", thread_id=thread_id, labels=labels, replace_deleted=True)

    def _change(self, operation: str, tenant: int, thread_id: str, version: int) -> None:
        thread = self.tenants[tenant].thread(thread_id)
        at = version % thread.version + 1
        match operation:
            case "append":
                said = to_time(1_600_000_000_000_000 + version * 1_000_000) if version % 4 == 0 else None
                record = [Record("state")] if version % 5 == 0 else []
                thread.append(
                    [*record, *[self.message(version + each) for each in range(1 + version % 3)]], said_at=said
                )
            case "fork" | "edit":
                new_id = f"thread-{len(self.threads)}"
                if operation == "fork":
                    thread.fork(at=at, thread_id=new_id, title=None if version % 2 else "what if")
                else:
                    thread.edit(at, "another word", thread_id=new_id)
                self.threads.append((tenant, new_id))
            case "run":
                made = (
                    recorded_runs.with_a_tool,
                    recorded_runs.waiting,
                    recorded_runs.cut_short,
                    recorded_runs.failing,
                )[version % 4]
                self.texts += 1
                steps = made(f"word{self.texts}")
                some = steps[: version % len(steps) + 1] if version % 3 else steps
                recorded_runs.record(self.tenants[tenant], thread_id, f"run-{self.texts}", *some)
            case "rewind":
                thread.rewind(to=at)
            case "label":
                values: tuple[Json, ...] = (None, 1, {"deep": ["er"]})
                thread.label({("topic", "tier")[version % 2]: values[version % 3]})
            case "checkpoint":
                thread.checkpoint(f"mark {version % 4}", at=at if version % 2 else None)
            case "opaque":
                name = f"{TENANTS[tenant]}/{('thread', 'memory')[version % 2]}/opaque-{version % 3}"
                after = [row.version for row in self.log.recorder.own_rows(name, limit=1_000)]
                state = bytes(17) + json.dumps({"i": "x", "t": 1_000 * version, "n": -1, "d": {}}).encode()
                event = StoredEvent(name, max(after, default=0) + 1, "unknown-type", state)
                self.log.recorder.submit(Append([event])).result()
            case _:
                getattr(thread, operation)()

    def message(self, number: int) -> Message:
        self.texts += 1
        word = f"word{self.texts}"
        match number % 4:
            case 0:
                return Message.user(f"every {word}")
            case 1:
                usage: Json = {"prompt_tokens": number, "completion_tokens": 2}
                return Message(role="assistant", contents=(Text(text=f"every {word}"),), metadata={"usage": usage})
            case 2:
                call = FunctionCall(call_id="1", name="look_up", arguments=json.dumps({"every": word}))
                return Message(role="assistant", contents=(call,))
            case _:
                return Message(role="tool", contents=(FunctionResult(call_id="1", result={"every": [word, number]}),))


def made(history: History, seed: int, length: int) -> History:
    """Apply this many random steps to the history."""
    chance = random.Random(seed)
    for _ in range(length):
        history.step(chance.choice(OPERATIONS), chance.randrange(10_000), chance.randrange(10_000))
    return history


def projector(log: EventLog, store: ProjectionStore, projections: Sequence[Projection] = SHIPPED) -> Projector:
    return Projector(log, store, projections, code_digest.code)


def rebuild(one: Projector, name: str, progress: Callable[[int, int], object] = lambda *_: None) -> None:
    """Rebuild a projection and call ``progress`` after each batch."""
    for reached in one.rebuild(name):
        progress(*reached)


def contents(log: EventLog, store: ProjectionStore, projections: Sequence[Projection] = SHIPPED) -> dict[str, Any]:
    """Return every row of every table, and the search results of every word of an unredacted message."""
    collected: dict[str, Any] = {}
    for projection in projections:
        for table in projection.tables:
            rows = store.select(projection.name, Query(table.name, order=table.key))
            collected[f"{projection.name}.{table.name}"] = rows
        for index in projection.texts:
            for word in words(log):
                wanted = Words((word,))
                positions = store.find(projection.name, index, wanted, before=None, limit=100_000)
                collected[f"{projection.name}.{index}.{word}"] = positions
        collected[f"{projection.name} words"] = instances(store, projection.name)
        collected[f"{projection.name} position"] = [
            built.position for built in store.generations() if built.name == projection.name and built.live
        ]
        collected[f"{projection.name} parked"] = store.parked(projection.name, 1_000)
    return collected


def instances(store: Any, name: str) -> list[tuple[str, int]]:
    """Return each (word, position) pair of the live text indexes of a projection, with repetitions."""
    collected: list[tuple[str, int]] = []
    generations = [built.id for built in store.generations() if built.live and built.name == name]
    with store._exclusive() as connection:
        stretches = "SELECT text_index, number, made FROM stretch WHERE generation = ? AND NOT stale"
        for generation in generations:
            for index, number, made_ in connection.execute(stretches, (generation,)).fetchall():
                table = f"t{generation}_{index}_{number}_{made_}"
                connection.execute(f"CREATE VIRTUAL TABLE temp.vocabulary USING fts5vocab(main, {table}, instance)")
                collected += connection.execute("SELECT term, doc FROM vocabulary").fetchall()
                connection.execute("DROP TABLE temp.vocabulary")
    return sorted(collected)


def words(log: EventLog) -> set[str]:
    """Return all words of unredacted messages, and two that may be absent."""
    collected = {"never", CANARY}
    for event in log.recorded_after(0, 1_000_000):
        if isinstance(event, Recorded) and event.type == "message-appended" and event.data is not None:
            collected.update(searchable(event.data["message"]).replace("\n", " ").replace('"', " ").split())
    return {word for word in collected if word.isalnum()}


def canary_remains(folder: Path) -> bool:
    """Return whether a file in the folder holds the canary's end (an index shares prefixes between words)."""
    end = CANARY.lower().encode()[-6:]
    return any(end in file.read_bytes().lower() for file in folder.iterdir() if file.is_file())


@contextmanager
def batches_of(size: int) -> Any:
    from clew.service import projector

    before, projector.BATCH = projector.BATCH, size
    try:
        yield
    finally:
        projector.BATCH = before
