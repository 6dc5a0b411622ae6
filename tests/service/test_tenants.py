"""Whatever three tenants do in one database, nobody is shown anything of another's.

On PostgreSQL the database itself keeps them apart, and a worker that sees all of them fills what they read. On SQLite
Clew does. The tenants have threads, scopes, documents and keys of the same names, and each says a word of its own.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from psycopg.sql import SQL, Identifier, Literal
from tests.servers.tenanted import Logins, keep_apart

from clew import Conversations, Document, Engine, Message
from clew.domain.errors import NotRedactableError, ThreadStatusError, UnknownThreadError
from clew.domain.streams import tenant_part
from clew.infrastructure.postgres.stream_ids import stream_id
from clew.service.projection_runner import Runner

T = TypeVar("T")

CAMPAIGN = 20
"""Made databases of a full campaign."""

THREADS = ("t1", "t11", "t")
SCOPE = "user/1"
WORD = re.compile(r"zq[0-9]+x[0-9]+q")
OPEN_TO_ALL = {"clew_meta", "clew_generation", "clew_stretch", "clew_worker"}
"""Tables that hold nothing of any tenant's, and that everybody may read."""

OF_THREADS = ("say", "fork", "mark", "redact", "edit", "rewind", "delete")
OTHERS = ("remember", "retract", "file", "import", "move")

_steps = st.tuples(st.integers(0, 2), st.sampled_from(("say", *OF_THREADS, *OTHERS)), st.sampled_from(THREADS))
_every = [(who, what, "t1") for what in (*OF_THREADS[:-1], *OTHERS) for who in range(3)]
_every += [(who, what, "t11") for what in ("say", "delete") for who in range(3)]


@dataclass
class Tenant:
    """What one tenant has said, and what is there of it."""

    name: str
    word: str
    engine: Engine
    folder: Path
    threads: set[str] = field(default_factory=set)
    facts: dict[str, str] = field(default_factory=dict)
    documents: set[str] = field(default_factory=set)
    said: Iterator[int] = field(default_factory=count)

    def say(self) -> str:
        return f"this is {self.word} number {next(self.said)}"

    async def do(self, what: str, thread_id: str) -> None:
        """Do something; what the thread does not allow is not done."""
        if what in OF_THREADS:
            self.threads.add(thread_id)
            with suppress(ThreadStatusError, NotRedactableError):
                await self._change(what, await self.engine.open_thread(thread_id, actor=f"user:{self.word}"))
        elif what == "remember":
            scope = await self.engine.memory(SCOPE)
            fact = await scope.remember(self.say())
            self.facts[fact.id] = fact.text
        elif what == "retract" and self.facts:
            await (await self.engine.memory(SCOPE)).retract(self.facts.popitem()[0])
        elif what == "file":
            store = await self.engine.documents("shelf", namespace="all")
            text = self.say()
            await store.upsert([Document(text, source_link=text, namespaces=["all"])])
            self.documents.add(text)
        elif what == "import":
            item = {"id": "source", "messages": [{"role": "user", "content": f"this is {self.word} number one"}]}
            path = self.folder / f"{self.word}.json"
            path.write_text(json.dumps(item))
            report = await self.engine.import_files(path)
            assert not report.failed
        elif what == "move":
            lines = [line async for line in self.engine.export_events()]
            moved = await self.engine.import_events(BytesIO(b"".join(lines)))
            assert not moved.failed

    async def _change(self, what: str, thread: Any) -> None:
        if what == "say":
            await thread.append(Message.user(self.say()), idempotency_key=f"key {next(self.said)}")
        elif what == "fork":
            fork = await thread.fork(title=self.say())
            self.threads.add(fork.id)
        elif what == "mark":
            await thread.label(of=self.word)
            await thread.checkpoint(f"checkpoint {self.word} {next(self.said)}")
        elif what == "rewind":
            await thread.rewind(to=max(1, await _version(thread) - 1))
        elif what == "delete":
            await thread.delete(reason=self.say())
        else:
            messages = (await thread.history()).messages
            if messages and what == "redact":
                await thread.redact(messages[-1])
            elif messages:
                edited = await thread.edit(messages[-1], self.say())
                self.threads.add(edited.id)


@dataclass
class House:
    """A database, and how to open it for a tenant."""

    folder: Path
    url: str
    logins: Logins | None = None
    numbers: Iterator[int] = field(default_factory=count)


@pytest.fixture(params=["sqlite", "bound"])
def house(request: pytest.FixtureRequest, file_url: str, tmp_path: Path) -> Iterator[House]:
    if request.param == "sqlite":
        yield House(tmp_path, file_url)
        return
    logins = keep_apart(request.getfixturevalue("postgres"))
    with _worker(logins.operator):
        yield House(tmp_path, logins.app, logins)


@contextmanager
def _worker(url: str) -> Iterator[None]:
    """Somebody who fills the projections of all tenants."""
    with Conversations.open(url, embedded=False) as operator:
        runner = Runner(operator._core, [], lambda *_: None)
        thread = threading.Thread(target=runner.follow)
        thread.start()
        try:
            yield
        finally:
            runner.stop()
            thread.join()


def test_nothing_of_another_tenant_is_ever_shown(house: House, scale: float) -> None:
    @settings(max_examples=max(1, round(CAMPAIGN * scale)))
    @given(steps=st.lists(_steps, max_size=25))
    @example(steps=_every)
    def check(steps: list[tuple[int, str, str]]) -> None:
        asyncio.run(_check(house, steps))

    check()


async def _check(house: House, steps: list[tuple[int, str, str]]) -> None:
    number = next(house.numbers)
    async with AsyncExitStack() as stack:
        tenants = []
        for index, name in enumerate((f"a{number}", f"a{number}/thread", f"ä %{number}")):
            engine = await stack.enter_async_context(Engine.open(house.url, tenant=name))
            tenants.append(Tenant(name, f"zq{number}x{index}q", engine, house.folder))
        for who, what, thread_id in steps:
            await tenants[who].do(what, thread_id)
        others = {thread_id for tenant in tenants for thread_id in tenant.threads}
        for tenant in tenants:
            shown = [each async for each in _everything(tenant)]
            assert set(WORD.findall(repr(shown))) <= {tenant.word}
            for thread_id in others - tenant.threads:
                with pytest.raises(UnknownThreadError):
                    await (await tenant.engine.thread(thread_id)).history()
    if house.logins is not None:
        for tenant in tenants:
            _look(house.logins, tenant)


async def _everything(tenant: Tenant) -> AsyncIterator[object]:
    """All that the service has to say to a tenant."""
    engine = tenant.engine
    last = await engine.start_thread(messages=[Message.user(tenant.say())])
    tenant.threads.add(last.id)
    summaries = await _all(engine.threads())
    imported = {each.id for each in summaries if each.imported}
    assert {each.id for each in summaries} == tenant.threads | imported
    yield summaries
    yield await _all(engine.tree())
    for summary in summaries:
        if summary.status != "deleted":
            async for each in _of_thread(tenant, summary.id):
                yield each
    hits = await engine.search(f"{tenant.word} number")
    assert hits
    yield hits
    words = [await engine.search("number"), await engine.search("this is"), await engine.search("zq*")]
    assert all(words)
    yield words
    yield await _all(engine.audit())
    for by in ("total", "thread", "day"):
        yield await engine.usage(by=by)
    (total,) = await engine.usage()
    assert total.threads == len(tenant.threads | imported)
    yield await _all(engine.export(forks=True))
    yield b"".join(await _all(engine.export_events(definitions=True))).decode()
    yield await _upto(engine.subscribe(), last.id)
    scope = await engine.memory(SCOPE)
    facts = await scope.facts()
    assert {fact.text for fact in facts} == set(tenant.facts.values())
    yield facts
    yield await scope.search("this is number", top=100)
    yield await _all(engine.scopes())
    store = await engine.documents("shelf", namespace="all")
    found = await store.search("this is number", top=100)
    assert {passage.text for passage in found} == tenant.documents
    yield found
    assert (await engine.verify()).first_bad is None
    yield await engine.projections()


async def _of_thread(tenant: Tenant, thread_id: str) -> AsyncIterator[object]:
    engine = tenant.engine
    thread: Any = await engine.thread(thread_id)
    assert await engine.find(thread_id) == thread_id
    history = await thread.history()
    yield history
    yield await thread.view()
    yield await thread.markdown()
    yield await thread.serialize()
    version = await _version(thread)
    for at in {1, version // 2 or 1, version}:
        yield await thread.history(at=at), await thread.state(at=at), await thread.step(at=at)
    yield await _all(thread.events())
    yield await _all(thread.replay())
    yield await thread.forks()
    yield await _all(engine.audit(thread=thread_id))
    yield await engine.search("number", thread=thread_id)
    yield await engine.diff(thread_id, thread_id)
    subscription = thread.subscribe()
    yield [await anext(subscription) for _ in range(len(await _all(thread.events())))]
    assert (await thread.verify()).first_bad is None


async def _upto(subscription: Any, thread_id: str) -> list[object]:
    found = []
    async for event in subscription:
        found.append(event)
        if event.stream.endswith(f"/{thread_id}") and event.version == 2:
            return found
    raise AssertionError


async def _version(thread: Any) -> int:
    return int((await thread.summary()).version)


async def _all(found: AsyncIterable[T]) -> list[T]:
    return [each async for each in found]


def _look(logins: Logins, tenant: Tenant) -> None:
    """What SQL finds, of whatever table or view there is, on behalf of a tenant."""
    numbers = {stream_id(tenant_part(tenant.name)), tenant.name.encode()}
    with psycopg.connect(logins.app, autocommit=True) as connection:
        for name, columns in connection.execute(_RELATIONS).fetchall():
            with connection.transaction():
                connection.execute(SQL("SET LOCAL clew.tenant = {}").format(Literal(tenant_part(tenant.name))))
                try:
                    rows = connection.execute(SQL("SELECT * FROM {}").format(Identifier(name))).fetchall()
                except psycopg.errors.InsufficientPrivilege:
                    continue
                assert set(WORD.findall(repr(rows))) <= {tenant.word}, name
                if "tenant" in columns:
                    whose = {row[columns.index("tenant")] for row in rows}
                    assert {each if isinstance(each, int) else bytes(each) for each in whose} <= numbers, name
                else:
                    assert name in OPEN_TO_ALL
            if "tenant" in columns:
                assert connection.execute(SQL("SELECT count(*) FROM {}").format(Identifier(name))).fetchall() == [(0,)]


_RELATIONS = """
SELECT relname, (
    SELECT array_agg(attname::text ORDER BY attnum) FROM pg_attribute
    WHERE attrelid = pg_class.oid AND attnum > 0 AND NOT attisdropped
)
FROM pg_class WHERE relname LIKE 'clew%' AND relkind IN ('r', 'p', 'v', 'm', 'f') ORDER BY relname
"""
