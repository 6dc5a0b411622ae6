"""The findings of ``clew doctor``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from clew.domain.streams import stream_id

State: TypeAlias = Literal["ok", "warning", "failed"]

_NAMED_RUNS = 3
_KIB = 1_024
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


class Finding(NamedTuple):
    """The result of one check: its state, what was found and, if it is not ok, what to do."""

    name: str
    state: State
    found: str
    advice: str | None = None


def runs_finding(
    leases: int, drafts: int, definitions: int, size: float, crashed: Sequence[tuple[str, str]] = ()
) -> Finding:
    """The data of runs next to the events: leases, partial answers, and definitions of ``size`` bytes in total.

    ``crashed`` has the stream and the holder of each lease that has expired: no process executes its run.
    """
    stored = f"{count(definitions, 'definition')} of agents and tools ({binary_size(size)})"
    found = f"{leases:,} in progress, {drafts:,} with a partial answer; {stored}."
    if not crashed:
        return Finding("runs", "ok", found)
    names = [
        f"run {holder.rpartition('/')[0] or holder} on thread {stream_id(stream)}"
        for stream, holder in crashed[:_NAMED_RUNS]
    ]
    if len(crashed) > _NAMED_RUNS:
        names.append(f"{len(crashed) - _NAMED_RUNS:,} more")
    advice = (
        "Their processes ended, or what they waited for is decided. agent.continue_run(thread) continues a run, the "
        "next agent.run(thread) closes it, and `clew rewind THREAD --to X --abandon-run` goes back to before it."
    )
    return Finding("runs", "warning", f"{found} {count(len(crashed), 'run')} left open: {', '.join(names)}.", advice)


def count(number: int, word: str) -> str:
    """A number and a word in its singular or plural, as in ``2 threads``."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def binary_size(size: float) -> str:
    """A number of bytes for people, in powers of 1,024."""
    unit = 0
    while size >= _KIB and unit < len(_UNITS) - 1:
        size, unit = size / _KIB, unit + 1
    return f"{size:,.{min(unit, 1)}f} {_UNITS[unit]}"
