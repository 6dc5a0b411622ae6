"""The adapters of the examples, in an environment with the frameworks that they are for."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from tests.servers.installation import integrations

ROOT = Path(__file__).parent.parent.parent
ADAPTERS = sorted((ROOT / "examples" / "integrations").glob("*.py"))

SUITES = {
    "adk_sessions_suite.py": 4,
    "agent_framework_storage_suite.py": 4,
    "imported_sessions_suite.py": 4,
    "langchain_history_suite.py": 5,
    "langgraph_saver_suite.py": 16,
    "langgraph_store_suite.py": 39,
    "mcp_tools_suite.py": 3,
    "openai_agents_session_suite.py": 6,
    "pydantic_ai_history_suite.py": 3,
}
"""Each file of tests for that environment, with the number of tests that pass."""

GROUPS = {
    "lang": [name for name in SUITES if name.startswith("lang")],
    "others": [name for name in SUITES if not name.startswith("lang")],
}
"""A process for each group: the start takes longer than the tests, and those of a group import the same packages."""


def test_each_suite_is_known() -> None:
    assert sorted(SUITES) == sorted(path.name for path in Path(__file__).parent.glob("*_suite.py"))


@pytest.mark.parametrize("suites", GROUPS.values(), ids=list(GROUPS))
def test_all_tests_pass_in_the_environment_of_the_frameworks(suites: list[str], tmp_path: Path) -> None:
    # Without the settings and fixtures of Clew's own tests: their plugins are not in that environment.
    options = ["--config-file", os.devnull, "--rootdir", str(ROOT), "--noconftest", "--import-mode=importlib"]
    options += ["-p", "no:cacheprovider", "--basetemp", str(tmp_path / "inner"), "--color=no", "-vv"]
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = subprocess.run(
        [integrations(), "-m", "pytest", *options, *(str(Path(__file__).parent / suite) for suite in suites)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    passed = Counter(re.findall(r"([^/\n]+_suite\.py)::.* PASSED +\[", done.stdout))
    assert (done.returncode, passed) == (0, {suite: SUITES[suite] for suite in suites}), done.stdout + done.stderr


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda path: path.name)
def test_an_adapter_has_fewer_than_150_lines(adapter: Path) -> None:
    assert len(adapter.read_text(encoding="utf-8").splitlines()) < 150
