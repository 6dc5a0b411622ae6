"""Which appends of PostgreSQL have only events."""

from __future__ import annotations

from typing import Any

import pytest
from tests.infrastructure.recorder_steps import event

from clew.infrastructure.postgres.stream_ids import only_stream
from clew.infrastructure.recorder_ports import Append

EVENTS: Any = (event("a", 1), event("a", 2))


def test_events_of_one_stream_with_their_links_are_only_events() -> None:
    assert only_stream(Append(EVENTS)) == "a"
    assert only_stream(Append(EVENTS, previous={"a": b"hash"}, links=[b"one", b"two"])) == "a"


@pytest.mark.parametrize("field", sorted({*Append._fields} - {"events", "previous", "links"}))
def test_an_append_with_anything_else_is_not(field: str) -> None:
    something: Any = {"a": object()} if field == "forks" else [object()]
    assert only_stream(Append(EVENTS)._replace(**{field: something})) is None
