"""The recipe "Add a store" of CONTRIBUTING.md: a recorder, a factory and a Store for a new URL scheme."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from eventsourcing.persistence import ApplicationRecorder
from tests.infrastructure.append_contract import AppendContract

from clew import Conversations, Message
from clew.domain.memory.ports import VectorIndex
from clew.domain.ports import Appended
from clew.domain.projection_store import ProjectionStore
from clew.infrastructure.event_log import ConversationLog
from clew.infrastructure.inmemory.factory import InMemoryFactory
from clew.infrastructure.inmemory.recorder import InMemoryRecorder
from clew.infrastructure.inmemory.vectors import InMemoryVectors
from clew.infrastructure.recorder_ports import Append
from clew.infrastructure.sqlite.projection_store import SQLiteProjections
from clew.infrastructure.stores import SCHEMES, Store, store_at
from clew.service.doctor import examine


class JournalRecorder(InMemoryRecorder):
    """Stores events in memory, and every append in a file that is replayed when the store is opened."""

    def __init__(self, path: Path) -> None:
        self._path: Path | None = None
        super().__init__()
        if path.exists():
            with path.open("rb") as file:
                while file.peek():
                    self._write([pickle.load(file)])  # noqa: S301  # the test's own file
        self._path = path

    def _write(self, appends: Sequence[Append]) -> Sequence[Appended | Exception]:
        outcomes = super()._write(appends)
        if self._path is not None:
            with self._path.open("ab") as file:
                for append, outcome in zip(appends, outcomes, strict=True):
                    if not isinstance(outcome, Exception):
                        pickle.dump(append._replace(forks=dict(append.forks), previous=dict(append.previous)), file)
        return outcomes


class JournalFactory(InMemoryFactory):
    """Opens the recorder for the log."""

    def application_recorder(self) -> ApplicationRecorder:
        recorder = JournalRecorder(Path(self.env.get("JOURNAL", "")))
        self._recorders.append(recorder)
        return recorder


class JournalStore(Store):
    """The store of ``journal:`` URLs. It rebuilds its projections and vectors in memory."""

    def __init__(self, url: str) -> None:
        self.name = url.removeprefix("journal://")

    def open_log(self, *, create: bool = True, tenant: str | None = None) -> ConversationLog:
        del create, tenant
        return ConversationLog({"PERSISTENCE_MODULE": f"{__name__}:JournalFactory", "JOURNAL": self.name})

    def open_projections(self, *, tenant: str | None = None) -> ProjectionStore:
        del tenant
        return SQLiteProjections(None)

    def open_vectors(self, *, tenant: str | None = None) -> VectorIndex:
        del tenant
        return InMemoryVectors()


class TestJournalRecorder(AppendContract):
    @pytest.fixture
    def recorder(self, tmp_path: Path) -> Iterator[JournalRecorder]:
        with closing(JournalRecorder(tmp_path / "journal")) as recorder:
            yield recorder


def test_a_new_scheme_opens_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEMES, "journal", JournalStore)
    url = f"journal://{tmp_path}/journal"
    assert isinstance(store_at(url), JournalStore)
    with Conversations.open(url) as conversations:
        thread = conversations.start_thread(
            "Refund", thread_id="refund", messages=[Message.user("Where is my parcel?")]
        )
        thread.fork(thread_id="what-if").append(Message.assistant("In the depot."))
    with Conversations.open(url) as conversations:
        assert [message.text for message in conversations.thread("what-if").history()][-1] == "In the depot."
        assert [each.id for each in conversations.threads()] == ["refund", "what-if"]
        assert [hit.thread_id for hit in conversations.search("depot")] == ["what-if"]
        assert conversations.verify().first_bad is None


def test_the_doctor_examines_a_store_without_schemas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEMES, "journal", JournalStore)
    url = f"journal://{tmp_path}/journal"
    with Conversations.open(url) as conversations:
        conversations.start_thread("Refund")
    checks = {each.name: each for each in examine(url, tenant="default")}
    assert {each.state for each in checks.values()} == {"ok"}
    assert "schema" not in checks
    assert checks["verified"].found.startswith("1 thread, 1 event verified")
