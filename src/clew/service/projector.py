"""Filling the tables of projections from the log: a batch of events and the position reached in one transaction."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from clew.domain.errors import ProjectionBehindError, StoreError, UnknownProjectionError
from clew.domain.ports import EventLog
from clew.domain.projection import Built, Projection, check_projections
from clew.domain.projection_store import ProjectionSession, ProjectionStore
from clew.service.projection_batch import AT_ONCE, Filled, reindex, take_in
from clew.service.read_ahead import ReadingAhead

BATCH = 8_000
"""Events of one transaction, at the most."""

SHRINK = 8
"""By so much a batch that a projection raises for is made smaller, until the event that is at fault is near."""

PATIENCE_SECONDS = 2.0
"""How long a reader waits for the process that fills tables which this one cannot fill."""

WORKER_SECONDS = 0.2
"""How long a reader leaves it to a worker that fills what it reads: two that fill the same wait for each other."""

POLL_SECONDS = 0.02

REST_SECONDS = 2.0
"""After so long it is tried again to replace tables that somebody holds: a dump of the database, perhaps."""

_log = logging.getLogger(__name__)


@dataclass
class _Attempt:
    """One transaction: how many events it takes at the most, each alone if it is careful, and what is told of it."""

    size: int
    careful: bool = False
    given: int = 0
    """Events that there were to take in."""
    counts: list[tuple[str, int]] = field(default_factory=list)
    parked: list[tuple[str, int]] = field(default_factory=list)


class Projector:
    """Fills the tables of projections, a batch at a time; many processes may do so, and take turns.

    ``code`` gives the digest of a projection's code. A projection whose live tables were built by other code than that,
    or are made otherwise than here, is built anew beside them, once; if another process puts other code in its place,
    this one does not begin again. What is live is filled by whoever declares and makes it alike, unless a newer version
    of the projection has built it.
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
        self._taken: set[str] = set()
        self._ahead = ReadingAhead(log)
        self._size = BATCH
        self._before = 0
        self._rests = 0.0
        self.counted: Callable[[str, int], None] | None = None
        """Is told by how many events the live tables of a projection have come further, after each transaction."""

    def projection(self, name: str) -> Projection:
        """The projection of that name. Raises UnknownProjectionError."""
        if name not in self.projections:
            raise UnknownProjectionError(name, sorted(self.projections))
        return self.projections[name]

    def code(self, projection: Projection) -> str:
        """The digest of a projection's code, which is looked at once."""
        if projection.name not in self._codes:
            self._codes[projection.name] = self._code(projection)
        return self._codes[projection.name]

    def is_own(self, built: Built) -> bool:
        """Whether a generation was built by the code that is here, in tables as they are made here."""
        projection = self.projections.get(built.name)
        if projection is None:
            return False
        return (built.code, built.shape) == (self.code(projection), self._shapes[built.name])

    def fills(self, built: Built) -> bool:
        """Whether a generation is filled here: what is built beside by its own code, what is live by its like."""
        projection = self.projections.get(built.name)
        if projection is None or not built.live:
            return self.is_own(built)
        return built.version <= projection.version and built.shape == self._shapes[built.name]

    # One batch

    def advance(self, names: Iterable[str] | None = None) -> bool:
        """Do one batch of what there is to do, of these projections or of all; False when there is nothing."""
        chosen = [self.projection(name) for name in (self.projections if names is None else names)]
        while True:
            attempt = _Attempt(min(self._size, BATCH))
            try:
                done = self._try(chosen, attempt)
            except StoreError:
                self._ahead = ReadingAhead(self.log)  # what is there when the store is back may be another log
                raise
            except Exception:  # noqa: BLE001 - whose fault it is shows when each event is alone
                if attempt.given <= AT_ONCE:
                    return self._try(chosen, _Attempt(AT_ONCE, careful=True))
                self._size = max(attempt.given // SHRINK, AT_ONCE)  # alone they take long, and most are not at fault
            else:
                self._size = min(2 * attempt.size, BATCH)
                return done

    def _try(self, chosen: Sequence[Projection], attempt: _Attempt) -> bool:
        checked, taken = set(self._checked), set(self._taken)
        try:
            names = [each.name for each in chosen]
            with self.store.session(self.log.last_position(), names) as session:
                done = self._step(session, chosen, attempt)
        except BaseException:
            self._checked, self._taken = checked, taken  # nothing of it was done
            raise
        for name, position in attempt.parked:
            _log.warning("Projection %s goes on without the event at position %d", name, position)
        if self.counted is not None:
            for name, count in attempt.counts:
                self.counted(name, count)
        return done

    def _step(self, session: ProjectionSession, chosen: Sequence[Projection], attempt: _Attempt) -> bool:
        last = self.log.last_position()
        filled = self._filled(session, chosen)
        # In the same step, so that neither waits for ever for the other while more and more is appended.
        live = self._batch(session, [each for each in filled if each.built.live], last, attempt)
        beside = self._batch(session, [each for each in filled if not each.built.live], last, attempt)
        done = {each.built for each in filled} != {each.built for each in (*live, *beside)}
        done |= any([reindex(self.log, session, each) for each in (*live, *beside)])  # noqa: C419 - each of them
        for each in beside:  # what is at the end of what can be read takes the place of what was read so far
            if not done or each.built.position >= last:
                done |= self._switched(session, each.built)
        return done

    def _switched(self, session: ProjectionSession, built: Built) -> bool:
        """Let what was built beside be read from now on; where somebody holds the tables before it, after a rest."""
        if time.monotonic() < self._rests:
            return False
        if session.switch(built):
            self._rests = 0.0
            return True
        if not self._rests:
            _log.warning(
                "Projection %s was built anew, and is read as soon as nobody holds its old tables any more: look for a "
                "dump of the database, or a transaction that has stayed open",
                built.name,
            )
        self._rests = time.monotonic() + REST_SECONDS
        return False

    def _batch(
        self, session: ProjectionSession, group: Sequence[Filled], last: int, attempt: _Attempt
    ) -> Sequence[Filled]:
        """Let those that are furthest behind take in a batch; all of them, with the positions that they have then."""
        behind = [each.built.position for each in group if each.built.position < last]
        if not behind:
            return group
        low = min(behind)
        batch, shredded = self._ahead.after(low, BATCH)
        self._ahead.keep(low, BATCH, batch, shredded)  # for the next attempt, if this one fails
        events = batch[: attempt.size]
        further = [position for position in behind if position > low]
        if further:  # they join in from there
            events = [event for event in events if event.position <= min(further)]
        if not events:
            return group
        lowest = [each for each in group if each.built.position == low]
        attempt.given = max(attempt.given, len(events))
        taken, parked = take_in(self.log, session, lowest, events, careful=attempt.careful)
        attempt.parked += parked
        end = events[taken - 1]
        moved: list[Filled] = []
        for each in group:
            if each.built.position != low:
                moved.append(each)
                continue
            session.move(each.built, end.position, end.hash)
            if each.built.live:
                attempt.counts.append((each.built.name, taken))
            moved.append(each._replace(built=each.built._replace(position=end.position, hash=end.hash)))
        self._ahead.keep(end.position, BATCH, batch[taken:], shredded)
        return moved

    def _filled(self, session: ProjectionSession, chosen: Sequence[Projection]) -> list[Filled]:
        """The generations that are to be filled here; those that are missing are begun."""
        there = session.built()
        unchecked = {projection.name for projection in chosen} - self._checked
        if unchecked:
            for built in there:
                if built.name in unchecked and not self._is_of_this_log(built):
                    _log.warning("Projection %s was filled from another log and is built anew", built.name)
                    session.drop(built)
            there = session.built()
            self._checked |= unchecked
        filled: list[Filled] = []
        for projection in chosen:
            name, code = projection.name, self.code(projection)
            own = [built for built in there if built.name == name]
            live = next((built for built in own if built.live), None)
            if live is None:
                filled.append(Filled(session.begin(projection, code, live=True), projection))
                continue
            if live.version > projection.version:
                continue  # a newer Clew's: the status says so
            if name not in self._taken and not any(map(self.is_own, own)):
                for built in own:
                    if not built.live:
                        session.drop(built)
                own = [live, session.begin(projection, code, live=False)]
            # Once only: if another process puts other code in the place of this one, it is left there.
            self._taken.add(name)
            filled += [Filled(built, projection) for built in own if self.fills(built)]
        return filled

    def _is_of_this_log(self, built: Built) -> bool:
        """Whether a generation was filled from this log; not so when an older copy of the log was put back."""
        if not built.position or self.log.is_bound():  # one tenant's events do not tell
            return True
        found = self.log.recorded_after(built.position - 1, 1)
        return bool(found) and found[0].position == built.position and found[0].hash == built.hash

    # What others ask for

    def catch_up(self, name: str) -> bool:
        """Bring a projection as far as the log was at the call, so that what was written before is read.

        True: it is to be built anew, which is not waited for unless its tables were declared otherwise. Raises
        ProjectionBehindError when a newer version of it has built the tables, and nobody fills them.
        """
        projection = self.projection(name)
        last = self.log.last_position()
        begun = time.monotonic()
        until = begun + PATIENCE_SECONDS
        while not self._is_ready(projection, last, there := self.store.built()):
            if time.monotonic() < begun + WORKER_SECONDS and name in self.store.holders():
                time.sleep(POLL_SECONDS)
                continue
            if self.advance((name,)):
                continue
            live = self._live(name)
            if live is not None and self.fills(live):
                break  # what is missing cannot be read
            if time.monotonic() >= until:
                raise ProjectionBehindError(
                    f"Projection {name!r} was built by other code than this process has, and is not filled any more. "
                    "Read it with the code that built it, or let `clew project run` of that code fill it."
                )
            time.sleep(POLL_SECONDS)
        return self.is_changed(name, there)

    def await_filled(self, name: str) -> None:
        """Wait until those who fill a projection have come as far as the log was at the call.

        Raises ProjectionBehindError when they come no further.
        """
        projection, last = self.projection(name), self.log.last_position()
        reached, until = 0, time.monotonic() + PATIENCE_SECONDS
        while not self._is_ready(projection, last, self.store.built()):
            live = self._live(name)
            if live is not None and live.position > reached:
                reached, until = live.position, time.monotonic() + PATIENCE_SECONDS
            if time.monotonic() >= until:
                raise ProjectionBehindError(
                    f"Projection {name!r} has come to position {reached} of {last} and no further in "
                    f"{PATIENCE_SECONDS:g} s. This process sees one tenant and fills none: let `clew project run` fill "
                    "it, as a user that is a member of clew_operator and with the same Clew."
                )
            time.sleep(POLL_SECONDS)

    def _is_ready(self, projection: Projection, last: int, there: Sequence[Built]) -> bool:
        own = [built for built in there if built.name == projection.name]
        if projection.name not in self._checked and all(map(self._is_of_this_log, own)):
            self._checked.add(projection.name)
        live = self._live(projection.name, there)
        if live is None or live.position < last or live.shape != self._shapes[projection.name]:
            return False
        # Another process may have emptied a part of an index since, which only those who fill it can make anew.
        return projection.name in self._checked and not (live.stale and self.fills(live))

    def _live(self, name: str, there: Sequence[Built] | None = None) -> Built | None:
        there = self.store.built() if there is None else there
        return next((each for each in there if each.live and each.name == name), None)

    def is_changed(self, name: str, there: Sequence[Built] | None = None) -> bool:
        """Whether a projection is to be built anew, or is being built anew, by the code that is here."""
        there = self.store.built() if there is None else there
        projection, live = self.projection(name), self._live(name, there)
        if live is None or live.version > projection.version or self.is_own(live):
            return False
        return name not in self._taken or any(self.fills(each) for each in there if each.name == name and not each.live)

    def is_held_up(self, names: Sequence[str]) -> bool:
        """Whether one of these was built anew, and waits for those who hold the tables that it is to replace."""
        there = self.store.built() if self._rests else ()
        return any(each.name in names and not each.live and self.fills(each) for each in there)

    def may_fill(self, name: str) -> bool:
        """Whether this process is one of those that fill a projection; not so when newer code has taken it over."""
        live = self._live(name)
        return live is None or self.fills(live) or self.is_changed(name)

    def progress(self, position: int, last: int) -> tuple[int, int]:
        """How far it is to a position from the first event, and how far there is to go, both in positions.

        In a log whose positions have gaps that is no number of events, and still the share of the way.
        """
        if not self._before:
            for event in self.log.recorded_after(0, 1):
                self._before = event.position - 1
        return max(0, position - self._before), max(0, last - self._before)

    def settle(self) -> None:
        """Do everything that there is to do."""
        while self.advance():
            pass

    def forget(self, stream: str, version: int, by: int) -> None:
        """Let the words of a text that was shredded by the event at version ``by`` leave all indexes at once.

        Where this process does not know what else is in that part of an index, the part is emptied until somebody comes
        who does.
        """
        position, shredded = self.log.position_of(stream, version), self.log.position_of(stream, by)
        if position is None or shredded is None:
            return
        # Nobody is asked before the transaction has begun: one that has read the text may be about to commit its words.
        with self.store.session(self.log.last_position()) as session:
            for built in session.built():
                if built.position < position:
                    continue
                session.forget(built, None, position, shredded)
                if self.fills(built):
                    reindex(self.log, session, Filled(built, self.projections[built.name]))
                else:
                    session.empty(built)
