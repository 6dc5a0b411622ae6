"""The five cases of restoring a chat, for every combination of agents, in a fresh process and in another store."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.agents.chat_cases import afters, befores, service_of
from tests.servers.counting_service import CountingService, counting_service
from tests.servers.postgres_server import Databases


@dataclass(frozen=True)
class Found:
    """What the processes found, and what the service received, by the key of the sender."""

    written: Any
    restored: dict[str, Any]
    received: dict[str, list[bytes]]


class Written(NamedTuple):
    """The documents of a process in a folder, what it found, and the service that still runs."""

    folder: Path
    found: Any
    service: CountingService


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    folder = tmp_path_factory.mktemp("chats")
    with counting_service() as service:
        yield Written(folder, _process("write", _file(folder / "first.db"), service, folder), service)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def found(request: pytest.FixtureRequest, written: Written) -> Iterator[Found]:
    folder, service = written.folder, written.service
    first = service.received.copy()
    if request.param == "sqlite":
        restored = _process("restore", _file(folder / "{before}-{after}.db"), service, folder)
    else:
        databases: Databases = request.getfixturevalue("databases")
        with databases.one() as url:
            restored = _process("restore", url, service, folder)
    yield Found(written.found, restored, service.received)
    service.received = first


def _file(path: Path) -> str:
    return f"sqlite:///{path}?synchronous=OFF"


def _process(command: str, store: str, service: CountingService, folder: Path) -> Any:
    program = [sys.executable, "-m", "tests.agents.chat_cases", command, store, service.url, str(folder)]
    return json.loads(subprocess.run(program, check=True, stdout=subprocess.PIPE, text=True).stdout)


@pytest.mark.parametrize("before", befores())
def test_restores_with_the_same_more_fewer_or_no_agents(found: Found, before: str) -> None:
    cases = [after for after in afters(before) if f"{before}>{after}" in found.restored]
    assert cases
    for after in cases:
        outcome, present = found.restored[f"{before}>{after}"], after or before
        assert outcome["first bad"] is None
        assert [each[0] for each in outcome["participants"]] == [*before]
        assert set(outcome["restored"]) == set(before) & set(present)
        assert set(outcome["new"]) == set(present) - set(before)
        assert set(outcome["missing"]) == set(before) - set(present)
        assert outcome["untouched"], "a chat with a history refuses the document"
        assert outcome.get("needed") == (None if after else [*before])
        threads = found.written[before]["threads"]
        for kind in set(before) - {"H"} - _never_invoked(before):
            assert outcome["threads later"][kind] == threads[kind]
        received = {kind: found.received[f"{before}>{after}/{kind}"] for kind in {*before, *present} - {"H"}}
        if set(present) == set(before):
            for kind, bodies in received.items():
                assert bodies == found.received[f"{before}/{kind}"]
        for kind in outcome["new"]:
            if kind != "H":
                assert b"one." in received[kind][0].lower()
        for kind in outcome["missing"]:
            if kind != "H" and kind not in _never_invoked(before):
                _check_returned(found, before, kind, received[kind][0])


def _never_invoked(before: str) -> set[str]:
    return set(before[2:])


def _check_returned(found: Found, before: str, kind: str, body: bytes) -> None:
    """One that was missing continues its thread, and hears what was said meanwhile."""
    heard = body.lower()
    assert heard.count(b"one.") == (0 if kind == "T" else 1)
    assert heard.index(b"two.") < heard.index(b"welcome back.")
    if kind == "T":
        name = {"response": "previous_response_id", "conversation": "conversation"}[service_of(before)]
        (later,) = found.received[f"{before}/T"]
        assert json.loads(body)[name] == json.loads(later)[name]
