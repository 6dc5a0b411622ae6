"""A PostgreSQL server with a full disk keeps acknowledged events, refuses large appends and accepts small ones."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator

import pytest
from tests.servers.postgres_server import VERSIONS, PostgresServer

from clew import Conversations, Message
from clew.domain.errors import StoreUnavailableError

MAX_FILE_SIZE = 16 * 1024 * 1024
"""In bytes: the size of a file of the server's write-ahead log."""

LIMITED = f"""
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, ({MAX_FILE_SIZE}, {MAX_FILE_SIZE}))
os.execv(sys.argv[1], sys.argv[1:])
"""


class SmallServer(PostgresServer):
    """A server with a size limit for each file. The server sees a full disk, and the test needs no privileges."""

    def _command(self, program: str, *options: object) -> list[str]:
        command = super()._command(program, *options)
        return [sys.executable, "-I", "-S", "-c", LIMITED, *command] if program == "postgres" else command


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with SmallServer(VERSIONS[-1]) as server, server.database() as url:
        yield url


def test_reports_a_full_disk_and_loses_no_acknowledged_event(url: str) -> None:
    chance = random.Random(6)
    with Conversations.open(url, projections=()) as conversations:
        thread = conversations.start_thread(messages=[Message.user("first")])
        acknowledged = ["first"]

        def fill() -> None:
            while True:
                text = chance.randbytes(200_000).hex()
                thread.append(Message.user(text))
                acknowledged.append(text)

        with pytest.raises(StoreUnavailableError, match=r"the disk of the server is full\. Free some space"):
            fill()
        assert len(acknowledged) > 10
        assert [message.text for message in thread.history()] == acknowledged
        assert thread.append(Message.user("small")).version == len(acknowledged) + 2
        verdict = conversations.verify()
        assert (verdict.events, verdict.first_bad) == (len(acknowledged) + 2, None)
