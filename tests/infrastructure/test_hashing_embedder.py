from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.domain.errors import EmbeddingError
from clew.infrastructure.hashing_embedder import HashingEmbedder

FIRST = [0.8164965809, -0.4082482905, -0.4082482905, -0.0000000000]


def embedded(*texts: str, dimensions: int = 256) -> list[list[float]]:
    return asyncio.run(HashingEmbedder(dimensions).embed(texts))


def near(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


@given(st.text(max_size=40), st.integers(1, 300))
def test_gives_a_vector_of_its_size_and_of_length_1_or_of_nothing(text: str, dimensions: int) -> None:
    [vector] = embedded(text, dimensions=dimensions)
    assert len(vector) == dimensions
    assert math.hypot(*vector) in (0, pytest.approx(1))


def test_is_the_same_everywhere() -> None:
    """These are of its first version: another way to hash is another model, and needs another name."""
    [vector] = embedded("Lost parcel", dimensions=4)
    assert vector == pytest.approx(FIRST, abs=1e-9)


def test_texts_that_share_words_are_nearer_than_those_that_do_not() -> None:
    asked, same, akin, other = embedded(
        "the invoice of Fabrikam", "of FABRIKAM the invoice", "invoices from Fabrikam", "bananas are yellow"
    )
    assert near(asked, same) == pytest.approx(1)
    assert near(asked, akin) > 0.3 > near(asked, other)


@pytest.mark.parametrize("dimensions", [0, -1, True, 1.5, "256"])
def test_refuses_a_size_that_is_none(dimensions: Any) -> None:
    with pytest.raises(EmbeddingError, match="dimensions"):
        HashingEmbedder(dimensions)
