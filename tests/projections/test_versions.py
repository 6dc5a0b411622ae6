"""A shipped projection builds the same rows as long as its version is the same, even if its file changes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from tests.infrastructure.recorder_steps import wait_until

from clew import Conversations, Message
from clew.domain.projection import Change, IndexText, Projection, Recorded, Rows
from clew.infrastructure import code_digest
from clew.infrastructure.sqlite.projection_store import SQLiteProjections
from clew.projections import SHIPPED, Directory, Query, Search

ROWS = {
    ("directory", 2): ("e54c9f45e98dfc7e", "e53b913e891dd9e4"),
    ("directory", 3): ("directory-3", "b71426c03ad507a5"),
    ("directory", 4): ("directory-4", "b8f48765392a2bf6"),
    ("directory", 5): ("directory-5", "443e8f7cb8ccf53d"),
    ("directory", 6): ("directory-6", "443e8f7cb8ccf53d"),
    ("search", 2): ("search-2", "2b7e5ac9ad661689"),
    ("search", 3): ("search-3", "2b7e5ac9ad661689"),
    ("search", 4): ("search-4", "d34b4dfc9147aa90"),
    ("audit", 2): ("789a87746c675c6d", "a3e9ff6bcf269105"),
    ("audit", 3): ("audit-3", "3d0243bedca39bf6"),
    ("audit", 4): ("audit-4", "8a10baaa1c3d1429"),
    ("usage", 2): ("db49d3be8c8891ee", "21560433454bc638"),
    ("usage", 3): ("usage-3", "b1f202641c078bd0"),
    ("usage", 4): ("usage-4", "41a4dacb024ca243"),
    ("usage", 5): ("usage-5", "60cffea6eb48e081"),
    ("memory", 1): ("b64242db086fd8df", "3087cb39cf6a5c67"),
    ("memory", 2): ("memory-2", "7af45d7e2869e6c6"),
    ("approvals", 1): ("approvals-1", "1853175ab1985fee"),
    ("approvals", 2): ("approvals-2", "74aecc1d9a897e88"),
}
"""For each name and version: the digest of the code, which stores record, and the digest of its rows.

A projection that builds other rows gets a higher version, and a new line here. Existing lines stay.
"""

_USAGE = {"input_tokens": 3, "output_tokens": 4}
_QUESTION = {"role": "user", "author": "Ann", "contents": [{"type": "text", "text": "Two teapots"}]}
_ANSWER = {"role": "assistant", "contents": [{"type": "reasoning", "text": "why"}], "metadata": {"usage": _USAGE}}
_CALL = {"type": "function-call", "call_id": "1", "name": "look", "arguments": {"deep": [1, None, "er"]}}
_RESULT = {"type": "function-result", "call_id": "1", "name": "look", "result": {"found": [True, 2.5]}}
_MEDIA = {"type": "data", "uri": "data:,x", "media_type": "text/plain"}
_IMPORTED = {"openai": {"patch": {"set": {"usage": {"prompt_tokens": 5, "completion_tokens": 6}}}}}

_CALLER = {"thread_id": "e", "run_id": "run-22", "message": 4, "index": 0}

_EVENTS: tuple[tuple[str, str, dict[str, Any] | None], ...] = (
    ("a", "thread-started", {"title": "A", "metadata": {"x": 1}, "labels": {"topic": "tea", "tier": {"b": 1, "a": 2}}}),
    ("a", "message-appended", {"message": _QUESTION}),
    ("a", "message-appended", {"message": _ANSWER}),
    ("a", "message-appended", {"message": {"role": "assistant", "contents": [_CALL, _MEDIA]}}),
    ("a", "message-appended", {"message": {"role": "tool", "contents": [_RESULT], "source": _IMPORTED}}),
    ("a", "checkpoint-made", {"name": "mark", "at": 2}),
    ("a", "thread-labelled", {"labels": {"topic": "x" * 300, "new": [1], "tier": None}}),
    ("b", "thread-forked", {"parent_id": "a", "parent_version": 6, "labels": {"topic": "fork"}}),
    ("b", "model-called", {}),
    ("b", "model-answered", {"usage": _USAGE}),
    ("b", "tool-started", {}),
    ("b", "tool-failed", {}),
    ("b", "context-provided", {"facts": [{"scope": "user", "fact": "f1"}, {"scope": "user", "fact": "f2"}]}),
    ("c", "thread-started", {"source": {"id": "imported"}, "kind": "remote"}),
    ("c", "message-appended", None),
    ("c", "unheard-of", None),
    ("d", "unheard-of", None),
    ("a", "thread-suspended", {}),
    ("a", "thread-resumed", {}),
    ("b", "thread-ended", {}),
    ("c", "thread-deleted", {}),
)


_MORE: dict[str, tuple[tuple[str, str, dict[str, Any] | None], ...]] = {
    "approvals": (
        *(("e", "approval-requested", {}),) * 3,
        *(("e", "approval-given", {"request": 1}),) * 2,
        *(("f", "approval-requested", {}),) * 2,
        ("f", "run-abandoned", {}),
        *((thread_id, "approval-requested", {}) for thread_id in "ghij"),
        ("g", "history-rewound", {"to": 1}),
        ("h", "thread-ended", {}),
        ("i", "thread-deleted", {}),
    ),
    "usage": (
        ("e", "run-started", {"agent": {"id": "outer"}}),
        ("e", "child-thread", {"message": 4, "index": 0, "thread_id": "f"}),
        ("f", "run-started", {"agent": {"id": "inner"}, "caller": _CALLER}),
        ("f", "model-answered", {"usage": _USAGE}),
        ("g", "run-started", {"agent": {"id": "inner"}, "caller": _CALLER}),
        ("g", "model-answered", {"usage": _USAGE}),
    ),
}
"""Events for one projection only, in versions for which the line in ROWS has them."""


def recorded_events(name: str = "") -> list[Recorded]:
    events: list[Recorded] = []
    versions: dict[str, int] = {}
    for position, (thread_id, type_, data) in enumerate((*_EVENTS, *_MORE.get(name, ())), 1):
        version = versions[thread_id] = versions.get(thread_id, 0) + 1
        time, hash_ = 1_700_000_000_000_000 + position * 10_000_000_000, bytes([position]) * 32
        events.append(
            Recorded(
                position, "tenant", "thread", thread_id, version, type_, time, version // 2, data, 100 + position,
                hash_, f"event-{position}", f"actor-{position % 3}", f"run-{position}",
            )
        )  # fmt: skip
    memory = events[0]._replace(kind="memory", thread_id="scope", type="fact-stated", position=len(events) + 1)
    memory = memory._replace(on_behalf_of="user-1")
    return [*events, memory]


def digest_of_rows(projection: Projection) -> str:
    """The digest of all rows and texts that a projection builds from the events."""
    store = SQLiteProjections(None)
    texts: list[Any] = []
    with store.session(0) as session:
        built = session.begin(projection, "code", live=True)
        for event in recorded_events(projection.name):
            if projection.types is not None and event.type not in projection.types:
                continue
            rows = session.rows(built, projection)
            changes = list(projection.project(event, rows))
            texts += [tuple(change) for change in changes if isinstance(change, IndexText)]
            rows.apply(event.position, event.tenant, changes)
    rows_of_tables = [store.select(projection.name, Query(table.name, order=table.key)) for table in projection.tables]
    store.close()
    return sha256(json.dumps([rows_of_tables, texts], sort_keys=True).encode()).hexdigest()[:16]


@pytest.mark.parametrize("projection", SHIPPED, ids=lambda projection: projection.name)
def test_a_version_always_builds_the_same_rows(projection: Projection) -> None:
    key = projection.name, projection.version
    digests = code_digest.code(projection), digest_of_rows(projection)
    assert key in ROWS, f"Add to ROWS: {key}: {digests},"
    assert digests == ROWS[key], f"Raise the version of {projection.name!r}, and add a line to ROWS. This one stays."


def test_every_version_has_a_different_digest() -> None:
    assert len({code for code, _ in ROWS.values()}) == len(ROWS)


def test_a_subclass_of_a_shipped_projection_is_identified_by_its_own_file() -> None:
    class Mine(Directory):
        name = "mine"

    assert code_digest.code(Mine()) not in {code for code, _ in ROWS.values()}


class SearchVersion1(Search):
    """Version 1, which indexes the author's name as a word of the message."""

    version = 1

    def project(self, event: Recorded, rows: Rows) -> Iterable[Change]:
        for change in super().project(event, rows):
            author = event.data and event.data["message"].get("author")
            yield change._replace(text=f"{author}\n{change.text}") if isinstance(change, IndexText) else change


def test_an_index_with_names_of_authors_is_rebuilt_without_them(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/clew.db"
    with Conversations.open(url, projections=[Directory(), SearchVersion1()]) as before:
        before.start_thread(messages=[Message.user("Two teapots", author="Maeve")])
        assert len(before.search("maeve")) == len(before.search("teapots")) == 1
    with Conversations.open(url) as conversations:
        wait_until(lambda: conversations.search("maeve") == [])
        (hit,) = conversations.search("teapots")
        assert (hit.author, "".join(part.text for part in hit.snippet)) == ("Maeve", "Two teapots")
