"""What the README says is run."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def test_the_first_code_block_runs_and_prints_what_it_promises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(BLOCKS[0], "README.md", "exec"), {})  # noqa: S102  # the README's own code
    first, second, verdict = capsys.readouterr().out.splitlines()
    assert first.endswith("['Where is my parcel?', 'Let me look.']")
    assert second.endswith("['Where is my parcel?', 'Let me look.', 'It arrives tomorrow.']")
    assert verdict == "Verdict(threads=2, events=8, first_bad=None)"
    assert (tmp_path / "clew.db").exists()


def test_the_first_code_block_is_about_fifteen_lines() -> None:
    lines = [line for line in BLOCKS[0].splitlines() if line.strip()]
    assert 10 <= len(lines) <= 16


def test_the_asynchronous_code_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(BLOCKS[1], "README.md", "exec"), names)  # noqa: S102  # the README's own code
    main: Callable[[], Coroutine[Any, Any, None]] = names["main"]
    asyncio.run(main())
    assert (tmp_path / "clew.db").exists()


def test_every_link_of_the_documents_leads_somewhere() -> None:
    root = Path(__file__).parent.parent
    documents = [root / "README.md", root / "CONTRIBUTING.md", *(root / "docs").rglob("*.md")]
    missing = [
        f"{document.name}: {target}"
        for document in documents
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8"))
        if not (document.parent / target).exists()
    ]
    assert missing == []
