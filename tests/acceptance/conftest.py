"""Check that the acceptance tests use the installed wheel if CLEW_EXPECT_WHEEL is 1, as in ``make test``."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import pytest

import clew


@pytest.fixture(scope="session", autouse=True)
def clew_is_the_installed_wheel() -> None:
    """Fail if ``clew`` is the source tree although CLEW_EXPECT_WHEEL=1 requires the wheel."""
    if os.environ.get("CLEW_EXPECT_WHEEL") == "1":
        imported = Path(clew.__file__).resolve()
        installed = Path(sysconfig.get_path("purelib")).resolve()
        assert imported.is_relative_to(installed), f"clew should be the wheel in {installed}, and is {imported}"
