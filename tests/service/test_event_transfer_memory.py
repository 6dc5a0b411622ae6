"""Memory scopes move with the threads of their tenant, and the copy reads the same."""

from __future__ import annotations

import io

import pytest

from clew.conversations import Conversations
from clew.domain.decider_state import SNAPSHOT_EVERY
from clew.domain.errors import ImportFormatError
from clew.domain.formats.clew_jsonl import Entry
from clew.domain.formats.event_import import check_stream
from clew.domain.memory.events import Provenance
from clew.domain.messages import Message
from clew.domain.ports import Fork, Row
from clew.service.effects import run
from clew.service.memory import scope_queries
from clew.service.memory.scope_view import Scope, ThreadAccess


def fill(conversations: Conversations) -> str:
    """Write to two scopes and a thread in turns; return the id of a fork that reads memory as of its cut."""
    scope, thread = conversations.memory("user/42"), conversations.start_thread()
    message = thread.append(Message.user("I like tea"))
    tea = scope.remember("Likes tea", key="drink", source=Provenance(thread=thread.id, version=message.version))
    thread.append(Message.user("Now I like coffee"))
    fork = thread.fork(memory="as-of")
    scope.supersede(tea, "Likes coffee")
    scope.promote(scope.facts()[0], to=conversations.memory("app"))
    thread.redact(message)
    return fork.id


def exported(conversations: Conversations) -> bytes:
    return b"".join(conversations.export_events())


def test_an_export_of_all_threads_includes_memory_scopes(conversations: Conversations) -> None:
    fork = fill(conversations)
    with Conversations.open("memory:") as copy:
        report = copy.import_events(io.BytesIO(exported(conversations)))
        assert (report.threads, report.failed, report.torn) == (2, [], False)
        for name in ("user/42", "app"):
            mine, theirs = conversations.memory(name), copy.memory(name)
            facts = mine.facts(history=True)
            assert theirs.facts(history=True) == facts
            assert theirs.facts(at=2) == mine.facts(at=2)
            assert [theirs.why(fact) for fact in facts] == [mine.why(fact) for fact in facts]
        seen = run(scope_queries.facts(Scope(copy._core, "user/42", learner=ThreadAccess(fork))))
        assert [fact.text for fact in seen] == ["Likes tea"]
        assert list(copy.scopes()) == list(conversations.scopes())
        assert exported(copy) == exported(conversations)
        assert copy.verify().first_bad is None
        again = copy.import_events(io.BytesIO(exported(conversations)))
        assert (again.events, again.threads, again.skipped) == (0, 0, report.events)


def test_a_copied_scope_continues_at_its_version(conversations: Conversations) -> None:
    scope = conversations.memory("user/42")
    for number in range(SNAPSHOT_EVERY + 1):
        scope.remember(str(number))
    with Conversations.open("memory:") as copy:
        copy.import_events(io.BytesIO(exported(conversations)))
        added = copy.memory("user/42").remember("more")
        assert added.version == SNAPSHOT_EVERY + 3
        scope.remember("other")
        [refused] = copy.import_events(io.BytesIO(exported(conversations))).failed
        assert f"version {SNAPSHOT_EVERY + 3}" in str(refused.error)
        assert copy.memory("user/42").facts()[-1] == added


def test_an_export_of_named_threads_has_no_scopes(conversations: Conversations) -> None:
    fork = fill(conversations)
    lines = b"".join(conversations.export_events(fork))
    assert b"/memory/" not in lines
    assert b"/memory/" in exported(conversations)


def test_excludes_and_refuses_scopes_of_other_tenants(shared_url: str) -> None:
    with Conversations.open(shared_url, tenant="a") as a, Conversations.open(shared_url, tenant="b") as b:
        fill(a)
        assert b"/memory/" not in exported(b)
        report = b.import_events(io.BytesIO(exported(a)))
        assert "tenant 'a'" in str(report.failed[0].error)
        assert list(b.scopes()) == []


@pytest.mark.parametrize(
    ("stream", "fork"),
    [
        ("default/memory/a", Fork("default/thread/b", 1)),
        ("default/thread/a", Fork("default/memory/b", 1)),
        ("default/chat/a", None),
        ("default/memory/a/b", None),
        ("default/memory/", None),
    ],
)
def test_refuses_unknown_streams_and_forked_scopes(stream: str, fork: Fork | None) -> None:
    row = Row(0, stream, 2, "fact-remembered", b"", b"", None)
    with pytest.raises(ImportFormatError, match="is not the name of a thread"):
        check_stream(Entry(row, fork), "default")
