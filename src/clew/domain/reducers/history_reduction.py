"""Reductions: the input of a reducer, the check of its result, and the messages of the request after it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from clew.domain.call_pairing import model_view
from clew.domain.context.events import HistoryReduced
from clew.domain.context.state import in_spans
from clew.domain.errors import InvalidContentError, ReducerError
from clew.domain.history import HistoryMessage, Spans
from clew.domain.json_values import MAX_BYTES
from clew.domain.messages import Content, FunctionResult, Media, Message, Text, check_message
from clew.domain.models.chat_requests import result_text
from clew.domain.reducers.reducer import SYSTEM_ROLES, Groups, Reducible, Reduction, groups_of

MOST_OF_SUMMARY = MAX_BYTES - 1024**2
"""The most bytes of a summary. It must fit into one event with its envelope."""

_KEPT = "Return the versions of the messages that stay."


def stands_alone(read: Sequence[HistoryMessage], unread: Spans, paired: int, began: int) -> bool:
    """Whether a request and the next reduction depend on no unread message, so that ``read`` is enough for both.

    Up to version ``paired`` a result does not need its call. ``began`` is the version before the run's own input.
    They depend on unread messages if the first system message was redacted, so that another one is the first; if no
    answer was read, so that unread messages may still wait for one; and if a newer result belongs to an unread call.
    """
    newest = unread[-1][1]
    if any(each.message is None and each.role in SYSTEM_ROLES for each in read):
        return False
    if not any(each.role == "assistant" and newest < each.version <= began for each in reversed(read)):
        return False
    if not any(each.results for each in read if each.version > paired):
        return True
    repairs = model_view(read).repairs
    return not any(each.reason == "result-without-call" and each.version > paired for each in repairs)


def is_final(result: Reduction, given: Reducible, unread: Spans) -> bool:
    """Whether a reducer that decides from the newest message on would also leave out all unread messages.

    It does if it left out a group that is newer.
    """
    kept, newest = set(result.kept), unread[-1][1]
    return any(newest < group.versions[0] and group.versions[0] not in kept for group in given.groups().groups)


def reducible(
    history: Sequence[HistoryMessage],
    previous: HistoryReduced | None,
    previous_version: int,
    input: Sequence[HistoryMessage] = (),
    instructions: str | None = None,
) -> Reducible:
    """The input of a reducer: the whole history, without the messages that an earlier summary replaces.

    ``history`` is the path without the run's own ``input``. ``previous`` is the current reduction.
    """
    if previous is None or previous.summary is None:
        return Reducible(history, input, instructions)
    own = {each.version for each in input}
    rest = [each for each in _remaining([*history, *input], previous) if each.version not in own]
    summary = summary_at(previous_version, previous.summary)
    return Reducible(with_summary(rest, summary), input, instructions, previous_version)


def reduce_history(
    result: Any,
    input_: Reducible,
    *,
    agent: str,
    reducer: str,
    previous: HistoryReduced | None,
    upto: int,
    unread: Spans = (),
) -> HistoryReduced | None:
    """The event for a reducer's ``result``, None if it equals ``previous``.

    ``input_`` is what the reducer got, ``upto`` the last version of its history. Messages in ``unread`` stay left out.
    Raises ReducerError for an invalid result, and then nothing is recorded.
    """
    reduction = checked(result, input_, reducer)
    kept = set(reduction.kept)
    remaining = kept | {input_.summary}
    left_out = [(each.version, each.version) for each in input_.history if each.version not in remaining]
    summary = reduction.summary
    if input_.summary is not None and previous is not None:
        unread = previous.left_out
        summary = previous.summary if input_.summary in kept else summary
    event = HistoryReduced(
        agent=agent,
        reducer=reducer,
        upto=upto,
        left_out=_spans([*left_out, *unread], sorted(kept - {input_.summary})),
        summary=summary,
        trimmed=tuple(sorted(reduction.trimmed.items())),
        over_budget=reduction.over_budget,
    )
    return None if _effect(event) == _effect(previous) else event


def reduced(history: Iterable[HistoryMessage], event: HistoryReduced, version: int) -> list[HistoryMessage]:
    """The messages of a request after a reduction; ``version`` is that of its event.

    The summary comes first, or after a leading system message. Messages after the reduction are complete. If a call was
    left out and its result comes after the reduction, both are sent.
    """
    lengths = dict(event.trimmed)
    rest = [
        cut(each, lengths[each.version]) if each.version in lengths else each
        for each in _remaining(list(history), event)
    ]
    return rest if event.summary is None else with_summary(rest, summary_at(version, event.summary))


def checked(result: Any, input_: Reducible, reducer: str) -> Reduction:
    """The checked result, including the messages that are always sent. Raises ReducerError for an invalid result."""
    if not isinstance(result, Reduction):
        raise ReducerError(reducer, f"returned {_described(result)} instead of a Reduction.")
    groups = input_.groups()
    kept = _checked_kept(result.kept, input_, groups, reducer)
    _check_summary(result.summary, kept, input_, reducer)
    trimmed = _checked_trimmed(result.trimmed, kept, reducer)
    if not isinstance(result.over_budget, bool):
        raise ReducerError(
            reducer, f"returned {_described(result.over_budget)} as over_budget, which must be True or False."
        )
    return Reduction(sorted(kept), result.summary, trimmed, result.over_budget)


def summary_at(version: int, summary: Message) -> HistoryMessage:
    """A summary as a message of the history, at the version of its event, 0 before it is recorded."""
    return HistoryMessage(version, summary.role, summary, "", 0)


def with_summary(history: Sequence[HistoryMessage], summary: HistoryMessage) -> list[HistoryMessage]:
    """The summary before the other messages, but after a leading system message, which services expect first."""
    place = 1 if history and history[0].role in SYSTEM_ROLES else 0
    return [*history[:place], summary, *history[place:]]


def _remaining(history: list[HistoryMessage], event: HistoryReduced) -> list[HistoryMessage]:
    """The messages that were not left out, and left-out calls whose results came later."""
    if not event.left_out:
        return history
    is_left_out = in_spans(event.left_out)
    later = [each for each in history if each.version > event.upto]
    answered: set[int] = set()
    if any(each.results for each in later):
        answered.update(groups_of((each for each in history if each.version <= event.upto), later).own.versions)
    return [each for each in history if not is_left_out(each.version) or each.version in answered]


def _checked_kept(kept: Any, input_: Reducible, groups: Groups, reducer: str) -> set[int]:
    if isinstance(kept, str | bytes) or not isinstance(kept, Iterable):
        raise ReducerError(reducer, f"returned {_described(kept)} as kept. {_KEPT}")
    versions = list(kept)
    for each in versions:
        if not isinstance(each, int) or isinstance(each, bool):
            raise ReducerError(reducer, f"keeps {_described(each)}. {_KEPT}")
    chosen = set(versions)
    if unknown := sorted(chosen - {each.version for each in input_.history}):
        raise ReducerError(reducer, f"keeps version {unknown[0]}, which is not a version of a given message.")
    if groups.system is not None and not chosen.issuperset(groups.system.versions):
        raise ReducerError(
            reducer, f"leaves out the system message at version {groups.system.versions[0]}: it must stay."
        )
    for group in groups.groups:
        if not chosen.isdisjoint(group.versions) and not chosen.issuperset(group.versions):
            raise ReducerError(
                reducer,
                f"splits versions {', '.join(map(str, group.versions))}, calls and their results: keep all of them or "
                "none. See given.groups().",
            )
    return chosen.union(groups.own.versions)


def _check_summary(summary: Any, kept: set[int], input_: Reducible, reducer: str) -> None:
    if summary is None:
        return
    if not isinstance(summary, Message):
        raise ReducerError(
            reducer, f"returned {_described(summary)} as its summary. Return a message, such as Message.user(…)."
        )
    if summary.calls or summary.results or summary.role == "tool":
        raise ReducerError(reducer, "returned a summary with a function call or result. Return only text.")
    try:
        check_message(summary)
    except InvalidContentError as error:
        raise ReducerError(reducer, f"returned a summary that cannot be stored. {error}") from error
    size = len(summary.model_dump_json().encode())
    if size > MOST_OF_SUMMARY:
        raise ReducerError(
            reducer,
            f"returned a summary of {size:,} bytes. A summary has at most {MOST_OF_SUMMARY:,}. Return a shorter one.",
        )
    if input_.summary is not None and input_.summary in kept:
        raise ReducerError(
            reducer,
            f"returned a summary and keeps the earlier one at version {input_.summary}. Only one can stay. Include "
            "the content of the earlier one in the new one, and leave its version out of kept.",
        )


def _checked_trimmed(trimmed: Any, kept: set[int], reducer: str) -> dict[int, int]:
    if not isinstance(trimmed, Mapping):
        raise ReducerError(
            reducer, f"returned {_described(trimmed)} as trimmed, which must map versions to characters."
        )
    for version, characters in trimmed.items():
        if version not in kept:
            raise ReducerError(reducer, f"trims version {version!r}, which it does not keep.")
        if not isinstance(characters, int) or isinstance(characters, bool) or characters < SHORTEST:
            raise ReducerError(
                reducer,
                f"trims version {version} to {characters!r} characters. Return a whole number of at least {SHORTEST}.",
            )
    return dict(trimmed)


def _spans(left_out: Iterable[tuple[int, int]], kept: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """The fewest spans: one for all messages that are left out between two kept messages."""
    spans: dict[int, tuple[int, int]] = {}
    for first, last in left_out:
        for gap in range(bisect_left(kept, first), bisect_right(kept, last) + 1):
            begin = max(first, kept[gap - 1] + 1) if gap else first
            end = min(last, kept[gap] - 1) if gap < len(kept) else last
            if begin <= end:
                span = spans.get(gap, (begin, end))
                spans[gap] = (min(begin, span[0]), max(end, span[1]))
    return tuple(spans[gap] for gap in sorted(spans))


def _effect(event: HistoryReduced | None) -> tuple[object, ...]:
    return ((), None, (), False) if event is None else (event.left_out, event.summary, event.trimmed, event.over_budget)


def _described(value: object) -> str:
    return "None" if value is None else f"an object of type {type(value).__name__}"


SHORTEST = 40
"""The fewest characters that a result can be cut to: enough for the note on its full length."""


def cut(item: HistoryMessage, characters: int) -> HistoryMessage:
    """The message with each of its results cut to a number of characters, including the note on the cut."""
    if item.message is None:
        return item
    contents = tuple(_cut(content, characters) for content in item.message.contents)
    if contents == item.message.contents:
        return item
    # Its source describes the uncut result.
    return item._replace(message=item.message.model_copy(update={"contents": contents, "source": {}, "native": None}))


def text_of_result(result: FunctionResult) -> str:
    """What of a result can be cut: all but its media."""
    texts = [each.text for each in result.contents if isinstance(each, Text)]
    return "\n".join(texts) if result.contents else result_text(result.result)


def _cut(content: Content, characters: int) -> Content:
    if not isinstance(content, FunctionResult):
        return content
    media = [each for each in content.contents if isinstance(each, Media)]
    text = text_of_result(content)
    if len(text) <= characters:
        return content
    note = f"… [cut: {len(text)} characters]"
    text = text[: max(0, characters - len(note))] + note
    return content.model_copy(
        update={"contents": (Text(text=text), *media)} if media else {"result": text, "contents": ()}
    )
