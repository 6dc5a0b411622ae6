from __future__ import annotations

import pickle

import pytest

from clew.domain.errors import ClewError, EmbeddingError, FactRefusedError, ScopeError, UnknownFactError


@pytest.mark.parametrize(
    "error",
    [UnknownFactError("user/42", "f"), FactRefusedError("app", "too private"), ScopeError("x"), EmbeddingError("x")],
    ids=lambda error: type(error).__name__,
)
def test_errors_cross_processes(error: ClewError) -> None:
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  # of one's own
    assert (type(again), str(again), again.__dict__) == (type(error), str(error), error.__dict__)
