"""``clew mcp``, driven by the official client: over stdio and HTTP, with the protocols of 2026 and 2025."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pytest
from mcp import Client, MCPError, StdioServerParameters
from tests.acceptance.clew_command import COMMAND, ENVIRONMENT

from clew import Agent, Conversations, Engine, Message, ScriptedChatClient
from clew.cli import mcp_tools
from clew.cli.app import run
from clew.cli.errors import FAILED, USAGE
from clew.cli.mcp_server import new_server

T = TypeVar("T")

HUGE = 300
"""The messages of the longest thread."""

READS = ["search", "threads", "show", "read", "diff", "replay", "audit", "verify", "request"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("mcp") / "clew.db"
    with Conversations.open(path) as conversations:
        teapot = conversations.start_thread("Teapot", thread_id="teapot", messages=[Message.user("It broke.")])
        teapot.append(Message.assistant("48 euros are on their way."))
        teapot.fork(at_message=1, thread_id="what-if").append(Message.assistant("Bad luck."))
        texts = [Message.user(f"message {number} " + "x" * 500) for number in range(HUGE)]
        conversations.start_thread("Long", thread_id="long", messages=texts)
        conversations.start_thread("Wide", thread_id="wide", messages=[Message.user("wide " + "y" * 200_000)])

    async def run_agent() -> None:
        async with Engine.open(path) as engine:
            agent = Agent(ScriptedChatClient(["Hi."]), engine=engine)
            await agent.run("Hello", thread=await engine.start_thread(thread_id="run"))

    asyncio.run(run_agent())
    return str(path)


@pytest.fixture(scope="module")
def address(store: str) -> Iterator[str]:
    """The URL of a server in a process of its own."""
    command = [*COMMAND, "--db", store, "mcp", "--http", "127.0.0.1:0"]
    with subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.fullmatch(r"clew mcp: serving read-only at (http://127\.0\.0\.1:\d+/mcp)\n", line)
        assert found, line
        yield found[1]
        process.terminate()
        assert process.stderr.read() in {"", "clew mcp: Invalid Host header: evil.example\n"}


def parameters(store: str, *options: str) -> StdioServerParameters:
    return StdioServerParameters(command=COMMAND[0], args=[*COMMAND[1:], "--db", store, "mcp", *options])


def asked(server: Any, ask: Callable[[Client], Awaitable[T]], mode: Any = "auto") -> T:
    """What an official client gets from a server."""

    async def connected() -> T:
        async with asyncio.timeout(60), Client(server, mode=mode) as client:
            return await ask(client)

    return asyncio.run(connected())


async def answer(client: Client, name: str, **arguments: Any) -> Any:
    """The JSON of an answer, or the text of an error."""
    result: Any = await client.call_tool(name, arguments)
    text = result.content[0].text
    assert len(text) <= mcp_tools.MOST_CHARACTERS * 1.2
    return text if result.is_error else json.loads(text)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_an_assistant_reads_the_store(transport: str, mode: str, store: str, request: pytest.FixtureRequest) -> None:
    async def ask(client: Client) -> Any:
        with pytest.raises(MCPError) as no_resource:
            await client.read_resource("clew://threads/none")
        return {
            "no resource": str(no_resource.value),
            "tools": [
                (each.name, each.annotations and each.annotations.read_only_hint)
                for each in (await client.list_tools()).tools
            ],
            "search": await answer(client, "search", words="euros"),
            "threads": await answer(client, "threads", limit=2),
            "show": await answer(client, "show", thread="tea", at="message:1"),
            "read": await answer(client, "read", thread="teapot", version=2),
            "diff": await answer(client, "diff", thread="teapot", other="what-if"),
            "replay": await answer(client, "replay", thread="teapot", after=1),
            "audit": await answer(client, "audit", thread="teapot", limit=1),
            "verify": await answer(client, "verify"),
            "request": await answer(client, "request", thread="run"),
            "unknown": await answer(client, "show", thread="none"),
            "no tool": await answer(client, "append", thread="teapot", text="Hi"),
            "no limit": await answer(client, "threads", limit=0),
            "no time": await answer(client, "audit", since="yesterday"),
            "no words": await answer(client, "search", words='"'),
            "resource": json.loads((await client.read_resource("clew://threads/teapot")).contents[0].text),  # type: ignore[union-attr]
        }

    server = parameters(store) if transport == "stdio" else request.getfixturevalue("address")
    got = asked(server, ask, mode)
    assert got["tools"] == [(name, True) for name in READS]
    assert [hit["thread_id"] for hit in got["search"]["hits"]] == ["teapot"]
    assert len(got["threads"]["threads"]) == 2
    assert [each["contents"] for each in got["show"]["messages"]] == [[{"type": "text", "text": "It broke."}]]
    assert json.loads(got["read"]["json"])["type"] == "message-appended"
    assert [row["kind"] for row in got["diff"]["rows"]] == ["only-a", "only-b"]
    assert [step["version"] for step in got["replay"]["steps"]] == [2, 3]
    assert (len(got["audit"]["entries"]), got["audit"]["next"] is not None) == (1, True)
    assert got["verify"]["ok"] is True
    assert (got["request"]["verified"], json.loads(got["request"]["json"])["messages"][0]["content"]) == (True, "Hello")
    assert "'none'" in got["unknown"]
    assert "There is no thread 'none'" in got["no resource"]
    assert "append" in got["no tool"]
    assert "limit" in got["no limit"]
    assert "since 'yesterday' is not a time" in got["no time"]
    assert isinstance(got["no words"], str)
    assert [each["version"] for each in got["resource"]["messages"]] == [2, 3]


def test_refuses_requests_of_web_pages_from_elsewhere(address: str) -> None:
    connection = HTTPConnection(urlsplit(address).netloc, timeout=60)
    connection.request("POST", "/mcp", body="{}", headers={"Host": "evil.example", "Content-Type": "application/json"})
    assert connection.getresponse().status in {403, 421}
    connection.close()


async def pages(client: Client, name: str, items: str, cursor: str, **arguments: Any) -> list[Any]:
    found: list[Any] = []
    next_: Any = None
    while True:
        page = await answer(client, name, **({**arguments, cursor: next_} if next_ is not None else arguments))
        found.append(page[items])
        next_ = page["next"]
        if next_ is None:
            return found


def test_long_threads_come_in_pages(store: str) -> None:
    async def ask(client: Client) -> Any:
        shown = await pages(client, "show", "messages", "before", thread="long", limit=200)
        replayed = await pages(client, "replay", "steps", "after", thread="long", after=HUGE - 60, limit=50)
        listed = await pages(client, "threads", "threads", "after", limit=2)
        audited = await pages(client, "audit", "entries", "after", thread="long", limit=200)
        found = await pages(client, "search", "hits", "before", words="message", thread="long", limit=100)
        rows = await pages(client, "diff", "rows", "after", thread="long", other="teapot", limit=200)
        return shown, replayed, listed, audited, found, rows

    with Conversations.open(store, read_only=True) as conversations:
        shown, replayed, listed, audited, found, rows = asked(new_server(conversations, allow_write=False), ask)
    assert len(shown) > 3
    assert [each["version"] for page in reversed(shown) for each in page] == list(range(2, HUGE + 2))
    assert [step["version"] for page in replayed for step in page] == list(range(HUGE - 59, HUGE + 2))
    assert sorted(thread["thread_id"] for page in listed for thread in page) == [
        "long",
        "run",
        "teapot",
        "what-if",
        "wide",
    ]
    assert sum(map(len, audited)) == HUGE + 1
    assert sorted(hit["version"] for page in found for hit in page) == list(range(2, HUGE + 2))
    assert sum(map(len, rows)) == HUGE + 2


def test_large_messages_are_cut_and_read_in_slices(store: str) -> None:
    async def ask(client: Client) -> Any:
        shown = await answer(client, "show", thread="wide")
        slices = [await answer(client, "read", thread="wide", version=2)]
        while slices[-1]["next"] is not None:
            slices.append(await answer(client, "read", thread="wide", version=2, offset=slices[-1]["next"]))
        return shown, slices, await answer(client, "read", thread="wide", version=9)

    with Conversations.open(store, read_only=True) as conversations:
        shown, slices, unknown = asked(new_server(conversations, allow_write=False), ask)
    (message,) = shown["messages"]
    assert "… (200,005 characters; the tool `read` returns them)" in message["contents"][0]["text"]
    whole = "".join(each["json"] for each in slices)
    assert (len(whole), len(slices)) == (slices[0]["characters"], 7)
    assert "y" * 200_000 in json.dumps(json.loads(whole))
    assert "9" in unknown


def test_an_assistant_that_may_write_appends_forks_and_rewinds(tmp_path: Path) -> None:
    path = str(tmp_path / "clew.db")
    with Conversations.open(path) as conversations:
        conversations.start_thread("Teapot", thread_id="teapot", messages=[Message.user("It broke.")])

    async def ask(client: Client) -> Any:
        names = [each.name for each in (await client.list_tools()).tools]
        once = [
            await answer(client, "append", thread="teapot", text="Sorry.", role="assistant", idempotency_key="k")
            for _ in range(2)
        ]
        forked = await answer(client, "fork", thread="teapot", at="message:1", title="What if")
        conflict = await answer(client, "append", thread="teapot", text="Hm", expected_version=2)
        rewound = await answer(client, "rewind", thread="teapot", to=2)
        undone = await answer(
            client, "rewind", thread="teapot", to=rewound["undo"], expected_version=rewound["version"]
        )
        return names, once, forked, conflict, rewound, undone

    names, once, forked, conflict, rewound, undone = asked(
        parameters(path, "--allow-write", "--actor", "assistant:1"), ask
    )
    assert names == [*READS, "append", "fork", "rewind"]
    assert once == [{"thread_id": "teapot", "version": 3}] * 2
    assert "3" in conflict
    assert (rewound["version"], undone["version"]) == (4, 5)
    with Conversations.open(path) as conversations:
        thread = conversations.thread("teapot")
        assert [each.text for each in thread.history()] == ["It broke.", "Sorry."]
        assert [event.actor for event in thread.events()][2:] == ["assistant:1"] * 3
        assert conversations.thread(forked["thread_id"]).summary().title == "What if"


def test_the_server_ends_with_its_client_and_writes_only_the_protocol_to_stdout(store: str) -> None:
    client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}}
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client}
    ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    bug = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "show", "arguments": {"thread": 5}}}
    lines = "".join(json.dumps(each) + "\n" for each in (hello, ready, bug)) + "not JSON\n"
    done = subprocess.run(
        [*COMMAND, "--db", store, "mcp"],
        env=ENVIRONMENT,
        input=lines,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert {json.loads(line).get("id") for line in done.stdout.splitlines()} >= {1}


def test_a_killed_client_leaves_no_server_behind(store: str) -> None:
    script = (
        "import os, subprocess, sys\n"
        "process = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "print(process.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    command = [sys.executable, "-c", script, *COMMAND, "--db", store, "mcp"]
    # The server inherits stderr: its end shows that the server has ended.
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.strip().isdecimal()
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--http", "8000"], "--http '8000' is not an address"),
        (["--http", "localhost:"], "is not an address"),
        (["--http", "localhost:99999"], "a port is at most 65535"),
        (["--http", "256.0.0.1:1"], "--http 256.0.0.1:1: "),
        (["--json"], "--json needs --list"),
    ],
)
def test_refuses_wrong_options(arguments: list[str], text: str, store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--db", store, "mcp", *arguments]) == USAGE
    assert text in capsys.readouterr().err


def test_lists_its_tools(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--db", store, "mcp", "--list", "--json", "--allow-write"]) == 0
    assert json.loads(capsys.readouterr().out) == {"tools": [*READS, "append", "fork", "rewind"]}


def test_names_the_extra_that_is_missing(
    store: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "clew.cli.mcp_server")
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    assert run(["--db", store, "mcp"]) == FAILED
    assert "'.[mcp]'" in capsys.readouterr().err


def test_a_store_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises((MCPError, ExceptionGroup)):
        asked(parameters(str(tmp_path / "none.db")), lambda client: client.list_tools())
    assert not list(tmp_path.iterdir())
