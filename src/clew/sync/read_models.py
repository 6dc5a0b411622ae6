"""The read models of a service for threads of control: their rows, how far they have come, and building them anew."""

from __future__ import annotations

from collections.abc import Callable

from clew.domain.projection import Query, RowValues
from clew.service import projection_status
from clew.service.core import Core
from clew.service.operations import run
from clew.service.projection_status import ProjectionStatus


class HasReadModels:
    """A service, as far as it has read models."""

    _core: Core

    def rows(self, projection: str, query: Query) -> list[RowValues]:
        """Rows of a projection's table, with everything that was written before the call.

        Of a table with a column ``tenant`` they are this tenant's, of any other everybody's. Raises
        UnknownProjectionError or InvalidProjectionError.
        """
        return run(projection_status.rows(self._core, projection, query))

    def position(self) -> int:
        """The newest position of the store: everything that this process has written is there or below.

        ``wait`` on a standby takes it, to read there what was written here.
        """
        return run(self._core.models.position())

    def wait(
        self,
        position: int | None = None,
        *,
        projection: str | None = None,
        timeout: float | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Wait until a projection, or every one, has come to a position, by default the newest one at the call.

        So has the log then, which is waited for on a standby. ``timeout`` is in seconds; without one it is waited for
        ever where nobody fills them, of which there is a warning in Python's log after ten seconds without progress.
        ``progress`` is told how far it is and how far there is to go, in positions from the first event. Raises
        ProjectionBehindError or UnknownProjectionError.
        """
        run(self._core.models.wait(position, projection=projection, timeout=timeout, progress=progress))

    def rebuild(self, projection: str, *, progress: Callable[[int, int], None] | None = None) -> None:
        """Build a projection anew from the log, beside its tables, which are read until it is done.

        ``progress`` is told how far it is and how far there is to go, in positions from the first event. On PostgreSQL
        those have gaps: together they are the share of the way. Raises UnknownProjectionError, or
        ProjectionBehindError when other code is in the way.
        """
        run(self._core.models.rebuild(projection, progress))

    def projections(self) -> list[ProjectionStatus]:
        """How far each projection has come, what state it is in, and the events that it went on without."""
        return run(projection_status.statuses(self._core))
