"""Tests of the documents: code blocks run as pasted, link targets exist, and the reference is complete."""

from __future__ import annotations

import ast
import importlib
import os
import pkgutil
import re
import shlex
import subprocess
import sys
import sysconfig
from codeop import CommandCompiler
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from types import FunctionType
from typing import Any, NamedTuple
from unittest import mock

import pytest
from docs.make_reference import MODULES, PAGE, is_class, reference
from tests.servers.aimock_server import Aimock, ToolCall
from tests.servers.mem0_server import Mem0Server

from clew.cli.app import root_command

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MORE_PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", re.MULTILINE | re.DOTALL)
ROOM_FOLDERS = ("src", "tests", "tools", "docs", "benchmarks", "examples")
IN_SOURCE_FOLDER = "run it in Clew's source folder"
"""A page with these words runs next to the examples. The other pages run in an empty folder."""

SAVED = re.compile(r"Save the first block as `([\w.]+)`")
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


class Block(NamedTuple):
    """A code block on a page, with the line that it starts on and its output if the page shows it."""

    language: str
    code: str
    line: int
    printed: str | None


def blocks_of(page: Path) -> list[Block]:
    """The blocks that the test runs. A ``text`` block directly after one of them is its output."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(match[1], match[2], text.count("\n", 0, match.start()) + 2, match[3]) for match in BLOCK.finditer(text)
    ]


def matches(output: str, expected: str) -> bool:
    """Whether the output is the expected one. In it, ``…`` stands for any text, including line ends."""
    pattern = ".*".join(re.escape(part) for part in expected.strip().split("…"))
    return re.fullmatch(pattern, re.sub(r" +\n", "\n", output).strip(), re.DOTALL) is not None


def run_shell(command: str, folder: Path) -> str:
    """Run a shell command and return its stdout and stderr."""
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
    """Run a block as written, in the namespace of the page's earlier blocks, as in one file or one REPL."""
    with mock.patch.dict(os.environ):  # changes to the environment end with the block
        exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec"), names)  # noqa: S102  # the project's own


@pytest.fixture
def model_service(aimock: Aimock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A substitute for OpenAI's service, with an answer for each question on the pages."""
    aimock.reply("Where is parcel 7?", tool_calls=[ToolCall("track", {"parcel": 7})], after_tools=False)
    aimock.reply("Where is parcel 7?", text="It is in the depot in Cork.", after_tools=True)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    monkeypatch.setenv("OPENAI_BASE_URL", aimock.base_url)


@pytest.fixture
def memory_service(mem0: Mem0Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A substitute for mem0's service."""
    monkeypatch.setenv("MEM0_API_KEY", mem0.key)
    monkeypatch.setenv("MEM0_HOST", mem0.url)


@pytest.mark.usefixtures("memory_service", "model_service")
@pytest.mark.parametrize(
    "page", [page for page in PAGES if page != PAGE and blocks_of(page)], ids=lambda page: page.stem
)
def test_the_code_blocks_of_a_page_run_as_pasted_and_print_the_output_it_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    if IN_SOURCE_FOLDER in text:
        (tmp_path / "examples").symlink_to(ROOT / "examples")
    else:
        monkeypatch.setattr(sys, "path", [each for each in sys.path if Path(each).resolve() != ROOT])
        for name in [each for each in sys.modules if each.partition(".")[0] == "examples"]:
            monkeypatch.delitem(sys.modules, name)
    for saved in SAVED.findall(text):
        (tmp_path / saved).write_text(blocks_of(page)[0].code, encoding="utf-8")
    names: dict[str, Any] = {}
    for block in blocks_of(page):
        where = f"{page.name}, line {block.line}"
        if block.language == "python":
            run_python(block, page, names)
            printed = capsys.readouterr().out
            assert matches(printed, block.printed or ""), f"{where}: prints\n{printed}"
        else:
            for command, expected in COMMAND.findall(block.code):
                output = run_shell(command, tmp_path)
                assert matches(output, expected), f"{where}: {command} prints\n{output}"


def refused_in_a_session(code: str) -> list[str]:
    """The first line of a block that Python refuses if the block is pasted into an interactive session."""
    compiled, statement = CommandCompiler(), ""
    for line in f"{code}\n".splitlines():
        statement += f"{line}\n"
        try:
            if compiled(statement.removesuffix("\n")) is not None:
                statement = ""
        except SyntaxError:
            return [line]
    return []


def test_the_tutorial_can_be_pasted_into_an_interactive_session() -> None:
    assert refused_in_a_session("for x in y:\n    print(x)\nprint(y)\n") == ["print(y)"]
    page = ROOT / "docs/getting-started.md"
    assert "one Python session" in page.read_text(encoding="utf-8")
    blocks = [block for block in blocks_of(page) if block.language == "python"]
    assert [line for block in blocks for line in refused_in_a_session(block.code)] == []


def uncalled_mains(code: str) -> list[str]:
    """The functions named ``main`` or ``main_…`` that a block defines but does not call."""
    tree = ast.parse(code)
    defined = [each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    statements = [each for each in tree.body if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    used = {node.id for statement in statements for node in ast.walk(statement) if isinstance(node, ast.Name)}
    return [name for name in defined if name.startswith("main") and name not in used]


def test_a_code_block_calls_each_main_function_that_it_defines() -> None:
    assert uncalled_mains("async def main():\n    pass\n") == ["main"]
    assert uncalled_mains("async def main():\n    pass\n\nasyncio.run(main())\n") == []
    uncalled = [
        f"{page.name}, line {block.line}: {name}() is never called"
        for page in PAGES
        if page != PAGE
        for block in blocks_of(page)
        if block.language == "python"
        for name in uncalled_mains(block.code)
    ]
    assert uncalled == []


def test_shell_blocks_have_no_placeholders_that_cannot_be_typed() -> None:
    blocks = [
        (page, line)
        for page in [*PAGES, ROOT / "CONTRIBUTING.md"]
        for block in re.findall(r"^```(?:sh)?\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
    ]
    untypable = [f"{page.name}: {line}" for page, line in blocks if re.match(r"(git|pip|cd|createdb)\b.*…", line)]
    assert untypable == []


def test_an_excerpt_is_part_of_an_example() -> None:
    examples = [path.read_text(encoding="utf-8") for path in (ROOT / "examples").rglob("*.py")]
    for page in PAGES:
        for excerpt in re.findall(r"^```py\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            assert any(excerpt in example for example in examples), f"{page.name}: {excerpt}"


def definitions(code: str) -> dict[str, str]:
    """The source of each class and function that a module or a block defines at its top level."""
    return {
        each.name: ast.get_source_segment(code, each) or ""
        for each in ast.parse(code).body
        if isinstance(each, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_a_page_defines_what_it_shows_of_an_example_as_the_example_does() -> None:
    compared = 0
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for example in set(re.findall(r"\((?:\.\./)*(examples/\w+\.py)\)", text)):
            expected = definitions((ROOT / example).read_text(encoding="utf-8"))
            for block in blocks_of(page):
                shown = definitions(block.code) if block.language == "python" else {}
                same = shown.keys() & expected.keys()
                if any(expected[name].startswith("class ") for name in same):  # other blocks show variants
                    assert {name: shown[name] for name in same} == {name: expected[name] for name in same}
                    compared += 1
    assert compared >= 2


def test_the_first_code_block_of_the_readme_is_about_fifteen_lines() -> None:
    first = next(block for block in blocks_of(ROOT / "README.md") if block.language == "python")
    assert 10 <= len([line for line in first.code.splitlines() if line.strip()]) <= 16


def test_the_readmes_agent_with_a_tool_is_shorter_than_twenty_lines() -> None:
    agents = [block for block in blocks_of(ROOT / "README.md") if "Agent(" in block.code and "tools=[" in block.code]
    assert len(agents) == 1
    assert len(agents[0].code.splitlines()) < 20


def unknown_word(command: Any, line: str) -> str | None:
    """The first word of a command line that is not an existing command or option; None if all words exist."""
    words = iter(shlex.split(line))
    for word in words:
        if word == "--":  # only arguments follow
            return None
        if word.startswith("-") and word != "-":
            option = next((option for option in command.params if word in option.opts), None)
            if option is None and word not in {"-h", "--help"}:
                return word
            if option is not None and not option.is_flag:
                next(words, None)
        elif hasattr(command, "commands"):
            if word.isupper():  # a placeholder such as COMMAND
                return None
            if word not in command.commands:
                return word
            command = command.commands[word]
    return None


def test_every_command_in_the_documents_exists_with_its_options() -> None:
    clew = root_command()
    missing = [
        f"{page.name}: clew {line}: {word}"
        for page in PAGES
        for line in re.findall(r"(?:^|`|^\$ )clew ([^`\n|#<>[]+)", page.read_text(encoding="utf-8"), re.MULTILINE)
        if (word := unknown_word(clew, line)) is not None
    ]
    assert missing == []


def test_the_reference_is_up_to_date_with_the_docstrings() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), "docs/reference.md is out of date: make docs"


def entries(page: str) -> dict[str, str]:
    """The text of each entry of the reference, keyed by the dotted name of its class or function."""
    parts = re.split(r"^##+ (?=\w+(?: \(`[\w-]+`\))?\n\n```python\nfrom )", page, flags=re.MULTILINE)
    texts = {}
    for part in parts[1:]:
        line = re.search(r"^from ([\w.]+) import (\w+)$", part, re.MULTILINE)
        assert line is not None
        texts[f"{line[1]}.{line[2]}"] = part
    return texts


def test_the_reference_has_every_public_name() -> None:
    page = PAGE.read_text(encoding="utf-8")
    listed = {id(public(name)) for name in entries(page)}
    missing = [
        f"{module.__name__}.{name}"
        for module in MODULES
        for name in module.__all__
        if id(getattr(module, name)) not in listed
        and f"`{module.__name__}.{name}`" not in page  # a type alias
        and f"**{name}**" not in page  # an error
    ]
    assert missing == []


def test_the_reference_has_every_public_method_and_property() -> None:
    described = {id(public(name)): text for name, text in entries(PAGE.read_text(encoding="utf-8")).items()}
    names = {name: id(public(name)) for name in entries(PAGE.read_text(encoding="utf-8"))}
    missing: list[str] = []
    checked = 0
    for name, key in names.items():
        cls, text = public(name), described[key]
        if not is_class(cls):
            continue
        linked = re.findall(r"\[(\w+)\]\(#", text)
        texts = [text, *(described[names[each]] for each in names if each.rpartition(".")[2] in linked)]
        texts += [described[id(base)] for base in cls.__mro__ if id(base) in described]
        for member in public_members(cls):
            checked += 1
            pattern = rf"#### \w+\.{member}\n|`(await )?{member}`|\b{member}: "
            if not any(re.search(pattern, each) for each in texts):
                missing.append(f"{name}.{member}")
    assert missing == []
    assert checked > 300


def public(name: str) -> Any:
    """The object that a dotted public name refers to."""
    module, _, attribute = name.rpartition(".")
    return getattr(sys.modules[module], attribute)


def public_members(cls: type) -> Iterator[str]:
    """The public methods and properties that Clew defines for a class."""
    for base in cls.__mro__:
        if base.__module__.startswith("clew."):
            for name, member in vars(base).items():
                if not name.startswith("_") and isinstance(
                    member, FunctionType | classmethod | staticmethod | property
                ):
                    yield name


def test_every_path_in_the_architecture_exists() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    paths = set(re.findall(r"`((?:\w+/)*\w+\.py|(?:\w+/)+)`", page)) - {"events.py", "errors.py"}
    assert len(paths) > 30
    assert [path for path in sorted(paths) if not (ROOT / "src/clew" / path).exists()] == []


NOT_MODULES = (
    "clew.db",
    "clew.jsonl",
    "clew.projection.",
    "clew.tenant",
    "clew.wire_formats",
    "clew.model_clients",
    "clew.usage.cost",
)
"""Users' files, a PostgreSQL setting, the prefix of metrics, groups of entry points and an attribute of spans."""


@pytest.mark.parametrize("page", [page for page in [*PAGES, *MORE_PAGES] if page != PAGE], ids=lambda page: page.stem)
def test_every_module_that_a_page_names_exists(page: Path) -> None:
    files = [f"/{path.relative_to(ROOT)}" for room in ROOM_FOLDERS for path in (ROOT / room).rglob("*.py")]
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    named = re.findall(r"`((?:[\w-]+/)*\w+\.py)`", text)
    assert [each for each in named if not any(file.endswith(f"/{each}") for file in files)] == []
    dotted = set(re.findall(r"(?<![\w./@-])clew\.[a-z_][a-z_0-9]*(?:\.\w+)*", text))
    assert [each for each in sorted(dotted) if not each.startswith(NOT_MODULES) and not exists(each)] == []


def exists(name: str) -> bool:
    """Whether a dotted name is a module, or a name that a module defines."""
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def test_the_tree_in_the_architecture_shows_every_package() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    tree = page.split("```")[1]
    rooms = {path.name for path in (ROOT / "src/clew").iterdir() if path.is_dir() and list(path.glob("*.py"))}
    assert {room for room in rooms if f"{room}/" not in tree} == set()


RECIPES = ("an event type", "a projection", "a context provider", "a model client", "a store", "a command")


def test_a_test_follows_each_recipe() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for recipe in RECIPES:
        _, heading, section = text.partition(f"\n## Add {recipe}\n")
        assert heading, f"CONTRIBUTING.md has no recipe for {recipe}"
        named = re.findall(r"`(tests/[\w/]+\.py)`", section.partition("\n## ")[0])
        assert any((ROOT / path).is_file() for path in named), f"no test follows the recipe for {recipe}: {named}"


def test_the_code_of_the_recipes_imports_what_exists() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    blocks = [dedent(block) for block in re.findall(r"^ *```\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)]
    trees = [ast.parse(block) for block in blocks if "\nclass " in block or " import " in block]
    imports = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert len(imports) > len(RECIPES)
    missing = [
        f"{node.module}: {name.name}"
        for node in imports
        for name in node.names
        if not hasattr(importlib.import_module(str(node.module)), name.name)
    ]
    assert set(missing) <= {"clew.domain.events: MessagePinned"}  # the recipe adds it


def test_the_target_of_every_link_exists() -> None:
    documents = [*PAGES, *MORE_PAGES]
    missing = [
        f"{document.name}: {target}"
        for document in documents
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8"))
        if not (document.parent / target).exists()
    ]
    assert missing == []


def test_the_heading_of_every_link_exists() -> None:
    missing = [
        f"{page.name}: {target}#{anchor}"
        for page in [*PAGES, *MORE_PAGES]
        for target, anchor in re.findall(r"\]\(([^)#:\s]*)#([^)]+)\)", page.read_text(encoding="utf-8"))
        if anchor not in anchors(page.parent / target if target else page)
    ]
    assert missing == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readme_says_nothing_twice() -> None:
    lines = [line for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines() if len(line) > LONG_LINE]
    assert {line for line in lines if lines.count(line) > 1} == set()


LONG_LINE = 60
"""Shorter lines may be in several blocks of code."""
