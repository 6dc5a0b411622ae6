"""Traces of LangSmith and Langfuse, as their exports have them: each becomes a thread.

A trace is a tree of runs (Langfuse: observations). Each run is a record with all of its JSON, in the order of their
starts. The messages of the thread are those of the model calls: of a call whose input continues the conversation so
far, the new part of its input and its output. A call with another input, such as that of a sub-agent, stays a record.
If no model call has messages, the input and the output of the trace itself are the messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from clew.domain.errors import ImportFormatError, InvalidContentError
from clew.domain.formats.conversation_import import microseconds
from clew.domain.formats.openai_messages import decode, same
from clew.domain.formats.transcripts import Entry, Node, Transcript, identifier, message, record, text_or_none
from clew.domain.json_values import Json, JsonObject, check_json
from clew.domain.messages import Message

LANGSMITH = "langsmith"
LANGFUSE = "langfuse"

_PARTS = {"runs", "observations", "trace_id", "id", "input", "output", "format"}
"""The fields of a trace that become events, or its key."""

_SESSIONS = ("session_id", "thread_id", "conversation_id")
"""The names in a run's metadata by which LangSmith groups traces to a conversation."""

_LANGCHAIN_ROLES = {
    "human": "user",
    "HumanMessage": "user",
    "ai": "assistant",
    "AIMessage": "assistant",
    "AIMessageChunk": "assistant",
    "system": "system",
    "SystemMessage": "system",
    "developer": "developer",
    "tool": "tool",
    "ToolMessage": "tool",
    "function": "tool",
    "FunctionMessage": "tool",
}

_TEXTS = ("input", "question", "query", "prompt", "text", "output", "answer", "result", "response", "content")
"""The names under which a run of no model has its text."""


@dataclass(frozen=True, slots=True)
class _Run:
    """A run: ``kind`` is its type in lower case, ``value`` its JSON without the runs below it."""

    id: str
    parent: str | None
    kind: str
    start: int | None
    end: int | None
    given: Any
    made: Any
    value: JsonObject


def is_run(value: object) -> bool:
    """Whether parsed JSON is a run of LangSmith, or an observation of Langfuse: a row of an export."""
    return trace_of(value) is not None


def trace_of(value: object) -> tuple[str, str] | None:
    """The format and the trace of a row; None for anything else."""
    match value:
        case {"run_type": str(), "id": str(id_), **rest} if "inputs" in rest or "outputs" in rest:
            return LANGSMITH, text_or_none(rest.get("trace_id")) or id_
        case {"traceId": str(trace), "id": str(), "type": str(), "startTime": _}:
            return LANGFUSE, trace
        case _:
            return None


def joined(format_: str, trace: str, rows: list[Any]) -> JsonObject:
    """The trace of rows."""
    return {"trace_id": trace, "runs": rows} if format_ == LANGSMITH else {"id": trace, "observations": rows}


def is_trace(value: object) -> bool:
    """Whether parsed JSON is a trace: of rows, or of Langfuse with its observations."""
    match value:
        case {"runs": [first, *_], "trace_id": str()}:
            return is_run(first)
        case {"observations": list(), "id": str()}:
            return True
        case {"id": str(), "timestamp": str(), **rest}:
            return {"input", "output"} <= rest.keys() and not rest.keys().isdisjoint({"sessionId", "projectId"})
        case _:
            return is_run(value) and isinstance(value, dict) and value.get("child_runs") is not None


def read_trace(value: JsonObject) -> Transcript:
    """The trace. Raises ImportFormatError, and InvalidContentError for JSON that cannot be stored."""
    check_json(value, "the trace")
    if "run_type" in value:
        value = joined(LANGSMITH, identifier(value.get("trace_id") or value.get("id"), "A run"), [value])
    is_langsmith = "runs" in value
    format_ = LANGSMITH if is_langsmith else LANGFUSE
    id_ = identifier(value.get("trace_id" if is_langsmith else "id"), "A trace")
    given: Any = value.get("runs" if is_langsmith else "observations") or []
    runs = sorted(_langsmith_runs(given) if is_langsmith else _langfuse_runs(given), key=_order)
    fields = {name: item for name, item in value.items() if name not in _PARTS}
    root = next((run for run in runs if run.parent is None), None)
    title = text_or_none(value.get("name")) or (None if root is None else text_or_none(root.value.get("name")))
    whole = (
        root
        if is_langsmith
        else _Run(id_, None, "trace", _start(value), None, value.get("input"), value.get("output"), {})
    )
    entries = list(_entries(format_, runs, whole))
    session = _session(runs) if is_langsmith else text_or_none(value.get("sessionId"))
    nodes = {
        str(number): Node(str(number), str(number - 1) if number else None, (entry,))
        for number, entry in enumerate(entries)
    }
    return Transcript(format_, id_, title, fields, nodes, labels={} if session is None else {"session": session})


def _langsmith_runs(given: Iterable[Any]) -> Iterator[_Run]:
    pending = list(given)
    while pending:
        run = pending.pop()
        if not isinstance(run, dict):
            raise ImportFormatError(f"A run is {type(run).__name__}, but it must be an object.")
        below = run.get("child_runs")
        pending += below if isinstance(below, list) else []
        value = {name: item for name, item in run.items() if name != "child_runs"}
        parent = text_or_none(run.get("parent_run_id"))
        yield _Run(
            identifier(run.get("id"), "A run"),
            parent,
            str(run.get("run_type")).lower(),
            microseconds(_utc(run.get("start_time"))),
            microseconds(_utc(run.get("end_time"))),
            run.get("inputs"),
            run.get("outputs"),
            value,
        )


def _langfuse_runs(given: Iterable[Any]) -> Iterator[_Run]:
    for each in given:
        if not isinstance(each, dict):
            raise ImportFormatError(f"An observation is {type(each).__name__}, but it must be an object.")
        yield _Run(
            identifier(each.get("id"), "An observation"),
            text_or_none(each.get("parentObservationId")),
            str(each.get("type")).lower(),
            microseconds(_utc(each.get("startTime"))),
            microseconds(_utc(each.get("endTime"))),
            each.get("input"),
            each.get("output"),
            each,
        )


def _order(run: _Run) -> tuple[int, str, str]:
    """In the order of the starts; LangSmith's dotted order tells apart runs that begin at the same time."""
    return run.start or 0, str(run.value.get("dotted_order") or ""), run.id


def _start(value: JsonObject) -> int | None:
    return microseconds(_utc(value.get("timestamp")))


def _utc(time: Json) -> Json:
    """A time without an offset is in UTC in both services."""
    has_offset = not isinstance(time, str) or time.endswith("Z") or "+" in time[10:] or "-" in time[10:]
    return time if has_offset else f"{time}+00:00"


def _session(runs: Iterable[_Run]) -> str | None:
    for run in runs:
        match run.value.get("extra"):
            case {"metadata": dict(metadata)}:
                named = (text_or_none(metadata.get(name)) for name in _SESSIONS)
                if found := next(filter(None, named), None):
                    return found
    return None


def _entries(format_: str, runs: list[_Run], whole: _Run | None) -> Iterator[Entry]:
    said: list[Json] = []
    pending: list[Entry] = []
    for run in runs:
        new: list[Message] = []
        if run.kind in {"llm", "generation"}:
            given, made = _messages(run.given), _messages(run.made, "assistant")
            values = list(map(_comparable, given))
            if len(values) >= len(said) and all(map(same, said, values)):
                new = given[len(said) :]
                pending += [message(each, run.start) for each in new]
                said = values
                pending.append(record(format_, run.kind, run.value, run.id, run.start))
                pending += [message(each, run.end) for each in made]
                said += map(_comparable, made)
                continue
        pending.append(record(format_, run.kind, run.value, run.id, run.start))
    if said or whole is None:
        yield from pending
        return
    yield from (message(each, whole.start) for each in _messages(whole.given))
    yield from pending
    yield from (message(each, whole.end or whole.start) for each in _messages(whole.made, "assistant"))


def _comparable(given: Message) -> Json:
    """What a message says. An answer has more fields in the output of its call than in the input of the next one."""
    calls: list[Json] = [[call.name, call.arguments] for call in given.calls]
    return [given.role, given.text, calls, [result.result for result in given.results]]


def _messages(value: Any, role: str = "user") -> list[Message]:
    """The messages in the input or the output of a run; none if it has another form."""
    found: list[Message] = []
    for each in _values(value, role):
        try:
            found.append(decode(each))
        except (ImportFormatError, InvalidContentError):
            return []
    return found


def _values(value: Any, role: str) -> list[Any]:
    """The messages as those of Chat Completions, from the forms of LangChain and of OpenAI's clients."""
    if isinstance(value, str):
        return _of_text(value, role)
    match value:
        case (
            {"messages": list(messages)}
            | {"input": {"messages": list(messages)}}
            | {"output": {"messages": list(messages)}}
        ):
            inner = messages[0] if len(messages) == 1 and isinstance(messages[0], list) else messages
            return [_openai(each) for each in inner]
        case {"generations": [[{"message": given}, *_], *_]} | {"generations": [{"message": given}, *_]}:
            return [_openai(given)]
        case {"generations": [[{"text": str(text)}, *_], *_]} | {"generations": [{"text": str(text)}, *_]}:
            return [{"role": role, "content": text}]
        case {"choices": [{"message": given}, *_]} | {"message": dict(given)}:
            return [_openai(given)]
        case {"role": str()} | {"lc": _, "kwargs": _} | {"type": str(), "content": _} | {"type": str(), "data": dict()}:
            return [_openai(value)]
        case [dict(), *_]:
            return [_openai(each) for each in value]
        case dict():
            texts = [value[name] for name in _TEXTS if isinstance(value.get(name), str)]
            return [{"role": role, "content": texts[0]}] if texts else []
        case _:
            return []


def _of_text(text: str, role: str) -> list[Any]:
    """The messages in a text: Langfuse may have them as JSON."""
    if text.startswith(("{", "[")):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict | list) and (found := _values(value, role)):
            return found
    return [{"role": role, "content": text}] if text else []


def _openai(given: Any) -> Any:
    """A message of LangChain in OpenAI's form; others as they are."""
    match given:
        case {"lc": _, "kwargs": dict(kwargs), "id": [*_, str(name)]}:
            return _of_langchain(kwargs, _LANGCHAIN_ROLES.get(name) or str(kwargs.get("role")))
        case {"type": str(kind), "data": dict(data)} if kind in _LANGCHAIN_ROLES:
            return _of_langchain(data, _LANGCHAIN_ROLES[kind])
        case {"type": str(kind), "content": _} if kind in _LANGCHAIN_ROLES and "role" not in given:
            return _of_langchain(given, _LANGCHAIN_ROLES[kind])
        case _:
            return given


def _of_langchain(fields: dict[str, Any], role: str) -> JsonObject:
    found: JsonObject = {"role": role, "content": fields.get("content") or None}
    if role != "assistant" or not fields.get("tool_calls"):
        found["content"] = fields.get("content")
    if isinstance(id_ := fields.get("tool_call_id"), str):
        found["tool_call_id"] = id_
    if isinstance(name := fields.get("name"), str):
        found["name"] = name
    calls = fields.get("tool_calls")
    if isinstance(calls, list) and calls:
        found["tool_calls"] = [_call(each) for each in calls]
    elif isinstance(more := fields.get("additional_kwargs"), dict) and more.get("tool_calls"):
        found["tool_calls"] = more["tool_calls"]
    return found


def _call(call: Any) -> Any:
    match call:
        case {"name": str(name), "args": arguments, "id": id_}:
            text = json.dumps(arguments, ensure_ascii=False)
            return {"id": id_, "type": "function", "function": {"name": name, "arguments": text}}
        case _:
            return call
