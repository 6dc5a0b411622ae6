"""The threads whose open run waits for approvals, found in a read model."""

from __future__ import annotations

from functools import partial

from clew.domain.projection import Query, Where
from clew.domain.runs.events import ChildThread, RunStarted
from clew.service.authorization import permitted
from clew.service.child_runs import are_linked
from clew.service.core import Core, newest_control
from clew.service.effects import Operation, Page, Pages, read
from clew.service.thread_directory import FIRST, few_permitted, of_threads

APPROVALS = "approvals"


def waiting_threads(core: Core) -> Pages[str]:
    """The ids of the threads with requests that the actor may read, those that have waited longest first.

    A thread on which a call runs an agent is left out: its requests are those of the thread that asked.
    """
    return Pages[str](partial(_page, core))


def _page(core: Core, after: int | None, limit: int) -> Operation[Page[str, int]]:
    core = core.read_barrier()
    where = (Where("tenant", "=", core.tenant), Where("position", ">", FIRST if after is None else after))
    of_permitted = of_threads((yield from few_permitted(core, "read")))
    query = Query("waiting", (*where, *of_permitted), ["position"], limit, ["thread_id", "position"])
    rows = yield from core.models.select(APPROVALS, query)
    shown = yield from permitted(core, "read", [row["thread_id"] for row in rows], lambda id_: id_)
    found = yield from read(lambda: [id_ for id_ in shown if not _is_inner(core, id_)])
    return found, (rows[-1]["position"] if len(rows) == limit else None)


def _is_inner(core: Core, thread_id: str) -> bool:
    """Whether the open run of a thread answers a call of another thread."""
    stream = core.stream(thread_id)
    run = newest_control(core, stream).run
    if run is None:
        return False
    (started,) = core.log.lineage(stream, after=run.began - 1, upto=run.began)
    caller = started.data.caller if isinstance(started.data, RunStarted) else None
    if caller is None:
        return False
    return are_linked(
        core, caller.thread_id, ChildThread(message=caller.message, index=caller.index, thread_id=thread_id)
    )
