"""Every fault of a PostgreSQL server, a database or a URL is a Clew error that says what to do."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from tests.servers.postgres_server import GUARDED, PASSWORD, PostgresServer, ask
from tests.servers.postgres_stub import server_of_version

from clew import Conversations, Message
from clew.cli import main
from clew.domain.errors import (
    ClewError,
    StoreSchemaError,
    StoreUnavailableError,
    StoreUrlError,
)
from clew.infrastructure.postgres.errors import unavailable

GUARDED_USER = f"{GUARDED}:{PASSWORD}"


@pytest.fixture(scope="module")
def url(postgres_server: PostgresServer) -> Iterator[str]:
    """A database with a thread, for all tests of this file that only read it."""
    with postgres_server.database() as url:
        start_thread(url)
        yield url


@pytest.fixture
def own(postgres_server: PostgresServer) -> Iterator[str]:
    with postgres_server.database() as url:
        yield url


def start_thread(url: str) -> None:
    with Conversations.open(url, projections=()) as conversations:
        conversations.start_thread(thread_id="t", messages=[Message.user("Hello")])


def replaced(url: str, *, user: str = "", host: str = "", database: str = "", query: str = "") -> str:
    parts = urlsplit(url)
    before, _, address = parts.netloc.rpartition("@")
    netloc = f"{user or before}@{host or address}"
    return urlunsplit(parts._replace(netloc=netloc, path=f"/{database}" if database else parts.path, query=query))


def _use(url: str, command: str) -> None:
    """Do with the API what the command does."""
    with Conversations.open(url, create=False) as conversations:
        thread = conversations.thread("t")
        {"fork": thread.fork, "label": lambda: thread.label(a="b")}.get(command, thread.history)()


class ErrorCheck:
    """Checks that the API and the command line give the same one-line Clew error, without the password."""

    def __init__(self, capture: pytest.CaptureFixture[str], log: pytest.LogCaptureFixture) -> None:
        self._capture = capture
        self._log = log

    def __call__(self, url: str, kind: type[ClewError], words: str, *command: str) -> None:
        command = command or ("threads",)
        with pytest.raises(kind) as raised:
            _use(url, command[0])
        message = str(raised.value)
        assert words in message
        code = 2 if issubclass(kind, StoreUrlError) else 1
        assert main(["--db", url, *command]) == code
        plain = self._capture.readouterr()
        assert plain.out == ""
        assert plain.err.startswith("clew: ")
        assert plain.err.count("\n") == 1
        assert words in plain.err
        assert main(["--db", url, *command, "--json"]) == code
        error = json.loads(self._capture.readouterr().err)["error"]
        assert (error["type"], words in error["message"]) == (kind.__name__, True)
        assert PASSWORD not in message + plain.err + error["message"] + self._log.text


@pytest.fixture
def check_error(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> ErrorCheck:
    caplog.set_level(logging.DEBUG)
    return ErrorCheck(capsys, caplog)


UNAVAILABLE = {
    "no server": ({"user": GUARDED_USER, "host": "127.0.0.1:1"}, "the server cannot be reached. Check that it runs"),
    "no host": ({"user": GUARDED_USER, "host": "nobody.invalid"}, "this host does not exist"),
    "a wrong password": ({"user": f"{GUARDED}:wrong-{PASSWORD}"}, "Check the user, the password"),
    "no password": ({"user": GUARDED}, "Check the user, the password"),
    "an unknown user": ({"user": f"nobody:{PASSWORD}"}, "Check the user, the password"),
    "no rights": ({"user": GUARDED_USER}, "Grant it the rights"),
    "no database": ({"user": GUARDED_USER, "database": "none"}, "Create it with createdb"),
    "no TLS": ({"user": GUARDED_USER, "query": "sslmode=verify-full"}, "whether the server has TLS"),
}
WRONG_URLS = {
    "an unknown value": "sslmode=nonsense",
    "an unknown kind of server": "target_session_attrs=nonsense",
    "an unknown TLS version": "ssl_min_protocol_version=nonsense",
    "a minimum version above the maximum": "ssl_min_protocol_version=TLSv1.3&ssl_max_protocol_version=TLSv1.2",
    "conflicting settings": "sslmode=require&sslrootcert=system",
    "invalid seconds": "connect_timeout=x",
    "an invalid IP address": "hostaddr=nonsense",
    "an invalid key": "scram_client_key=nonsense",
    "a replication connection": "replication=database",
    "a physical replication connection": "replication=true",
    "invalid options": "options=nonsense",
    "an unknown server setting": "options=-cnonsense%3D1",
    "an unknown service": "service=none",
    "an unknown setting": f"pass={PASSWORD}",
    "an invalid number": f"workers={PASSWORD}",
    "a very long number": f"workers={'9' * 5_000}",
}
WRONG_ADDRESSES = {
    "U+0000": "postgresql://u@h/a%00b",
    "U+0000 without an escape": f"postgresql://u:{PASSWORD}@127.0.0.1:1/a\0b",
    "an incomplete character": "postgresql://u@h/a%FFb",
    "an invalid character": "postgresql://u@h/\udcff",
    "an invalid escape": f"postgresql://u:{PASSWORD}@h/a%zz",
    "a missing bracket": f"postgresql://u:{PASSWORD}@[::1/x",
    "an invalid port": f"postgresql://u:{PASSWORD}@127.0.0.1:port/x",
    "an @ in a password": f"postgresql://u:x@{PASSWORD}@127.0.0.1:1/x",
    "a / in a password": f"postgresql://u:x/{PASSWORD}@127.0.0.1:1/x",
    "a connection string of the client library": f"host=127.0.0.1 password={PASSWORD}",
    "too high a port": f"postgresql://u:{PASSWORD}@127.0.0.1:99999/x",
}


@pytest.mark.parametrize("wrong", UNAVAILABLE)
def test_explains_why_the_database_cannot_be_reached(url: str, check_error: ErrorCheck, wrong: str) -> None:
    changes, words = UNAVAILABLE[wrong]
    check_error(replaced(url, **changes), StoreUnavailableError, words)


@pytest.mark.parametrize("wrong", WRONG_URLS)
def test_reports_an_invalid_setting(url: str, check_error: ErrorCheck, wrong: str) -> None:
    check_error(replaced(url, query=WRONG_URLS[wrong]), StoreUrlError, "")


@pytest.mark.parametrize("wrong", WRONG_ADDRESSES)
def test_reports_an_invalid_address(check_error: ErrorCheck, wrong: str) -> None:
    check_error(WRONG_ADDRESSES[wrong], StoreUrlError, "")


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("08006", "the server cannot be reached"),
        ("25P03", "was idle for too long"),
        ("25P04", "took too long"),
        ("40P01", "because of a deadlock"),
        ("54000", "too long"),
        ("55006", "PostgreSQL cannot execute the request"),
        ("58030", "Check its disk"),
    ],
)
def test_reports_an_unreachable_server_only_if_it_did_not_answer(state: str, words: str) -> None:
    assert words in str(unavailable("here", psycopg.errors.lookup(state)("message")))


@pytest.mark.parametrize("how", ["Peer", "Ident", "password", "LDAP"])
def test_reports_a_refused_user_with_every_authentication_method(how: str) -> None:
    error = psycopg.OperationalError(f'connection failed: FATAL:  {how} authentication failed for user "ann"')
    assert "refused this user" in str(unavailable("here", error))


def test_reports_a_server_that_is_too_old(check_error: ErrorCheck) -> None:
    with server_of_version("13.21") as port:
        check_error(
            f"postgresql://u:{PASSWORD}@127.0.0.1:{port}/d", StoreUnavailableError, "is PostgreSQL 13, and Clew needs"
        )


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_reports_an_encoding_that_cannot_store_every_text(
    postgres_server: PostgresServer, check_error: ErrorCheck, encoding: str
) -> None:
    name = f"in_{encoding.lower()}"
    postgres_server.ask(f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0")
    try:
        url = postgres_server.url(name)
        check_error(url, StoreUnavailableError, f"this database has the encoding {encoding}")
        assert ask(url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(0,)]
    finally:
        postgres_server.ask(f"DROP DATABASE {name} WITH (FORCE)")


def test_reports_that_no_connections_are_left(url: str, check_error: ErrorCheck) -> None:
    ask(url, f"ALTER ROLE {GUARDED} CONNECTION LIMIT 1")
    try:
        with psycopg.connect(replaced(url, user=GUARDED_USER)):
            check_error(
                replaced(url, user=GUARDED_USER),
                StoreUnavailableError,
                "accepts no more connections. Raise max_connections",
            )
    finally:
        ask(url, f"ALTER ROLE {GUARDED} CONNECTION LIMIT -1")


def test_reports_a_statement_that_took_too_long(url: str, check_error: ErrorCheck) -> None:
    with psycopg.connect(url) as other:
        other.execute("LOCK TABLE clew_event")
        check_error(
            replaced(url, query="options=-cstatement_timeout%3D50"), StoreUnavailableError, "raise statement_timeout"
        )


@pytest.mark.parametrize("command", [("fork", "t"), ("label", "t", "a=b")])
def test_reports_a_read_only_database(url: str, check_error: ErrorCheck, command: tuple[str, ...]) -> None:
    read_only = replaced(url, query="options=-cdefault_transaction_read_only%3Don")
    check_error(read_only, StoreUnavailableError, "it is read-only", *command)
    with Conversations.open(read_only, create=False) as conversations:
        assert [each.text for each in conversations.thread("t").history()] == ["Hello"]


def test_reports_a_user_that_can_read_but_not_write(own: str, check_error: ErrorCheck) -> None:
    start_thread(own)
    ask(own, f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {GUARDED}")
    check_error(replaced(own, user=GUARDED_USER), StoreUnavailableError, "Grant it the rights", "fork", "t")
    with Conversations.open(replaced(own, user=GUARDED_USER), create=False) as conversations:
        assert [each.text for each in conversations.thread("t").history()] == ["Hello"]


def test_reports_a_user_that_cannot_create_tables(own: str) -> None:
    with pytest.raises(StoreUnavailableError, match="Grant it the rights"):
        Conversations.open(replaced(own, user=GUARDED_USER))
    ask(own, "DROP SCHEMA public")
    try:
        with pytest.raises(StoreUnavailableError, match="no schema for tables"):
            Conversations.open(own)
    finally:
        ask(own, "CREATE SCHEMA public")


# Tables


SCHEMAS = {
    "none": ("SELECT 1", "Create them with `clew migrate`"),
    "a newer one": ("UPDATE clew_meta SET schema = 99", "schema 99, and this Clew knows schema"),
    "one with missing rows": ("TRUNCATE clew_meta", "copy the database again"),
    "one with a missing table": ("DROP TABLE clew_event", "Restore the database from a copy"),
    "one with a missing column": ("ALTER TABLE clew_meta DROP COLUMN base", "that are not Clew's"),
    "another program's": ("DROP TABLE clew_meta; CREATE TABLE clew_meta (name text)", "Name another database"),
}


@pytest.mark.parametrize("tables", SCHEMAS)
def test_explains_what_is_wrong_with_the_tables(own: str, check_error: ErrorCheck, tables: str) -> None:
    if tables != "none":
        start_thread(own)
    statement, words = SCHEMAS[tables]
    ask(own, statement)
    check_error(own, StoreSchemaError, words)


@pytest.mark.parametrize("existing", ["TABLE clew_event (name text)", "VIEW clew_stream AS SELECT 1"])
def test_creates_nothing_if_another_program_has_tables_with_the_same_names(own: str, existing: str) -> None:
    ask(own, f"CREATE {existing}")
    with pytest.raises(StoreSchemaError, match="that are not Clew's"):
        Conversations.open(own)
    assert ask(own, "SELECT count(*) FROM pg_class WHERE relname LIKE 'clew%'") == [(1,)]


# An open store


def test_reports_a_dropped_database(postgres_server: PostgresServer) -> None:
    ask(postgres_server.url(), "CREATE DATABASE going TEMPLATE template0")
    with Conversations.open(postgres_server.url("going")) as conversations:
        thread = conversations.start_thread(messages=[Message.user("Hello")])
        ask(postgres_server.url(), "DROP DATABASE going WITH (FORCE)")
        for use in (lambda: thread.append(Message.user("x")), thread.history, conversations.verify):
            with pytest.raises(StoreUnavailableError, match="this database does not exist"):
                use()


def test_reports_a_table_that_was_dropped_while_open(own: str) -> None:
    with Conversations.open(own) as conversations:
        thread = conversations.start_thread(messages=[Message.user("Hello")])
        ask(own, "DROP TABLE clew_event")
        uses: list[Callable[[], Any]] = [lambda: thread.append(Message.user("x")), thread.fork, conversations.verify]
        for use in uses:
            with pytest.raises(StoreSchemaError, match="one of Clew's tables is missing"):
                use()


def test_a_password_from_a_file_appears_nowhere(
    url: str, check_error: ErrorCheck, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "passwords"
    file.write_text(f"*:*:*:{GUARDED}:wrong-{PASSWORD}\n")
    file.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(file))
    check_error(replaced(url, user=GUARDED), StoreUnavailableError, "Check the user, the password")
