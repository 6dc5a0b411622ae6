"""Where Clew does not run, it says so: in subinterpreters, and without the global interpreter lock."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent

import pytest

import clew


def test_a_subinterpreter_is_refused_by_an_error_that_says_what_to_use() -> None:
    script = """
        import importlib

        for name in ("_interpreters", "_xxsubinterpreters"):
            try:
                interpreters = importlib.import_module(name)
                break
            except ImportError:
                continue
        code = '''
        try:
            import clew
            clew.Conversations
        except ImportError as error:
            print(error)
        '''
        import textwrap
        interpreters.run_string(interpreters.create(), textwrap.dedent(code))
    """
    done = subprocess.run([sys.executable, "-c", dedent(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "Clew runs in the main interpreter only, and this is a subinterpreter. Use a thread or a process instead.\n"
    )


def test_a_python_without_the_global_lock_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    monkeypatch.delitem(vars(clew), "Record", raising=False)
    with pytest.raises(ImportError, match=r"^Clew needs the global interpreter lock .* Start Python with PYTHON_GIL=1"):
        _ = clew.Record
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: True, raising=False)
    assert clew.Record.__name__ == "Record"
