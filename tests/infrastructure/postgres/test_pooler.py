"""The PostgreSQL store behind a pooler that gives each transaction another session, like PgBouncer."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import psycopg
import pytest
from tests.infrastructure.append_contract import KeyContract
from tests.infrastructure.postgres.test_server_failures import replaced
from tests.infrastructure.recorder_steps import Opener, append, event, fill, recomputed_hashes, run_threads
from tests.servers.cutting_proxy import CuttingProxy
from tests.servers.pooling_proxy import PoolingProxy
from tests.servers.postgres_server import OWNER, PostgresServer, ask

from clew import Conversations, Message
from clew.domain.errors import StoreUrlError
from clew.domain.ports import Key
from clew.infrastructure.postgres.recorder import PostgresRecorder


@pytest.fixture
def pooler(postgres_server: PostgresServer) -> Iterator[PoolingProxy]:
    with (
        postgres_server.database() as url,
        PoolingProxy(postgres_server.port, OWNER, urlsplit(url).path[1:]) as proxy,
    ):
        yield proxy


@pytest.fixture
def pooled(pooler: PoolingProxy) -> str:
    """The URL of an empty database behind the pooler."""
    return f"postgresql://{OWNER}@127.0.0.1:{pooler.port}/any?prepare=no"


def plain(url: str) -> str:
    """The URL without Clew's own setting."""
    return url.removesuffix("?prepare=no")


class TestPooledAppends(KeyContract):
    @pytest.fixture
    def opener(self, pooled: str) -> Opener:
        return lambda: PostgresRecorder.open(pooled)

    @pytest.fixture
    def recorder(self, opener: Opener) -> Iterator[PostgresRecorder]:
        recorder = opener()
        yield recorder
        recorder.close()


def test_prepared_statements_fail_behind_the_pooler_unless_disabled(pooler: PoolingProxy, pooled: str) -> None:
    with (
        psycopg.connect(plain(pooled), autocommit=True) as connection,
        pytest.raises(psycopg.errors.InvalidSqlStatementName),
    ):
        connection.execute("SELECT %s", [1], prepare=True)
    before = pooler.transactions
    recorder = PostgresRecorder.open(pooled)
    fill(recorder, "a", 3)
    assert pooler.transactions > before
    recorder.close()


def test_serves_many_threads_with_two_sessions(pooled: str) -> None:
    with Conversations.open(pooled) as conversations:
        threads = [conversations.start_thread() for _ in range(6)]

        def talk(number: int) -> None:
            for turn in range(12):
                threads[number].append(Message.user(f"{number} {turn}"))
                assert len(threads[number].history().messages) == turn + 1

        run_threads([lambda number=number: talk(number) for number in range(6)])  # type: ignore[misc] # a bound loop
        assert conversations.verify().first_bad is None


@pytest.mark.parametrize("message", [b"a statement by itself", b"COMMIT\0"])
def test_closes_no_other_session_when_a_reply_is_lost(pooler: PoolingProxy, pooled: str, message: bytes) -> None:
    with CuttingProxy(pooler.port) as proxy:
        recorder = PostgresRecorder.open(replaced(pooled, port=proxy.port), workers=1)
        fill(recorder, "a", 2)
        pids = "SELECT array_agg(pid ORDER BY pid) FROM pg_stat_activity WHERE datname = current_database()"
        before = ask(plain(pooled), pids)
        proxy.lose_reply(message)
        outcome = append(
            recorder, event("a", 3, message.lower()), key=Key("a", "k", b"") if message.isupper() else None
        )
        assert proxy.lost.is_set()
        rows = recorder.lineage("a")
        assert [row.version for row in rows] == [1, 2, 3]
        assert outcome.positions == (rows[2].position,)
        assert [row.hash for row in rows] == recomputed_hashes(rows)
        assert ask(plain(pooled), pids) == before
        recorder.close()


def test_the_url_decides_whether_statements_are_prepared(postgres: str) -> None:
    for setting, is_prepared in (("", True), ("?prepare=yes", True), ("?prepare=no&application_name=x", False)):
        recorder = PostgresRecorder.open(postgres + setting)
        fill(recorder, setting or "plain", 1)
        with recorder.datastore.reading.use() as session:
            rows = session.query("SELECT count(*) FROM pg_prepared_statements")
        assert (rows[0][0] > 0) == is_prepared
        recorder.close()
    with pytest.raises(StoreUrlError, match="yes or no"):
        PostgresRecorder.open(f"{postgres}?prepare=maybe")
