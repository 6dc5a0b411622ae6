"""The example of an agent that waits for an approval, and whose process is killed."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from examples.support_agent import attend

from clew import Conversations, Engine

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "support_agent.py"
LEASE = 31_000_000
"""Microseconds after which the lease of a killed process has expired."""


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(EXAMPLE), *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output_of(folder: Path, *arguments: str) -> list[str]:
    stdout, stderr = start(folder, *arguments).communicate(timeout=60)
    assert stderr == ""
    return stdout.splitlines()


def test_the_agent_waits_for_an_approval_and_refunds_once(tmp_path: Path) -> None:
    waiting = ["I pay you back.", 'This waits for --approve WHO: refund({"order": 7, "cents": 4800})']
    assert output_of(tmp_path) == waiting
    (refused,) = output_of(tmp_path)
    assert "waits for an approval" in refused
    assert not (tmp_path / "refunds.txt").exists()
    assert output_of(tmp_path, "--approve", "ada") == ["I am sorry. 4800 cents are on their way."]
    (entry,) = (tmp_path / "refunds.txt").read_text().splitlines()
    assert entry.endswith(" order 7: 4800 cents")
    assert output_of(tmp_path, "And order 7 again?") == waiting
    with Conversations.open(f"sqlite:///{tmp_path}/clew.db", create=False) as conversations:
        (approved,) = conversations.audit(type="approval-given")
        assert approved.actor == "ada"


def test_an_agent_killed_during_a_refund_resumes_and_refunds_once(tmp_path: Path) -> None:
    url, ledger = f"sqlite:///{tmp_path}/clew.db", tmp_path / "refunds.txt"
    output_of(tmp_path)
    stuck = tmp_path / "stuck"
    os.mkfifo(stuck)  # opening it blocks until another process opens the other end, and none does
    process = start(tmp_path, "--approve", "ada", "--ledger", str(stuck))
    with Conversations.open(url, create=False) as conversations:
        with conversations.thread("desk").subscribe() as events:
            while (event := events.wait(timeout=60)) is not None and event.type != "tool-started":
                pass
            while (event := events.wait(timeout=60)) is not None and event.type != "tool-started":
                pass
        assert event is not None
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)

    async def start_again() -> str:
        later = after_the_lease()
        async with Engine.open(url, create=False, now=lambda: next(later)) as engine:
            return (await attend(engine, "never asked", ledger)).text

    assert asyncio.run(start_again()) == "I am sorry. 4800 cents are on their way."
    assert len(ledger.read_text().splitlines()) == 1
    with Conversations.open(url, create=False) as conversations:
        types = [event.type for event in conversations.thread("desk").events()]
    assert [types.count(each) for each in ("run-started", "run-resumed", "run-completed")] == [1, 2, 1]
    assert [types.count(each) for each in ("tool-started", "tool-finished")] == [3, 2]


def after_the_lease() -> Iterator[int]:
    return itertools.count(time.time_ns() // 1000 + LEASE)
