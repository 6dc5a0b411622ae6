"""Clocks, rounds and medians. Contenders take turns; ratios are computed per round, then their median."""

from __future__ import annotations

import gc
import os
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

Name = TypeVar("Name")

PAGE = 4096
SCALE = float(os.environ.get("CLEW_SCALE", "1"))


@dataclass(frozen=True, slots=True)
class Setting:
    """The folder and the size of a benchmark run, and the folder for its charts, if they are wanted."""

    folder: Path
    quick: bool
    charts: Path | None = None

    def size(self, full: int, quick: int) -> int:
        """The full number, or the smaller one in a quick run."""
        return quick if self.quick else full

    def data_size(self, full: int) -> int:
        """The amount of generated data: times ``CLEW_SCALE``, and a tenth of that in a quick run."""
        return max(1_000, int(full * SCALE / (10 if self.quick else 1)))

    def fresh(self, name: str) -> Path:
        """A new path in the run's folder."""
        number = sum(1 for path in self.folder.iterdir() if path.name.startswith(f"{name}-") and path.suffix == ".db")
        path = self.folder / f"{name}-{number}.db"
        path.touch()  # SQLite treats an empty file as a new database
        return path

    def url(self, name: str, *, durable: bool = False) -> str:
        """The URL of a new Clew store with ``synchronous=FULL`` or OFF."""
        return store_url(self.fresh(name), durable=durable)


def store_url(path: Path, *, durable: bool = False) -> str:
    """The URL of a Clew store in a file."""
    return f"sqlite:///{path}?synchronous={'FULL' if durable else 'OFF'}"


def median_fdatasync(folder: Path, times: int = 200) -> float:
    """Median milliseconds until an appended page is durable on disk."""
    path = folder / "fdatasync"
    took: list[float] = []
    with path.open("wb", buffering=0) as file:
        sync = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync
        for _ in range(times):
            file.write(os.urandom(PAGE))
            begin = time.perf_counter()
            sync(file.fileno())
            took.append(time.perf_counter() - begin)
    path.unlink()
    return statistics.median(took) * 1e3


def interleaved(rounds: int, contenders: Mapping[Name, Callable[[], float]]) -> dict[Name, list[float]]:
    """The measurements of each contender per round. Each round starts with another contender."""
    names = list(contenders)
    measured: dict[Name, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            gc.collect()
            measured[name].append(contenders[name]())
    return measured


def median_ratio(measured: Sequence[float], baseline: Sequence[float]) -> float:
    """The median of the ratios per round, so that a temporarily slow machine affects both sides."""
    return statistics.median(one / other for one, other in zip(measured, baseline, strict=True))


def cpu(work: Callable[[], object]) -> float:
    """CPU seconds of the whole process, including its writer threads."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def wall(work: Callable[[], object]) -> float:
    """Wall time in seconds."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def run_concurrently(work: Sequence[Callable[[], object]]) -> float:
    """Wall time in seconds of several functions, each in its own thread, with a common start."""
    start = threading.Barrier(len(work) + 1)

    def one(piece: Callable[[], object]) -> None:
        start.wait()
        piece()

    threads = [threading.Thread(target=one, args=(piece,)) for piece in work]
    for thread in threads:
        thread.start()
    start.wait()
    begin = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - begin


def percentile(values: Sequence[float], percent: int) -> float:
    """The given percentile of the values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def size_on_disk(path: Path) -> int:
    """Bytes of a closed database, including the rest of its write-ahead log."""
    log = path.with_name(path.name + "-wal")
    return path.stat().st_size + (log.stat().st_size if log.exists() else 0)
