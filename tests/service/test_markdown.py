from __future__ import annotations

import pytest

from clew.conversations import Conversations
from clew.domain.errors import ThreadDeletedError
from clew.domain.messages import Message


def test_markdown_of_a_version_lists_its_earlier_forks(conversations: Conversations) -> None:
    thread = conversations.start_thread("Refund", thread_id="t", messages=[Message.user("One"), Message.user("Two")])
    thread.checkpoint("here", at=2)
    thread.fork(at=2, thread_id="early", title="Early")
    thread.fork(at=3, thread_id="late")
    everything = thread.markdown()
    assert everything.endswith("## Forks\n\n- `early` at version 2: Early\n- `late` at version 3: Refund\n")
    for markdown in (thread.markdown(at="here"), thread.markdown(at_message=1)):
        assert "- Version: 2\n- Messages: 1\n" in markdown
        assert "One" in markdown
        assert "Two" not in markdown
        assert markdown.endswith("## Forks\n\n- `early` at version 2: Early\n")
    thread.delete()
    with pytest.raises(ThreadDeletedError):
        thread.markdown()
