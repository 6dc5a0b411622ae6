"""What the documents say is run: Python, shell commands and their output, links, and the reference."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
import sysconfig
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
import typer
from docs.make_reference import PAGE, reference
from tests.servers.aimock_server import Aimock, ToolCall
from tests.servers.mem0_server import Mem0Server

from clew.cli.app import app

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


class Block(NamedTuple):
    """A block of code of a page, with the line that it begins on, and what it prints where the page says so."""

    language: str
    code: str
    line: int
    printed: str | None


def blocks_of(page: Path) -> list[Block]:
    """The blocks that are run. A ``text`` block right after one is what it prints."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(found[1], found[2], text.count("\n", 0, found.start()) + 2, found[3]) for found in BLOCK.finditer(text)
    ]


def matches(said: str, promised: str) -> bool:
    """Whether the output is as promised, where ``…`` stands for anything, also for lines."""
    pattern = ".*".join(re.escape(part) for part in promised.strip().split("…"))
    return re.fullmatch(pattern, re.sub(r" +\n", "\n", said).strip(), re.DOTALL) is not None


def run_shell(command: str, folder: Path) -> str:
    """What a shell command prints, wherever it does so."""
    path = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": "100", "NO_COLOR": "1"}
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        text=True,
        timeout=60,
    )
    return done.stdout


def run_python(block: Block, page: Path, names: dict[str, Any]) -> None:
    """Run a block after those before it; a ``main`` that it defines is awaited, unless it does that itself."""
    with mock.patch.dict(os.environ):  # what the page sets there is its own
        exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec"), names)  # noqa: S102  # the page's own
        main = names.pop("main", None)
        if main is not None and "asyncio.run(main())" not in block.code:
            asyncio.run(main())


@pytest.fixture
def model_service(aimock: Aimock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that answers what the pages ask, where OpenAI's own would."""
    aimock.reply("Where is parcel 7?", tool_calls=[ToolCall("track", {"parcel": 7})], after_tools=False)
    aimock.reply("Where is parcel 7?", text="It is in the depot in Cork.", after_tools=True)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-nobody")
    monkeypatch.setenv("OPENAI_BASE_URL", aimock.base_url)


@pytest.fixture
def memory_service(mem0: Mem0Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that remembers what the pages have it remember, where mem0's own would."""
    monkeypatch.setenv("MEM0_API_KEY", mem0.key)
    monkeypatch.setenv("MEM0_HOST", mem0.url)


@pytest.mark.usefixtures("memory_service", "model_service")
@pytest.mark.parametrize(
    "page", [page for page in PAGES if page != PAGE and blocks_of(page)], ids=lambda page: page.stem
)
def test_what_a_page_shows_runs_and_prints_what_it_promises(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    names: dict[str, Any] = {}
    for block in blocks_of(page):
        where = f"{page.name}, line {block.line}"
        if block.language == "python":
            run_python(block, page, names)
            printed = capsys.readouterr().out
            assert matches(printed, block.printed or ""), f"{where}: it prints\n{printed}"
        else:
            for command, promised in COMMAND.findall(block.code):
                said = run_shell(command, tmp_path)
                assert matches(said, promised), f"{where}: {command} prints\n{said}"


def test_an_excerpt_is_part_of_an_example() -> None:
    examples = [path.read_text(encoding="utf-8") for path in (ROOT / "examples").glob("*.py")]
    for page in PAGES:
        for excerpt in re.findall(r"^```py\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            assert any(excerpt in example for example in examples), f"{page.name}: {excerpt}"


def test_the_first_code_block_of_the_readme_is_about_fifteen_lines() -> None:
    first = next(block for block in blocks_of(ROOT / "README.md") if block.language == "python")
    assert 10 <= len([line for line in first.code.splitlines() if line.strip()]) <= 16


def test_the_agent_with_a_tool_of_the_readme_is_under_twenty_lines() -> None:
    found = [block for block in blocks_of(ROOT / "README.md") if "Agent(" in block.code and "tools=[" in block.code]
    assert len(found) == 1
    assert len(found[0].code.splitlines()) < 20


def what_is_not_there(command: Any, line: str) -> str | None:
    """The first word of a command line that is no command or no option of it; None if all are there."""
    words = iter(shlex.split(line))
    for word in words:
        if word.startswith("-") and word != "-":
            option = next((option for option in command.params if word in option.opts), None)
            if option is None and word not in {"-h", "--help"}:
                return word
            if option is not None and not option.is_flag:
                next(words, None)
        elif hasattr(command, "commands"):
            if word.isupper():  # a word such as COMMAND stands for one
                return None
            if word not in command.commands:
                return word
            command = command.commands[word]
    return None


def test_every_command_that_is_told_of_is_there_with_its_options() -> None:
    clew = typer.main.get_command(app)
    missing = [
        f"{page.name}: clew {line}: {word}"
        for page in PAGES
        for line in re.findall(r"(?:^|`|^\$ )clew ([^`\n|#<>[]+)", page.read_text(encoding="utf-8"), re.MULTILINE)
        if (word := what_is_not_there(clew, line)) is not None
    ]
    assert missing == []


def test_the_reference_says_what_the_docstrings_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), "docs/reference.md is out of date: make docs"


def test_every_link_of_the_documents_leads_somewhere() -> None:
    documents = [*PAGES, ROOT / "CONTRIBUTING.md"]
    missing = [
        f"{document.name}: {target}"
        for document in documents
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8"))
        if not (document.parent / target).exists()
    ]
    assert missing == []


def test_every_link_to_a_heading_leads_to_one() -> None:
    missing = [
        f"{page.name}: {target}#{anchor}"
        for page in PAGES
        for target, anchor in re.findall(r"\]\(([^)#:\s]*)#([^)]+)\)", page.read_text(encoding="utf-8"))
        if anchor not in anchors(page.parent / target if target else page)
    ]
    assert missing == []


def anchors(page: Path) -> set[str]:
    """The names that a page's headings are linked by."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
