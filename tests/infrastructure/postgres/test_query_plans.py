"""PostgreSQL executes Clew's queries with indexes, with and without partitions."""

from __future__ import annotations

import re
from contextlib import closing
from typing import Any

import pytest
from tests.infrastructure.recorder_steps import append, event
from tests.servers.postgres_server import ask
from tests.servers.row_level_security import Logins, ask_as_tenant

from clew.domain.ports import Fork, Key
from clew.infrastructure.postgres import appends
from clew.infrastructure.postgres import recorder as postgres_recorder
from clew.infrastructure.postgres.pipeline import BYTEA_TYPE, INT8_TYPE
from clew.infrastructure.postgres.recorder import PostgresRecorder
from clew.infrastructure.postgres.sql_files import statements
from clew.infrastructure.postgres.stream_ids import stream_id
from clew.infrastructure.recorder_ports import IndexEntry, Snapshot
from clew.infrastructure.stores import store_at

MINE = statements("row_level_security.sql")["own rows"]

_NUMBERS = {"id": 1, "stream": 1, "version": 7, "after": 5, "upto": 240, "limit": 50, "size": 100, "few": 1_000}
_NUMBERS |= {"base": 0, "tenant": 1, "before": 6, "first": 1 << 30, "last": 2 << 30, "count": 1, "transaction": 700}
_NUMBERS |= {"came": 1, "most": 1 << 24, "number": 1, "slot": 1, "shredded": 0, "cut": 3}
_BYTES = ("name", "fold", "hash", "digest", "key", "type", "state", "previous", "stub", "application")
KNOWN = {name: f"({number}::int8)" for name, number in _NUMBERS.items()}
KNOWN |= dict.fromkeys(_BYTES, "('x'::bytea)")
KNOWN |= {"positions": "('{1048576000}')", "types": "('{noted}')", "ids": "('{1}')", "digests": "('{x}')"}
KNOWN |= {"prefix": "('default/thread/1'::bytea)", "end": "('default/thread/2'::bytea)"}


@pytest.fixture(params=[0, 2], ids=["unpartitioned", "partitioned"])
def filled(request: pytest.FixtureRequest, postgres: str) -> str:
    """A database with 10,000 events in 40 streams, each forked."""
    store_at(postgres).migrate(partitions=request.param)
    with closing(PostgresRecorder.open(postgres)) as recorder:
        for number in range(40):
            name = f"default/thread/{number}"
            more: dict[str, Any] = {"snapshots": [Snapshot(name, 9, b"")], "key": Key(name, "k", b"")}
            more |= {"entries": [IndexEntry(name, version % 9, version) for version in range(1, 251)]}
            append(recorder, *[event(name, version) for version in range(1, 251)], **more)
            append(recorder, event(f"f{number}", 201), forks={f"f{number}": Fork(name, 200)})
    ask(postgres, "ANALYZE")
    return postgres


def plan(url: str, sql: str) -> list[str]:
    statement = re.sub(r"%\((\w+)\)b", lambda match: KNOWN[match[1]], sql)
    return [line for (line,) in ask(url, f"EXPLAIN {statement}")]


@pytest.mark.parametrize("rows", [1, 8])
def test_finds_the_head_of_an_append_by_an_index(filled: str, rows: int) -> None:
    insertion = appends._insertion(rows)
    values = {INT8_TYPE: "1::int8", BYTEA_TYPE: "'x'::bytea"}
    sql = re.sub(r"\$(\d+)", lambda match: values[insertion.types[int(match[1]) - 1]], insertion.command.decode())
    lines = [line for (line,) in ask(filled, f"EXPLAIN {sql}")]
    assert any(re.search("Index Scan using .* on clew_event", line) for line in lines)
    assert not [line for line in lines if "Seq Scan on clew_event" in line], lines


def test_no_read_scans_the_whole_table_of_events(filled: str) -> None:
    assert any("Seq Scan on clew_event" in line for line in plan(filled, "SELECT * FROM clew_event"))
    appends = statements("appends.sql")
    named = ("heads", "row", "position of a row", "key", "rows of a key", "lock streams", "drop record blobs")
    for name, sql in (postgres_recorder.SQL | {name: appends[name] for name in named}).items():
        lines = plan(filled, sql)
        scans = [line for line in lines if re.search("Seq Scan on clew_(event|entry)", line)]
        assert not scans, (name, lines)
        if "stream = %(stream)b" in sql or name in {"own rows", "stored events", "stored events backwards"}:
            assert len({table for line in lines for table in re.findall(r"Scan.* on (clew_event_\d)", line)}) <= 1, (
                name,
                lines,
            )


def test_a_session_of_one_tenant_uses_the_index_of_the_thread_or_of_the_tenant(logins: Logins) -> None:
    with closing(PostgresRecorder.open(logins.owner)) as recorder:
        append(recorder, *[event("a/thread/long", version) for version in range(1, 2_001)])
    # Many small tenants, so that the planner treats every tenant as small.
    events, streams = "SELECT 900 + n, n / 30, n / 30, n % 30, 'x', '', ''", "SELECT n, n, 'x', 900 + n * 30"
    ask(
        logins.owner,
        "INSERT INTO clew_event (position, tenant, stream, version, type, state, hash) "
        f"{events} FROM generate_series(1, 30000) AS n; INSERT INTO clew_stream (id, tenant, name, began) "
        f"{streams} FROM generate_series(1, 1000) AS n; ANALYZE",
    )
    known = KNOWN | {"ids": f"('{{{stream_id('a/thread/long')}}}')"}

    def explain(sql: str) -> str:
        statement = re.sub(r"%\((\w+)\)b", lambda match: known[match[1]], sql).replace("/* own rows */", MINE)
        return "\n".join(line for (line,) in ask_as_tenant(logins.app, f"EXPLAIN {statement}", "a"))

    heads = explain(statements("appends.sql")["heads"])
    assert "Index Scan Backward using clew_event_pkey" in heads
    assert "_tenant" not in heads
    for name in ("rows", "rows of types", "window", "last position", "count after"):
        assert "clew_event_tenant" in explain(postgres_recorder.SQL[name]), name
    assert "clew_stream_tenant" in explain(postgres_recorder.SQL["streams"])
