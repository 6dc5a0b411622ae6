"""The workers that fill the projections of a PostgreSQL database, each with its leases until they run out."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg.types.numeric import Float8

from clew.domain.projection_leases import Share, claimed
from clew.infrastructure.postgres.connection import Session
from clew.infrastructure.postgres.sql_files import statements

SQL = statements("workers.sql")


def claim(session: Session, worker: str, names: Sequence[str], seconds: float) -> list[str]:
    """The leases that the worker has from now on; in a transaction."""
    session.ask(SQL["lock"])
    there = shares(session)
    others = [each for each in there if each.worker != worker]
    holds = [each.projection for each in there if each.worker == worker and each.held]
    found = claimed(others, worker, names, holds)
    session.ask(SQL["drop those that have run out"], {"worker": worker, "names": list(names)})
    held = [name in found for name in names]
    session.ask(SQL["put"], {"worker": worker, "seconds": Float8(seconds), "names": list(names), "held": held})
    return found


def release(session: Session, worker: str) -> None:
    """Let go of everything of a worker's."""
    session.ask(SQL["drop"], {"worker": worker})


def shares(session: Session) -> list[Share]:
    """The workers that are there, and what they hold."""
    return [Share._make(row) for row in session.ask(SQL["shares"])]


def holders(session: Session) -> dict[str, str]:
    """The worker that holds the lease of each projection that somebody holds."""
    return {each.projection: each.worker for each in shares(session) if each.held}
