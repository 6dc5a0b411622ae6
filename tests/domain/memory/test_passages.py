from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.domain.memory.document_store import MOST, passages

pieces = st.sampled_from(
    ["word ", "A sentence. ", "\n", "\n\n", "x" * 700, "ü" * 2_000, " ", "“Quoted.” ", "文。", "\t"]
)
texts = st.lists(pieces, max_size=60).map("".join)


def unspaced(text: str) -> str:
    return "".join(text.split())


@given(texts)
def test_passages_contain_all_text_in_order_within_the_limit(text: str) -> None:
    split = passages(text)
    assert "".join(map(unspaced, split)) == unspaced(text)
    assert all(0 < len(passage) <= MOST and passage.strip() for passage in split)


@given(texts)
def test_adjacent_passages_are_not_needlessly_short(text: str) -> None:
    split = passages(text.replace("\n", " "))
    if "ü" * 2_000 not in text and "x" * 700 not in text:
        assert all(len(one) + len(two) + 60 > MOST for one, two in pairwise(split[:-1]))


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=300))
def test_a_short_text_is_one_stripped_passage(text: str) -> None:
    assert passages(text) == ([text.strip()] if text.strip() else [])


def test_splits_at_paragraphs_then_lines_sentences_and_words() -> None:
    paragraph, line, sentence = "p" * 700, "l" * 700, "S" * 500 + "."
    assert passages(f"{paragraph}\n \n{paragraph}\nend") == [paragraph, f"{paragraph}\nend"]
    assert passages(f"{line}\n{line}\n{line}") == [line] * 3
    assert passages(" ".join([sentence] * 3)) == [f"{sentence} {sentence}", sentence]
    assert passages(" ".join(["word"] * 300)) == [" ".join(["word"] * 240), " ".join(["word"] * 60)]
    assert passages("x" * 2_500) == ["x" * 1_200, "x" * 1_200, "x" * 100]


@pytest.mark.parametrize("text", ["\n" * 200_000, " " * 200_000 + "x", "a\n " * 100_000, ". " * 100_000])
def test_splits_long_texts_of_separators_quickly(text: str) -> None:
    assert "".join(map(unspaced, passages(text))) == unspaced(text)
