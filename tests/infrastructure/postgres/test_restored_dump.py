"""A dump that is restored on another server, whose transaction ids start again from the beginning."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from threading import Barrier
from urllib.parse import urlsplit, urlunsplit

from tests.infrastructure.recorder_steps import PATIENCE, append, event
from tests.servers.installation import postgres as programs
from tests.servers.postgres_server import PASSWORD, UNPRIVILEGED, PostgresServer, ask, reachable
from tests.servers.row_level_security import isolate_tenants

from clew import Conversations, Message
from clew.infrastructure.postgres.datastore import PostgresDatastore
from clew.infrastructure.postgres.recorder import PostgresRecorder

EARLIER_TRANSACTIONS = 5_000
"""Transactions of the first server that the second server does not have, so its ids are much lower."""


def run(program: str, *options: str, text: str = "") -> str:
    """Run one of PostgreSQL's programs and return its output."""
    command = [*UNPRIVILEGED, str(reachable(programs(18)) / program), *options]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, cwd="/")
    assert not done.returncode, done.stderr
    return done.stdout


def with_user_of(url: str, place: str) -> str:
    """The URL of another server's database, with the user of the first URL."""
    parts, other = urlsplit(url), urlsplit(place)
    netloc = f"{parts.netloc.rpartition('@')[0]}@{other.netloc.rpartition('@')[2]}"
    return urlunsplit(other._replace(netloc=netloc))


def test_a_restored_dump_continues_above_every_position_that_was_read(postgres: str) -> None:
    logins = isolate_tenants(postgres)
    turn = f"FOR i IN 1..{EARLIER_TRANSACTIONS} LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP"
    ask(postgres, f"DO $$ BEGIN {turn}; END $$")
    with Conversations.open(logins.app, tenant="a") as conversations:
        thread = conversations.start_thread(thread_id="t", messages=[Message.user("before")])
        thread.append([Message.user("gone"), Message.user("stays")], idempotency_key="key")
        thread.redact(thread.history().messages[1])
        with Conversations.open(logins.operator) as operator:
            operator.wait()
        usage, read_until = conversations.usage(), conversations.position()
        dump = run("pg_dump", postgres)
    with PostgresServer(18) as second, second.database() as place, ExitStack() as stack:
        for role in ("clew_app", "clew_operator", "clew_shredder"):
            ask(place, f"CREATE ROLE {role} NOLOGIN")
        for role in ("clew_app", "clew_operator"):
            ask(place, f"CREATE ROLE tests_of_{role} LOGIN PASSWORD '{PASSWORD}' IN ROLE {role}")
        run("psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", place, text=dump.replace("CREATE SCHEMA public;", ""))
        started = Barrier(6)

        def write(number: int) -> int:
            """Open the store at the same time as the other threads, and append."""
            name = f"a/probe/new-{number}"  # no thread: its events make no sense as one
            url = with_user_of((logins.app, logins.operator, logins.owner)[number % 3], place)
            started.wait(PATIENCE)
            with closing(PostgresDatastore(url, tenant="a", originator_id_type="text")) as store:
                recorder = PostgresRecorder(store)
                return max(append(recorder, event(name, version)).positions[0] for version in (1, 2))

        with ThreadPoolExecutor(6) as pool:
            written = list(pool.map(write, range(6)))
        store = stack.enter_context(
            closing(PostgresDatastore(with_user_of(logins.operator, place), originator_id_type="text"))
        )
        rows = PostgresRecorder(store).rows(after=read_until, limit=100)
        assert len(rows) == 12, "all positions are above those that a reader of the first server has passed"
        assert rows[-1].position == max(written)
        with Conversations.open(with_user_of(logins.app, place), tenant="a") as conversations:
            restored = conversations.thread("t")
            assert [message.redacted for message in restored.history().messages] == [False, True, False]
            restored.append([Message.user("gone"), Message.user("stays")], idempotency_key="key")
            assert len(restored.history()) == 3, "the store knows the key"
            restored.append(Message.user("after"))
            assert conversations.position() > max(written)
            assert conversations.verify().first_bad is None
            with Conversations.open(with_user_of(logins.operator, place)) as operator:
                operator.wait()
            assert usage[0].messages + 1 == conversations.usage()[0].messages
        assert ask(place, "SELECT count(*) FROM pg_policies") == ask(postgres, "SELECT count(*) FROM pg_policies")
