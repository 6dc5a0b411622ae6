"""The reference chat service under a crowd: disconnects, repeated turns, a kill in mid-stream and a restart."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from pathlib import Path

import httpx2
import pytest
from tests.examples.service_process import Server
from tests.examples.test_chat_service import Browser
from tests.servers.aimock_server import Aimock

from clew import Conversations

pytestmark = pytest.mark.anyio

TURNS = 3
LEASE = 31


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Client(Browser):
    """A user with one chat, who loses connections, sends turns twice and tries to read the chats of others."""

    def __init__(self, crowd: Crowd, number: int) -> None:
        super().__init__(crowd.server, f"user{number}")
        self.crowd = crowd
        self.number = number
        self.random = random.Random(number)
        self.seconds: list[float] = []

    async def talk(self) -> None:
        for turn in range(TURNS):
            began = time.monotonic()
            run = await self.send(turn)
            await self.read(run, turn)
            self.seconds.append(time.monotonic() - began)
            self.crowd.answered += 1
            self.crowd.moved.set()

    async def send(self, turn: int) -> str:
        """Send a turn until it is accepted, sometimes twice at once; returns its run."""
        path = f"/chats/{self.chat}/messages" if self.chat else "/chats"
        body, key = {"text": self.crowd.question(self.number, turn)}, f"turn-{turn}"
        while True:
            try:
                sent = await asyncio.gather(
                    *(self.post(path, body, key=key) for _ in range(self.random.choice((1, 1, 2))))
                )
            except httpx2.TransportError:
                self.crowd.counts["sent again"] += 1
                continue
            assert {each.status_code for each in sent} == {202}, [each.text for each in sent]
            begun: set[tuple[str, str]] = {(each.json()["chat"], each.json()["run"]) for each in sent}
            ((self.chat, run),) = begun
            self.crowd.chats[self.number] = self.chat
            return run

    async def read(self, run: str, turn: int) -> None:
        """Follow the run to its end, over any number of lost connections."""
        position, text, answer = "", "", None
        while True:
            try:
                left = self.random.choice((2, 5, 1_000))
                async for position_, type_, data in self.events(run, after=position):
                    position = position_ or position
                    if type_ == "text":
                        text += data["text"]
                    elif type_ == "answer":
                        answer, text = (text, data["text"]), ""
                        assert answer[0] == answer[1], "the streamed text is the text of the message"
                    elif type_ == "end":
                        assert data == "stop"
                        assert answer is not None
                        assert answer[1] == self.crowd.answer(self.number, turn)
                        return
                    left -= 1
                    if not left:
                        break
                self.crowd.counts["left"] += 1
                await self.pry()
            except httpx2.TransportError:
                self.crowd.counts["lost"] += 1

    async def pry(self) -> None:
        """Try to read and to disturb the chat of another user."""
        other = self.crowd.chats.get(self.random.randrange(self.crowd.size), self.chat)
        if other != self.chat:
            for reply in (
                await self.http.get(f"/chats/{other}"),
                await self.post(f"/chats/{other}/messages", {"text": "Mine."}),
                await self.http.get(f"/chats/{other}/runs/x"),
            ):
                assert reply.status_code == 404
            self.crowd.counts["pried"] += 1


class Crowd:
    """Many clients of a server that is killed when a part of the turns is answered."""

    def __init__(self, server: Server, size: int, later: float) -> None:
        self.server = server
        self.size = size
        self.later = later
        self.answered = 0
        self.chats: dict[int, str] = {}
        self.counts: Counter[str] = Counter()
        self.moved = asyncio.Event()

    def question(self, number: int, turn: int) -> str:
        return f"question {turn} of user {number}."

    def answer(self, number: int, turn: int) -> str:
        return " ".join(f"{number}/{turn}/{word}" for word in range(30))

    async def run(self, kills: list[float]) -> list[float]:
        """Let all of them talk; returns how many seconds each turn took, the shortest first."""
        clients = [Client(self, number) for number in range(self.size)]
        talking = [asyncio.ensure_future(client.talk()) for client in clients]
        for share in kills:
            while self.answered < share * self.size * TURNS and not any(each.done() for each in talking):
                self.moved.clear()
                waiting = asyncio.ensure_future(self.moved.wait())
                await asyncio.wait([*talking, waiting], return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
            self.server.kill()
            self.server.settings["LATER"] = str(float(self.server.settings["LATER"]) + self.later)
            self.server.start()
            self.counts["kills"] += 1
        await asyncio.gather(*talking)
        for client in clients:
            own = (await client.http.get("/chats")).json()
            assert [each["id"] for each in own] == [client.chat]
            await client.http.aclose()
        return sorted(second for client in clients for second in client.seconds)


async def test_every_turn_of_a_crowd_is_answered_once_over_kills(aimock: Aimock, tmp_path: Path, scale: float) -> None:
    size = max(12, round(200 * scale))
    settings = {"OPENAI_BASE_URL": aimock.base_url, "OPENAI_API_KEY": "sk-test", "LATER": "0"}
    server = Server(tmp_path, "tests.examples.late_chat_service:app", **settings)
    # A restarted service has to wait until leases expire. Only at full scale the test waits, too.
    crowd = Crowd(server, size, later=0 if scale >= 1 else LEASE)
    for number in range(size):
        for turn in range(TURNS):
            aimock.reply(crowd.question(number, turn), text=crowd.answer(number, turn), delay=0.05)
    began = time.monotonic()
    try:
        seconds = await crowd.run([1 / 6, 1 / 2] if scale >= 1 else [1 / 3])
    finally:
        server.stop()
    took = f"{time.monotonic() - began:.1f} s, a turn {seconds[len(seconds) // 2]:.1f} s, at most {seconds[-1]:.1f} s"
    print(f"{size} clients, {TURNS} turns each: {took}, {dict(crowd.counts)}")  # noqa: T201  # with -s
    assert crowd.counts["sent again"] + crowd.counts["lost"]
    repeated = continued = 0
    with Conversations.open(server.database, create=False) as conversations:
        assert conversations.verify().first_bad is None
        assert {each.id for each in conversations.threads()} == set(crowd.chats.values())
        for number, chat in crowd.chats.items():
            thread = conversations.thread(chat)
            said = [each.text for each in thread.history() if each.message and not each.message.cut]
            turns = range(TURNS)
            assert said == [
                text for turn in turns for text in (crowd.question(number, turn), crowd.answer(number, turn))
            ]
            types = Counter(event.type for event in thread.events())
            assert (types["run-started"], types["run-completed"], thread.open_run) == (TURNS, TURNS, None)
            again = types["answer-interrupted"] + types["model-failed"]  # on a busy machine a call can fail, too
            assert types["model-called"] == TURNS + again
            repeated, continued = repeated + again, continued + types["run-resumed"]
    assert continued, "the kills interrupted no run"
    assert len(aimock.journal()) <= size * TURNS + repeated
    assert "Traceback" not in server.log.read_text()
