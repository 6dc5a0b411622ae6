"""Stores of made data: as large as it takes, quickly made, with the shapes of conversations."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, cast

from eventsourcing.persistence import StoredEvent

from benchmarks.measurement import store_url
from clew import Conversations, Message
from clew.domain.events import Event, MessageAppended, ThreadEvent, ThreadStarted
from clew.domain.json_values import JsonObject
from clew.domain.names import stream_name
from clew.infrastructure.envelope import encode
from clew.infrastructure.recorder import Append, Recorder, Row
from clew.infrastructure.stores import store_at

SAMPLES = Path(__file__).parent.parent / "examples"
AT_ONCE = 5_000
"""Events of one append."""

BEGAN = 1_700_000_000_000_000
"""When the first thread began, in microseconds since 1970; events follow each other by a millisecond."""

WORDS = 50_000
VALUES = 20


def corpus_files() -> list[Path]:
    """The files of conversations: ``CLEW_CORPUS`` names a file or a directory, else it is the samples."""
    named = os.environ.get("CLEW_CORPUS")
    corpus = Path(named) if named else SAMPLES
    return sorted(corpus.glob("**/*.jsonl")) if corpus.is_dir() else [corpus]


def repeated_conversations(path: Path, events: int) -> int:
    """Fill a store with the corpus' conversations over and over, each time with other ids; the number of events."""
    return repeated_in(store_url(path), events)


def repeated_in(url: str, events: int) -> int:
    """The same in the store that a URL names."""
    with Conversations.open(url, embedded=False) as conversations:
        conversations.import_files(corpus_files())
    with closing(store_at(url).open_log()) as log:
        rows = cast("Recorder", log.recorder).rows(after=0, limit=events)
        _append(cast("Recorder", log.recorder), islice(_again(rows), events - len(rows)))
    return events


def many_threads(path: Path, threads: int) -> int:
    """Fill a store with threads of one message, labelled ``channel`` (all alike) and ``team`` (of 20); their events."""
    with closing(store_at(store_url(path)).open_log()) as log:
        _append(cast("Recorder", log.recorder), _threads(threads))
    return 2 * threads


def many_messages(path: Path, messages: int) -> int:
    """Fill a store with messages, a hundred a thread, of words as unevenly used as a language's; the number of events.

    Word number n is said as often as 1/n; one message of twenty is one of the corpus'.
    """
    texts = corpus_texts()
    chance = random.Random(1)
    words = vocabulary()
    weights = list(accumulate(1 / number for number in range(1, WORDS + 1)))

    def said() -> Iterator[str]:
        while True:
            drawn = chance.choices(words, cum_weights=weights, k=12_000)
            begin = 0
            for number in range(1_000):
                end = begin + 8 + number % 9
                yield chance.choice(texts) if number % 20 == 0 else " ".join(drawn[begin:end])
                begin = end

    with closing(store_at(store_url(path)).open_log()) as log:
        _append(cast("Recorder", log.recorder), _conversations(islice(said(), messages)))
    return messages + -(-messages // 100)


def vocabulary() -> list[str]:
    """Made words, the most used first: none of them is a word of the corpus."""
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    return [_word(number, syllables) for number in range(WORDS)]


def corpus_texts() -> list[str]:
    """The texts of the corpus' messages."""
    with Conversations.open("memory:", embedded=False) as conversations:
        conversations.import_files(corpus_files())
        said: list[Any] = [message for each in conversations.export() for message in cast("Any", each["messages"])]
        return [message["content"] for message in said if isinstance(message["content"], str)]


def _word(number: int, syllables: list[str]) -> str:
    found = "qu"
    while True:
        number, rest = divmod(number, len(syllables))
        found += syllables[rest]
        if not number:
            return found


def _again(rows: list[Row]) -> Iterator[StoredEvent]:
    """The same rows under other names."""
    time = 0
    while True:
        time += 1
        for row in rows:
            yield StoredEvent(f"{row.stream}-{time}", row.version, row.type, row.state)


def _threads(count: int) -> Iterator[StoredEvent]:
    for number in range(count):
        name = made_id(number)
        labels: JsonObject = {"channel": "web", "team": f"team {number % VALUES}"}
        began = ThreadStarted(title=f"Conversation {number}", labels=labels, metadata={"number": number})
        yield made_event(name, 1, began, 2 * number, 0)
        yield made_event(name, 2, MessageAppended(message=Message.user("Where is my parcel?")), 2 * number + 1, 1)


def _conversations(texts: Iterable[str]) -> Iterator[StoredEvent]:
    for number, text in enumerate(texts):
        thread, version = divmod(number, 100)
        name = made_id(thread)
        if version == 0:
            yield made_event(name, 1, ThreadStarted(), number, 0)
        message = Message.user(text) if version % 2 == 0 else Message.assistant(text)
        yield made_event(name, version + 2, MessageAppended(message=message), number, version + 1)


def made_id(number: int) -> str:
    """The id of a made thread. As with Clew's own, their order is not that in which the threads began."""
    return f"{number * 2_654_435_761 % 2**32:08x}"


def made_event(thread: str, version: int, data: ThreadEvent, number: int, messages: int) -> StoredEvent:
    """An event of a made thread as it is stored: the ``number``-th of all, after so many messages."""
    stream = stream_name("default", "thread", thread)
    type_ = "thread-started" if isinstance(data, ThreadStarted) else "message-appended"
    event_id = f"00000000-0000-7000-8000-{number:012d}"
    event = Event(stream, version, type_, event_id, BEGAN + number * 1_000, messages, data)
    return StoredEvent(stream, version, type_, encode(event))


def _append(recorder: Recorder, events: Iterator[StoredEvent]) -> None:
    while batch := list(islice(events, AT_ONCE)):
        recorder.submit(Append(batch)).result()
