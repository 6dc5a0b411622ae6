"""Catching projections up with the log, and rebuilding them: a batch of events and its position in one transaction."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from clew.domain.errors import (
    ProjectionBehindError,
    StoreError,
    StoreUnavailableError,
    UnknownProjectionError,
)
from clew.domain.ports import EventLog
from clew.domain.projection import Generation, Parked, Projection, check_projections
from clew.domain.projection_store import BusyError, ProjectionSession, ProjectionStore
from clew.service.projection_batch import AT_ONCE, Batch, ReadAhead, Target, reindex

BATCH = 8_000
"""Most events of one transaction."""

SHRINK = 8
"""If a projection fails on a batch, the next batch is this many times smaller, until it has only a few events."""

PATIENCE_SECONDS = 2.0
"""How long a reader waits for the process that maintains tables which this process cannot maintain."""

WORKER_SECONDS = 0.2
"""How long a reader waits for the worker that maintains a projection before it catches up itself."""

BUSY_SECONDS = 60.0
"""How long a reader polls while another writer has the tables. Then it waits for its turn, or for the store's error."""

POLL_SECONDS = 0.02

OTHER_LOG = "another-log"
"""The type of what is parked when the tables of a projection were filled from another log."""

SWITCH_AGAIN_SECONDS = 2.0
"""How long to wait before the next attempt to replace tables that another connection uses, such as a dump."""

_log = logging.getLogger(__name__)


@dataclass
class _Attempt:
    """One transaction, and its results. It applies at most ``size`` events: together, or each ``alone``."""

    size: int
    alone: bool = False
    events: int = 0
    """The number of events to apply."""
    counts: list[tuple[str, int]] = field(default_factory=list)
    """Live projections, each with the number of events that it has advanced by."""
    parked: list[tuple[str, int]] = field(default_factory=list)
    """Projections, each with the position of an event that it skips because the event fails."""
    forgot: bool = False
    """Whether words of a redacted message were removed from an index."""


class Projector:
    """Keeps the tables of projections up to date, a batch at a time. Several processes can do so in turn.

    A generation is one set of tables of a projection, with the position that it has reached. Reads use the live
    generation. ``code`` returns the digest of a projection's code. If other code, or other table declarations, built
    the live generation, this process builds a new one next to it, once: if another process then replaces that one, this
    process does not start again. Every process that declares the same tables maintains the live generation, unless a
    newer version of the projection has built it.
    """

    def __init__(
        self,
        log: EventLog,
        store: ProjectionStore,
        projections: Sequence[Projection],
        code: Callable[[Projection], str],
    ) -> None:
        check_projections(projections)
        self.log = log
        self.store = store
        self.projections = {projection.name: projection for projection in projections}
        self._code = code
        self._codes: dict[str, str] = {}
        self._shapes = {projection.name: store.shape(projection) for projection in projections}
        self._checked: set[str] = set()
        """Projections whose tables were built from this log."""
        self._of_another_log: dict[str, Generation] = {}
        """Generations that were dropped because another log filled them."""
        self._replaced: set[str] = set()
        """Projections that this process has rebuilt, or did not have to rebuild. It does so at most once."""
        self._read_ahead = ReadAhead(log)
        self._size = BATCH
        self._offset = 0
        self._next_switch = 0.0
        self.counted: Callable[[str, int], None] | None = None
        """Called after each transaction with the number of events that a live projection has advanced by."""
        self.is_at_end = False
        """Whether the last batch brought everything to the end of the log, with nothing left to do."""

    def projection(self, name: str) -> Projection:
        """The projection of that name. Raises UnknownProjectionError."""
        if name not in self.projections:
            raise UnknownProjectionError(name, sorted(self.projections))
        return self.projections[name]

    def code(self, projection: Projection) -> str:
        """The digest of a projection's code, which is computed once."""
        if projection.name not in self._codes:
            self._codes[projection.name] = self._code(projection)
        return self._codes[projection.name]

    def is_own(self, generation: Generation) -> bool:
        """Whether this process's code built a generation, in tables as this process creates them."""
        if generation.name not in self.projections or generation.shape != self._shapes[generation.name]:
            return False
        code = self._codes.get(generation.name) or self.code(self.projections[generation.name])
        return generation.code == code

    def maintains(self, generation: Generation) -> bool:
        """Whether this process maintains a generation: a live one of the same tables, or one that it is building."""
        projection = self.projections.get(generation.name)
        if projection is None or not generation.live:
            return self.is_own(generation)
        return generation.version <= projection.version and generation.shape == self._shapes[generation.name]

    # One batch

    def advance(self, names: Iterable[str] | None = None, *, unless: Callable[[], bool] | None = None) -> bool:
        """Apply one batch to these projections, or to all; False when there was nothing to do.

        With ``unless``, it raises BusyError if another writer has the tables and ``unless`` returns True.
        """
        chosen = [
            self.projections.get(name) or self.projection(name)
            for name in (self.projections if names is None else names)
        ]
        while True:
            attempt = _Attempt(min(self._size, BATCH))
            try:
                done = self._try(chosen, attempt, unless)
            except BusyError:
                raise
            except StoreError:
                self._read_ahead = ReadAhead(self.log)  # after the error, the store may have another log
                raise
            except Exception:  # noqa: BLE001 - applying each event alone shows which one fails
                if attempt.events <= AT_ONCE:
                    return self._try(chosen, _Attempt(AT_ONCE, alone=True))
                self._size = max(attempt.events // SHRINK, AT_ONCE)  # one event at a time is slow, and most do not fail
            else:
                self._size = min(2 * attempt.size, BATCH)
                return done

    def _try(self, chosen: Sequence[Projection], attempt: _Attempt, unless: Callable[[], bool] | None = None) -> bool:
        before = set(self._checked), set(self._replaced)
        last = self.log.last_position()
        try:
            with self.store.session(last, [each.name for each in chosen], unless=unless) as session:
                done = self._step(session, chosen, last, attempt)
        except BaseException:
            self._checked, self._replaced = before  # the transaction was rolled back
            raise
        for name, position in attempt.parked:
            _log.warning("Projection %s continues without the event at position %d", name, position)
        if self.counted is not None:
            for name, count in attempt.counts:
                self.counted(name, count)
        return done

    def _step(self, session: ProjectionSession, chosen: Sequence[Projection], last: int, attempt: _Attempt) -> bool:
        targets = self._targets(session, chosen)
        # Each step applies a batch to both, so that both advance while events are appended.
        live = self._batch(session, [each for each in targets if each.generation.live], last, attempt)
        building = self._batch(session, [each for each in targets if not each.generation.live], last, attempt)
        done = attempt.events > 0
        for each in (*live, *building):
            if (each.generation.stale or attempt.forgot) and reindex(self.log, session, each):
                done = True
        for each in building:  # a new generation that has reached the end of the log replaces the live one
            if not done or each.generation.position >= last:
                done |= self._switch(session, each.generation)
        self.is_at_end = not building and all([each.generation.position >= last for each in live])  # noqa: C419 - few, often
        return done

    def _switch(self, session: ProjectionSession, generation: Generation) -> bool:
        """Make a rebuilt generation the live one; if the old tables are in use, try again later."""
        if time.monotonic() < self._next_switch:
            return False
        if session.switch(generation):
            self._next_switch = 0.0
            return True
        if not self._next_switch:
            _log.warning(
                "Projection %s was rebuilt, but another connection still uses its old tables: look for a dump of the "
                "database, or a transaction that was left open",
                generation.name,
            )
        self._next_switch = time.monotonic() + SWITCH_AGAIN_SECONDS
        return False

    def _batch(
        self, session: ProjectionSession, group: Sequence[Target], last: int, attempt: _Attempt
    ) -> Sequence[Target]:
        """Apply a batch to the generations that are furthest behind; returns all, with their new positions."""
        behind = [each.generation.position for each in group if each.generation.position < last]
        if not behind:
            return group
        low = min(behind)
        unread, shredded = self._read_ahead.after(low, BATCH, last, few=last - low <= AT_ONCE)
        self._read_ahead.keep(low, BATCH, unread, shredded)  # for the next attempt, if this one fails
        events = unread[: attempt.size]
        further = [position for position in behind if position > low]
        if further:  # later events are applied to more generations
            events = [event for event in events if event.position <= min(further)]
        if not events:
            return group
        attempt.events = max(attempt.events, len(events))
        lowest = [each for each in group if each.generation.position == low]
        batch = Batch(self.log, session, lowest, alone=attempt.alone)
        count = batch.apply(events)
        attempt.parked += batch.parked
        attempt.forgot |= batch.forgot
        end = events[count - 1]
        moved: list[Target] = []
        for each in group:
            generation, projection = each
            if generation.position != low:
                moved.append(each)
                continue
            session.move(generation, end.position, end.hash)
            if generation.live:
                attempt.counts.append((generation.name, count))
            moved.append(Target(generation._replace(position=end.position, hash=end.hash), projection))
        self._read_ahead.keep(end.position, BATCH, unread[count:], shredded)
        return moved

    def _targets(self, session: ProjectionSession, chosen: Sequence[Projection]) -> list[Target]:
        """The generations that this process maintains; missing ones are created."""
        generations = session.generations()
        if any([projection.name not in self._checked for projection in chosen]):  # noqa: C419 - few, and often
            generations = self._check_log(session, generations, {projection.name for projection in chosen})
        live = {generation.name: generation for generation in generations if generation.live}
        building = (
            {generation.name for generation in generations if not generation.live}
            if len(generations) > len(live)
            else set()
        )
        targets: list[Target] = []
        for projection in chosen:
            generation = live.get(projection.name)
            if generation is None or projection.name in building or not self.is_own(generation):
                own = [each for each in generations if each.name == projection.name]
                targets += self._targets_of(session, projection, own)
            else:
                self._replaced.add(projection.name)
                targets.append(Target(generation, projection))
        return targets

    def _targets_of(self, session: ProjectionSession, projection: Projection, own: list[Generation]) -> list[Target]:
        live = next((generation for generation in own if generation.live), None)
        if live is None:
            begun = session.begin(projection, self.code(projection), live=True)
            replaced = self._of_another_log.pop(projection.name, None)
            if replaced is not None:  # an alarm of verify and doctor, until `clew rebuild`
                lost = Parked(replaced.position, "", 0, OTHER_LOG, "its tables were filled from another log")
                session.park(begun, lost)
            return [Target(begun, projection)]
        if live.version > projection.version:
            return []  # a newer Clew maintains it; the status says so
        if projection.name not in self._replaced and not any(map(self.is_own, own)):
            for generation in own:
                if not generation.live:
                    session.drop(generation)
            own = [live, session.begin(projection, self.code(projection), live=False)]
        # Only once: if another process then replaces the tables by its own, they stay.
        self._replaced.add(projection.name)
        return [Target(generation, projection) for generation in own if self.maintains(generation)]

    def _check_log(
        self, session: ProjectionSession, generations: list[Generation], names: set[str]
    ) -> list[Generation]:
        """Drop generations of another log; returns the others."""
        unchecked = names - self._checked
        for generation in generations:
            if generation.name in unchecked and not self._is_of_this_log(generation):
                _log.warning("Projection %s was built from another log and is rebuilt", generation.name)
                if generation.live:
                    self._of_another_log[generation.name] = generation
                session.drop(generation)
        self._checked |= unchecked
        return session.generations()

    def _is_of_this_log(self, generation: Generation) -> bool:
        """Whether a generation was built from this log, and not from one that a backup has replaced since."""
        if not generation.position or self.log.is_bound():  # events of one tenant do not suffice to check it
            return True
        events = self.log.recorded_after(generation.position - 1, 1, generation.position)
        return bool(events) and events[0].position == generation.position and events[0].hash == generation.hash

    def other_logs(self) -> dict[str, int]:
        """The projections whose tables another log has filled, each with the position that it had reached.

        This happens if the log was replaced with an older copy or another file: events that were shown before are
        missing. The tables are rebuilt, and this method lists them until `rebuild()`.
        """
        found: dict[str, int] = {}
        for generation in self.store.generations():
            if generation.live and not self._is_of_this_log(generation):
                found[generation.name] = generation.position
            elif generation.live:
                _, parked = self.store.parked(generation.name, 1_000)
                for each in parked:
                    if each.type == OTHER_LOG:
                        found[generation.name] = each.position
        return found

    # Catching up before a read

    def is_current(self, name: str, last: int, generations: Sequence[Generation]) -> bool:
        """Whether the live tables of a projection, as the store lists them, can be read up to a position."""
        for generation in generations:
            if generation.name == name and generation.live:
                break
        else:
            return False
        if name not in self._checked:
            if not all(self._is_of_this_log(each) for each in generations if each.name == name):
                return False
            self._checked.add(name)
        if generation.position < last or generation.shape != self._shapes[name]:
            return False
        # Another process may have emptied a part of an index; only a maintaining process builds it again.
        return not (generation.stale and self.maintains(generation))

    def catch_up(self, name: str, last: int | None = None) -> None:
        """Advance a projection to a position, by default the end of the log at the call.

        It does not wait for a rebuild, unless the tables were declared differently. Raises ProjectionBehindError when a
        newer version of the projection has built the tables, and no process maintains them.
        """
        self.projection(name)
        last = self.log.last_position() if last is None else last
        started = time.monotonic()
        until = started + PATIENCE_SECONDS

        def is_done() -> bool:
            return self.is_current(name, last, self.store.generations())

        while not is_done():
            if time.monotonic() < started + WORKER_SECONDS and name in self.store.holders():
                time.sleep(POLL_SECONDS)
                continue
            try:
                if self.advance((name,), unless=is_done if time.monotonic() < started + BUSY_SECONDS else None):
                    continue
            except BusyError:
                continue
            live = self._live(name)
            if live is not None and self.maintains(live):
                break  # the missing events cannot be read
            if time.monotonic() >= until:
                raise ProjectionBehindError(
                    f"Projection {name!r} was built by code that differs from this process's, and no process maintains "
                    "it. Read it with the code that built it, or let `clew project run` of that code maintain it."
                )
            time.sleep(POLL_SECONDS)

    def await_others(self, name: str) -> None:
        """Wait until other processes have brought a projection to the end of the log at the call.

        Raises ProjectionBehindError when the projection stops before that.
        """
        self.projection(name)
        last = self.log.last_position()
        reached, until = 0, time.monotonic() + PATIENCE_SECONDS
        while not self.is_current(name, last, self.store.generations()):
            live = self._live(name)
            if live is not None and live.position > reached:
                reached, until = live.position, time.monotonic() + PATIENCE_SECONDS
            if time.monotonic() >= until:
                raise ProjectionBehindError(
                    f"Projection {name!r} has reached position {reached} of {last}, and did not advance for "
                    f"{PATIENCE_SECONDS:g} s. This process sees one tenant and maintains no projection: run "
                    "`clew project run` as a user that is a member of clew_operator, with the same Clew."
                )
            time.sleep(POLL_SECONDS)

    def _live(self, name: str) -> Generation | None:
        return next((each for each in self.store.generations() if each.live and each.name == name), None)

    def is_changed(self, name: str, generations: Sequence[Generation] | None = None) -> bool:
        """Whether this process's code must rebuild a projection, or is rebuilding it."""
        generations = self.store.generations() if generations is None else generations
        for live in generations:
            if live.live and live.name == name:
                break
        else:
            return False
        if self.is_own(live) or live.version > self.projection(name).version:
            return False
        building = [each for each in generations if each.name == name and not each.live]
        return name not in self._replaced or any(map(self.maintains, building))

    def is_held_up(self, names: Sequence[str]) -> bool:
        """Whether one of these was rebuilt, and waits for connections that use its old tables."""
        generations = self.store.generations() if self._next_switch else ()
        return any(each.name in names and not each.live and self.maintains(each) for each in generations)

    def may_maintain(self, name: str) -> bool:
        """Whether this process can maintain a projection; not when newer code has replaced it."""
        live = self._live(name)
        return live is None or self.maintains(live) or self.is_changed(name)

    def progress(self, position: int, last: int) -> tuple[int, int]:
        """The distances of a position and of the last event from the first event, in positions.

        In a log whose positions have gaps this is not a number of events, but still a share of the whole.
        """
        if not self._offset:
            for event in self.log.recorded_after(0, 1):
                self._offset = event.position - 1
        return max(0, position - self._offset), max(0, last - self._offset)

    def drain(self) -> None:
        """Advance until nothing is left to do."""
        while self.advance():
            pass

    def reach(self, position: int, *, begin: bool) -> bool:
        """Advance all tables to a position. False while some are before it that only other processes can fill.

        It does not wait for a rebuild, but takes part in it. With ``begin`` it can begin one, if other code built the
        tables.
        """
        while behind := [each for each in self.store.generations() if each.position < position]:
            own = [each for each in behind if (self.maintains(each) if begin else self.is_own(each))]
            if not own or not self.advance({each.name for each in own}) or not any(each.live for each in own):
                return False
        return True

    def forget(self, stream: str, versions: Iterable[int], by: int) -> None:
        """Remove the words of texts from all indexes at once; the event at version ``by`` shredded them.

        If this process cannot rebuild that part of an index, it empties the part until another process rebuilds it.
        """
        found = [self.log.position_of(stream, version) for version in versions]
        positions, shredded = [each for each in found if each is not None], self.log.position_of(stream, by)
        if not positions or shredded is None:
            return
        # Read inside the transaction: another one that has read the text may be about to commit its words.
        with self.store.session(self.log.last_position()) as session:
            for generation in session.generations():
                if generation.position < min(positions):
                    continue
                for position in positions:
                    if position <= generation.position:
                        session.forget(generation, None, position, shredded)
                if self.maintains(generation):
                    reindex(self.log, session, Target(generation, self.projections[generation.name]))
                else:
                    session.empty(generation)

    # Rebuilding

    def rebuild(self, name: str) -> Iterator[tuple[int, int]]:
        """Rebuild a projection batch by batch, in new tables next to the old ones. Reads use the old ones meanwhile.

        Yields its progress after each batch. Raises UnknownProjectionError, ProjectionBehindError when a newer version
        of it, or other code that is rebuilding it, is in the way, or StoreUnavailableError where only one tenant's
        events can be seen.
        """
        projection = self.projection(name)
        self.check_sees_all()
        goal, first_id = self.log.last_position(), self._begin_rebuild(projection)
        while True:
            # Another process may have restarted the rebuild: then take part in that one.
            generations = [each for each in self.store.generations() if each.name == name and each.id >= first_id]
            now = generations[-1] if generations else None
            if now is not None:
                yield self.progress(now.position, self.log.last_position())
            if now is not None and now.live and now.position >= goal:
                return
            if now is not None and not self.maintains(now):
                raise ProjectionBehindError(
                    f"Projection {name!r}: another process rebuilds it with other code. End that process, then try "
                    "again."
                )
            if self.advance((name,)):
                continue
            if now is not None and now.live:
                return  # the missing events cannot be read
            time.sleep(POLL_SECONDS)

    def _begin_rebuild(self, projection: Projection) -> int:
        """Begin a new generation; returns its number."""
        with self.store.session(self.log.last_position(), [projection.name]) as session:
            own = [generation for generation in session.generations() if generation.name == projection.name]
            newer = next((each for each in own if each.live and each.version > projection.version), None)
            if newer is not None:
                raise ProjectionBehindError(
                    f"Projection {projection.name!r} was built by its version {newer.version}, and this is version "
                    f"{projection.version}. Rebuild it with the Clew that built it."
                )
            self._of_another_log.pop(projection.name, None)
            live = False
            for generation in own:
                if generation.live and self._is_of_this_log(generation):
                    live = True
                else:
                    session.drop(generation)
            return session.begin(projection, self.code(projection), live=not live).id

    def check_sees_all(self) -> None:
        """Raise StoreUnavailableError if only one tenant's events are visible: projections need all events."""
        if self.log.is_bound():
            raise StoreUnavailableError(
                "Projections are built from the events of all tenants, but this user sees only one tenant. Build them "
                "as a user that is a member of clew_operator."
            )
