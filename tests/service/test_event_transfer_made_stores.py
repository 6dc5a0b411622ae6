"""Stores that hypothesis made, moved at once and little by little."""

from __future__ import annotations

import math
import random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test
from tests.service.moving_stores import copied
from tests.service.test_state_machine import ConversationsAgreeWithTheModel

from clew.conversations import Conversations
from clew.service import event_transfer

STORES = 150


class CopiesAgreeWithTheirSources(ConversationsAgreeWithTheModel):
    """Each of the stores has a copy that follows it, from the same kind of store to the other."""

    def __init__(self) -> None:
        super().__init__()
        url = f"sqlite:///{self.folder.name}/copy.db?synchronous=OFF"
        self.copies = [Conversations.open(each, now=lambda: self.now) for each in (url, "memory:")]
        self.followed = [0, 0]

    @rule(which=st.sampled_from([0, 1]), torn=st.integers(0, 40), commit=st.sampled_from([1, 3, 500]))
    def follow(self, which: int, torn: int, commit: int) -> None:
        """Bring a copy up to date, with a file that may be torn somewhere at its end."""
        lines = list(self.stores[which].export_events())
        before, event_transfer.MOST_EVENTS = event_transfer.MOST_EVENTS, commit
        try:
            found = copied(self.copies[which], lines[: max(1, len(lines) - torn)])
        finally:
            event_transfer.MOST_EVENTS = before
        assert (found.torn, found.failed) == (torn > 0, [])
        assert found.skipped >= min(self.followed[which], found.skipped + found.events)
        self.followed[which] = max(self.followed[which], found.skipped + found.events)

    @invariant()
    def verifies(self) -> None:
        """Whatever a copy has, it verifies."""
        for copy, followed in zip(self.copies, self.followed, strict=True):
            verdict = copy.verify()
            assert verdict.first_bad is None
            assert verdict.events == followed

    def teardown(self) -> None:
        try:
            for store, copy in zip(self.stores, self.copies, strict=True):
                lines = list(store.export_events())
                assert copied(copy, lines).failed == []
                assert list(copy.export_events()) == lines
                self.compare_everything(copy)
                with Conversations.open("memory:") as another:
                    copied(another, copy.export_events(random.Random(len(lines)).choices(list(self.model.lines), k=3)))
                    assert another.verify().first_bad is None
                    copied(another, lines)
                    self.assert_equal_heads(another, store)
        finally:
            for copy in self.copies:
                copy.close()
            super().teardown()

    @staticmethod
    def assert_equal_heads(one: Conversations, two: Conversations) -> None:
        assert {each.id: each for each in one.threads()} == {each.id: each for each in two.threads()}
        assert one.verify() == two.verify()


def test_copies_are_equal_to_their_sources(scale: float) -> None:
    run_state_machine_as_test(
        CopiesAgreeWithTheirSources,
        settings=settings(
            max_examples=math.ceil(STORES * scale),
            stateful_step_count=40,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
