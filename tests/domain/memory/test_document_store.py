from __future__ import annotations

from clew.domain.events import TYPE_NAMES, AnyEvent, Event, Opaque, Shredded
from clew.domain.memory.document_store import DocumentFold
from clew.domain.memory.events import DocumentAdded, DocumentRemoved, ScopeOpened

OPENED = ScopeOpened(holds="documents")


def added(id_: str, link: str | None = None, *namespaces: str, replaces: str | None = None) -> DocumentAdded:
    return DocumentAdded(
        document=id_, text=f"text of {id_}", namespaces=namespaces or ("n",), source_link=link, replaces=replaces
    )


def folded(*events: AnyEvent | Opaque | Shredded) -> DocumentFold:
    fold = DocumentFold()
    for version, data in enumerate(events, 1):
        type_ = "document-added" if isinstance(data, Opaque | Shredded) else TYPE_NAMES[type(data)]
        fold.add(Event("default/memory/s", version, type_, str(version), version * 10, 0, data, None, None))
    return fold


def texts_in(fold: DocumentFold, namespace: str = "n") -> set[str]:
    return set(fold.view(namespace).passages.values())


def test_a_document_is_visible_in_its_namespaces_until_replaced_or_removed() -> None:
    steps: list[AnyEvent] = [
        OPENED,
        added("a", "l", "n", "o"),
        added("b"),
        added("c", "l", replaces="a"),
        DocumentRemoved(document="b"),
    ]
    expected: list[set[str]] = [set(), {"a"}, {"a", "b"}, {"b", "c"}, {"c"}]
    for version, ids in enumerate(expected, 1):
        fold = folded(*steps[:version])
        assert texts_in(fold) == {f"text of {id_}" for id_ in ids}
        assert len(fold) == len(ids)
    assert texts_in(folded(*steps[:2]), "o") == {"text of a"}
    assert texts_in(folded(*steps), "o") == set()
    assert folded(*steps).linked("n", "l") == ("c",)


def test_a_view_stays_the_same_object_until_its_namespace_changes() -> None:
    fold = folded(OPENED, added("a"))
    before = fold.view("n")
    fold.add(Event("default/memory/s", 3, "document-added", "3", 30, 0, added("b", None, "o"), None, None))
    assert fold.view("n") is before
    assert (before.stamp, fold.view("o").stamp, fold.view("other").stamp) == (2, 3, 0)
    fold.add(Event("default/memory/s", 4, "document-removed", "4", 40, 0, DocumentRemoved(document="a"), None, None))
    assert (fold.view("n").stamp, dict(fold.view("n").passages)) == (4, {})
    assert dict(before.passages) == {2 << 20: "text of a"}, "the old view does not change"


def test_ignores_shredded_and_unknown_documents() -> None:
    fold = folded(OPENED, Shredded(None), Opaque(b"?"), DocumentRemoved(document="a"), added("b", replaces="gone"))
    assert texts_in(fold) == {"text of b"}
    assert fold.version == 5


def test_returns_the_version_at_a_time() -> None:
    fold = folded(OPENED, added("a"), added("b"))
    assert [fold.version_at(time) for time in (0, 10, 19, 20, 99)] == [0, 1, 1, 2, 3]
