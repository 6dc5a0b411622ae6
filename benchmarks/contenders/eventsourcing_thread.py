"""A thread of JSON messages in eventsourcing's own SQLite recorder, the lowest level of that library."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from eventsourcing.persistence import StoredEvent
from eventsourcing.sqlite import SQLiteApplicationRecorder, SQLiteDatastore

from benchmarks.contenders.growing_thread import NEWEST, Contender, Operation, Texts, main


@contextmanager
def _recorder(folder: Path) -> Iterator[SQLiteApplicationRecorder]:
    datastore = SQLiteDatastore(str(folder / "events.db"), originator_id_type="text")
    recorder = SQLiteApplicationRecorder(datastore)
    recorder.create_table()
    try:
        yield recorder
    finally:
        datastore.close()


@asynccontextmanager
async def appending(folder: Path) -> AsyncIterator[Operation]:
    """Insert an event. As an aggregate in memory does, the process knows the version."""
    texts = Texts()
    versions: defaultdict[str, int] = defaultdict(int)
    with _recorder(folder) as recorder:

        async def append(thread: str, times: int) -> None:
            if not versions[thread]:
                newest = recorder.select_events(thread, desc=True, limit=1)
                versions[thread] = newest[0].originator_version if newest else 0
            for _ in range(times):
                versions[thread] += 1
                state = json.dumps({"role": "user", "content": texts.next()}).encode()
                recorder.insert_events([StoredEvent(thread, versions[thread], "message", state)])

        yield append


@asynccontextmanager
async def reading(folder: Path) -> AsyncIterator[Operation]:
    """Read and decode the newest events."""
    with _recorder(folder) as recorder:

        async def read(thread: str, times: int) -> int:
            for _ in range(times):
                newest = [json.loads(event.state) for event in recorder.select_events(thread, desc=True, limit=NEWEST)]
            return len(newest)

        yield read


if __name__ == "__main__":
    main(Contender("eventsourcing", {"newest": reading, "append": appending}))
