"""Requirements on an authorization function and its answers."""

from __future__ import annotations

from typing import Any

import pytest

from clew import Conversations, Message
from clew.errors import (
    InvalidAuthorizeError,
)


def test_accepts_only_a_plain_function() -> None:
    async def waits(actor: str | None, action: str, thread: str | None) -> bool:
        raise AssertionError(actor, action, thread)

    class Waits:
        async def __call__(self, *asked: object) -> bool:
            raise AssertionError(asked)

    for wrong in (waits, Waits(), "read", True):
        with pytest.raises(InvalidAuthorizeError, match="True or False"):
            Conversations.open("memory:", authorize=wrong)  # type: ignore[arg-type]  # the test passes a wrong type


@pytest.mark.parametrize("answer", [None, 1, "yes", object()])
def test_an_answer_that_is_not_a_bool_reveals_nothing(answer: Any) -> None:
    with Conversations.open("memory:", authorize=lambda *_: answer) as service:
        thread = service.start_thread()
        with pytest.raises(InvalidAuthorizeError, match=type(answer).__name__):
            thread.history()
        with pytest.raises(InvalidAuthorizeError):
            list(service.threads())


def test_a_failing_function_reveals_nothing() -> None:
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
