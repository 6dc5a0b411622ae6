"""The reference chat service, as a real process with a real model server: each feature, and hostile users."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, Self

import httpx2
import pytest
from tests.examples.service_process import Server
from tests.servers.aimock_server import Aimock, ToolCall

from clew import Conversations

pytestmark = pytest.mark.anyio

APP = "examples.chat_service:app"
WORDS = " ".join(f"word-{number}" for number in range(40))
PNG = b"\x89PNG\r\n\x1a\n" + bytes(3_000)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def server(running_aimock: Aimock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = {"OPENAI_BASE_URL": running_aimock.base_url, "OPENAI_API_KEY": "sk-test"}
    started = Server(tmp_path_factory.mktemp("chats"), APP, **settings)
    yield started
    started.stop()


class Browser:
    """A signed-in user. Each has one chat at a time, and a new key for each turn unless one is given."""

    def __init__(self, server: Server, name: str, password: str = "demo") -> None:  # noqa: S107  # the stub's
        self.name = name
        self.http = httpx2.AsyncClient(base_url=server.address, auth=(name, password), timeout=60)
        self.chat = ""
        self._keys = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()

    async def post(
        self, path: str, body: Any = None, *, key: str | None = None, method: str = "POST"
    ) -> httpx2.Response:
        self._keys += key is None
        headers = {"Idempotency-Key": key or f"key-{self._keys}"}
        return await self.http.request(method, path, json=body, headers=headers)

    async def begin(self, text: str, **turn: Any) -> str:
        """Send a message to the chat, or start one; returns the id of the run."""
        body = {"text": text, **turn}
        answer = await self.post(f"/chats/{self.chat}/messages" if self.chat else "/chats", body)
        assert answer.status_code == 202, answer.text
        self.chat = answer.json()["chat"]
        run: str = answer.json()["run"]
        return run

    async def ask(self, text: str, **turn: Any) -> list[dict[str, Any]]:
        """Send a message and wait for the answer; returns the messages of the chat."""
        await self.end(await self.begin(text, **turn))
        return await self.messages()

    async def end(self, run: str) -> Any:
        """How a run ended."""
        return [each async for each in self.events(run)][-1][2]

    async def messages(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.http.get(f"/chats/{self.chat}")).json()["messages"]
        return found

    async def texts(self) -> list[str]:
        return [each["text"] for each in await self.messages()]

    async def events(self, run: str, after: str = "") -> AsyncIterator[tuple[str, str, Any]]:
        """The id, the type and the data of each server-sent event of a run."""
        async with self.http.stream("GET", f"/chats/{self.chat}/runs/{run}", headers={"Last-Event-ID": after}) as reply:
            assert reply.status_code == 200, await reply.aread()
            fields: dict[str, str] = {}
            async for line in reply.aiter_lines():
                if line:
                    name, _, value = line.partition(": ")
                    fields[name] = value
                elif "data" in fields:
                    yield fields.get("id", ""), fields["event"], json.loads(fields["data"])
                    fields = {}


def said(*events: tuple[str, str, Any]) -> str:
    return "".join(data["text"] for _, type_, data in events if type_ == "text")


async def test_an_answer_streams_and_a_client_continues_where_it_stopped(server: Server, aimock: Aimock) -> None:
    aimock.reply("Count", text=WORDS, delay=0.05)
    async with Browser(server, "ann") as ann:
        run = await ann.begin("Count.")
        first = []
        async for event in ann.events(run):
            first.append(event)
            if len(first) == 2:
                break
        assert (await ann.http.get(f"/chats/{ann.chat}")).json()["run"] == run
        rest = [event async for event in ann.events(run, after=first[-1][0])]
        assert said(*first, *rest) == WORDS
        assert [type_ for _, type_, _ in rest][-2:] == ["answer", "end"]
        assert rest[-1][2] == "stop"
        again = [event async for event in ann.events(run)]
        assert said(*again) == WORDS
        assert (await ann.http.get(f"/chats/{ann.chat}")).json()["run"] is None
        assert await ann.texts() == ["Count.", WORDS]


async def test_a_repeated_turn_is_answered_once_and_a_second_one_at_once_is_refused(
    server: Server, aimock: Aimock
) -> None:
    aimock.reply("Count", text=WORDS, delay=0.02)
    async with Browser(server, "ben") as ben:
        starts = [await ben.post("/chats", {"text": "Count."}, key="k") for _ in range(3)]
        assert len({each.text for each in starts}) == 1
        ben.chat, run = starts[0].json()["chat"], starts[0].json()["run"]
        other = await ben.post(f"/chats/{ben.chat}/messages", {"text": "And more."})
        assert (other.status_code, other.json()["error"]["type"]) == (409, "RunInProgressError")
        reused = await ben.post("/chats", {"text": "Count!"}, key="k")
        assert (reused.status_code, reused.json()["error"]["type"]) == (422, "IdempotencyKeyReusedError")
        assert await ben.end(run) == "stop"
        assert (await ben.post("/chats", {"text": "Count."}, key="k")).text == starts[0].text
        assert len(await ben.texts()) == 2
        assert len(aimock.journal()) == 1


async def test_a_stopped_run_keeps_its_text(server: Server, aimock: Aimock) -> None:
    aimock.reply("Count", text=WORDS, delay=0.05)
    async with Browser(server, "cleo") as cleo:
        run = await cleo.begin("Count.")
        async for _ in cleo.events(run):
            break
        assert (await cleo.post(f"/chats/{cleo.chat}/runs/{run}/stop")).status_code == 204
        assert await cleo.end(run) == "abandoned"
        _, text = await cleo.texts()
        assert 0 < len(text) < len(WORDS)
        assert WORDS.startswith(text)


async def test_edits_and_new_answers_are_variants_between_which_a_user_flips(server: Server, aimock: Aimock) -> None:
    for text in ("one", "two", "three", "deux"):
        aimock.reply(text, text=text.upper(), nth=0)
    aimock.reply("deux", text="Encore")
    async with Browser(server, "dora") as dora:
        await dora.ask("one")
        second = (await dora.ask("two"))[2]
        await dora.ask("three")
        place = f"/chats/{dora.chat}/messages/{second['version']}"
        edits = [await dora.post(place, {"text": "deux"}, key="edit", method="PUT") for _ in range(2)]
        assert edits[0].text == edits[1].text
        await dora.end(edits[0].json()["run"])
        messages = await dora.messages()
        assert [each["text"] for each in messages] == ["one", "ONE", "deux", "DEUX"]
        again = await dora.post(f"/chats/{dora.chat}/messages/{messages[2]['version']}/answers")
        await dora.end(again.json()["run"])
        assert await dora.texts() == ["one", "ONE", "deux", "Encore"]

        variants = (await dora.http.get(f"{place}/variants")).json()
        assert [each["text"] for each in variants] == ["two", "deux"]
        assert (await dora.post(f"{place}/show")).status_code == 204
        assert await dora.texts() == ["one", "ONE", "two", "TWO", "three", "THREE"]
        await dora.post(f"/chats/{dora.chat}/messages/{variants[1]['version']}/show")
        assert await dora.texts() == ["one", "ONE", "deux", "Encore"]
        await dora.post(f"/chats/{dora.chat}/messages/{messages[3]['version']}/show")
        assert await dora.texts() == ["one", "ONE", "deux", "DEUX"]
        assert [each["id"] for each in (await dora.http.get("/chats")).json()] == [dora.chat]


async def test_a_call_waits_for_approval(server: Server, aimock: Aimock) -> None:
    aimock.reply("money", tool_calls=[ToolCall("refund", {"order": 7, "cents": 4800})], after_tools=False)
    aimock.reply("money", text="It is paid back.", after_tools=True)
    async with Browser(server, "eve") as eve:
        run = await eve.begin("I want my money.")
        assert await eve.end(run) == "waits"
        (waiting,) = (await eve.http.get(f"/chats/{eve.chat}")).json()["approvals"]
        assert (waiting["call"]["name"], json.loads(waiting["call"]["arguments"])) == (
            "refund",
            {"order": 7, "cents": 4800},
        )
        busy = await eve.post(f"/chats/{eve.chat}/messages", {"text": "Well?"})
        assert (busy.status_code, busy.json()["error"]["type"]) == (409, "ApprovalPendingError")
        place = f"/chats/{eve.chat}/approvals/{waiting['version']}"
        assert (await eve.post(f"{place}0", {"approved": True})).status_code == 404
        decided = [await eve.post(place, {"approved": True}) for _ in range(2)]
        assert decided[0].status_code == 204
        assert decided[1].status_code == 409
        assert await eve.end(run) == "stop"
        assert [each["role"] for each in await eve.messages()] == ["user", "assistant", "tool", "assistant"]


async def test_files_are_sent_to_the_model_and_downloaded(server: Server, aimock: Aimock) -> None:
    aimock.reply("Look", text="I see.")
    async with Browser(server, "fay") as fay:
        files = {"a.png": base64.b64encode(PNG).decode(), "page.html": base64.b64encode(b"<script>").decode()}
        message = (await fay.ask("Look:", files=files))[0]
        assert [each["name"] for each in message["files"]] == ["a.png", "page.html"]
        place = f"/chats/{fay.chat}/messages/{message['version']}/files"
        image, page = [await fay.http.get(f"{place}/{each['index']}") for each in message["files"]]
        assert (image.content, image.headers["content-type"]) == (PNG, "image/png")
        assert page.headers["content-disposition"] == "attachment"
        assert page.headers["x-content-type-options"] == "nosniff"
        assert [(await fay.http.get(f"{place}/{index}")).status_code for index in (0, 7)] == [404, 404]
        body = json.dumps(aimock.journal()[0].body)
        assert base64.b64encode(PNG).decode() in body
        assert (await fay.http.delete(f"/chats/{fay.chat}")).status_code == 204
        assert (await fay.http.get(f"{place}/1")).status_code == 404
        assert (await fay.http.get("/chats")).json() == []


async def test_a_user_sees_what_all_variants_cost(server: Server, aimock: Aimock) -> None:
    aimock.reply("Hello", text="Hi.", usage=(11, 5))
    async with Browser(server, "guy") as guy:
        message = (await guy.ask("Hello"))[0]
        again = await guy.post(f"/chats/{guy.chat}/messages/{message['version']}/answers")
        await guy.end(again.json()["run"])
        whole, one = [(await guy.http.get("/costs", params=each)).json() for each in ({}, {"chat_id": guy.chat})]
        assert [(each["input"], each["output"], each["unpriced"]) for each in whole] == [(22, 10, 0)]
        assert Decimal(whole[0]["dollars"]) == (22 * Decimal("0.75") + 10 * Decimal("4.50")) / 1_000_000
        assert one == whole


async def test_a_user_reaches_no_chat_of_another_user(server: Server, aimock: Aimock) -> None:
    aimock.reply("secret", text="Noted.")
    async with Browser(server, "gil") as gil, Browser(server, "hal") as hal, Browser(server, "gil", "guess") as thief:
        run = await gil.begin("secret")
        await gil.end(run)
        chat, version = f"/chats/{gil.chat}", (await gil.messages())[0]["version"]
        place, turn = f"{chat}/messages/{version}", {"text": "Hello."}
        for user, code in ((hal, 404), (thief, 401)):
            replies = [
                await user.http.get(chat),
                await user.http.get(f"{chat}/runs/{run}"),
                await user.http.get("/costs", params={"chat_id": gil.chat}),
                await user.http.get(f"{place}/variants"),
                await user.http.get(f"{place}/files/0"),
                await user.http.get("/chats", params={"after": gil.chat}),
                await user.http.delete(chat),
                await user.post(f"{chat}/messages", turn),
                await user.post(place, turn, method="PUT"),
                await user.post(f"{place}/answers"),
                await user.post(f"{place}/show"),
                await user.post(f"{chat}/runs/{run}/stop"),
                await user.post(f"{chat}/approvals/{version}", {"approved": True}),
            ]
            assert [each.status_code for each in replies] == [code] * len(replies)
            assert not any("secret" in each.text or "Noted" in each.text for each in replies)
        assert (await hal.http.get("/chats")).json() == (await hal.http.get("/costs")).json() == []
        await hal.begin("secret")
        assert hal.chat != gil.chat, "the same key of another user"
        assert await gil.texts() == ["secret", "Noted."]


async def test_forged_requests_are_refused_and_change_nothing(server: Server, aimock: Aimock) -> None:
    aimock.reply("Hello", text="Hi.")
    async with Browser(server, "ida") as ida:
        run = await ida.begin("Hello")
        await ida.end(run)
        chat, turn = f"/chats/{ida.chat}", {"text": "x"}
        codes = {
            404: [
                await ida.http.get(f"{chat}/runs/nope"),
                *[
                    await ida.http.get(f"{chat}/runs/{run}", headers={"Last-Event-ID": each})
                    for each in ("x", "1-1", "9" * 5000)
                ],
                await ida.http.get("/chats/nope"),
                await ida.http.get(chat, params={"before": 99}),
                await ida.post(f"{chat}/messages/99/answers"),
                await ida.post(f"{chat}/messages/99", turn, method="PUT"),
                await ida.post(f"{chat}/messages/0/show"),
                await ida.post(f"{chat}/messages/1", turn, method="PUT"),
                await ida.http.get(chat, params={"before": 1}),
            ],
            422: [
                await ida.post(f"{chat}/messages", {"text": ""}),
                await ida.post(f"{chat}/messages", {"text": "x" * 100_001}),
                await ida.post(f"{chat}/messages", {"text": "x", "files": {"a": "eA=="}}),
                await ida.post(f"{chat}/messages", {"text": "x", "files": {"a.png\r\nb: c": ""}}),
                await ida.post(f"{chat}/messages", turn, key="x" * 201),
                await ida.http.post(f"{chat}/messages", json=turn),
                await ida.http.post(
                    f"{chat}/messages",
                    content=b'{"text": "\\ud800"}',
                    headers={"Idempotency-Key": "s", "Content-Type": "application/json"},
                ),
            ],
            413: [
                await ida.http.post(f"{chat}/messages", content=b" " * (16 * 1024 * 1024 + 1)),
                await ida.http.post(f"{chat}/messages", content=_large()),
            ],
        }
        for code, replies in codes.items():
            assert [each.status_code for each in replies] == [code] * len(replies), [
                each.text[:200] for each in replies
            ]
        assert await ida.texts() == ["Hello", "Hi."]
        assert (await ida.http.get("/chats/..%2Fchats")).status_code == 404


async def _large() -> AsyncIterator[bytes]:
    for _ in range(260):
        yield b" " * 65_536


async def test_the_log_of_the_service_verifies_and_has_no_errors(server: Server) -> None:
    with Conversations.open(server.database, create=False) as conversations:
        assert conversations.verify().first_bad is None
    assert "Traceback" not in server.log.read_text()


def test_the_service_has_fewer_than_two_hundred_lines_of_code() -> None:
    import ast

    source = (Path(__file__).parent.parent.parent / "examples" / "chat_service.py").read_text(encoding="utf-8")
    docstrings = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for line in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    lines = [line for number, line in enumerate(source.split("\n"), 1) if line.strip() and number not in docstrings]
    assert len(lines) < 200
