"""Stored events of every released version. All later versions can read them.

``python -m tests.infrastructure.test_golden_events`` adds a line for each sample below that does not have one.
Existing lines never change.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import pytest
from tests.domain.strategies import CONTENT_TYPES

from clew.domain.context.events import (
    ContextFailed,
    ContextProvided,
    ContextStateRecorded,
    HistoryReduced,
)
from clew.domain.events import (
    EVENT_TYPES,
    MESSAGE_APPENDED,
    TYPE_NAMES,
    AnyEvent,
    CheckpointMade,
    Event,
    HistoryRewound,
    MessageAppended,
    MessageRedacted,
    Opaque,
    RecordAppended,
    ServiceDeletion,
    Shredded,
    Source,
    StateClaimed,
    ThreadDeleted,
    ThreadEnded,
    ThreadForked,
    ThreadLabelled,
    ThreadResumed,
    ThreadStarted,
    ThreadSuspended,
)
from clew.domain.memory.events import (
    DocumentAdded,
    DocumentRemoved,
    FactReference,
    FactRemembered,
    FactRetracted,
    FactSuperseded,
    Provenance,
    ScopeOpened,
    ScopeRead,
    Statement,
)
from clew.domain.messages import (
    ApprovalRequest,
    ApprovalResponse,
    Content,
    FunctionCall,
    FunctionResult,
    Media,
    Message,
    Raw,
    Reasoning,
    Text,
)
from clew.domain.models.client import ServiceReference, TokenUsage
from clew.domain.runs.events import (
    AgentIdentity,
    AnswerInterrupted,
    ApprovalGiven,
    ApprovalRequested,
    Failure,
    Fingerprint,
    ModelAnswered,
    ModelCalled,
    ModelFailed,
    RunAbandoned,
    RunCompleted,
    RunFailed,
    RunResumed,
    RunStarted,
    ServiceCall,
    ServiceThreadBound,
    ToolFailed,
    ToolFinished,
    ToolStarted,
)
from clew.infrastructure.clock import SALT_BYTES
from clew.infrastructure.envelope import decode, encode, stub

GOLDEN = Path(__file__).parent.parent / "golden" / "events-0.1.jsonl"

_CALL = FunctionCall(call_id="call_1", name="find_order", arguments='{"id": "W-1"}')
_ODD: Any = {"_type_": None, "": [{}, [], -0.0, 1e308, 5e-324, 123456789012345678901234567890], "ü🧶": True}
_AGENT = AgentIdentity(id="joker", name="Jöker", type="ReviewAgent")
_FINGERPRINT = Fingerprint(
    client="openai-chat", instructions="ab" * 32, tools=("cd" * 32, "ef" * 32), response_format="01" * 32
)
_SOURCE_FACT = FactReference(scope="user/ü", fact="f1", version=2)
_STATEMENT = Statement(
    text="Caoimhe prefers kilometres 🧶",
    key="units",
    kind="preference",
    metadata=_ODD,
    valid_from=1_760_000_000_000_000,
    valid_to=1_770_000_000_000_000,
    learned=Provenance(thread="ü/x", version=4),
    promoted=_SOURCE_FACT,
)
_FAILURE = Failure(kind="ModelOverloadedError", message="Too many requests", status=429, code="rate_limit")


def _message(*contents: Content, **fields: Any) -> MessageAppended:
    return MessageAppended(message=Message(**{"role": "assistant", **fields, "contents": contents}))


SAMPLES: dict[str, AnyEvent | Shredded] = {
    "started-empty": ThreadStarted(),
    "started": ThreadStarted(
        title="Grüße 🧶", labels={"topic": "refund"}, metadata=_ODD, source=Source(id=["a", 1], fields=_ODD)
    ),
    "forked-empty": ThreadForked(parent_id="a", parent_version=3, parent_hash="ab" * 32),
    "forked": ThreadForked(parent_id="ü/x", parent_version=3, parent_hash="ab" * 32, title="What if"),
    "labelled": ThreadLabelled(labels={"set": _ODD, "removed": None}),
    "message-empty": _message(),
    "message": _message(Text(text="Hello\n\x00 🧶"), role="user", author="ann", metadata=_ODD, source={"openai": _ODD}),
    "text": _message(Text(text=""), role="system"),
    "reasoning": _message(Reasoning(text="hm"), Reasoning(text="", data=_ODD)),
    "media": _message(
        Media(uri="data:,x"), Media(uri="https://example.org/a.png", media_type="image/png"), role="user"
    ),
    "function-call": _message(_CALL, _CALL),
    "function-result": _message(
        FunctionResult(call_id="call_1"), FunctionResult(call_id="", name="find_order", result=_ODD), role="tool"
    ),
    "approval-request": _message(
        ApprovalRequest(approval_id="1", call=_CALL), ApprovalRequest(approval_id="2", call=_CALL, reason="amount")
    ),
    "approval-response": _message(
        ApprovalResponse(approval_id="1", approved=True),
        ApprovalResponse(approval_id="2", approved=False, reason="too much"),
        role="developer",
    ),
    "raw": _message(Raw(), Raw(value=_ODD)),
    "redacted": MessageRedacted(version=2, digest="cd" * 32, stub="\x02{}", reason="asked"),
    "rewound": HistoryRewound(to=2),
    "rewound-remote": HistoryRewound(to=2, service_thread_id="resp_1"),
    "checkpoint": CheckpointMade(name="before refund", at=2),
    "suspended": ThreadSuspended(reason="waiting"),
    "resumed": ThreadResumed(),
    "ended": ThreadEnded(reason="solved"),
    "deleted": ThreadDeleted(reason="wish"),
    "shredded": Shredded("user"),
    "started-remote": ThreadStarted(kind="remote"),
    "forked-local": ThreadForked(parent_id="a", parent_version=3, parent_hash="ab" * 32, kind="local"),
    "deleted-at-the-service": ThreadDeleted(
        service=(ServiceDeletion(id="resp_1"), ServiceDeletion(id="resp_2", failed="404"))
    ),
    "run-started-empty": RunStarted(agent=AgentIdentity(id="ü"), fingerprint=Fingerprint(client="scripted")),
    "run-started": RunStarted(agent=_AGENT, fingerprint=_FINGERPRINT),
    "run-resumed": RunResumed(attempt=2, agent=_AGENT, fingerprint=_FINGERPRINT),
    "model-called-empty": ModelCalled(
        definitions=2, client="openai-chat", wire="openai-chat", model="m", digest="ab" * 32
    ),
    "model-called": ModelCalled(
        definitions=2,
        client="openai-responses",
        wire="openai-responses",
        model="m",
        options=_ODD,
        digest="ab" * 32,
        service=ServiceCall(reference=ServiceReference(kind="response", id="resp_1"), sent=5, answer=6),
        streamed=True,
        attempt=3,
    ),
    "model-called-with-changes": ModelCalled(
        definitions=2,
        client="openai-chat",
        wire="openai-chat",
        model="m-1",
        digest="ab" * 32,
        as_sent="cd" * 32,
        changes=1,
    ),
    "model-called-first-at-the-service": ModelCalled(
        definitions=2, client="c", wire="openai-responses", model="m", digest="ab" * 32, service=ServiceCall()
    ),
    "model-answered-empty": ModelAnswered(call=3, message=2, ms=0),
    "model-answered": ModelAnswered(
        call=3,
        message=2,
        finish_reason="stop",
        usage=TokenUsage(input_tokens=120, output_tokens=45, cached_tokens=7, reasoning_tokens=9),
        model="m-2026",
        response_id="resp_1",
        first_ms=210,
        ms=830,
    ),
    "model-failed-empty": ModelFailed(call=3, error=Failure(kind="ModelError"), ms=1),
    "model-failed": ModelFailed(call=3, error=_FAILURE, retry_in=0.5, ms=1),
    "answer-interrupted-empty": AnswerInterrupted(call=3, reason="crashed"),
    "answer-interrupted": AnswerInterrupted(call=3, message=2, reason="fault", error=_FAILURE),
    "tool-started": ToolStarted(message=2, index=1),
    "tool-finished": ToolFinished(message=2, index=1, result=3, ms=12),
    "tool-failed-empty": ToolFailed(message=2, index=0, result=3, reason="rejected"),
    "tool-failed": ToolFailed(message=2, index=1, result=3, reason="raised", kind="ValueError", ms=12),
    "approval-requested": ApprovalRequested(message=2, index=1, reason="approval"),
    "approval-requested-unknown": ApprovalRequested(message=2, index=1, reason="outcome-unknown"),
    "approval-given-empty": ApprovalGiven(request=3, approved=True),
    "approval-given": ApprovalGiven(request=3, approved=False, reason="too much"),
    "run-completed-empty": RunCompleted(),
    "run-completed": RunCompleted(finish_reason="stop"),
    "run-failed": RunFailed(error=_FAILURE),
    "run-abandoned": RunAbandoned(reason="cancelled"),
    "bound-to-a-response": ServiceThreadBound(id="resp_1", kind="response"),
    "bound-to-a-conversation": ServiceThreadBound(id="conv_1", kind="conversation"),
    "forked-as-of": ThreadForked(parent_id="a", parent_version=3, parent_hash="ab" * 32, memory="as-of"),
    "run-started-with-providers": RunStarted(
        agent=_AGENT,
        fingerprint=Fingerprint(client="scripted", providers=("whiteboard",), reducer="keep-last(2)"),
        providers=("preferences", "user-facts"),
        run_providers=("text-retrieval",),
        missing=("lessons",),
    ),
    "context-provided-empty": ContextProvided(provider="preferences"),
    "context-provided": ContextProvided(
        provider="user-facts",
        instructions="Known: Jö",
        messages=(Message.user("Caoimhe"),),
        before=5,
        tools=("ab" * 32,),
        reads=(ScopeRead(scope="user/ü", version=7),),
        facts=(_SOURCE_FACT,),
        citations=({"source_name": "Report", "deep": _ODD},),
    ),
    "context-failed-empty": ContextFailed(provider="mem0", hook="invoking", error=Failure(kind="TimeoutError")),
    "context-failed": ContextFailed(provider="mem0", hook="on_thread_ended", error=_FAILURE),
    "context-state-recorded-empty": ContextStateRecorded(provider="preferences"),
    "context-state-recorded": ContextStateRecorded(provider="preferences", state=_ODD, seen=5),
    "history-reduced-empty": HistoryReduced(agent="joker", reducer="keep-last(2)", upto=0),
    "history-reduced": HistoryReduced(
        agent="joker",
        reducer="summarise(20)",
        upto=12,
        left_out=((2, 5), (8, 8)),
        summary=Message.system("They joked."),
        trimmed=((9, 200),),
        over_budget=True,
    ),
    "scope-opened-empty": ScopeOpened(holds="facts"),
    "scope-opened": ScopeOpened(holds="documents", embedder="text-embedding-3-small", dimensions=1536),
    "fact-remembered-empty": FactRemembered(fact="f1", statement=Statement(text="")),
    "fact-remembered": FactRemembered(fact="f1", statement=_STATEMENT),
    "fact-put": FactRemembered(fact="f1", statement=Statement(text="", key="ü", value=_ODD)),
    "fact-superseded-empty": FactSuperseded(fact="f1", by="f2", statement=Statement(text="miles")),
    "fact-superseded": FactSuperseded(fact="f1", by="f2", statement=_STATEMENT),
    "fact-retracted-empty": FactRetracted(fact="f2"),
    "fact-retracted": FactRetracted(fact="f2", reason="moved", valid_to=1_765_000_000_000_000),
    "fact-retracted-in-a-thread": FactRetracted(fact="f2", learned=Provenance(thread="ü/x", version=4)),
    "document-added-empty": DocumentAdded(document="d1", text="", namespaces=("group/g1",)),
    "document-added": DocumentAdded(
        document="d2",
        text="The results of 2023 🧶",
        namespaces=("group/g1", "group/ü"),
        source_name="Report",
        source_link="https://example.org/2023.pdf",
        metadata=_ODD,
        replaces="d1",
    ),
    "document-removed-empty": DocumentRemoved(document="d2"),
    "document-removed": DocumentRemoved(document="d2", reason="outdated"),
    "state-claimed": StateClaimed(provider="history-store", thread_id="ü/x"),
    "record-empty": RecordAppended(type="state"),
    "record": RecordAppended(type="Zustand ü", data=_ODD, key="k 🧶", base64="AP8="),
    "shredded-record": Shredded(None, "Zustand ü"),
    "said-earlier": _message(Text(text="Hello"), role="user"),
    "short-question-empty": _message(Text(text="ü"), role="user"),
    "short-answer": _message(Text(text='Zwölf "m²" ,"u":"'), role="assistant"),
    "record-with-bytes-next-to-it": RecordAppended(type="state", size=5_000, digest="ab" * 32),
}


def _lines() -> list[dict[str, Any]]:
    return [json.loads(line) for line in GOLDEN.read_text(encoding="utf-8").splitlines()]


def _reads_as(event: Event) -> dict[str, Any]:
    """An event as plain JSON, as golden lines describe it."""
    if isinstance(event.data, Shredded):
        data: Any = {"shredded": event.data.role or event.data.record}
    elif isinstance(event.data, Opaque):
        data = {"opaque": True}
    else:
        data = event.data.model_dump(mode="json")
    fields = ("event_id", "recorded_at", "messages", "actor", "run_id", "cause", "subject", "metadata")
    said = {} if event.said is None else {"said": event.said, "on_behalf_of": event.on_behalf_of}
    return {**{name: getattr(event, name) for name in fields}, **said, "data": data}


def _encode(name: str, data: AnyEvent | Shredded) -> tuple[str, bytes]:
    full = not name.endswith("-empty")
    stored: AnyEvent
    if isinstance(data, Shredded):
        stored = RecordAppended(type=data.record) if data.record else _message(Text(text="gone"), role=data.role)
    else:
        stored = data
    event = Event(
        "default/thread/golden",
        4,
        TYPE_NAMES[type(stored)],
        "0199f0a0c0de7000800000000000beef",
        1_760_000_000_000_000,
        3,
        stored,
        *(("user:ü", "run-1", "cause-1", "subject-1", _ODD) if full else ()),
    )
    if name.startswith("short-"):
        event = event._replace(event_id="0199c82cc0007000800000000000beef")
    if name == "said-earlier":
        event = event._replace(said=1_600_000_000_000_001, on_behalf_of="user:ä")
    return event.type, stub(event) if isinstance(data, Shredded) else encode(event)


# Other types take the sample of their declaration.
SAMPLES |= {
    name: declared.model(**declared.sample)  # type: ignore[misc]  # the fields of this model
    for name, declared in EVENT_TYPES.items()
    if declared.model not in {type(data) for data in SAMPLES.values()}
}


def _schema(line: dict[str, Any]) -> int:
    state = b64decode(line["state"])
    return 0 if state[0] else json.loads(state[1 + SALT_BYTES :]).get("v", 1)


def _missing(lines: list[dict[str, Any]]) -> dict[str, tuple[str, bytes]]:
    """The samples without a line for their current schema version."""
    existing = {(line["sample"], _schema(line)) for line in lines}
    missing = {}
    for name, data in SAMPLES.items():
        type_, state = _encode(name, data)
        if (name, EVENT_TYPES[type_].schema_version if state[0] == 0 else 0) not in existing:
            missing[name] = (type_, state)
    return missing


def add_missing() -> int:
    """Add a line for each sample without one. Returns the number of added lines."""
    missing = _missing(_lines() if GOLDEN.exists() else [])
    with GOLDEN.open("a", encoding="utf-8") as file:
        for name, (type_, state) in missing.items():
            reads_as = _reads_as(decode("default/thread/golden", 4, type_, state))
            line = {"sample": name, "type": type_, "state": b64encode(state).decode(), "reads_as": reads_as}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    return len(missing)


def test_every_golden_event_reads_the_same_as_before() -> None:
    lines = _lines()
    assert len(lines) >= len(SAMPLES)
    for line in lines:
        event = decode("default/thread/golden", 4, line["type"], b64decode(line["state"]))
        assert not isinstance(event.data, Opaque), line["sample"]
        assert json.dumps(_reads_as(event)) == json.dumps(line["reads_as"]), line["sample"]


def test_every_event_type_and_every_content_type_has_a_golden_line() -> None:
    lines = _lines()
    assert {(line["type"], _schema(line)) for line in lines if _schema(line)} >= {
        (type_, declared.schema_version) for type_, declared in EVENT_TYPES.items()
    }
    messages = [line["reads_as"]["data"] for line in lines if line["type"] == MESSAGE_APPENDED]
    contents = {content["type"] for each in messages if "message" in each for content in each["message"]["contents"]}
    assert contents == {kind.model_fields["type"].default for kind in CONTENT_TYPES}
    assert not _missing(lines), "run python -m tests.infrastructure.test_golden_events"


@pytest.mark.parametrize("name", [name for name, data in SAMPLES.items() if not isinstance(data, Shredded)])
def test_a_sample_encodes_to_its_golden_line_except_for_the_salt(name: str) -> None:
    type_, state = _encode(name, SAMPLES[name])
    line = next(each for each in reversed(_lines()) if each["sample"] == name)
    assert line["type"] == type_
    assert b64decode(line["state"])[1 + SALT_BYTES :] == state[1 + SALT_BYTES :]


if __name__ == "__main__":
    add_missing()
