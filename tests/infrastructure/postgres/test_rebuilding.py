"""Rebuilt tables of projections in PostgreSQL: their schema, and the switch to them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest
from tests.infrastructure.recorder_steps import PATIENCE, wait_until
from tests.servers.postgres_server import ask

from clew import Conversations, Message
from clew.infrastructure.postgres import projection_transaction
from clew.service import projector
from clew.service.projection_worker import Runner


@contextmanager
def dumping(url: str) -> Iterator[psycopg.Connection]:
    """Another client reads all tables of the directory in one transaction, like a dump."""
    with psycopg.connect(url) as connection:
        for (table,) in ask(url, "SELECT relname FROM pg_class WHERE relname ~ '^clew_g[0-9]+_thread$'"):
            connection.execute(f"SELECT FROM {table}".encode())
        yield connection


def rebuild(conversations: Conversations) -> None:
    conversations.rebuild("directory")


def run_worker(conversations: Conversations) -> None:
    Runner(conversations._core, ["directory"], lambda *_: None).run()


@pytest.mark.parametrize("build", [rebuild, run_worker])
def test_a_dump_delays_only_the_rebuild(
    postgres: str, monkeypatch: pytest.MonkeyPatch, build: Callable[[Conversations], None]
) -> None:
    monkeypatch.setattr(projector, "SWITCH_AGAIN_SECONDS", 0.1)
    monkeypatch.setattr(projection_transaction, "DROPPING", 0.01)
    with Conversations.open(postgres) as conversations:
        conversations.start_thread(messages=[Message.user("Hello")])
        conversations.wait()
    if build is run_worker:  # the code of the projection has changed
        ask(postgres, "UPDATE clew_generation SET code = 'older' WHERE name = 'directory'")
    with Conversations.open(postgres) as conversations, dumping(postgres) as dump:
        building = threading.Thread(target=build, args=(conversations,))
        building.start()
        wait_until(lambda: conversations._core.models.projector.is_held_up(["directory"]))
        conversations.start_thread()
        assert len(list(conversations.threads())) == 2
        assert [each.state for each in conversations.projections() if each.name == "directory"] != ["live"]
        assert building.is_alive()
        dump.rollback()
        building.join(PATIENCE)
        assert not building.is_alive()
        assert ask(postgres, "SELECT count(*), bool_and(live) FROM clew_generation WHERE name = 'directory'") == [
            (1, True)
        ]
        assert len(list(conversations.threads())) == 2


def test_new_tables_are_in_the_schema_of_the_log(postgres: str) -> None:
    with Conversations.open(postgres) as conversations:
        conversations.start_thread(messages=[Message.user("Hello")])
    ask(postgres, "CREATE SCHEMA own")
    separator = "&" if "?" in postgres else "?"
    with Conversations.open(f"{postgres}{separator}options=-csearch_path%3Down,public") as conversations:
        conversations.rebuild("directory")
        conversations.wait()
    homes = "SELECT DISTINCT relnamespace::regnamespace::text FROM pg_class WHERE relname LIKE 'clew%'"
    assert ask(postgres, homes) == [("public",)]
    with Conversations.open(postgres) as conversations:
        assert len(list(conversations.threads())) == 1
