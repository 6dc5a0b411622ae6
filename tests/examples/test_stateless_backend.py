"""The example of a service without state between requests: one process per request, and concurrent requests."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from examples.stateless_backend import app

from clew import Conversations

EXAMPLES = Path(__file__).parent.parent.parent / "examples"

Talk = Callable[[httpx2.AsyncClient], Awaitable[Any]]


@pytest.fixture(autouse=True)
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    url = f"sqlite:///{tmp_path}/chat.db?synchronous=OFF"
    monkeypatch.setenv("CLEW_DB", url)
    return url


def with_service(talk: Talk) -> Any:
    """Call the function with a client of the service, which runs in this process."""

    async def connected() -> Any:
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://host") as client:
            return await talk(client)

    return asyncio.run(connected())


async def say(client: httpx2.AsyncClient, chat: str, text: str) -> dict[str, Any]:
    response = await client.post("/messages", json={"chat": chat, "text": text})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


@pytest.fixture
def address() -> Iterator[tuple[str, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", listening


def test_each_request_can_run_in_a_new_process(
    address: tuple[str, socket.socket], tmp_path: Path, database: str
) -> None:
    url, listening = address
    command = (sys.executable, "-m", "uvicorn", "--app-dir", str(EXAMPLES), "--log-level", "warning")
    answers: list[dict[str, Any]] = []
    requests = (
        ("/messages", {"chat": "any id / of the host's", "text": "Hello"}),
        ("/messages", {"chat": "any id / of the host's", "text": "Please book a seat"}),
        ("/decisions", {"chat": "any id / of the host's", "approved": True}),
    )
    for path, body in requests:
        with (tmp_path / "server.log").open("ab") as log:
            server = subprocess.Popen(
                [*command, "--fd", str(listening.fileno()), "stateless_backend:app"],
                pass_fds=(listening.fileno(),),
                stdout=log,
                stderr=log,
            )
        try:
            answers.append(httpx2.post(f"{url}{path}", json=body, timeout=60).json())
        finally:
            server.kill()
            server.wait()
    assert answers == [
        {"text": "That was message 1.", "waits_for": []},
        {"text": "", "waits_for": ['book({"seat": "7A"})']},
        {"text": "Done. Seat 7A is booked.", "waits_for": []},
    ]
    with Conversations.open(database, create=False) as conversations:
        assert conversations.verify().first_bad is None
        (summary,) = conversations.threads()
        assert (summary.id, summary.status) == ("any id / of the host's", "suspended")


def test_concurrent_requests_are_answered_one_after_another(database: str) -> None:
    async def at_once(client: httpx2.AsyncClient) -> list[str]:
        answers = await asyncio.gather(*(say(client, "a", f"Hello {number}") for number in range(8)))
        return sorted(each["text"] for each in answers)

    assert with_service(at_once) == [f"That was message {number}." for number in range(1, 9)]
    with Conversations.open(database, create=False) as conversations:
        assert len(conversations.thread("a").history()) == 16
        assert conversations.thread("a").status == "suspended"


def test_a_chat_can_move_to_another_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def here(client: httpx2.AsyncClient) -> Any:
        await say(client, "a", "Hello")
        await say(client, "a", "Please book a seat")
        return (await client.get("/document", params={"chat": "a"})).json()

    document = with_service(here)
    monkeypatch.setenv("CLEW_DB", f"sqlite:///{tmp_path}/other.db")

    async def there(client: httpx2.AsyncClient) -> None:
        refused = await client.put("/document", json={**document, "states": {"more": 1}})
        assert (refused.status_code, refused.json()["error"]["type"]) == (422, "ThreadDocumentError")
        assert (await client.put("/document", json=document)).json() == {"thread_id": "a"}
        waiting = await client.post("/messages", json={"chat": "a", "text": "Well?"})
        assert (waiting.status_code, waiting.json()["error"]["type"]) == (409, "ApprovalPendingError")
        decided = await client.post("/decisions", json={"chat": "a", "approved": False})
        assert decided.json()["text"].startswith("Done. ")
        again = await client.put("/document", json=document)
        assert (again.status_code, again.json()["error"]["type"]) == (409, "ThreadAheadError")

    with_service(there)
