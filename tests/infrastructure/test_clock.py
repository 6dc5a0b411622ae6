from __future__ import annotations

import time
from uuid import RFC_4122, UUID

from tests.infrastructure.recording import in_child

from clew.infrastructure import clock
from clew.infrastructure.clock import RANDOM_BATCH, event_id, salt

MANY = 4 * RANDOM_BATCH


def test_an_event_id_is_a_uuid_of_version_7() -> None:
    before = time.time_ns() // 1_000_000
    found = [event_id() for _ in range(MANY)]
    after = time.time_ns() // 1_000_000
    ids = list(map(UUID, found))
    assert [each.hex for each in ids] == found
    assert {(each.version, each.variant) for each in ids} == {(7, RFC_4122)}
    assert all(before <= each.int >> 80 <= after for each in ids)


def test_every_digit_is_random_but_for_the_time_the_version_and_the_variant() -> None:
    ids = [event_id() for _ in range(MANY)]
    assert len({each[12:] for each in ids}) == MANY
    found = ["".join(sorted({each[place] for each in ids})) for place in range(12, 32)]
    assert found == ["7", *["0123456789abcdef"] * 3, "89ab", *["0123456789abcdef"] * 15]


def test_a_forked_child_makes_ids_and_salts_of_its_own() -> None:
    event_id()
    salt()
    kept = {*clock._id_ends}, {*clock._salts}

    def use_many() -> None:
        ends = {event_id()[12:] for _ in range(MANY)}
        salts = {salt() for _ in range(MANY)}
        assert not ends & kept[0]
        assert not salts & kept[1]
        assert len(ends) == len(salts) == MANY

    assert in_child(use_many) == 0
    assert event_id()[12:] in kept[0]
    assert salt() in kept[1]
