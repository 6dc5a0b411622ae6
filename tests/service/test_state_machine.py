from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from tests.servers.postgres_server import Databases
from tests.service.naive_threads import NaiveMessage, NaiveThreads, Refused

from clew.conversations import Conversations
from clew.domain.errors import ClewError
from clew.domain.events import to_time
from clew.domain.history import HistoryMessage
from clew.domain.messages import Message
from clew.domain.streams import parse_stream_name
from clew.service.redactions import Purged
from clew.sync.threads import Thread

STEPS = 100_000
POSTGRES_STEPS = 2_000
STEPS_AN_EXAMPLE = 200
BEGAN = 1_700_000_000_000_000

KINDS = {
    "start": "thread-started",
    "fork": "thread-forked",
    "message": "message-appended",
    "label": "thread-labelled",
    "checkpoint": "checkpoint-made",
    "rewind": "history-rewound",
    "redact": "message-redacted",
    "suspend": "thread-suspended",
    "resume": "thread-resumed",
    "end": "thread-ended",
    "delete": "thread-deleted",
    "purge": "thread-purged",
    "restart": "thread-restarted",
}

# A number chooses a thread or a version by its remainder, so that shrinking keeps its effect.
number = st.integers(0, 9_999)
name = st.sampled_from(["draft", "before refund", "Größe", "v1"])
ticks = st.integers(-3, 5)


def naive_messages(messages: tuple[HistoryMessage, ...]) -> list[NaiveMessage]:
    return [NaiveMessage(m.version, m.role, None if m.redacted else m.text) for m in messages]


class ConversationsAgreeWithTheModel(RuleBasedStateMachine):
    """Applies each step to the model, a memory store and a SQLite store; all three must agree."""

    steps: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.model = NaiveThreads()
        self.now = BEGAN
        self.texts = 0
        self.stores = [Conversations.open(each, now=lambda: self.now) for each in self.urls()]

    def urls(self) -> list[str]:
        return ["memory:", f"sqlite:///{Path(self.folder.name)}/clew.db?synchronous=OFF"]

    # Applying a step to all three

    def agree(self, expect: Callable[[], Any], actual: Callable[[Conversations], Any]) -> None:
        type(self).steps += 1
        expected: Any
        try:
            expected = expect()
        except Refused as refused:
            expected = refused.error
        for store in self.stores:
            result: Any
            try:
                result = actual(store)
            except ClewError as error:
                result = type(error)
            assert result == expected, type(store._core.log.recorder).__name__  # type: ignore[attr-defined]  # the log is an application

    def pick(self, choice: int) -> str:
        return list(self.model.lines)[choice % len(self.model.lines)]

    def pick_version(self, thread: str, choice: int) -> int:
        """Choose any version, 0 or one beyond the newest."""
        return choice % (self.model.version(thread) + 2)

    def new_texts(self, count: int) -> list[tuple[str, str]]:
        self.texts += count
        return [
            ("user" if each % 2 else "assistant", f"text {each} ä") for each in range(self.texts - count, self.texts)
        ]

    # Writing

    @initialize(length=st.sampled_from([0, 1, 2, 9, 124, 125, 126, 127, 130]))
    def start_a_thread(self, length: int) -> None:
        texts = self.new_texts(length)
        self.agree(
            lambda: self.model.start("first", "First", texts, self.now),
            lambda store: started(store.start_thread("First", thread_id="first", messages=as_messages(texts))),
        )

    @rule(choice=number, move=ticks)
    def start_another_thread(self, choice: int, move: int) -> None:
        self.now += move
        thread = f"thread-{choice % 7}"
        self.agree(
            lambda: self.model.start(thread, "Another", [], self.now),
            lambda store: started(store.start_thread("Another", thread_id=thread)),
        )

    @rule(choice=number, count=st.sampled_from([1, 1, 2, 3, 8, 60]), move=ticks)
    def append(self, choice: int, count: int, move: int) -> None:
        self.now += move
        thread, texts = self.pick(choice), self.new_texts(count)
        self.agree(
            lambda: self.model.append(thread, texts, self.now),
            lambda store: [m.version for m in store.thread(thread).append(as_messages(texts))],
        )

    @rule(choice=number, version=number, title=st.sampled_from([None, "What if"]), move=ticks)
    def fork(self, choice: int, version: int, title: str | None, move: int) -> None:
        self.now += move
        thread, new = self.pick(choice), f"fork-{len(self.model.lines)}"
        at = self.pick_version(thread, version)
        self.agree(
            lambda: self.model.fork(thread, at, new, title, self.now),
            lambda store: started(store.thread(thread).fork(at=at, title=title, thread_id=new)),
        )

    @rule(choice=number, version=number, move=ticks)
    def edit(self, choice: int, version: int, move: int) -> None:
        self.now += move
        thread, new = self.pick(choice), f"fork-{len(self.model.lines)}"
        at = self.pick_version(thread, version)
        ((_, text),) = self.new_texts(1)
        self.agree(
            lambda: self.model.edit(thread, at, text, new, self.now),
            lambda store: started(store.thread(thread).edit(at, text, thread_id=new)),
        )

    @rule(choice=number, chosen=name, version=st.none() | number, move=ticks)
    def checkpoint(self, choice: int, chosen: str, version: int | None, move: int) -> None:
        self.now += move
        thread = self.pick(choice)
        at = None if version is None else self.pick_version(thread, version)
        self.agree(
            lambda: self.model.checkpoint(thread, chosen, at, self.now),
            lambda store: store.thread(thread).checkpoint(chosen, at=at),
        )

    @rule(choice=number, version=number, move=ticks)
    def rewind(self, choice: int, version: int, move: int) -> None:
        self.now += move
        thread = self.pick(choice)
        to = self.pick_version(thread, version)
        self.agree(
            lambda: self.model.rewind(thread, to, self.now),
            lambda store: store.thread(thread).rewind(to=to),
        )

    @rule(choice=number, version=number, move=ticks)
    def redact(self, choice: int, version: int, move: int) -> None:
        self.now += move
        thread = self.pick(choice)
        at = self.pick_version(thread, version)
        self.agree(
            lambda: self.model.redact(thread, at, self.now),
            lambda store: store.thread(thread).redact(at).version,
        )

    @rule(choice=number, chosen=st.sampled_from(["topic", "tier"]), value=st.sampled_from([None, 1, "refund"]))
    def label(self, choice: int, chosen: str, value: str | int | None) -> None:
        thread = self.pick(choice)
        named: dict[str, Any] = {chosen: value}
        self.agree(
            lambda: self.model.label(thread, chosen, value, self.now),
            lambda store: store.thread(thread).label(**named),
        )

    @rule(choice=number, kind=st.sampled_from(["suspend", "resume", "resume", "end", "delete"]), move=ticks)
    def change(self, choice: int, kind: str, move: int) -> None:
        self.now += move
        thread = self.pick(choice)
        self.agree(
            lambda: self.model.change(thread, kind, self.now),
            lambda store: getattr(store.thread(thread), kind)(),
        )

    @rule(choice=number, forks=st.booleans(), move=ticks)
    def purge(self, choice: int, *, forks: bool, move: int) -> None:
        self.now += move
        thread = self.pick(choice)
        self.agree(
            lambda: self.model.purge(thread, self.now, forks=forks),
            lambda store: purged(store.thread(thread).purge(forks=forks)),
        )

    @rule(choice=number, move=ticks)
    def use_an_id_again(self, choice: int, move: int) -> None:
        self.now += move
        thread = self.pick(choice)
        self.agree(
            lambda: self.model.restart(thread, "Again", self.now),
            lambda store: started(store.start_thread("Again", thread_id=thread, replace_deleted=True)),
        )

    # Travelling in time

    @rule(choice=number, version=number)
    def read_the_history_at_a_version(self, choice: int, version: int) -> None:
        thread = self.pick(choice)
        at = self.pick_version(thread, version)
        self.agree(
            lambda: self.read(thread, lambda: self.model.at_version(thread, at)),
            lambda store: naive_messages(store.thread(thread).history(at=at).messages),
        )

    @rule(choice=number, chosen=name)
    def read_the_history_at_a_checkpoint(self, choice: int, chosen: str) -> None:
        thread = self.pick(choice)
        self.agree(
            lambda: self.read(thread, lambda: self.model.at_checkpoint(thread, chosen)),
            lambda store: naive_messages(store.thread(thread).history(at=chosen).messages),
        )

    @rule(choice=number, before=st.integers(-2, 60))
    def read_the_history_at_a_time(self, choice: int, before: int) -> None:
        thread, time = self.pick(choice), self.now - before
        self.agree(
            lambda: self.read(thread, lambda: self.model.at_time(thread, time)),
            lambda store: naive_messages(store.thread(thread).history(at=to_time(time)).messages),
        )

    @rule(choice=number, message=number)
    def read_the_history_at_a_message(self, choice: int, message: int) -> None:
        thread = self.pick(choice)
        at = message % (len(self.model.history(thread, self.model.version(thread))) + 2)
        self.agree(
            lambda: self.read(thread, lambda: self.model.at_message(thread, at)),
            lambda store: naive_messages(store.thread(thread).history(at_message=at).messages),
        )

    @rule(choice=number, version=number)
    def read_the_state(self, choice: int, version: int) -> None:
        thread = self.pick(choice)
        at = self.pick_version(thread, version)

        def expect() -> dict[str, Any]:
            messages = self.read(thread, lambda: self.model.at_version(thread, at))
            return {"messages": messages, **self.facts(thread, at)}

        def actual(store: Conversations) -> dict[str, Any]:
            state = store.thread(thread).state(at=at)
            return {
                "messages": naive_messages(state.messages),
                "count": state.control.messages,
                "status": state.status,
                "title": state.title,
                "labels": state.labels,
                "checkpoints": state.checkpoints,
            }

        self.agree(expect, actual)

    @rule(choice=number, version=number, step=number)
    def replay(self, choice: int, version: int, step: int) -> None:
        thread = self.pick(choice)
        at = self.pick_version(thread, version)

        def expect() -> list[Any]:
            self.model.readable(thread)
            upto = self.model.at_version(thread, at)
            stepped = step % upto + 1
            return [
                self.facts_of_events(thread, upto),
                stepped,
                self.model.status(thread, stepped),
                self.model.history(thread, stepped),
            ]

        def actual(store: Conversations) -> list[Any]:
            replayed = list(store.thread(thread).replay(at=at))
            _, state = replayed[step % len(replayed)]
            facts_of_events = [(e.thread_id, e.version, e.type, e.recorded_at) for e, _ in replayed]
            return [facts_of_events, state.version, state.status, naive_messages(state.messages)]

        self.agree(expect, actual)

    @rule(choice=number)
    def read_the_events(self, choice: int) -> None:
        thread = self.pick(choice)
        self.agree(
            lambda: self.facts_of_events(thread, self.model.version(thread)),
            lambda store: [(e.thread_id, e.version, e.type, e.recorded_at) for e in store.thread(thread).events()],
        )

    def read(self, thread: str, version: Callable[[], int]) -> list[NaiveMessage]:
        self.model.readable(thread)
        return self.model.history(thread, version())

    def facts_of_events(self, thread: str, upto: int) -> list[Any]:
        return [(e.owner, e.version, KINDS[e.kind], e.time) for e in self.model.lines[thread][:upto]]

    def facts(self, thread: str, at: int | None = None) -> dict[str, Any]:
        version = self.model.version(thread) if at is None else at
        return {
            "count": len(self.model.history(thread, version)),
            "status": self.model.status(thread, at),
            "title": self.model.title(thread, at),
            "labels": self.model.labels(thread, at),
            "checkpoints": self.model.checkpoints(thread, at),
        }

    # At the end

    def teardown(self) -> None:
        try:
            for store in self.stores:
                self.compare_everything(store)
        finally:
            for store in self.stores:
                store.close()
            self.folder.cleanup()

    def compare_everything(self, store: Conversations) -> None:
        verdict = store.verify()
        assert verdict.first_bad is None
        assert (verdict.threads, verdict.events) == (len(self.model.lines), self.model.events)
        assert [each.id for each in store.threads()] == list(self.model.lines)
        for each in store.threads():
            assert each == store.thread(each.id).summary()
            line = self.model.lines[each.id]
            assert (each.parent_id, each.forked_at) == self.model.parent(each.id)
            assert (each.version, each.updated_at) == (len(line), to_time(line[-1].time))
            assert self.facts(each.id) == {
                "count": each.messages,
                "status": each.status,
                "title": each.title,
                "labels": each.labels,
                "checkpoints": each.checkpoints,
            }
            if each.status != "deleted":
                actual = naive_messages(store.thread(each.id).history().messages)
                assert actual == self.model.history(each.id, each.version)
        self.compare_searches(store)
        seen = [
            (None if parsed is None else parsed.id, event.version)
            for event in all_events(store)
            if (parsed := parse_stream_name(event.stream)) is not None
        ]
        assert sorted(seen) == sorted(
            (event.owner, event.version)
            for thread, line in self.model.lines.items()
            for event in line
            if event.owner == thread
        )

    def compare_searches(self, store: Conversations) -> None:
        """Check that searches find messages exactly in the readable threads that have them, and no redacted ones."""
        living = {id_: line for id_, line in self.model.lines.items() if self.model.status(id_) != "deleted"}
        messages = [
            event
            for id_, line in self.model.lines.items()
            for event in line
            if event.kind == "message" and event.owner == id_
        ]
        redacted = [event for event in messages if (event.owner, event.version) in self.model.redacted]
        for event in (*messages[:: len(messages) // 3 + 1], *redacted[:2]):
            expected = {id_ for id_, line in living.items() if event in line[event.version - 1 : event.version]}
            if event in redacted:
                expected = set()
            hits = store.search(f'"{event.payload[1]}"')
            assert [hit.fork_count + 1 for hit in hits] == [len(expected)] * bool(expected)
            assert {id_ for hit in hits for id_ in (hit.thread_id, *hit.forks)} <= expected
            for id_ in list(living)[-2:]:
                hits = store.search(f'"{event.payload[1]}"', thread=id_)
                assert [hit.version for hit in hits] == [event.version] * (id_ in expected)


def purged(result: Purged) -> None:
    """Ignore the versions; the model returns nothing for a purge."""
    assert not result.pending


def started(thread: Thread) -> None:
    """Ignore the new thread; the model returns nothing for a start."""
    assert thread.id


class PostgresAgreesWithTheModel(ConversationsAgreeWithTheModel):
    """The same checks with a PostgreSQL store, which is slower."""

    databases: ClassVar[Databases]

    def urls(self) -> list[str]:
        self.used = ExitStack()
        return [self.used.enter_context(self.databases.one())]

    def teardown(self) -> None:
        super().teardown()
        self.used.close()


def as_messages(texts: list[tuple[str, str]]) -> list[Message]:
    return [Message.user(text) if role == "user" else Message.assistant(text) for role, text in texts]


def all_events(store: Conversations) -> list[Any]:
    events: list[Any] = []
    with store.subscribe() as subscription:
        while (event := subscription.wait(0)) is not None:
            events.append(event)
    return events


def test_both_stores_agree_with_a_naive_model(scale: float) -> None:
    machine = ConversationsAgreeWithTheModel
    target = math.ceil(STEPS * scale**1.3)  # half of a tenth in `make test`, which has little time
    machine.steps = 0
    rounds = 0
    while machine.steps < target and rounds < 10:
        rounds += 1
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=math.ceil((target - machine.steps) / STEPS_AN_EXAMPLE) + 5,
                stateful_step_count=STEPS_AN_EXAMPLE,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
            ),
        )
    print(f"{machine.steps} steps agreed")  # noqa: T201  # shown by pytest -s, and when the test fails
    assert machine.steps >= target


def test_a_postgres_store_agrees_with_a_naive_model(databases: Databases, scale: float) -> None:
    machine = PostgresAgreesWithTheModel
    machine.databases = databases
    machine.steps = 0
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=math.ceil(POSTGRES_STEPS * scale / STEPS_AN_EXAMPLE),
            stateful_step_count=STEPS_AN_EXAMPLE,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
    assert machine.steps > 0
