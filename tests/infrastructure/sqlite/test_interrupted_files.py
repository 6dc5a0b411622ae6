"""Stores whose creation or migration was interrupted, by SIGKILL or by a power loss: the next process opens them."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest
from tests.infrastructure.sqlite.test_migrations import EXPORTED, GOLDEN, NOW
from tests.infrastructure.system_calls import Change, changes, killed_before

from clew import Conversations, Message
from clew.cli import main
from clew.infrastructure.sqlite import doctor
from clew.infrastructure.stores import store_at

SECTOR = 512
IMAGES = 1_000


def create(path: Path) -> None:
    with Conversations.open(path) as conversations:
        assert list(conversations.threads()) == []


def migrate(path: Path) -> None:
    store_at(f"sqlite:///{path}").migrate()


def check_created(path: Path) -> None:
    with Conversations.open(path) as conversations:
        conversations.start_thread(messages=[Message.user("It works")])
        assert len(conversations.search("works")) == 1
        assert conversations.verify().first_bad is None


def check_migrated(path: Path) -> None:
    assert main(["--db", str(path), "migrate", "--yes"]) == 0
    assert store_at(f"sqlite:///{path}").schemas() == (NOW, NOW)
    with Conversations.open(path) as conversations:
        assert conversations.verify() == (6, 152, None)
        assert sha256(b"".join(conversations.export_events())).hexdigest() == EXPORTED[1]


Case = tuple[Callable[[Path], None], Callable[[Path], None]]


@pytest.fixture(params=["creation", "migration"])
def case(request: pytest.FixtureRequest) -> Case:
    return (create, check_created) if request.param == "creation" else (migrate, check_migrated)


@pytest.fixture
def folder(case: Case, tmp_path: Path) -> Path:
    """What is there before the work: nothing, or a database of schema 1 with a write-ahead log."""
    before = tmp_path / "before"
    before.mkdir()
    if case[0] is migrate:
        with closing(sqlite3.connect(before / "clew.db")) as connection:
            connection.executescript((GOLDEN / "schema-1.sql").read_text())
            connection.execute("PRAGMA journal_mode = WAL")
    return before


def test_a_killed_creation_or_migration_is_finished_by_the_next_process(
    case: Case, folder: Path, tmp_path: Path, scale: float
) -> None:
    work, check = case
    number = 0
    while True:
        place = tmp_path / str(number)
        shutil.copytree(folder, place)
        if not killed_before(lambda place=place: work(place / "clew.db"), place, number):  # type: ignore[misc] # bound
            break
        check(place / "clew.db")
        shutil.rmtree(place)
        number += 1 if scale >= 1 else 3
    assert number >= 20


class Disk:
    """Files in a folder after a power loss: what was synced is there, and of the rest any part."""

    def __init__(self, folder: Path) -> None:
        self.synced = {each.name: each.read_bytes() for each in folder.iterdir()}
        self.waiting: dict[str, list[Change]] = {}
        self.removed: dict[str, bytes] = {}
        """Files whose entry in the folder may still be there."""

    def apply(self, change: Change) -> None:
        name = Path(change.path).name
        if change.kind == "sync":
            self.removed.clear()  # a file system writes the changes of its folders in order
            self.synced[name] = _changed(self.synced.get(name, b""), self.waiting.pop(name, []))
        elif change.kind == "remove":
            self.waiting.pop(name, None)
            if name in self.synced:
                self.removed[name] = self.synced.pop(name)
        else:
            self.removed.pop(name, None)
            self.waiting.setdefault(name, []).append(change)

    def write(self, folder: Path, choice: random.Random) -> None:
        """Write an image: nothing that waits, its beginning, any of it, or any sectors of it."""
        kind = choice.choice(["none", "prefix", "any", "sectors"])
        for name in {*self.synced, *self.waiting}:
            waiting = self.waiting.get(name, [])
            if kind == "none":
                chosen = []
            elif kind == "prefix":
                chosen = waiting[: choice.randint(0, len(waiting))]
            else:
                parts = waiting if kind == "any" else [part for each in waiting for part in _sectors(each)]
                chosen = [each for each in parts if choice.random() < 0.6]
            if name.endswith("-shm"):
                continue  # it is in memory
            if name in self.synced or chosen or choice.random() < 0.5:
                (folder / name).write_bytes(_changed(self.synced.get(name, b""), chosen))
        for name, content in self.removed.items():
            if choice.random() < 0.5:
                (folder / name).write_bytes(content)


def _changed(content: bytes, made: list[Change]) -> bytes:
    result = bytearray(content)
    for change in made:
        size = change.offset + len(change.data)
        result.extend(bytes(max(0, (size if change.kind == "write" else change.offset) - len(result))))
        if change.kind == "write":
            result[change.offset : size] = change.data
        else:
            del result[change.offset :]
    return bytes(result)


def _sectors(change: Change) -> list[Change]:
    if change.kind != "write":
        return [change]
    return [
        change._replace(offset=change.offset + at, data=change.data[at : at + SECTOR])
        for at in range(0, len(change.data), SECTOR)
    ]


def test_a_power_loss_during_creation_or_migration_is_healed(
    case: Case, folder: Path, tmp_path: Path, scale: float
) -> None:
    work, check = case
    place = tmp_path / "work"
    shutil.copytree(folder, place)
    made = changes(lambda: work(place / "clew.db"), place)
    assert {each.kind for each in made} >= {"write", "sync", "remove"}
    choice = random.Random(7)
    points = [choice.randrange(len(made)) for _ in range(round(IMAGES * scale))]
    disk = Disk(folder)
    for point, change in enumerate(made):
        disk.apply(change)
        for number in range(points.count(point)):
            image = tmp_path / f"{point}-{number}"
            image.mkdir()
            disk.write(image, choice)
            if work is create or (image / "clew.db").exists():
                check(image / "clew.db")
            shutil.rmtree(image)


def test_doctor_looks_at_a_file_with_a_log_that_a_power_loss_left(tmp_path: Path) -> None:
    path = tmp_path / "clew.db"
    with Conversations.open(path) as conversations:
        conversations.start_thread(thread_id="refund")
        log = path.with_name("clew.db-wal").read_bytes()
        file = path.read_bytes()
    path.write_bytes(file)
    path.with_name("clew.db-wal").write_bytes(log)
    assert store_at(str(path)).schemas() == (NOW, NOW)
    with Conversations.open(path) as conversations:
        assert conversations.thread("refund").version == 1
    assert doctor.of_runs(str(path), 0).state == "ok"
