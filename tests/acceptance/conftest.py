"""Makes sure that the acceptance tests meet the installed wheel when ``make test`` says that they do."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import pytest

import clew


@pytest.fixture(scope="session", autouse=True)
def clew_is_the_installed_wheel() -> None:
    """Refuse to test the source tree in the wheel's name: CLEW_EXPECT_WHEEL=1 asks for the wheel."""
    if os.environ.get("CLEW_EXPECT_WHEEL") == "1":
        found = Path(clew.__file__).resolve()
        installed = Path(sysconfig.get_path("purelib")).resolve()
        assert found.is_relative_to(installed), f"clew should be the wheel in {installed}, and is {found}"
