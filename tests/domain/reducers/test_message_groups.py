from __future__ import annotations

import sys

from hypothesis import given as hypothesis_given
from hypothesis import strategies as st
from tests.domain.reducers.reduced_histories import A1, ROUND, SYSTEM, U1, U2, of
from tests.domain.test_call_pairing import answers, asks, histories, missing, placed, result

from clew.domain.call_pairing import model_view
from clew.domain.history import HistoryMessage
from clew.domain.messages import Message, Text
from clew.domain.reducers.reducer import groups_of


def versions(*messages: Message | None) -> list[tuple[int, ...]]:
    return [group.versions for group in groups_of(placed(*messages)).groups]


def test_a_message_with_calls_and_their_results_are_one_group() -> None:
    assert versions(U1, *ROUND, A1) == [(2,), (3, 4, 5), (6,)]


def test_several_results_in_one_message_are_in_the_group() -> None:
    both = Message(role="tool", contents=(result("a"), result("b")))
    assert versions(asks("a", "b"), both, A1) == [(2, 3), (4,)]


def test_a_late_result_is_in_the_group_of_its_call() -> None:
    assert versions(asks("a"), U1, answers("a")) == [(2, 4), (3,)]


def test_call_ids_that_recur_are_paired_by_order() -> None:
    assert versions(asks("a"), answers("a"), asks("a"), U1, answers("a")) == [(2, 3), (4, 6), (5,)]


def test_a_message_with_results_of_two_rounds_joins_them_into_one_group() -> None:
    both = Message(role="tool", contents=(result("a"), result("b")))
    assert versions(U1, asks("a"), asks("b"), both, U2) == [(2,), (3, 4, 5), (6,)]


def test_text_next_to_a_result_joins_the_group() -> None:
    mixed = Message(role="user", contents=(result("a"), Text(text="And hurry.")))
    assert versions(asks("a"), mixed, U1) == [(2, 3), (4,)]


def test_a_call_without_a_result_forms_a_group_with_a_note() -> None:
    groups = groups_of(placed(asks("a"), U1)).groups
    assert groups[0].versions == (2,)
    assert groups[0].messages == (asks("a"), missing("a"))


def test_the_first_system_message_and_a_summary_are_separate() -> None:
    groups = groups_of(placed(U1, SYSTEM, A1, SYSTEM), summary=4)
    assert groups.system is not None
    assert groups.system.versions == (3,)
    assert groups.summary is not None
    assert groups.summary.messages == (A1,)
    assert [group.versions for group in groups.groups] == [(2,), (5,)]


def test_a_developer_message_is_a_system_message_unless_redacted() -> None:
    first = placed(SYSTEM)[0]._replace(message=None)
    developer = Message(role="developer", contents=(Text(text="Be brief."),))
    groups = groups_of([first, *(each._replace(version=each.version + 1) for each in placed(developer, SYSTEM))])
    assert groups.system is not None
    assert groups.system.versions == (3,)
    assert groups.unsaid == (2,)


def test_messages_that_are_not_sent_are_in_no_group() -> None:
    groups = groups_of(placed(U1, None, answers("z"), A1))
    assert [group.versions for group in groups.groups] == [(2,), (5,)]
    assert groups.unsaid == (3, 4)


def test_calls_with_results_in_the_run_belong_to_the_run() -> None:
    input_history = of(U1, asks("a", "b"), answers("a"), input=[answers("b"), U2])
    groups = input_history.groups()
    assert [group.versions for group in groups.groups] == [(2,)]
    assert groups.own.versions == (3, 4)
    assert groups.own.messages == (asks("a", "b"), answers("a"), answers("b"), U2)


def test_newest_includes_the_system_message_and_the_summary() -> None:
    groups = groups_of(placed(SYSTEM, None, U1, None, U2, None, A1), summary=4)
    assert groups.newest(1) == (2, 4, 8)
    assert groups.newest(1, summary=False) == (2, 8)
    assert groups.newest(0) == (2, 4)
    assert groups.newest(2) == groups.newest(9) == (2, 3, 4, 5, 6, 7, 8)
    assert groups.newest(2, summary=False) == (2, 6, 7, 8)


@hypothesis_given(histories, st.integers(min_value=0, max_value=10))
def test_groups_contain_each_message_once_and_send_the_same_messages(history: list[Message | None], cut: int) -> None:
    every = placed(*history)
    groups = groups_of(every[:cut], every[cut:])
    parts = [*groups.groups, groups.own, *filter(None, [groups.system])]
    grouped = [version for part in parts for version in part.versions] + list(groups.unsaid)
    assert sorted(grouped) == [each.version for each in every[:cut]]
    sent = [message for part in parts for message in part.messages]
    assert sorted(map(repr, sent)) == sorted(map(repr, model_view(every).messages))
    firsts = [group.versions[0] for group in groups.groups]
    assert firsts == sorted(firsts)


@hypothesis_given(histories, st.data())
def test_omitting_whole_groups_does_not_change_the_rest(history: list[Message | None], data: st.DataObject) -> None:
    every = placed(*history)
    groups = groups_of(every).groups
    omitted = {version for group in groups if data.draw(st.booleans()) for version in group.versions}
    view, rest = model_view(every), model_view([each for each in every if each.version not in omitted])
    remaining = [(at, message) for at, message in zip(view.versions, view.messages, strict=True) if at not in omitted]
    assert remaining == list(zip(rest.versions, rest.messages, strict=True))


def test_grouping_takes_linear_time() -> None:
    def steps(rounds: int) -> int:
        """Return the number of executed Python lines, a measure of the work."""
        history: list[HistoryMessage] = placed(*(U1, *ROUND, A1) * rounds)
        count = 0

        def trace(*_: object) -> object:
            nonlocal count
            count += 1
            return trace

        before = sys.gettrace()
        sys.settrace(trace)  # type: ignore[arg-type]  # any callable works
        try:
            groups_of(history)
        finally:
            sys.settrace(before)
        return count

    assert steps(600) < 10.5 * steps(60)


def test_a_long_chain_of_rounds_that_share_results_is_one_group() -> None:
    messages: list[Message] = [asks("0")]
    for number in range(1, 1500):
        messages.append(asks(str(number)))
        messages.append(Message(role="tool", contents=(result(str(number)), result(str(number - 1)))))
        messages.append(asks(str(number)))
    groups = groups_of(placed(*messages)).groups
    assert sum(len(group.versions) for group in groups) == len(messages)
