"""The wheel and the sdist hold the tracked files, root links change nothing, and every dependency is pinned."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
ROOMS = ("domain", "infrastructure", "projections")


def run(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}{done.stdout}"
    return done.stdout


def project_files(*folders: str) -> set[str]:
    """The files in the folders that git tracks. Outside a git checkout: the files on disk, without caches."""
    if (ROOT / ".git").exists() and shutil.which("git"):
        # In a container, the checkout may belong to another user.
        listing = run("git", "-c", "safe.directory=*", "ls-files", "-z", "--", *folders, cwd=ROOT)
        return set(listing.split("\0")) - {""}
    on_disk = (path for folder in folders for path in (ROOT / folder).rglob("*"))
    return {path.relative_to(ROOT).as_posix() for path in on_disk if path.is_file() and "__pycache__" not in path.parts}


def build(source: Path, target: str, into: Path) -> Path:
    run(sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(into), cwd=source)
    (built,) = into.iterdir()
    return built


def wheel_contents(source: Path, into: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(build(source, "wheel", into)) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist()}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return wheel_contents(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked sdist of this checkout."""
    folder = tmp_path_factory.mktemp("sdist")
    # Extracted member by member: Python has a safe extractall only since 3.11.4.
    with tarfile.open(build(ROOT, "sdist", folder / "built")) as archive:
        for member in archive:
            content = archive.extractfile(member)
            assert content is not None, f"{member.name} is not a file"
            (folder / member.name).parent.mkdir(parents=True, exist_ok=True)
            (folder / member.name).write_bytes(content.read())
    return folder / f"clew-{configuration()['project']['version']}"


def configuration() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_wheel_holds_exactly_the_tracked_files_of_the_package(wheel: dict[str, bytes]) -> None:
    in_wheel = {f"src/{name}" for name in wheel if ".dist-info/" not in name}
    tracked = project_files("src/clew")
    assert in_wheel - tracked == set(), "in the wheel and not tracked: git add them, or remove them"
    assert tracked - in_wheel == set(), "tracked and not in the wheel: what excludes them?"


def test_the_wheel_carries_the_licence_the_command_and_the_type_marker(wheel: dict[str, bytes]) -> None:
    dist_info = {name.partition(".dist-info/")[2]: data for name, data in wheel.items() if ".dist-info/" in name}
    assert dist_info["licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()
    assert b"clew = clew.cli:main" in dist_info["entry_points.txt"]
    assert "clew/py.typed" in wheel


def test_the_sdist_holds_sources_tests_and_readme_but_no_files_of_root_links(sdist: Path) -> None:
    files = {path.relative_to(sdist).as_posix() for path in sdist.rglob("*") if path.is_file()}
    assert project_files("src", "tests") | {"README.md", "LICENSE", "constraints.txt"} <= files
    assert not {name for name in files if name.split("/")[0] in ROOMS}


def test_the_wheel_built_from_the_sdist_is_the_same(wheel: dict[str, bytes], sdist: Path, tmp_path: Path) -> None:
    assert wheel_contents(sdist, tmp_path / "built") == wheel


def test_a_checkout_without_the_root_links_builds_the_same_wheel(wheel: dict[str, bytes], tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, copy / name)
    assert wheel_contents(copy, tmp_path / "built") == wheel


def test_a_root_link_points_to_its_package() -> None:
    for room in ROOMS:
        link = ROOT / room
        if os.path.lexists(link):
            assert link.is_symlink(), f"{room} must be a link to src/clew/{room}, not a folder"
            assert link.readlink() == Path("src/clew", room)


def test_no_tool_is_configured_with_a_root_link() -> None:
    tools = configuration()["tool"]
    del tools["importlinter"]  # its names are modules inside clew
    words = set(re.findall(r"""['" ]([\w-]+)(?=/|['" ])""", repr(tools)))
    assert words >= {"src", "tests"}
    assert words.isdisjoint(ROOMS)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert set(re.findall(r"[\w-]+", makefile)).isdisjoint(ROOMS)


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_the_constraints_are_names_and_versions_without_addresses() -> None:
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        assert line.startswith("# ") or re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][0-9a-z.]*", line), line
        assert "://" not in line


def test_the_constraints_pin_every_dependency_of_an_installation() -> None:
    project = configuration()["project"]
    pinned = {canonicalize_name(name) for name in pins()}
    texts = [*configuration()["build-system"]["requires"], *project["dependencies"]]
    texts += [text for needs in project["optional-dependencies"].values() for text in needs]
    pending = [Requirement(text) for text in texts]
    seen = {"clew"}
    while pending:
        requirement = pending.pop()
        name = canonicalize_name(requirement.name)
        if name in seen:
            continue
        seen.add(name)
        assert name in pinned, f"{name} is not in constraints.txt"
        pending += requirements_of(name, requirement.extras)


def test_all_extras_together_bring_no_telemetry_and_no_database_client() -> None:
    extras = configuration()["project"]["optional-dependencies"]
    pending = [(requirement.name, requirement.extras) for requirement in map(Requirement, extras["all"])]
    seen: set[str] = set()
    while pending:
        name, wanted = pending.pop()
        if name == "clew":
            pending += [(each.name, each.extras) for extra in wanted for each in map(Requirement, extras[extra])]
        elif canonicalize_name(name) not in seen:
            seen.add(canonicalize_name(name))
            pending += [(each.name, each.extras) for each in requirements_of(name, wanted)]
    assert {"numpy", "redis", "tokenizers"} <= seen
    assert seen.isdisjoint({"mem0ai", "posthog", "grpcio", "qdrant-client", "sqlalchemy"})


def requirements_of(name: str, extras: set[str]) -> list[Requirement]:
    """What an installed distribution requires on this Python, with the extras; nothing if it is not installed."""
    try:
        texts = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []
    requirements = [Requirement(text) for text in texts]
    return [
        each
        for each in requirements
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in (extras or {""}))
    ]
