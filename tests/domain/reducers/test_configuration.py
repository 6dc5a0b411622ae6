from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clew.domain.reducers.reducer import checked_reducer
from clew.domain.reducers.strategies import KeepLast
from clew.domain.runs.errors import AgentConfigurationError


def made(**fields: Any) -> Any:
    whole = {"name": "mine", "when": "before_retrieval", "reduce": lambda history: history}
    return SimpleNamespace(**{**whole, **fields})


def test_any_object_with_name_when_and_reduce_is_a_reducer() -> None:
    for reducer in (KeepLast(1), made()):
        assert checked_reducer(reducer) is reducer


@pytest.mark.parametrize(
    ("reducer", "problem"),
    [
        (KeepLast, "no name"),
        (made(name=""), "no name"),
        (made(name=5), "no name"),
        (len, "no name"),
        (made(when=None), "when=None is not a moment"),
        (made(when="now"), "when='now' is not a moment"),
        (made(reduce=None), "The reducer mine has no method reduce"),
    ],
    ids=range(7),
)
def test_accepts_only_a_reducer(reducer: Any, problem: str) -> None:
    with pytest.raises(AgentConfigurationError, match=problem):
        checked_reducer(reducer)
