"""Traces of LangSmith and Langfuse, and sessions of Agent Framework."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.domain.errors import ImportFormatError, InvalidContentError
from clew.domain.events import MessageAppended, RecordAppended
from clew.domain.formats.conversation_import import Item
from clew.domain.formats.sources import read_transcript
from clew.domain.formats.traces import joined, trace_of
from clew.domain.formats.transcripts import TranscriptPath
from clew.domain.messages import FunctionCall, FunctionResult, Media, Message, Raw, Reasoning, Text

SAID = 1_717_200_000_000_000
SECOND = 1_000_000


def path(value: object) -> TranscriptPath:
    read = read_transcript(Item("export", None, value))
    assert read is not None
    return read.path()


def messages(value: object) -> list[Message]:
    return [each.event.message for each in path(value).entries if isinstance(each.event, MessageAppended)]


def spoken(value: object) -> list[tuple[str, str]]:
    return [(each.role, each.text or "".join(call.name for call in each.calls)) for each in messages(value)]


def langchain(kind: str, content: Any, **kwargs: Any) -> dict[str, Any]:
    return {
        "lc": 1,
        "type": "constructor",
        "id": ["langchain", "schema", kind],
        "kwargs": {"content": content, **kwargs},
    }


def run(id_: str, kind: str, second: int, inputs: Any = None, outputs: Any = None, **fields: Any) -> dict[str, Any]:
    times = {"start_time": f"2024-06-01T00:00:{second:02}", "end_time": f"2024-06-01T00:00:{second + 1:02}"}
    known = {"id": id_, "trace_id": "t", "run_type": kind, "name": id_, "inputs": inputs or {}, "outputs": outputs}
    return {**known, **times, "dotted_order": f"{second}.{id_}", "parent_run_id": "root", **fields}


def observation(
    id_: str, kind: str, second: int, given_: Any = None, made: Any = None, **fields: Any
) -> dict[str, Any]:
    times = {"startTime": f"2024-06-01T00:00:{second:02}.000Z", "endTime": f"2024-06-01T00:00:{second + 1:02}.000Z"}
    return {"id": id_, "traceId": "t", "type": kind, "input": given_, "output": made, **times, **fields}


CALL = {"name": "track", "args": {"n": 7}, "id": "c1"}
OPENAI_CALL = {"id": "c1", "type": "function", "function": {"name": "track", "arguments": '{"n": 7}'}}
HUMAN, AI = langchain("HumanMessage", "Where?"), langchain("AIMessage", "", tool_calls=[CALL])
TOOL, END = langchain("ToolMessage", "In Cork", tool_call_id="c1"), langchain("AIMessage", "In Cork.")
CHAT: dict[str, Any] = {"role": "user", "content": "Where?"}
TALK = [("user", "Where?"), ("assistant", "track"), ("tool", ""), ("assistant", "In Cork.")]

LANGCHAIN = joined(
    "langsmith",
    "t",
    [
        run(
            "root",
            "chain",
            0,
            {"messages": [HUMAN]},
            {"messages": [HUMAN, END]},
            parent_run_id=None,
            extra={"metadata": {"thread_id": "s"}},
        ),
        run(
            "two",
            "llm",
            5,
            {"messages": [[HUMAN, AI, TOOL]]},
            {"generations": [[{"text": "In Cork.", "message": END}]]},
        ),
        run("one", "llm", 1, {"messages": [[HUMAN]]}, {"generations": [[{"text": "", "message": AI}]]}),
        run("tool", "tool", 3, {"n": 7}, {"output": "In Cork"}),
        run(
            "other",
            "llm",
            4,
            {"messages": [[langchain("HumanMessage", "Judge it")]]},
            {"generations": [[{"text": "Good"}]]},
        ),
    ],
)
OPENAI = joined(
    "langsmith",
    "t",
    [
        run(
            "one",
            "llm",
            1,
            {"messages": [CHAT]},
            {
                "choices": [
                    {"message": {"role": "assistant", "content": None, "refusal": None, "tool_calls": [OPENAI_CALL]}}
                ]
            },
        ),
        run(
            "two",
            "llm",
            5,
            {
                "messages": [
                    CHAT,
                    {"role": "assistant", "content": "", "tool_calls": [OPENAI_CALL]},
                    {"role": "tool", "tool_call_id": "c1", "content": "In Cork"},
                ]
            },
            {"role": "assistant", "content": "In Cork."},
        ),
    ],
)
SECOND_INPUT: list[Any] = [CHAT, {"role": "assistant", "tool_calls": [OPENAI_CALL]}]
SECOND_INPUT += [{"role": "tool", "tool_call_id": "c1", "content": "In Cork"}]
LANGFUSE = {
    "id": "t",
    "timestamp": "2024-06-01T00:00:00.000Z",
    "name": "Parcels",
    "sessionId": "s",
    "input": "ignored",
    "observations": [
        observation("two", "GENERATION", 5, json.dumps(SECOND_INPUT), {"role": "assistant", "content": "In Cork."}),
        observation(
            "one",
            "GENERATION",
            1,
            {"messages": [CHAT]},
            {"role": "assistant", "content": None, "tool_calls": [OPENAI_CALL]},
        ),
        observation("tool", "SPAN", 3, {"n": 7}, "In Cork"),
    ],
}


@pytest.mark.parametrize(
    ("value", "records"),
    [
        (LANGCHAIN, ["langsmith.chain", "langsmith.llm", "langsmith.tool", "langsmith.llm", "langsmith.llm"]),
        (OPENAI, ["langsmith.llm", "langsmith.llm"]),
        (LANGFUSE, ["langfuse.generation", "langfuse.span", "langfuse.generation"]),
    ],
    ids=["LangChain", "OpenAI", "Langfuse"],
)
def test_a_trace_has_the_conversation_of_its_model_calls_and_all_runs_as_records(
    value: Any, records: list[str]
) -> None:
    assert spoken(value) == TALK
    assert messages(value)[1].calls == (FunctionCall(call_id="c1", name="track", arguments='{"n": 7}'),)
    assert messages(value)[2].contents == (FunctionResult(call_id="c1", result="In Cork"),)
    found = [each.event for each in path(value).entries if isinstance(each.event, RecordAppended)]
    assert [each.type for each in found] == records
    rows = value.get("runs") or value["observations"]
    assert sorted((each.data for each in found), key=str) == sorted(rows, key=str)  # all of each
    times = [each.said for each in path(value).entries]
    assert [time for time in times if time is None] == []
    first, last = path(value).entries[0].said, path(value).entries[-1].said
    assert (first or 0) >= SAID
    assert last == SAID + 6 * SECOND  # the end of the last call


def test_a_trace_has_its_name_its_key_and_its_session() -> None:
    for value, key, title in ((LANGCHAIN, "langsmith", "root"), (LANGFUSE, "langfuse", "Parcels")):
        start = path(value).start()
        assert (path(value).key(), start.title, start.labels) == ([key, "t"], title, {"session": "s"})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (
            run("t", "chain", 0, {"question": "Q"}, {"answer": "A"}, parent_run_id=None),
            [("user", "Q"), ("assistant", "A")],
        ),
        (run("t", "chain", 0, {"x": 1}, None, parent_run_id=None), []),
        (
            {**LANGFUSE, "observations": [], "output": {"messages": [{"type": "ai", "content": "A"}]}},
            [("user", "ignored"), ("assistant", "A")],
        ),
        (
            {
                "id": "t",
                "timestamp": "2024-06-01T00:00:00Z",
                "projectId": "p",
                "input": {"type": "human", "data": {"content": "Q"}},
                "output": None,
            },
            [("user", "Q")],
        ),
        (run("t", "llm", 0, {"prompt": "Q"}, {"generations": [[{"text": "A"}]]}), [("user", "Q"), ("assistant", "A")]),
    ],
    ids=range(5),
)
def test_a_trace_without_messages_of_a_model_has_its_own_input_and_output(value: Any, expected: Any) -> None:
    read = joined("langsmith", "t", [value]) if trace_of(value) else value
    assert spoken(read) == expected


def test_reads_runs_that_contain_their_children() -> None:
    rows: Any = LANGCHAIN["runs"]
    nested = {**rows[0], "child_runs": rows[1:]}
    assert path(nested).values == path(LANGCHAIN).values


def test_names_the_trace_of_a_row() -> None:
    assert trace_of(run("a", "llm", 0)) == ("langsmith", "t")
    assert trace_of(observation("a", "SPAN", 0)) == ("langfuse", "t")
    assert trace_of({"run_type": "llm", "id": "a"}) is None
    assert trace_of({"role": "user", "content": "Hi"}) is None


SESSION: dict[str, Any] = {
    "type": "session",
    "session_id": "s",
    "service_session_id": None,
    "state": {
        "other": {"n": 1},
        "in_memory": {
            "seen": True,
            "messages": [
                {
                    "type": "message",
                    "role": "user",
                    "contents": [
                        {"type": "text", "text": "Hi", "additional_properties": {}},
                        {"type": "data", "uri": "data:text/plain;base64,YQ==", "media_type": "text/plain"},
                    ],
                    "message_id": "m",
                },
                {
                    "type": "message",
                    "role": "assistant",
                    "author_name": "Bot",
                    "contents": [
                        {"type": "text_reasoning", "text": "Hm"},
                        {"type": "function_call", "call_id": "c", "name": "f", "arguments": {"a": 1}},
                        {"type": "usage"},
                    ],
                },
                {
                    "type": "message",
                    "role": {"value": "tool"},
                    "contents": [
                        {"type": "function_result", "call_id": "c", "result": 1},
                        {"type": "function_result", "call_id": "d", "result": None},
                    ],
                },
            ],
        },
    },
}


def test_reads_a_session_of_agent_framework() -> None:
    read = messages(SESSION)
    assert [(each.role, each.author, each.contents) for each in read] == [
        ("user", None, (Text(text="Hi"), Media(uri="data:text/plain;base64,YQ==", media_type="text/plain"))),
        (
            "assistant",
            "Bot",
            (
                Reasoning(text="Hm"),
                FunctionCall(call_id="c", name="f", arguments='{"a": 1}'),
                Raw(value={"type": "usage"}),
            ),
        ),
        ("tool", None, (FunctionResult(call_id="c", result=1),)),
        ("tool", None, (FunctionResult(call_id="d"),)),
    ]
    assert read[0].source == {"agent-framework": {"message_id": "m"}}
    start = path(SESSION).start()
    assert start.source is not None
    assert start.source.fields["state"] == {"other": {"n": 1}, "in_memory": {"seen": True}}
    older = {"service_thread_id": None, "chat_message_store_state": SESSION["state"]["in_memory"]}
    assert messages(older) == read
    assert messages({"service_thread_id": "x", "chat_message_store_state": None}) == []


@pytest.mark.parametrize("message", [5, {}, {"role": "wizard"}, {"role": {"value": 1}}])
def test_refuses_a_message_without_a_role(message: Any) -> None:
    with pytest.raises(ImportFormatError, match="message 1: it has no role"):
        path({"type": "session", "session_id": "s", "state": {"m": {"messages": [message]}}})


VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=3) | st.sampled_from(["ai", "human", "user", "llm", "function_call"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["messages", "role", "content", "type", "kwargs", "lc", "id", "generations", "message", "text"]
            )
            | st.sampled_from(
                ["choices", "tool_calls", "output", "extra", "contents", "run_type", "inputs", "metadata"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(VALUES)
def test_any_json_is_read_or_refused_with_an_error_of_clew(value: Any) -> None:
    for whole in (
        joined("langsmith", "t", [run("a", "llm", 0, value, value, extra=value)]),
        {"id": "t", "observations": [observation("a", "GENERATION", 0, value, value), value]},
        {"type": "session", "session_id": "s", "state": {"m": {"messages": [value]}, "n": value}},
    ):
        try:
            read = path(whole)
        except (ImportFormatError, InvalidContentError):
            continue
        assert len(read.values) == len(read.entries)
