"""Installs the packages that Clew is compared with, and that draw charts, once, into `.venv-bench`."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

PINS = Path(__file__).parent
FOLDER = PINS.parent.parent / ".venv-bench"


def python_of(name: str) -> str:
    """The interpreter of an environment with exactly the packages in ``NAME-pins.txt``. Raises RuntimeError."""
    pins = PINS / f"{name}-pins.txt"
    folder = FOLDER / name
    python = folder / "bin" / "python"
    ready = folder / ".ready"
    digest = hashlib.sha256(pins.read_bytes() + sys.version.encode()).hexdigest()
    if not (python.exists() and ready.exists() and ready.read_text(encoding="utf-8") == digest):
        print(f"Setting up {folder.relative_to(FOLDER.parent)}", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        _run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(folder)]
        # No dependency resolution: the file lists all packages.
        _run([*pip, "install", "--quiet", "--quiet", "--no-compile", "--no-deps", "--requirement", str(pins)])
        ready.write_text(digest, encoding="utf-8")
    return str(python)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        message = f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        raise RuntimeError(message)
