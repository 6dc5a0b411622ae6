"""Tables that are declared as data: what is upserted, deleted and asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from clew.domain.errors import InvalidProjectionError
from clew.domain.projection import Built, Change, Column, Delete, Query, Recorded, Rows, Table, Upsert, Where
from clew.infrastructure.sqlite.projection_session import SQLiteSession
from clew.infrastructure.sqlite.projections import SQLiteProjections


class Declared:
    """Names of columns and tables that are words of SQL's, or of each other's indexes."""

    name = "declared"
    version = 1
    tables = (
        Table(
            "thing",
            (
                Column("group"),
                Column("order", "integer"),
                Column("values", "json"),
                Column("sum", "integer", adds=True),
                Column("note"),
            ),
            key=("group", "order"),
            indexes=(("order",), ("note", "group")),
        ),
        Table("thing_0", (Column("x_position", "integer"), Column("position", "integer")), key=("position",)),
    )
    texts = ()
    types = None

    def project(self, _: Recorded, rows: Rows, /) -> Iterator[Change]:
        del rows
        yield from ()


class Opened:
    def __init__(self, session: SQLiteSession) -> None:
        self._session = session
        self._built: Built = session.begin(Declared(), "code", live=True)
        self.rows = session.rows(self._built, Declared())

    def apply(self, *changes: Change) -> None:
        assert self._session.apply(self._built, Declared(), 1, changes) == []

    def select(self, *arguments: Any, **more: Any) -> list[dict[str, Any]]:
        return self.rows.select(Query("thing", *arguments, **more))


@pytest.fixture
def opened() -> Iterator[Opened]:
    store = SQLiteProjections(None)
    with store.session(0) as session:
        yield Opened(session)
    store.close()


def thing(group: str, order: int, **values: Any) -> Upsert:
    return Upsert("thing", {"group": group, "order": order, **values})


def row(group: str, order: int, values: Any = None, total: int = 0, note: str | None = None) -> dict[str, Any]:
    return {"group": group, "order": order, "values": values, "sum": total, "note": note}


@pytest.mark.parametrize("in_between", [False, True], ids=["in one batch", "in two"])
def test_an_upsert_keeps_what_it_does_not_name_and_adds_what_adds(opened: Opened, in_between: bool) -> None:  # noqa: FBT001
    opened.apply(thing("a", 1, values={"ä": [1, None]}, sum=2))
    if in_between:
        assert opened.select() == [row("a", 1, {"ä": [1, None]}, 2)]
    opened.apply(thing("a", 1, sum=3), thing("a", 1, note="n"), thing("a", 1, note="m"), thing("a", 2))
    assert opened.rows.get("thing", "a", 1) == row("a", 1, {"ä": [1, None]}, 5, "m")
    assert opened.rows.get("thing", "a", 2) == row("a", 2)
    assert opened.rows.get("thing", "b", 1) is None


def test_a_delete_takes_all_rows_that_begin_with_the_key(opened: Opened) -> None:
    opened.apply(thing("a", 1), thing("a", 2), thing("b", 1), Delete("thing", ("a",)), thing("a", 3))
    assert [(each["group"], each["order"]) for each in opened.select()] == [("a", 3), ("b", 1)]
    opened.apply(Delete("thing", ("a", 3)))
    assert [each["group"] for each in opened.select()] == ["b"]
    for key in ((), ("a", 1, 2)):
        with pytest.raises(InvalidProjectionError, match="values for a key"):
            opened.apply(Delete("thing", key))


def test_selects_by_conditions_in_an_order(opened: Opened) -> None:
    opened.apply(*(thing("ab"[number % 2], number, values=[number], note=str(number)) for number in range(6)))

    def orders(*where: Where, **more: Any) -> list[int]:
        return [each["order"] for each in opened.select(where, **more)]

    assert orders(Where("group", "=", "a"), order=["-order"]) == [4, 2, 0]
    assert orders(Where("order", ">", 1), Where("order", "<=", 4), order=["group", "-order"]) == [4, 2, 3]
    assert orders(Where("order", ">=", 4), Where("order", "<", 5)) == [4]
    assert orders(Where("order", "in", range(3, 100_000)), order=["order"]) == [3, 4, 5]
    assert orders(Where("note", "in", ["1", "2"]), order=["order"]) == [1, 2]
    assert orders(Where("values", "in", [[1], [3]]), order=["order"]) == [1, 3]
    assert orders(Where("values", "=", [2])) == [2]
    assert orders(Where("sum", "=", None)) == []
    assert orders(Where("order", "in", Query("thing", [Where("note", "=", "5")], columns=["order"]))) == [5]
    assert orders(order=["order"], limit=2) == [0, 1]
    assert opened.select(columns=["note", "values"], limit=1) == [{"note": "0", "values": [0]}]


def test_names_of_tables_and_indexes_do_not_get_in_each_others_way(opened: Opened) -> None:
    opened.apply(Upsert("thing_0", {"x_position": None, "position": 7}))
    assert opened.rows.get("thing_0", 7) == {"x_position": None, "position": 7}


@pytest.mark.parametrize(
    "query",
    [
        Query("nothing"),
        Query("thing", columns=["nothing"]),
        Query("thing", order=["-nothing"]),
        Query("thing", [Where("nothing", "=", 1)]),
        Query("thing", [Where("note", "like", "%")]),  # type: ignore[arg-type] # refused
        Query("thing", [Where("note", "in", Query("nothing"))]),
    ],
)
def test_refuses_a_query_of_what_is_not_there(opened: Opened, query: Query) -> None:
    with pytest.raises(InvalidProjectionError):
        opened.rows.select(query)
