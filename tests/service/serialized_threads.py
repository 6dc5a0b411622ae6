"""Store access shared by the tests of serialized threads."""

from __future__ import annotations

import json
from typing import Any

from clew.conversations import Conversations
from clew.domain.context.events import ContextStateRecorded
from clew.domain.decider import RecordEvents
from clew.service.core import CommitOptions, commit
from clew.service.effects import run


def document_of(store: Conversations, thread_id: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(store.thread(thread_id).serialize()))
    return document


def record_state(store: Conversations, thread_id: str, provider: str, state: Any, seen: int = 0) -> None:
    note = RecordEvents((ContextStateRecorded(provider=provider, state=state, seen=seen),))
    run(commit(store._core, thread_id, note, CommitOptions()))


def positions(store: Conversations) -> int:
    return store._core.log.last_position()
