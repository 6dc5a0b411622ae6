"""Which part of the history the requests of a run hold: what a reducer leaves, or what a history store lists."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from inspect import isawaitable

from clew.agents.history_replication import HistoryStores, StoreFeed
from clew.agents.journal import MANY_MESSAGES, Journal
from clew.agents.run_setup import RunSetup
from clew.domain.context.events import ContextStateRecorded, HistoryReduced
from clew.domain.context.state import HISTORY_STORE, ProviderState
from clew.domain.history import HistoryMessage, new_messages
from clew.domain.history_stores import StoreContext, as_reduction, is_key
from clew.domain.reducers.history_reduction import is_final, reduce_history, reducible
from clew.domain.reducers.reducer import Reducer, counts_own, decides_from_newest
from clew.domain.streams import parse_stream_name


class ModelHistory:
    """The history of a run as its model sees it. ``reduction`` is the current reduction, None for the whole history."""

    def __init__(self, setup: RunSetup, journal: Journal) -> None:
        self.reduction: HistoryReduced | None = None
        self.has_store = setup.stores is not None
        self.reduces_after = setup.reducer is not None and setup.reducer.when == "after_message_added"
        """Whether the reducer runs when the run has added its messages."""
        self._setup = setup
        self._journal = journal
        self._feed: StoreFeed | None = None
        self._fed = 0

    async def prepare(self) -> None:
        """Before the first model call: update the history store, and reduce the history."""
        setup, journal = self._setup, self._journal
        if setup.reducer is None and setup.stores is None:
            return
        history = await journal.history()
        own = self._own(history)
        before = history[: len(history) - len(own)]
        recorded = journal.context_state.reductions.get(setup.identity.id)
        if setup.reduced_by is not None:
            self.reduction = None if recorded is None else recorded[1]
        if setup.stores is not None:
            await self._update_store(setup.stores, before)
        if setup.reducer is not None and (
            not self.reduces_after or self._has_grown(before) or counts_own(setup.reducer)
        ):
            await self._reduce(setup.reducer, history)

    async def reduce_again(self) -> None:
        """Before a later model call: the run's own rounds may leave less room for the rest."""
        reducer = self._setup.reducer
        if reducer is not None and counts_own(reducer):
            await self._reduce(reducer, await self._journal.history())

    async def feed(self) -> None:
        """Add what was recorded since to the history store."""
        if self._feed is None:
            return
        journal = self._journal
        new = [each for each in await journal.history() if self._fed < each.version <= journal.version]
        if new:
            self._fed = new[-1].version
            await self._feed.add(new)
        if journal.under_way:  # else the next run on the thread records them
            journal.add(*self._feed.failures())

    async def complete(self) -> None:
        """The messages of the run are recorded: reduce them, and record the state of the store."""
        reducer = self._setup.reducer
        if reducer is not None and self.reduces_after:
            await self._reduce(reducer, await self._journal.history(), after=True)
        if self._feed is not None:
            await self._record_state(self._feed)

    async def _update_store(self, stores: HistoryStores, before: Sequence[HistoryMessage]) -> None:
        journal, setup = self._journal, self._setup
        feed = self._feed
        if feed is None:
            log, last = journal.log, self._last_state()
            state = None if last is None else last.state
            feed = stores.feed(StoreContext(log.tenant, log.thread_id, state=state))
        if await feed.open():
            await self._record_state(feed)
        self._feed = feed  # from here on, no other thread can have this store
        listed = await feed.catch_up(before)
        self._fed = before[-1].version if before else 0
        if setup.read_from == "store":
            reduction = as_reduction(before, listed, setup.identity.id, journal.version)
            if reduction.left_out != (() if self.reduction is None else self.reduction.left_out):
                journal.add(reduction)
                self.reduction = reduction
        journal.add(*feed.failures())

    async def _record_state(self, feed: StoreFeed) -> None:
        """Record the state by which the store is found again. No other thread may have the same."""
        state, last = await feed.state(), self._last_state()
        if is_key(state):
            await self._journal.log.claim_state(HISTORY_STORE, state)
        if state is not None and (last is None or last.state != state):
            self._journal.add(ContextStateRecorded(provider=HISTORY_STORE, state=state))

    def _last_state(self) -> ProviderState | None:
        """The last state of this thread's store. A fork does not start with the store of its parent."""
        state = self._journal.context_state.states.get(HISTORY_STORE)
        if state is None:
            return None
        name = parse_stream_name(state.stream)
        return state if name is not None and name.id == self._journal.log.thread_id else None

    def _has_grown(self, before: Sequence[HistoryMessage]) -> bool:
        upto = 0 if self.reduction is None else self.reduction.upto
        return bool(before) and before[-1].version > upto

    async def _reduce(self, reducer: Reducer, history: list[HistoryMessage], *, after: bool = False) -> None:
        """Ask the reducer, and record its reduction if it differs from the current one.

        ``after`` says that the run has added its messages, so that they are reduced, too. If the reducer might keep
        unread messages, it is asked again with some of them.
        """
        setup, journal = self._setup, self._journal
        if journal.unread and not self._has_summary and not decides_from_newest(reducer):
            history = await journal.whole_history()
        while True:
            own = [] if after else self._own(history)
            recorded = journal.context_state.reductions.get(setup.identity.id)
            version = 0 if recorded is None else recorded[0]
            before = history[: len(history) - len(own)]
            is_long = len(history) > MANY_MESSAGES
            given = reducible(before, self.reduction, version, own, setup.definitions.instructions)
            result = await asyncio.to_thread(reducer.reduce, given) if is_long else reducer.reduce(given)
            if isawaitable(result):
                result = await result
            recorded_by = partial(
                reduce_history,
                result,
                given,
                agent=setup.identity.id,
                reducer=reducer.name,
                previous=self.reduction,
                upto=journal.version,
                unread=journal.unread,
            )
            reduction = await asyncio.to_thread(recorded_by) if is_long else recorded_by()
            if not journal.unread or self._has_summary or is_final(result, given, journal.unread):
                break
            history = await journal.earlier_history()
        if reduction is not None:
            journal.add(reduction)
            self.reduction = reduction

    @property
    def _has_summary(self) -> bool:
        """Whether the current reduction has a summary. Then reducers do not get the messages that it left out."""
        return self.reduction is not None and self.reduction.summary is not None

    def _own(self, history: Sequence[HistoryMessage]) -> list[HistoryMessage]:
        """The run's own input and rounds; for a run without input, the messages since the last answer."""
        state = self._journal.state
        if state.handed_from is not None:
            return [each for each in history if each.version > state.began]
        first = state.began or self._journal.version
        own = [each for each in history if each.version > first]
        if own and (not state.added or own[0].version < state.added[0].version):
            return own
        return [*new_messages([each for each in history if each.version <= first]), *own]
