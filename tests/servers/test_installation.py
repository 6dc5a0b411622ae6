"""The servers are installed at fixed versions, once for all processes, and again when a pin changes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.servers import installation

ROOT = Path(__file__).parent.parent.parent


def test_the_pins_are_names_and_versions_without_addresses() -> None:
    files = sorted(installation.PINS.glob("*-pins.txt"))
    names = ["integrations", "llmock", "node", "ogx", "postgres", "redis"]
    assert [file.name.removesuffix("-pins.txt") for file in files] == names
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            assert line.startswith("# ") or re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][0-9a-z.]*", line), line
    for name in ("package.json", "ajv-package.json", "agui-package.json"):
        package = json.loads((installation.PINS / name).read_text(encoding="utf-8"))
        assert all(re.fullmatch(r"[0-9.]+", version) for version in package["dependencies"].values())


@pytest.mark.parametrize(
    ("version", "used"),
    [("v20.15.0", True), ("v24.1.0", True), ("v20.14.9", False), ("v18.20.4", False), ("no version", False)],
)
def test_uses_the_systems_node_if_it_is_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, *, used: bool
) -> None:
    for name in ("node", "npm"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {version}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (installation.system_node() is not None) is used
    (tmp_path / "npm").unlink()
    assert installation.system_node() is None


def test_concurrent_processes_install_a_server_once(tmp_path: Path) -> None:
    program = f"""
    from pathlib import Path
    from tests.servers import installation
    installation.FOLDER = Path({str(tmp_path)!r}) / "servers"
    def install(folder):
        with (installation.FOLDER / "installed").open("a") as log:
            log.write("once ")
        (folder / "program").write_text("it")
    folder = installation.installed("one", "pins", install)
    assert (folder / "program").read_text() == "it"
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    processes = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) for _ in range(4)]
    assert [process.wait() for process in processes] == [0] * 4
    assert (tmp_path / "servers" / "installed").read_text(encoding="utf-8") == "once "


def test_reinstalls_after_an_interrupted_installation_or_with_other_pins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "FOLDER", tmp_path)
    contents_before: list[str] = []

    def fail_halfway(folder: Path) -> None:
        (folder / "half").touch()
        message = "no network"
        raise RuntimeError(message)

    def install(folder: Path) -> None:
        contents_before.append(",".join(path.name for path in folder.iterdir()))

    with pytest.raises(RuntimeError, match="no network"):
        installation.installed("one", "pins", fail_halfway)
    for pins in ("pins", "pins", "other pins"):
        installation.installed("one", pins, install)
    assert contents_before == ["", ""]
