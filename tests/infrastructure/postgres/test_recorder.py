"""The PostgreSQL store keeps the contract."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from tests.infrastructure.recorder_contract import RecorderContract
from tests.infrastructure.recording import PATIENCE, Opener, event, held
from tests.infrastructure.waiting_contract import LostReplyContract

from clew.infrastructure.postgres.recorder import PostgresRecorder
from clew.infrastructure.recorder import Append, Recorder


class TestPostgresRecorder(RecorderContract, LostReplyContract):
    goes_on = True

    @pytest.fixture
    def opener(self, postgres: str) -> Opener:
        return lambda: PostgresRecorder.open(postgres)

    @pytest.fixture
    def break_commit(self, recorder: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
        store = recorder.datastore

        def break_next(happens: bool) -> None:  # noqa: FBT001 - the parameter is the whole of it
            def lost(write: Callable[..., object], *parts: Any) -> None:
                monkeypatch.undo()
                if happens:
                    write(*parts)
                message = "the connection is lost, says the test"
                raise psycopg.OperationalError(message)

            commit, run_alone = store.commit, store.run_alone
            monkeypatch.setattr(store, "commit", lambda *parts: lost(commit, *parts))
            monkeypatch.setattr(store, "run_alone", lambda *parts: lost(run_alone, *parts))

        return break_next

    @pytest.mark.parametrize("happens", [True, False])
    def test_answers_a_batch_alike(
        self,
        recorder: Recorder,
        break_commit: Callable[[bool], None],
        happens: bool,  # noqa: FBT001 - pytest's
    ) -> None:
        """There are no batches, and none fails: the one whose reply is lost is found there or written again."""
        with held(recorder, event("other", 1)) as writer:
            writer.future.result(PATIENCE)  # its commit is not the one to break
            break_commit(happens)
            futures = [recorder.submit(Append([event(f"s{number}", 1)])) for number in range(10)]
        assert [future.exception(PATIENCE) for future in futures] == [None] * 10
        assert [len(recorder.own_rows(f"s{number}", limit=9)) for number in range(10)] == [1] * 10
