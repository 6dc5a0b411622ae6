"""What of the history the requests of a run are made of: what a reducer leaves, or what a history store lists."""

from __future__ import annotations

from collections.abc import Sequence

from clew.agents.history_feed import StoreFeed
from clew.agents.history_reduction import decided
from clew.agents.journal import Recording
from clew.agents.provider_config import Stores
from clew.agents.run_setup import Setup
from clew.domain.context.contributions import new_messages
from clew.domain.context.events import ContextStateRecorded, HistoryReduced
from clew.domain.context.provider_state import HISTORY_STORE, KeptState
from clew.domain.history import HistoryMessage
from clew.domain.history_stores import StoreContext, as_reduction, is_key
from clew.domain.names import parse_stream_name
from clew.domain.reducers.reducer import counts_own
from clew.domain.reducers.reduction import reducible


class ModelHistory:
    """The history of one run as its model sees it; ``reduction`` is what holds now, None for all of it."""

    def __init__(self, setup: Setup, recording: Recording) -> None:
        self.reduction: HistoryReduced | None = None
        self._setup = setup
        self._recording = recording
        self._feed: StoreFeed | None = None
        self._fed = 0

    @property
    def feeds(self) -> bool:
        """Whether there is a store to be fed."""
        return self._setup.stores is not None

    @property
    def looks_after(self) -> bool:
        """Whether a reducer looks at the history when the run has added its messages."""
        return self._setup.reducer is not None and self._setup.reducer.when == "after_message_added"

    async def prepare(self) -> None:
        """Have it decided what the requests are made of, and give the store what it lacks, before the first of them."""
        setup, recording = self._setup, self._recording
        if setup.reducer is None and setup.stores is None:
            return
        history = await recording.history()
        own = self._own(history)
        before = history[: len(history) - len(own)]
        kept = recording.kept.reductions.get(setup.identity.id)
        if setup.made_of_history is not None:
            self.reduction = None if kept is None else kept[1]
        if setup.stores is not None:
            await self._look_at_store(before)
        if setup.reducer is not None and (not self.looks_after or self._has_grown(before) or counts_own(setup.reducer)):
            await self._reduce(before, own)

    async def look_again(self) -> None:
        """The run has rounds of its own by now: where they count, less of the rest may have room."""
        if self._setup.reducer is not None and counts_own(self._setup.reducer):
            history = await self._recording.history()
            own = self._own(history)
            await self._reduce(history[: len(history) - len(own)], own)

    async def feed(self) -> None:
        """Give the store what was stored since."""
        if self._feed is None:
            return
        recording = self._recording
        new = [each for each in await recording.history() if self._fed < each.version <= recording.version]
        if new:
            self._fed = new[-1].version
            await self._feed.add(new)
        if recording.under_way:  # else the next run on the thread says so
            recording.add(*self._feed.failures())

    async def look_after(self) -> None:
        """The run has added its messages, and they are stored."""
        if self.looks_after:
            await self._reduce(await self._recording.history(), ())
        if self._feed is not None:
            await self._keep_state(self._feed)

    async def _look_at_store(self, before: Sequence[HistoryMessage]) -> None:
        recording, setup = self._recording, self._setup
        feed = self._feed or self._found(setup.stores)
        if feed is None:
            return
        if await feed.open():
            await self._keep_state(feed)
        self._feed = feed  # from here on it is this thread's, and no other's
        listed = await feed.before(before)
        self._fed = before[-1].version if before else 0
        if setup.read_from == "store":
            found = as_reduction(before, listed, setup.identity.id, recording.version)
            if found.left_out != (() if self.reduction is None else self.reduction.left_out):
                recording.add(found)
                self.reduction = found
        recording.add(*feed.failures())

    def _found(self, stores: Stores | None) -> StoreFeed | None:
        log, last = self._recording.log, self._last_state()
        context = StoreContext(log.tenant, log.thread_id, state=None if last is None else last.state)
        return None if stores is None else stores.feed(context)

    async def _keep_state(self, feed: StoreFeed) -> None:
        """Have recorded what the store is found again by; no other thread may have the same."""
        state, last = await feed.state(), self._last_state()
        if is_key(state):
            await self._recording.log.claim_state(HISTORY_STORE, state)
        if state is not None and (last is None or last.state != state):
            self._recording.add(ContextStateRecorded(provider=HISTORY_STORE, state=state))

    def _last_state(self) -> KeptState | None:
        """What the store of this very thread serialized last: a fork starts without its parent's."""
        found = self._recording.kept.states.get(HISTORY_STORE)
        if found is None:
            return None
        name = parse_stream_name(found.stream)
        return found if name is not None and name.id == self._recording.log.thread_id else None

    def _has_grown(self, before: Sequence[HistoryMessage]) -> bool:
        upto = 0 if self.reduction is None else self.reduction.upto
        return bool(before) and before[-1].version > upto

    async def _reduce(self, before: Sequence[HistoryMessage], own: Sequence[HistoryMessage]) -> None:
        setup, recording = self._setup, self._recording
        if setup.reducer is None:
            return
        kept = recording.kept.reductions.get(setup.identity.id)
        given = reducible(before, self.reduction, 0 if kept is None else kept[0], own, setup.definitions.instructions)
        previous = None if self.reduction is None else (0 if kept is None else kept[0], self.reduction)
        found = await decided(setup.reducer, given, agent=setup.identity.id, previous=previous, upto=recording.version)
        if found is not None:
            recording.add(found)
            self.reduction = found

    def _own(self, history: Sequence[HistoryMessage]) -> list[HistoryMessage]:
        """The run's own input and rounds; of a run without input, what was said since the last answer."""
        state = self._recording.state
        first = state.began or self._recording.version
        own = [each for each in history if each.version > first]
        if own and (not state.added or own[0].version < state.added[0].version):
            return own
        return [*new_messages([each for each in history if each.version <= first]), *own]
