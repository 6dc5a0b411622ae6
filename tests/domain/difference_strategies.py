"""Strategies for similar texts and histories, and mirrored results, for the tests of differences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st
from tests.domain.strategies import messages, texts

from clew.domain.differences.content_diff import FieldDiff
from clew.domain.differences.diff import ContentDiff, DiffRow
from clew.domain.differences.word_diff import DiffPart
from clew.domain.history import History, HistoryMessage
from clew.domain.messages import FunctionCall, Message

OTHER_SIDE = {"only-a": "only-b", "only-b": "only-a"}

words = st.sampled_from(
    ["the ", "cat ", "sat ", "on", " ", "\n", "\n\n  ", ",", "don't ", "07:30", "日", "本", "a_b", "\t"]
)
sentences = st.lists(words, max_size=12).map("".join) | texts

maybe_messages = st.one_of(
    st.builds(Message.user, sentences),
    st.builds(Message.assistant, sentences),
    st.builds(
        lambda name, place: Message.assistant(calls=[FunctionCall(call_id="1", name=name, arguments=place)]),
        st.sampled_from(["look", "book"]),
        st.sampled_from(['{"at": "sea"}', '{"at": "shore", "on": 1}', "{", "at sea"]),
    ),
    st.none(),
    messages,
)


def history(contents: Iterable[Message | None], thread_id: str = "t", *, names: Iterable[str] = ()) -> History:
    """Return a history of messages, with None for a redacted one; event ids are unique unless given."""
    listed = list(contents)
    events = [*names, *(f"{thread_id}-{number}" for number in range(len(listed)))]
    placed = tuple(
        HistoryMessage(number + 2, "user" if each is None else each.role, each, events[number], 0)
        for number, each in enumerate(listed)
    )
    return History(thread_id, len(placed) + 1, placed)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[History, History]:
    """Two histories that may share a past and have common messages after it."""
    common = draw(st.lists(maybe_messages, max_size=3))
    pool = draw(st.lists(maybe_messages, min_size=1, max_size=5))
    rest = st.lists(st.sampled_from(pool) | maybe_messages, max_size=7)
    shared = [f"shared-{number}" for number in range(len(common))]
    return (
        history([*common, *draw(rest)], "a", names=shared),
        history([*common, *draw(rest)], "b", names=shared),
    )


def mirrored_parts(parts: Iterable[DiffPart]) -> tuple[DiffPart, ...]:
    return tuple(_in_order([DiffPart(_kind(part.kind), part.text) for part in parts]))


def mirrored_fields(fields: Iterable[FieldDiff]) -> list[FieldDiff]:
    """Return the fields in a canonical order, because places in lists differ between the sides."""
    return sorted(
        (FieldDiff(_kind(each.kind), each.path, each.b, each.a, mirrored_parts(each.parts)) for each in fields),
        key=repr,
    )


def in_any_order(fields: Iterable[FieldDiff]) -> list[FieldDiff]:
    return sorted(fields, key=repr)


def mirrored_rows(rows: Iterable[DiffRow]) -> list[Any]:
    """Return the rows as seen from the other side, in the form of ``plain_rows``."""
    return plain_rows(
        _in_order(
            DiffRow(
                _kind(row.kind),
                row.b,
                row.a,
                tuple(mirrored_fields(row.fields)),
                tuple(
                    _in_order(
                        ContentDiff(_kind(each.kind), each.b, each.a, tuple(mirrored_fields(each.fields)))
                        for each in row.contents
                    )
                ),
            )
            for row in rows
        )
    )


def plain_rows(rows: Iterable[DiffRow]) -> list[Any]:
    return [
        (
            row.kind,
            row.a,
            row.b,
            in_any_order(row.fields),
            [(each.kind, each.a, each.b, in_any_order(each.fields)) for each in row.contents],
        )
        for row in rows
    ]


def _kind(kind: str) -> Any:
    return OTHER_SIDE.get(kind, kind)


def _in_order(diffs: Iterable[Any]) -> list[Any]:
    """Sort items only in a before items only in b between two common items."""
    done: list[Any] = []
    waiting: list[Any] = []
    for each in diffs:
        if each.kind in OTHER_SIDE:
            waiting.append(each)
            continue
        done += [*sorted(waiting, key=lambda one: one.kind), each]
        waiting = []
    return [*done, *sorted(waiting, key=lambda one: one.kind)]
