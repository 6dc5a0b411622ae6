"""Fixtures for all tests: the scale of campaigns, empty stores and real conversations."""

from __future__ import annotations

import gc
import json
import os
import signal
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.servers.fixtures"]

gc.disable()  # until the tests are collected

SCALE = float(os.environ.get("CLEW_SCALE", "0.1"))

# The commands that tests start must never reach a database that the shell names.
os.environ.pop("CLEW_DB", None)

# Under nohup or in the background, this process ignores these signals, and the processes that it starts inherit that.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select a share of the PostgreSQL tests in suites that run on every store: a tenth, or as CLEW_SCALE says.

    The share of store contracts is three times as large, because other tests rely on them. Only the name of a test
    decides whether it is selected, so all processes of a run select the same tests.
    """
    deselected = [item for item in items if crc32(item.nodeid.encode()) % 1000 >= _share(item) * 1000]
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        excluded = set(deselected)
        items[:] = [item for item in items if item not in excluded]


def pytest_collection_finish() -> None:
    # What was imported and collected stays until the end: looking through it for garbage took a seventh of the time.
    gc.enable()
    gc.collect()
    gc.freeze()


def _share(item: pytest.Item) -> float:
    """The share of the tests like this one that runs, from 0 to 1."""
    callspec = getattr(item, "callspec", None)
    if callspec is not None and "postgres" in callspec.params.values():
        return SCALE
    if isinstance(item, pytest.Function) and item.path.parent.name == "postgres":
        is_contract_test = item.function.__module__ != item.module.__name__
        return SCALE * 3 if is_contract_test else 1
    return 1


settings.register_profile(
    "clew",
    max_examples=max(10, round(1000 * SCALE**1.5)),  # 32 at a tenth of the scale: there are hundreds of properties
    deadline=None,
    print_blob=True,
    # This check measures time, and a busy machine is not a bug.
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("clew")


@pytest.fixture(scope="session")
def scale() -> float:
    """The factor for the length of campaigns, from CLEW_SCALE: ``make soak`` runs them in full, with 1."""
    return SCALE


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def any_url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty store. The test runs on each kind of store."""
    return _url(request)


@pytest.fixture(params=["sqlite", "postgres"])
def shared_url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty store that several processes can open. The test runs on each such kind of store."""
    return _url(request)


def _url(request: pytest.FixtureRequest) -> str:
    if request.param == "postgres":
        address: str = request.getfixturevalue("postgres")
        return address
    in_file = f"sqlite:///{request.getfixturevalue('tmp_path')}/clew.db?synchronous=OFF"
    return "memory:" if request.param == "memory" else in_file


@pytest.fixture(scope="session")
def corpus() -> list[dict[str, Any]]:
    """Conversations in the OpenAI chat format: the corpus that CLEW_CORPUS names, else the project's own samples.

    Every test of the session gets the same list: read it, change copies.
    """
    folder = os.environ.get("CLEW_CORPUS")
    samples = Path(__file__).parent.parent / "examples"
    files = [Path(folder) / "airline.jsonl"] if folder else sorted(samples.glob("*.jsonl"))
    lines = [line for file in files for line in file.read_text(encoding="utf-8").split("\n") if line.strip()]
    assert lines, f"no conversations in {folder or samples}"
    return [json.loads(line) for line in lines]
