"""Docstrings: the parts that a model receives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.agents.tool_schemas import read_docstring

NUMPY = """Do it.

    Parameters
    ----------
    a : int
        One
        and more.
    b, c : str, optional
        Two.

    Returns
    -------
    int
        Not this.

    Notes
    -----
    It cannot be undone.

    Examples
    --------
    >>> do(1)
    2
    """


@pytest.mark.parametrize(
    ("docstring", "description", "parameters"),
    [
        (None, "", {}),
        ("Do it.", "Do it.", {}),
        ("Do it.\n\n    Slowly.\n\n    Args:\n        a: One.\n    ", "Do it.\n\nSlowly.", {"a": "One."}),
        (
            "Do it.\n\nArguments:\n  a (int, optional): One:\n    and more.\n\n    - a: point\n  *b: Two.\n  c:\n",
            "Do it.",
            {"a": "One: and more. - a: point", "b": "Two."},
        ),
        ("Do it.\n\nNote:\n    It cannot be undone.\n", "Do it.\n\nNote:\n    It cannot be undone.", {}),
        (
            "Do it.\n\nArgs:\n    a: One.\n\nReturns:\n    b: Not one.\n\nRaises:\n    E: No.\n\nTake care.",
            "Do it.\n\nTake care.",
            {"a": "One."},
        ),
        (
            "Do it.\n\n:param a: One\n    and more.\n:param int b: Two.\n:type b: int\n    not this\n:returns: c\n",
            "Do it.",
            {"a": "One and more.", "b": "Two."},
        ),
        ("\n    Args:\n        a: One.\n    ", "", {"a": "One."}),
        ("At 10:30: do it.", "At 10:30: do it.", {}),
        (
            NUMPY,
            "Do it.\n\nNotes:\n    It cannot be undone.\n\nExamples:\n    >>> do(1)\n    2",
            {"a": "One and more.", "b": "Two.", "c": "Two."},
        ),
        ("Do it.\n\nOther Parameters\n----------------\na\n    One.\n", "Do it.", {"a": "One."}),
        ("Do it.\n\nKeyword Args:\n    a: One.\n\nTodo:\n    More.\n\nSee Also:\n    that", "Do it.", {"a": "One."}),
    ],
)
def test_a_docstring_describes_a_function_and_its_parameters(
    docstring: str | None, description: str, parameters: dict[str, str]
) -> None:
    assert read_docstring(docstring) == (description, parameters)


@given(st.text(st.sampled_from("aA:*( )\n\t-") | st.characters()))
def test_reads_any_text_as_a_docstring(text: str) -> None:
    description, parameters = read_docstring(f"{text}\n\nArgs:\n    last: The last one.")
    assert parameters["last"] == "The last one."
    assert description == description.strip()
