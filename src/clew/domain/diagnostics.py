"""The findings of ``clew doctor``."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

State: TypeAlias = Literal["ok", "warning", "failed"]

_KIB = 1_024
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


class Finding(NamedTuple):
    """The result of one check: its state, what was found and, if it is not ok, what to do."""

    name: str
    state: State
    found: str
    advice: str | None = None


def runs_finding(leases: int, drafts: int, blobs: int, size: float) -> Finding:
    """The data of runs next to the events: leases, partial answers, and blobs of ``size`` bytes in total."""
    text = f"{leases:,} in progress, {drafts:,} with a partial answer; {blobs:,} blobs of {binary_size(size)}."
    return Finding("runs", "ok", text)


def binary_size(size: float) -> str:
    """A number of bytes for people, in powers of 1,024."""
    unit = 0
    while size >= _KIB and unit < len(_UNITS) - 1:
        size, unit = size / _KIB, unit + 1
    return f"{size:,.{min(unit, 1)}f} {_UNITS[unit]}"
