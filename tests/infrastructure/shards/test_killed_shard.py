"""One of three PostgreSQL servers behind a directory is killed."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Self

import pytest
from tests.infrastructure.recorder_steps import PATIENCE, wait_until
from tests.infrastructure.shards.shard_urls import address, homes, sharded
from tests.infrastructure.shards.shard_writer import SAID, Tell, services, write_all
from tests.servers.postgres_server import PostgresServer

from clew import Conversations
from clew.domain.errors import StoreUnavailableError
from clew.infrastructure.shards import Positions
from clew.infrastructure.stores import store_at
from clew.service.shards import Shards

ROOT = Path(__file__).parent.parent.parent.parent
PROCESSES = 2


def test_loses_and_duplicates_nothing_when_one_of_three_servers_is_killed(
    postgres_server: PostgresServer, scale: float
) -> None:
    tenants = [f"tenant-{number}" for number in range(30)]
    count = max(4, round(10_000 * scale / len(tenants)))
    acknowledged: Counter[str] = Counter()
    told: set[tuple[str, str, int]] = set()
    reading = threading.Lock()

    def tell(tenant: str, id_: str, version: int) -> None:
        with reading:
            acknowledged[tenant] += 1
            told.add((tenant, id_, version))

    with PostgresServer(18) as second, PostgresServer(18) as third, ExitStack() as stack:
        # The directory is on the server that dies.
        url = sharded(stack.enter_context(third.database()))
        stores = {
            name: stack.enter_context(server.database())
            for name, server in (("first", postgres_server), ("second", second), ("third", third))
        }
        shards = Shards.open(url)
        for name, store in stores.items():
            shards.add(name, address(store))
        watched = Watched(shards)
        processes = [
            stack.enter_context(Writer(url, tenants[number :: PROCESSES + 1], count, tell))
            for number in range(PROCESSES)
        ]
        own = stack.enter_context(services(url, tenants[PROCESSES :: PROCESSES + 1]))
        for process in processes:
            process.ready()
        places = homes(url, tenants)
        assert Counter(places.values()) == dict.fromkeys(stores.values(), 10)
        others = [tenant for tenant in tenants if places[tenant] != stores["third"]]
        down = [tenant for tenant in tenants if places[tenant] == stores["third"]]
        for process in processes:
            process.go()
        writing = threading.Thread(target=write_all, args=(own, count, tell), daemon=True)
        writing.start()
        each = 2 * count
        wait_until(lambda: acknowledged.total() >= each * 30 // 6)
        third.kill()
        at_death = Counter(acknowledged)
        wait_until(lambda: sum(acknowledged[one] - at_death[one] for one in others) >= each * 20 // 4)
        wait_until(lambda: "third" in watched.reader.failing())
        assert stands_still(lambda: sum(acknowledged[one] for one in down)) < each * len(down)
        with pytest.raises(StoreUnavailableError):
            Conversations.open(url, tenant=down[0])
        third.start()
        watched.again()
        writing.join()
        for process in processes:
            process.join()
        expected = {
            (name, f"{tenant}/thread/{tenant}-{number}", version)
            for tenant in tenants
            for name, store in stores.items()
            if store == places[tenant]
            for number in range(count)
            for version in range(1, len(SAID) + 2)
        }
        wait_until(lambda: len(watched.seen) >= len(expected))
        watched.close()
        assert acknowledged == dict.fromkeys(tenants, each)
        assert len(told) == each * 30
        assert len(watched.seen) == len(expected)
        assert set(watched.seen) == expected
        assert watched.positions == shards.positions()
        for name, store in stores.items():
            with closing(store_at(store).open_log(create=False)) as log:
                rows = log.rows_after(0, 10**6, "")
                assert [(name, row.stream, row.version) for row in rows] == [
                    one for one in watched.seen if one[0] == name
                ]
                assert log.verify()[1:] == (len(rows), None)


def stands_still(count: Callable[[], int]) -> int:
    """A number once it was the same fifty times: what was answered before may be on its way here from the processes."""
    heard: list[int] = []

    def is_still() -> bool:
        heard.append(count())
        return heard[-50:] == [heard[-1]] * 50

    wait_until(is_still)
    return heard[-1]


class Watched:
    """A reader of all shards, in a thread of its own; ``again`` ends it and begins another where that one was."""

    def __init__(self, shards: Shards) -> None:
        self.seen: list[tuple[str, str, int]] = []
        self.positions = Positions()
        self._shards = shards
        self._begin()

    def _begin(self) -> None:
        self.reader = self._shards.events(after=Positions.parse(str(self.positions)))
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for shard, event, positions in self.reader:
            self.seen.append((shard, event.stream, event.version))
            self.positions = positions

    def again(self) -> None:
        self.close()
        self._begin()

    def close(self) -> None:
        self.reader.close()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


class Writer:
    """A process that writes, and tells what was acknowledged. It ends with the block at the latest."""

    def __init__(self, url: str, tenants: list[str], count: int, tell: Tell) -> None:
        command = [
            sys.executable,
            "-m",
            "tests.infrastructure.shards.shard_writer",
            url,
            ",".join(tenants),
            str(count),
        ]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self._tell = tell
        self._reading = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._process.kill()

    def ready(self) -> None:
        """Return when all its services are open."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def go(self) -> None:
        self._reading.start()
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            tenant, id_, version = line.split()
            self._tell(tenant, id_, int(version))

    def join(self) -> None:
        self._reading.join()
        assert self._process.wait(PATIENCE) == 0
