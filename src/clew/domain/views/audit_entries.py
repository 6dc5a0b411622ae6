"""What an audit trail says of an event: one plain sentence, and why it happened if that was said."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from clew.domain.events import EVENT_TYPES
from clew.domain.messages import ROLES
from clew.domain.projection import Recorded, Unreadable

LONGEST = 60
"""Characters of a title, a name or a value within a sentence."""

_PLAIN: Mapping[str, str] = {
    "thread-suspended": "suspended the thread",
    "thread-resumed": "resumed the thread",
    "thread-ended": "ended the thread",
    "run-completed": "completed the run",
    "run-abandoned": "gave up the run",
}


def what(event: Recorded | Unreadable) -> str:
    """What was done, in a few words that never hold what a message says. Names come quoted, in printable characters."""
    if isinstance(event, Unreadable):
        return f"recorded {_named(event.type)}, which cannot be read: verify says what is wrong with it"
    if event.type == "message-appended" and event.redacted:
        return f"appended {_a(event.role or 'message')}{' message' if event.role else ''} (redacted since)"
    if event.type not in EVENT_TYPES or event.data is None:
        return f"recorded {_named(event.type)}, which this Clew does not know"
    try:
        return _done(event.type, event.data)
    except (LookupError, TypeError, ValueError, AttributeError):  # JSON, but not of this event: the row was changed
        return f"recorded {_named(event.type)}, which cannot be read: verify says what is wrong with it"


def why(event: Recorded | Unreadable) -> str | None:
    """The reason that was given."""
    data = None if isinstance(event, Unreadable) else event.data
    reason = None if data is None else data.get("reason")
    return reason if isinstance(reason, str) else None


def _done(type_: str, data: Mapping[str, Any]) -> str:
    match type_:
        case "thread-started":
            begun = "started" if data.get("source") is None else "imported"
            return f"{begun} the {'remote ' if data.get('kind') == 'remote' else ''}thread{_titled(data)}"
        case "thread-forked":
            kind = "" if data.get("kind") is None else f" into a {_named(data['kind'])} thread"
            return f"forked {_named(data['parent_id'])} at version {data['parent_version']:d}{kind}{_titled(data)}"
        case "thread-deleted":
            return f"deleted the thread{_deleted(data.get('service', ()))}"
        case "service-thread-bound":
            return f"bound the thread to {_named(data['kind'])} {_named(data['id'])} of the service"
        case "thread-labelled":
            return _labelled(data["labels"])
        case "message-appended":
            return _appended(data["message"])
        case "message-redacted":
            return f"redacted version {data['version']:d}"
        case "history-rewound":
            return f"rewound to version {data['to']:d}"
        case "checkpoint-made":
            return f"made checkpoint {_named(data['name'])} at version {data['at']:d}"
        case _:
            return _PLAIN.get(type_) or _of_context(type_, data) or _of_memory(type_, data) or _of_a_run(type_, data)


def _of_context(type_: str, data: Mapping[str, Any]) -> str | None:
    """What components did in a thread; None for other events."""
    match type_:
        case "context-provided":
            return f"recorded what {_named(data['provider'])} gave to the run ({_given(data)})"
        case "context-failed":
            failed = f"{_named(data['provider'])} failed in {_named(data['hook'])}"
            return f"recorded that {failed} ({_failure(data['error'])})"
        case "context-state-recorded":
            kept = "nothing" if data.get("state") is None else "something"
            return f"recorded that {_named(data['provider'])} keeps {kept} of the thread"
        case "history-reduced":
            return f"recorded that {_named(data['reducer'])} {_reduced(data)} what {_named(data['agent'])} is sent"
        case _:
            return None


def _of_memory(type_: str, data: Mapping[str, Any]) -> str | None:
    """What happened in a scope, without the words of facts and documents; None for other events."""
    match type_:
        case "scope-opened":
            searched = f", searched by {_named(data['embedder'])}" if data.get("embedder") is not None else ""
            return f"opened the scope for {_short(data['holds'])}{searched}"
        case "fact-remembered":
            return f"remembered fact {_named(data['fact'])} ({_stated(data['statement'])})"
        case "fact-superseded":
            return f"replaced fact {_named(data['fact'])} by {_named(data['by'])} ({_stated(data['statement'])})"
        case "fact-retracted":
            return f"took back fact {_named(data['fact'])}{_learned(data)}"
        case "document-added":
            where = ", ".join(_named(each) for each in data["namespaces"])
            instead = "" if data.get("replaces") is None else f", in place of {_named(data['replaces'])}"
            long = _count(len(data["text"]), "character")
            return f"added document {_named(data['document'])} to {where} ({long}{instead})"
        case "document-removed":
            return f"removed document {_named(data['document'])}"
        case "state-claimed":
            return f"recorded that a state of {_named(data['provider'])} is of {_named(data['thread_id'])}"
        case _:
            return None


def _given(data: Mapping[str, Any]) -> str:
    instructions = data.get("instructions") or ""
    held = [f"{_count(len(instructions), 'character')} of instructions"] if instructions else []
    parts = ("message", "tool", "fact", "citation")
    held += [_count(number, each) for each in parts if (number := len(data.get(f"{each}s", ())))]
    reads = ", ".join(f"{_named(each['scope'])} at version {each['version']:d}" for each in data.get("reads", ()))
    return ", ".join(held or ["nothing"]) + (f"; read {reads}" if reads else "")


def _reduced(data: Mapping[str, Any]) -> str:
    spans = [f"{first:d}" if first == last else f"{first:d} to {last:d}" for first, last in data.get("left_out", ())]
    left = f"left versions {', '.join(spans)} out of" if spans else "looked at"
    told = ["a summary in their place"] if data.get("summary") is not None else []
    told += [f"{_count(len(data['trimmed']), 'message')} trimmed"] if data.get("trimmed") else []
    told += ["over budget"] if data.get("over_budget") else []
    return f"{left} ({', '.join(told)})" if told else left


def _learned(data: Mapping[str, Any]) -> str:
    learned = data.get("learned")
    return "" if learned is None else f" in {_named(learned['thread'])} at version {learned['version']:d}"


def _stated(statement: Mapping[str, Any]) -> str:
    """How much a fact says, what it is about, and where it comes from."""
    said = [_count(len(statement["text"]), "character")]
    said += [f"key {_named(statement['key'])}"] if statement.get("key") is not None else []
    said += [f"learned{_learned(statement)}"] if statement.get("learned") is not None else []
    if (promoted := statement.get("promoted")) is not None:
        said.append(f"promoted from {_named(promoted['fact'])} of {_named(promoted['scope'])}")
    return ", ".join(said)


def _of_a_run(type_: str, data: Mapping[str, Any]) -> str:
    match type_:
        case "run-started":
            missing = ", ".join(_named(each) for each in data.get("missing", ()))
            without = f", without {missing}, which nobody supplied" if missing else ""
            return f"started a run of agent {_agent(data['agent'])}{without}"
        case "run-resumed":
            return f"took up the run of agent {_agent(data['agent'])} again (attempt {data['attempt']:d})"
        case "run-failed":
            return f"ended the run with an error ({_failure(data['error'])})"
        case "model-called":
            again = f" (attempt {data['attempt']:d})" if data.get("attempt", 1) != 1 else ""
            return f"asked model {_named(data['model'])}{again}"
        case "model-answered":
            return f"recorded the answer of the model (version {data['message']:d}{_tokens(data.get('usage'))})"
        case "model-failed":
            again = "" if data.get("retry_in") is None else ", to be asked again"
            return f"recorded that the model failed ({_failure(data['error'])}){again}"
        case "answer-interrupted":
            kept = "nothing of it" if data.get("message") is None else f"version {data['message']:d} is a part of it"
            return f"recorded that the answer was interrupted ({kept})"
        case "approval-given":
            return f"{'approved' if data['approved'] else 'rejected'} the request of version {data['request']:d}"
        case _:
            return _of_a_tool(type_, f"the tool call of version {data['message']:d}, content {data['index']:d}", data)


def _of_a_tool(type_: str, call: str, data: Mapping[str, Any]) -> str:
    match type_:
        case "tool-started":
            return f"began {call}"
        case "tool-finished":
            return f"finished {call} (result: version {data['result']:d})"
        case "tool-failed":
            kind = "" if data.get("kind") is None else f", {_named(data['kind'])}"
            return f"recorded that nothing came of {call} (told: version {data['result']:d}{kind})"
        case "approval-requested":
            return f"asked for approval of {call}"
        case _:
            raise LookupError(type_)


def _agent(agent: Mapping[str, Any]) -> str:
    return _named(agent["id"] if agent.get("name") is None else agent["name"])


def _failure(error: Mapping[str, Any]) -> str:
    """The class of an error and what the service called it, without its words: they may quote a message."""
    status = "" if error.get("status") is None else f" {error['status']:d}"
    return f"{_named(error['kind'])}{status}" + ("" if error.get("code") is None else f" {_named(error['code'])}")


def _tokens(usage: Mapping[str, Any] | None) -> str:
    if usage is None:
        return ""
    return f", {usage['input_tokens']:,d} tokens in and {usage['output_tokens']:,d} out"


def _deleted(service: Sequence[Mapping[str, Any]]) -> str:
    if not service:
        return ""
    remain = sum(each.get("failed") is not None for each in service)
    return " and its side at the service" + (f", of which {remain:,} of {len(service):,} remain" if remain else "")


def _appended(message: Mapping[str, Any]) -> str:
    contents = message["contents"]
    length = sum(len(content["text"]) for content in contents if content["type"] == "text")
    held = [_count(length, "character")] if length else []
    for type_, word in (("function-call", "call"), ("function-result", "result")):
        if number := sum(content["type"] == type_ for content in contents):
            held.append(_count(number, word))
    if others := sum(content["type"] not in {"text", "function-call", "function-result"} for content in contents):
        held.append(_count(others, "other content"))
    role = ROLES[ROLES.index(message["role"])]  # any other was put there by somebody else
    return f"appended {_a(role)} message ({', '.join(held) or 'empty'})"


def _labelled(labels: Mapping[str, Any]) -> str:
    given = [f"{_named(name)} to {_short(json.dumps(value))}" for name, value in labels.items() if value is not None]
    gone = [_named(name) for name, value in labels.items() if value is None]
    said = [f"set label {', '.join(given)}"] if given else []
    said += [f"removed label {', '.join(gone)}"] if gone else []
    return " and ".join(said) or "set no label"


def _titled(data: Mapping[str, Any]) -> str:
    title = data.get("title")
    return "" if title is None else f" {_named(title)}"


def _named(text: str) -> str:
    return repr(_short(text))


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _a(word: str) -> str:
    return f"an {word}" if word[0] in "aeiou" and word != "user" else f"a {word}"


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"
