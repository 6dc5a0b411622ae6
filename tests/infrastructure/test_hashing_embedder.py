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


def embed(*texts: str, dimensions: int = 256) -> list[list[float]]:
    return asyncio.run(HashingEmbedder(dimensions).embed(texts))


def similarity(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


@given(st.text(max_size=40), st.integers(1, 300))
def test_a_vector_has_the_given_size_and_the_length_one_or_zero(text: str, dimensions: int) -> None:
    [vector] = embed(text, dimensions=dimensions)
    assert len(vector) == dimensions
    assert math.hypot(*vector) in (0, pytest.approx(1))


def test_the_vectors_never_change() -> None:
    """These are the vectors of the first version. Another hash function is another model, with another name."""
    [vector] = embed("Lost parcel", dimensions=4)
    assert vector == pytest.approx(FIRST, abs=1e-9)


def test_texts_with_common_words_are_more_similar() -> None:
    query, same, related, other = embed(
        "the invoice of Fabrikam", "of FABRIKAM the invoice", "invoices from Fabrikam", "bananas are yellow"
    )
    assert similarity(query, same) == pytest.approx(1)
    assert similarity(query, related) > 0.3 > similarity(query, other)


@pytest.mark.parametrize("dimensions", [0, -1, True, 1.5, "256"])
def test_refuses_an_invalid_size(dimensions: Any) -> None:
    with pytest.raises(EmbeddingError, match="dimensions"):
        HashingEmbedder(dimensions)
