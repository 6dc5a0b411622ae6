"""Importing and exporting conversations on the command line, with one durable commit per conversation."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measurement import Setting, interleaved, store_url, wall
from benchmarks.report import Figure, at_least
from benchmarks.synthetic_data import corpus_files, write_conversations
from clew import Conversations

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
    yield _import_in_process(setting)


def _import_in_process(setting: Setting) -> Figure:
    """Messages per second without the start of a process: generated conversations of 21 messages, with tool calls."""
    path = setting.folder / "generated.jsonl"
    write_conversations(path, setting.size(500, 200))
    imported: list[int] = []

    def import_all() -> float:
        with Conversations.open(setting.url("generated", durable=True), embedded=False) as conversations:
            seconds = wall(lambda: imported.append(conversations.import_files([path]).messages))
        return imported[-1] / seconds

    rates = interleaved(setting.size(5, 3), {"import": import_all})["import"]
    label = f"import in a process, {imported[-1]:,} generated messages, one append a conversation"
    return Figure(label, statistics.median(rates), "/s", budget=at_least(20_000))


def _clew(url: str, *arguments: str) -> bytes:
    environment = {**os.environ, "CLEW_DB": url}
    return subprocess.run([CLEW, *arguments], capture_output=True, check=True, env=environment).stdout
