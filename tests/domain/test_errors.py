from __future__ import annotations

import pickle

import pytest

from clew.domain.errors import (
    AmbiguousThreadError,
    BatchError,
    ClewError,
    ConflictError,
    CorruptEventError,
    CredentialError,
    EmbeddingError,
    FactConflictError,
    FactRefusedError,
    HistoryStoreContractError,
    HistoryStoreSharedError,
    NotAuthorizedError,
    ReducerError,
    ScopeError,
    ThreadAheadError,
    UnknownFactError,
    UnknownProjectionError,
    UnknownThreadError,
)

CORRUPT = CorruptEventError("x")
CORRUPT.version = 7


@pytest.mark.parametrize(
    "error",
    [
        UnknownFactError("user/42", "f"),
        FactRefusedError("app", "too private"),
        ScopeError("x"),
        EmbeddingError("x"),
        UnknownThreadError("t"),
        AmbiguousThreadError("t", ["t1", "t2"], more=True),
        ThreadAheadError("t", 5, 3),
        NotAuthorizedError(None, "read", "t"),
        ConflictError("t", 1, 2),
        BatchError("two tenants"),
        FactConflictError("user/42", "units", 0, 2),
        UnknownProjectionError("p", [], unfilled=True),
        CORRUPT,
        HistoryStoreSharedError("p", "t", "u"),
        HistoryStoreContractError("rule", "found"),
        CredentialError("here", "a key"),
        ReducerError("keep-last(2)", "failed"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_survive_pickling(error: ClewError) -> None:
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  # made here
    assert (type(again), str(again), again.__dict__) == (type(error), str(error), error.__dict__)
