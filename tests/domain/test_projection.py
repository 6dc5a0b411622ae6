from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from clew.domain.errors import InvalidProjectionError
from clew.domain.messages import Message
from clew.domain.projection import Change, Column, Recorded, Rows, Table, check_projection
from clew.projections import SHIPPED


class Declared:
    """A valid declaration, except for the given attributes."""

    def __init__(self, **attributes: Any) -> None:
        self.name = "mine"
        self.version = 1
        self.tables: Any = (
            Table("thing", (Column("a"), Column("b", "json"), Column("n", "integer", adds=True)), ("a",)),
        )
        self.texts: Any = ("words",)
        self.types = None
        vars(self).update(attributes)

    def project(self, _: Recorded, rows: Rows, /) -> Iterator[Change]:
        del rows
        yield from ()


def table(*columns: Column, key: Any = ("a",), indexes: Any = ()) -> tuple[Table, ...]:
    return (Table("thing", columns, key, indexes),)


@pytest.mark.parametrize("projection", [*SHIPPED, Declared()], ids=lambda each: str(each.name))
def test_accepts_a_valid_declaration(projection: Any) -> None:
    check_projection(projection)


@pytest.mark.parametrize(
    "attributes",
    [
        {"name": "Mine"},
        {"name": "mine; DROP TABLE event"},
        {"name": ""},
        {"name": "m" * 41},
        {"name": 7},
        {"version": 0},
        {"version": "1"},
        {"version": True},
        {"texts": ("thing",)},
        {"texts": ("no-name",)},
        {"tables": table(Column("a")) * 2},
        {"tables": table(Column("a"), Column("a"))},
        {"tables": table(Column('a" --'))},
        {"tables": table(Column("a", "float"))},  # type: ignore[arg-type] # refused
        {"tables": table(Column("a"), Column("b", "text", adds=True))},
        {"tables": table(Column("a"), key=())},
        {"tables": table(Column("a"), key=("b",))},
        {"tables": table(Column("a", "integer", adds=True))},
        {"tables": table(Column("a", "integer", keeps="least"))},
        {"tables": table(Column("a"), Column("b", "text", keeps="least"))},
        {"tables": table(Column("a"), Column("b", "integer", adds=True, keeps="least"))},
        {"tables": table(Column("a"), Column("b", "integer", keeps="newest"))},  # type: ignore[arg-type] # refused
        {"tables": table(Column("a", "json"))},
        {"tables": table(Column("a"), indexes=((),))},
        {"tables": table(Column("a"), indexes=(("b",),))},
    ],
    ids=str,
)
def test_refuses_a_declaration_that_no_store_can_apply(attributes: dict[str, Any]) -> None:
    with pytest.raises(InvalidProjectionError):
        check_projection(Declared(**attributes))


def recorded(**attributes: Any) -> Recorded:
    message = Message.user("Hello")
    values: dict[str, Any] = {"type": "message-appended", "data": {"message": message.model_dump()}, **attributes}
    return Recorded(
        1, "default", "thread", "t", 1, values.pop("type"), 1_000_000, 1, values.pop("data"), 9, b"", "id", **values
    )


def test_an_event_has_its_message_and_its_time() -> None:
    assert recorded().message == Message.user("Hello")
    assert recorded().time.isoformat() == "1970-01-01T00:00:01+00:00"


def test_an_event_without_a_message_has_none() -> None:
    assert recorded(data=None, redacted=True, role="user").message is None
    assert recorded(type="thread-started", data={"title": None}).message is None
