"""All commands of the command line, including those of groups."""

from __future__ import annotations

from typing import Any

from clew.cli.app import root_command


def _members(group: Any) -> dict[str, Any]:
    """The commands of a group; the class of groups is Typer's own."""
    result: dict[str, Any] = group.commands
    return result


GROUPS: dict[str, list[str]] = {
    name: list(_members(command)) for name, command in _members(root_command()).items() if hasattr(command, "commands")
}
"""The names of the commands of each group."""

COMMANDS: dict[str, Any] = {
    " ".join((name, *more)): result
    for name, command in _members(root_command()).items()
    for more, result in (
        [((each,), part) for each, part in _members(command).items()] if name in GROUPS else [((), command)]
    )
}
"""Every command by its name, preceded by the name of its group."""
