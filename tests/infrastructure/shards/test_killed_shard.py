"""A kill of one of three PostgreSQL servers behind a directory."""

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
from tests.infrastructure.shards.shard_databases import address, homes, sharded
from tests.infrastructure.shards.shard_writer import TEXTS, Report, services, write_all
from tests.servers.postgres_server import PostgresServer

from clew import Conversations
from clew.domain.errors import StoreUnavailableError
from clew.infrastructure.shards import Positions
from clew.infrastructure.stores import store_at
from clew.service.shards import Shards

ROOT = Path(__file__).parent.parent.parent.parent
PROCESSES = 2


def test_loses_and_duplicates_no_message_if_one_of_three_servers_is_killed(
    postgres_server: PostgresServer, scale: float
) -> None:
    tenants = [f"tenant-{number}" for number in range(30)]
    count = max(4, round(10_000 * scale / len(tenants)))
    acknowledged: Counter[str] = Counter()
    reported: set[tuple[str, str, int]] = set()
    reading = threading.Lock()

    def report(tenant: str, id_: str, version: int) -> None:
        with reading:
            acknowledged[tenant] += 1
            reported.add((tenant, id_, version))

    with PostgresServer(18) as second, PostgresServer(18) as third, ExitStack() as stack:
        # The directory is on the killed server.
        url = sharded(stack.enter_context(third.database()))
        stores = {
            name: stack.enter_context(server.database())
            for name, server in (("first", postgres_server), ("second", second), ("third", third))
        }
        shards = Shards.open(url)
        for name, store in stores.items():
            shards.add(name, address(store))
        watcher = ShardReader(shards)
        processes = [
            stack.enter_context(Writer(url, tenants[number :: PROCESSES + 1], count, report))
            for number in range(PROCESSES)
        ]
        own = stack.enter_context(services(url, tenants[PROCESSES :: PROCESSES + 1]))
        for process in processes:
            process.wait_until_ready()
        places = homes(url, tenants)
        assert Counter(places.values()) == dict.fromkeys(stores.values(), 10)
        others = [tenant for tenant in tenants if places[tenant] != stores["third"]]
        down = [tenant for tenant in tenants if places[tenant] == stores["third"]]
        for process in processes:
            process.start()
        writing = threading.Thread(target=write_all, args=(own, count, report), daemon=True)
        writing.start()
        each = 2 * count
        wait_until(lambda: acknowledged.total() >= each * 30 // 6)
        third.kill()
        at_kill = Counter(acknowledged)
        wait_until(lambda: sum(acknowledged[one] - at_kill[one] for one in others) >= each * 20 // 4)
        wait_until(lambda: "third" in watcher.reader.failing())
        assert final_value(lambda: sum(acknowledged[one] for one in down)) < each * len(down)
        with pytest.raises(StoreUnavailableError):
            Conversations.open(url, tenant=down[0])
        third.start()
        watcher.restart()
        writing.join()
        for process in processes:
            process.join()
        expected = {
            (name, f"{tenant}/thread/{tenant}-{number}", version)
            for tenant in tenants
            for name, store in stores.items()
            if store == places[tenant]
            for number in range(count)
            for version in range(1, len(TEXTS) + 2)
        }
        wait_until(lambda: len(watcher.seen) >= len(expected))
        watcher.close()
        assert acknowledged == dict.fromkeys(tenants, each)
        assert len(reported) == each * 30
        assert len(watcher.seen) == len(expected)
        assert set(watcher.seen) == expected
        assert watcher.positions == shards.positions()
        for name, store in stores.items():
            with closing(store_at(store).open_log(create=False)) as log:
                rows = log.rows_after(0, 10**6, "")
                assert [(name, row.stream, row.version) for row in rows] == [
                    one for one in watcher.seen if one[0] == name
                ]
                assert log.verify()[1:] == (len(rows), None)


def final_value(count: Callable[[], int]) -> int:
    """The value when it was the same fifty times. Reports of the processes arrive late."""
    values: list[int] = []

    def is_stable() -> bool:
        values.append(count())
        return values[-50:] == [values[-1]] * 50

    wait_until(is_stable)
    return values[-1]


class ShardReader:
    """A reader of all shards in its own thread. ``restart`` replaces it with another one at the same positions."""

    def __init__(self, shards: Shards) -> None:
        self.seen: list[tuple[str, str, int]] = []
        self.positions = Positions()
        self._shards = shards
        self._start()

    def _start(self) -> None:
        self.reader = self._shards.events(after=Positions.parse(str(self.positions)))
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for shard, event, positions in self.reader:
            self.seen.append((shard, event.stream, event.version))
            self.positions = positions

    def restart(self) -> None:
        self.close()
        self._start()

    def close(self) -> None:
        self.reader.close()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


class Writer:
    """A process that writes, and reports acknowledged messages. It ends at the latest with the block."""

    def __init__(self, url: str, tenants: list[str], count: int, report: Report) -> None:
        command = [
            sys.executable,
            "-m",
            "tests.infrastructure.shards.shard_writer",
            url,
            ",".join(tenants),
            str(count),
        ]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self._report = report
        self._reading = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._process.kill()

    def wait_until_ready(self) -> None:
        """Wait until all services of the process are open."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def start(self) -> None:
        self._reading.start()
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            tenant, id_, version = line.split()
            self._report(tenant, id_, int(version))

    def join(self) -> None:
        self._reading.join()
        assert self._process.wait(PATIENCE) == 0
