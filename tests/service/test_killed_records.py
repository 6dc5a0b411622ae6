"""A process that is killed while it appends and redacts records with bytes: what it has acknowledged holds."""

from __future__ import annotations

import os
import random
import select
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.infrastructure.recorder_steps import PATIENCE

from clew import Conversations, Record
from clew.domain.streams import digest

KILLS = 200
"""At full scale."""

NAMES = ("one", "two")
SIZE = 2_000


def content(number: str) -> bytes:
    """Bytes with a mark in each part of them that can be in another page."""
    return (f"<BYTES {number}>".encode() * SIZE)[:SIZE]


class Said(NamedTuple):
    """What a process has written about its work, by thread and version: numbers of bytes, and what it began last."""

    appended: dict[tuple[str, int], str]
    redacted: set[tuple[str, int]]
    begun: set[str]


def work(url: str, run: int, say: Callable[[str], object]) -> None:
    """Append and redact without end, on two threads that share some of their bytes."""
    with Conversations.open(url, projections=[]) as conversations:

        def on(name: str) -> None:
            chance = random.Random(f"{name} {run}")
            thread = conversations.thread(name)
            live: dict[int, str] = {}
            for count in range(1_000_000):
                if live and chance.random() < 0.4:
                    version = chance.choice(list(live))
                    say(f"begin {name} {live[version]}")
                    assert not thread.redact(version).pending
                    say(f"redact {name} {version}")
                    del live[version]
                else:
                    number = f"{run}.{count // 3}"
                    say(f"begin {name} {number}")
                    version = thread.append(Record("state", count, content(number))).version
                    live[version] = number
                    say(f"append {name} {version} {number}")

        threads = [threading.Thread(target=on, args=(name,)) for name in NAMES]
        for each in threads:
            each.start()
        for each in threads:
            each.join()


def killed(url: str, run: int, delay: float) -> list[str]:
    """Kill a child that works, ``delay`` seconds after its first append; returns what it wrote."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            work(url, run, lambda line: os.write(write, f"{line}\n".encode()))
        finally:
            os._exit(1)
    os.close(write)
    assert select.select([read], [], [], PATIENCE)[0], "the child did not begin"
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    with os.fdopen(read, "rb") as lines:
        return lines.read().decode().split("\n")[:-1]


def understood(lines: list[str]) -> Said:
    said = Said({}, set(), set())
    begun: dict[str, str] = {}
    for line in lines:
        what, name, *rest = line.split()
        match what:
            case "begin":
                begun[name] = rest[0]
            case "append":
                said.appended[name, int(rest[0])] = rest[1]
                del begun[name]
            case _:
                said.redacted.add((name, int(rest[0])))
                del begun[name]
    said.begun.update(begun.values())
    return said


def test_acknowledged_bytes_are_stored_and_acknowledged_redactions_have_destroyed_them(
    tmp_path: Path, scale: float
) -> None:
    url = f"sqlite:///{tmp_path}/clew.db"
    chance = random.Random(38)
    with Conversations.open(url, projections=[]) as conversations:
        for name in NAMES:
            conversations.start_thread(thread_id=name)
    appends = redactions = 0
    expected: dict[tuple[str, int], bytes | None] = {}
    for run in range(max(8, round(KILLS * scale))):
        said = understood(killed(url, run, chance.random() ** 2 * 0.2))
        files = b"\n".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
        kept = {number for place, number in said.appended.items() if place not in said.redacted}
        gone = {said.appended[place] for place in said.redacted} - kept - said.begun
        assert [number for number in gone if content(number)[:20] in files] == []
        with Conversations.open(url, projections=[]) as conversations:
            assert conversations.verify().first_bad is None
            found: dict[tuple[str, int], bytes | None] = {}
            for name in NAMES:
                records = conversations.thread(name).records()
                found |= {(name, record.version): record.blob for record in records}
            recorder: Any = conversations._core.log
            digests = [digest(content(number)) for number in gone]
            assert recorder.recorder.record_blobs(conversations._core.stream("one"), digests) == {}
        assert expected.items() <= found.items()  # of earlier runs
        for place, number in said.appended.items():
            if place in said.redacted:
                assert found[place] is None
            elif number not in said.begun:  # or it was just being redacted
                assert found[place] == content(number)
        expected = found
        appends, redactions = appends + len(said.appended), redactions + len(said.redacted)
    assert appends > redactions > 0
