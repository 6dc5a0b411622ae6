"""Three tenants in one database never see each other's data.

On PostgreSQL the database isolates them, and a worker that sees all of them fills the projections. On SQLite Clew does.
The tenants use the same names for threads, scopes, documents and keys; each writes a unique word.
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
from tests.servers.row_level_security import Logins, isolate_tenants

from clew import Conversations, Document, Engine, Message
from clew.domain.errors import NotRedactableError, ThreadStatusError, UnknownThreadError
from clew.domain.streams import tenant_part
from clew.infrastructure.postgres.stream_ids import stream_id
from clew.service.projection_worker import Runner

T = TypeVar("T")

CAMPAIGN = 20
"""The number of generated databases at full scale."""

THREADS = ("t1", "t11", "t")
SCOPE = "user/1"
WORD = re.compile(r"zq[0-9]+x[0-9]+q")
OPEN_TO_ALL = {"clew_meta", "clew_generation", "clew_stretch", "clew_worker"}
"""Tables without data of tenants, which all roles may read."""

ON_THREADS = ("say", "fork", "mark", "redact", "edit", "rewind", "delete")
ON_OTHERS = ("remember", "retract", "file", "import", "move")

_steps = st.tuples(st.integers(0, 2), st.sampled_from(("say", *ON_THREADS, *ON_OTHERS)), st.sampled_from(THREADS))
_every = [
    (tenant_number, operation, "t1") for operation in (*ON_THREADS[:-1], *ON_OTHERS) for tenant_number in range(3)
]
_every += [(tenant_number, operation, "t11") for operation in ("say", "delete") for tenant_number in range(3)]


@dataclass
class Tenant:
    """A tenant and the data that it has stored."""

    name: str
    word: str
    engine: Engine
    folder: Path
    threads: set[str] = field(default_factory=set)
    facts: dict[str, str] = field(default_factory=dict)
    documents: set[str] = field(default_factory=set)
    numbers: Iterator[int] = field(default_factory=count)

    def say(self) -> str:
        return f"this is {self.word} number {next(self.numbers)}"

    async def do(self, operation: str, thread_id: str) -> None:
        """Do an operation; skip it if the thread refuses it."""
        if operation in ON_THREADS:
            self.threads.add(thread_id)
            with suppress(ThreadStatusError, NotRedactableError):
                await self._change(operation, await self.engine.open_thread(thread_id, actor=f"user:{self.word}"))
        elif operation == "remember":
            scope = await self.engine.memory(SCOPE)
            fact = await scope.remember(self.say())
            self.facts[fact.id] = fact.text
        elif operation == "retract" and self.facts:
            await (await self.engine.memory(SCOPE)).retract(self.facts.popitem()[0])
        elif operation == "file":
            store = await self.engine.documents("shelf", namespace="all")
            text = self.say()
            await store.upsert([Document(text, source_link=text, namespaces=["all"])])
            self.documents.add(text)
        elif operation == "import":
            item = {"id": "source", "messages": [{"role": "user", "content": f"this is {self.word} number one"}]}
            path = self.folder / f"{self.word}.json"
            path.write_text(json.dumps(item))
            report = await self.engine.import_files(path)
            assert not report.failed
        elif operation == "move":
            lines = [line async for line in self.engine.export_events()]
            moved = await self.engine.import_events(BytesIO(b"".join(lines)))
            assert not moved.failed

    async def _change(self, operation: str, thread: Any) -> None:
        if operation == "say":
            await thread.append(Message.user(self.say()), idempotency_key=f"key {next(self.numbers)}")
        elif operation == "fork":
            fork = await thread.fork(title=self.say())
            self.threads.add(fork.id)
        elif operation == "mark":
            await thread.label(of=self.word)
            await thread.checkpoint(f"checkpoint {self.word} {next(self.numbers)}")
        elif operation == "rewind":
            await thread.rewind(to=max(1, await _version(thread) - 1))
        elif operation == "delete":
            await thread.delete(reason=self.say())
        else:
            messages = (await thread.history()).messages
            if messages and operation == "redact":
                await thread.redact(messages[-1])
            elif messages:
                edited = await thread.edit(messages[-1], self.say())
                self.threads.add(edited.id)


@dataclass
class TenantDatabase:
    """A database and how to open it for a tenant."""

    folder: Path
    url: str
    logins: Logins | None = None
    numbers: Iterator[int] = field(default_factory=count)


@pytest.fixture(params=["sqlite", "bound"])
def database(request: pytest.FixtureRequest, file_url: str, tmp_path: Path) -> Iterator[TenantDatabase]:
    if request.param == "sqlite":
        yield TenantDatabase(tmp_path, file_url)
        return
    logins = isolate_tenants(request.getfixturevalue("postgres"))
    with _worker(logins.operator):
        yield TenantDatabase(tmp_path, logins.app, logins)


@contextmanager
def _worker(url: str) -> Iterator[None]:
    """Run a worker that fills the projections of all tenants."""
    with Conversations.open(url, embedded=False) as operator:
        runner = Runner(operator._core, [], lambda *_: None)
        thread = threading.Thread(target=runner.follow)
        thread.start()
        try:
            yield
        finally:
            runner.stop()
            thread.join()


def test_no_tenant_sees_data_of_another(database: TenantDatabase, scale: float) -> None:
    @settings(max_examples=max(1, round(CAMPAIGN * scale)))
    @given(steps=st.lists(_steps, max_size=25))
    @example(steps=_every)
    def check(steps: list[tuple[int, str, str]]) -> None:
        asyncio.run(_check(database, steps))

    check()


async def _check(database: TenantDatabase, steps: list[tuple[int, str, str]]) -> None:
    number = next(database.numbers)
    async with AsyncExitStack() as stack:
        tenants = []
        for index, name in enumerate((f"a{number}", f"a{number}/thread", f"ä %{number}")):
            engine = await stack.enter_async_context(Engine.open(database.url, tenant=name))
            tenants.append(Tenant(name, f"zq{number}x{index}q", engine, database.folder))
        for tenant_number, operation, thread_id in steps:
            await tenants[tenant_number].do(operation, thread_id)
        others = {thread_id for tenant in tenants for thread_id in tenant.threads}
        for tenant in tenants:
            shown = [each async for each in _all_reads(tenant)]
            assert set(WORD.findall(repr(shown))) <= {tenant.word}
            for thread_id in others - tenant.threads:
                with pytest.raises(UnknownThreadError):
                    await (await tenant.engine.thread(thread_id)).history()
    if database.logins is not None:
        for tenant in tenants:
            _check_tables(database.logins, tenant)


async def _all_reads(tenant: Tenant) -> AsyncIterator[object]:
    """Yield the results of all reads of a tenant."""
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
    passages = await store.search("this is number", top=100)
    assert {passage.text for passage in passages} == tenant.documents
    yield passages
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
    events = []
    async for event in subscription:
        events.append(event)
        if event.stream.endswith(f"/{thread_id}") and event.version == 2:
            return events
    raise AssertionError


async def _version(thread: Any) -> int:
    return int((await thread.summary()).version)


async def _all(items: AsyncIterable[T]) -> list[T]:
    return [each async for each in items]


def _check_tables(logins: Logins, tenant: Tenant) -> None:
    """Check that SQL on behalf of a tenant returns only its rows, from any table or view."""
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
                    owners = {row[columns.index("tenant")] for row in rows}
                    assert {each if isinstance(each, int) else bytes(each) for each in owners} <= numbers, name
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
