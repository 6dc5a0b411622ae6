"""Who may use the files of a store: their modes and groups, and files that another user put in their place."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.infrastructure.recorder_steps import in_forked_child
from tests.servers.postgres_server import open_folder
from tests.servers.unprivileged import user

from clew import Conversations, Message
from clew.domain.errors import StoreUnavailableError
from clew.infrastructure.sqlite import doctor, file_access
from clew.infrastructure.sqlite.datastore import ClewSQLiteDatastore
from clew.infrastructure.sqlite.projection_store import SQLiteProjections
from clew.infrastructure.sqlite.vectors import SQLiteVectors

ALL_FILES = {"", "-wal", "-shm", ".lock", ".vectors"} | {
    f".projections{each}" for each in ("", "-wal", "-shm", ".lock")
}


@pytest.fixture(params=[0, 0o022, 0o077, 0o177])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    request.getfixturevalue("tmp_path")  # made first: under some of these masks its owner could not use it
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "clew.db"


def use(path: Path, check: Callable[[], None] = lambda: None) -> None:
    """Write to every file of a store, and check something while they are all open."""
    with Conversations.open(path) as conversations:
        conversations.start_thread(messages=[Message.user("private")])
        assert conversations.search("private")
        conversations._core.vectors.put("space", {b"digest": [0.5, 0.5]})
        check()


def modes(path: Path) -> dict[str, int]:
    return {each.name.removeprefix(path.name): stat.S_IMODE(each.lstat().st_mode) for each in path.parent.iterdir()}


@pytest.mark.usefixtures("umask")
def test_every_file_is_for_its_owner_alone_whatever_the_umask_is(path: Path) -> None:
    def check() -> None:
        assert modes(path) == dict.fromkeys(ALL_FILES, 0o600)

    use(path, check)


@pytest.mark.usefixtures("umask")
def test_the_files_follow_the_mode_of_a_prepared_database(path: Path) -> None:
    path.touch()
    path.chmod(0o660)

    def check() -> None:
        assert modes(path) == dict.fromkeys(ALL_FILES, 0o660)

    use(path, check)


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize(("mode", "lock"), [(0o644, 0o600), (0o640, 0o600), (0o664, 0o660), (0o666, 0o666)])
def test_only_users_who_may_write_to_the_database_can_take_its_lock(path: Path, mode: int, lock: int) -> None:
    path.touch()
    path.chmod(mode)
    use(path)
    assert modes(path)[".lock"] == modes(path)[".projections.lock"] == lock
    assert modes(path)[".projections"] == modes(path)[""] == mode


@pytest.mark.usefixtures("open_umask")
def test_no_mode_is_widened_and_an_old_lock_is_closed_to_others(path: Path) -> None:
    use(path)
    for each in path.parent.iterdir():
        each.chmod(0o644 if each.name.endswith(".lock") else 0o600)
    path.chmod(0o664)
    use(path)
    assert {name: mode for name, mode in modes(path).items() if "lock" in name} == {
        ".lock": 0o640,
        ".projections.lock": 0o640,
    }
    assert modes(path)[".projections"] == 0o600


def test_another_user_cannot_hold_the_lock() -> None:
    folder = open_folder("clew-lock-")
    path = folder / "clew.db"
    (folder / "old.db.lock").touch()
    (folder / "old.db.lock").chmod(0o644)
    before = os.umask(0o022)
    try:
        with Conversations.open(path) as conversations, Conversations.open(folder / "old.db"):
            thread = conversations.start_thread()

            def hold() -> None:
                if os.geteuid() == 0:
                    os.setgroups([])
                    os.setgid(user().pw_gid)
                    os.setuid(user().pw_uid)
                else:  # this user cannot become another one: another one would need a bit that is not there
                    assert not (path.with_name("clew.db.lock").stat().st_mode & 0o077)
                    assert not (path.with_name("old.db.lock").stat().st_mode & 0o077)
                    return
                for name in ("clew.db.lock", "old.db.lock", "clew.db", "clew.db-wal"):
                    with pytest.raises(PermissionError):
                        fcntl.flock(os.open(folder / name, os.O_RDONLY), fcntl.LOCK_EX)

            assert in_forked_child(hold) == 0
            thread.append(Message.user("It works."))
    finally:
        os.umask(before)
        for each in folder.iterdir():
            each.unlink()
        folder.rmdir()


@pytest.mark.parametrize("ending", [".lock", ".projections.lock"])
def test_a_lock_is_not_opened_through_a_symbolic_link(path: Path, ending: str) -> None:
    target = path.with_name("precious")
    path.with_name(path.name + ending).symlink_to(target)
    with pytest.raises(StoreUnavailableError, match="it is a symbolic link"):
        use(path)
    assert not target.exists()


class Foreign:
    """Makes files look as if another user had made them: only root could really do that."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: dict[str, dict[str, int]] = {}
        self._stat = os.stat
        for name in ("stat", "lstat", "fstat"):
            monkeypatch.setattr(os, name, self._changed(getattr(os, name)))

    def _changed(self, original: Callable[..., os.stat_result]) -> Callable[..., object]:
        def call(file: object, *arguments: object, **options: object) -> object:
            found = original(file, *arguments, **options)
            for name, changes in self.names.items():
                if os.path.samestat(found, self._stat(name)):
                    fields = {each: getattr(found, each) for each in dir(found) if each.startswith("st_")}
                    return SimpleNamespace(**fields | changes)
            return found

        return call


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> Foreign:
    return Foreign(monkeypatch)


OTHER = 4_000_000_000
"""A user or a group that no test runs as."""


def refused(work: Callable[[], object]) -> None:
    with pytest.raises(StoreUnavailableError, match="it belongs to another user"):
        work()


def test_a_file_that_another_user_put_there_is_refused(path: Path, foreign: Foreign) -> None:
    uses: dict[str, Callable[[], object]] = {
        ".lock": lambda: ClewSQLiteDatastore(str(path)),
        ".projections.lock": lambda: SQLiteProjections(f"{path}.projections", str(path)).release("worker"),
        ".projections": lambda: SQLiteProjections(f"{path}.projections", str(path)).release("worker"),
        ".vectors": lambda: SQLiteVectors(f"{path}.vectors", str(path)).put("space", {b"digest": [1.0]}),
    }
    for ending, use_it in uses.items():
        file = path.with_name(path.name + ending)
        file.touch()
        foreign.names = {str(file): {"st_uid": OTHER}}
        refused(use_it)
        foreign.names = {}
        file.unlink()


def test_a_lock_of_another_user_of_the_group_is_used(path: Path, foreign: Foreign) -> None:
    path.touch()
    path.chmod(0o660)
    lock = f"{path}.lock"
    Path(lock).touch()
    group = path.stat().st_gid
    foreign.names = {str(path): {"st_uid": OTHER + 1}, lock: {"st_uid": OTHER}}
    os.close(file_access.open_lock(lock, str(path)))
    foreign.names[lock] |= {"st_gid": group + 1}
    refused(lambda: file_access.open_lock(lock, str(path)))
    path.chmod(0o666)
    os.close(file_access.open_lock(lock, str(path)))


def test_a_database_of_another_user_in_an_open_folder_is_refused(path: Path, foreign: Foreign) -> None:
    use(path)
    foreign.names = {str(path): {"st_uid": OTHER}}
    use(path)
    path.parent.chmod(0o1777)
    refused(lambda: Conversations.open(path))
    foreign.names = {}
    use(path)


def test_files_of_another_group_are_for_this_user_alone(
    path: Path, foreign: Foreign, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.touch()
    path.chmod(0o660)
    foreign.names = {str(path): {"st_gid": OTHER}}
    asked: list[tuple[int, int]] = []

    def refuse(_: int, owner: int, group: int) -> None:
        asked.append((owner, group))
        raise PermissionError

    monkeypatch.setattr(os, "fchown", refuse)
    file_access.create_next_to(str(path), f"{path}.projections")
    assert modes(path)[".projections"] == 0o600
    assert [group for _, group in asked] == [OTHER]


def test_files_that_root_makes_belong_to_the_owner_of_the_database(
    path: Path, foreign: Foreign, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.touch()
    foreign.names = {str(path): {"st_uid": OTHER, "st_gid": OTHER}}
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "fchown", lambda _, owner, group: asked.append((owner, group)))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    file_access.create_next_to(str(path), f"{path}.projections")
    os.close(file_access.open_lock(f"{path}.lock", str(path)))
    assert asked == [(OTHER, OTHER)] * 2


def test_a_symbolic_link_and_its_database_share_a_lock_and_read_models(path: Path) -> None:
    other = path.parent / "elsewhere"
    other.mkdir()
    link = other / "link.db"
    link.symlink_to(path)
    use(link)
    use(path)
    assert [each.name for each in other.iterdir()] == ["link.db"]
    with Conversations.open(link) as conversations:
        assert len(list(conversations.threads())) == 2
        assert {each.datastore.lock._path for each in [conversations._core.log.recorder]} == {f"{path}.lock"}  # type: ignore[attr-defined] # of the log


def test_doctor_reports_files_that_every_user_can_read(path: Path) -> None:
    use(path)
    assert doctor._permissions(str(path)).state == "ok"
    path.chmod(0o604)
    finding = doctor._permissions(str(path))
    assert (finding.state, finding.found) == ("warning", f"Every user of this machine can read {path}.")
