"""What a provider sends is on the log, whole or streamed, and what it wants back is in the next request."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.domain.models.provider_formats import FORMATS, ProviderFormat

each_format = pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)


@cache
def made(kind: type[ProviderFormat]) -> ProviderFormat:
    return kind()


def check(provider: ProviderFormat, reply: Any) -> None:
    whole = provider.logged(provider.whole(reply))
    answers = [whole]
    if (events := provider.events(reply)) is not None:
        answers.append(provider.logged(provider.streamed(events)))
    for answer in answers:
        assert provider.rebuilt(answer) == provider.expected(reply)
        assert provider.sent(provider.next_body(answer)) == provider.wanted(reply)
        assert answer.message.contents == whole.message.contents
        assert (answer.usage, answer.finish_reason) == (whole.usage, whole.finish_reason)


@each_format
def test_every_member_and_field_of_an_answer_survives(kind: type[ProviderFormat]) -> None:
    provider = made(kind)
    for reply in provider.full():
        check(provider, reply)


@each_format
@given(seed=st.integers(0, 2**32))
def test_any_answer_survives(kind: type[ProviderFormat], seed: int) -> None:
    provider = made(kind)
    check(provider, provider.at_random(seed))
