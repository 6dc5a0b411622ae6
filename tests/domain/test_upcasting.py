from __future__ import annotations

import json
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import pytest
from tests.domain.strategies import event

from clew.domain import upcasting
from clew.domain.errors import CorruptEventError
from clew.domain.events import EVENT_TYPES, Opaque, ThreadResumed
from clew.domain.upcasting import UPCASTERS, schema_version, upcast
from clew.domain.values import Value
from clew.infrastructure import envelope

SONG = "song-sung"


class SongSung(Value):
    """Schema version 3 of an event that Clew does not have."""

    title: str
    singers: tuple[str, ...]


def one_to_two(data: dict[str, Any]) -> dict[str, Any]:
    return {"title": data["name"], "singer": data["singer"]}


def two_to_three(data: dict[str, Any]) -> dict[str, Any]:
    return {"title": data["title"], "singers": [data["singer"]]}


SONGS = MappingProxyType({SONG: (one_to_two, two_to_three)})


@pytest.fixture
def songs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Clew that knows songs: the registries with one more type, and nothing cached of either Clew."""
    known = MappingProxyType({**EVENT_TYPES, SONG: SongSung})
    monkeypatch.setattr(envelope, "EVENT_TYPES", known)
    monkeypatch.setattr(envelope, "schema_version", lambda type_: schema_version(type_, SONGS))
    monkeypatch.setattr(envelope, "upcast", lambda type_, version, data: upcast(type_, version, data, SONGS))
    envelope._validator.cache_clear()
    yield
    envelope._validator.cache_clear()


def stored(data: Any, **header: Any) -> bytes:
    return bytes(17) + json.dumps({"i": "e", "t": 1, "n": 0, **header, "d": data}).encode()


def test_the_schema_version_counts_the_upcasters() -> None:
    assert schema_version(SONG, SONGS) == 3
    assert schema_version("thread-started", SONGS) == 1


def test_data_is_brought_to_the_present_step_by_step() -> None:
    assert upcast(SONG, 1, {"name": "Nessun dorma", "singer": "Ann"}, SONGS) == {
        "title": "Nessun dorma",
        "singers": ["Ann"],
    }
    assert upcast(SONG, 2, {"title": "x", "singer": "Ann"}, SONGS) == {"title": "x", "singers": ["Ann"]}
    assert upcast(SONG, 3, {"title": "x", "singers": []}, SONGS) == {"title": "x", "singers": []}


def test_an_upcaster_gets_only_its_own_type() -> None:
    assert upcast("thread-started", 1, {"name": "x"}, SONGS) == {"name": "x"}


def test_upcasters_are_only_of_known_types() -> None:
    assert set(UPCASTERS) <= set(EVENT_TYPES)
    with pytest.raises(TypeError):
        upcasting.UPCASTERS[SONG] = ()  # type: ignore[index]  # what this test is about


@pytest.mark.usefixtures("songs")
@pytest.mark.parametrize(
    "state",
    [
        stored({"name": "Aria", "singer": "Ann"}, a="ann", m={"k": None}),
        stored({"name": "Aria", "singer": "Ann"}, v=1, a="ann", m={"k": None}),
        stored({"title": "Aria", "singer": "Ann"}, v=2, a="ann", m={"k": None}),
        stored({"title": "Aria", "singers": ["Ann"]}, v=3, a="ann", m={"k": None}),
    ],
    ids=["unsaid", "first", "second", "present"],
)
def test_every_schema_version_reads_as_the_present_one(state: bytes) -> None:
    found = envelope.decode("default/thread/a", 2, SONG, state, 9, b"h")
    data: Any = found.data
    assert data == SongSung(title="Aria", singers=("Ann",))
    assert (found.event_id, found.recorded_at, found.messages, found.actor) == ("e", 1, 0, "ann")
    assert (found.metadata, found.position, found.hash) == ({"k": None}, 9, b"h")


@pytest.mark.usefixtures("songs")
def test_the_present_schema_version_is_written() -> None:
    song: Any = SongSung(title="Aria", singers=("Ann",))
    written = event(ThreadResumed())._replace(type=SONG, data=song)
    state = envelope.encode(written)
    assert json.loads(state[17:])["v"] == 3
    assert envelope.decode(written.stream, written.version, SONG, state) == written


@pytest.mark.usefixtures("songs")
def test_a_newer_schema_version_is_opaque() -> None:
    state = stored({"aria": True}, v=4)
    assert envelope.decode("default/thread/a", 2, SONG, state).data == Opaque(state)


@pytest.mark.usefixtures("songs")
@pytest.mark.parametrize(
    "state",
    [
        stored({"title": "Aria", "singers": ["Ann"]}),
        stored({"name": "Aria"}, v=1),
        stored({"name": "Aria", "singer": 5}, v=1),
        stored(None, v=1),
        stored([], v=2),
        stored("x", v=2),
        stored({"name": "Aria", "singer": "Ann"}, v=1, a=5),
        stored({"name": "Aria", "singer": "Ann"}, v=1, t="soon"),
        stored({"name": "Aria", "singer": "Ann"}, v=0),
        stored({"title": "Aria", "singer": "Ann"}, v=-1),
        stored({"title": "Aria", "singers": 5}, v=3),
    ],
    ids=range(11),
)
def test_data_that_is_not_of_the_schema_version_it_says_is_corrupt(state: bytes) -> None:
    with pytest.raises(CorruptEventError, match="song-sung"):
        envelope.decode("default/thread/a", 2, SONG, state)
