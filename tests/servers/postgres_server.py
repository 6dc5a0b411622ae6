"""A PostgreSQL server for the tests: on loopback, with default durability, and a new database for each test."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

import psycopg
from tests.servers import unprivileged
from tests.servers.installation import postgres as programs
from tests.servers.server_process import ServerProcess

VERSIONS = (16, 18)
UNPRIVILEGED = [sys.executable, "-I", "-S", unprivileged.__file__]
OWNER = "clew_tests"

# This role needs the password. The owner of the databases needs none, because hashing slows each connection down.
GUARDED = "clew_guarded"
PASSWORD = "zq7-canary-51ce"  # noqa: S105 - for a temporary server that only this machine can reach

ACCESS = f"""\
host all {GUARDED} 127.0.0.1/32 scram-sha-256
host all all 127.0.0.1/32 trust
host replication all 127.0.0.1/32 trust
"""

SETTINGS = {
    # A killed server must leave nothing in the machine's shared memory.
    "dynamic_shared_memory_type": "mmap",
    "shared_buffers": "64MB",
    "max_connections": "200",
    # Autovacuum opens transactions, and a reader stops before any open transaction.
    "autovacuum": "off",
    "listen_addresses": "127.0.0.1",
    # A socket's path must be short, but the folder's path may be long.
    "unix_socket_directories": "",
}

# Another process may take the port before the server listens on it.
TRIES = 5

_numbers = count()


class PostgresServer:
    """Runs until the block or this process ends. ``kill`` stops it at once; ``start`` starts it again."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.port = 0
        self._process: ServerProcess | None = None
        self._folder = open_folder("clew-postgres-")
        self.data = self._folder / "data"
        self.data.mkdir()

    def __enter__(self) -> Self:
        try:
            self._make()
            for tries_left in reversed(range(TRIES)):
                self.port = _free_port()
                try:
                    self.start()
                except RuntimeError:
                    if not tries_left:
                        raise
                else:
                    break
            self.databases = Databases(self.url())
            self._fill()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            # This signal stops the server at once, but still lets it free its shared memory.
            self._end(signal.SIGQUIT)
        shutil.rmtree(self._folder, ignore_errors=True)

    def url(self, database: str = "postgres", user: str = OWNER, password: str = "") -> str:
        """The URL of one of the server's databases."""
        return f"postgresql://{user}{password and ':' + password}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start the server on its port, with its existing data."""
        process = ServerProcess(
            self._command("postgres", "-D", self.data, "-p", self.port),
            ready="database system is ready to accept .*connections",
            port=self.port,
            folder=self.data,
        )
        self._process = process.__enter__()

    def kill(self) -> None:
        """Stop the server with SIGKILL."""
        self._end(signal.SIGKILL)

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement in the default database and return its rows."""
        return ask(self.url(), statement)

    def database(self) -> AbstractContextManager[str]:
        """The URL of an empty database, for the block."""
        return self.databases.one()

    def _make(self) -> None:
        options = ["-A", "trust", "-U", OWNER, "-E", "UTF8", "--locale", "C", "--no-sync", "-D", self.data]
        self._run("initdb", *options)
        (self.data / "pg_hba.conf").write_text(ACCESS, encoding="utf-8")
        with (self.data / "postgresql.conf").open("a", encoding="utf-8") as settings:
            settings.writelines(f"{name} = '{value}'\n" for name, value in SETTINGS.items())

    def _fill(self) -> None:
        self.ask(f"CREATE ROLE {GUARDED} LOGIN PASSWORD '{PASSWORD}'")

    def _run(self, program: str, *options: object) -> None:
        """Run one of PostgreSQL's programs as the user that owns the data folder."""
        if os.geteuid() == 0:
            user = unprivileged.user()
            os.chown(self.data, user.pw_uid, user.pw_gid)
        self.data.chmod(0o700)
        command = self._command(program, *options)
        done = subprocess.run(command, cwd=self.data, capture_output=True, text=True, check=False)
        if done.returncode:
            message = f"{program} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
            raise RuntimeError(message)

    def _command(self, program: str, *options: object) -> list[str]:
        return [*UNPRIVILEGED, str(reachable(programs(self.version)) / program), *map(str, options)]

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError, FileNotFoundError):
                os.kill(int((self.data / "postmaster.pid").read_text(encoding="utf-8").split()[0]), how)
                process.wait()
            process.__exit__()


class Standby(PostgresServer):
    """A server that follows another one by streaming replication. It is read-only until it is promoted."""

    def __init__(self, primary: PostgresServer) -> None:
        super().__init__(primary.version)
        self._primary = primary

    def promote(self) -> None:
        """Stop following the primary, and accept writes."""
        assert self.ask("SELECT pg_promote(true, 60)") == [(True,)]

    def _make(self) -> None:
        options = ["-R", "-X", "stream", "-c", "fast", "--no-sync", "-D", self.data]
        self._run("pg_basebackup", "-d", self._primary.url(), *options)

    def _fill(self) -> None:
        """Do nothing: the server has the data of the primary."""


@cache
def reachable(programs: Path) -> Path:
    """The folder of the programs, or of a copy if their user cannot enter the folder, for example in root's home."""
    if _can("-x", programs / "postgres"):
        return programs
    copy = open_folder("clew-postgres-programs-")
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    package = programs.parent.parent
    # The programs find their libraries in the wheel's second folder, by a relative path.
    for folder in (programs.parent, package.with_name(f"{package.name}.libs")):
        target = copy / folder.relative_to(package.parent)
        shutil.copytree(folder, target, symlinks=True, copy_function=_link_or_copy)
    for each in copy.rglob("*"):
        if each.is_dir():
            each.chmod(0o755)
    return copy / programs.relative_to(package.parent)


def open_folder(prefix: str) -> Path:
    """A new temporary folder that the user of the programs can enter, even if that user cannot enter TMPDIR."""
    for parent in (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm"):  # noqa: S108 - mkdtemp chooses a new name
        if not os.access(parent, os.W_OK | os.X_OK):
            continue
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        folder.chmod(0o755)
        if _can("-x", folder):
            return folder
        folder.rmdir()
    message = f"PostgreSQL's user {unprivileged.user().pw_name} can enter no temporary folder. Set TMPDIR to one."
    raise RuntimeError(message)


def _can(test: str, path: Path) -> bool:
    """Whether a test of the shell on a path is true for the user of the programs."""
    return subprocess.run([*UNPRIVILEGED, "/bin/sh", "-c", f'test {test} "$0"', str(path)], check=False).returncode == 0


def _link_or_copy(source: str, target: str) -> None:
    """Link the file, which needs no space. Copy it to another file system, or if only its owner can read it."""
    mode = os.stat(source).st_mode  # noqa: PTH116 - shutil gives strings
    if mode & stat.S_IROTH:
        with suppress(OSError):
            os.link(source, target)
            return
    shutil.copyfile(source, target)
    os.chmod(target, mode | 0o444 | (mode & stat.S_IXUSR) >> 3 | (mode & stat.S_IXUSR) >> 6)  # noqa: PTH101 - the same


def ask(url: str, statement: str) -> list[tuple[Any, ...]]:
    """Run a statement and return its rows."""
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


class Databases:
    """Empty databases of a server. They are reused: to create and drop one takes longer than most tests."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._spare: list[str] = []

    @contextmanager
    def one(self) -> Iterator[str]:
        """The URL of an empty database."""
        name = self._spare.pop() if self._spare else self._make()
        url = urlunsplit(urlsplit(self._url)._replace(path=f"/{name}"))
        yield url
        # Not after an error: the database keeps its data for debugging.
        end_sessions(url)
        ask(url, "DROP SCHEMA public CASCADE; CREATE SCHEMA public; GRANT USAGE ON SCHEMA public TO public")
        self._spare.append(name)

    def drop(self) -> None:
        """Drop the databases that are not in use."""
        while self._spare:
            ask(self._url, f"DROP DATABASE {self._spare.pop()} WITH (FORCE)")

    def _make(self) -> str:
        name = f"clew_{os.getpid()}_{next(_numbers)}"
        ask(self._url, f"CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE template0")
        return name


def end_sessions(url: str) -> None:
    """Close all other connections to the database."""
    others = "datname = current_database() AND pid <> pg_backend_pid()"
    ask(url, f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {others}")  # noqa: S608 - built from constants


def _free_port() -> int:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        return int(chosen.getsockname()[1])
