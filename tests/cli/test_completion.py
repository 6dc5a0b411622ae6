"""Tab completion: the candidates, a real bash, and the script and its installation."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.acceptance.clew_command import ENVIRONMENT
from tests.cli.commands import COMMANDS

from clew import Conversations
from clew.cli.candidates import MOST

if TYPE_CHECKING:
    from tests.cli.conftest import CalledClew as Clew

SHELLS = ("bash", "zsh", "fish")


@pytest.fixture
def stored(clew: Clew) -> Clew:
    """A store with threads, two of which need quoting."""
    with Conversations.open(f"sqlite:///{clew.folder / 'clew.db'}") as conversations:
        for id_ in ("3f2a", "3f9c", "order:12", "it's; $(touch owned) `touch owned` \\", "*"):
            conversations.start_thread(thread_id=id_)
        conversations.thread("3f2a").checkpoint("before refund")
        conversations.thread("3f2a").checkpoint("before the end")
    return clew


def candidates(clew: Clew, *words: str, **environment: str) -> list[str]:
    """The candidates for a user who typed these words and presses the tab key in the last one."""
    asked = {"_CLEW_COMPLETE": "complete_bash", "COMP_WORDS": shlex.join(words), "COMP_CWORD": str(len(words) - 1)}
    done = clew.run(env={**asked, **environment})
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split("\n")[:-1] if done.stdout.strip() else []


def test_completes_commands_and_options(clew: Clew) -> None:
    assert candidates(clew, "clew", "che") == ["checkpoint"]
    assert {"show", "redact", "completion"} <= set(candidates(clew, "clew", ""))
    assert candidates(clew, "clew", "fork", "x", "--ti") == ["--title"]
    assert candidates(clew, "clew", "completion", "f") == ["fish"]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_completes_threads_in_every_command(stored: Clew, name: str) -> None:
    command = name.split()
    help_text = stored.text(*command, "--help")
    if re.search(r"^  \[?THREAD\b", help_text, re.MULTILINE):
        assert candidates(stored, "clew", *command, "3f") == ["3f2a", "3f9c"]
        assert len(candidates(stored, "clew", *command, "")) == 5
        assert candidates(stored, "clew", *command, "x") == []
    if "--thread " in help_text.split("Examples:")[0]:
        assert candidates(stored, "clew", *command, "--thread", "3f") == ["3f2a", "3f9c"]


def test_completes_the_checkpoints_of_the_given_thread(stored: Clew) -> None:
    both = ["before the end", "before refund"]
    for words in (
        ["show", "3f2a", "--at", "bef"],
        ["show", "3f2", "--at=bef"],
        ["rewind", "--actor", "me", "3f2a", "--to", ""],
        ["checkpoint", "3f2a", "name", "--at", ""],
    ):
        assert candidates(stored, "clew", *words) == both
    assert candidates(stored, "clew", "show", "3f2a", "--at", "before r") == ["before refund"]
    assert candidates(stored, "clew", "show", "--at", "") == []
    assert candidates(stored, "clew", "show", "3f", "--at", "") == []


def test_completes_projections_in_every_command(clew: Clew) -> None:
    names = candidates(clew, "clew", "project", "run", "--name", "")
    assert {"directory", "search", "audit", "usage", "memory", "approvals"} <= set(names)
    assert candidates(clew, "clew", "rebuild", "se") == ["search"]


def test_completes_from_the_given_store_and_tenant(stored: Clew) -> None:
    with Conversations.open(f"sqlite:///{stored.folder / 'other.db'}", tenant="t") as conversations:
        conversations.start_thread(thread_id="3foo")
    other = "sqlite:///other.db"
    assert candidates(stored, "clew", "--db", other, "--tenant", "t", "show", "3f") == ["3foo"]
    assert candidates(stored, "clew", "show", "--db", other, "--tenant", "t", "3f") == ["3foo"]
    assert candidates(stored, "clew", "--db", other, "show", "3f") == []
    assert candidates(stored, "clew", "--tenant", "t", "show", "3f", CLEW_DB=other) == ["3foo"]


def test_limits_the_number_of_candidates(clew: Clew) -> None:
    with Conversations.open(f"sqlite:///{clew.folder / 'clew.db'}?synchronous=OFF") as conversations:
        for number in range(MOST + 5):
            conversations.start_thread(thread_id=f"t{number}")
    assert len(candidates(clew, "clew", "show", "")) == MOST


@pytest.mark.parametrize("url", ["sqlite:///none.db", "sqlite:///text", "memory:", "nonsense:", "sqlite:///a/b.db"])
def test_without_a_store_it_writes_and_creates_nothing(clew: Clew, url: str) -> None:
    (clew.folder / "text").write_text("This is no database.")
    for words in (["show", ""], ["show", "x", "--at", ""], ["rewind", "x", "--to", ""]):
        assert candidates(clew, "clew", "--db", url, *words) == []
    assert [each.name for each in clew.folder.iterdir()] == ["text"]


def test_completes_from_a_server_and_does_not_wait_for_a_silent_one(
    clew: Clew, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Conversations.open(postgres) as conversations:
        conversations.start_thread(thread_id="3foo").checkpoint("before refund")
        conversations.memory("user/42").remember("x")
    assert candidates(clew, "clew", "--db", postgres, "show", "3f") == ["3foo"]
    assert candidates(clew, "clew", "--db", postgres, "show", "3foo", "--at", "") == ["before refund"]
    assert candidates(clew, "clew", "--db", postgres, "audit", "--scope", "u") == ["user/42"]
    monkeypatch.setattr("clew.cli.candidates.TIMEOUT", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert candidates(clew, "clew", "--db", f"postgresql://u@127.0.0.1:{port}/d", "show", "3f") == []
    assert candidates(clew, "clew", "--db", "postgresql://u@127.0.0.1:1/d", "show", "3f") == []


@pytest.mark.parametrize(
    "words", [["nope", ""], ["--db"], ["--db", ""], ["show", "--nope", ""], ["show", "a", "b", "c"], ["--", "'"]]
)
def test_writes_nothing_for_an_invalid_command_line(clew: Clew, words: list[str]) -> None:
    candidates(clew, "clew", *words)
    assert list(clew.folder.iterdir()) == []


def test_writes_nothing_in_an_unknown_protocol(clew: Clew) -> None:
    for form in ("complete_tcsh", "nonsense", "complete_bash"):
        assert clew.run("threads", env={"_CLEW_COMPLETE": form}).stdout == ""


def test_completion_changes_no_file(stored: Clew) -> None:
    before = {each.name: each.read_bytes() for each in stored.folder.iterdir()}
    candidates(stored, "clew", "show", "")
    candidates(stored, "clew", "show", "3f2a", "--at", "")
    assert {each.name: each.read_bytes() for each in stored.folder.iterdir()} == before


PATIENT = """\
from clew.cli import candidates, main
candidates.TIMEOUT = 60.0
raise SystemExit(main())
"""
"""The command, for a loaded machine: the store may not answer within the second that completion gives it."""

BASH = """
. ./completion.bash
complete_last() {  # the words as bash splits them
    COMP_LINE=$1 COMP_POINT=${#1}
    shift
    COMP_WORDS=("$@")
    COMP_CWORD=$(($# - 1))
    _clew_completion ./clew
    printf '<%s>' "${COMPREPLY[@]}"
    printf '\\n'
}
complete_last 'clew che' clew che
complete_last '  clew  --db sqlite:///clew.db show 3' clew --db sqlite : ///clew.db show 3
complete_last 'clew --db=sqlite:///clew.db show order:' clew --db = sqlite : ///clew.db show order :
complete_last "clew show it" clew show it
complete_last 'clew show 3f2a --at before\\ r' clew show 3f2a --at 'before\\ r'
complete_last 'clew show 3f2a --at "before r' clew show 3f2a --at '"before r'
complete_last 'clew show 3f2a --at=none' clew show 3f2a --at = none
"""


def test_a_real_bash_joins_words_and_quotes_candidates(stored: Clew) -> None:
    (stored.folder / "completion.bash").write_text(stored.text("completion", "bash"))
    (stored.folder / "clew").write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-c", PATIENT])} "$@"\n')
    (stored.folder / "clew").chmod(0o755)
    expected = [
        "<checkpoint>",
        "<3f2a><3f9c>",
        "<12>",
        r"<it\'s\;\ \$\(touch\ owned\)\ \`touch\ owned\`\ \\>",
        r"<before\ refund>",
        "<before refund>",
        "<>",
    ]
    done = subprocess.run(
        ["bash", "--norc", "--noprofile", "-c", BASH],
        cwd=stored.folder,
        env={key: value for key, value in ENVIRONMENT.items() if key != "CLEW_DB"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == expected
    assert not (stored.folder / "owned").exists()


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_says_how_to_install_it_and_has_the_documented_shape(clew: Clew, shell: str) -> None:
    script = clew.text("completion", shell)
    assert f"clew completion {shell} --install" in script
    assert "_CLEW_COMPLETE" in script
    result = clew.object("completion", shell, "--json")
    assert result == {"shell": shell, "script": script, "installed": None, "read_by": None}
    assert list(clew.folder.iterdir()) == []


@pytest.mark.parametrize("shell", SHELLS)
def test_the_default_shell_comes_from_the_environment(clew: Clew, shell: str) -> None:
    assert clew.text("completion", env={"SHELL": f"/usr/bin/{shell}"}) == clew.text("completion", shell)


def test_an_unsupported_shell_is_wrong_usage(clew: Clew) -> None:
    for shell in ("/bin/tcsh", ""):
        assert "Give bash, zsh or fish" in clew.refused(2, "completion", env={"SHELL": shell})
    assert "'tcsh'" in clew.refused(2, "completion", "tcsh")


@pytest.mark.parametrize(
    ("shell", "installed", "read_by"),
    [
        ("bash", ".local/share/clew/completion.bash", ".bashrc"),
        ("zsh", ".local/share/clew/completion.zsh", ".zshrc"),
        ("fish", ".config/fish/completions/clew.fish", None),
    ],
)
def test_installing_twice_writes_the_script_and_one_line(
    clew: Clew, shell: str, installed: str, read_by: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    home = {"HOME": str(clew.folder)}
    if read_by is not None:
        (clew.folder / read_by).write_text("mine=1")  # without a line end
    assert "It works in the next shell" in clew.text("completion", shell, "--install", env=home)
    done = clew.run("completion", shell, "--install", "--json", env=home)
    assert f'"installed":"{clew.folder / installed}"' in done.stdout
    assert (clew.folder / installed).read_text() == clew.text("completion", shell)
    if read_by is not None:
        lines = (clew.folder / read_by).read_text().splitlines()
        file = shlex.quote(str(clew.folder / installed))
        assert lines == ["mine=1", f"[ -f {file} ] && . {file} # tab completion of clew"]
        assert f'"read_by":"{clew.folder / read_by}"' in done.stdout


def test_bash_reads_what_was_installed_from_a_folder_with_spaces(clew: Clew) -> None:
    home = clew.folder / "my home"
    home.mkdir()
    environment = {**os.environ, "HOME": str(home), "XDG_DATA_HOME": str(home / "da ta")}
    clew.text("completion", "bash", "--install", env={key: environment[key] for key in ("HOME", "XDG_DATA_HOME")})
    command = ["bash", "--norc", "--noprofile", "-c", '. "$HOME/.bashrc" && complete -p clew']
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "complete -o bashdefault -o default -F _clew_completion clew"


def test_a_home_that_cannot_be_written_to_is_an_error_in_one_line(clew: Clew) -> None:
    (clew.folder / "file").touch()
    message = clew.refused(1, "completion", "bash", "--install", env={"XDG_DATA_HOME": str(clew.folder / "file")})
    assert "file" in message
    assert not Path(clew.folder / "file").is_dir()
