"""The headings under which the help lists the commands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from typer.core import TyperGroup

HEADINGS: dict[str, tuple[str, ...]] = {
    "Begin": ("demo", "chat", "import", "completion"),
    "Read": ("threads", "show", "log", "tree", "search", "diff", "replay", "request", "memory"),
    "Branch and go back": ("checkpoint", "fork", "rewind", "edit"),
    "Change": ("label", "end", "delete", "redact"),
    "Audit and take away": ("audit", "stats", "verify", "export"),
    "Maintain": ("doctor", "project", "rebuild", "migrate", "shards"),
}
"""Which commands stand under which heading, in the order of the help; what is not named here stands last."""

OTHERS = "Others"


def under_headings(names: Iterable[str]) -> list[tuple[str, list[str]]]:
    """The names of commands under their headings, in the order of the help; a heading without any is left out."""
    left = dict.fromkeys(names)
    found: list[tuple[str, list[str]]] = []
    for heading, members in HEADINGS.items():
        found.append((heading, [name for name in members if name in left]))
        left = {name: None for name in left if name not in members}
    found.append((OTHERS, list(left)))
    return [(heading, there) for heading, there in found if there]


class GroupedCommands(TyperGroup):
    """A group of commands whose help has headings. Typer's own need rich, which costs more than start-up may."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each heading with its commands, all in the same two columns. The classes are Typer's own affair."""
        found = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        shown = {name: command for name, command in found.items() if command is not None and not command.hidden}
        widest = max(map(len, shown), default=0)
        for heading, names in under_headings(shown):
            room = formatter.width - widest - 4  # the indent, and what lies between the columns
            rows = [(name.ljust(widest), shown[name].get_short_help_str(room)) for name in names]
            with formatter.section(heading):
                formatter.write_dl(rows)
