"""The example of a custom read model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from clew import Conversations, Message

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "open_questions.py"


def test_lists_the_threads_that_wait_for_an_answer_oldest_first(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/clew.db"
    with Conversations.open(url) as conversations:
        for number in range(3):
            thread = conversations.start_thread(thread_id=f"thread-{number}")
            thread.append([Message.user(f"question {number}")])
        conversations.thread("thread-1").append(Message.assistant("answer"))
        conversations.thread("thread-0").append([Message.assistant("answer"), Message.user("and then?")])
        conversations.thread("thread-0").redact(3)
    done = subprocess.run([sys.executable, str(EXAMPLE), url], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["thread-2 question 2", "thread-0 and then?"]


def test_has_fewer_than_forty_lines() -> None:
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) < 40
