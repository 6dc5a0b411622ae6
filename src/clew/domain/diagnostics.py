"""The findings of ``clew doctor``."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

State: TypeAlias = Literal["ok", "warning", "failed"]


class Finding(NamedTuple):
    """The result of one check: its state, what was found and, unless it is ok, what to do."""

    name: str
    state: State
    found: str
    advice: str | None = None


def runs_finding(leases: int, drafts: int, blobs: int, size: float) -> Finding:
    """What runs store next to the events: leases, partial answers, and blobs of that many bytes in total."""
    found = f"{leases:,} in progress, {drafts:,} with a partial answer; {blobs:,} blobs of {binary_size(size)}."
    return Finding("runs", "ok", found)


def binary_size(size: float) -> str:
    """A number of bytes for people, in powers of 1,024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:  # noqa: PLR2004  # as the unit's name says
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"
