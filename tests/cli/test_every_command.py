"""Every command refuses invalid input in one line, with the right exit code, and never with a traceback."""

from __future__ import annotations

import asyncio
import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import pytest
import typer
from tests.acceptance.clew_command import ENVIRONMENT, GLAZE
from tests.cli.commands import COMMANDS

from clew import Agent, Conversations, Engine, Message, ScriptedChatClient, tool
from clew.cli import main
from clew.cli.app import Heading, app, command, root_command
from clew.cli.errors import WrongUsage
from clew.cli.options import AsJson
from clew.cli.output import write_json
from clew.domain.memory.events import FactRemembered, MemoryEvent, ScopeOpened, Statement
from clew.domain.memory.scope import ScopeFold
from clew.service.effects import run
from clew.service.memory.streams import commit
from clew.testing import call

if TYPE_CHECKING:
    from tests.cli.conftest import CalledClew as Clew

TOP = tuple(dict.fromkeys(name.split()[0] for name in COMMANDS))

THREAD = "THREAD"
ARGUMENTS = {
    THREAD: "order-1",
    "NAME": "a name",
    "MESSAGE": "2",
    "TEXT": "text",
    "NAME=VALUE": "topic=refund",
    "FILE": "two.jsonl",
    "OTHER": "order-2",
    "WORDS": "hello",
    "run|status": "status",
    "bash|zsh|fish": "bash",
    "VERSION": "2",
    "SCOPE": "user/42",
    "FACT": "fact",
    "REQUEST": "12",
    "WHEN": "1",
    "HOST:PORT/DATABASE": "localhost:1/none",
}
"""The value of an argument by its metavar; a new metavar needs a line here."""

OPTIONS: dict[str, list[str]] = {
    "diff": ["--at", "2"],
    "mcp": ["--list"],
    "rebuild": ["--all"],
    "purge": ["--yes"],
    "redact": ["--yes"],
    "rewind": ["--to", "2"],
}
"""The options that a command requires, or needs to end by itself."""

OF_SHARDS = {name for name in COMMANDS if name.startswith("shards ")}
"""Commands that need a directory of PostgreSQL servers."""

WITHOUT_STORE = {"import", "demo", "completion", "doctor", *OF_SHARDS}
"""Commands that need no SQLite database, make one, or list what is wrong with it."""


def arguments(name: str) -> list[tuple[str, bool]]:
    """The metavars of a command's arguments, and whether they must be given."""
    given = [each for each in COMMANDS[name].params if each.param_type_name == "argument"]
    return [(each.metavar.strip("[]"), each.required) for each in given]


def options(name: str) -> set[str]:
    return {option for each in COMMANDS[name].params if each.param_type_name == "option" for option in each.opts}


def called(name: str, thread: str | None = None, *, optional: bool = False) -> list[str]:
    """A valid command line, with the required or all arguments."""
    given = []
    for metavar, required in arguments(name):
        if thread is not None and metavar == THREAD:
            given.append(thread)
        elif required or optional:
            given.append(ARGUMENTS[metavar])
    named = ["--thread", thread] if thread is not None and "--thread" in options(name) else []
    return [*name.split(), *given, *OPTIONS.get(name, []), *named]


OF_A_THREAD = sorted(name for name in COMMANDS if THREAD in dict(arguments(name)) or "--thread" in options(name))
OF_A_VERSION = sorted((name, option) for name in OF_A_THREAD for option in ("--at", "--to") if option in options(name))
SILENT = {"chat"}
"""Commands that write nothing without input."""

WAITING = "waiting"
"""The thread that waits for an approval, for the commands that decide it."""

WITH_STORE = sorted(set(COMMANDS) - WITHOUT_STORE)


async def answered(url: str, thread_id: str) -> None:
    """Let a model answer on a thread, and ask for an approval on another."""
    async with Engine.open(url) as engine:
        await Agent(ScriptedChatClient(["Hello"])).run(thread=await engine.thread(thread_id))
        agent = Agent(ScriptedChatClient([call("pay")]), tools=[tool(lambda: None, name="pay", approval="always")])
        await agent.run("Pay", thread=await engine.open_thread(WAITING))


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database: two threads with a common prefix, one of them with a run; one that waits; a scope with a fact."""
    path = tmp_path_factory.mktemp("two") / "clew.db"
    with Conversations.open(f"sqlite:///{path}?synchronous=OFF") as conversations:
        for id_ in ("order-1", "order-2"):
            conversations.start_thread(thread_id=id_, messages=[Message.user(f"Hello {id_} {n}") for n in range(40)])
        remembered = FactRemembered(fact=ARGUMENTS["FACT"], statement=Statement(text="hello"))
        first: list[MemoryEvent] = [ScopeOpened(holds="facts"), remembered]
        run(commit(conversations._core, ARGUMENTS["SCOPE"], ScopeFold, lambda _fold, _now: first))
    asyncio.run(answered(f"sqlite:///{path}?synchronous=OFF", "order-1"))
    return path


@pytest.fixture
def two(clew: Clew, database: Path) -> Clew:
    """A store with two threads whose ids have a common prefix."""
    shutil.copyfile(database, clew.folder / "clew.db")
    return clew


def error(clew: Clew, code: int, *command: str) -> dict[str, str]:
    """The error of a command in JSON."""
    done = clew.run(*command, "--json")
    assert (done.returncode, done.stdout) == (code, ""), done
    (line,) = done.stderr.splitlines()
    result: dict[str, dict[str, str]] = json.loads(line)
    assert list(result) == ["error"]
    assert list(result["error"]) == ["type", "message"]
    assert "mistake" not in result["error"]["message"]
    return result["error"]


def test_there_are_commands_of_each_kind() -> None:
    assert {"show", "fork", "rewind", "redact", "verify", "export"} <= set(OF_A_THREAD)
    assert {("show", "--at"), ("fork", "--at"), ("rewind", "--to")} <= set(OF_A_VERSION)
    assert {"migrate", "threads"} <= set(WITH_STORE)


def test_every_command_is_under_one_heading_of_the_help(clew: Clew) -> None:
    headings = [heading for heading in get_args(Heading) if heading != "Other"]
    listed = clew.text("--help")
    assert re.findall(r"^(\w[\w ]+):$", listed, re.MULTILINE) == ["Options", *headings]
    for name in TOP:
        assert len(re.findall(rf"^  {name}  +\S", listed, re.MULTILINE)) == 1


def test_a_command_without_a_heading_is_under_the_last_one(clew: Clew) -> None:
    @command("clew ponder")
    def ponder() -> None:
        """Think about it."""

    root_command.cache_clear()
    try:
        listed = clew.text("--help")
    finally:
        app.registered_commands.pop()
        root_command.cache_clear()
    assert re.search(r"^Other:\n  ponder  +Think about it\.$", listed, re.MULTILINE)


@pytest.fixture
def toy(clew: Clew) -> Iterator[Clew]:
    """The command line with one more command, declared as CONTRIBUTING.md says."""

    @command("clew greet Ada", "clew greet Ada --json", heading="Read")
    def greet(
        name: Annotated[str, typer.Argument(metavar="NAME", autocompletion=lambda incomplete: [f"{incomplete}da"])],
        as_json: AsJson = False,  # noqa: FBT002  # as every command has it
    ) -> None:
        """Greet a person by name. Nobody else is greeted."""
        if name == "nobody":
            raise WrongUsage("Nobody cannot be greeted")
        if as_json:
            write_json({"greeted": name})
        else:
            typer.echo(f"Hello {name}!")

    root_command.cache_clear()
    yield clew
    app.registered_commands.pop()
    root_command.cache_clear()


def test_one_declaration_makes_a_command_with_help_json_errors_and_completion(
    toy: Clew, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read = toy.text("--help").split("Read:")[1].split("Branch and go back:")[0]
    assert re.search(r"^  greet +Greet a person by name\.$", read, re.MULTILINE)
    assert "Examples:\n    clew greet Ada\n" in toy.text("greet", "--help")
    assert toy.text("greet", "Ada") == "Hello Ada!\n"
    assert toy.object("greet", "Ada", "--json") == {"greeted": "Ada"}
    refused = error(toy, 2, "greet", "nobody")
    assert refused == {"type": "UsageError", "message": "Nobody cannot be greeted. Try 'clew greet --help'."}
    for words, candidate in (("clew gr", "greet"), ("clew greet A", "Ada")):
        monkeypatch.setenv("_CLEW_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", words.replace(" ", "\n"))
        monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
        assert main([]) == 0
        assert capsys.readouterr().out.split() == [candidate]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_takes_json(name: str) -> None:
    assert "--json" in options(name)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_refuses_an_unknown_option(clew: Clew, name: str) -> None:
    assert f"Try 'clew {name} --help'" in clew.refused(2, *called(name), "--no-such-option")
    assert error(clew, 2, *called(name), "--no-such-option")["type"] == "UsageError"
    assert list(clew.folder.iterdir()) == []


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_refuses_too_few_and_too_many_arguments(clew: Clew, name: str) -> None:
    needed = [metavar for metavar, required in arguments(name) if required]
    if needed:
        assert needed[0] in clew.refused(2, *name.split())
    if not any(each.nargs == -1 for each in COMMANDS[name].params):
        assert "unexpected extra argument" in clew.refused(2, *called(name, optional=True), "more", "and more")
    assert list(clew.folder.iterdir()) == []


@pytest.mark.parametrize("name", OF_A_THREAD)
def test_refuses_an_unknown_thread(two: Clew, name: str) -> None:
    assert two.refused(1, *called(name, "zz")).startswith("There is no thread 'zz'.")
    assert error(two, 1, *called(name, "zz"))["type"] == "UnknownThreadError"
    assert "\\x1b" in two.refused(1, *called(name, "\x1b[2J"))


@pytest.mark.parametrize("name", OF_A_THREAD)
def test_refuses_an_ambiguous_prefix(two: Clew, name: str) -> None:
    message = two.refused(1, *called(name, "order"))
    assert "order-1" in message
    assert "order-2" in message
    assert error(two, 1, *called(name, "order"))["type"] == "AmbiguousThreadError"


@pytest.mark.parametrize("name", OF_A_THREAD)
def test_refuses_an_invalid_thread_id(two: Clew, name: str) -> None:
    assert error(two, 2, *called(name, "x" * 201))["type"] == "InvalidNameError"
    assert error(two, 2, *called(name, "\udcff"))["type"] == "InvalidNameError"


@pytest.mark.parametrize(("name", "option"), OF_A_VERSION)
@pytest.mark.parametrize(
    ("given", "code", "kind"),
    [
        ("99", 1, "UnknownVersionError"),
        ("message:99", 1, "UnknownVersionError"),
        ("nowhere", 1, "UnknownCheckpointError"),
        ("2001-01-01T00:00:00Z", 1, "UnknownVersionError"),
        ("2026-01-31T12:00:00", 2, "InvalidTimeError"),
    ],
)
def test_refuses_an_unknown_version(two: Clew, name: str, option: str, given: str, code: int, kind: str) -> None:
    command = called(name, "order-1")
    if option in command:
        del command[command.index(option) :][:2]
    assert error(two, code, *command, option, given)["type"] == kind


@pytest.mark.parametrize("name", WITH_STORE)
def test_refuses_a_missing_or_invalid_database_and_creates_nothing(clew: Clew, name: str) -> None:
    command = called(name, "order-1")
    assert "the database does not exist" in clew.refused(1, *command)
    assert list(clew.folder.iterdir()) == []
    (clew.folder / "clew.db").write_text("This is no database.")
    assert "not an SQLite database" in clew.refused(1, *command)
    assert error(clew, 1, *command)["type"] == "StoreSchemaError"
    assert [each.name for each in clew.folder.iterdir()] == ["clew.db"]
    assert "Clew can open" in clew.refused(2, "--db", "nonsense:", *command) or name == "migrate"


def form(value: Any) -> Any:
    """The names and types in a JSON value, without the values, which differ between stores."""
    if isinstance(value, dict):
        return {name: form(each) for name, each in value.items()}
    return [form(each) for each in value] if isinstance(value, list) else type(value).__name__


@pytest.mark.parametrize("store", ["postgres"])
@pytest.mark.parametrize("name", WITH_STORE)
def test_has_the_same_results_on_a_server_as_on_a_file(two: Clew, postgres: str, name: str, store: str) -> None:
    del store  # it marks the tests of which every run takes a tenth
    with Conversations.open("sqlite:///clew.db") as here, Conversations.open(postgres) as there:
        there.import_events(io.BytesIO(b"".join(here.export_events())))
    done = [two.run("--db", url, *called(name), "--json") for url in ("sqlite:///clew.db", postgres)]
    assert done[0].returncode == done[1].returncode
    assert done[0].stderr == done[1].stderr
    shapes = [[form(json.loads(line)) for line in each.stdout.splitlines()] for each in done]
    assert shapes[0] == shapes[1]


PIPES = """
import json, os, sys
import clew.conversations, clew.cli.rendering.conversation, clew.cli.rendering.json_shapes
from clew.cli import main

for command in json.loads(sys.argv[1]):
    child = os.fork()
    if not child:
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(writer, 1)
        code = main(command)
        sys.stdout.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_ends_quietly_when_the_reader_of_its_output_has_left(two: Clew) -> None:
    names = sorted(set(COMMANDS) - SILENT - OF_SHARDS)
    commands = []
    for name in names:  # each with its own database, because some change it
        shutil.copyfile(two.folder / "clew.db", two.folder / f"{name}.db")
        commands.append(
            ["--db", f"sqlite:///{name}.db", *called(name, WAITING if name in {"approve", "decline"} else "order-1")]
        )
    two.file("two.jsonl", GLAZE)
    done = subprocess.run(
        [sys.executable, "-c", PIPES, json.dumps(commands)],
        cwd=two.folder,
        env={**ENVIRONMENT, "SHELL": "/bin/bash"},
        check=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert dict(zip(names, done.stdout.split(), strict=True)) == dict.fromkeys(names, "1")
    assert done.stderr == ""


@pytest.mark.parametrize("name", WITH_STORE)
def test_reports_a_damaged_file_in_one_line(two: Clew, name: str) -> None:
    path = two.folder / "clew.db"
    path.write_bytes(path.read_bytes()[:4096].ljust(path.stat().st_size, b"\xa5"))
    done = two.run(*called(name, "order-1"))
    assert "mistake" not in done.stderr
    assert len(done.stderr.splitlines()) <= 1
    if done.returncode == 0:  # the page with the schema is undamaged
        assert name in {"migrate", "mcp"}
