"""``clew request``: the request of a model call as JSON, and as commands that send it again."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest
from tests.acceptance.clew_command import ENVIRONMENT
from tests.infrastructure.openai.replies import CHAT, RESPONSES, Service
from tests.servers.raw_server import RawServer, stream, whole

from clew import Agent, Conversations, Engine, Message
from clew.cli.commands.model_requests import LONGEST_ARGUMENT, curl
from clew.domain.runs.request_construction import Request

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
        "redacted": [],
        "changed_by": [],
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
