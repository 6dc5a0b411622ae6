"""Group chats: the cost of a turn by the turns before it, with few and with many agents, next to agent-framework's.

With ``--charts`` the curves are drawn.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise, repeat

from benchmarks.growth import CPU, Chart, ContenderProcess, System, draw, start_processes
from benchmarks.measurement import Setting, median_ratio
from benchmarks.report import Figure, at_most_times

DATA = "chats.json"
LENGTHS, FEW_LENGTHS = (100, 300, 1_000, 2_000, 5_000, 10_000), (100, 300)
AGENTS = 5, 50

SECONDS = 120.0
"""CPU seconds in which a chat grows from a length to the next. A curve ends where it takes, or would take, longer."""

OURS, PEER, CHECKPOINTS = "Clew", "agent-framework", "agent-framework, checkpoints"
SYSTEMS = {
    f"{name}, {agents} agents": System(module, environment, (str(agents), *rest))
    for name, module, environment, rest, sizes in (
        (OURS, "clew_chat", None, (), AGENTS),
        (PEER, "agent_framework_chat", "agent-framework", (), AGENTS),
        (CHECKPOINTS, "agent_framework_chat", "agent-framework", ("checkpoints",), AGENTS[:1]),  # a run of 50: minutes
    )
    for agents in sizes
}


def run(setting: Setting) -> Iterator[Figure]:
    """The ends of all curves, the curves next to each other, and bytes. Draws them if a folder for charts is set."""
    flat = dict.fromkeys([f"{OURS}, {agents} agents" for agents in AGENTS], at_most_times(1.2))
    turn = Chart("chat", "The cost of a turn of a group chat, as the chat grows", "turns of the chat", CPU, flat)
    stored = Chart("bytes", "The size of a turn on disk, as the chat grows", turn.x, "B", flat)
    with ExitStack() as stack:
        processes = start_processes(SYSTEMS, setting, stack)
        _grow_and_measure(setting, processes, turn)
    for name, process in processes.items():
        for (before, small), (length, large) in pairwise(process.sizes.items()):
            if large:
                stored.add(name, length, (large - small) / (length - before))
    yield from turn.figures()
    for agents in AGENTS:
        yield from _next_to(turn, agents)
    yield from stored.figures()
    if setting.charts is not None:
        draw(setting.charts, [turn], {name: process.version for name, process in processes.items()}, DATA)


def _grow_and_measure(setting: Setting, processes: Mapping[str, ContenderProcess], turn: Chart) -> None:
    """At each length, those that reached it carry out a run in turns."""
    left = list(processes)
    for before, length in pairwise((0, *(FEW_LENGTHS if setting.quick else LENGTHS))):
        if before:
            expected = {name: statistics.median(turn.curves[name][before]) / 1e6 * (length - before) for name in left}
            left = [name for name in left if expected[name] < SECONDS]
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # growing is not measured, so it uses all CPUs
            growing = [processes[name] for name in left]
            list(pool.map(ContenderProcess.grow, growing, repeat(SECONDS), repeat((length,))))
        left = [name for name in left if length in processes[name].sizes]
        for number in range(setting.size(5, 3)):
            first = number % len(left)
            for name in left[first:] + left[:first]:
                turn.add(name, length, processes[name].measure(length)["turn"] * 1e6)


def _next_to(turn: Chart, agents: int) -> Iterator[Figure]:
    """Clew's turns against those of the package, at the first and the last point that both curves have."""
    ours = turn.curves.get(f"{OURS}, {agents} agents", {})
    for peer in (PEER, CHECKPOINTS):
        theirs = turn.curves.get(f"{peer}, {agents} agents", {})
        if common := sorted({*ours} & {*theirs}):
            for length in dict.fromkeys((common[0], common[-1])):
                yield Figure(
                    f"chat: a turn of {agents} agents after {length:,}, against {peer}",
                    statistics.median(ours[length]),
                    "µs",
                    baseline=statistics.median(theirs[length]),
                    ratio=median_ratio(ours[length], theirs[length]),
                )
