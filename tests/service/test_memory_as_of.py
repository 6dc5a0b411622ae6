"""How threads read memory scopes: live, or as of a cut with the facts that they learn later."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clew.conversations import Conversations
from clew.domain.errors import InvalidContentError
from clew.domain.memory.events import Provenance
from clew.domain.memory.facts import Fact
from clew.domain.messages import Message
from clew.service.effects import run
from clew.service.memory import scope_commands, scope_queries
from clew.service.memory.scope_commands import WriteOptions
from clew.service.memory.scope_view import Scope, ThreadAccess, visible_version
from clew.sync.threads import Thread

HELLO = Message.user("Hello")
NAME = "user/42"

HISTORIES = 1_000
"""The number of random histories at full scale."""


def seen_from(conversations: Conversations, thread: Thread | None, name: str = NAME) -> Scope:
    """Return a scope as seen by a thread, or live without a thread."""
    return Scope(conversations._core, name, learner=None if thread is None else ThreadAccess(thread.id))


def texts(scope: Scope, **options: Any) -> list[str]:
    return [fact.text for fact in run(scope_queries.facts(scope, **options))]


def remember(scope: Scope, text: str, source: Provenance | None = None) -> Fact:
    return run(scope_commands.remember(scope, text, WriteOptions(source=source)))


def supersede(scope: Scope, fact: Fact, text: str) -> Fact:
    return run(scope_commands.supersede(scope, fact, text, WriteOptions()))


@pytest.fixture
def thread(conversations: Conversations) -> Thread:
    return conversations.start_thread(messages=[HELLO])


def test_a_fork_reads_scopes_live_by_default(conversations: Conversations, thread: Thread) -> None:
    live, as_of = thread.fork(), thread.fork(memory="as-of")
    remember(seen_from(conversations, thread), "Likes tea")
    assert [texts(seen_from(conversations, each)) for each in (thread, live, as_of)] == [["Likes tea"]] * 2 + [[]]


def test_a_fork_as_of_knows_the_facts_at_its_cut(conversations: Conversations, thread: Thread) -> None:
    fact = remember(seen_from(conversations, None), "Likes tea")
    thread.append(HELLO)
    supersede(seen_from(conversations, None), fact, "Likes coffee")
    assert texts(seen_from(conversations, thread.fork(memory="as-of"))) == ["Likes tea"]
    assert texts(seen_from(conversations, thread.fork(at=2, memory="as-of"))) == []
    thread.append(HELLO)
    assert texts(seen_from(conversations, thread.fork(memory="as-of"))) == ["Likes coffee"]


def test_a_fork_as_of_knows_the_facts_that_it_learned(conversations: Conversations, thread: Thread) -> None:
    fact = remember(seen_from(conversations, None), "Likes tea")
    thread.append(HELLO)
    fork = thread.fork(memory="as-of")
    inside, outside = seen_from(conversations, fork), seen_from(conversations, thread)
    supersede(outside, fact, "Likes coffee")
    ours = supersede(inside, fact, "Likes milk")
    remember(inside, "Likes jam", Provenance(thread=fork.id, version=2))
    assert texts(inside) == ["Likes milk", "Likes jam"]
    assert texts(outside) == ["Likes coffee", "Likes milk", "Likes jam"]
    assert texts(inside, history=True) == ["Likes tea", "Likes milk", "Likes jam"]
    run(scope_commands.retract(inside, ours, None, WriteOptions()))
    assert (texts(inside), texts(outside)) == (["Likes jam"], ["Likes coffee", "Likes jam"])
    assert texts(inside, at=3) == ["Likes tea"]
    selection = run(scope_queries.select_facts(inside))
    assert [selection.fact(number).text for number in selection.numbers] == ["Likes jam"]


def test_forks_of_a_fork_inherit_its_memory_mode(conversations: Conversations, thread: Thread) -> None:
    first = thread.fork(memory="as-of")
    first.append(HELLO)
    remember(seen_from(conversations, first), "learned in the fork")
    cut = first.version
    first.append(HELLO)
    remember(seen_from(conversations, first), "learned after the cut")
    remember(seen_from(conversations, None), "learned elsewhere")
    second, back, live = first.fork(at=cut), first.fork(at=2), first.fork(memory="live")
    assert texts(seen_from(conversations, second)) == ["learned in the fork"]
    assert texts(seen_from(conversations, second.fork())) == ["learned in the fork"]
    assert len(texts(seen_from(conversations, live))) == len(texts(seen_from(conversations, live.fork()))) == 3
    assert len(texts(seen_from(conversations, back))) == 3  # it was forked from the thread, which reads live


def test_a_fork_as_of_a_fork_as_of_knows_only_its_facts(conversations: Conversations, thread: Thread) -> None:
    remember(seen_from(conversations, None), "known from the start")
    thread.append(HELLO)
    first = thread.fork(memory="as-of")
    remember(seen_from(conversations, None), "learned elsewhere")
    ours = remember(seen_from(conversations, first), "learned in the fork")
    first.append(HELLO)
    second = first.fork(memory="as-of")
    remember(seen_from(conversations, first), "learned there later")
    assert texts(seen_from(conversations, second)) == ["known from the start", "learned in the fork"]
    assert [run(visible_version(conversations._core, each.id, NAME)) for each in (thread, first, second)] == [
        None,
        2,
        2,
    ]
    supersede(seen_from(conversations, second), ours, "learned again")
    third = second.fork(memory="as-of")
    assert texts(seen_from(conversations, third)) == ["known from the start", "learned in the fork"]
    second.append(HELLO)
    assert texts(seen_from(conversations, second.fork())) == ["known from the start", "learned again"]
    assert texts(seen_from(conversations, second.fork(memory="as-of"))) == ["known from the start", "learned again"]
    assert len(texts(seen_from(conversations, second.fork(memory="live")))) == 4


def test_a_rewind_keeps_learned_facts(conversations: Conversations, thread: Thread) -> None:
    fork = thread.fork(memory="as-of")
    fork.append(HELLO)
    remember(seen_from(conversations, fork), "learned in the fork")
    fork.rewind(2)
    assert texts(seen_from(conversations, fork)) == ["learned in the fork"]


def test_snapshots_contain_the_memory_mode_of_a_fork(conversations: Conversations, thread: Thread) -> None:
    fork = thread.fork(memory="as-of")
    remember(seen_from(conversations, None), "learned elsewhere")
    for _ in range(3):
        fork.append([HELLO] * 60)
    conversations._core.caches.clear()
    assert conversations._core.log.control(conversations._core.stream(fork.id)).as_of == (thread.id, 2)
    assert texts(seen_from(conversations, fork)) == []


def test_refuses_an_unknown_memory_mode(conversations: Conversations, thread: Thread) -> None:
    for wrong in ("then", "", True, "AS-OF"):
        memory: Any = wrong
        with pytest.raises(InvalidContentError, match="memory="):
            thread.fork(memory=memory)
    assert len(list(conversations.threads())) == 1


# Random histories against a naive model


@dataclass
class NaiveThread:
    """A thread and the time of each version that it recorded itself."""

    id: str
    parent: NaiveThread | None = None
    cut: int = 0
    memory: Literal["live", "as-of"] | None = None
    version: int = 0
    recorded: dict[int, int] = field(default_factory=dict)

    def owner(self, version: int) -> NaiveThread:
        return self if self.parent is None or version > self.cut else self.parent.owner(version)


@dataclass
class NaiveWrite:
    """A write to the scope: its time, its version in the scope, and where the fact was learned."""

    time: int
    version: int
    new: str | None
    ended: str | None
    learned: tuple[NaiveThread, int] | None


def knows(thread: NaiveThread, write: NaiveWrite) -> bool:
    """Return whether a thread knows a write; walks up to the nearest fork that reads as of its cut."""
    return knows_at(thread, thread.version, write)


def knows_at(thread: NaiveThread, version: int, write: NaiveWrite) -> bool:
    chain: list[tuple[NaiveThread, int]] = []
    each, left = thread, version
    while each.memory is None and each.parent is not None:
        chain.append((each, left))
        each, left = each.parent, each.cut
    if each.memory != "as-of" or each.parent is None:
        return True
    chain.append((each, left))
    if write.time <= each.parent.recorded[each.cut]:
        return knows_at(each.parent, each.cut, write)
    if write.learned is None:
        return False
    learner, learned = write.learned
    for part, last in chain:
        if part is learner:
            in_time = part is thread or write.time <= part.recorded.get(last, 0)
            return learned <= last and (learned > each.cut or in_time)
    return False


def known(written: list[NaiveWrite], thread: NaiveThread | None, upto: int) -> list[str]:
    """Return the live facts among the writes that the thread knows."""
    live: dict[str, None] = {}
    for each in written:
        if each.version <= upto and (thread is None or knows(thread, each)):
            if each.ended is not None:
                live.pop(each.ended, None)
            if each.new is not None:
                live[each.new] = None
    return list(live)


class History:
    """A store with one scope and its model; random numbers choose each step."""

    def __init__(self, conversations: Conversations) -> None:
        self.conversations = conversations
        self.clock = 0
        self.written: list[NaiveWrite] = []
        self.threads: list[NaiveThread] = []
        self.start()

    def start(self, *_: int) -> None:
        thread = NaiveThread(self.conversations.start_thread().id)
        self.threads.append(thread)
        self._record(thread)

    def say(self, choice: int, *_: int) -> None:
        thread = self._thread(choice)
        self._real(thread).append(HELLO)
        self._record(thread)

    def rewind(self, choice: int, to: int, _: int) -> None:
        thread = self._thread(choice)
        self._real(thread).rewind(1 + to % thread.version)
        self._record(thread)

    def fork(self, choice: int, at: int, mode: int) -> None:
        parent = self._thread(choice)
        cut = 1 + at % parent.version if at % 2 else parent.version
        memory: Any = (None, "as-of", None, "live", "as-of")[mode % 5]
        fork = self._real(parent).fork(at=cut, memory=memory)
        thread = NaiveThread(fork.id, parent.owner(cut), cut, memory, cut)
        self.threads.append(thread)
        self._record(thread)

    def remember(self, choice: int, at: int, alone: int) -> None:
        thread, scope = self._writer(choice, alone)
        source = self._source(thread, at)
        fact = remember(scope, str(len(self.written)), source)
        self._record_write(fact.version, fact.id, None, thread, source)

    def supersede(self, choice: int, fact: int, alone: int) -> None:
        thread, scope = self._writer(choice, alone)
        live = run(scope_queries.facts(scope))
        if live:
            old = live[fact % len(live)]
            new = supersede(scope, old, str(len(self.written)))
            self._record_write(new.version, new.id, old.id, thread, None)

    def retract(self, choice: int, fact: int, alone: int) -> None:
        thread, scope = self._writer(choice, alone)
        live = run(scope_queries.facts(scope))
        if live:
            old = live[fact % len(live)]
            run(scope_commands.retract(scope, old, None, WriteOptions()))
            self._record_write(self.written[-1].version + 1, None, old.id, thread, None)

    def compare(self, number: int) -> None:
        """Check that every thread reads what the model expects, at the newest version and at another."""
        last = self.written[-1].version if self.written else 0
        for thread in (None, *self.threads):
            scope = seen_from(self.conversations, None if thread is None else self._real(thread))
            assert [fact.id for fact in run(scope_queries.facts(scope))] == known(self.written, thread, last)
            if last:
                at = 1 + number % last
                assert [fact.id for fact in run(scope_queries.facts(scope, at=at))] == known(self.written, thread, at)

    def _thread(self, choice: int) -> NaiveThread:
        return self.threads[-1 - choice % min(len(self.threads), 4)]

    def _real(self, thread: NaiveThread) -> Thread:
        return self.conversations.thread(thread.id)

    def _writer(self, choice: int, alone: int) -> tuple[NaiveThread | None, Scope]:
        thread = None if alone % 5 == 0 else self._thread(choice)
        return thread, seen_from(self.conversations, None if thread is None else self._real(thread))

    def _source(self, thread: NaiveThread | None, at: int) -> Provenance | None:
        """Return no source (the newest version), or a version in the thread's lineage."""
        return None if thread is None or at % 2 else Provenance(thread=thread.id, version=1 + at % thread.version)

    def _record(self, thread: NaiveThread) -> None:
        thread.version += 1
        self.clock += 1
        thread.recorded[thread.version] = self.clock

    def _record_write(
        self, version: int, new: str | None, ended: str | None, thread: NaiveThread | None, source: Provenance | None
    ) -> None:
        self.clock += 1
        learned = None if thread is None else (thread, thread.version if source is None else source.version)
        self.written.append(NaiveWrite(self.clock, version, new, ended, learned))


_numbers = st.integers(0, 30)
_steps = st.sampled_from(
    ["start", "say", "say", "rewind", "fork", "fork", "remember", "remember", "supersede", "retract"]
)


def test_random_histories_agree_with_the_naive_model(scale: float) -> None:
    @settings(max_examples=math.ceil(HISTORIES * scale))
    @given(st.lists(st.tuples(_steps, _numbers, _numbers, _numbers), min_size=15, max_size=40), _numbers)
    def check(steps: list[tuple[str, int, int, int]], number: int) -> None:
        with Conversations.open("memory:", now=lambda: 1_700_000_000_000_000) as conversations:
            history = History(conversations)
            for step, *numbers in steps:
                getattr(history, step)(*numbers)
            history.compare(number)

    check()
