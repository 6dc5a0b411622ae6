"""Sentences for events that need more than a template. They never quote a message, a fact or a document.

Each function takes the event's stored JSON. It raises LookupError, TypeError, ValueError or AttributeError for other
data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from clew.domain.diagnostics import count
from clew.domain.event_types import quoted, shortened
from clew.domain.messages import ROLES

_Data: TypeAlias = Mapping[str, Any]

_CONTENTS = {"facts": "facts", "documents": "documents"}  # a damaged row may have any text there


def thread_started(data: _Data) -> str:
    """Started or imported a thread."""
    verb = "started" if data.get("source") is None else "imported"
    return f"{verb} the {'remote ' if data.get('kind') == 'remote' else ''}thread{_title(data)}"


def thread_forked(data: _Data) -> str:
    """Forked a thread at a version."""
    kind = "" if data.get("kind") is None else f" into a {quoted(data['kind'])} thread"
    return f"forked {quoted(data['parent_id'])} at version {data['parent_version']:d}{kind}{_title(data)}"


def thread_labelled(data: _Data) -> str:
    """Set and removed labels."""
    labels = data["labels"]
    assigned = [
        f"{quoted(name)} to {shortened(json.dumps(value))}" for name, value in labels.items() if value is not None
    ]
    removed = [quoted(name) for name, value in labels.items() if value is None]
    parts = [f"set label {', '.join(assigned)}"] if assigned else []
    parts += [f"removed label {', '.join(removed)}"] if removed else []
    return " and ".join(parts) or "set no label"


def labels_redacted(data: _Data) -> str:
    """Set or removed labels whose values are gone."""
    return f"set or removed label {', '.join(map(quoted, data['labels']))}"


def thread_deleted(data: _Data) -> str:
    """Deleted a thread, and how many threads remain at its service."""
    service: Sequence[_Data] = data.get("service", ())
    if not service:
        return "deleted the thread"
    remain = sum(each.get("failed") is not None for each in service)
    remaining = f", of which {remain:,} of {len(service):,} remain" if remain else ""
    return f"deleted the thread and its side at the service{remaining}"


def message_appended(data: _Data) -> str:
    """Appended a message: its role and its size."""
    message = data["message"]
    contents = message["contents"]
    length = sum(len(content["text"]) for content in contents if content["type"] == "text")
    parts = [count(length, "character")] if length else []
    for type_, word in (("function-call", "call"), ("function-result", "result")):
        if number := sum(content["type"] == type_ for content in contents):
            parts.append(count(number, word))
    if others := sum(content["type"] not in {"text", "function-call", "function-result"} for content in contents):
        parts.append(count(others, "other content"))
    role = ROLES[ROLES.index(message["role"])]  # a damaged row may have any text there
    return f"appended {with_article(role)} message ({', '.join(parts) or 'empty'})"


def record_appended(data: _Data) -> str:
    """Appended a record: its type and the size of its bytes."""
    base64, size = data.get("base64"), data.get("size")
    if base64 is not None:
        size = len(base64) // 4 * 3 - base64[-2:].count("=")
    with_bytes = "" if size is None else f" with {count(size, 'byte')}"
    return f"appended a record of type {quoted(data['type'])}{with_bytes}"


def context_provided(data: _Data) -> str:
    """Recorded what a context provider gave to a run."""
    instructions = data.get("instructions") or ""
    parts = [f"{count(len(instructions), 'character')} of instructions"] if instructions else []
    words = ("message", "tool", "fact", "citation")
    parts += [count(number, word) for word in words if (number := len(data.get(f"{word}s", ())))]
    reads = ", ".join(f"{quoted(each['scope'])} at version {each['version']:d}" for each in data.get("reads", ()))
    contribution = ", ".join(parts or ["nothing"]) + (f"; read {reads}" if reads else "")
    return f"recorded what {quoted(data['provider'])} gave to the run ({contribution})"


def context_failed(data: _Data) -> str:
    """Recorded that a component failed."""
    return f"recorded that {quoted(data['provider'])} failed in {quoted(data['hook'])} ({_failure(data['error'])})"


def context_state_recorded(data: _Data) -> str:
    """Recorded whether a component stores a state, or which tools need no further approval."""
    if data["provider"] == "standing-approvals" and isinstance(data.get("state"), list):
        tools = ", ".join(str(each["tool"]) for each in data["state"])
        return f"recorded the standing approvals of the thread: {tools or 'none'}"
    state = "nothing" if data.get("state") is None else "something"
    return f"recorded that {quoted(data['provider'])} keeps {state} of the thread"


def history_reduced(data: _Data) -> str:
    """Recorded what a reducer left out."""
    spans = [f"{first:d}" if first == last else f"{first:d} to {last:d}" for first, last in data.get("left_out", ())]
    verb = f"left versions {', '.join(spans)} out of" if spans else "looked at"
    parts = ["a summary in their place"] if data.get("summary") is not None else []
    parts += [f"{count(len(data['trimmed']), 'message')} trimmed"] if data.get("trimmed") else []
    parts += ["over budget"] if data.get("over_budget") else []
    details = f" ({', '.join(parts)})" if parts else ""
    return f"recorded that {quoted(data['reducer'])} {verb}{details} what {quoted(data['agent'])} is sent"


def scope_opened(data: _Data) -> str:
    """Opened a memory scope."""
    searched = f", searched by {quoted(data['embedder'])}" if data.get("embedder") is not None else ""
    return f"opened the scope for {_CONTENTS[data['holds']]}{searched}"


def fact_remembered(data: _Data) -> str:
    """Remembered a fact, without its text."""
    return f"remembered fact {quoted(data['fact'])} ({_statement(data['statement'])})"


def fact_superseded(data: _Data) -> str:
    """Replaced a fact, without its text."""
    return f"replaced fact {quoted(data['fact'])} by {quoted(data['by'])} ({_statement(data['statement'])})"


def fact_retracted(data: _Data) -> str:
    """Retracted a fact."""
    return f"retracted fact {quoted(data['fact'])}{_learned(data)}"


def document_added(data: _Data) -> str:
    """Added a document, without its text."""
    namespaces = ", ".join(quoted(each) for each in data["namespaces"])
    replaced = "" if data.get("replaces") is None else f", in place of {quoted(data['replaces'])}"
    size = count(len(data["text"]), "character")
    return f"added document {quoted(data['document'])} to {namespaces} ({size}{replaced})"


def run_started(data: _Data) -> str:
    """Started a run of an agent."""
    missing = ", ".join(quoted(each) for each in data.get("missing", ()))
    without = f", without {missing}, which was missing" if missing else ""
    return f"started a run of agent {_agent(data['agent'])}{without}"


def run_resumed(data: _Data) -> str:
    """Resumed a run of an agent."""
    return f"resumed the run of agent {_agent(data['agent'])} (attempt {data['attempt']:d})"


def run_failed(data: _Data) -> str:
    """Ended a run with an error."""
    return f"ended the run with an error ({_failure(data['error'])})"


def model_called(data: _Data) -> str:
    """Called a model."""
    attempt = f" (attempt {data['attempt']:d})" if data.get("attempt", 1) != 1 else ""
    number = len(data.get("left_out", ()))
    left_out = f", without the signed parts of {count(number, 'message')}" if number else ""
    return f"asked model {quoted(data['model'])}{attempt}{left_out}"


def model_answered(data: _Data) -> str:
    """Recorded an answer."""
    usage = data.get("usage")
    tokens = "" if usage is None else f", {usage['input_tokens']:,d} tokens in and {usage['output_tokens']:,d} out"
    by = data.get("answered_by")
    who = "the model" if by is None else f"middleware ({quoted(by)}) instead of the model"
    return f"recorded the answer of {who} (version {data['message']:d}{tokens})"


def model_failed(data: _Data) -> str:
    """Recorded that a model failed."""
    retried = "" if data.get("retry_in") is None else ", and will be asked again"
    return f"recorded that the model failed ({_failure(data['error'])}){retried}"


def answer_interrupted(data: _Data) -> str:
    """Recorded that an answer was interrupted."""
    partial = "nothing of it" if data.get("message") is None else f"version {data['message']:d} is a part of it"
    return f"recorded that the answer was interrupted ({partial})"


def tool_failed(data: _Data) -> str:
    """Recorded that a call failed."""
    call = f"the tool call of version {data['message']:d}, content {data['index']:d}"
    kind = "" if data.get("kind") is None else f", {quoted(data['kind'])}"
    return f"recorded that {call}, failed (result: version {data['result']:d}{kind})"


def tool_started(data: _Data) -> str:
    """Began to carry out a call."""
    words = f"began the tool call of version {data['message']:d}, content {data['index']:d}"
    standing = data.get("standing")
    if standing is None:
        return words
    where = f" of the thread {quoted(standing['thread_id'])}" if standing.get("thread_id") else ""
    by = standing.get("actor") or "somebody without a name"
    return f"{words} (always approved by {by}: version {standing['request']:d}{where})"


def tool_progressed(data: _Data) -> str:
    """Reported how far a call has come."""
    fraction = data.get("fraction")
    part = "" if fraction is None else f" ({fraction:.0%})"
    return f"reported the progress of the tool call of version {data['message']:d}, content {data['index']:d}{part}"


def child_thread(data: _Data) -> str:
    """Began a thread for a call."""
    call = f"the tool call of version {data['message']:d}, content {data['index']:d}"
    return f"gave {call}, the thread {quoted(data['thread_id'])}"


def handed_off(data: _Data) -> str:
    """Handed the conversation over."""
    call = f"the tool call of version {data['message']:d}, content {data['index']:d}"
    return f"handed the conversation to {_agent(data['agent'])}, by {call}"


def approval_given(data: _Data) -> str:
    """Decided about a request for approval."""
    always = ", and all later calls of this tool in the thread" if data.get("always") else ""
    return f"{'approved' if data['approved'] else 'rejected'} the request of version {data['request']:d}{always}"


def with_article(word: str) -> str:
    """A word with its indefinite article."""
    return f"an {word}" if word[0] in "aeiou" and word != "user" else f"a {word}"


def _title(data: _Data) -> str:
    title = data.get("title")
    return "" if title is None else f" {quoted(title)}"


def _agent(agent: _Data) -> str:
    return quoted(agent["id"] if agent.get("name") is None else agent["name"])


def _failure(error: _Data) -> str:
    """The class, status and code of an error, without its message, which may quote user text."""
    status = "" if error.get("status") is None else f" {error['status']:d}"
    return f"{quoted(error['kind'])}{status}" + ("" if error.get("code") is None else f" {quoted(error['code'])}")


def _learned(data: _Data) -> str:
    learned = data.get("learned")
    return "" if learned is None else f" in {quoted(learned['thread'])} at version {learned['version']:d}"


def _statement(statement: _Data) -> str:
    """The length, the key and the origin of a fact."""
    parts = [count(len(statement["text"]), "character") if statement["text"] else "a value"]
    parts += [f"key {quoted(statement['key'])}"] if statement.get("key") is not None else []
    parts += [f"learned{_learned(statement)}"] if statement.get("learned") is not None else []
    if (promoted := statement.get("promoted")) is not None:
        parts.append(f"promoted from {quoted(promoted['fact'])} of {quoted(promoted['scope'])}")
    return ", ".join(parts)
