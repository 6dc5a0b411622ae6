from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from tests.domain.difference_strategies import history, mirrored_rows, pairs, plain_rows

from clew.domain.differences.diff import Diff, diff
from clew.domain.messages import FunctionCall, FunctionResult, Message, Text

if TYPE_CHECKING:
    from clew.domain.history import History

ASK = Message.user("Where is my parcel? I ordered it on Monday.")
ANSWER = Message.assistant("Let me look where it is.")
THANKS = Message.user("Thank you very much!")


def compared(ours: list[Message | None], theirs: list[Message | None]) -> Diff:
    return diff(history(ours, "a"), history(theirs, "b"))


def row_texts(result: Diff) -> list[tuple[str, str | None, str | None]]:
    return [
        (row.kind, None if row.a is None else row.a.text, None if row.b is None else row.b.text) for row in result.rows
    ]


def call(name: str, arguments: str, call_id: str = "1") -> Message:
    return Message.assistant(calls=[FunctionCall(call_id=call_id, name=name, arguments=arguments)])


@given(pairs())
def test_swapping_the_sides_mirrors_the_result(both: tuple[History, History]) -> None:
    a, b = both
    result, other = diff(a, b), diff(b, a)
    assert plain_rows(other.rows) == mirrored_rows(result.rows)
    assert (other.a, other.b, other.shared) == (b, a, result.shared)
    assert other.counts == (result.counts.same, result.counts.changed, result.counts.only_b, result.counts.only_a)


@given(pairs())
def test_the_rows_contain_both_histories_in_order(both: tuple[History, History]) -> None:
    a, b = both
    result = diff(a, b)
    assert tuple(row.a for row in result.rows if row.a is not None) == a.messages
    assert tuple(row.b for row in result.rows if row.b is not None) == b.messages
    assert sum(result.counts) == len(result.rows)
    for row in result.rows:
        assert (row.a is None, row.b is None) == (row.kind == "only-b", row.kind == "only-a")
        if row.kind == "changed":
            assert row.a is not None
            assert row.b is not None
            assert tuple(each.a for each in row.contents if each.a is not None) == row.a.contents
            assert tuple(each.b for each in row.contents if each.b is not None) == row.b.contents
            different = row.fields or [each for each in row.contents if each.kind != "same"]
            assert different or row.a.redacted != row.b.redacted
        else:
            assert (row.fields, row.contents) == ((), ())


@given(pairs())
def test_a_history_does_not_differ_from_itself(both: tuple[History, History]) -> None:
    for each in both:
        result = diff(each, each)
        again = diff(each, history([one.message for one in each], "again"))
        assert result.shared == len(each)
        assert {row.kind for row in (*result.rows, *again.rows)} <= {"same"}
        assert result.counts.same == again.counts.same == len(each)


def test_common_first_events_are_shared() -> None:
    ours = history([ASK, ANSWER, THANKS], "a", names=["one", "two"])
    theirs = history([ASK, ANSWER, Message.user("No.")], "b", names=["one", "two"])
    result = diff(ours, theirs)
    assert (result.shared, result.shared_version) == (2, 3)
    assert [row.kind for row in result.rows] == ["same", "same", "only-a", "only-b"]


def test_threads_without_a_common_past_are_aligned_by_their_texts() -> None:
    result = compared(
        [ASK, ANSWER, THANKS],
        [Message.user("Where is my parcel? I ordered it on Tuesday."), call("look", "{}"), ANSWER, THANKS],
    )
    assert (result.shared, result.shared_version) == (0, 0)
    assert [row.kind for row in result.rows] == ["changed", "only-b", "same", "same"]
    assert [part.text for part in result.rows[0].contents[0].fields[0].parts] == [
        "Where is my parcel? I ordered it on ",
        "Monday",
        "Tuesday",
        ".",
    ]


def test_a_message_between_equal_ones_is_placed_between_them() -> None:
    assert row_texts(compared([ASK, THANKS], [ASK, ANSWER, THANKS])) == [
        ("same", ASK.text, ASK.text),
        ("only-b", None, ANSWER.text),
        ("same", THANKS.text, THANKS.text),
    ]


def test_messages_with_little_in_common_are_not_paired() -> None:
    result = compared([Message.user("Is the green glaze safe for food?")], [Message.user("My teapot broke yesterday.")])
    assert [row.kind for row in result.rows] == ["only-a", "only-b"]


def test_calls_of_one_function_are_paired_and_their_arguments_compared() -> None:
    (row,) = compared(
        [call("refund", '{"sum": 48, "to": "card", "note": "late"}')], [call("refund", '{"to":"card", "sum":24}', "2")]
    ).rows
    (content,) = row.contents
    assert [(field.kind, field.path, field.a, field.b) for field in content.fields] == [
        ("only-a", ("arguments", "note"), "late", None),
        ("changed", ("arguments", "sum"), 48, 24),
    ]


def test_ignores_spaces_key_order_and_call_ids() -> None:
    ours = [call("refund", '{"sum": 48, "to": "card"}'), Message.tool("1", '{"ok": true}', name="refund")]
    theirs = [call("refund", '{"to":"card","sum":48}', "2"), Message.tool("2", {"ok": True}, name="refund")]
    assert compared([*ours], [*theirs]).counts.same == 2


def test_results_are_compared_as_json_or_as_text() -> None:
    (row,) = compared(
        [Message.tool("1", '{"price": 48}', name="look")], [Message.tool("1", "Error: no price", name="look")]
    ).rows
    assert [(field.path, field.a, field.b) for field in row.contents[0].fields] == [
        (("result",), {"price": 48}, "Error: no price")
    ]


def test_a_message_with_another_call_shows_both_calls() -> None:
    words = Text(text="Let me see what I can do for you there.")
    a, b = (
        Message(role="assistant", contents=(words, FunctionCall(call_id="1", name=name, arguments=arguments)))
        for name, arguments in (("look", '{"at": "sea"}'), ("book", '{"for": 2}'))
    )
    (row,) = compared([a], [b]).rows
    assert [content.kind for content in row.contents] == ["same", "only-a", "only-b"]
    renamed = a.model_copy(
        update={"contents": (words, FunctionCall(call_id="1", name="see", arguments='{"at":"sea"}'))}
    )
    (row,) = compared([a], [renamed]).rows
    assert [field.path for content in row.contents for field in content.fields] == [("name",)]


def test_shows_different_roles_authors_and_metadata() -> None:
    ours = Message.user("Where is it?", author="ann", metadata={"page": 1, "site": "a"})
    theirs = Message.user("Where is it?", author="bob", metadata={"page": 2, "site": "a"})
    (row,) = compared([ours], [theirs]).rows
    assert [field.path for field in row.fields] == [("author",), ("metadata", "page")]
    assert [content.kind for content in row.contents] == ["same"]
    (row,) = compared([Message.system("Be kind.")], [Message(role="developer", contents=(Text(text="Be kind."),))]).rows
    assert [(field.path, field.a, field.b) for field in row.fields] == [(("role",), "system", "developer")]


def test_a_redacted_message_is_compared_as_redacted() -> None:
    assert compared([ASK, None, THANKS], [ASK, None, THANKS]).counts == (3, 0, 0, 0)
    result = compared([ASK, None, ANSWER], [ASK, THANKS, ANSWER])
    assert [row.kind for row in result.rows] == ["same", "changed", "same"]
    assert [content.kind for content in result.rows[1].contents] == ["only-b"]
    assert result.rows[1].fields == ()


def test_does_not_compare_the_source_data_of_an_import() -> None:
    imported = THANKS.model_copy(update={"source": {"content": "parts"}})
    assert compared([THANKS], [imported]).counts.same == 1


def test_finds_the_place_of_a_change_in_a_long_thread() -> None:
    shared = [f"shared-{number}" for number in range(2_000)]
    past: list[Message | None] = [Message.user(f"Question {number} of many") for number in range(2_000)]
    rest: list[Message | None] = [Message.assistant(f"Answer {number} of many") for number in range(1_500)]
    changed = [*rest]
    changed[700] = Message.assistant("Answer 700 of very many")
    result = diff(history([*past, *rest], "a", names=shared), history([*past, *changed], "b", names=shared))
    assert result.shared == 2_000
    assert [number for number, row in enumerate(result.rows) if row.kind != "same"] == [2_700]
    assert result.rows[2_700].kind == "changed"


def test_long_conversations_with_little_in_common_are_aligned_coarsely() -> None:
    ours: list[Message | None] = [Message.user(f"Question about thing{number}") for number in range(0, 3_000, 2)]
    theirs: list[Message | None] = [Message.user(f"Question about thing{number}") for number in range(0, 3_000, 3)]
    result = diff(history(ours, "a"), history(theirs, "b"))
    assert result.counts.same == 500
    assert plain_rows(diff(history(theirs, "b"), history(ours, "a")).rows) == mirrored_rows(result.rows)


def test_pairs_long_messages_by_a_sample_of_their_words() -> None:
    text = " ".join(f"word{number}" for number in range(5_000))
    result = compared([Message.user("Once upon a time"), Message.user(text)], [Message.user(f"{text} and more")])
    assert [row.kind for row in result.rows] == ["only-a", "changed"]


def test_a_result_without_a_name_is_paired_by_its_words() -> None:
    ours = Message(role="tool", contents=(FunctionResult(call_id="1", result="The parcel is in Rome"),))
    theirs = Message(role="tool", contents=(FunctionResult(call_id="1", result="The parcel is in Oslo"),))
    assert [row.kind for row in compared([ours], [theirs]).rows] == ["changed"]
