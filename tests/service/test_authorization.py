"""Authorization: the application's function decides about everything that leaves the service."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import closing
from io import BytesIO
from typing import Any, NamedTuple

import pytest
from tests.infrastructure.recorder_steps import PATIENCE
from tests.service.grants import Grants

from clew import Conversations, Message
from clew.domain.formats.clew_jsonl import End, Header, write_line
from clew.domain.formats.conversation_import import Item
from clew.domain.memory.events import Provenance
from clew.domain.ports import StreamInfo
from clew.domain.projection import Query
from clew.errors import NotAuthorizedError, UnknownThreadError
from clew.infrastructure.inmemory.recorder import InMemoryRecorder
from clew.service import thread_queries
from clew.service.usage_queries import UsageCounts


class Opened(NamedTuple):
    """A service as seen by an operator and by Ada, and the grants that decide what Ada may read."""

    grants: Grants
    operator: Conversations
    ada: Conversations

    def share(self, *threads: str) -> None:
        self.grants.threads["ada"] = set(threads)


@pytest.fixture
def opened(url: str) -> Iterator[Opened]:
    grants = Grants()
    with Conversations.open(url, authorize=grants) as service:
        yield Opened(grants, service.acting_as("operator"), service.acting_as("ada"))


def say(service: Conversations, thread_id: str, *texts: str) -> Any:
    return service.start_thread(thread_id=thread_id, messages=[Message.user(text) for text in texts])


def test_an_unreadable_thread_looks_like_a_missing_one(opened: Opened) -> None:
    say(opened.operator, "theirs", "Hello")
    calls: list[Callable[[str], Any]] = [
        opened.ada.thread,
        opened.ada.verify,
        opened.ada.diff,
        lambda thread_id: list(opened.ada.export(thread_id)),
        lambda thread_id: list(opened.ada.export_events(thread_id)),
        lambda thread_id: list(opened.ada.tree(thread_id)),
        lambda thread_id: list(opened.ada.audit(thread=thread_id)),
        lambda thread_id: list(opened.ada.threads(after=thread_id)),
        lambda thread_id: opened.ada.usage(thread=thread_id),
        lambda thread_id: opened.ada.search("word", thread=thread_id),
    ]
    for call in calls:
        messages = []
        for thread_id in ("theirs", "missing"):
            with pytest.raises(NotAuthorizedError) as refused:
                call(thread_id)
            assert (refused.value.actor, refused.value.thread_id) == ("ada", thread_id)
            messages.append(str(refused.value).replace(thread_id, "…"))
            assert vars(pickle.loads(pickle.dumps(refused.value))) == vars(refused.value)  # noqa: S301  # our own
        assert messages[0] == messages[1]
    opened.share("missing")
    with pytest.raises(UnknownThreadError):
        opened.ada.thread("missing")


def test_an_actor_reads_and_writes_granted_threads(opened: Opened) -> None:
    opened.share("mine")
    thread = say(opened.ada, "mine", "Hello")
    thread.append(Message.user("Again"))
    assert [message.text for message in opened.ada.thread("mine").history()] == ["Hello", "Again"]
    assert opened.grants.asked[-1] == ("ada", "read", "mine")
    assert opened.ada.find("mi") == "mine"
    thread.label(topic="mine")
    thread.fork(thread_id="branch")
    assert thread.forks() == []  # the function decides, not the authorship
    opened.share("mine", "branch")
    assert [each.id for each in thread.forks()] == ["branch"]


def test_an_actor_may_start_a_thread_without_a_grant(opened: Opened) -> None:
    opened.ada.open_thread("new")
    with pytest.raises(NotAuthorizedError):
        opened.ada.open_thread("new")
    assert opened.operator.thread("new").version == 1


def test_pages_skip_unreadable_threads(opened: Opened) -> None:
    ids = [f"t{number:03}" for number in range(60)]
    for thread_id in ids:
        opened.operator.start_thread(
            thread_id=thread_id, labels={"kind": "x"}, messages=[Message.user(f"word {thread_id}")]
        )
    mine = ids[5::9]
    opened.share(*mine)
    for page in (
        opened.ada.threads(limit=4),
        opened.ada.threads(limit=4, labels={"kind": "x"}),
        opened.ada.threads(limit=4, order="updated"),
    ):
        assert [each.id for each in page] == mine[:4]
    rest = [each.id for each in opened.ada.threads(limit=4, after=mine[3])]
    assert rest == mine[4:]
    assert [each.id for each in opened.ada.threads(limit=2, newest_first=True)] == mine[:-3:-1]
    hits = opened.ada.search("word", limit=4)
    assert [hit.thread_id for hit in hits] == mine[:-5:-1]
    assert [hit.thread_id for hit in opened.ada.search("word", limit=9, before=hits[-1].position)] == mine[-5::-1]
    assert [entry.thread_id for entry in opened.ada.audit(limit=4, type="thread-started")] == mine[:4]
    assert [each["id"] for each in opened.ada.export()] == mine


def test_a_prefix_needs_to_be_unique_among_readable_threads(opened: Opened) -> None:
    for number in range(20):
        say(opened.operator, f"ab{number:02}")
    opened.share("ab11")
    assert opened.ada.find("a") == "ab11"
    say(opened.operator, "ab")
    assert opened.ada.find("ab") == "ab11"  # Ada may not read the thread "ab"


def test_skips_many_unreadable_threads_in_few_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    pages: list[int] = []
    streams = InMemoryRecorder.streams

    def counted(store: InMemoryRecorder, **options: Any) -> list[StreamInfo]:
        pages.append(options["limit"])
        return streams(store, **options)

    monkeypatch.setattr(InMemoryRecorder, "streams", counted)
    with Conversations.open("memory:", authorize=lambda actor, _, __: actor == "operator") as conversations:
        operator = conversations.acting_as("operator")
        for number in range(200):
            operator.start_thread(thread_id=f"a{number}")
        pages.clear()
        with pytest.raises(UnknownThreadError):
            conversations.acting_as("ada").find("a")
    assert 1 < len(pages) < 10


def test_a_grant_on_a_fork_includes_inherited_messages(opened: Opened) -> None:
    parent = say(opened.operator, "parent", "inherited word")
    fork = parent.fork(thread_id="fork")
    fork.append(Message.user("own word"))
    parent.append(Message.user("later word"))
    opened.share("fork")
    seen = opened.ada.thread("fork")
    assert [message.text for message in seen.history()] == ["inherited word", "own word"]
    hits = opened.ada.search("word")
    assert [(hit.thread_id, hit.version, hit.forks, hit.fork_count) for hit in hits] == [
        ("fork", 4, (), 0),
        ("fork", 2, (), 0),
    ]
    assert opened.ada.search("word", thread="fork") == hits
    assert [(each.thread.id, each.depth) for each in opened.ada.tree()] == [("fork", 0)]
    assert [(each.thread.id, each.depth) for each in opened.ada.tree("fork")] == [("fork", 0)]
    (conversation,) = opened.ada.export(forks=True)
    assert len(conversation["messages"]) == 2  # type: ignore[arg-type]  # a list
    assert b"later word" not in repr(seen.serialize()).encode()


def test_exports_events_of_a_fork_only_with_readable_ancestors(opened: Opened) -> None:
    parent = say(opened.operator, "parent", "inherited word")
    parent.fork(thread_id="fork")
    say(opened.operator, "other", "Hello")
    opened.share("fork", "other")
    lines = b"".join(opened.ada.export_events())
    assert b"/other" in lines
    assert b"parent" not in lines
    assert b"/fork" not in lines
    with pytest.raises(NotAuthorizedError) as refused:
        list(opened.ada.export_events("fork"))
    assert refused.value.thread_id == "parent"
    opened.share("fork", "parent")
    assert list(opened.ada.export_events()) == list(opened.ada.export_events("fork"))


def forged(parent: Any) -> bytes:
    """Return a file with a fork but without its parent, as an attacker who knows the hash at the cut would write it."""
    with Conversations.open("memory:") as elsewhere:
        elsewhere.restore_thread(parent.serialize()).fork(thread_id="forged")
        own = [line for line in elsewhere.export_events("forged") if b'"stream":"default/thread/forged"' in line]
    return b"".join([write_line(Header()), *own, write_line(End(1, len(own)))])


def test_refuses_to_import_a_fork_of_an_unreadable_thread(opened: Opened) -> None:
    file = forged(say(opened.operator, "parent", "Hello"))
    opened.share("forged")
    with pytest.raises(NotAuthorizedError) as refused:
        opened.ada.import_events(BytesIO(file))
    assert (refused.value.action, refused.value.thread_id) == ("read", "parent")
    with pytest.raises(UnknownThreadError):
        opened.operator.thread("forged")
    assert opened.operator.import_events(BytesIO(file)).events == 1


def test_a_repeated_import_does_not_reveal_an_unreadable_thread(opened: Opened) -> None:
    item = Item("", None, {"id": "source", "messages": [{"role": "user", "content": "Hello"}]})
    assert opened.operator.import_items([item]).threads == 1
    report = opened.ada.import_items([item])
    assert (report.threads, report.skipped, len(report.failed)) == (0, 0, 1)
    (summary,) = opened.operator.threads()
    opened.share(summary.id)
    assert opened.ada.import_items([item]).skipped == 1


def test_restores_a_document_only_with_access_to_its_stored_threads(opened: Opened) -> None:
    parent = say(opened.operator, "parent", "Hello")
    document = parent.fork(thread_id="fork").serialize()
    for granted in ({"fork"}, {"fork", "parent"}):
        opened.share(*granted)
        assert opened.ada.restore_thread(document).id == "fork"
    opened.share("parent")
    with pytest.raises(NotAuthorizedError):
        opened.ada.restore_thread(document)
    opened.share()
    assert opened.ada.restore_thread(document, as_new=True).id not in {"fork", "parent"}
    with Conversations.open("memory:") as elsewhere:
        later = elsewhere.restore_thread(parent.serialize()).fork(thread_id="later").serialize()
    opened.share("later")
    with pytest.raises(NotAuthorizedError) as refused:
        opened.ada.restore_thread(later)
    assert refused.value.thread_id == "parent"
    opened.share("parent")
    assert opened.ada.restore_thread(later).id == "later"


def test_importing_memory_needs_access_to_memory(opened: Opened) -> None:
    opened.operator.memory("user/42").remember("Likes tea")
    file = b"".join(opened.operator.export_events())
    with pytest.raises(NotAuthorizedError, match="may not use memory"):
        opened.ada.import_events(BytesIO(file))
    opened.grants.open_actions = {"memory"}
    assert opened.ada.import_events(BytesIO(file)).events == 0


def test_each_read_names_its_action(opened: Opened) -> None:
    say(opened.operator, "mine", "word").fork(thread_id="fork")
    opened.share("mine", "fork")
    opened.grants.open_actions = {"audit", "export", "memory", "rows"}
    thread = opened.ada.thread("mine")
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("read", thread.history),
        ("read", lambda: thread.append(Message.user("More"))),
        ("read", lambda: opened.ada.diff("mine", "fork")),
        ("list", lambda: list(opened.ada.threads())),
        ("list", lambda: list(opened.ada.tree("mine"))),
        ("list", lambda: opened.ada.find("mi")),
        ("search", lambda: opened.ada.search("word")),
        ("search", lambda: opened.ada.search("word", thread="mine")),
        ("subscribe", lambda: opened.ada.subscribe().wait(0)),
        ("subscribe", lambda: thread.subscribe().wait(0)),
        ("export", thread.serialize),
        ("export", lambda: list(opened.ada.export())),
        ("export", lambda: list(opened.ada.export("mine"))),
        ("export", lambda: list(opened.ada.export_events())),
        ("audit", lambda: list(opened.ada.audit(thread="mine"))),
        ("audit", lambda: opened.ada.usage(thread="mine")),
        ("audit", opened.ada.verify),
        ("memory", lambda: opened.ada.memory("user/42")),
        ("rows", opened.ada.projections),
    ]
    for action, call in calls:
        opened.grants.asked.clear()
        call()
        assert {(actor, asked) for actor, asked, _ in opened.grants.asked} == {("ada", action)}


def test_usage_counts_only_readable_threads(opened: Opened) -> None:
    for thread_id in ("a", "b", "c"):
        say(opened.operator, thread_id, "Hello", "Again").fork(thread_id=f"{thread_id}-fork")
    opened.share("a", "a-fork", "c")
    (total,) = opened.ada.usage()
    assert (total.threads, total.forks, total.messages) == (3, 1, 4)
    assert {each.thread_id for each in opened.ada.usage(by="thread")} == {"a", "a-fork", "c"}
    (day,) = opened.ada.usage(by="day")
    assert day._replace(day=None) == total
    opened.share()
    assert opened.ada.usage() == [UsageCounts(None, None, 0, 0, 0, 0, 0, 0, 0)]


def test_a_subscription_skips_unreadable_threads(opened: Opened) -> None:
    theirs, mine = say(opened.operator, "theirs"), say(opened.operator, "mine")
    opened.share("mine")
    for _ in range(3):
        theirs.append([Message.user("theirs")] * 400)
    mine.append(Message.user("mine"))
    with closing(opened.ada.subscribe()) as subscription:
        first, second = subscription.wait(PATIENCE), subscription.wait(PATIENCE)
        assert first is not None
        assert second is not None
        assert [(first.thread_id, first.version), (second.thread_id, second.version)] == [("mine", 1), ("mine", 2)]
        assert len(opened.grants.asked) < 20  # once a page for each thread
        assert subscription.wait(0) is None
        theirs.append(Message.user("theirs"))
        mine.append(Message.user("as it comes"))
        third = subscription.wait(PATIENCE)
        assert third is not None
        assert (third.thread_id, third.version) == ("mine", 3)


def test_a_subscription_ends_when_access_is_revoked(opened: Opened) -> None:
    thread = say(opened.operator, "mine", "Hello")
    opened.share("mine")
    with closing(opened.ada.thread("mine").subscribe()) as subscription:
        assert subscription.wait(0) is not None
        assert subscription.wait(0) is not None
        opened.share()
        thread.append(Message.user("not for ada"))
        with pytest.raises(NotAuthorizedError):
            subscription.wait(0)


def test_an_event_stream_ends_when_access_is_revoked(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_queries, "PAGE", 2)
    say(opened.operator, "thread", *("word" for _ in range(5)))
    opened.share("thread")
    events, replayed = opened.ada.thread("thread").events(), opened.ada.thread("thread").replay()
    assert [next(events).version, next(events).version, next(replayed)[0].version] == [1, 2, 1]
    opened.share()
    with pytest.raises(NotAuthorizedError):
        next(events)
    assert next(replayed)[0].version == 2  # from the page that is already read
    with pytest.raises(NotAuthorizedError):
        next(replayed)


def test_redacting_needs_access_to_the_owning_thread(opened: Opened) -> None:
    parent = say(opened.operator, "parent", "Hello")
    parent.fork(thread_id="fork")
    opened.share("fork")
    with pytest.raises(NotAuthorizedError) as refused:
        opened.ada.thread("fork").redact(2)
    assert refused.value.thread_id == "parent"
    assert not parent.history().messages[0].redacted


def test_a_fact_shows_its_message_only_with_access_to_the_thread(opened: Opened) -> None:
    thread = say(opened.operator, "theirs", "I like tea")
    opened.operator.memory("user/42").remember("Likes tea", source=Provenance(thread=thread.id, version=2))
    opened.grants.open_actions = {"memory"}
    scope = opened.ada.memory("user/42")
    (fact,) = scope.facts()
    assert fact.learned is not None
    assert (fact.learned.thread, scope.why(fact).message) == ("theirs", None)
    opened.share("theirs")
    why = scope.why(fact)
    assert why.message is not None
    assert why.message.text == "I like tea"


def test_reads_without_a_thread_are_authorized_without_one(opened: Opened) -> None:
    say(opened.operator, "mine", "Hello")
    opened.operator.memory("user/42").remember("Likes tea")
    opened.share("mine")
    assert [entry.thread_id for entry in opened.ada.audit()] == ["mine", "mine"]
    assert b"Likes tea" not in b"".join(opened.ada.export_events())
    opened.grants.open_actions = {"rows", "audit", "export"}
    assert len(opened.ada.rows("directory", Query("thread"))) == 1
    assert opened.ada.verify().first_bad is None
    assert {entry.scope for entry in opened.ada.audit()} == {None, "user/42"}
    assert b"Likes tea" in b"".join(opened.ada.export_events())
    with pytest.raises(NotAuthorizedError, match="may not use memory"):
        opened.ada.memory("user/42")
