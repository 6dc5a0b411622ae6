"""Stores whose creation, migration or use was interrupted, by SIGKILL or a power loss: the next process opens them."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest
from tests.infrastructure.sqlite.test_migrations import EXPORTED, GOLDEN, NOW
from tests.infrastructure.system_calls import Change, changes, killed_before

from clew import Conversations, HistoryMessage, Message, Record
from clew.cli import main
from clew.infrastructure.sqlite import doctor
from clew.infrastructure.stores import store_at
from clew.types import SyncLocalThread

SECTOR = 512
IMAGES = 5_000
"""Of each kind at full scale; a run at a tenth of it makes a hundredth."""
ACKNOWLEDGED = "acknowledged"
"""A file to which the store's user writes what the store has confirmed."""


def create(path: Path) -> None:
    with Conversations.open(path) as conversations:
        assert list(conversations.threads()) == []


def migrate(path: Path) -> None:
    store_at(f"sqlite:///{path}").migrate()


def check_created(path: Path) -> None:
    with Conversations.open(path) as conversations:
        check_usable(conversations)
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
    for image, _ in images(work, folder, tmp_path, round(IMAGES * scale**2), seed=7):
        if work is create or (image / "clew.db").exists():
            check(image / "clew.db")


@pytest.mark.parametrize("seed", range(2))
def test_a_power_loss_during_use_loses_nothing_that_was_confirmed(tmp_path: Path, scale: float, seed: int) -> None:
    folder = tmp_path / "before"
    folder.mkdir()
    create(folder / "clew.db")
    for image, made in images(lambda path: use(path, seed), folder, tmp_path, round(IMAGES * scale**2), seed):
        check_confirmed(image / "clew.db", b"".join(each.data for each in made if Path(each.path).name == ACKNOWLEDGED))


def images(
    work: Callable[[Path], object], folder: Path, tmp_path: Path, number: int, seed: int
) -> Iterator[tuple[Path, list[Change]]]:
    """What a disk can hold if the power fails during the work, each with the changes that were made before."""
    place = tmp_path / "work"
    shutil.copytree(folder, place)
    made = changes(lambda: work(place / "clew.db"), place)
    assert {each.kind for each in made} >= {"write", "sync"}
    choice = random.Random(seed)
    points = Counter(choice.randrange(len(made)) for _ in range(number))
    disk = Disk(folder)
    for point, change in enumerate(made):
        disk.apply(change)
        for each in range(points[point]):
            image = tmp_path / f"{point}-{each}"
            image.mkdir()
            disk.write(image, choice)
            yield image, made[: point + 1]
            shutil.rmtree(image)


def use(path: Path, seed: int) -> None:
    """Write to a store in many ways. After each step, what is stored is written to a file next to it."""
    choice = random.Random(seed)
    with Conversations.open(path) as conversations, (path.parent / ACKNOWLEDGED).open("wb", buffering=0) as file:
        threads = [conversations.start_thread()]
        for number in range(60):
            thread = choice.choice(threads)
            before = thread.version
            text = f"T{choice.getrandbits(64):016x}" + "x" * choice.choice([5, 300, 9_000])
            redacted: HistoryMessage | None = None
            step = choice.choice(["fork", "redact", *CHANGES, *CHANGES])
            if step == "fork":
                thread, before = thread.fork(), 0
                threads.append(thread)
            elif step == "redact" and (texts := [each for each in thread.history() if each.text.startswith("T")]):
                redacted = choice.choice(texts)
                thread.redact(redacted)
            elif step in CHANGES:
                CHANGES[step](thread, text)
            stored = {each.version: (each.hash or b"").hex() for each in thread.events(after=before)}
            file.write(json.dumps([thread.id, stored, redacted and redacted.text[:17]]).encode() + b"\n")
            if not number % 5:
                conversations.search("x")  # fills the read models


CHANGES: dict[str, Callable[[SyncLocalThread, str], object]] = {
    "append": lambda thread, text: thread.append([Message.user(text), Message.assistant("x" * 500)]),
    "keyed": lambda thread, text: thread.append(Message.user(text), idempotency_key=f"key-{text[1:9]}"),
    "record": lambda thread, text: thread.append(Record("state", {"text": text})),
    "rewind": lambda thread, _: thread.rewind(max(1, thread.version - 3)),
    "name": lambda thread, text: thread.checkpoint(f"name-{text[1:9]}"),
}


def check_confirmed(path: Path, confirmed: bytes) -> None:
    """A store has every step that was confirmed, and nothing of a text whose redaction was; it is sound and usable."""
    steps = [json.loads(line) for line in confirmed.splitlines()]
    redacted = [text.encode() for _, _, text in steps if text]
    files = {each.name: each.read_bytes() for each in path.parent.iterdir() if each.name != ACKNOWLEDGED}
    assert not [name for name, content in files.items() if any(text in content for text in redacted)]
    with Conversations.open(path) as conversations:
        assert conversations.verify().first_bad is None
        found = {thread_id: conversations.thread(thread_id) for thread_id, _, _ in steps}
        hashes = {key: {each.version: (each.hash or b"").hex() for each in found[key].events()} for key in found}
        for thread_id, stored, _ in steps:
            assert {int(version): hashes[thread_id][int(version)] for version in stored} == {
                int(version): each for version, each in stored.items()
            }
        assert {thread.id for thread in conversations.threads(limit=None)} >= found.keys()
        check_usable(conversations)


def check_usable(conversations: Conversations) -> None:
    conversations.start_thread(messages=[Message.user("It works")])
    assert len(conversations.search("works")) == 1


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
