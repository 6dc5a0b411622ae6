from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.domain.call_pairing import NO_RESULT, ModelView, Repair, model_view
from clew.domain.formats.openai_messages import decode
from clew.domain.history import HistoryMessage
from clew.domain.messages import Content, FunctionCall, FunctionResult, Message, Role, Text


def call(id_: str, name: str = "find") -> FunctionCall:
    return FunctionCall(call_id=id_, name=name, arguments="{}")


def result(id_: str, value: Any = "found") -> FunctionResult:
    return FunctionResult(call_id=id_, result=value)


def asks(*ids: str) -> Message:
    return Message.assistant(calls=[call(id_) for id_ in ids])


def answers(id_: str, value: Any = "found") -> Message:
    return Message.tool(id_, value)


def missing(id_: str) -> Message:
    return Message.tool(id_, NO_RESULT, name="find")


USER = Message.user("Where is my parcel?")


def placed(*messages: Message | None) -> list[HistoryMessage]:
    """Messages at versions 2, 3, 4…; None is a redacted one."""
    return [
        HistoryMessage(version, "user" if message is None else message.role, message, f"e{version}", version)
        for version, message in enumerate(messages, start=2)
    ]


def viewed(*messages: Message | None) -> ModelView:
    return model_view(placed(*messages))


def check_paired(view: ModelView) -> None:
    """Check that each call has its result directly after its message, in order, and each result has a call."""
    due: list[str] = []
    for message in view.messages:
        if message.results:
            assert len(message.results) == len(message.contents), "results stand alone"
            for result_ in message.results:
                assert due, f"a result without a call: {result_.call_id}"
                assert result_.call_id == due.pop(0)
        else:
            assert not due, f"calls without results: {due}"
        due += [asked.call_id for asked in message.calls]
    assert not due, f"calls without results: {due}"


# Single repairs


@pytest.mark.parametrize(
    "history",
    [
        [],
        [USER],
        [USER, asks("a"), answers("a"), Message.assistant("There.")],
        [asks("a", "b"), answers("a"), answers("b")],
        [asks("a", "b"), Message(role="tool", contents=(result("a"), result("b")))],
        [asks("a", "a"), answers("a", 1), answers("a", 2)],
        [asks("a"), answers("a", 1), asks("a"), answers("a", 2), USER, asks("a"), answers("a", 3)],
        [Message(role="user", contents=())],
    ],
    ids=range(8),
)
def test_a_well_formed_history_is_its_own_view(history: list[Message]) -> None:
    assert viewed(*history) == ModelView(tuple(history), ())


def test_a_call_without_a_result_gets_a_result_that_states_this() -> None:
    view = viewed(asks("a", "b"), answers("b"), USER)
    assert view.messages == (asks("a", "b"), missing("a"), answers("b"), USER)
    assert view.repairs == (Repair(2, "result-missing", "a"),)


def test_a_result_without_a_call_is_left_out() -> None:
    view = viewed(answers("a"), USER)
    assert view.messages == (USER,)
    assert view.repairs == (Repair(2, "result-without-call", "a"),)


def test_a_second_result_for_one_call_is_left_out() -> None:
    view = viewed(asks("a"), answers("a", 1), answers("a", 2))
    assert view.messages == (asks("a"), answers("a", 1))
    assert view.repairs == (Repair(4, "result-without-call", "a"),)


def test_a_late_result_is_moved_to_its_call() -> None:
    view = viewed(asks("a"), USER, answers("a"))
    assert view.messages == (asks("a"), answers("a"), USER)
    assert view.repairs == (Repair(4, "result-moved", "a"),)


def test_a_result_before_its_call_is_left_out() -> None:
    view = viewed(answers("a"), asks("a"))
    assert view.messages == (asks("a"), missing("a"))
    assert {repair.reason for repair in view.repairs} == {"result-without-call", "result-missing"}


def test_parallel_results_in_another_order_follow_their_calls_order() -> None:
    view = viewed(asks("a", "b"), answers("b"), answers("a"))
    assert view.messages == (asks("a", "b"), answers("a"), answers("b"))
    assert view.repairs == (Repair(4, "result-moved", "a"),)


def test_parallel_results_in_one_message_in_another_order_stay_one_message() -> None:
    both = Message(role="tool", contents=(result("b"), result("a")), metadata={"k": 1}, source={"openai": {}})
    view = viewed(asks("a", "b"), both)
    repaired = both.model_copy(update={"contents": (result("a"), result("b")), "source": {}})
    assert view.messages == (asks("a", "b"), repaired)
    assert view.repairs == (Repair(3, "result-moved", "a"),)


def test_recurring_call_ids_are_paired_by_order() -> None:
    view = viewed(asks("a"), answers("a", 1), asks("a"), USER, answers("a", 2))
    assert view.messages == (asks("a"), answers("a", 1), asks("a"), answers("a", 2), USER)


def test_a_result_belongs_to_the_newest_message_with_an_open_call_of_its_id() -> None:
    view = viewed(asks("a"), asks("a"), answers("a", 2), answers("a", 1))
    assert view.messages == (asks("a"), answers("a", 1), asks("a"), answers("a", 2))
    assert view.repairs == (Repair(5, "result-moved", "a"),)


def test_redacted_messages_are_left_out() -> None:
    view = viewed(USER, None, USER)
    assert view.messages == (USER, USER)
    assert view.repairs == (Repair(3, "redacted"),)


def test_the_results_of_a_redacted_caller_are_left_out() -> None:
    view = viewed(USER, None, answers("a"), answers("b"))
    assert view.messages == (USER,)
    assert [repair.reason for repair in view.repairs] == ["redacted", "result-without-call", "result-without-call"]


def test_the_call_of_a_redacted_result_gets_a_missing_result() -> None:
    view = viewed(asks("a", "b"), None, answers("b"))
    assert view.messages == (asks("a", "b"), missing("a"), answers("b"))
    assert view.repairs == (Repair(2, "result-missing", "a"), Repair(3, "redacted"))


def test_results_between_texts_become_a_tool_message() -> None:
    mixed = Message(role="user", contents=(result("a"), Text(text="And hurry.")), metadata={"k": 1}, source={"x": 1})
    view = viewed(asks("a"), mixed)
    assert view.messages == (
        asks("a"),
        Message(role="tool", contents=(result("a"),), metadata={"k": 1}),
        Message(role="user", contents=(Text(text="And hurry."),), metadata={"k": 1}),
    )
    assert view.repairs == (Repair(3, "result-moved", "a"),)


def test_a_call_with_its_result_in_the_same_message_keeps_the_result() -> None:
    whole = Message(role="assistant", contents=(call("a"), result("a"), Text(text="Found.")))
    view = viewed(whole)
    assert view.messages == (
        Message(role="assistant", contents=(call("a"), Text(text="Found."))),
        Message(role="tool", contents=(result("a"),)),
    )
    assert view.repairs == (Repair(2, "result-moved", "a"),)


def test_a_part_of_a_message_does_not_keep_the_source_of_the_whole() -> None:
    both = Message(role="tool", contents=(result("a"), result("z")), source={"openai": {"text": "secret"}})
    view = viewed(asks("a"), both)
    assert view.messages[1] == Message(role="tool", contents=(result("a"),))


def test_the_same_message_object_used_twice_stays_two_messages() -> None:
    again = answers("a")
    assert viewed(asks("a", "a"), again, again).messages == (asks("a", "a"), again, again)


def test_the_history_itself_is_not_changed() -> None:
    history = placed(asks("a"), USER, answers("a"))
    shown = repr(history)
    model_view(history)
    assert repr(history) == shown


# Properties

ids = st.sampled_from(["a", "b", "c"])
contents: st.SearchStrategy[Content] = st.one_of(
    st.builds(Text, text=st.sampled_from(["x", "y"])),
    st.builds(call, ids),
    st.builds(result, ids, st.integers(min_value=0, max_value=9)),
)
roles: st.SearchStrategy[Role] = st.sampled_from(["user", "assistant", "tool"])
any_messages = st.builds(Message, role=roles, contents=st.lists(contents, max_size=4).map(tuple))
histories = st.lists(st.none() | any_messages | st.builds(asks, ids, ids) | st.builds(answers, ids), max_size=10)


@st.composite
def well_formed(draw: st.DrawFn) -> list[Message]:
    history: list[Message] = []
    for called in draw(st.lists(st.lists(ids, max_size=3), max_size=5)):
        history.append(Message.assistant("x", calls=[call(id_) for id_ in called]))
        parts = [result(id_, number) for number, id_ in enumerate(called)]
        cuts = sorted(draw(st.sets(st.integers(min_value=1, max_value=3))) | {0, len(parts)})
        for first, last in pairwise(cuts):
            if part := parts[first:last]:
                history.append(Message(role="tool", contents=tuple(part)))
    return history


@given(histories)
def test_every_call_has_its_result_and_every_result_its_call(
    history: list[Message | None],
) -> None:
    check_paired(viewed(*history))


@given(well_formed())
def test_any_well_formed_history_is_its_own_view(history: list[Message]) -> None:
    assert viewed(*history) == ModelView(tuple(history), ())


@given(histories)
def test_a_view_without_repairs_is_the_history(history: list[Message | None]) -> None:
    view = viewed(*history)
    assert bool(view.repairs) or list(view.messages) == history


@given(histories)
def test_a_view_needs_no_more_repairs(history: list[Message | None]) -> None:
    view = viewed(*history)
    assert viewed(*view.messages) == ModelView(view.messages, ())


@given(histories)
def test_only_content_that_the_repairs_name_is_lost(history: list[Message | None]) -> None:
    view = viewed(*history)
    original = [content for message in history if message is not None for content in message.contents]
    sent = [content for message in view.messages for content in message.contents]
    for content in set(map(repr, original)):
        lost = [repr(each) for each in original].count(content) - [repr(each) for each in sent].count(content)
        assert lost >= 0
        if lost:
            assert content.startswith("FunctionResult")
            assert any(repair.reason == "result-without-call" for repair in view.repairs)
    added = [content for content in sent if repr(content) not in set(map(repr, original))]
    assert len(added) == sum(repair.reason == "result-missing" for repair in view.repairs)


def test_every_real_conversation_has_a_view_at_every_cut(corpus: list[dict[str, Any]]) -> None:
    for conversation in corpus:
        history = placed(*(decode(each, number) for number, each in enumerate(conversation["messages"], start=1)))
        for cut in range(len(history) + 1):
            check_paired(model_view(history[:cut]))
            if cut % 8 == 0:
                check_paired(model_view(history[cut:]))
