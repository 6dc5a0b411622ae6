"""The read models of an engine: their rows, how far they have come, and building them anew."""

from __future__ import annotations

from collections.abc import Callable

from clew.domain.projection import Query, RowValues
from clew.service.awaiting import drive
from clew.service.core import Core
from clew.service.read_models import ProjectionStatus


class HasReadModels:
    """An engine, as far as it has read models."""

    _core: Core

    async def rows(self, projection: str, query: Query) -> list[RowValues]:
        """Rows of a projection's table, with everything that was written before the call.

        Of a table with a column ``tenant`` they are this tenant's, of any other everybody's. Raises
        UnknownProjectionError or InvalidProjectionError.
        """
        return await drive(self._core.models.rows(projection, query, self._core.tenant))

    async def wait(
        self,
        position: int | None = None,
        *,
        projection: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  # as in Conversations
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Wait until a projection, or every one, has come to a position, by default the newest one at the call.

        ``timeout`` is in seconds. ``progress`` is told the position reached and the one that is waited for. Raises
        ProjectionBehindError or UnknownProjectionError.
        """
        await drive(self._core.models.wait(position, projection=projection, timeout=timeout, progress=progress))

    async def rebuild(self, projection: str, *, progress: Callable[[int, int], None] | None = None) -> None:
        """Build a projection anew from the log, beside its tables, which are read until it is done.

        ``progress`` is told the position reached and the last one. Raises UnknownProjectionError, or
        ProjectionBehindError when other code is in the way.
        """
        await drive(self._core.models.rebuild(projection, progress))

    async def projections(self) -> list[ProjectionStatus]:
        """How far each projection has come, what state it is in, and the events that it went on without."""
        return await drive(self._core.models.statuses())
