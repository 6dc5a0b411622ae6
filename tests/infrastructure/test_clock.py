from __future__ import annotations

import time
from uuid import RFC_4122, UUID

from tests.infrastructure.recording import in_child

from clew.infrastructure.clock import event_id
from clew.infrastructure.randomness import AT_A_TIME, Kept

MANY = 4 * AT_A_TIME


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


def test_each_is_given_once_also_to_a_forked_child() -> None:
    made = iter(range(100))
    kept = Kept(lambda: [next(made), next(made)])
    taken = [kept.take() for _ in range(5)]
    assert len(set(taken)) == 5

    def goes_on() -> None:
        assert kept.take() not in {*taken, *range(6)}

    assert in_child(goes_on) == 0
    assert kept.take() in set(range(6)) - set(taken)
