"""``clew request``: the request of a model call as JSON, and as commands that send it again."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anthropic
import pytest
from tests.acceptance.clew_command import ENVIRONMENT
from tests.infrastructure.openai.replies import CHAT, RESPONSES, Service
from tests.servers.raw_server import RawServer, stream, whole

from clew import (
    Agent,
    AnthropicClient,
    BedrockClient,
    Conversations,
    Engine,
    GeminiClient,
    GeminiInteractionsClient,
    Message,
    OpenAIChatClient,
    OpenAIResponsesClient,
)
from clew.cli.errors import WrongUsage
from clew.cli.rendering.request_scripts import ENDPOINTS, LONGEST_ARGUMENT, curl, script
from clew.domain.models.client import ModelClient, Question
from clew.domain.runs.errors import ModelError
from clew.domain.runs.request_construction import Request, request_bytes, stream_request

if TYPE_CHECKING:
    from tests.cli.conftest import CalledClew as Clew

KEY = "sk-of-the-environment"
NASTY = 'it\'s "quoted" $HOME `date` \\ %s !\n\r\t\x07 100% Grüße 🧶 \u2028 \x9b2J \u202e \x7f'


@pytest.fixture
def server() -> Iterator[RawServer]:
    with RawServer() as running:
        yield running


def ask(clew: Clew, server: RawServer, text: str, service: Service = CHAT, *, streams: bool = True) -> str:
    """Send a text to a model; returns the id of the thread."""

    async def run() -> str:
        async with Engine.open(f"sqlite:///{clew.folder}/clew.db?synchronous=OFF") as engine:
            agent = Agent(service.client(server), engine=engine, instructions="Be brief.", options={"temperature": 0.5})
            if streams:
                return str((await agent.run(text, stream=True).get_final_response()).thread.id)
            return str((await agent.run(text)).thread.id)

    server.add_replies(stream(*service.start, *service.end) if streams else whole(service.whole))
    return asyncio.run(run())


CURL = """#!{python}
import sys, urllib.request
given = sys.argv[1:]
def values(name):
    return [given[at + 1] for at, each in enumerate(given) if each == name]
url = next(each for each in given if each.startswith("http"))
body = values("--data-raw")[0].encode("utf-8", "surrogateescape") if values("--data-raw") else sys.stdin.buffer.read()
headers = dict(each.split(": ", 1) for each in values("-H"))
print(urllib.request.urlopen(urllib.request.Request(url, body, headers)).read().decode())
"""


@pytest.fixture
def environment(clew: Clew, server: RawServer) -> Mapping[str, str]:
    """The environment of a shell: the service, the key, and curl or a replacement if the machine has none."""
    result = {**ENVIRONMENT, "OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": server.url}
    if shutil.which("curl") is None:
        folder = clew.folder / "bin"
        folder.mkdir()
        (folder / "curl").write_text(CURL.format(python=sys.executable))
        (folder / "curl").chmod(0o755)
        result["PATH"] = f"{folder}:{result['PATH']}"
    return result


def sent_again(server: RawServer, *command: str, script: str, environment: Mapping[str, str]) -> str:
    """Run a script, and check that it sends the first request again; returns its output."""
    first = server.requests[0]
    done = subprocess.run(
        command, input=script, env=dict(environment), check=True, capture_output=True, encoding="utf-8"
    )
    again = server.requests[-1]
    assert len(server.requests) == 2
    assert (again.method, again.path, again.body) == (first.method, first.path, first.body)
    assert again.headers["authorization"] == f"Bearer {KEY}"
    assert again.headers["content-type"] == "application/json"
    return done.stdout


both = pytest.mark.parametrize("service", [CHAT, RESPONSES], ids=lambda each: each.kind)
streaming = pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])


@both
@streaming
def test_the_curl_command_sends_the_same_bytes(
    clew: Clew,
    server: RawServer,
    environment: Mapping[str, str],
    service: Service,
    *,
    streams: bool,
) -> None:
    id_ = ask(clew, server, NASTY, service, streams=streams)
    server.add_replies(whole({"again": "sent"}))
    script = clew.text("request", id_, "--curl")
    assert KEY not in script
    assert "canary" not in script
    assert not set("\x9b\x7f\u202e\u2028") & set(script), "nothing steers the terminal"
    written = sent_again(server, "sh", script=script, environment=environment)
    assert json.loads(written) == {"again": "sent"}


@pytest.mark.parametrize("text", ["Grüße, it's plain 🧶", "x" * LONGEST_ARGUMENT, f"\x9b{'ü' * LONGEST_ARGUMENT}"])
def test_the_shell_accepts_a_body_of_any_size(
    clew: Clew, server: RawServer, environment: Mapping[str, str], text: str
) -> None:
    id_ = ask(clew, server, text)
    server.add_replies(whole({}))
    sent_again(server, "sh", script=clew.text("request", id_, "--curl"), environment=environment)


@pytest.mark.parametrize(("service", "streams"), [(CHAT, True), (RESPONSES, False)], ids=["stream", "whole"])
def test_the_python_script_sends_the_same_bytes(
    clew: Clew,
    server: RawServer,
    environment: Mapping[str, str],
    service: Service,
    *,
    streams: bool,
) -> None:
    id_ = ask(clew, server, NASTY, service, streams=streams)
    server.add_replies(stream({"piece": 1}, {"piece": 2}) if streams else whole({"again": "sent"}))
    script = clew.text("request", id_, "--python")
    assert "canary" not in script
    assert not set("\x9b\x7f\u202e\u2028") & set(script), "nothing steers the terminal"
    written = sent_again(server, sys.executable, "-", script=script, environment=environment)
    assert written.split() == ('{"piece": 1} {"piece": 2}' if streams else '{ "again": "sent" }').split()


def test_shows_the_newest_request_or_that_of_a_version(clew: Clew, server: RawServer) -> None:
    id_ = ask(clew, server, "Hello\x9b")
    (called,) = (each["version"] for each in clew.lines("log", id_, "--json") if each["type"] == "model-called")
    output = clew.text("request", id_[:6])
    first, second, body = output.split("\n", 2)
    assert first == f"{id_} · version {called} · m-1 · POST /chat/completions"
    assert second.startswith("Verified: this is what was sent, byte for byte. SHA-256 ")
    assert json.loads(body) == server.requests[0].json()
    assert "\x9b" not in output
    assert clew.text("request", id_, str(called)) == output
    assert clew.object("request", id_, "--json") == {
        "thread_id": id_,
        "version": called,
        "client": "openai-chat",
        "model": "m-1",
        "path": "/chat/completions",
        "digest": second.split()[-1],
        "verified": True,
        "sent": True,
        "redacted": [],
        "changed_by": [],
        "withheld_by": None,
        "body": server.requests[0].json(),
    }


def test_a_request_with_redacted_messages_is_not_verified(clew: Clew, server: RawServer) -> None:
    id_ = ask(clew, server, "My number is 4711.")
    clew.text("redact", id_, "message:1", "--yes")
    done = clew.run("request", id_)
    assert (done.returncode, done.stderr) == (3, "")
    assert "NOT VERIFIED: this is not what was sent. The message at version 3 was redacted since." in done.stdout
    assert "4711" not in done.stdout
    for form in ("--curl", "--python"):
        done = clew.run("request", id_, form)
        assert done.returncode == 3
        assert done.stderr.startswith("clew: NOT VERIFIED")
        assert "NOT VERIFIED" not in done.stdout
    done = clew.run("request", id_, "--json")
    result = json.loads(done.stdout)
    assert (done.returncode, result["verified"], result["redacted"]) == (3, False, [3])


@pytest.mark.parametrize(
    ("version", "code", "said_"),
    [
        ("3", 1, "is message-appended, not a model call"),
        ("99", 1, "99"),
        ("9" * 40, 1, "no thread has a version of 40 digits"),
        ("message:1", 2, "give the version of a model call"),
        ("-1", 2, "No such option"),
        ("x\x1b[2J", 2, "\\x1b[2J"),
    ],
)
def test_refuses_a_version_without_a_model_call(
    clew: Clew, server: RawServer, version: str, code: int, said_: str
) -> None:
    id_ = ask(clew, server, "Hello")
    assert said_ in clew.refused(code, "request", id_, version)


def test_reports_a_thread_without_model_calls(clew: Clew) -> None:
    with Conversations.open(f"sqlite:///{clew.folder}/clew.db") as conversations:
        conversations.start_thread(thread_id="t", messages=[Message.user("Hello")] * 250)
    assert "has no model call" in clew.refused(1, "request", "t")


def test_finds_the_newest_call_among_many_events(clew: Clew, server: RawServer) -> None:
    id_ = ask(clew, server, "Hello")
    with Conversations.open(f"sqlite:///{clew.folder}/clew.db?synchronous=OFF") as conversations:
        conversations.thread(id_).append([Message.user("More")] * 250)
    assert clew.object("request", id_, "--json")["version"] == 4


def test_refuses_two_forms_at_once(clew: Clew) -> None:
    for forms in (["--curl", "--python"], ["--curl", "--json"], ["--python", "--json"]):
        assert "exclude each other" in clew.run("request", "t", *forms).stderr


def test_completes_the_versions_of_model_calls(clew: Clew, server: RawServer) -> None:
    id_ = ask(clew, server, "Hello")
    for typed, result in (("", "4\n"), ("4", "4\n"), ("5", "")):
        environment = {"_CLEW_COMPLETE": "complete_bash", "COMP_WORDS": f"clew request {id_[:5]} {typed}"}
        assert clew.run(env={**environment, "COMP_CWORD": "3"}).stdout.lstrip("\n") == result


CLIENTS: Mapping[str, Callable[[str], ModelClient]] = {
    "openai-chat": lambda root: OpenAIChatClient("m-1", api_key=KEY, base_url=f"{root}/v1"),
    "openai-responses": lambda root: OpenAIResponsesClient("m-1", api_key=KEY, base_url=f"{root}/v1"),
    "anthropic-messages": lambda root: AnthropicClient("m-1", api_key=KEY, base_url=root),
    "gemini": lambda root: GeminiClient("m-1", api_key=KEY, base_url=f"{root}/v1beta"),
    "gemini-interactions": lambda root: GeminiInteractionsClient("m-1", api_key=KEY, base_url=f"{root}/v1beta"),
    "bedrock-converse": lambda root: BedrockClient("eu.m-1:0", api_key=KEY, region="eu-west-1", base_url=root),
}
PLATFORMS: Mapping[str, Callable[[str], Any]] = {
    "anthropic-bedrock": lambda root: anthropic.AsyncAnthropicBedrock(
        aws_region="eu-west-1", api_key=KEY, base_url=root
    ),
    "anthropic-vertex": lambda root: anthropic.AsyncAnthropicVertex(
        region="eu", project_id="p-1", access_token=KEY, base_url=f"{root}/v1"
    ),
}
"""The clients of the anthropic package for other services than its own."""


def variables(root: str) -> Mapping[str, str]:
    """The environment of a command: the keys, and the addresses of all services."""
    keys = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "AWS_BEARER_TOKEN_BEDROCK", "GEMINI_API_KEY", "TOKEN_OF_GCLOUD")
    roots = ("ANTHROPIC_BASE_URL", "AWS_ENDPOINT_URL_BEDROCK_RUNTIME", "GOOGLE_GEMINI_BASE_URL")
    return {
        **dict.fromkeys(keys, KEY),
        **dict.fromkeys(roots, root),
        "OPENAI_BASE_URL": f"{root}/v1",
        "ANTHROPIC_VERTEX_BASE_URL": f"{root}/v1",
        "ANTHROPIC_VERTEX_PROJECT_ID": "p-1",
        "CLOUD_ML_REGION": "eu",
    }


@pytest.mark.parametrize("wire", ENDPOINTS)
def test_the_curl_command_sends_what_the_client_of_each_service_sends(
    wire: str, server: RawServer, environment: Mapping[str, str], tmp_path: Path
) -> None:
    root = server.url.removesuffix("/v1")
    given = PLATFORMS[wire](root) if wire in PLATFORMS else None
    client: Any = CLIENTS[wire](root) if given is None else AnthropicClient("m$HOME:1", client=given)
    question = Question(client.model, (Message.user(NASTY),))
    body = client.wire.make_body(question)
    sent = stream_request(client.wire, body, request_bytes(body), client.model)
    server.add_replies(*[whole({}, status=400)] * 2)

    async def ask() -> None:
        with pytest.raises(ModelError):
            async for _ in client.ask(sent):
                pass
        await client.aclose()
        if given is not None:
            await given.close()

    asyncio.run(ask())
    path = client.wire.make_path(client.model, True)  # noqa: FBT003  # a stream, as in every format
    body = client.wire.as_stream(body)
    command = curl(Request(1, client.kind, wire, path, client.model, body, sent.content, "", verified=True))
    assert KEY not in command
    assert "--no-buffer" in command
    (tmp_path / "gcloud").write_text('#!/bin/sh\nprintf %s "$TOKEN_OF_GCLOUD"\n')
    (tmp_path / "gcloud").chmod(0o755)
    found = {**environment, **variables(root), "PATH": f"{tmp_path}:{environment['PATH']}"}
    subprocess.run(["sh"], input=command.encode(), env=found, check=True, capture_output=True)
    first, again = server.requests
    assert (again.method, again.path, again.body) == (first.method, first.path, first.body)
    for name in ("authorization", "x-goog-api-key", "anthropic-version", "api-revision", "content-type"):
        assert again.headers.get(name) == first.headers.get(name), name


def test_a_request_of_another_format_is_not_sent() -> None:
    asked = Request(1, "parrot", "parrot", "/", "m", {}, b"{}", "", verified=True)
    with pytest.raises(WrongUsage, match=r"--curl can send anthropic-bedrock, .*, and this request is parrot"):
        script("curl", "t", asked)
    with pytest.raises(WrongUsage, match="--python can send openai-chat, openai-responses, and this request is gemini"):
        script("python", "t", replace(asked, wire="gemini"))


def test_a_request_without_stream_is_sent_without_stream() -> None:
    body: dict[str, Any] = {"model": "m", "messages": []}
    asked = Request(
        1,
        "openai-chat",
        "openai-chat",
        "/chat/completions",
        "m",
        body,
        b'{"model":"m","messages":[]}',
        "",
        verified=True,
    )
    assert "--no-buffer" not in curl(asked)
