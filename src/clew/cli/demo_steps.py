"""The steps of the demo: each explains itself, shows a command or code, runs it, and shows the result."""

from __future__ import annotations

import asyncio
import shlex
import shutil
import sys
import tempfile
from importlib import resources
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.rule import Rule
from rich.text import Text

from clew.agents.tools import tool
from clew.cli.commands import doctor, history, thread_commands, thread_directory, transfer
from clew.cli.options import Moment
from clew.cli.output import console as new_console
from clew.cli.rendering import json_shapes
from clew.cli.rendering.diff_terminal import diff_lines
from clew.conversations import Conversations
from clew.domain.events import MESSAGE_APPENDED
from clew.domain.messages import Message
from clew.engine import Agent, Engine
from clew.infrastructure.scripted_client import ScriptedChatClient, call
from clew.sync.threads import Thread

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 80
START = 1_768_467_600_000_000
"""The demo's clock starts on 15 January 2026 at 09:00 UTC, one second for each commit: every run looks the same."""

WHAT_IF = "A new teapot instead"
FORK_ID = "5a27262b1719e723"
CHECKPOINT = "before the refund"
OFFER = 5
"""The message of the first conversation that offers a refund or a new teapot."""

WORDS = "teapot pieces"
FIRST_WORDS = 2
"""The number of the message with these words. It is before the fork, so the fork has it, too."""

DESK_ID = "c0ffee5d1e2b7a94"
"""The thread of the agent."""

PHRASE = "48 euros are"
FORGED_PHRASE = "98 euros are"
"""The text that the tampering writes in place of the phrase: one byte of one message differs."""


def samples() -> str:
    """The conversations that the demo imports, as JSON lines."""
    return resources.files("clew.cli").joinpath("demo.jsonl").read_text(encoding="utf-8")


def run(*, quiet: bool) -> dict[str, Any]:
    """Run the demo in a temporary folder; returns the result of each step, in the JSON shapes of the commands."""
    console = new_console(width=min(WIDTH, new_console().width), quiet=quiet)
    with tempfile.TemporaryDirectory(prefix="clew-demo-") as folder:
        return _Demo(Path(folder), console).run()


class _Demo:
    """One run of the demo."""

    def __init__(self, folder: Path, console: Console) -> None:
        self._folder = folder
        self._console = console
        self._steps: list[dict[str, Any]] = []
        self._moments = count(START, 1_000_000)
        (folder / "demo.jsonl").write_text(samples(), encoding="utf-8")

    def run(self) -> dict[str, Any]:
        """Run all steps, then suggest what to try next."""
        self._console.print(Text("Clew: conversations as streams of events", style="bold"))
        self._console.print("This demo uses a database in a temporary folder, and removes it.")
        with Conversations.open(self._url("demo.db"), now=self._now) as conversations:
            first = self._import(conversations)
            self._list(conversations)
            branch = self._fork(first)
            self._continue(conversations, branch)
            self._go_back_in_time(conversations, first)
            self._rewind(conversations, first)
            self._draw(conversations, first)
            self._compare(conversations, first, branch)
            self._search(conversations)
            self._redact(conversations, first)
            self._run_agent(conversations)
            self._verify(conversations)
        self._tamper()
        self._suggest(first)
        return {"ok": True, "steps": self._steps}

    def _import(self, conversations: Conversations) -> Thread:
        self._begin("Import", "Three conversations with tool calls, in the OpenAI format: one event a message.")
        self._command("clew import demo.jsonl")
        report = conversations.import_files([self._folder / "demo.jsonl"])
        self._console.print(transfer.import_text(report))
        self._end(json_shapes.import_report(report))
        return conversations.thread(next(conversations.threads()).id)

    def _list(self, conversations: Conversations) -> None:
        self._begin("List", "Each conversation is a thread. A unique prefix of its id is enough.")
        self._command("clew threads")
        thread_directory.print_threads(conversations, self._console)
        self._end([json_shapes.thread(summary) for summary in conversations.threads()])

    def _fork(self, first: Thread) -> Thread:
        self._begin("Fork", "What if the customer wants a new teapot? A fork costs one event and copies nothing.")
        self._command(f'clew fork {first.id[:4]} --at message:{OFFER} --title "{WHAT_IF}"')
        branch = first.fork(at_message=OFFER, title=WHAT_IF, thread_id=FORK_ID)
        self._console.print(thread_commands.fork_text(branch.summary()))
        self._end(json_shapes.thread(branch.summary()))
        return branch

    def _continue(self, conversations: Conversations, branch: Thread) -> None:
        self._begin("Continue differently", "The fork continues by itself; the original thread does not change.")
        question, answer = "A new teapot, please.", "Gladly. It leaves the kiln on Monday."
        self._code(
            f'fork = conversations.thread("{branch.id}")',
            f'fork.append([Message.user("{question}"),',
            f'             Message.assistant("{answer}")])',
        )
        branch.append([Message.user(question), Message.assistant(answer)])
        self._command(f"clew show {branch.id[:4]}")
        history.print_thread(conversations, branch.id, Moment(), self._console)
        self._end(json_shapes.history(branch.history(), [], []))

    def _go_back_in_time(self, conversations: Conversations, first: Thread) -> None:
        self._begin("Go back in time", "Show any thread as it was at a version, a message, a time or a checkpoint.")
        self._command(f"clew show {first.id[:4]} --at message:2")
        history.print_thread(conversations, first.id, Moment(at_message=2), self._console)
        self._end(json_shapes.history(first.history(at_message=2), [], []))

    def _rewind(self, conversations: Conversations, first: Thread) -> None:
        self._begin("Checkpoint and rewind", "Name a version, and go back to it. Nothing is deleted.")
        cut = first.history(at_message=OFFER).version
        self._command(f'clew checkpoint {first.id[:4]} "{CHECKPOINT}" --at {cut}')
        self._console.print(thread_commands.checkpoint_text(first.id, CHECKPOINT, first.checkpoint(CHECKPOINT, at=cut)))
        self._command(f'clew rewind {first.id[:4]} --to "{CHECKPOINT}"')
        target = first.history(at=CHECKPOINT)
        self._console.print(thread_commands.rewind_text(target, first.rewind(to=CHECKPOINT)))
        self._command(f"clew log {first.id[:4]}")
        history.print_events(conversations, first.id, self._console)
        self._end(json_shapes.thread(first.summary()))

    def _draw(self, conversations: Conversations, first: Thread) -> None:
        self._begin("Draw", "Each fork starts at the version where it left its parent; ◆ is a checkpoint.")
        self._command(f"clew tree {first.id[:4]}")
        thread_directory.print_tree(conversations, first.id, self._console)
        self._end([json_shapes.branch(branch) for branch in conversations.tree(first.id)])

    def _search(self, conversations: Conversations) -> None:
        self._begin("Search", "Search words, also in tool calls and results. A hit names the forks that share it.")
        self._command(f"clew search {WORDS}")
        hits = conversations.search(WORDS)
        thread_directory.print_hits(conversations, hits, self._console)
        self._end([json_shapes.hit(hit) for hit in hits])

    def _compare(self, conversations: Conversations, first: Thread, branch: Thread) -> None:
        self._begin("Compare", "The thread before its rewind and the fork: turn by turn, word by word.")
        cut = branch.summary().forked_at
        newest = first.events(after=cut or 0)
        before = max(event.version for event in newest if event.type == MESSAGE_APPENDED)
        self._command(f"clew diff {first.id[:4]} {branch.id[:4]} --at {before}")
        diff = conversations.diff(first.id, branch.id, at=before)
        for line in diff_lines(diff, self._console, everything=False):
            self._console.print(line, soft_wrap=True)
        self._end(json_shapes.diff(diff, everything=False))

    def _redact(self, conversations: Conversations, first: Thread) -> None:
        self._begin("Redact", "Destroy the content of a message: in the log, in every fork and in the index.")
        self._command(f"clew redact {first.id[:4]} message:{FIRST_WORDS} --yes")
        version = first.history(at_message=FIRST_WORDS).version
        redaction = first.redact(version)
        self._console.print(thread_commands.redact_text(next(first.events(after=version - 1)), redaction))
        self._command(f"clew search {WORDS}")
        hits = conversations.search(WORDS)
        thread_directory.print_hits(conversations, hits, self._console)
        self._end([json_shapes.hit(hit) for hit in hits])

    def _run_agent(self, conversations: Conversations) -> None:
        self._begin("Run an agent", "Every step of a run is an event. Here a tool call waits for an approval.")
        self._code(
            '@tool(approval="always")',
            "def refund(euros: int) -> str:",
            '    return f"{euros} euros paid"',
            'agent = Agent(client, engine=engine, name="Desk", tools=[refund])',
            'response = await agent.run("My kettle leaks.", thread=thread)',
            'await response.approvals[0].approve(actor="ada")',
            "await agent.continue_run(thread)",
        )
        asyncio.run(self._answer())
        self._command(f"clew log {DESK_ID[:4]}")
        history.print_events(conversations, DESK_ID, self._console)
        self._end([json_shapes.event(event) for event in conversations.thread(DESK_ID).events()])

    async def _answer(self) -> None:
        """Run the code of the step, with a script in place of a model."""

        @tool(approval="always")
        def refund(euros: int) -> str:
            return f"{euros} euros paid"

        client = ScriptedChatClient([call("refund", euros=30), "I pay you back."])
        async with Engine.open(self._url("demo.db"), now=self._now) as engine:
            agent = Agent(client, engine=engine, name="Desk", tools=[refund])
            thread = await engine.start_thread("Kettle", thread_id=DESK_ID)
            response = await agent.run("My kettle leaks.", thread=thread)
            await response.approvals[0].approve(actor="ada")
            await agent.continue_run(thread)

    def _verify(self, conversations: Conversations) -> None:
        self._begin("Verify", "A hash chains every event to the one before it, the redacted one too.")
        self._command("clew verify")
        self._end_with_verdict(conversations)

    def _end_with_verdict(self, conversations: Conversations) -> None:
        verdict = conversations.verify()
        self._console.print(doctor.verdict_text(verdict))
        self._end(json_shapes.verdict(verdict))

    def _tamper(self) -> None:
        self._begin("Tamper", "Somebody changes one byte in a copy of the file: 48 euros become 98.")
        copy = self._folder / "copy.db"
        self._code(
            'data = Path("demo.db").read_bytes()',
            f'Path("copy.db").write_bytes(data.replace(b"{PHRASE}", b"{FORGED_PHRASE}"))',
        )
        data = (self._folder / "demo.db").read_bytes()
        copy.write_bytes(data.replace(PHRASE.encode(), FORGED_PHRASE.encode()))
        self._command("clew --db sqlite:///copy.db verify")
        with Conversations.open(self._url("copy.db"), now=self._now) as conversations:
            self._end_with_verdict(conversations)

    def _url(self, name: str) -> str:
        return f"sqlite:///{self._folder / name}"

    def _now(self) -> int:
        """The demo's clock."""
        return next(self._moments)

    def _suggest(self, first: Thread) -> None:
        program = _program()
        self._console.print()
        self._console.print(Rule(Text("What to try next", style="bold"), align="left", style="dim"))
        for line in (
            f"{program} demo --samples > samples.jsonl",
            f"{program} import samples.jsonl",
            f"{program} show {first.id[:4]} --at message:{OFFER}",
            f'{program} fork {first.id[:4]} --at message:{OFFER} --title "My own what-if"',
            f"{program} tree",
            f"{program} replay {first.id[:4]}",
            f"{program} --help",
        ):
            self._command(line)

    def _begin(self, title: str, explanation: str) -> None:
        self._steps.append({"step": title, "commands": [], "code": []})
        self._console.print()
        heading = Text(f"{len(self._steps)}. {title}", style="bold")
        self._console.print(Rule(heading, align="left", style="dim"))
        self._console.print(explanation)

    def _command(self, line: str) -> None:
        if self._steps and "result" not in self._steps[-1]:
            self._steps[-1]["commands"].append(line)
        self._console.print(Text.assemble(("$ ", "dim"), (line, "bold green")), soft_wrap=True)

    def _code(self, *lines: str) -> None:
        self._steps[-1]["code"] += lines
        for line in lines:
            prompt = "... " if line.startswith(" ") else ">>> "
            self._console.print(Text.assemble((prompt, "dim"), (line, "bold cyan")), soft_wrap=True)

    def _end(self, result: Any) -> None:
        self._steps[-1]["result"] = result


def _program() -> str:
    """The command that starts this program again: its name if the shell finds it, otherwise its path."""
    path = Path(sys.argv[0])
    if path.name != "clew":
        return "python -m clew"
    on_path = shutil.which("clew")
    return "clew" if on_path is not None and Path(on_path).resolve() == path.resolve() else shlex.quote(str(path))
