"""The example of a FastAPI service, as a real server: a hundred concurrent clients, kill -9, live events, errors."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.examples.service_process import Server

from clew import Conversations

APP = "examples.fastapi_service:app"

CLIENTS = 100
ROOMS = 10


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = Server(tmp_path, APP)
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    """A client of a server that several tests share. Each test has its own threads."""
    started = Server(tmp_path_factory.mktemp("service"), APP)
    try:
        with httpx2.Client(base_url=started.address, timeout=60) as connected:
            yield connected
    finally:
        started.stop()


def words(text: str) -> dict[str, Any]:
    return {"role": "user", "contents": [{"type": "text", "text": text}]}


def error_of(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["type"]


class Crowd:
    """A hundred clients in ten rooms. Each sends its messages in order, and repeats each one until it is answered."""

    def __init__(self, server: Server, messages: int) -> None:
        self.server = server
        self.messages = messages
        self.acknowledged: dict[str, list[tuple[int, str]]] = {f"room-{number}": [] for number in range(ROOMS)}
        self.repeated = 0
        self.half_done = asyncio.Event()

    async def run(self) -> None:
        limits = httpx2.Limits(max_connections=CLIENTS)
        async with httpx2.AsyncClient(base_url=self.server.address, timeout=60, limits=limits) as client:
            for room in self.acknowledged:
                (await client.post("/threads", json={"thread_id": room})).raise_for_status()
            talks = [asyncio.create_task(self.talk(client, number)) for number in range(CLIENTS)]
            await self.half_done.wait()
            self.server.kill()
            self.server.start()
            await asyncio.gather(*talks)
            await asyncio.gather(*(self.repeat(client, room) for room in self.acknowledged))

    async def talk(self, client: httpx2.AsyncClient, number: int) -> None:
        room = f"room-{number % ROOMS}"
        for turn in range(self.messages):
            text = f"client {number} says {turn}"
            answer = await self.send(client, room, text)
            assert answer.status_code == 201, answer.text
            self.acknowledged[room].append((answer.json()["version"], text))
            if sum(map(len, self.acknowledged.values())) == CLIENTS * self.messages // 2:
                self.half_done.set()

    async def repeat(self, client: httpx2.AsyncClient, room: str) -> None:
        """Send acknowledged messages again, as clients do that lost the answer."""
        for version, text in self.acknowledged[room][::4]:
            assert (await self.send(client, room, text)).json()["version"] == version

    async def send(self, client: httpx2.AsyncClient, room: str, text: str) -> httpx2.Response:
        while True:
            try:
                return await client.post(
                    f"/threads/{room}/messages", json=words(text), headers={"Idempotency-Key": text}
                )
            except httpx2.TransportError:
                self.repeated += 1


def test_a_kill_with_a_hundred_clients_loses_and_duplicates_no_message(server: Server, scale: float) -> None:
    crowd = Crowd(server, messages=max(3, round(20 * scale)))
    asyncio.run(crowd.run())
    assert crowd.repeated, "the kill interrupted no request"
    assert sum(map(len, crowd.acknowledged.values())) == CLIENTS * crowd.messages
    with Conversations.open(server.database, create=False) as conversations:
        for room, acknowledged in crowd.acknowledged.items():
            history = conversations.thread(room).history()
            stored = [(message.version, message.text) for message in history]
            assert Counter(stored) == Counter(acknowledged)
            for number in range(int(room.removeprefix("room-")), CLIENTS, ROOMS):
                of_client = [text for _, text in stored if text.startswith(f"client {number} ")]
                assert of_client == [f"client {number} says {turn}" for turn in range(crowd.messages)]
        assert conversations.verify().first_bad is None


async def server_sent(answer: httpx2.Response) -> AsyncIterator[dict[str, str]]:
    """The fields of each server-sent event of a response."""
    fields: dict[str, str] = {}
    async for line in answer.aiter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif fields:
            yield fields
            fields = {}


def test_a_client_sees_live_events_and_continues_where_it_stopped(server: Server) -> None:
    async def follow() -> None:
        async with httpx2.AsyncClient(base_url=server.address, timeout=60) as client:
            await client.post("/threads", json={"thread_id": "live"})
            async with client.stream("GET", "/threads/live/events") as answer:
                assert answer.headers["content-type"].startswith("text/event-stream")
                events = server_sent(answer)
                first = await anext(events)
                assert (first["id"], first["event"]) == ("1", "thread-started")
                for version, text in enumerate(("One", "Two"), start=2):
                    await client.post("/threads/live/messages", json=words(text), headers={"X-Actor": "user:42"})
                    event = await anext(events)
                    assert (event["id"], event["event"]) == (str(version), "message-appended")
                    payload = json.loads(event["data"])
                    assert payload == {"actor": "user:42", "data": {"message": words(text)}}
            again = {"Last-Event-ID": "2"}
            async with client.stream("GET", "/threads/live/events", headers=again) as answer:
                assert (await anext(server_sent(answer)))["id"] == "3"

    asyncio.run(follow())


def test_the_server_stops_on_request_while_a_client_listens(server: Server) -> None:
    with httpx2.Client(base_url=server.address, timeout=60) as client:
        client.post("/threads", json={"thread_id": "live"})
        with client.stream("GET", "/threads/live/events") as answer:
            assert "thread-started" in next(answer.iter_lines())
            server.process.terminate()
            server.process.wait(timeout=30)
    with Conversations.open(server.database, create=False) as conversations:
        assert conversations.thread("live").version == 1


def test_a_conversation_can_be_continued_read_at_a_time_and_forked(client: httpx2.Client) -> None:
    created = client.post("/threads", json={"thread_id": "refund", "title": "Refund"})
    assert (created.status_code, created.json()["status"]) == (201, "active")
    sent = client.post("/threads/refund/messages", json=words("Where is my parcel?"), headers={"X-Actor": "user:42"})
    assert (sent.status_code, sent.json()["actor"], sent.headers["ETag"]) == (201, "user:42", '"2"')
    client.post("/threads/refund/messages", json=words("Hello?"), headers={"If-Match": sent.headers["ETag"]})

    now = client.get("/threads/refund")
    assert now.headers["ETag"] == '"3"'
    assert [each["message"] for each in now.json()] == [words("Where is my parcel?"), words("Hello?")]
    for at in ("2", sent.json()["time"]):
        assert client.get("/threads/refund", params={"at": at}).json() == now.json()[:1]

    branch = client.post("/threads/refund/fork", params={"at": 2}, json={"title": "What if"})
    assert (branch.status_code, branch.json()["parent_id"], branch.json()["title"]) == (201, "refund", "What if")
    assert client.get(f"/threads/{branch.json()['id']}").json() == now.json()[:1]


def test_a_repeated_request_gets_the_first_answer(client: httpx2.Client) -> None:
    client.post("/threads", json={"thread_id": "retry"})
    key = {"Idempotency-Key": "turn-1"}
    first = client.post("/threads/retry/messages", json=words("Once."), headers=key)
    again = client.post("/threads/retry/messages", json=words("Once."), headers=key)
    assert (again.status_code, again.json()) == (201, first.json())
    assert len(client.get("/threads/retry").json()) == 1
    other = client.post("/threads/retry/messages", json=words("Twice."), headers=key)
    assert error_of(other) == (422, "IdempotencyKeyReusedError")


def test_a_conflicting_append_overwrites_nothing(client: httpx2.Client) -> None:
    client.post("/threads", json={"thread_id": "race"})
    seen = {"If-Match": '"1"'}
    assert client.post("/threads/race/messages", json=words("First."), headers=seen).status_code == 201
    late = client.post("/threads/race/messages", json=words("Late."), headers=seen)
    assert error_of(late) == (412, "ConflictError")
    assert len(client.get("/threads/race").json()) == 1


def test_every_error_has_its_status_code(client: httpx2.Client) -> None:
    client.post("/threads", json={"thread_id": "taken"})
    post, get = client.post, client.get
    assert error_of(post("/threads", json={"thread_id": "taken"})) == (409, "ThreadExistsError")
    assert error_of(post("/threads", json={"thread_id": "x" * 201})) == (422, "InvalidNameError")
    assert error_of(get("/threads/missing")) == (404, "UnknownThreadError")
    assert error_of(get("/threads/missing/events")) == (404, "UnknownThreadError")
    assert error_of(get("/threads/taken?at=9")) == (404, "UnknownVersionError")
    assert error_of(get("/threads/taken?at=before")) == (404, "UnknownCheckpointError")
    assert error_of(get("/threads/taken?at=2026-01-31T12:00:00")) == (422, "InvalidTimeError")
    surrogate = b'{"role": "user", "contents": [{"type": "text", "text": "\\ud800"}]}'
    as_json = {"Content-Type": "application/json"}
    broken = post("/threads/taken/messages", content=surrogate, headers=as_json)
    assert error_of(broken) == (422, "InvalidContentError")
    assert post("/threads/taken/messages", json={"role": "ghost", "contents": []}).status_code == 422
    assert post("/threads/taken/messages", json=words("x"), headers={"If-Match": '"new"'}).status_code == 422
    assert get("/threads/taken").json() == []


def test_the_service_reports_threads_that_another_process_ended_or_deleted(server: Server) -> None:
    with httpx2.Client(base_url=server.address, timeout=60) as client:
        for name in ("over", "gone"):
            client.post("/threads", json={"thread_id": name})
        with Conversations.open(server.database, create=False) as conversations:
            conversations.thread("over").end(reason="solved")
            conversations.thread("gone").delete()
        assert error_of(client.post("/threads/over/messages", json=words("One more."))) == (409, "ThreadStatusError")
        assert error_of(client.post("/threads/gone/messages", json=words("Hello?"))) == (410, "ThreadDeletedError")
        assert error_of(client.get("/threads/gone")) == (410, "ThreadDeletedError")
