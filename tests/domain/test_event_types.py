from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.domain.strategies import event

from clew.domain.errors import CorruptEventError
from clew.domain.event_types import EventType, event_type, withdraw
from clew.domain.events import EVENT_TYPES, Opaque, ThreadResumed
from clew.domain.messages import Value
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


@pytest.fixture
def songs() -> Iterator[EventType]:
    """Declare the event type of songs."""
    event_type(SONG, upcasters=(one_to_two, two_to_three))(SongSung)
    yield EVENT_TYPES[SONG]
    withdraw(SONG)


def stored(data: Any, **header: Any) -> bytes:
    return bytes(17) + json.dumps({"i": "e", "t": 1, "n": 0, **header, "d": data}).encode()


def test_the_schema_version_counts_the_upcasters(songs: EventType) -> None:
    assert songs.schema_version == 3
    assert EVENT_TYPES["thread-started"].schema_version == 1


def test_upcasters_run_step_by_step(songs: EventType) -> None:
    assert songs.upcast(1, {"name": "Nessun dorma", "singer": "Ann"}) == {"title": "Nessun dorma", "singers": ["Ann"]}
    assert songs.upcast(2, {"title": "x", "singer": "Ann"}) == {"title": "x", "singers": ["Ann"]}
    assert songs.upcast(3, {"title": "x", "singers": []}) == {"title": "x", "singers": []}


def test_an_upcaster_gets_only_its_own_type(songs: EventType) -> None:
    assert songs.name == SONG
    assert EVENT_TYPES["thread-started"].upcast(1, {"name": "x"}) == {"name": "x"}


def test_a_name_is_declared_once(songs: EventType) -> None:
    with pytest.raises(ValueError, match="'song-sung' is already declared, by SongSung"):
        event_type(songs.name)(SongSung)
    with pytest.raises(TypeError):
        EVENT_TYPES[SONG] = songs  # type: ignore[index]  # the test changes a read-only mapping


@pytest.mark.parametrize("declared", EVENT_TYPES.values(), ids=EVENT_TYPES)
def test_every_declared_sample_has_a_sentence(declared: EventType) -> None:
    sample = declared.model(**declared.sample)
    description = declared.describe(json.loads(sample.model_dump_json(exclude_none=True)))
    assert description.isprintable()
    assert declared.name not in description
    assert declared.headline[0].isupper()


class SongNoted(Value):
    note: str | None = None
    marks: tuple[int, ...] = ()
    times: int = 1


@pytest.fixture
def declare() -> Iterator[Callable[[Any], EventType]]:
    """Declare an event type with this sentence."""

    def declare(sentence: Any) -> EventType:
        event_type("song-noted", sentence=sentence)(SongNoted)
        return EVENT_TYPES["song-noted"]

    yield declare
    if "song-noted" in EVENT_TYPES:
        withdraw("song-noted")


def test_a_sentence_names_only_fields_of_its_model(declare: Callable[[Any], EventType]) -> None:
    with pytest.raises(ValueError, match="'song-noted' names fields that SongNoted lacks: at, name"):
        declare("noted {note} of {name} at {at}")
    assert "song-noted" not in EVENT_TYPES


def test_a_missing_field_has_its_default_and_none_is_a_dash(declare: Callable[[Any], EventType]) -> None:
    noted = declare("noted {note} {times} times")
    assert noted.describe({"note": "x", "times": 2}) == "noted 'x' 2 times"
    assert noted.describe({"note": None}) == noted.describe({}) == "noted — 1 times"


@pytest.mark.parametrize("sentence", ["marked {marks}", lambda data: f"noted {data['note'].upper()}"])
def test_an_event_with_a_failing_sentence_gets_the_general_one(
    declare: Callable[[Any], EventType], sentence: Any
) -> None:
    noted = declare(sentence)
    assert noted.describe({"marks": [1]}) == "recorded 'song-noted'"
    with pytest.raises(ValueError, match="marks"):
        noted.describe({"marks": {"x": 1}})


def test_an_event_without_a_sentence_gets_the_general_one(songs: EventType) -> None:
    assert songs.describe({"title": "Aria", "singers": ["Ann"]}) == "recorded 'song-sung'"
    assert songs.headline == "'song-sung' was recorded"


@pytest.mark.usefixtures("songs")
@pytest.mark.parametrize(
    "state",
    [
        stored({"name": "Aria", "singer": "Ann"}, a="ann", m={"k": None}),
        stored({"name": "Aria", "singer": "Ann"}, v=1, a="ann", m={"k": None}),
        stored({"title": "Aria", "singer": "Ann"}, v=2, a="ann", m={"k": None}),
        stored({"title": "Aria", "singers": ["Ann"]}, v=3, a="ann", m={"k": None}),
    ],
    ids=["without version", "first", "second", "present"],
)
def test_every_schema_version_reads_as_the_present_one(state: bytes) -> None:
    decoded = envelope.decode("default/thread/a", 2, SONG, state, 9, b"h")
    data: Any = decoded.data
    assert data == SongSung(title="Aria", singers=("Ann",))
    assert (decoded.event_id, decoded.recorded_at, decoded.messages, decoded.actor) == ("e", 1, 0, "ann")
    assert (decoded.metadata, decoded.position, decoded.hash) == ({"k": None}, 9, b"h")


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
def test_data_that_does_not_fit_its_schema_version_is_corrupt(state: bytes) -> None:
    with pytest.raises(CorruptEventError, match="song-sung"):
        envelope.decode("default/thread/a", 2, SONG, state)
