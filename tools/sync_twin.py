"""Generates the sync face from the asyncio face, which is written by hand: ``make generate``.

A twin is the same text without ``async`` and ``await``, and with the sync names of WORDS. Code that only asyncio has is
marked in the source and left out: a statement or a line that ends with ``# asyncio only``, and everything between
``# asyncio only: begin`` and ``# asyncio only: end``. Ruff then removes unused imports, and formats.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src/clew"

TWINS = {
    "engine.py": ("conversations.py", "The service: threads, forks, histories, memory and read models of one tenant."),
    "aio/__init__.py": (
        "sync/__init__.py",
        "The threads and memory scopes of Conversations: a call is done when it returns.",
    ),
    "aio/batch.py": ("sync/batch.py", "Batches of Conversations: one commit over threads and scopes."),
    "aio/memory.py": ("sync/memory.py", "The memory of Conversations: scopes of facts."),
    "aio/subscription.py": ("sync/subscription.py", "Live subscriptions of Conversations."),
    "aio/threads.py": (
        "sync/threads.py",
        "A thread of Conversations: one class with every command and query of a conversation.",
    ),
}
"""Each source, the file that is generated from it, and what that is."""

HEADER = """# Generated from src/clew/{source} by `make generate`. Do not edit it: edit the source.
\"\"\"{docstring}\"\"\"
"""

WORDS = [
    # What each API calls the other. The placeholder keeps the next rules from changing it.
    (r"^( +)from clew\.conversations import Conversations$", r"\1from clew.<module> import <class>"),
    (r"\bdef blocking\(self\) -> Conversations\b", "def awaited(self) -> <class>"),
    (r"^        return Conversations\(", "        return <class>("),
    (r"^from clew\.service\.async_effects import ThreadsafeEvent, drive$",
     "import threading\nfrom clew.service.effects import run"),
    (r"\bThreadsafeEvent\b", "threading.Event"),
    (r"\bStopAsyncIteration\b", "StopIteration"),
    (r"^from clew\.service\.async_effects import drive$", "from clew.service.effects import run"),
    (r"clew\.aio\b", "clew.sync"),
    (r"\bdrive\(", "run("),
    (r"\b(async|await) ", ""),
    (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
    (r"\bAsyncIterator\b", "Iterator"),
    (r"\bEngine\b", "Conversations"),
    (r"\bengine\.", "conversations."),
    (r"  # noqa: ASYNC\d+ .*$", ""),
    (r"<class>", "Engine"),
    (r"<module>", "engine"),
    (r"^( *)for (\w+) in ([\w.]+):\n +yield \2$", r"\1yield from \3"),
]  # fmt: skip
"""What is replaced, as regular expressions of lines, in this order."""

PROSE = {
    "The same open store for code without asyncio, to be called from any thread.":
        "The same open store for asyncio, to be called from the tasks of one event loop.",
    "an ``async with`` block": "a ``with`` block",
    "an error inside the block, or a cancellation, stores nothing": "an error inside the block stores nothing",
    "Call it from the tasks of one event loop; close it when done.": "Call it from any thread; close it when done.",
    "best, best first: by words, and with an embedder by meaning too.": "best, best first, by words.",
    "documents, and EmbeddingMismatchError for one that is recorded with another embedder.": "documents.",
    " With an ``embedder`` it is searched by meaning too.\n": "\n",
    "; InvalidNameError; and\n        EmbeddingMismatchError for another embedder than the recorded one.":
        ",\n        and InvalidNameError.",
    "def start_thread(  # noqa: PLR0913  # every option has its own parameter": "def start_thread(",
    "Raises InvalidContentError, EmbeddingError, and the errors": "Raises InvalidContentError, and the errors",
}  # fmt: skip
"""Texts that are different there, most of them in docstrings."""

MARK = "# asyncio only"
BEGIN, END = f"{MARK}: begin", f"{MARK}: end"


def twin(source: str) -> str:
    """The text of the twin of a source, by its path in the package."""
    target, docstring = TWINS[source]
    text = without_marked((PACKAGE / source).read_text(encoding="utf-8"))
    text = text[text.index('"""', 3) + 3 :].lstrip("\n")
    for prose, instead in PROSE.items():
        text = text.replace(prose, instead)
    for pattern, word in WORDS:
        text = re.sub(pattern, word, text, flags=re.MULTILINE)
    return tidied(HEADER.format(source=source, docstring=docstring) + "\n" + text, PACKAGE / target)


def without_marked(text: str) -> str:
    """The text without the code that only asyncio has."""
    lines = text.splitlines(keepends=True)
    ends = {
        node.lineno: node.end_lineno or node.lineno for node in reversed(list(ast.walk(ast.parse(text))))
        if isinstance(node, ast.stmt)
    }  # fmt: skip
    kept: list[str] = []
    number, within = 1, False
    while number <= len(lines):
        line = lines[number - 1].rstrip()
        within = within or line.endswith(BEGIN)
        marked = within or MARK in line
        last = ends.get(number, number) if marked and not within else number
        within = within and not line.endswith(END)
        if not marked:
            kept.append(lines[number - 1])
        number = last + 1
    return "".join(kept)


def tidied(text: str, path: Path) -> str:
    """The text without unused imports, formatted by the project's rules."""
    for command in (
        ["check", "--fix", "--quiet", "--unsafe-fixes", "--select", "F401,I,RET504"],
        ["format", "--quiet"],
    ):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(path), "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


if __name__ == "__main__":
    for source, (target, _) in TWINS.items():
        (PACKAGE / target).write_text(twin(source), encoding="utf-8")
