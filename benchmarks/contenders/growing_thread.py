"""The growing thread of each contender of the theme ``growth``, and its measurement. Standard library only.

A contender is a process with a store of its own. It reads commands from its standard input, one JSON object a line, and
answers each with a line. ``{"grow": 1000, "seconds": 30}`` appends to the thread, one message at a time and for 30
seconds of CPU at most, and keeps a copy of the store at that length. ``{"measure": 1000, "times": 5}`` performs each
operation on a copy of that copy, so that measuring changes neither lengths nor sizes.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import shutil
import string
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

LONG, OTHER = "long", "other"
"""The thread that grows, and a short one, on which a process performs each operation first."""

SHORT = 10
"""Messages of the other thread."""

NEWEST = 50
WINDOW = 20
"""Messages that a read returns, and messages of the history that a run sends to the model, at most."""

STEP = 20
"""Appends between two looks at the clock."""

CHARACTERS = 200
PATIENCE = 1.0
"""Seconds in which an operation is repeated. A slow one is measured fewer times."""

Operation: TypeAlias = Callable[[str, int], Awaitable[object]]
"""Performs an operation on the thread with that name, that many times."""

Opening: TypeAlias = Callable[[Path], AbstractAsyncContextManager[Operation]]
"""Opens the store in a folder for one operation."""


class Contender(NamedTuple):
    """A system with a store: its package, and how it performs each operation that it has.

    ``append`` is required. ``start``, if a thread must be created before its first message, is not measured. ``newest``
    returns the number of messages that it read.
    """

    package: str
    operations: Mapping[str, Opening]


class Texts:
    """Texts of 200 characters that differ and do not compress well."""

    def __init__(self) -> None:
        self._chance = random.Random()
        self._texts = ["".join(self._chance.choices(string.ascii_lowercase + "   ", k=CHARACTERS)) for _ in range(64)]

    def next(self) -> str:
        """A new text, at hardly any cost."""
        return f"{self._chance.getrandbits(64):016x}{self._chance.choice(self._texts)}"[:CHARACTERS]


def main(contender: Contender) -> None:
    """Obey the commands on the standard input. The argument is an empty folder."""
    with asyncio.Runner() as runner:
        thread = _GrowingThread(contender, Path(sys.argv[1]))
        _answer({"version": version(contender.package), "operations": [*contender.operations]})
        for line in sys.stdin:
            command = json.loads(line)
            if "grow" in command:
                _answer(runner.run(thread.grow(command["grow"], command["seconds"])))
            else:
                _answer(runner.run(thread.measure(command["measure"], command["times"])))


def _answer(answer: Mapping[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


class _GrowingThread:
    """The contender's store, and its copies at several lengths."""

    def __init__(self, contender: Contender, folder: Path) -> None:
        self._operations = dict(contender.operations)
        self._start = self._operations.pop("start", None)
        self._store = folder / "store"
        self._copies = folder
        self._length = 0
        self._empty = 0
        self._store.mkdir()

    async def grow(self, length: int, seconds: float) -> dict[str, object]:
        """Grow to a length, in so many seconds of CPU. The answer has no bytes if the time was over before that."""
        if not self._length:
            await self._begin()
        begin = time.process_time()
        async with self._operations["append"](self._store) as append:
            while self._length < length and time.process_time() < begin + seconds:
                appends = min(STEP, length - self._length)
                await append(LONG, appends)
                self._length += appends
        if self._length < length:
            return {}
        took = time.process_time() - begin
        shutil.copytree(self._store, self._copy(length))
        return {"seconds": took, "bytes": _size(self._store) - self._empty}

    async def _begin(self) -> None:
        if self._start is not None:
            async with self._start(self._store) as start:
                await start(OTHER, 1)
                await start(LONG, 1)
        async with self._operations["append"](self._store) as append:
            await append(OTHER, SHORT)
        self._empty = _size(self._store)

    async def measure(self, length: int, times: int) -> dict[str, float]:
        """CPU seconds of the whole process for each operation."""
        work = self._copies / "work"
        shutil.copytree(self._copy(length), work)
        took: dict[str, float] = {}
        for name, opening in self._operations.items():
            async with opening(work) as operation:
                await operation(OTHER, 2)
                await operation(LONG, 1)  # the first one may read more than those after it
                first = time.perf_counter()
                found = await operation(LONG, 1)
                if name == "newest" and found != min(length, NEWEST):
                    raise RuntimeError(f"Read {found} messages of {length}.")
                enough = max(1, min(times, int(PATIENCE / (time.perf_counter() - first))))
                gc.collect()
                begin = time.process_time()
                await operation(LONG, enough)
                took[name] = (time.process_time() - begin) / enough
        shutil.rmtree(work)
        return took

    def _copy(self, length: int) -> Path:
        return self._copies / str(length)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
