"""Threads that are not serialized, and documents that are refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.service.serialized_threads import document_of, positions, record_state
from tests.service.settable_clock import SettableClock
from tests.service.transferred_stores import CANARY, fill

from clew.conversations import Conversations
from clew.domain.decider import RecordEvents, Start
from clew.domain.decider_state import Control
from clew.domain.errors import CorruptEventError, CredentialError, InvalidContentError, ThreadDocumentError
from clew.domain.messages import Message
from clew.domain.runs.events import ServiceThreadBound
from clew.service.core import CommitOptions, commit
from clew.service.effects import run


@pytest.fixture
def source(clock: SettableClock) -> Iterator[Conversations]:
    with Conversations.open("memory:", now=clock) as store:
        fill(store)
        yield store


@pytest.mark.parametrize(
    "state",
    [
        {"url": "redis://user:four-nine-two@host/0"},
        {"deep": [{"api_key": "four-nine-two"}]},
        "sk-four-nine-two-four-nine-two",
    ],
)
def test_refuses_a_provider_state_that_looks_like_a_credential(source: Conversations, state: Any) -> None:
    source.start_thread(thread_id="t")
    record_state(source, "t", "keeper", state)
    record_state(source, "t", "keeper", {"n": 2})  # the document would include the older event
    with pytest.raises(CredentialError, match="state of 'keeper' at version 2") as caught:
        source.thread("t").serialize()
    assert CANARY not in str(caught.value)


def test_refuses_a_credential_after_the_cut_if_the_document_includes_it(source: Conversations) -> None:
    root = source.start_thread(thread_id="r", messages=[Message.user("Hello")])
    fork = root.fork(thread_id="f")
    record_state(source, "r", "keeper", {"password": CANARY})
    assert CANARY not in json.dumps(fork.serialize())
    root.redact(2)  # the redaction comes after the state
    with pytest.raises(CredentialError, match="state of 'keeper' at version 3"):
        fork.serialize()


def test_refuses_a_service_thread_id_that_looks_like_a_credential(source: Conversations) -> None:
    bound = RecordEvents((ServiceThreadBound(id="sk-proj-four-nine-two-four-nine-two", kind="conversation"),))
    run(commit(source._core, "t", [Start(kind="remote"), bound], CommitOptions(base=Control())))
    with pytest.raises(CredentialError, match="the service's id of the thread at version 2") as caught:
        source.thread("t").serialize()
    assert CANARY not in str(caught.value)


def damaged(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def damage(document: dict[str, Any]) -> dict[str, Any]:
        change(document)
        return document

    return damage


DAMAGE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a newer version": damaged(lambda document: document.update(version=2)),
    "a torn file": lambda document: {key: document[key] for key in ("clew", "version", "thread", "streams")},
    "a missing row": damaged(lambda document: document["streams"][-1]["rows"].pop()),
    "a missing first row": damaged(lambda document: document["streams"][0]["rows"].pop(0)),
    "a repeated row": damaged(
        lambda document: document["streams"][0]["rows"].append(document["streams"][0]["rows"][-1])
    ),
    "another order": damaged(lambda document: document["streams"].reverse()),
    "a missing stream": damaged(lambda document: document["streams"].pop(0)),
    "a repeated stream": damaged(lambda document: document["streams"].append(document["streams"][0])),
    "another head": damaged(lambda document: document["thread"].update(head="0" * 64)),
    "another id": damaged(lambda document: document["thread"].update(id="mine")),
    "another tenant": damaged(lambda document: document["thread"].update(tenant="other")),
    "another name": damaged(lambda document: document["streams"][-1].update(name="default/thread/mine")),
    "other states": damaged(lambda document: document.update(states={"notes": 1})),
    "another history": damaged(lambda document: document["history"][0].update(text="Other words")),
    "another service thread": damaged(lambda document: document["service"].update(service_thread_id="resp_1")),
}


@pytest.mark.parametrize("as_new", [False, True])
@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_document_stores_nothing(
    source: Conversations, conversations: Conversations, name: str, *, as_new: bool
) -> None:
    with pytest.raises(ThreadDocumentError):
        conversations.restore_thread(DAMAGE[name](document_of(source, "branch")), as_new=as_new)
    assert positions(conversations) == 0


def test_refuses_a_damaged_document_of_100_megabytes(source: Conversations, conversations: Conversations) -> None:
    document = document_of(source, "branch")
    document["streams"][0]["rows"][1]["state"] = "A" * 100_000_000
    with pytest.raises(ThreadDocumentError, match="String should have at most"):
        conversations.restore_thread(document)
    document = document_of(source, "branch")
    document["history"][0]["text"] = "A" * 100_000_000
    with pytest.raises(ThreadDocumentError, match=r"history\[0\].text: it does not match the events"):
        conversations.restore_thread(document)
    assert positions(conversations) == 0


@pytest.mark.parametrize("on_existing", ["both", None, ["fork"]])
def test_refuses_an_unknown_value_of_on_existing(
    source: Conversations, conversations: Conversations, on_existing: Any
) -> None:
    with pytest.raises(InvalidContentError, match="is neither 'raise' nor 'fork'"):
        conversations.restore_thread(document_of(source, "branch"), on_existing=on_existing)


def test_refuses_to_serialize_a_thread_that_does_not_verify(source: Conversations) -> None:
    log: Any = source._core.log
    own_rows = log.own_rows

    def tampered(stream: str, **page: Any) -> Any:
        return [row._replace(state=b"\0" * 20) if row.version == 2 else row for row in own_rows(stream, **page)]

    log.own_rows = tampered
    with pytest.raises(CorruptEventError, match=r"Thread 'branch' cannot be serialized: it does not verify.*rows\[1\]"):
        source.thread("branch").serialize()
