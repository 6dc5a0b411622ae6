from __future__ import annotations

import time
from uuid import RFC_4122, UUID

from tests.infrastructure.recorder_steps import in_forked_child

from clew.infrastructure import clock
from clew.infrastructure.clock import RANDOM_BATCH, event_id, salt

MANY = 4 * RANDOM_BATCH


def test_an_event_id_is_a_uuid_of_version_7() -> None:
    before = time.time_ns() // 1_000_000
    texts = [event_id() for _ in range(MANY)]
    after = time.time_ns() // 1_000_000
    ids = list(map(UUID, texts))
    assert [each.hex for each in ids] == texts
    assert {(each.version, each.variant) for each in ids} == {(7, RFC_4122)}
    assert all(before <= each.int >> 80 <= after for each in ids)


def test_all_digits_except_time_version_and_variant_are_random() -> None:
    ids = [event_id() for _ in range(MANY)]
    assert len({each[12:] for each in ids}) == MANY
    digits = ["".join(sorted({each[place] for each in ids})) for place in range(12, 32)]
    assert digits == ["7", *["0123456789abcdef"] * 3, "89ab", *["0123456789abcdef"] * 15]


def test_a_forked_child_makes_different_ids_and_salts() -> None:
    event_id()
    salt()
    prepared = {*clock._id_ends}, {*clock._salts}

    def use_many() -> None:
        ends = {event_id()[12:] for _ in range(MANY)}
        salts = {salt() for _ in range(MANY)}
        assert not ends & prepared[0]
        assert not salts & prepared[1]
        assert len(ends) == len(salts) == MANY

    assert in_forked_child(use_many) == 0
    assert event_id()[12:] in prepared[0]
    assert salt() in prepared[1]
