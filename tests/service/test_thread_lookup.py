"""Threads are found by their id or by a unique prefix of it; opening checks the tenant first."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.conversations import Conversations
from clew.domain.errors import (
    AmbiguousThreadError,
    InvalidNameError,
    StoreUnavailableError,
    UnknownThreadError,
)
from clew.engine import Engine


def start_threads(conversations: Conversations, *ids: str) -> None:
    for id_ in ids:
        conversations.start_thread(thread_id=id_)


def test_a_whole_id_wins_over_longer_ids(conversations: Conversations) -> None:
    start_threads(conversations, "order/12", "order/1", "order/13")
    assert conversations.find("order/1") == "order/1"
    assert conversations.find("order/12") == "order/12"


def test_a_unique_prefix_with_any_characters_is_enough(conversations: Conversations) -> None:
    start_threads(conversations, "order/1", "ordér 100%", "a_b", "aXb")
    assert conversations.find("ordé") == "ordér 100%"
    assert conversations.find("ordér 100%") == "ordér 100%"
    assert conversations.find("order/") == "order/1"
    assert conversations.find("a_") == "a_b"


def test_a_prefix_without_a_thread_is_unknown(conversations: Conversations) -> None:
    start_threads(conversations, "order")
    for prefix in ("x", "orders", "rder", "ORDER", "%", "*"):
        with pytest.raises(UnknownThreadError, match="no thread"):
            conversations.find(prefix)


def test_an_ambiguous_prefix_lists_up_to_five_candidates(conversations: Conversations) -> None:
    start_threads(conversations, "a1", "a2", "b")
    with pytest.raises(AmbiguousThreadError) as caught:
        conversations.find("a")
    assert caught.value.candidates == ["a1", "a2"]
    assert "others" not in str(caught.value)
    start_threads(conversations, "a3", "a4", "a5", "a6")
    with pytest.raises(AmbiguousThreadError, match="and others") as caught:
        conversations.find("a")
    assert caught.value.candidates == ["a1", "a2", "a3", "a4", "a5"]


@pytest.mark.parametrize("prefix", ["", "x" * 201, "\udc00", 7])
def test_refuses_an_invalid_name(conversations: Conversations, prefix: Any) -> None:
    start_threads(conversations, "order")
    with pytest.raises(InvalidNameError, match="thread id"):
        conversations.find(prefix)


def test_a_deleted_thread_is_found_and_another_tenants_is_not(shared_url: str) -> None:
    with Conversations.open(shared_url, tenant="a") as ours, Conversations.open(shared_url, tenant="b") as theirs:
        start_threads(ours, "order")
        ours.thread("order").delete()
        assert ours.find("ord") == "order"
        for name in ("ord", "order"):
            with pytest.raises(UnknownThreadError):
                theirs.find(name)


def test_the_engine_finds_the_same(url: str) -> None:
    async def work() -> None:
        async with Engine.open(url) as engine:
            for id_ in ("a1", "a2", "b"):
                await engine.start_thread(thread_id=id_)
            assert await engine.find("b") == "b"
            assert await engine.find("a1") == "a1"
            with pytest.raises(AmbiguousThreadError):
                await engine.find("a")
            with pytest.raises(UnknownThreadError):
                await engine.find("c")

    asyncio.run(work())


@given(ids=st.sets(st.text("ab%/é_", min_size=1, max_size=4), max_size=6), prefix=st.text("ab%/é_", min_size=1))
def test_finds_the_same_as_a_scan_of_all_ids(ids: set[str], prefix: str) -> None:
    with Conversations.open("memory:") as conversations:
        start_threads(conversations, *sorted(ids))
        expected = [prefix] if prefix in ids else [each for each in ids if each.startswith(prefix)]
        if len(expected) == 1:
            assert conversations.find(prefix) == expected[0]
        else:
            with pytest.raises(AmbiguousThreadError if expected else UnknownThreadError):
                conversations.find(prefix)


@pytest.mark.parametrize("face", [Conversations, Engine])
@pytest.mark.parametrize("tenant", ["", "x" * 201, "\udc00", None])
def test_refuses_an_invalid_tenant_before_creating_a_file(face: Any, tenant: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidNameError, match="tenant"):
        face.open(f"sqlite:///{tmp_path}/n.db", tenant=tenant)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("face", [Conversations, Engine])
def test_creates_no_file_without_create(face: Any, tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="the database does not exist"):
        face.open(f"sqlite:///{tmp_path}/n.db", create=False)
    assert list(tmp_path.iterdir()) == []
