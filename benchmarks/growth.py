"""Growth: the cost of operations by the length of a thread, next to other libraries, and by the size of the store.

With ``--charts`` the curves are drawn. All points of a chart are measured in turns in one run.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import platform
import random
import sqlite3
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from benchmarks.contenders.environments import python_of
from benchmarks.contenders.growing_thread import NEWEST, WINDOW
from benchmarks.measurement import Setting, cpu, interleaved, median_ratio, store_url
from benchmarks.report import Budget, Figure, at_most, at_most_times
from benchmarks.subscriptions import HELLO, next_to_subscribers
from benchmarks.synthetic_data import MessageGenerator, many_threads, thread_id_of
from clew import Conversations
from clew.projections import Directory

ROOT = Path(__file__).parent.parent
DATA = "growth.json"
LENGTHS, FEW_LENGTHS = (10, 30, 100, 300, 1_000, 3_000, 10_000, 20_000), (10, 100, 1_000)
PAGES = 100
"""The shortest thread whose bytes are shown. A shorter one has the size of a few pages of its file."""

PAGE = 100
EACH = 20
"""Operations of a round."""

CPU = "CPU, µs"


class System(NamedTuple):
    """A library with a store: its contender, its environment if it is not Clew's, and arguments."""

    module: str
    environment: str | None = None
    arguments: tuple[str, ...] = ()


OURS, LOG, ADVANCED = "Clew", "Clew, the log alone", "openai-agents, advanced"
SYSTEMS = {
    OURS: System("clew_thread"),
    LOG: System("clew_thread", arguments=("log",)),
    "eventsourcing": System("eventsourcing_thread"),
    "openai-agents": System("openai_agents_thread", "openai-agents"),
    ADVANCED: System("openai_agents_thread", "openai-agents", ("advanced",)),
    "LangGraph": System("langgraph_thread", "langgraph"),
    "LangGraph, delta": System("langgraph_thread", "langgraph", ("delta",)),
    "llm": System("llm_thread", "llm"),
    "ADK": System("google_adk_thread", "google-adk"),
    "agent-framework": System("agent_framework_thread", "agent-framework"),
}
OUR_SYSTEMS = (OURS, LOG)


@dataclass(frozen=True, slots=True)
class Chart:
    """A question, and the curves that answer it: for each x the values of all rounds.

    The end of a curve is compared with its point at ``begin``, or the next one.
    """

    name: str
    title: str
    x: str
    y: str
    budgets: Mapping[str, Budget] = field(default_factory=dict)
    begin: int = 0
    curves: defaultdict[str, dict[int, list[float]]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, curve: str, x: int, value: float) -> None:
        """Add a value of one round."""
        self.curves[curve].setdefault(x, []).append(value)

    def figures(self) -> Iterator[Figure]:
        """The end of each curve, against its beginning."""
        last = max((x for curve in self.curves.values() for x in curve), default=0)
        for name, curve in self.curves.items():
            begin, end = min(x for x in curve if x >= self.begin), max(curve)
            yield Figure(
                f"{self.name}: {name}, {end:,} {self.x} against {begin:,}",
                statistics.median(curve[end]),
                self.y.removeprefix("CPU, ").removesuffix(" per message"),
                baseline=statistics.median(curve[begin]),
                ratio=median_ratio(curve[end], curve[begin]),
                budget=self.budgets.get(name),
                note="" if end == last else "the curve ends here: the time was over",
            )

    def as_json(self) -> dict[str, object]:
        """The chart as a JSON object, with the median of each point."""
        curves = {
            name: {x: float(f"{statistics.median(curve[x]):.4g}") for x in sorted(curve)}
            for name, curve in self.curves.items()
        }
        return {"name": self.name, "title": self.title, "x": self.x, "y": self.y, "curves": curves}


def run(setting: Setting) -> Iterator[Figure]:
    """The ends of all curves. Draws them if a folder for charts is set."""
    charts, versions = _by_length(setting)
    charts += [asyncio.run(_by_subscribers(setting)), _by_active_threads(setting), _by_threads(setting)]
    for chart in charts:
        yield from chart.figures()
    if setting.charts is not None:
        draw(setting.charts, charts, versions)


def draw(folder: Path, charts: Sequence[Chart], versions: Mapping[str, str], name: str = DATA) -> None:
    """Write the data of the charts, and let matplotlib draw each as an SVG file."""
    folder.mkdir(parents=True, exist_ok=True)
    machine = f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, {platform.machine()}"
    data = {"machine": machine, "versions": versions, "charts": [chart.as_json() for chart in charts]}
    path = folder.resolve() / name
    path.write_text(json.dumps(data, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    subprocess.run([python_of("charts"), "-m", "benchmarks.growth_charts", path], cwd=ROOT, check=True)


# By the length of a thread


def _charts_by_length() -> dict[str, Chart]:
    """The charts by the name of the operation, and the one of sizes."""

    def chart(name: str, title: str, budget: Budget | None = None, y: str = CPU, begin: int = 0) -> Chart:
        budgets = {} if budget is None else dict.fromkeys(OUR_SYSTEMS, budget)
        return Chart(name, title, "messages in the thread", y, budgets, begin)

    charts = (
        chart("append", "The cost of an append, as the thread grows", at_most_times(1.2)),
        chart("newest", f"The cost of reading the newest {NEWEST} messages, as the thread grows", at_most(1_500)),
        chart("bytes", "The size of a message on disk, as the thread grows", y="B per message"),
        chart("fork", "The cost of a fork, as the thread grows", at_most_times(1.2)),
        # A shorter thread has fewer messages than a run sends.
        chart(
            "run",
            f"The cost of a run with the newest {WINDOW} messages, as the thread grows",
            at_most_times(1.3),
            begin=WINDOW,
        ),
    )
    return {chart.name: chart for chart in charts}


def _by_length(setting: Setting) -> tuple[list[Chart], dict[str, str]]:
    charts = _charts_by_length()
    lengths = FEW_LENGTHS if setting.quick else LENGTHS
    with ExitStack() as stack:
        processes = start_processes(SYSTEMS, setting, stack)
        seconds = setting.size(30, 2)
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # growing is not measured, so it uses all CPUs
            list(pool.map(lambda process: process.grow(seconds, lengths), processes.values()))
        for name, process in processes.items():
            for length, size in process.sizes.items():
                if length >= PAGES and name != ADVANCED:
                    charts["bytes"].add(name, length, size / length)
        pairs = [(name, length) for length in lengths for name in processes if length in processes[name].sizes]
        rounds = setting.size(5, 3)
        for number in range(rounds):
            first = number * len(pairs) // rounds
            for name, length in pairs[first:] + pairs[:first]:
                for operation, took in processes[name].measure(length).items():
                    if name != ADVANCED or operation == "fork":  # otherwise it is openai-agents, which is shown
                        charts[operation].add(name, length, took * 1e6)
        return [*charts.values()], {name: process.version for name, process in processes.items()}


class ContenderProcess:
    """A contender in its own process, whose files are in a new folder."""

    def __init__(self, system: System, folder: Path, stack: ExitStack) -> None:
        python = python_of(system.environment) if system.environment else sys.executable
        folder.mkdir()
        self._errors = folder / "errors"
        command = [python, "-m", f"benchmarks.contenders.{system.module}", str(folder), *system.arguments]
        errors = stack.enter_context(self._errors.open("w"))
        self._process = stack.enter_context(
            subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
        )
        self.version = cast("str", self._answer()["version"])
        self.sizes: dict[int, int] = {}

    def grow(self, seconds: float, lengths: Sequence[int]) -> None:
        """Grow the thread until so much CPU time is used. Keeps its bytes at each length that it reached."""
        for length in lengths:
            grown = self._ask(grow=length, seconds=seconds)
            if not grown:
                break
            self.sizes[length] = grown["bytes"]
            seconds -= grown["seconds"]

    def measure(self, length: int) -> dict[str, float]:
        """CPU seconds of each operation on the thread of that length."""
        return self._ask(measure=length, times=5)

    def _ask(self, **command: float) -> dict[str, Any]:
        stdin = cast("IO[str]", self._process.stdin)
        stdin.write(json.dumps(command) + "\n")
        stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = cast("IO[str]", self._process.stdout).readline()
        if not line:
            raise RuntimeError(f"A contender ended:\n{self._errors.read_text()}")
        return cast("dict[str, Any]", json.loads(line))


def start_processes(systems: Mapping[str, System], setting: Setting, stack: ExitStack) -> dict[str, ContenderProcess]:
    """The processes of all systems, without those whose packages could not be installed."""
    processes = {}
    for number, (name, system) in enumerate(systems.items()):
        try:
            processes[name] = ContenderProcess(system, setting.folder / f"system-{number}", stack)
        except RuntimeError as error:  # the other curves are still useful
            print(f"{name} is left out: {error}", file=sys.stderr)
    return processes


# By the size of the store: Clew alone


async def _by_subscribers(setting: Setting) -> Chart:
    sizes = (0, 10, 100, 1_000) if setting.quick else (0, 10, 100, 1_000, 10_000)
    chart = Chart(
        "subscribers",
        "The cost of an append, as other threads get subscribers",
        "subscribers that wait",
        CPU,
        {"append": at_most_times(2)},
    )
    async with AsyncExitStack() as stack:
        quiet = {size: await next_to_subscribers(stack, setting.url("growth"), size) for size in sizes}
        for number in range(setting.size(21, 3) + 1):
            first = number % len(sizes)
            for size in sizes[first:] + sizes[:first]:
                gc.collect()
                begin = time.process_time()
                for _ in range(100):
                    await quiet[size].append(HELLO)
                if number:  # the first round fills caches
                    chart.add("append", size, (time.process_time() - begin) / 100 * 1e6)
    return chart


def _by_active_threads(setting: Setting) -> Chart:
    """Every append goes to another thread than the one before."""
    chart = Chart(
        "active-threads",
        "The cost of an append, as more threads are in use",
        "threads in use",
        CPU,
        {"append": at_most_times(1.2)},
    )
    generator = MessageGenerator()
    messages = generator.messages(EACH)
    sizes = (1, 10, 100, 1_000)
    with Conversations.open(setting.url("growth"), embedded=False) as conversations:
        threads = [conversations.start_thread(messages=messages).id for _ in range(max(sizes))]
        chance = random.Random(1)

        def appends(size: int) -> Callable[[], float]:
            def one_round() -> float:
                chosen = [conversations.thread(threads[chance.randrange(size)]) for _ in range(10 * EACH)]
                return cpu(lambda: [thread.append(HELLO) for thread in chosen]) / len(chosen) * 1e6

            return one_round

        for thread in threads:
            conversations.thread(thread).append(HELLO)
        for size, took in interleaved(setting.size(9, 5), {size: appends(size) for size in sizes}).items():
            for value in took:
                chart.add("append", size, value)
    return chart


def _by_threads(setting: Setting) -> Chart:
    """Each store has a thread that is long enough to be read in part."""
    largest = 10_000 if setting.quick else setting.data_size(1_000_000)
    newest, page = f"newest {NEWEST} messages", f"page of {PAGE} threads"
    chart = Chart(
        "threads",
        "The cost of three operations, as the store gets more threads",
        "threads in the store",
        CPU,
        {"append": at_most_times(1.2), newest: at_most(1_500), page: at_most(20_000)},
    )
    messages = MessageGenerator().messages(2 * NEWEST)
    with ExitStack() as stack:
        operations: dict[tuple[str, int], Callable[[], float]] = {}
        for size in (1_000, 10_000, 100_000, 1_000_000):
            if size > largest:
                break
            path = setting.fresh("growth")
            many_threads(path, size)
            written = stack.enter_context(Conversations.open(store_url(path), projections=(Directory(),)))
            read = stack.enter_context(
                Conversations.open(store_url(path), projections=(Directory(),), embedded=False, cache_bytes=0)
            )
            long = written.start_thread(messages=messages).id
            written.wait()
            operations["append", size] = _appends(written, long)
            operations[newest, size] = _reads(lambda read=read, long=long: read.thread(long).history(last=NEWEST))  # type: ignore[misc]  # binds the loop's values
            operations[page, size] = _reads(lambda read=read, size=size: _page(read, size))  # type: ignore[misc]  # as above
        for operation in operations.values():
            operation()  # fills caches
        for (name, size), took in interleaved(setting.size(9, 5), operations).items():
            for value in took:
                chart.add(name, size, value)
    return chart


def _appends(conversations: Conversations, thread_id: str) -> Callable[[], float]:
    """With the update of the directory."""
    thread = conversations.thread(thread_id)

    def appends() -> None:
        for _ in range(EACH):
            thread.append(HELLO)
        conversations.wait()

    return lambda: cpu(appends) / EACH * 1e6


def _reads(read: Callable[[], object]) -> Callable[[], float]:
    return lambda: cpu(lambda: [read() for _ in range(EACH)]) / EACH * 1e6


def _page(conversations: Conversations, threads: int) -> None:
    """A page from the middle of the list."""
    after = thread_id_of(threads // 2)
    if len(list(conversations.threads(newest_first=True, limit=PAGE, after=after))) != PAGE:
        raise RuntimeError(f"A page has fewer than {PAGE} threads.")
