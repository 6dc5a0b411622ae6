"""Services, agents, subscriptions and projections continue after their PostgreSQL server is killed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from tests.infrastructure.recorder_steps import PATIENCE, wait_until
from tests.servers.postgres_server import VERSIONS, PostgresServer

from clew import Agent, Conversations, Engine, Message, ScriptedChatClient, tool
from clew.domain.errors import StoreUnavailableError
from clew.infrastructure.scripted_client import call
from clew.types import SyncThread

WRITERS = ("one", "two", "three")
PER_KILL = 15
"""The number of appends and runs that must succeed before the server is killed again."""


class Answers:
    """The appends and runs that succeeded."""

    def __init__(self) -> None:
        self.appended = dict.fromkeys(WRITERS, 0)
        self.runs: list[str] = []
        self.stop = threading.Event()
        self._more = threading.Semaphore(0)

    def notify(self) -> None:
        self._more.release()

    def wait_for_more(self) -> None:
        for _ in range(PER_KILL):
            assert self._more.acquire(timeout=PATIENCE)


def write(thread: SyncThread, answers: Answers) -> None:
    """Append messages. Repeat each one with its key until it succeeds."""
    name = thread.id
    while not answers.stop.is_set():
        number = answers.appended[name]
        try:
            thread.append(Message.user(str(number)), idempotency_key=f"{name}-{number}")
        except StoreUnavailableError:
            continue
        answers.appended[name] += 1
        answers.notify()


@tool
def look_up(word: str) -> str:
    """Look a word up."""
    return f"{word} is a word"


def run_agents(url: str, answers: Answers) -> None:
    """Run agents, each on a new thread. A failed run leaves its thread as it is."""

    async def work() -> None:
        while not answers.stop.is_set():
            with suppress(StoreUnavailableError):
                async with Engine.open(url, projections=()) as engine:
                    await run_until_stopped(engine, answers)

    asyncio.run(work())


async def run_until_stopped(engine: Engine, answers: Answers) -> None:
    while not answers.stop.is_set():
        client = ScriptedChatClient([call("look_up", word="clew"), "It is a word."])
        try:
            response = await Agent(client, engine=engine, tools=[look_up]).run("What is a clew?")
        except StoreUnavailableError:
            continue
        answers.runs.append(response.thread.id)
        answers.notify()


def follow(conversations: Conversations, seen: list[int]) -> None:
    """Read every event until the last thread starts. Each subscription continues where the previous one ended."""
    while True:
        try:
            with conversations.subscribe(after=seen[-1] if seen else 0) as events:
                for event in events:
                    seen.append(event.position or 0)
                    if event.thread_id == "last":
                        return
        except StoreUnavailableError:
            continue


@contextmanager
def run_in_threads(*works: Callable[[], object]) -> Iterator[None]:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()


def test_services_agents_subscriptions_and_projections_continue_after_the_server_is_killed(scale: float) -> None:
    answers = Answers()
    seen: list[int] = []
    with PostgresServer(VERSIONS[-1]) as server, server.database() as url, Conversations.open(url) as conversations:
        threads = [conversations.start_thread(thread_id=name) for name in WRITERS]
        with run_in_threads(lambda: follow(conversations, seen)):
            with run_in_threads(
                *(partial(write, thread, answers) for thread in threads),
                lambda: run_agents(url, answers),
            ):
                try:
                    for _ in range(max(2, round(20 * scale))):
                        answers.wait_for_more()
                        server.kill()
                        server.start()
                    answers.wait_for_more()
                    wait_until(lambda: len(answers.runs) > 1)
                finally:
                    answers.stop.set()
            conversations.start_thread(thread_id="last")
        assert conversations.verify().first_bad is None
        for name in WRITERS:
            texts = [each.text for each in conversations.thread(name).history()]
            # The last message may be stored although its answer was lost.
            assert texts[: answers.appended[name]] == [str(number) for number in range(answers.appended[name])]
            assert len(texts) - answers.appended[name] in {0, 1}
        for id_ in answers.runs:
            assert [event.type for event in conversations.thread(id_).events()][-1] == "run-completed"
        # A projection contains this list. It was updated meanwhile.
        listed = {each.id: each.version for each in conversations.threads()}
        assert set(listed) >= {*WRITERS, *answers.runs, "last"}
        events = [event for id_ in listed for event in conversations.thread(id_).events()]
        assert listed == {id_: conversations.thread(id_).version for id_ in listed}
        assert seen == sorted(event.position or 0 for event in events)
