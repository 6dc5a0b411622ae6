"""The PostgreSQL store behind a pooler with few connections: a waiting process keeps no connection."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

import psycopg
import pytest
from tests.infrastructure.postgres.test_server_failures import replaced
from tests.infrastructure.recorder_steps import PATIENCE, append, event, failure, fill, run_threads, wait_until
from tests.servers.pooling_proxy import PoolingProxy
from tests.servers.postgres_server import OWNER, PostgresServer, ask

from clew import Conversations, Message
from clew.domain.errors import StoreUrlError
from clew.infrastructure.postgres.errors import unavailable
from clew.infrastructure.postgres.projection_store import PostgresProjections
from clew.infrastructure.postgres.recorder import PostgresRecorder
from clew.infrastructure.recorder_ports import RecordedConflictError
from clew.projections import SHIPPED

WAITING = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


@pytest.fixture
def database(postgres_server: PostgresServer) -> Iterator[str]:
    with postgres_server.database() as url:
        yield url


def pooler(url: str, sessions: int) -> PoolingProxy:
    port = urlsplit(url).port
    assert port is not None
    return PoolingProxy(port, OWNER, urlsplit(url).path[1:], sessions)


def through(proxy: PoolingProxy, url: str) -> str:
    return replaced(url, port=proxy.port) + "?prepare=no"


def test_a_process_that_waits_for_its_turn_releases_the_connection(database: str) -> None:
    with pooler(database, 2) as proxy, closing(PostgresRecorder.open(through(proxy, database))) as recorder:
        fill(recorder, "a", 1)
        with closing(PostgresProjections(through(proxy, database))) as projections:
            turns: list[str] = []

            def second() -> None:
                with projections.session(0, ["directory"]):
                    turns.append("second")

            other = threading.Thread(target=second)
            with projections.session(0, ["directory"]):
                other.start()
                wait_until(lambda: ask(database, WAITING) == [(1,)])
                assert recorder.last_position() > 0, "one of the two connections is free"
                turns.append("first")
            other.join(PATIENCE)
            assert turns == ["first", "second"]


def test_processes_update_and_read_projections_with_few_connections(database: str) -> None:
    """One connection for each concurrent update, one for reads, and one that waits."""
    with pooler(database, len(SHIPPED) + 2) as proxy:
        url = through(proxy, database)
        with Conversations.open(url) as one, Conversations.open(url) as two:

            def talk(conversations: Conversations, number: int) -> None:
                thread = conversations.start_thread()
                for turn in range(3):
                    thread.append(Message.user(f"word{number}"))
                    assert len(conversations.search(f"word{number}")) == turn + 1
                    assert thread.id in {each.id for each in conversations.threads()}
                    assert len(list(conversations.audit(thread=thread.id))) == turn + 2

            run_threads([lambda n=n: talk((one, two)[n % 2], n) for n in range(4)])  # type: ignore[misc] # a bound loop


def test_a_session_knows_its_prepared_statements_after_a_rollback(database: str) -> None:
    """A pooler closes the connection of a client that uses a deallocated statement."""
    with closing(PostgresRecorder.open(database, workers=1)) as recorder:
        fill(recorder, "a", 2)
        append(recorder, event("a", 3))
        with recorder.datastore.writing.use() as session:
            assert session.prepared, "the third append uses prepared statements"
        assert isinstance(failure(recorder, event("a", 2)), RecordedConflictError)
        with recorder.datastore.writing.use() as session:
            rows = session.connection.execute("SELECT name FROM pg_prepared_statements").fetchall()
            assert {name.decode() for name in session.prepared.values()} <= {name for (name,) in rows}


@pytest.mark.parametrize(
    ("message", "kind", "advice"),
    [
        ("FATAL: unsupported startup parameter in options: search_path", StoreUrlError, "a setting in its URL"),
        ('FATAL: pg_hba.conf rejects connection for host "127.0.0.1", no encryption', None, "refused this user"),
        ('private key file "client.key" has group or world access', None, "a trusted TLS connection is not possible"),
    ],
)
def test_explains_what_to_do_when_a_pooler_or_the_server_refuses(
    message: str, kind: type[Exception] | None, advice: str
) -> None:
    error = unavailable("postgresql://db:5432/chats", psycopg.OperationalError(f"connection failed: {message}"))
    assert advice in str(error)
    assert kind is None or isinstance(error, kind)
