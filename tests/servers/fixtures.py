"""Fixtures of the servers. Each server runs from the first test that needs it to the end of the session."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.servers.aimock_server import Aimock, aimock_server
from tests.servers.installation import newer_python, ogx
from tests.servers.llmock_server import Llmock, llmock_server, refusing_url
from tests.servers.mem0_server import Mem0Server, mem0_server
from tests.servers.postgres_server import VERSIONS, Databases, PostgresServer
from tests.servers.redis_server import RedisServer
from tests.servers.stateful_launchers import StatefulServer, ogx_server, own_stateful_server

from clew.infrastructure.postgres import datastore

OWN_WAIT = 20.0
"""Seconds."""


def pytest_report_header() -> str:
    """Report which stateful server this run uses."""
    python = newer_python()
    if python is None:
        return "stateful server: tests/servers/stateful_responses.py, because Python 3.12 or 3.13 is missing"
    return f"stateful server: ogx, on {python}"


@pytest.fixture(scope="session")
def running_aimock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aimock]:
    with aimock_server(tmp_path_factory.mktemp("aimock")) as server:
        yield server


@pytest.fixture
def aimock(running_aimock: Aimock) -> Aimock:
    """A server of scripted answers, without replies and with an empty journal."""
    running_aimock.reset()
    return running_aimock


@pytest.fixture(scope="session")
def running_llmock() -> Iterator[Llmock]:
    with llmock_server() as server:
        yield server


@pytest.fixture
def llmock(running_llmock: Llmock) -> Llmock:
    """A server of scripted faults, without pending faults and with an empty journal."""
    running_llmock.reset()
    return running_llmock


@pytest.fixture
def refusing() -> Iterator[str]:
    """A base URL that refuses connections."""
    with refusing_url() as url:
        yield url


@pytest.fixture(scope="session")
def running_stateful(running_aimock: Aimock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StatefulServer]:
    command = ogx()
    folder = tmp_path_factory.mktemp("stateful")
    context = ogx_server(command, running_aimock, folder) if command else own_stateful_server(running_aimock)
    with context as server:
        yield server


@pytest.fixture
def stateful(running_stateful: StatefulServer, aimock: Aimock) -> StatefulServer:  # noqa: ARG001 - for its reset
    """A server that stores responses and conversations, with the answers of `aimock`. The report header names it."""
    return running_stateful


@pytest.fixture(scope="session")
def running_own_stateful(running_aimock: Aimock) -> Iterator[StatefulServer]:
    with own_stateful_server(running_aimock) as server:
        yield server


@pytest.fixture(scope="session")
def _mem0_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A temporary settings folder: the mem0 package writes a settings file when it is imported."""
    os.environ["MEM0_DIR"] = str(tmp_path_factory.mktemp("mem0"))
    os.environ.pop("MEM0_API_KEY", None)


@pytest.fixture
def mem0(_mem0_folder: None) -> Iterator[Mem0Server]:
    """A server of mem0's platform API without memories. It accepts the key ``sk-canary``."""
    with mem0_server("sk-canary") as server:
        yield server


@pytest.fixture(scope="session")
def running_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis(running_redis: RedisServer) -> RedisServer:
    """An empty Redis server."""
    if not running_redis.is_running:
        running_redis.start()
    running_redis.flush()
    return running_redis


@pytest.fixture(scope="session", autouse=True)
def patient_readers() -> Iterator[None]:
    """Let readers wait longer for their own appends: a loaded disk keeps other transactions open for seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datastore, "OWN_WAIT", OWN_WAIT)
        yield


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server for this process only, for tests that stop it or inspect it."""
    with PostgresServer(VERSIONS[-1]) as server:
        yield server


@pytest.fixture(scope="session")
def databases(request: pytest.FixtureRequest) -> Iterator[Databases]:
    """Databases of the server that ``CLEW_TEST_POSTGRES`` names, or else of the server of this process."""
    url = os.environ.get("CLEW_TEST_POSTGRES")
    if url:
        databases = Databases(url)
        yield databases
        databases.drop()
    else:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        yield server.databases


@pytest.fixture
def postgres(databases: Databases) -> Iterator[str]:
    """The URL of an empty PostgreSQL database."""
    with databases.one() as url:
        yield url
