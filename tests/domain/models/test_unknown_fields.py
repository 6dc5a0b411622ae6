"""A field that Clew does not know is on the log, wherever in an answer it is, whole or streamed."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.domain.models.provider_formats import BedrockFormat, GeminiFormat, InteractionsFormat, ProviderFormat
from tests.domain.models.provider_values import extended
from tests.domain.models.test_provider_round_trips import made

each_format = pytest.mark.parametrize(
    "kind", [BedrockFormat, GeminiFormat, InteractionsFormat], ids=lambda kind: kind.name
)


def check(provider: ProviderFormat, reply: Any) -> None:
    """Nothing of a reply with new fields is lost, and those of the answer itself go back."""
    numbers = count()
    future = extended(reply, numbers)
    answer = provider.logged(provider.whole(future))
    check_complete(answer.message.model_dump_json(), next(numbers))
    assert provider.sent(provider.next_body(answer)) == provider.wanted(future)
    if (events := provider.events(reply)) is not None:
        numbers = count()
        answer = provider.logged(provider.streamed(provider.extended_events(events, numbers)))
        check_complete(answer.message.model_dump_json(), next(numbers))
        provider.next_body(answer)


def check_complete(stored: str, fields: int) -> None:
    assert [number for number in range(fields) if f"<{number}>" not in stored] == []


@each_format
def test_a_new_field_of_any_object_is_kept(kind: type[ProviderFormat]) -> None:
    provider = made(kind)
    for reply in provider.full():
        check(provider, reply)


@each_format
@given(seed=st.integers(0, 2**32))
def test_a_new_field_of_any_answer_is_kept(kind: type[ProviderFormat], seed: int) -> None:
    provider = made(kind)
    check(provider, provider.at_random(seed))


@each_format
def test_what_cannot_be_stored_is_replaced_and_the_rest_is_kept(kind: type[ProviderFormat]) -> None:
    provider = made(kind)
    deep: Any = "<1>"
    for _ in range(200):
        deep = {"deep": [deep]}
    odd: Any = {"odd": {"deep": deep, "half": "<2>\ud83d", "far": float("inf"), "known": "<3>"}}
    reply = next(each for each in provider.full() if provider.whole(each).message.text)
    *events, last = provider.events(reply) or []
    ended = {"metadata": last["metadata"] | odd} if isinstance(provider, BedrockFormat) else last | odd
    for answer in (provider.whole(reply | odd), provider.streamed([*events, ended])):
        assert provider.rebuilt(answer).items() >= provider.expected(reply).items()
        stored = provider.logged(answer).message.model_dump_json()
        assert [mark for mark in ("<1>", "<2>�", "<3>") if mark not in stored] == []
