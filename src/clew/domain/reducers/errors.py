"""What can go wrong when a history is reduced.

ClewError
└── ReducerError  a reducer gave what no request can be made of
"""

from __future__ import annotations

from clew.domain.errors import ClewError


class ReducerError(ClewError):
    """A reducer gave what no request can be made of. ``reducer`` is its name; nothing was recorded."""

    def __init__(self, reducer: str, problem: str) -> None:
        super().__init__(f"The reducer {reducer} {problem}")
        self.reducer = reducer
        self.problem = problem

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        """Survive pickling, as exceptions that cross processes must."""
        return type(self), (self.reducer, self.problem)
