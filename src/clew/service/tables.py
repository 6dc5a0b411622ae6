"""The tables of projections as they are, for who may read them all: no row says in general whose it is."""

from __future__ import annotations

from clew.domain.projection import Query, RowValues
from clew.service.authorizing import check
from clew.service.core import Core
from clew.service.operations import Operation
from clew.service.projection_status import ProjectionStatus


def rows(core: Core, projection: str, query: Query) -> Operation[list[RowValues]]:
    """Rows of a projection, of this tenant where they are somebody's. Raises NotAuthorizedError."""
    yield from check(core, "rows")
    return (yield from core.models.rows(projection, query, core.tenant))


def statuses(core: Core) -> Operation[list[ProjectionStatus]]:
    """How far each projection has come, and what it could not take in. Raises NotAuthorizedError."""
    yield from check(core, "rows")
    return (yield from core.models.statuses())
