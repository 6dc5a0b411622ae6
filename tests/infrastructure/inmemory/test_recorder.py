"""The in-memory store keeps the contract."""

from __future__ import annotations

import pytest
from tests.infrastructure.recorder_contract import RecorderContract
from tests.infrastructure.recorder_steps import Opener, append, event, in_forked_child, last_version

from clew.infrastructure.inmemory.recorder import InMemoryRecorder


class TestMemoryRecorder(RecorderContract):
    @pytest.fixture
    def opener(self) -> Opener:
        return InMemoryRecorder


def test_a_forked_child_gets_a_copy_of_the_events() -> None:
    recorder = InMemoryRecorder()
    append(recorder, event("a", 1))
    assert in_forked_child(lambda: append(recorder, event("a", 2))) == 0
    assert last_version(recorder, "a") == 1
    recorder.close()
