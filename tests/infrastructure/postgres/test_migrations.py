"""Migrations of a PostgreSQL database: from each schema to the current one."""

from __future__ import annotations

import psycopg
import pytest
from tests.servers.postgres_server import ask
from tests.servers.row_level_security import isolate_tenants

from clew import Conversations, Message, Record
from clew.domain.errors import StoreSchemaError
from clew.domain.event_index import CHECKPOINTS
from clew.infrastructure.postgres.schema import SCHEMA_VERSION
from clew.infrastructure.stores import store_at

ENTRIES = "SELECT * FROM clew_entry ORDER BY stream, number, version"


def test_the_migration_to_schema_2_indexes_records_and_rewinds(postgres: str) -> None:
    with Conversations.open(postgres) as conversations:
        thread = conversations.start_thread(thread_id="t")
        thread.append([Record("step", 1, key="main"), Record("step", 2, b"x" * 900, "other")])
        thread.rewind(to=2)
        thread.append([Message.user("Hello"), Record("secret", "4711", key="4711")])
        thread.redact(6)
        thread.fork(at=3, thread_id="fork", then=Record("step", 3, key="main"))
        expected = {id_: conversations.thread(id_).records() for id_ in ("t", "fork")}
    before = ask(postgres, ENTRIES)
    with psycopg.connect(postgres) as connection:
        connection.execute("DROP TABLE clew_entry, clew_fold_state, clew_record_blob")
        connection.execute("UPDATE clew_meta SET schema = 1")
    with pytest.raises(
        StoreSchemaError, match=rf"has schema 1, and this Clew knows schema {SCHEMA_VERSION}.*`clew migrate`"
    ):
        Conversations.open(postgres)
    assert store_at(postgres).migrate() == (1, SCHEMA_VERSION)
    assert ask(postgres, ENTRIES) == before
    with Conversations.open(postgres) as conversations:
        assert {id_: conversations.thread(id_).records() for id_ in expected} == expected
        assert [each.data for each in conversations.thread("fork").records("step", key="main")] == [1, 3]


@pytest.mark.parametrize("protected", [False, True])
def test_the_migration_to_schema_4_indexes_checkpoints(postgres: str, *, protected: bool) -> None:
    with Conversations.open(postgres) as conversations:
        thread = conversations.start_thread(thread_id="t", messages=[Record("step", 1)])
        for name in ("one", "secret"):
            thread.checkpoint(name)
        thread.redact(4)
        thread.fork(thread_id="fork").checkpoint("two")
    if protected:
        isolate_tenants(postgres)
    before = ask(postgres, ENTRIES)
    with psycopg.connect(postgres) as connection:
        connection.execute("DELETE FROM clew_entry WHERE number >= %s", (CHECKPOINTS,))
        connection.execute("DROP TABLE clew_record_blob")
        connection.execute("DROP INDEX clew_entry_blob")
        connection.execute("UPDATE clew_meta SET schema = 3")
    assert store_at(postgres).migrate() == (3, SCHEMA_VERSION)
    assert ask(postgres, ENTRIES) == before
    with Conversations.open(postgres) as conversations:
        assert conversations.thread("fork").history(at="one").version == 2
        assert conversations.verify().first_bad is None
