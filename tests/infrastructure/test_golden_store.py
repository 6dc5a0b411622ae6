"""A store of Clew 0.1 is migrated, opens, verifies, and exports the same bytes as with Clew 0.1.

It has forks, rewinds, redactions, a deleted thread, runs with a tool, a memory scope and projections.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clew import Conversations
from clew.infrastructure.stores import store_at

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A copy of the store, which is migrated, because it has an older schema."""
    for name in ("store-0.1.db", "store-0.1.db.projections"):
        shutil.copy(GOLDEN / name, tmp_path)
    url = f"sqlite:///{tmp_path}/store-0.1.db"
    store_at(url).migrate()
    return url


def test_a_store_of_clew_0_1_can_be_verified_listed_and_searched(url: str) -> None:
    with Conversations.open(url) as conversations:
        verdict = conversations.verify()
        assert (verdict.threads, verdict.events, verdict.first_bad) == (5, 191, None)
        listed = {each.id: (each.status, each.version) for each in conversations.threads()}
        assert listed["refund"] == ("active", 159)
        assert [hit.thread_id for hit in conversations.search("order")] == ["refund"]
        refund = conversations.thread("refund")
        assert [each.text for each in refund.history()] == [
            "Where is my order 4711?",
            "It was sent on Monday.",
            "another way",
        ]
        assert refund.history(at=4).messages[-1].message is None


def test_a_store_of_clew_0_1_exports_the_same_bytes(url: str) -> None:
    command = [sys.executable, "-m", "clew", "--db", url, "export", "--format", "clew", "--definitions"]
    done = subprocess.run(command, capture_output=True, check=True)
    assert done.stdout == (GOLDEN / "store-0.1.jsonl").read_bytes()


def test_a_store_of_clew_0_1_can_be_written(url: str) -> None:
    with Conversations.open(url) as conversations:
        fork = conversations.thread("refund").fork(at="asked")
        assert len(fork.history()) == 2
        assert conversations.verify().first_bad is None
