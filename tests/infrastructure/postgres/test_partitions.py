"""A PostgreSQL store with partitioned tables: the contract, its creation, and copies of its data."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from typing import Any

import pytest
import tests.infrastructure.postgres.test_conformance as conformance
import tests.infrastructure.postgres.test_recorder as unpartitioned
from tests.infrastructure.recorder_steps import Opener, append, event, fill, recomputed_hashes
from tests.servers.installation import postgres as programs
from tests.servers.postgres_server import PostgresServer, ask, reachable

from clew.cli import main
from clew.domain.errors import StoreSchemaError, StoreUrlError
from clew.domain.ports import Blob, Fork, Key
from clew.infrastructure.postgres.factory import PostgresFactory
from clew.infrastructure.postgres.recorder import PostgresRecorder
from clew.infrastructure.postgres.schema import SCHEMA_VERSION
from clew.infrastructure.recorder_ports import IndexEntry, Snapshot
from clew.infrastructure.stores import store_at

PARTITIONS = 3
PARTITIONED = ("clew_entry", "clew_event", "clew_key", "clew_snapshot")
LOG = (*PARTITIONED, "clew_stream", "clew_blob", "clew_record_blob", "clew_tracking", "clew_meta")


class TestPartitionedRecorder(unpartitioned.TestPostgresRecorder):
    @pytest.fixture(params=["postgres"], ids=["partitioned"])
    def opener(self, postgres: str) -> Opener:
        store_at(postgres).migrate(partitions=PARTITIONS)
        return lambda: PostgresRecorder.open(postgres)


class TestPartitionedApplication(conformance.TestPostgresApplication):
    @pytest.fixture(autouse=True)
    def _database(self, postgres: str) -> Iterator[None]:
        store_at(postgres).migrate(partitions=PARTITIONS)
        self.factory = PostgresFactory({"POSTGRES_URL": postgres})
        yield
        self.factory.close()


def partitions(url: str) -> dict[str, int]:
    """The number of partitions of each partitioned table."""
    counts = ask(url, "SELECT inhparent::regclass::text, count(*) FROM pg_inherits GROUP BY 1")
    return {table: count for table, count in counts if not table.endswith(("_pkey", "_idx")) and table in PARTITIONED}


def fill_tables(url: str) -> None:
    """Create a log with rows in each of its tables."""
    with closing(PostgresRecorder.open(url)) as recorder:
        for number in range(9):
            name = f"default/thread/{number}"
            fill(recorder, name, 4)
            more: dict[str, Any] = {"snapshots": [Snapshot(name, 4, b"state")], "key": Key(name, "key", b"content")}
            append(recorder, event(name, 5), entries=[IndexEntry(name, 1, 5)], **more)
            append(recorder, event(f"{name}-fork", 4), forks={f"{name}-fork": Fork(name, 3)})
        append(recorder, event("default/thread/0", 6), blobs=[Blob(sha256(b"data").digest(), "definition", b"data")])


def test_partitions_the_growing_tables_and_spreads_their_rows(postgres: str) -> None:
    assert store_at(postgres).migrate(partitions=4) == (0, SCHEMA_VERSION)
    fill_tables(postgres)
    assert partitions(postgres) == dict.fromkeys(PARTITIONED, 4)
    for table in PARTITIONED:
        rows = dict(ask(postgres, f"SELECT tableoid::regclass::text, count(*) FROM {table} GROUP BY 1"))  # noqa: S608 - our own table names
        assert len(rows) > 1
        assert set(rows) <= {f"{table}_{part}" for part in range(4)}


def test_every_unique_index_contains_the_partition_key(postgres: str) -> None:
    store_at(postgres).migrate(partitions=2)
    indexes = ask(
        postgres,
        "SELECT indrelid::regclass::text, pg_get_indexdef(indexrelid) FROM pg_index WHERE indisunique "
        "AND indrelid::regclass::text LIKE 'clew_%'",
    )
    unique = [definition for table, definition in indexes if table in PARTITIONED]
    assert len(unique) == len(PARTITIONED)
    assert all("(stream" in definition for definition in unique)


def test_has_no_partitions_by_default(postgres: str) -> None:
    PostgresRecorder.open(postgres).close()
    assert partitions(postgres) == {}
    assert store_at(postgres).migrate(partitions=0) == (SCHEMA_VERSION, SCHEMA_VERSION)
    with pytest.raises(StoreSchemaError, match=r"without partitions, and that cannot change.*empty database.*scaling"):
        store_at(postgres).migrate(partitions=4)


@pytest.mark.parametrize("count", [-1, 1, 1025, 2**70])
def test_refuses_an_invalid_number_of_partitions(postgres: str, capsys: pytest.CaptureFixture[str], count: int) -> None:
    with pytest.raises(StoreSchemaError, match="Use a number from 2 to 1024, or 0"):
        store_at(postgres).migrate(partitions=count)
    assert ask(postgres, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(0,)]
    assert main(["--db", postgres, "migrate", "--partitions", str(count)]) == 2
    assert "Invalid value for '--partitions'" in capsys.readouterr().err


def test_can_be_opened_and_migrated_with_any_partitions(postgres: str) -> None:
    store_at(postgres).migrate(partitions=4)
    assert (
        store_at(postgres).migrate()
        == store_at(postgres).migrate(partitions=4)
        == store_at(postgres).schemas()
        == (SCHEMA_VERSION, SCHEMA_VERSION)
    )
    with pytest.raises(StoreSchemaError, match="with 4 partitions, and that cannot change"):
        store_at(postgres).migrate(partitions=8)
    fill_tables(postgres)
    assert partitions(postgres) == dict.fromkeys(PARTITIONED, 4)


def test_the_command_partitions_only_an_empty_database(
    postgres: str, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    assert main(["--db", postgres, "migrate", "--partitions", "4", "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["from"] == 0
    assert partitions(postgres) == dict.fromkeys(PARTITIONED, 4)
    assert main(["--db", postgres, "migrate", "--partitions", "4"]) == 0
    assert "nothing to migrate" in capsys.readouterr().out
    assert main(["--db", postgres, "migrate", "--partitions", "5"]) == 1
    assert "with 4 partitions" in capsys.readouterr().err
    with pytest.raises(StoreUrlError, match="PostgreSQL"):
        store_at(f"sqlite:///{tmp_path}/x.db").migrate(partitions=2)


@pytest.mark.parametrize(("before", "after"), [(0, 4), (4, 0)])
def test_a_log_can_be_copied_to_a_database_with_other_partitions(
    postgres_server: PostgresServer, before: int, after: int
) -> None:
    with postgres_server.database() as old, postgres_server.database() as new:
        store_at(old).migrate(partitions=before)
        fill_tables(old)
        store_at(new).migrate(partitions=after)
        ask(new, "TRUNCATE clew_meta")
        folder = reachable(programs(postgres_server.version))
        tables = [part for table in LOG for part in ("--table-and-children", table)]
        dump = subprocess.run(
            [str(folder / "pg_dump"), "--data-only", "--load-via-partition-root", *tables, old],
            capture_output=True,
            check=True,
        )
        assert b"COPY public.clew_event" in dump.stdout
        psql = [str(folder / "psql"), "--quiet", "--set", "ON_ERROR_STOP=1", "--single-transaction", new]
        subprocess.run(psql, input=dump.stdout, capture_output=True, check=True)
        with closing(PostgresRecorder.open(old)) as one, closing(PostgresRecorder.open(new)) as other:
            rows = one.rows(after=0, limit=999)
            assert other.rows(after=0, limit=999) == rows
            assert other.streams(limit=99) == one.streams(limit=99)
            assert other.lineage("default/thread/3-fork") == one.lineage("default/thread/3-fork")
            assert fill(other, "default/thread/3", 7, start=6).positions[0] > rows[-1].position
            assert [row.hash for row in other.lineage("default/thread/3")] == recomputed_hashes(
                other.lineage("default/thread/3")
            )
