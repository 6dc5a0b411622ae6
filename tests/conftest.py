"""What every test may ask for: the scale of campaigns, and real conversations."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.servers.fixtures"]

SCALE = float(os.environ.get("CLEW_SCALE", "0.1"))

# The commands that tests start must never reach a database that the shell names.
os.environ.pop("CLEW_DB", None)

# What nohup, or a shell that starts this in the background, lets it ignore, the processes that tests start would, too.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of the suites that every store runs, run those on PostgreSQL at the scale: a tenth, unless more is asked for.

    Of the contracts of stores it is three times as many: they are what the others stand on. Which they are hangs on
    their names alone, so that all processes of a run choose the same.
    """
    left = [item for item in items if crc32(item.nodeid.encode()) % 1000 >= _share(item) * 1000]
    if left:
        config.hook.pytest_deselected(items=left)
        dropped = set(left)
        items[:] = [item for item in items if item not in dropped]


def _share(item: pytest.Item) -> float:
    """How many of the tests like this one are run."""
    callspec = getattr(item, "callspec", None)
    if callspec is not None and "postgres" in callspec.params.values():
        return SCALE
    if isinstance(item, pytest.Function) and item.path.parent.name == "postgres":
        is_of_contract = item.function.__module__ != item.module.__name__
        return SCALE * 3 if is_of_contract else 1
    return 1


settings.register_profile(
    "clew",
    max_examples=max(10, round(1000 * SCALE)),
    deadline=None,
    print_blob=True,
    # It measures time, and a busy machine is no bug.
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("clew")


@pytest.fixture(scope="session")
def scale() -> float:
    """The factor of every campaign's count, from CLEW_SCALE: 1 is the full count of ``make soak``."""
    return SCALE


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def any_url(request: pytest.FixtureRequest) -> str:
    """An empty store: the test runs on each kind."""
    return _url(request)


@pytest.fixture(params=["sqlite", "postgres"])
def shared_url(request: pytest.FixtureRequest) -> str:
    """An empty store that several may open at once: the test runs on each kind."""
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
