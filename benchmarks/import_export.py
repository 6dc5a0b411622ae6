"""Importing and exporting conversations and events, on the command line and in a process, with durable commits."""

from __future__ import annotations

import json
import os
import sqlite3
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic_core import to_json

from benchmarks.measurement import Setting, cpu, interleaved, median_ratio, store_url, wall
from benchmarks.report import Figure, at_least
from benchmarks.synthetic_data import corpus_files, write_conversations
from clew import Conversations

COMMITTED = 1_000
"""Messages in a commit of the least work."""

CLEW = str(Path(sys.executable).with_name("clew"))
COPY = """import json, sys
for path in sys.argv[1:]:
    with open(path) as file:
        for line in file:
            if line.strip():
                print(json.dumps(json.loads(line)))
"""


def run(setting: Setting) -> Iterator[Figure]:
    """Messages per second of whole processes. ``CLEW_CORPUS`` names a file or a directory; default: the samples."""
    names = list(map(str, corpus_files()))
    urls: list[str] = []
    messages: list[int] = []

    def import_all() -> float:
        urls.append(store_url(setting.fresh("corpus"), durable=True))
        seconds = wall(lambda: messages.append(json.loads(_clew(urls[-1], "import", *names, "--json"))["messages"]))
        return messages[-1] / seconds

    def import_again() -> float:
        return messages[-1] / wall(lambda: _clew(urls[-1], "import", *names, "--json"))

    def export_all() -> float:
        return messages[-1] / wall(lambda: _clew(urls[-1], "export", "--format", "openai"))

    def copy_all() -> float:
        command = [sys.executable, "-c", COPY, *names]
        return messages[-1] / wall(lambda: subprocess.run(command, capture_output=True, check=True))

    import_all()  # compile byte code and fill the disk cache
    contenders = {
        "import": import_all,
        "import again, nothing new": import_again,
        "export": export_all,
        "copy": copy_all,
    }
    measured = interleaved(setting.size(3, 1), contenders)
    corpus = "CLEW_CORPUS" if os.environ.get("CLEW_CORPUS") else "the samples"
    for name in contenders:
        figure = statistics.median(measured[name])
        label = f"{name}, {messages[-1]:,} messages of {corpus}"
        if name == "copy":
            label = "for comparison: the same file read and written with Python's json"
        yield Figure(label, figure, "/s", note=f"{messages[-1] / figure:.2f} s")
    yield from _imports_in_process(setting)


def _imports_in_process(setting: Setting) -> Iterator[Figure]:
    """Messages and events per second without the start of a process, by the wall clock and by CPU.

    The conversations are generated and have 21 messages each, with tool calls. The baseline does the least that such an
    import can do: it parses each line, makes and validates the messages, computes two hashes for each and inserts them.
    """
    path = setting.folder / "generated.jsonl"
    write_conversations(path, setting.size(500, 200))
    exported = setting.folder / "exported.jsonl"
    messages = sum(line.count(b'"role"') for line in path.read_bytes().splitlines())
    events = _export(path, exported)

    def import_all(clock: Callable[[Callable[[], object]], float]) -> float:
        with Conversations.open(setting.url("generated", durable=True), embedded=False) as conversations:
            return messages / clock(lambda: conversations.import_files([path]))

    def import_events(clock: Callable[[Callable[[], object]], float]) -> float:
        with Conversations.open(setting.url("copied", durable=True), embedded=False) as conversations:
            return events / clock(lambda: conversations.import_events(exported))

    contenders: dict[str, Callable[[], float]] = {
        "import": partial(import_all, wall),
        "import, CPU": partial(import_all, cpu),
        "least": partial(_least, path, setting, messages, wall),
        "least, CPU": partial(_least, path, setting, messages, cpu),
        "events": partial(import_events, wall),
        "events, CPU": partial(import_events, cpu),
    }
    rates = interleaved(setting.size(5, 3), contenders)
    for name, label, compared, budget in (
        ("import", f"import in a process, {messages:,} generated messages", "least", at_least(20_000)),
        ("import, CPU", "the same, of a second of CPU", "least, CPU", None),
        ("events", f"import of {events:,} exported events in a process", None, None),
        ("events, CPU", "the same, of a second of CPU", None, None),
    ):
        baseline = None if compared is None else statistics.median(rates[compared])
        ratio = None if compared is None else median_ratio(rates[name], rates[compared])
        yield Figure(label, statistics.median(rates[name]), "/s", baseline, ratio, budget)


def _export(path: Path, exported: Path) -> int:
    """Write the events of imported conversations in Clew's own JSONL. Returns their number."""
    with Conversations.open("memory:", embedded=False) as conversations:
        events = conversations.import_files([path]).events
        with exported.open("wb") as file:
            file.writelines(conversations.export_events())
    return events


def _least(path: Path, setting: Setting, messages: int, clock: Callable[[Callable[[], object]], float]) -> float:
    """Messages per second of the least work: JSON, pydantic, SHA-256 and INSERT, 1,000 messages a durable commit."""
    validate = TypeAdapter(list[_Message]).validate_python
    database = sqlite3.connect(setting.fresh("least"), isolation_level=None)

    def work() -> None:
        rows: list[tuple[int, int, bytes, bytes]] = []
        with path.open("rb") as file:
            for stream, line in enumerate(file):
                for version, message in enumerate(validate(json.loads(line)["messages"]), 1):
                    state = os.urandom(16) + to_json(message)
                    rows.append((stream, version, state, sha256(sha256(state).digest()).digest()))
                if len(rows) >= COMMITTED:
                    insert(rows)
        insert(rows)

    def insert(rows: list[tuple[int, int, bytes, bytes]]) -> None:
        database.execute("BEGIN")
        database.executemany("INSERT INTO event (stream, version, state, hash) VALUES (?, ?, ?, ?)", rows)
        database.execute("COMMIT")
        rows.clear()

    with closing(database):
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("CREATE TABLE event (position INTEGER PRIMARY KEY, stream, version, state, hash)")
        database.execute("CREATE UNIQUE INDEX event_stream_version ON event (stream, version)")
        return messages / clock(work)


class _Message(BaseModel):
    """A message of the generated file as pydantic reads it."""

    role: str
    content: str | None
    tool_call_id: str | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


def _clew(url: str, *arguments: str) -> bytes:
    environment = {**os.environ, "CLEW_DB": url}
    return subprocess.run([CLEW, *arguments], capture_output=True, check=True, env=environment).stdout
