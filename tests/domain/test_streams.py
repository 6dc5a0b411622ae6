from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from clew.domain.errors import InvalidNameError
from clew.domain.streams import (
    MAX_LENGTH,
    check_checkpoint_name,
    check_id,
    is_version,
    message_number,
    moment,
    parse_stream_name,
    stream_name,
    stream_prefix,
)

ids = st.text(st.characters(codec="utf-8"), min_size=1, max_size=MAX_LENGTH)


@given(ids, ids)
def test_a_stream_name_parses_into_its_parts(tenant: str, id_: str) -> None:
    name = stream_name(tenant, "thread", id_)
    assert parse_stream_name(name) == (tenant, "thread", id_)
    assert re.fullmatch(r"[A-Za-z0-9._:@%-]+/thread/[A-Za-z0-9._:@%-]+", name)


@given(ids, ids, ids, ids)
def test_different_parts_have_different_names(tenant: str, id_: str, other_tenant: str, other_id: str) -> None:
    assume((tenant, id_) != (other_tenant, other_id))
    assert stream_name(tenant, "thread", id_) != stream_name(other_tenant, "thread", other_id)


@given(ids, ids)
def test_the_prefix_of_an_id_is_the_prefix_of_its_name(tenant: str, id_: str) -> None:
    for length in range(len(id_) + 1):
        assert stream_name(tenant, "thread", id_).startswith(stream_prefix(tenant, "thread", id_[:length]))


def test_special_characters_are_escaped() -> None:
    assert stream_name("default", "thread", "a-Z_0.9:x@y") == "default/thread/a-Z_0.9:x@y"
    assert stream_name("a/b", "memory", "c~%é \n") == "a%2Fb/memory/c%7E%25%C3%A9%20%0A"


@pytest.mark.parametrize("name", ["", "a", "a/b", "a/b/c/d", "0b6f"])
def test_names_of_other_applications_are_not_parsed(name: str) -> None:
    assert parse_stream_name(name) is None


@pytest.mark.parametrize("value", ["a", "x" * MAX_LENGTH, "🧶", " ", "\n", "../..", "a/b"])
def test_any_text_of_1_to_200_characters_is_an_id(value: str) -> None:
    check_id(value, "thread id")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", "0 characters"),
        ("x" * (MAX_LENGTH + 1), "201 characters"),
        ("x" * 10_240, "10240 characters"),
        ("secret\ud800", "lone surrogate"),
        (7, "int is not a string"),
        (None, "NoneType is not a string"),
        (b"a", "bytes is not a string"),
    ],
)
def test_refuses_an_invalid_id_with_one_short_line(value: Any, expected: str) -> None:
    with pytest.raises(InvalidNameError, match=expected) as caught:
        check_id(value, "thread id")
    assert str(caught.value).startswith("thread id: ")
    assert len(str(caught.value)) < 100


@pytest.mark.parametrize("name", ["before refund", "v2", "message:", "message:one", "message: 1", "12a", "١٢", "now"])
def test_words_are_names_of_checkpoints(name: str) -> None:
    check_checkpoint_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "12",
        "0",
        "007",
        "message:3",
        "2026-01-31",
        "20260131",
        "2026-01-31T10:00:00+01:00",
        "2026-01-31 10:00",
        "2026-W05-6",
        " a",
        "a ",
        "a\nb",
        "a\x00",
        "",
        "x" * 201,
    ],
)
def test_refuses_a_checkpoint_name_that_reads_as_something_else(name: str) -> None:
    with pytest.raises(InvalidNameError):
        check_checkpoint_name(name)


def test_distinguishes_versions_messages_and_times() -> None:
    assert is_version("0012")
    assert not is_version("-1")
    assert not is_version("1\n")
    assert not is_version("")
    assert message_number("message:12") == 12
    assert message_number("message:-1") is None
    assert message_number("message:" + "9" * 19) is None
    time = moment("2026-01-31T10:00:00+01:00")
    assert time is not None
    assert time.utcoffset() is not None
    assert moment("yesterday") is None
