"""The contract of every projection store: declared tables, text indexes and transactions."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.infrastructure.recorder_steps import PATIENCE

from clew.domain.errors import ClosedError, InvalidProjectionError, UnknownProjectionError
from clew.domain.projection import (
    Change,
    Column,
    Delete,
    ForgetText,
    Generation,
    IndexText,
    Parked,
    Query,
    Recorded,
    Recount,
    Rows,
    Table,
    Upsert,
    Where,
    Words,
)
from clew.domain.projection_store import BusyError, ProjectionSession, ProjectionStore


class Declared:
    """A projection whose column and table names are SQL keywords, or names of each other's indexes."""

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
                Column("least", "integer", keeps="least"),
                Column("greatest", "integer", keeps="greatest"),
            ),
            key=("group", "order"),
            indexes=(("order",), ("note", "group")),
        ),
        Table("thing_0", (Column("x_position", "integer"), Column("position", "integer")), key=("position",)),
        *(
            Table(name, (Column("a"),), key=("a",), indexes=(("a",),))
            for name in ("thing_pkey", "thing_key", "thing_key_key", "words_pkey", "words_words", "words_key")
        ),
        *(Table("t" * 39 + end, (Column("a"),), key=("a",), indexes=(("a",), ("a",))) for end in "ab"),
    )
    texts = ("words", "more_words")
    types = None

    def __init__(self, name: str = "declared") -> None:
        self.name = name

    def project(self, _: Recorded, rows: Rows, /) -> Iterator[Change]:
        del rows
        yield from ()


class Opened:
    """A session that updates a generation."""

    def __init__(self, session: ProjectionSession, built: Generation | None = None) -> None:
        self.session = session
        self.built = built or session.begin(Declared(), "code", live=True)
        self.rows = session.rows(self.built, Declared())

    def apply(self, *changes: Change, position: int = 1) -> None:
        assert self.session.rows(self.built, Declared()).apply(position, "default", changes) == []

    def select(self, *arguments: Any, **more: Any) -> list[dict[str, Any]]:
        return self.rows.select(Query("thing", *arguments, **more))


def thing(group: str, order: int, **values: Any) -> Upsert:
    return Upsert("thing", {"group": group, "order": order, **values})


def row(group: str, order: int, values: Any = None, total: int = 0, note: str | None = None) -> dict[str, Any]:
    row = {"group": group, "order": order, "values": values, "sum": total, "note": note}
    return {**row, "least": None, "greatest": None}


class ProjectionContract:
    """A subclass provides an empty ``store``."""

    @pytest.fixture
    def opened(self, store: ProjectionStore) -> Iterator[Opened]:
        with store.session(0) as session:
            yield Opened(session)

    # Rows

    @pytest.mark.parametrize("reads_between", [False, True], ids=["one batch", "two batches"])
    def test_an_upsert_keeps_unnamed_columns_and_adds_to_adding_ones(
        self,
        opened: Opened,
        reads_between: bool,  # noqa: FBT001 - pytest's
    ) -> None:
        opened.apply(thing("a", 1, values={"ä": [1, None]}, sum=2))
        if reads_between:
            assert opened.select() == [row("a", 1, {"ä": [1, None]}, 2)]
        opened.apply(thing("a", 1, sum=3), thing("a", 1, note="n"), thing("a", 1, note="m"), thing("a", 2))
        assert opened.rows.get("thing", "a", 1) == row("a", 1, {"ä": [1, None]}, 5, "m")
        assert opened.rows.get("thing", "a", 2) == row("a", 2)
        assert opened.rows.get("thing", "b", 1) is None

    @pytest.mark.parametrize("together", [True, False])
    def test_a_column_keeps_the_least_or_the_greatest_value(self, opened: Opened, *, together: bool) -> None:
        kept = [thing("a", 1), *(thing("a", 1, least=number, greatest=number) for number in (3, -(2**62), 2**62, 0, 7))]
        for part in [kept] if together else [[each] for each in kept]:
            opened.apply(*part)
        (stored,) = opened.select()
        assert (stored["least"], stored["greatest"]) == (-(2**62), 2**62)

    def test_a_delete_removes_all_rows_with_the_key_prefix(self, opened: Opened) -> None:
        opened.apply(thing("a", 1), thing("a", 2), thing("b", 1), Delete("thing", ("a",)), thing("a", 3))
        assert [(each["group"], each["order"]) for each in opened.select(order=["group"])] == [("a", 3), ("b", 1)]
        opened.apply(Delete("thing", ("a", 3)))
        assert [each["group"] for each in opened.select()] == ["b"]
        for key in ((), ("a", 1, 2)):
            with pytest.raises(InvalidProjectionError, match="values for a key"):
                opened.apply(Delete("thing", key))

    def test_selects_rows_by_conditions_and_order(self, opened: Opened) -> None:
        opened.apply(*(thing("ab"[number % 2], number, values=[number], note=str(number)) for number in range(6)))

        def orders(*where: Where, **more: Any) -> list[int]:
            return [each["order"] for each in opened.select(where, **more)]

        assert orders(Where("group", "=", "a"), order=["-order"]) == [4, 2, 0]
        assert orders(Where("order", ">", 1), Where("order", "<=", 4), order=["group", "-order"]) == [4, 2, 3]
        assert orders(Where("order", ">=", 4), Where("order", "<", 5)) == [4]
        assert orders(Where("order", "in", range(3, 100_000)), order=["order"]) == [3, 4, 5]
        assert orders(Where("note", "in", ["1", "2", None]), order=["order"]) == [1, 2]
        assert orders(Where("note", "in", [])) == []
        assert orders(Where("values", "in", [[1], [3]]), order=["order"]) == [1, 3]
        assert orders(Where("values", "=", [2])) == [2]
        assert orders(Where("sum", "=", None)) == []
        assert orders(Where("order", "in", Query("thing", [Where("note", "=", "5")], columns=["order"]))) == [5]
        assert orders(order=["order"], limit=2) == [0, 1]

        def within(*where: Where) -> Where:
            return Where("order", "in", Query("thing", where, columns=["order"]))

        in_a, after_note_1 = Where("group", "=", "a"), Where("note", ">", "1")
        assert orders(within(in_a, after_note_1), order=["-order"], limit=9) == [4, 2]
        assert orders(within(in_a), order=["-order"], limit=2) == [4, 2]
        assert orders(within(in_a, Where("note", "=", None)), order=["order"], limit=2) == []
        assert orders(within(after_note_1), order=["-order"], limit=2) == [5, 4]
        assert orders(within(in_a, within(after_note_1)), order=["order"], limit=1) == [2]
        first = opened.select(columns=["note", "values"], order=["order"], limit=1)
        assert first == [{"note": "0", "values": [0]}]

    def test_names_of_tables_and_indexes_do_not_collide(self, opened: Opened) -> None:
        opened.apply(Upsert("thing_0", {"x_position": None, "position": 7}))
        assert opened.rows.get("thing_0", 7) == {"x_position": None, "position": 7}

    def test_none_sorts_first(self, opened: Opened) -> None:
        opened.apply(thing("a", 1, note="b"), thing("a", 2), thing("a", 3, note=""))
        assert [each["order"] for each in opened.select(order=["note"])] == [2, 3, 1]
        assert [each["order"] for each in opened.select(order=["-note"])] == [1, 3, 2]
        assert [each["order"] for each in opened.select([Where("note", "=", None)])] == [2]
        assert [each["order"] for each in opened.select([Where("note", "<", "b")])] == [3]

    def test_text_sorts_by_code_point_and_can_contain_all_of_them(self, opened: Opened) -> None:
        notes = ["", "\0", "\0a", "'\"\\{},%", "A", "Z", "a", "z", "ä", "\ud7ff", "\uffff", "\U0001f600"]
        assert notes == sorted(notes)
        for number, note in enumerate(notes):
            opened.apply(thing(note, number, note=note, values={note: note}))
        assert [each["note"] for each in opened.select(order=["note"])] == notes
        assert [each["group"] for each in opened.select(order=["-group"])] == notes[::-1]
        for number, note in enumerate(notes):
            assert opened.rows.get("thing", note, number) == row(note, number, {note: note}, note=note)
            assert [each["order"] for each in opened.select([Where("note", "=", note)])] == [number]

    def test_a_query_can_contain_any_integer_and_invalid_text(self, opened: Opened) -> None:
        opened.apply(thing("a", 2**63 - 1), thing("a", 1 - 2**63))
        assert len(opened.select([Where("order", "<=", 2**70)])) == 2
        assert len(opened.select([Where("order", ">", -(2**70))])) == 1
        assert opened.select([Where("note", "=", "\ud800")]) == []
        with pytest.raises(InvalidProjectionError):
            opened.select([Where("note", "=", object())])

    @pytest.mark.parametrize(
        "changes",
        [
            [thing("a", 2**63)],
            [thing("a", 1, sum=2**62), thing("a", 1, sum=2**62)],
            [thing("\ud800", 1)],
            [thing("a", 1, nothing=1)],
            [thing("a", 1, values=object())],
            [Upsert("nothing", {})],
            [IndexText("nothing", "")],
            [Recount("thing", "t", "thread", "x")],
            ["not a change"],
        ],
        ids=["integer", "sum", "Unicode", "column", "JSON", "table", "index", "recount", "change"],
    )
    def test_only_the_refused_changes_are_undone(self, opened: Opened, changes: list[Any]) -> None:
        opened.apply(thing("b", 1))
        applied = False
        with pytest.raises(Exception), opened.session.attempt():  # noqa: B017, PT011, PT012 - errors of many kinds
            opened.apply(thing("a", 9), thing("b", 1, note="changed"), IndexText("words", "gone"))
            applied = True
            opened.session.rows(opened.built, Declared()).apply(1, "default", changes)
        assert applied
        rows = opened.session.rows(opened.built, Declared())
        assert rows.select(Query("thing")) == [row("b", 1)]

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
    def test_refuses_a_query_of_missing_tables_and_columns(self, opened: Opened, query: Query) -> None:
        with pytest.raises(InvalidProjectionError):
            opened.rows.select(query)

    # Text indexes

    def test_reads_rows_as_tuples(self, store: ProjectionStore) -> None:
        with store.session(0) as session:
            opened = Opened(session)
            opened.apply(*[thing("a", number, values=[number] if number % 2 else None) for number in range(4)])
        query = Query("thing", [Where("order", ">", 0)], ["-order"], columns=("values", "missing", "order", "note"))
        assert list(store.values("declared", query)) == [
            ([3], None, 3, None),
            (None, None, 2, None),
            ([1], None, 1, None),
        ]

    @pytest.mark.parametrize("key", [(None, 1), ("a", None)])
    def test_no_value_of_a_key_is_none(self, opened: Opened, key: tuple[Any, Any]) -> None:
        with pytest.raises(Exception, match=r"(?i)not.null"), opened.session.attempt():  # the driver's own error
            opened.apply(thing(*key))
        assert opened.select() == []

    def test_finds_texts_by_their_words_in_descending_order(self, store: ProjectionStore) -> None:
        texts = ["the quick brown fox", "the lazy dog", "a Quick dog's QUICK tail", "brown quick", ""]
        with store.session(0) as session:
            opened = Opened(session)
            for number, text in enumerate(texts, 1):
                scopes = ("odd" if number % 2 else "even", f"it's {number}")
                opened.apply(IndexText("words", text, scopes), position=number << 20)

        def find(words: Words, **more: Any) -> list[int]:
            more = {"before": None, "limit": 9, **more}
            return [position >> 20 for position in store.find("declared", "words", words, **more)]

        assert find(Words(("quick",))) == [4, 3, 1]
        assert find(Words(("quick",)), limit=2) == [4, 3]
        assert find(Words(("quick",)), before=4 << 20) == [3, 1]
        assert find(Words(("quick brown",))) == [1]
        assert find(Words(("dog", "the"))) == [2]
        assert find(Words((), ("qu",))) == [4, 3, 1]
        assert find(Words((), ("dog s q",))) == [3]
        assert find(Words(("quick",), without=("brown quick", "fox"))) == [3]
        assert find(Words(("quick",), scopes=("odd",))) == [3, 1]
        assert find(Words(("quick",), scopes=("odd", "it's 3"))) == [3]
        assert find(Words(("quick",), scopes=("quick",))) == []
        assert find(Words(("uick",))) == find(Words(("odd",))) == find(Words(without=("fox",))) == []
        assert store.find("declared", "more_words", Words(("quick",)), before=None, limit=9) == []

    def test_finds_many_texts_in_pages(self, store: ProjectionStore, monkeypatch: pytest.MonkeyPatch) -> None:
        for stores in ("sqlite", "postgres"):
            monkeypatch.setattr(f"clew.infrastructure.{stores}.text_index.STRETCH", 16)
        for batch in range(8):
            with store.session(0) as session:
                opened = Opened(session, next(iter(session.generations()), None))
                for number in range(batch * 30, batch * 30 + 30):
                    text = "often seldom" if number % 50 == 0 else "often"
                    opened.apply(IndexText("words", text, (f"scope {number % 7}",)), position=number + 1)
        pages: list[int] = []
        while page := store.find("declared", "words", Words(("often",)), before=pages[-1] if pages else None, limit=7):
            pages += page
        assert pages == list(range(240, 0, -1))
        assert store.find("declared", "words", Words(("seldom",)), before=None, limit=9) == [201, 151, 101, 51, 1]
        in_scope = Words(("often",), scopes=("scope 3",))
        assert store.find("declared", "words", in_scope, before=100, limit=99) == list(range(95, 0, -7))

    def test_deleted_text_is_not_found(self, store: ProjectionStore) -> None:
        with store.session(0) as session:
            opened = Opened(session)
            for position in (1, 2, 3):
                opened.apply(IndexText("words", "secret"), IndexText("more_words", "secret"), position=position)
            unapplied = opened.rows.apply(4, "t", [ForgetText("words", "t", "thread", "x", 1)])
            assert [type(each) for each in unapplied] == [ForgetText]
        with store.session(9) as session:
            for index, position in (("words", 1), (None, 3)):
                session.forget(opened.built, index, position, 5)
            session.empty(opened.built)
        positions = [store.find("declared", name, Words(("secret",)), before=None, limit=9) for name in Declared.texts]
        assert not any(3 in each for each in positions)
        assert 1 not in positions[0]

    # Generations and transactions

    def test_an_unknown_projection_is_an_error(self, store: ProjectionStore) -> None:
        assert store.generations() == []
        with pytest.raises(UnknownProjectionError):
            store.select("directory", Query("thread"))
        with pytest.raises(UnknownProjectionError):
            store.find("search", "words", Words(("word",)), before=None, limit=1)
        with pytest.raises(UnknownProjectionError):
            store.parked("directory", 1)
        with store.session(0):
            pass
        assert store.generations() == []

    def test_an_error_rolls_the_session_back(self, store: ProjectionStore) -> None:
        with store.session(0) as session:
            built = Opened(session).built
        with pytest.raises(ZeroDivisionError), store.session(0) as session:  # noqa: PT012 - the whole session
            opened = Opened(session, built)
            opened.apply(thing("a", 1), IndexText("words", "word"))
            opened.select()
            session.move(built, 7, b"hash")
            raise ZeroDivisionError
        assert store.generations() == [built]
        assert store.select("declared", Query("thing")) == []
        assert store.find("declared", "words", Words(("word",)), before=None, limit=9) == []

    def test_another_generation_replaces_the_live_one(self, store: ProjectionStore) -> None:
        with store.session(0) as session:
            old = Opened(session)
            old.apply(thing("old", 1), IndexText("words", "word"))
            session.park(old.built, Parked(1, "s\0", 2, "type", "error"))
            session.park(old.built, Parked(1, "s\0", 2, "type", "another error"))
        with store.session(0) as session:
            new = Opened(session, session.begin(Declared(), "new", live=False))
            new.apply(thing("new", 1), IndexText("words", "word"), position=2)
        assert store.select("declared", Query("thing", columns=["group"])) == [{"group": "old"}]
        assert store.parked("declared", 9) == (1, [Parked(1, "s\0", 2, "type", "another error")])
        with store.session(0) as session:
            session.move(new.built, 5, b"hash")
            session.switch(new.built)
        assert store.select("declared", Query("thing", columns=["group"])) == [{"group": "new"}]
        assert store.find("declared", "words", Words(("word",)), before=None, limit=9) == [2]
        assert store.parked("declared", 9) == (0, [])
        assert store.generations() == [new.built._replace(position=5, hash=b"hash", live=True)]
        with store.session(0) as session:
            session.drop(new.built)
        assert store.generations() == []

    def test_concurrent_updates_of_a_projection_take_turns(self, store: ProjectionStore) -> None:
        with store.session(0) as session:
            built = Opened(session).built

        def add() -> None:
            for _ in range(20):
                with store.session(0, ["declared"]) as session:
                    opened = Opened(session, built)
                    current = opened.rows.get("thing", "a", 1) or {"sum": 0}
                    opened.apply(Delete("thing", ("a",)), thing("a", 1, sum=current["sum"] + 1))

        threads = [threading.Thread(target=add) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert store.select("declared", Query("thing")) == [row("a", 1, total=60)]

    def test_a_writer_that_need_not_wait_does_not(self, store: ProjectionStore) -> None:
        with store.session(0) as session:
            Opened(session)
        refused: list[BaseException] = []

        def attempt() -> None:
            try:
                with store.session(0, ["declared"], unless=lambda: True):
                    pass
            except BusyError as error:
                refused.append(error)

        with store.session(0, ["declared"]):
            thread = threading.Thread(target=attempt)
            thread.start()
            thread.join(PATIENCE)
            assert len(refused) == 1
        attempt()
        assert len(refused) == 1

    def test_raises_closed_error_after_close(self, store: ProjectionStore) -> None:
        with store.session(0):
            pass
        store.close()
        store.close()
        with pytest.raises(ClosedError), store.session(0):
            pass
        with pytest.raises(ClosedError):
            store.select("directory", Query("thread"))
