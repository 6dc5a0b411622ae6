"""Tables of projections in PostgreSQL that are built anew: where they are made, and when they are read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest
from tests.infrastructure.recording import PATIENCE, wait_until
from tests.servers.postgres_server import ask

from clew import Conversations, Message
from clew.infrastructure.postgres import projection_session
from clew.service import projector
from clew.service.projection_runner import Runner


@contextmanager
def dumping(url: str) -> Iterator[psycopg.Connection]:
    """Somebody who reads all tables of the directory, in one transaction."""
    with psycopg.connect(url) as connection:
        for (table,) in ask(url, "SELECT relname FROM pg_class WHERE relname ~ '^clew_g[0-9]+_thread$'"):
            connection.execute(f"SELECT FROM {table}".encode())
        yield connection


def rebuilt(conversations: Conversations) -> None:
    conversations.rebuild("directory")


def filled(conversations: Conversations) -> None:
    Runner(conversations._core, ["directory"], lambda *_: None).run()


@pytest.mark.parametrize("build", [rebuilt, filled])
def test_a_dump_holds_up_what_is_built_anew_and_nobody_else(
    postgres: str, monkeypatch: pytest.MonkeyPatch, build: Callable[[Conversations], None]
) -> None:
    monkeypatch.setattr(projector, "REST_SECONDS", 0.1)
    monkeypatch.setattr(projection_session, "DROPPING", 0.01)
    with Conversations.open(postgres) as conversations:
        conversations.start_thread(messages=[Message.user("Hello")])
        conversations.wait()
    if build is filled:  # by code that has changed
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


def test_tables_are_made_beside_the_log_wherever_the_user_makes_others(postgres: str) -> None:
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
