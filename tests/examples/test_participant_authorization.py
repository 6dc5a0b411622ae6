"""The example of threads that only their participants may read."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from examples.participant_authorization import opened, overview

from clew import Conversations, Message
from clew.domain.json_values import Json
from clew.errors import NotAuthorizedError

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "participant_authorization.py"


@pytest.fixture
def chats(tmp_path: Path) -> Iterator[Conversations]:
    with opened(f"sqlite:///{tmp_path}/chats.db?synchronous=OFF") as service:
        yield service


def test_users_see_only_threads_that_they_participate_in(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLE), f"sqlite:///{tmp_path}/chats.db"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[:3] == [
        "ada {'lunch': 'Lunch at noon?', 'gift': 'A gift for Bob!'} ['gift']",
        "bob {'lunch': 'Lunch at noon?'} []",
        "eve {'gift': 'A gift for Bob!'} ['gift']",
    ]
    assert done.stdout.splitlines()[3].startswith("'bob' may not read thread 'gift', if it exists.")


def test_only_a_participant_can_add_participants(chats: Conversations) -> None:
    ada = chats.acting_as("ada")
    thread = ada.start_thread(
        thread_id="lunch", labels={"participants": ["ada", "bob"]}, messages=[Message.user("Lunch?")]
    )
    bobs_thread = chats.acting_as("bob").thread("lunch")
    thread.label(participants=["ada", "eve"])
    with pytest.raises(NotAuthorizedError):
        bobs_thread.label(participants=["bob"])
    with pytest.raises(NotAuthorizedError):
        bobs_thread.append(Message.user("Am I removed?"))
    assert (overview(chats, "bob"), overview(chats, "eve")) == ({}, {"lunch": "Lunch?"})


def test_without_an_actor_no_thread_can_be_read(chats: Conversations) -> None:
    chats.acting_as("ada").start_thread(labels={"participants": ["ada"]})
    assert list(chats.threads()) == []
    wrong: list[Json] = ["ada", None, {"ada": True}]
    for participants in wrong:
        chats.acting_as("ada").start_thread(labels={"participants": participants})
    assert len(list(chats.acting_as("ada").threads())) == 1
