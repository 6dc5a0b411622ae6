"""The command line, called in the process of the tests: same results as a new process, and much faster."""

from __future__ import annotations

from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from tests.acceptance.clew_command import GLAZE, TEAPOT, Clew

from clew.cli import candidates, main


class CalledClew(Clew):
    """The command in the process of the tests."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        super().__init__(folder)
        self._capture = capture
        self._patch = patch

    def run(self, *arguments: str, **options: Any) -> CompletedProcess[str]:
        with self._patch.context() as patch:
            for name, value in options.pop("env", {}).items():
                patch.setenv(name, value)
            assert not options
            self._capture.readouterr()
            code = main(arguments)
        output, errors = self._capture.readouterr()
        return CompletedProcess(arguments, code, output, errors)


@pytest.fixture
def clew(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CalledClew:
    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "CLEW_DB"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(candidates, "TIMEOUT", 60.0)  # seconds; a loaded machine may need more than the usual one
    monkeypatch.setenv("OPENAI_API_KEY", "none")  # `clew chat` requires a key first
    return CalledClew(tmp_path, capsys, monkeypatch)


@pytest.fixture
def filled(clew: CalledClew) -> CalledClew:
    """A store with the two sample conversations."""
    clew.text("import", clew.file("two.jsonl", TEAPOT, GLAZE))
    return clew
