"""``clew chat``: on a pseudo-terminal in a real process, and in pipes, with an HTTP server."""

from __future__ import annotations

import asyncio
import io
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import TYPE_CHECKING

import pytest
from tests.acceptance.clew_command import COMMAND, ENVIRONMENT
from tests.cli.model_replies import calling, reply, unfinished, unknown_model
from tests.cli.terminal_session import Session
from tests.infrastructure.openai.replies import CHAT
from tests.servers.raw_server import CUT, RawServer, Reply, whole
from tests.servers.strict_anthropic import StrictAnthropic

from clew import Agent, Conversations, Engine, Message, OpenAIChatClient, OpenAIResponsesClient, tool
from clew.cli.chat import COMMANDS
from clew.cli.commands.chat import AGENT, MODEL
from clew.cli.commands.chat import _client as client_of
from clew.cli.terminal import PROMPT, typed_lines

if TYPE_CHECKING:
    from tests.cli.conftest import CalledClew as Clew


@pytest.fixture
def server() -> Iterator[RawServer]:
    with RawServer() as running:
        yield running


class Piped:
    """The command in the process of the tests, with a pipe as its input."""

    def __init__(self, clew: Clew, url: str, patch: pytest.MonkeyPatch) -> None:
        self._clew = clew
        self._patch = patch
        patch.delenv("OPENAI_MODEL", raising=False)
        self.environment = service(url)

    def __call__(self, stdin: str | bytes, *arguments: str, **environment: str) -> CompletedProcess[str]:
        content = stdin if isinstance(stdin, bytes) else stdin.encode()
        self._patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))
        return self._clew.run("chat", *arguments, env={**self.environment, **environment})


@pytest.fixture
def chat(clew: Clew, server: RawServer, monkeypatch: pytest.MonkeyPatch) -> Piped:
    return Piped(clew, server.url, monkeypatch)


class Typed(Piped):
    """The same with a user at a terminal, who types one line after the other."""

    def __call__(self, stdin: str | bytes, *arguments: str, **environment: str) -> CompletedProcess[str]:
        typed = iter(str(stdin).splitlines())

        def typing(_: str) -> str:
            line = next(typed, None)
            if line is None:
                raise EOFError
            return line

        self._patch.setattr("clew.cli.terminal.is_interactive", lambda: True)
        self._patch.setattr("builtins.input", typing)
        return super().__call__("", *arguments, **environment)


@pytest.fixture
def typed(clew: Clew, server: RawServer, monkeypatch: pytest.MonkeyPatch) -> Typed:
    return Typed(clew, server.url, monkeypatch)


def service(url: str) -> dict[str, str]:
    return {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": url}


def chatting(folder: Path, server: RawServer, *arguments: str) -> Session:
    return Session(folder, "chat", "--model", "m", *arguments, **service(server.url))


def stored(folder: Path) -> Conversations:
    return Conversations.open(f"sqlite:///{folder}/clew.db?synchronous=OFF")


def texts(folder: Path, id_: str) -> list[tuple[str, str]]:
    with stored(folder) as conversations:
        return [(each.role, each.text) for each in conversations.thread(id_).history()]


def asked(server: RawServer) -> list[tuple[str, str]]:
    """The messages of the newest request."""
    return [(each["role"], each["content"]) for each in server.requests[-1].json()["messages"]]


def say(session: Session, text: str, answer: str) -> str:
    """Type a line and wait for the expected text and the next prompt; returns the output."""
    session.press(f"{text}\r")
    return session.next_output(answer) + session.next_output(PROMPT)


def new_thread(session: Session) -> str:
    result = re.search(r"New thread (\w+)", session.next_output(PROMPT))
    assert result is not None
    return result[1]


def test_a_chat_is_stored_as_it_happens_and_resumed_in_another_process(tmp_path: Path, server: RawServer) -> None:
    server.add_replies(reply("A ball of ", "thread."), reply("Theseus."))
    with chatting(tmp_path, server, "--instructions", "Be brief.") as session:
        id_ = new_thread(session)
        output = say(session, "What is a clew?", "9 tokens in, 4 out")
        assert "A ball of thread.\r\n" in output
        session.press("\x04")
        assert session.end() == 0
        assert f"clew chat {id_}" in session.output
    with chatting(tmp_path, server, id_[:6]) as session:
        assert f"{id_} · 2 messages · m" in session.next_output(PROMPT)
        say(session, "Who had one?", "Theseus.")
        session.press("/quit\r")
        assert session.end() == 0
    assert asked(server) == [
        ("system", "Be brief."),
        ("user", "What is a clew?"),
        ("assistant", "A ball of thread."),
        ("user", "Who had one?"),
    ]
    assert texts(tmp_path, id_)[-1] == ("assistant", "Theseus.")


def test_ctrl_c_stops_an_answer_and_discards_a_line(tmp_path: Path, server: RawServer) -> None:
    server.add_replies(unfinished("Once upon"), reply("a time."), unfinished())
    with chatting(tmp_path, server) as session:
        id_ = new_thread(session)
        session.press("Tell me a story.\r")
        session.next_output("Once upon")
        session.interrupt()
        session.next_output("Stopped. The part that had arrived is stored.")
        session.next_output(PROMPT)
        assert server.disconnected.wait(60)
        server.stalled.clear()
        say(session, "Go on.", "a time.")
        session.press("And?\r")
        assert server.stalled.wait(60)
        session.interrupt()
        session.next_output("Stopped. Nothing had arrived.")
        session.next_output(PROMPT)
        session.press("Not this")
        session.next_output("Not this")
        session.interrupt_until("again to leave")
        session.next_output(PROMPT)
        session.press("\x04")
        assert session.end() == 0
    assert texts(tmp_path, id_) == [
        ("user", "Tell me a story."),
        ("assistant", "Once upon"),
        ("user", "Go on."),
        ("assistant", "a time."),
        ("user", "And?"),
    ]


def test_forks_checkpoints_rewinds_draws_shows_and_survives_errors(
    tmp_path: Path, clew: Clew, server: RawServer
) -> None:
    server.add_replies(
        reply("First."),
        reply("Second."),
        unknown_model("m"),
        reply("Third."),
        reply("Four\x1b", "[2J\r", "\n\x07th\u202e"),
    )
    with chatting(tmp_path, server) as session:
        id_ = new_thread(session)
        for command in ("/fork", "/checkpoint x", "/rewind", "/tree", "/history"):
            say(session, command, "There is no thread yet")
        say(session, "One", "4 out")
        say(session, "/checkpoint after one", "'after one'")
        say(session, "Two", "Second.")
        undone = re.search(r"/rewind (\d+) undoes it", say(session, "/rewind", "undoes it"))
        assert undone is not None
        assert "with 2 messages" in session.output
        fault = say(session, "Three", "clew: ")
        assert "m does not exist" in fault
        say(session, "Well?", "Third.")
        said_before = [("user", "One"), ("assistant", "First."), ("user", "Three"), ("user", "Well?")]
        assert asked(server) == said_before
        forked = re.search(r"the new thread is (\w+)", say(session, "/fork What if", "You are in it now"))
        assert forked is not None
        say(session, "/rewind after one", "Back at version")
        output = say(session, "Four", "4 out")
        assert "Four\\x1b[2J\r\n\\x07th\\u202e\r\n" in output, "an answer cannot steer the terminal"
        assert asked(server) == [*said_before[:2], ("user", "Four")]
        assert "◆" in say(session, "/tree", "What if")
        assert "Third." not in say(session, "/history", "x07th")
        output = say(session, "/help", f"/{list(COMMANDS)[-1]}")
        assert all(f"/{name}" in output for name in COMMANDS)
        say(session, "/nonsense", "is not a command")
        say(session, "/checkpoint", "needs a NAME")
        say(session, "/tree of what", "takes no argument")
        say(session, "/rewind nowhere", "has no checkpoint 'nowhere'")
        session.press("/quit\r")
        assert session.end() == 0
        assert "Traceback" not in session.output
    with stored(tmp_path) as conversations:
        thread, fork = conversations.thread(id_), conversations.thread(forked[1])
        assert fork.summary().title == "What if"
        assert [each.text for each in thread.history()] == ["One", "First.", "Three", "Well?", "Third."]
        assert [each.text for each in fork.history()][:3] == ["One", "First.", "Four"]
        assert [each.text for each in thread.history(at=int(undone[1]))] == ["One", "First.", "Two", "Second."]
    (ran,) = clew.object("show", id_, "--at", "after one", "--json")["runs"]
    assert ran["outcome"] == "completed", "the run before the one that was taken back is whole"


@tool(approval="always")
def refund(sum: int) -> str:  # noqa: A002  # a word that models use
    """Refund a sum."""
    return f"{sum} paid"


def test_reports_pending_approvals_and_rewinds_before_them(typed: Typed, tmp_path: Path, server: RawServer) -> None:
    async def run() -> str:
        async with Engine.open(f"sqlite:///{tmp_path}/clew.db") as engine:
            client = OpenAIChatClient("m", api_key="k", base_url=server.url)
            stream = Agent(client, engine=engine, tools=[refund]).run("My teapot broke.", stream=True)
            return str((await stream.get_final_response()).thread.id)

    server.add_replies(calling("refund", '{"sum": 48}'), reply("Without a refund."))
    done = typed("Well?\n/rewind\nWell?", asyncio.run(run()))
    assert 'A run waits for approval of refund({"sum": 48})' in done.stdout
    assert "waits for an approval" in done.stderr
    assert "with 0 messages" in done.stdout
    assert "Without a refund." in done.stdout
    assert asked(server) == [("user", "Well?")]


def test_waits_for_another_run_on_the_thread(tmp_path: Path, server: RawServer) -> None:
    server.add_replies(unfinished("Once"), reply("Yes, you too."))
    with asyncio.Runner() as runner:
        engine = Engine.open(f"sqlite:///{tmp_path}/clew.db")
        thread = runner.run(engine.start_thread())
        agent = Agent(OpenAIChatClient("m", api_key="k", base_url=server.url), engine=engine)
        stream = agent.run("Tell me a story.", thread=thread, stream=True)
        runner.run(anext(stream))
        with chatting(tmp_path, server, thread.id) as session:
            assert "Your messages are answered after it." in session.next_output(PROMPT)
            session.press("Me too!\r")
            session.next_output("Me too!")
            runner.run(stream.aclose())
            session.next_output("Yes, you too.")
            session.next_output(PROMPT)
            session.press("\x04")
            assert session.end() == 0
        runner.run(engine.close())
    assert texts(tmp_path, thread.id) == [
        ("user", "Tell me a story."),
        ("assistant", "Once"),
        ("user", "Me too!"),
        ("assistant", "Yes, you too."),
    ]


def test_reports_that_the_last_answer_was_interrupted(typed: Typed, clew: Clew, server: RawServer) -> None:
    server.add_replies(Reply((*unfinished("Half").steps[:-1], CUT)), reply("Whole."))
    assert "clew: " in typed("hello").stderr
    done = typed("Again?", *clew.ids())
    assert "The last answer was interrupted. The part that had arrived is stored." in done.stdout
    assert "Whole." in done.stdout


def test_refuses_a_remote_thread(typed: Typed, tmp_path: Path, server: RawServer) -> None:
    async def start() -> str:
        async with Engine.open(f"sqlite:///{tmp_path}/clew.db") as engine:
            client = OpenAIResponsesClient("m", api_key="k", base_url=server.url, store=True)
            return str((await Agent(client, engine=engine).get_remote_thread("resp_1")).id)

    done = typed("hello", asyncio.run(start()))
    assert done.returncode == 1
    assert "cannot run on a remote thread" in done.stderr


KILLED = """
import asyncio, os, sys
from clew import Agent, Engine, OpenAIChatClient
from clew.cli.commands.chat import AGENT

async def main():
    async with Engine.open(now=lambda: 1_700_000_000_000_000) as engine:  # its lease expired long ago
        async for update in Agent(OpenAIChatClient("m"), engine=engine, id=AGENT).run("Answer me.", stream=True):
            os._exit(9)

asyncio.run(main())
"""


def test_reports_the_answer_of_a_killed_program_and_closes_it_with_the_next(
    tmp_path: Path, clew: Clew, server: RawServer
) -> None:
    server.add_replies(unfinished("Half an"), reply("A whole one."))
    killed = subprocess.run(
        [sys.executable, "-c", KILLED], cwd=tmp_path, env={**ENVIRONMENT, **service(server.url)}, check=False
    )
    assert killed.returncode == 9
    (id_,) = clew.ids()
    with chatting(tmp_path, server, id_) as session:
        assert "The program of the last answer ended" in session.next_output(PROMPT)
        say(session, "Again?", "A whole one.")
        session.press("\x04")
        assert session.end() == 0
    broken, whole = clew.object("show", id_, "--json")["runs"]
    assert (broken["outcome"], broken["reason"], whole["outcome"]) == ("abandoned", "crashed", "completed")
    assert texts(tmp_path, id_)[-2:] == [("user", "Again?"), ("assistant", "A whole one.")]


def test_a_second_ctrl_c_in_a_row_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    typed: list[str | type[BaseException]] = [
        KeyboardInterrupt,
        "one",
        "  ",
        KeyboardInterrupt,
        KeyboardInterrupt,
        "two",
    ]

    def typing(prompt: str) -> str:
        assert prompt == PROMPT
        if isinstance(line := typed.pop(0), str):
            return line
        raise line

    monkeypatch.setattr("builtins.input", typing)
    assert list(typed_lines()) == ["one"]
    typed[:] = ["three", EOFError]
    assert list(typed_lines()) == ["three"]


# In pipes


def test_answers_lines_of_a_pipe_without_prompts(chat: Piped, clew: Clew, server: RawServer) -> None:
    server.add_replies(reply("One."), reply("Two.\n"), reply("Three."))
    done = chat("first\n\n  \nsecond\r\n")
    assert (done.returncode, done.stdout) == (0, "One.\nTwo.\n")
    (id_,) = clew.ids()
    assert done.stderr == f"Resume it with: clew chat {id_}\n"
    assert server.requests[-1].json()["model"] == MODEL
    assert server.requests[-1].path == "/v1/chat/completions"
    done = chat("third", id_[:5], OPENAI_MODEL="other")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Three.\n", "")
    assert server.requests[-1].json()["model"] == "other"
    assert [text for _, text in asked(server)] == ["first", "One.", "second", "Two.\n", "third"]


def test_keeps_the_instructions_of_a_thread_by_default(chat: Piped, clew: Clew, server: RawServer) -> None:
    server.add_replies(*(reply("Yes.") for _ in range(4)))
    for given in (["--instructions", "Be kind."], [], ["--instructions", "Be brief."], ["--instructions", ""]):
        known = clew.ids() if server.requests else []
        done = chat("Well?", *known, *given)
        assert done.returncode == 0, done
        assert "Changed" not in done.stderr
    expected = [each.json()["messages"][0]["content"] for each in server.requests]
    assert expected == ["Be kind.", "Be kind.", "Be brief.", "Well?"]


def test_writes_each_new_message_as_json(chat: Piped, clew: Clew, server: RawServer) -> None:
    server.add_replies(reply("O", "ne."), reply("Two."))
    done = chat("first\n/checkpoint x\n/fork F\nsecond\n", "--json", "--actor", "user:42")
    assert (done.returncode, done.stderr) == (0, "")
    first, named, forked, second = map(json.loads, done.stdout.splitlines())
    assert first == {
        "thread_id": named["thread_id"],
        "version": 5,
        "role": "assistant",
        "author": None,
        "contents": [{"type": "text", "text": "One."}],
        "redacted": False,
    }
    assert named == {"thread_id": first["thread_id"], "name": "x", "version": 7}
    assert (forked["parent_id"], forked["title"]) == (first["thread_id"], "F")
    assert (second["thread_id"], second["contents"][0]["text"]) == (forked["thread_id"], "Two.")
    actors = {(each["actor"], each.get("on_behalf_of")) for each in clew.lines("log", forked["thread_id"], "--json")}
    assert actors == {("user:42", None), ("clew-chat", "user:42")}


def test_writes_trees_histories_and_rewinds_as_json(chat: Piped, clew: Clew, server: RawServer) -> None:
    server.add_replies(reply("One."))
    done = chat("first\n/history\n/tree\n/rewind\n/help\n", "--json")
    message, history, tree, rewound = map(json.loads, done.stdout.splitlines())
    assert (done.returncode, done.stderr.count("\n")) == (0, len(COMMANDS))
    assert history == clew.object("show", message["thread_id"], "--json", "--at", "7")
    assert tree["thread_id"] == history["thread_id"]
    assert rewound == {"thread_id": message["thread_id"], "version": 8, "to": 1, "messages": 0}
    (ran,) = history["runs"]
    assert ran["agent"]["id"] == AGENT


def test_shows_an_answer_that_is_not_streamed_and_calls_of_unknown_tools(chat: Piped, server: RawServer) -> None:
    server.add_replies(calling("refund", '{"sum": 48}'), whole(CHAT.whole))
    done = chat("hello")
    assert (done.returncode, done.stdout) == (0, "Hello\n")
    assert [role for role, _ in asked(server)] == ["user", "assistant", "tool"]


def test_commands_in_a_pipe_report_what_they_did(chat: Piped, server: RawServer) -> None:
    server.add_replies(reply("One."))
    done = chat("first\n/checkpoint x\n/fork\n/rewind\n/tree\n/history\n/help\n/quit\nnever\n")
    assert done.returncode == 0
    for expected in ("the checkpoint 'x'", "the new thread is", "undoes it", "└─", "0 messages", "/quit"):
        assert expected in done.stdout
    assert len(server.requests) == 1


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_an_error_ends_a_chat_without_a_user(
    chat: Piped,
    clew: Clew,
    server: RawServer,
    *,
    as_json: bool,
) -> None:
    server.add_replies(unknown_model("m"))
    done = chat("first\nsecond\n", *(["--json"] if as_json else []))
    assert (done.returncode, done.stdout, len(server.requests)) == (1, "", 1)
    *_, last = done.stderr.splitlines()
    said_ = json.loads(last)["error"] if as_json else {"type": "ModelRequestError", "message": last}
    assert said_["type"] == "ModelRequestError"
    assert "does not exist" in said_["message"]
    assert texts(clew.folder, *clew.ids()) == [("user", "first")]


def test_reports_that_the_server_cannot_be_reached(chat: Piped, refusing: str) -> None:
    done = chat("hello", OPENAI_BASE_URL=refusing)
    assert (done.returncode, done.stdout) == (1, "")
    assert "127.0.0.1" in done.stderr.splitlines()[-1]
    assert "mistake" not in done.stderr


def test_an_answer_that_breaks_off_is_an_error_and_its_start_is_stored(
    chat: Piped, clew: Clew, server: RawServer
) -> None:
    server.add_replies(Reply((*unfinished("Half").steps[:-1], CUT)))
    done = chat("hello")
    assert (done.returncode, done.stdout) == (1, "Half\n")
    assert texts(clew.folder, *clew.ids()) == [("user", "hello"), ("assistant", "Half")]


def test_refuses_unknown_commands_and_invalid_utf_8(chat: Piped) -> None:
    assert "is not a command" in chat("/nonsense").stderr
    assert chat("/nonsense").returncode == 2
    done = chat(b"\xff\n")
    assert done.returncode == 1
    assert "byte 0 of line 1 is not UTF-8" in done.stderr


def test_starts_no_thread_without_a_message(chat: Piped, clew: Clew) -> None:
    done = chat("", "--new")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert clew.ids() == []


def test_an_ended_thread_continues_only_in_a_fork(chat: Piped, tmp_path: Path, server: RawServer) -> None:
    with stored(tmp_path) as conversations:
        conversations.start_thread(thread_id="over", messages=[Message.user("Hello")]).end()
    server.add_replies(reply("On we go."))
    assert "Fork it" in chat("Well?", "over").stderr
    assert "On we go." in chat("/fork\nWell?", "over").stdout


def test_says_how_to_set_a_key_and_creates_nothing(chat: Piped, clew: Clew) -> None:
    done = chat("hello", OPENAI_API_KEY="")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Set OPENAI_API_KEY" in done.stderr
    done = chat("hello", "--json", OPENAI_API_KEY="")
    assert json.loads(done.stderr)["error"]["type"] == "AgentConfigurationError"
    assert list(clew.folder.iterdir()) == []


def test_refuses_both_a_thread_and_a_new_one(chat: Piped, clew: Clew) -> None:
    done = chat("hello", "3f2a", "--new")
    assert (done.returncode, list(clew.folder.iterdir())) == (2, [])
    assert "--new starts a thread" in done.stderr


def running(folder: Path, server: RawServer, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, "chat", *arguments],
        cwd=folder,
        env={**ENVIRONMENT, **service(server.url)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_ctrl_c_in_a_pipe_stores_the_partial_answer_and_ends(clew: Clew, server: RawServer) -> None:
    server.add_replies(unfinished("Once"))
    with running(clew.folder, server) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"hello\n")
        process.stdin.flush()
        assert process.stdout.read(4) == b"Once"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == 130
    assert errors.decode().splitlines()[-1] == "clew: interrupted."
    assert texts(clew.folder, *clew.ids()) == [("user", "hello"), ("assistant", "Once")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_sigterm_stores_the_partial_answer_and_releases_the_thread(
    number: signal.Signals, clew: Clew, server: RawServer
) -> None:
    server.add_replies(unfinished("Once"))
    with running(clew.folder, server) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"hello\n")
        process.stdin.flush()
        assert process.stdout.read(4) == b"Once"
        process.send_signal(number)
        _, errors = process.communicate()
    assert (process.returncode, b"Traceback" in errors) == (128 + number, False)
    (id_,) = clew.ids()
    assert texts(clew.folder, id_) == [("user", "hello"), ("assistant", "Once")]
    (run,) = clew.object("show", id_, "--json")["runs"]
    assert (run["outcome"], run["reason"]) == ("abandoned", "cancelled")


def test_ends_quietly_when_the_reader_of_the_answer_has_left(clew: Clew, server: RawServer) -> None:
    server.add_replies(reply("Nobody hears this."))
    with running(clew.folder, server, "--json") as process:
        assert process.stdout is not None
        process.stdout.close()
        process.stdout = None
        _, errors = process.communicate(b"hello\n")
    assert (process.returncode, errors) == (1, b"")


def test_the_name_of_a_model_can_begin_with_its_provider(chat: Piped) -> None:
    with StrictAnthropic() as strict:
        environment = {"ANTHROPIC_API_KEY": "sk-ant-1", "ANTHROPIC_BASE_URL": strict.url}
        answered = chat("Hello\n", "--model", "anthropic:claude-x", **environment)
    assert "Done 1." in answered.stdout
    assert strict.refused == []
    assert b'"model":"claude-x"' in strict.requests[0]
    refused = chat("Hello\n", "--model", "anthropic:claude-x", ANTHROPIC_API_KEY="")
    assert refused.returncode
    assert "ANTHROPIC_API_KEY" in refused.stderr


def test_an_unknown_provider_is_an_error_that_lists_the_known_ones(
    chat: Piped, clew: Clew, server: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = chat("Hello\n", "--model", "nope:x", OPENAI_BASE_URL="")
    assert (done.returncode, list(clew.folder.iterdir())) == (1, [])
    for words in ("there is no provider 'nope'", "anthropic, bedrock, gemini", "ft:", "OPENAI_BASE_URL"):
        assert words in done.stderr
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    assert client_of("ft:gpt-4.1-mini:org::id").model == "ft:gpt-4.1-mini:org::id"
    server.add_replies(reply("Hi."))
    assert "Hi." in chat("Hello\n", "--model", "llama3.2:3b").stdout, "a name of another service"
