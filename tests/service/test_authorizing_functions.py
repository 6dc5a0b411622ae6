"""What a function that says who may read must be, and what it must answer."""

from __future__ import annotations

from typing import Any

import pytest

from clew import Conversations, Message
from clew.errors import (
    InvalidAuthorizeError,
)


def test_a_function_that_is_none_is_refused_at_once() -> None:
    async def waits(actor: str | None, action: str, thread: str | None) -> bool:
        raise AssertionError(actor, action, thread)

    class Waits:
        async def __call__(self, *asked: object) -> bool:
            raise AssertionError(asked)

    for wrong in (waits, Waits(), "read", True):
        with pytest.raises(InvalidAuthorizeError, match="True or False"):
            Conversations.open("memory:", authorize=wrong)  # type: ignore[arg-type]  # that is the point


@pytest.mark.parametrize("said", [None, 1, "yes", object()])
def test_an_answer_that_is_neither_yes_nor_no_lets_nothing_out(said: Any) -> None:
    with Conversations.open("memory:", authorize=lambda *_: said) as service:
        thread = service.start_thread()
        with pytest.raises(InvalidAuthorizeError, match=type(said).__name__):
            thread.history()
        with pytest.raises(InvalidAuthorizeError):
            list(service.threads())


def test_a_function_that_fails_lets_nothing_out() -> None:
    def fails(actor: str | None, action: str, thread: str | None) -> bool:
        raise PermissionError(actor, action, thread)

    with Conversations.open("memory:", authorize=fails) as service:
        service.start_thread(messages=[Message.user("Hello")])
        for ask in (
            lambda: list(service.threads()),
            lambda: service.search("Hello"),
            lambda: service.subscribe().wait(0),
        ):
            with pytest.raises(PermissionError):
                ask()
