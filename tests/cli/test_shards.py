"""The command line with several servers: `clew shards`, and the commands that run for each shard."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from tests.acceptance.clew_command import ENVIRONMENT, GLAZE, TEAPOT
from tests.cli.test_completion import candidates
from tests.infrastructure.recorder_steps import PATIENCE
from tests.servers.postgres_server import PostgresServer, ask

from clew import Conversations
from clew.infrastructure.postgres.schema import SCHEMA_VERSION
from clew.projections import SHIPPED

if TYPE_CHECKING:
    from tests.cli.conftest import CalledClew as Clew

NAMES = [each.name for each in SHIPPED]


@pytest.fixture
def stores(postgres_server: PostgresServer) -> Iterator[list[str]]:
    """The URLs of three empty databases."""
    with ExitStack() as stack:
        yield [stack.enter_context(postgres_server.database()) for _ in range(3)]


@pytest.fixture
def url(clew: Clew, stores: list[str]) -> str:
    """A directory with the shards east and west, each with a tenant."""
    url = stores[0].replace("postgresql://", "postgresql+shards://")
    clew.text("--db", url, "migrate", "--yes")
    for name, store in zip(("east", "west"), stores[1:], strict=True):
        assert clew.text("--db", url, "shards", "add", name, store.split("@")[1]).startswith(f"Added {name}.")
    for tenant, conversation in (("ann", TEAPOT), ("bob", GLAZE)):
        clew.text("--db", url, "--tenant", tenant, "import", clew.file(f"{tenant}.jsonl", conversation))
    return url


def lines(clew: Clew, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in clew.text(*arguments, "--json").splitlines()]


def test_servers_are_added_listed_and_closed(clew: Clew, url: str, stores: list[str]) -> None:
    assert lines(clew, "--db", url, "shards", "list") == [
        {"shard": name, "address": store.split("@")[1], "takes": True, "tenants": 1, "reachable": True}
        for name, store in zip(("east", "west"), stores[1:], strict=True)
    ]
    assert lines(clew, "--db", url, "shards", "close", "east")[0]["takes"] is False
    there = stores[1].split("@")[1].replace("127.0.0.1", "localhost")
    refused = clew.run("--db", url, "shards", "add", "other", there, "--json")
    assert (refused.returncode, json.loads(refused.stderr)["error"]["type"]) == (1, "ShardError")
    assert lines(clew, "--db", url, "shards", "move", "east", there)[0]["address"] == there
    assert clew.text("--db", url, "shards", "move", "east", stores[1].split("@")[1]).startswith("east is now at ")
    ask(stores[0], "INSERT INTO clew_shard VALUES ('gone', '127.0.0.1:1/none', true)")
    output = clew.text("--db", url, "shards", "list")
    assert "east  " in output
    assert "1 tenant, takes no new tenants" in output
    assert "cannot be reached: postgresql://127.0.0.1:1/none" in output
    assert "does not exist" in clew.refused(1, "--db", url, "shards", "close", "none")
    assert "does not name a directory" in clew.refused(2, "--db", stores[1], "shards", "list")
    assert "does not name a directory" in clew.refused(2, "shards", "list")


def test_completes_the_names_of_shards(clew: Clew, url: str) -> None:
    for command in ("close", "move"):
        assert candidates(clew, "clew", "--db", url, "shards", command, "e") == ["east"]
    assert candidates(clew, "clew", "--db", url, "shards", "close", "") == ["east", "west"]
    assert candidates(clew, "clew", "--db", "sqlite:///none.db", "shards", "close", "") == []


def test_reports_a_directory_without_servers(clew: Clew, postgres: str) -> None:
    url = postgres.replace("postgresql://", "postgresql+shards://")
    for command in (["migrate"], ["shards", "list"], ["verify"]):
        assert clew.text("--db", url, *command).startswith("There are no servers in the directory.")
        assert lines(clew, "--db", url, *command) == []


def test_other_commands_use_the_shard_of_the_tenant(clew: Clew, url: str, stores: list[str]) -> None:
    for tenant, store in (("ann", stores[1]), ("bob", stores[2])):
        here = lines(clew, "--db", url, "--tenant", tenant, "threads")
        assert len(here) == 1
        assert here == lines(clew, "--db", store, "--tenant", tenant, "threads")
        thread = here[0]["thread_id"]
        assert lines(clew, "--db", url, "--tenant", tenant, "verify", thread)[0]["threads"] == 1
    assert "has no shard yet" in clew.refused(1, "--db", url, "threads")


def test_maintenance_commands_run_for_each_shard(clew: Clew, url: str) -> None:
    verified = lines(clew, "--db", url, "verify")
    assert [(each["shard"], each["threads"], each["first_bad"]) for each in verified] == [
        ("east", 1, None),
        ("west", 1, None),
    ]
    assert clew.text("--db", url, "verify").splitlines()[0] == "shard east:"
    filled = lines(clew, "--db", url, "project", "run", "--once")
    assert [(each["shard"], each["name"], each["lag"]) for each in filled] == [
        (shard, name, 0) for shard in ("east", "west") for name in NAMES
    ]
    assert lines(clew, "--db", url, "project", "status") == filled
    assert [each["shard"] for each in lines(clew, "--db", url, "rebuild", "search")] == ["east", "west"]
    migrated = lines(clew, "--db", url, "migrate")
    assert [(each["shard"], each["from"]) for each in migrated] == [("east", SCHEMA_VERSION), ("west", SCHEMA_VERSION)]
    examined = lines(clew, "--db", url, "doctor", "--verify")
    assert {each["shard"] for each in examined} == {"east", "west"}
    assert {each["state"] for each in examined if each["name"] == "verified"} == {"ok"}
    assert "There is no projection 'none'" in clew.refused(1, "--db", url, "project", "run", "--name", "none")


def test_a_shard_that_is_down_does_not_stop_the_others(clew: Clew, url: str, stores: list[str]) -> None:
    ask(stores[0], "INSERT INTO clew_shard VALUES ('a-gone', '127.0.0.1:1/none', false)")
    done = clew.run("--db", url, "verify", "--json")
    assert done.returncode == 1
    assert [json.loads(line)["shard"] for line in done.stdout.splitlines()] == ["east", "west"]
    (failed,) = done.stderr.splitlines()
    error = json.loads(failed)
    assert (error["shard"], error["error"]["type"]) == ("a-gone", "StoreUnavailableError")


def test_workers_fill_all_shards_and_a_new_one(clew: Clew, url: str, stores: list[str]) -> None:
    command = [sys.executable, "-m", "clew", "--db", url, "project", "run", "--name", "directory", "--json"]
    worker = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        for id_ in ("second", "third"):
            clew.text("--db", url, "--tenant", "ann", "import", clew.file("more.jsonl", {**GLAZE, "id": id_}))
            for store in stores[1:]:
                with Conversations.open(store, embedded=False) as conversations:
                    conversations.wait(projection="directory", timeout=PATIENCE)
        clew.text("--db", url, "shards", "add", "third", stores[0].split("@")[1])
        with Conversations.open(stores[0], embedded=False) as conversations:
            conversations.start_thread()
            conversations.wait(projection="directory", timeout=PATIENCE)
    finally:
        worker.send_signal(signal.SIGTERM)
        output, errors = worker.communicate(timeout=PATIENCE)
        for store in (stores[0], *stores[1:]):  # the directory's own database has become the third of them
            with Conversations.open(store, embedded=False) as conversations:
                assert {each.worker for each in conversations.projections()} == {None}
    assert (worker.returncode, errors) == (0, "")
    assert [json.loads(line)["shard"] for line in output.splitlines()] == ["east", "third", "west"]
