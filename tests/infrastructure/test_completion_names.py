"""Names for tab completion, from every store that several processes can open."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

from clew import Conversations
from clew.infrastructure.completion_names import checkpoint_names, scope_names, thread_ids
from clew.infrastructure.stores import store_at


def names(list_names: Callable[..., list[str]], url: str, tenant: str, *arguments: Any) -> list[str]:
    with closing(store_at(url).list_names(tenant)) as listing:
        return list_names(listing, tenant, *arguments)


def test_finds_the_threads_of_a_tenant_by_prefix(shared_url: str) -> None:
    ids = ["ab", "abc", "abd", "b", "a/b", "ä", "ab%"]
    with Conversations.open(shared_url) as conversations:
        for id_ in ids:
            conversations.start_thread(thread_id=id_)
    with Conversations.open(shared_url, tenant="other") as conversations:
        conversations.start_thread(thread_id="abx")
    assert sorted(names(thread_ids, shared_url, "default", "", 50)) == sorted(ids)
    assert names(thread_ids, shared_url, "default", "ab", 50) == ["ab", "ab%", "abc", "abd"]
    assert names(thread_ids, shared_url, "default", "ab", 2) == ["ab", "ab%"]
    assert names(thread_ids, shared_url, "default", "ä", 50) == ["ä"]
    assert names(thread_ids, shared_url, "other", "", 50) == ["abx"]
    assert names(thread_ids, shared_url, "default", "x", 50) == []


def test_finds_the_memory_scopes_of_a_tenant_by_prefix(shared_url: str) -> None:
    with Conversations.open(shared_url) as conversations:
        conversations.start_thread(thread_id="user/1")
        for name in ("user/42", "user/7", "group/g1", "user/\x1b[2J"):
            conversations.memory(name).remember("x")
    with Conversations.open(shared_url, tenant="other") as conversations:
        conversations.memory("user/43").remember("x")
    assert names(scope_names, shared_url, "default", "", 50) == ["group/g1", "user/42", "user/7"]
    assert names(scope_names, shared_url, "default", "user/4", 50) == ["user/42"]
    assert names(scope_names, shared_url, "default", "user/", 2) == ["user/42"]  # the other one cannot be typed
    assert names(scope_names, shared_url, "other", "", 50) == ["user/43"]
    assert names(thread_ids, shared_url, "default", "", 50) == ["user/1"]


def test_omits_names_that_cannot_be_typed(shared_url: str) -> None:
    with Conversations.open(shared_url) as conversations:
        for id_ in ("a\nb", "\x1b[2J", "a\u202eb", "plain and simple"):
            conversations.start_thread(thread_id=id_)
    assert names(thread_ids, shared_url, "default", "", 50) == ["plain and simple"]


def test_finds_the_checkpoints_along_the_lineage_newest_first(shared_url: str) -> None:
    with Conversations.open(shared_url) as conversations:
        root = conversations.start_thread(thread_id="root")
        root.checkpoint("first")
        root.checkpoint("second one")
        fork = root.fork(at=2, thread_id="fork")
        root.checkpoint("after the cut")
        fork.checkpoint("own")
    assert names(checkpoint_names, shared_url, "default", "root", "", 50) == [
        "after the cut",
        "second one",
        "first",
    ]
    assert names(checkpoint_names, shared_url, "default", "fork", "", 50) == ["own", "first"]
    assert names(checkpoint_names, shared_url, "default", "f", "fi", 50) == ["first"]
    assert names(checkpoint_names, shared_url, "default", "root", "", 1) == ["after the cut"]
    assert names(checkpoint_names, shared_url, "default", "", "", 50) == []  # without a thread
    assert names(checkpoint_names, shared_url, "default", "missing", "", 50) == []


def test_an_exact_id_takes_precedence_over_a_prefix(shared_url: str) -> None:
    with Conversations.open(shared_url) as conversations:
        conversations.start_thread(thread_id="a").checkpoint("short")
        conversations.start_thread(thread_id="ab").checkpoint("long")
    assert names(checkpoint_names, shared_url, "default", "a", "", 50) == ["short"]
