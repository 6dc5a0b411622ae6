"""A PostgreSQL server without room: what was answered is there, what does not fit is refused, what fits goes on."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator

import pytest
from tests.servers.postgres_server import VERSIONS, PostgresServer

from clew import Conversations, Message
from clew.domain.errors import StoreUnavailableError

ROOM = 16 * 1024 * 1024
"""Bytes: as long as a file of the server's own log."""

LIMITED = f"""
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, ({ROOM}, {ROOM}))
os.execv(sys.argv[1], sys.argv[1:])
"""


class SmallServer(PostgresServer):
    """A server whose files the system lets grow so far: to it that is a disk that is full, and needs no rights."""

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
        answered = ["first"]

        def fill() -> None:
            while True:
                text = chance.randbytes(200_000).hex()
                thread.append(Message.user(text))
                answered.append(text)

        with pytest.raises(StoreUnavailableError, match=r"the disk of the server is full\. Free some space"):
            fill()
        assert len(answered) > 10
        assert [message.text for message in thread.history()] == answered
        assert thread.append(Message.user("small")).version == len(answered) + 2
        verdict = conversations.verify()
        assert (verdict.events, verdict.first_bad) == (len(answered) + 2, None)
