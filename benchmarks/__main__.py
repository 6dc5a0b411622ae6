"""Runs the benchmarks and prints one table: each figure with its baseline, ratio, budget and verdict."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

from benchmarks.measurement import Setting, median_fdatasync
from benchmarks.report import Figure, table, tally

BENCHMARKS = {
    "machine_speed": "The machine itself (CPU)",
    "durable_appends": "Durable appends, SQLite",
    "postgres_appends": "Durable appends, PostgreSQL, saves per second",
    "million_events": "A million events in PostgreSQL: a page, a history, a search, catching up, sizes",
    "long_threads": "Append to and fork of a long thread (CPU, synchronous=OFF)",
    "histories": "Typed histories (CPU)",
    "sizes": "Bytes per turn of 200 + 200 characters, against openai-agents' SQLiteSession",
    "projections": "Read models: catching up (CPU), during appends, and rebuilds",
    "thread_lists": "Listing threads",
    "scopes": "Memory scopes and batches (CPU, synchronous=OFF)",
    "growth": "Growth: the end of each curve against its beginning (CPU)",
    "search": "Searching messages",
    "retrieval": "Retrieving passages of documents",
    "stepper": "Stepping through a long thread in a pseudo-terminal (wall clock)",
    "async_appends": "Appends with asyncio (synchronous=OFF)",
    "subscriptions": "Subscribers",
    "long_runs": "Runs on long threads (CPU, synchronous=OFF)",
    "long_chats": "Long group chats, in new processes (wall clock, synchronous=OFF)",
    "runs": "Runs of an agent against a model server without delay",
    "chats": "Group chats of 5 and 50 agents, next to agent-framework's (CPU)",
    "import_export": "Import and export of conversations",
    "startup": "Start-up of whole processes (wall clock)",
}


def main() -> int:
    """Run the selected benchmarks. A missed budget is only printed; a benchmark that raises is an error."""
    options = _options()
    results: list[tuple[str, list[Figure]]] = []
    failed = 0
    with tempfile.TemporaryDirectory(prefix="clew-bench-", dir=options.folder) as name:
        folder = Path(name)
        machine = _machine(median_fdatasync(folder))
        print(machine)
        for benchmark in options.only or BENCHMARKS:
            print(f"… {benchmark}", file=sys.stderr, flush=True)
            run: Callable[[Setting], Iterator[Figure]] = import_module(f"benchmarks.{benchmark}").run
            own = folder / benchmark
            own.mkdir()
            figures: list[Figure] = []
            results.append((BENCHMARKS[benchmark], figures))
            try:
                figures.extend(run(Setting(own, options.quick, options.charts)))
            except Exception:  # noqa: BLE001  # the other figures are still useful
                traceback.print_exc()
                failed += 1
    print("\n".join(["", *table(results), "", tally(figure for _, figures in results for figure in figures)]))
    if options.json is not None:
        report = [figure.as_json(heading) for heading, figures in results for figure in figures]
        options.json.write_text(json.dumps({"machine": machine, "figures": report}, indent=2) + "\n")
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", action="append", choices=list(BENCHMARKS), help="run this one; may be repeated")
    parser.add_argument("--quick", action="store_true", help="smaller sizes and fewer rounds, without budgets")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file as well")
    parser.add_argument("--charts", type=Path, metavar="DIRECTORY", help="draw the curves of growth as SVG files there")
    parser.add_argument("--folder", type=Path, help="folder for the databases; default: the system's temporary folder")
    return parser.parse_args()


def _machine(fdatasync_ms: float) -> str:
    return (
        f"fdatasync {fdatasync_ms:.2f} ms (median), {os.cpu_count()} CPUs ({platform.machine()}), "
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"
    )


if __name__ == "__main__":
    sys.exit(main())
