"""Authorization by filters: what Clew looks up by their labels is what it would find by checking each thread."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clew import Conversations, Engine, Message
from clew.domain.json_values import Json
from clew.errors import InvalidAuthorizeError, InvalidContentError, NotAuthorizedError, UnknownThreadError
from clew.service.usage_queries import By
from clew.types import ThreadFilter

VALUES: list[Json] = ["ada", "bob", 1, True, ["ada"]]

Step = tuple[int, str, Json]
"""The number of a thread, a label, and its new value; None removes it."""


class Threads(NamedTuple):
    """Threads as numbers: the parent of each, and changes of their labels, made after all exist."""

    parents: list[int | None]
    first: list[dict[str, Json]]
    steps: list[Step]


labels = st.sampled_from(["owner", "team"])
values = st.sampled_from(VALUES)


@st.composite
def threads(draw: st.DrawFn) -> Threads:
    numbers = range(draw(st.integers(1, 8)))
    parents = [draw(st.none() | st.integers(0, number - 1)) if number else None for number in numbers]
    first = [draw(st.dictionaries(labels, values)) for _ in numbers]
    steps = draw(st.lists(st.tuples(st.sampled_from(numbers), labels, st.none() | values), max_size=6))
    return Threads(parents, first, steps)


@st.composite
def filters(draw: st.DrawFn) -> ThreadFilter:
    named = draw(st.dictionaries(labels, values, max_size=1))
    any_of = draw(st.dictionaries(labels, st.lists(values, max_size=3), max_size=1))
    prefix = draw(st.sampled_from(["", "t", "t1", "x"]))
    return ThreadFilter(named, any_of=any_of, id_prefix=prefix or ("" if named or any_of else "t"))


def thread_id_of(number: int) -> str:
    return f"t{number % 2}-{number}"


def write(service: Conversations, made: Threads) -> None:
    for number, parent in enumerate(made.parents):
        id_ = thread_id_of(number)
        if parent is None:
            service.start_thread(thread_id=id_, labels=made.first[number])
        else:
            fork = service.thread(thread_id_of(parent)).fork(thread_id=id_)
            if made.first[number]:
                fork.label(made.first[number])
        service.thread(id_).append(Message.user(f"word {number}"))
    for number, name, value in made.steps:
        service.thread(thread_id_of(number)).label({name: value})


class Rule:
    """Returns a filter, or with ``alone`` what the filter says about each thread; an operator may do everything."""

    def __init__(self, allowed: ThreadFilter) -> None:
        self.allowed = allowed
        self.alone = False
        self.operator: Conversations | None = None

    def __call__(self, actor: str | None, action: str, thread: str | None) -> bool | ThreadFilter:
        del action
        if actor == "operator":
            return True
        if not self.alone:
            return self.allowed
        if thread is None or self.operator is None:
            return False
        try:
            return self.allowed.matches(thread, self.operator.thread(thread).summary().labels)
        except UnknownThreadError:
            return False


def reads(service: Conversations, made: Threads) -> Iterator[Any]:
    """What an actor sees through every operation that reads many threads."""
    for order in ("begun", "updated"):
        for newest_first in (False, True):
            query: dict[str, Any] = {"order": order, "newest_first": newest_first}
            yield list(service.threads(**query))
            yield list(service.threads(**query, limit=2))
            yield list(service.threads(**query, labels={"owner": "ada"}))
            yield list(service.threads(**query, labels={"team": 1}, status="active"))
            yield list(service.threads(**query, parent=thread_id_of(0)))
    yield list(service.tree())
    yield list(service.tree(newest_first=True))
    yield service.search("word", limit=99)
    yield service.search("word", limit=2)
    yield list(service.audit())
    yield list(service.audit(newest_first=True, limit=3))
    yield list(service.audit(type="thread-labelled"))
    for by in get_args(By):
        yield service.usage(by=by)
    yield list(service.export(forks=True))
    with closing(service.subscribe()) as subscription:
        yield list(iter(lambda: subscription.wait(0), None))
    for number in range(len(made.parents)):
        id_ = thread_id_of(number)
        calls: list[Callable[[str], Any]] = [
            lambda id_: service.thread(id_).history(),
            lambda id_: service.thread(id_).forks(),
            lambda id_: list(service.tree(id_)),
            service.find,
            lambda id_: service.search("word", thread=id_),
            lambda id_: list(service.audit(thread=id_)),
            lambda id_: service.usage(thread=id_),
        ]
        for call in calls:
            try:
                yield call(id_)
            except (NotAuthorizedError, UnknownThreadError) as error:
                yield str(error)


def check(url: str, made: Threads, allowed: ThreadFilter) -> list[Any]:
    """Compare what an actor sees, and return it."""
    rule = Rule(allowed)
    with Conversations.open(url, authorize=rule) as service:
        rule.operator = service.acting_as("operator")
        write(rule.operator, made)
        filtered = list(reads(service, made))
        rule.alone = True
        assert filtered == list(reads(service, made))
    return filtered


@pytest.mark.parametrize(("few", "separately"), [(2_000, 50), (2_000, 2), (2, 1), (0, 0)])
@settings(max_examples=math.ceil(settings().max_examples / 2))  # for each of the four
@given(made=threads(), allowed=filters())
def test_a_filter_shows_what_checking_each_thread_shows(
    few: int, separately: int, made: Threads, allowed: ThreadFilter
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clew.service.thread_directory.FEW", few)
        for module in ("audit_trail", "message_search"):
            patch.setattr(f"clew.service.{module}.SEPARATELY", separately)
        check("memory:", made, allowed)


FAMILY = Threads(
    parents=[None, 0, 0, None, 1, None],
    first=[{"owner": "bob"}, {"owner": "ada"}, {}, {"owner": "ada", "team": 1}, {"owner": "ada"}, {"team": True}],
    steps=[(3, "owner", None), (5, "owner", "ada"), (4, "team", 1)],
)


@pytest.mark.parametrize(
    ("allowed", "seen"),
    [
        (ThreadFilter({"owner": "ada"}), ["t1-1", "t0-4", "t1-5"]),
        (ThreadFilter(any_of={"team": [1, True]}), ["t1-3", "t0-4", "t1-5"]),
        (ThreadFilter({"owner": "ada"}, any_of={"team": [1]}), ["t0-4"]),
        (ThreadFilter(id_prefix="t1"), ["t1-1", "t1-3", "t1-5"]),
        (ThreadFilter(any_of={"team": []}), []),
    ],
)
def test_every_store_applies_filters(any_url: str, allowed: ThreadFilter, seen: list[str]) -> None:
    first, *_ = check(any_url, FAMILY, allowed)
    assert [each.id for each in first] == seen


async def listed(url: str) -> None:
    def authorize(actor: str | None, action: str, thread: str | None) -> ThreadFilter:
        del action, thread
        return ThreadFilter({"owner": actor})

    async with Engine.open(url, authorize=authorize) as engine:
        ada = engine.acting_as("ada")
        for owner in ("ada", "bob"):
            await engine.start_thread(thread_id=f"of {owner}", labels={"owner": owner}, messages=[Message.user("word")])
        assert [each.id async for each in ada.threads()] == ["of ada"]
        assert [hit.thread_id for hit in await ada.search("word")] == ["of ada"]
        assert {entry.thread_id async for entry in ada.audit()} == {"of ada"}
        assert [each.threads for each in await ada.usage()] == [1]
        assert [each.text for each in await (await ada.thread("of ada")).history()] == ["word"]
        with pytest.raises(NotAuthorizedError):
            await ada.thread("of bob")
        with pytest.raises(NotAuthorizedError):
            await ada.thread("missing")


def test_the_engine_applies_filters(any_url: str) -> None:
    asyncio.run(listed(any_url))


def rows_read(foreign: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The number of rows that an actor with five threads reads, by operation, next to threads of others."""
    rows: list[int] = []
    rule = Rule(ThreadFilter({"owner": "ada"}))
    with Conversations.open("memory:", authorize=rule) as service:
        operator = service.acting_as("operator")
        for number in range(foreign + 5):
            owner = "ada" if number % (foreign // 5) == 0 and number < foreign else "bob"
            operator.start_thread(labels={"owner": owner}, messages=[Message.user("word")])
        parent = next(service.threads())
        for _ in range(foreign):
            operator.thread(parent.id).fork().label(owner="bob")
        store = service._core.models._store

        def counted(read: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
            def call(*arguments: Any, **options: Any) -> Sequence[Any]:
                found = read(*arguments, **options)
                rows.append(len(found))
                return found

            return call

        for name in ("select", "values", "find"):
            monkeypatch.setattr(store, name, counted(getattr(store, name)))
        calls: dict[str, Callable[[], Any]] = {
            "threads": lambda: list(service.threads(newest_first=True, order="updated")),
            "tree": lambda: list(service.tree()),
            "forks": lambda: service.thread(parent.id).forks(),
            "audit": lambda: list(service.audit(newest_first=True, limit=10)),
            "usage": service.usage,
        }
        counts = {}
        for name, call in calls.items():
            rows.clear()
            assert call() or name == "forks"
            counts[name] = sum(rows)
        monkeypatch.undo()
    return counts


def test_the_threads_of_others_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rows_read(100, monkeypatch) == rows_read(25, monkeypatch)


def test_a_search_does_not_read_the_messages_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = Rule(ThreadFilter({"owner": "ada"}))
    with Conversations.open("memory:", authorize=rule) as service:
        operator = service.acting_as("operator")
        mine = operator.start_thread(labels={"owner": "ada"}, messages=[Message.user("word")])
        theirs = operator.start_thread(messages=[Message.user("word")] * 200)
        read: list[int] = []
        recorded_at = service._core.log.recorded_at

        def counted(positions: Sequence[int]) -> Any:
            read.extend(positions)
            return recorded_at(positions)

        with monkeypatch.context() as patch:
            patch.setattr(service._core.log, "recorded_at", counted)
            assert [hit.thread_id for hit in service.search("word", limit=1)] == [mine.id]
        assert len(read) == 1
        fork = theirs.fork(at=3)
        fork.label(owner="ada")
        found = [(hit.thread_id, hit.version) for hit in service.search("word")]
        assert found == [(fork.id, 3), (fork.id, 2), (mine.id, 2)]


def test_a_filter_allows_nothing_without_a_thread() -> None:
    with Conversations.open("memory:", authorize=lambda *_: ThreadFilter({"owner": "ada"})) as service:
        service.start_thread(labels={"owner": "ada"})
        calls: list[Callable[[], Any]] = [
            lambda: service.memory("user/1"),
            service.projections,
            service.verify,
            lambda: service.thread("missing"),
            lambda: list(service.audit(thread="missing")),
        ]
        for call in calls:
            with pytest.raises(NotAuthorizedError):
                call()
        assert len(list(service.threads())) == 1


def test_an_actor_writes_only_to_matching_threads() -> None:
    rule = Rule(ThreadFilter({"owner": "ada"}))
    with Conversations.open("memory:", authorize=rule) as service:
        theirs = service.acting_as("operator").start_thread(labels={"owner": "bob"})
        thread = service._thread(theirs.id, "local")
        for write_ in (
            lambda: thread.append(Message.user("Hello")),
            lambda: thread.label(owner="ada"),
            thread.fork,
        ):
            with pytest.raises(NotAuthorizedError):
                write_()
        theirs.label(owner="ada")
        thread.append(Message.user("Hello"))
        assert thread.fork().summary().labels == {"owner": "ada"}


def test_a_thread_that_the_function_refuses_stays_hidden() -> None:
    def authorize(actor: str | None, action: str, thread: str | None) -> bool | ThreadFilter:
        del actor, action
        return thread != "secret" and ThreadFilter({"owner": "ada"})

    with Conversations.open("memory:", authorize=authorize) as service:
        for id_ in ("open", "secret"):
            service.start_thread(thread_id=id_, labels={"owner": "ada"}, messages=[Message.user("word")])
        assert [each.id for each in service.threads()] == ["open"]
        assert [hit.thread_id for hit in service.search("word")] == ["open"]
        assert {entry.thread_id for entry in service.audit()} == {"open"}
        assert service.usage()[0].threads == 1


def test_a_withdrawn_label_hides_a_thread_before_the_directory_knows_it(shared_url: str) -> None:
    with Conversations.open(shared_url) as operator:
        thread = operator.start_thread(labels={"owner": "ada"}, messages=[Message.user("word")])
        operator.wait()
    with Conversations.open(
        shared_url, embedded=False, authorize=lambda actor, *_: actor is None or ThreadFilter({"owner": actor})
    ) as service:
        ada = service.acting_as("ada")
        assert [each.id for each in ada.threads()] == [thread.id]
        service.thread(thread.id).label(owner="bob")
        for seen in (ada.threads(), ada.tree(), ada.audit(), ada.search("word")):
            assert not list(seen)
        with pytest.raises(NotAuthorizedError):
            ada.thread(thread.id)


def test_refuses_a_filter_that_cannot_be_meant() -> None:
    wrong: list[dict[str, Any]] = [
        {},
        {"labels": {}},
        {"labels": {"owner": None}},
        {"labels": {"owner": object()}},
        {"labels": ["owner"]},
        {"any_of": {"owner": "ada"}},
        {"any_of": {"owner": [None]}},
        {"id_prefix": 7},
    ]
    for arguments in wrong:
        with pytest.raises((InvalidAuthorizeError, InvalidContentError), match="ThreadFilter"):
            ThreadFilter(**arguments)
