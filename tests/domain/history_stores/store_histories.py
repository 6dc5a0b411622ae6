"""Histories for stores: calls whose results come at once, late, for another call, or never."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from clew.domain.history import HistoryMessage
from clew.domain.history_stores import StoredMessage
from clew.domain.messages import FunctionCall, Message

IDS = ("a", "b", "c")

_calls = st.lists(st.sampled_from(IDS), min_size=1, max_size=3)


def _asking(ids: Sequence[str]) -> Message:
    return Message.assistant(calls=[FunctionCall(call_id=id_, name="look", arguments="{}") for id_ in ids])


def _round(ids: Sequence[str]) -> list[Message]:
    return [_asking(ids), *(Message.tool(id_, "found") for id_ in ids)]


anything = st.lists(
    st.one_of(
        st.builds(Message.user, st.just("Look.")),
        st.builds(Message.assistant, st.just("Found.")),
        _calls.map(_asking),
        st.builds(Message.tool, st.sampled_from(IDS), st.just("found")),
    ),
    max_size=25,
)
"""Messages in any order: results before their calls, twice, or between other messages."""

rounds = st.lists(
    st.one_of(
        st.just([Message.user("Look.")]), st.just([Message.assistant("Found.")]), _calls.map(_round), _calls.map(_round)
    ),
    max_size=12,
)
"""Groups of messages as runs record them: calls with their results right after them."""


def path_of(messages: Sequence[Message | None], *, first: int = 2) -> list[HistoryMessage]:
    """Return the messages as a path with some gaps between versions; None is a redacted message."""
    return [
        HistoryMessage(first + place + place // 4, "user" if each is None else each.role, each, f"id-{place}", 0)
        for place, each in enumerate(messages)
    ]


def stored(messages: Sequence[Message], *, first: int = 0) -> list[StoredMessage]:
    """Return the messages with ids that contain their place."""
    return [StoredMessage(f"id-{place}", each) for place, each in enumerate(messages, first)]
