"""Building the tables of a projection anew beside those that are read."""

from __future__ import annotations

import time
from collections.abc import Iterator

from clew.domain.errors import ProjectionBehindError, StoreUnavailableError
from clew.domain.ports import EventLog
from clew.domain.projection import Projection
from clew.service.projector import POLL_SECONDS, Projector


def rebuilding(projector: Projector, name: str) -> Iterator[tuple[int, int]]:
    """Build the tables of a projection anew, batch by batch, beside the old ones, read and filled until the switch.

    After each it says how far it is and how far there is to go, as ``Projector.progress`` does. Raises
    UnknownProjectionError, ProjectionBehindError when a newer version of it, or other code in the middle of it,
    is in the way, or StoreUnavailableError where one tenant's events alone are seen.
    """
    projection = projector.projection(name)
    check_sees_all(projector.log)
    goal, begun = projector.log.last_position(), _begin(projector, projection)
    while True:
        # Another process may have begun again meanwhile: then its work is waited for, and shared.
        there = [built for built in projector.store.built() if built.name == name and built.generation >= begun]
        now = there[-1] if there else None
        if now is not None:
            yield projector.progress(now.position, projector.log.last_position())
        if now is not None and now.live and now.position >= goal:
            return
        if now is not None and not projector.fills(now):
            raise ProjectionBehindError(
                f"Projection {name!r}: another process builds it with other code. End that process, then try again."
            )
        if projector.advance((name,)):
            continue
        if now is not None and now.live:
            return  # what is missing cannot be read
        time.sleep(POLL_SECONDS)


def check_sees_all(log: EventLog) -> None:
    """Raise StoreUnavailableError where one tenant's events alone are seen: nothing can be filled from them."""
    if log.is_bound():
        message = (
            "Projections are filled from the events of all tenants, and this user sees those of one. Fill them as "
            "a user that is a member of clew_operator."
        )
        raise StoreUnavailableError(message)


def _begin(projector: Projector, projection: Projection) -> int:
    with projector.store.session(projector.log.last_position(), [projection.name]) as session:
        own = [built for built in session.built() if built.name == projection.name]
        newer = next((built for built in own if built.live and built.version > projection.version), None)
        if newer is not None:
            raise ProjectionBehindError(
                f"Projection {projection.name!r} was built by its version {newer.version}, and this is version "
                f"{projection.version}. Rebuild it with the Clew that built it."
            )
        for built in own:
            if not built.live:
                session.drop(built)
        live = any(built.live for built in own)
        return session.begin(projection, projector.code(projection), live=not live).generation
