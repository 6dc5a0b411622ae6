"""Synthetic conversations and stores, generated quickly at any size."""

from __future__ import annotations

import json
import os
import random
import string
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
from clew.domain.ports import Row
from clew.domain.streams import stream_name
from clew.infrastructure.envelope import encode
from clew.infrastructure.recorder_ports import Append, Recorder
from clew.infrastructure.stores import store_at

SAMPLES = Path(__file__).parent.parent / "examples"
BATCH_SIZE = 5_000
"""Events per append."""

START = 1_700_000_000_000_000
"""Start of the first thread in microseconds since 1970; events are a millisecond apart."""

CHARACTERS = 200
"""Length of a message."""

WORDS = 50_000
VALUES = 20


class MessageGenerator:
    """Repeatable random messages that neither compress nor repeat."""

    def __init__(self, seed: int = 1) -> None:
        self._random = random.Random(seed)
        self._words = [
            "".join(self._random.choices(string.ascii_lowercase, k=3 + number % 8)) for number in range(4096)
        ]

    def text(self, characters: int = CHARACTERS) -> str:
        """Words with that many characters in total."""
        return " ".join(self._random.choices(self._words, k=characters // 4))[:characters]

    def message(self, characters: int = CHARACTERS) -> Message:
        """A user's message."""
        return Message.user(self.text(characters))

    def turn(self) -> tuple[Message, Message]:
        """A user's message and its answer."""
        return self.message(), Message.assistant(self.text())

    def messages(self, count: int) -> list[Message]:
        """That many user messages."""
        return [self.message() for _ in range(count)]


def write_conversations(path: Path, count: int) -> None:
    """Write a file of conversations in the OpenAI chat format, with 21 messages each: five turns with a tool call."""
    texts = MessageGenerator()
    with path.open("w") as file:
        for number in range(count):
            messages: list[dict[str, Any]] = [{"role": "system", "content": texts.text(400)}]
            for turn in range(5):
                call_id = f"call_{number}_{turn}"
                function = {"name": "find_orders", "arguments": json.dumps({"customer": number})}
                rows = [{"id": row, "item": texts.text(20), "price": 1.5 * row} for row in range(6)]
                messages += [
                    {"role": "user", "content": texts.text()},
                    {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
                    },
                    {"role": "tool", "tool_call_id": call_id, "name": "find_orders", "content": json.dumps(rows)},
                    {"role": "assistant", "content": texts.text()},
                ]
            file.write(json.dumps({"id": number, "messages": messages}) + "\n")


def corpus_files() -> list[Path]:
    """Files of conversations. ``CLEW_CORPUS`` names a file or a directory; default: the samples."""
    configured = os.environ.get("CLEW_CORPUS")
    corpus = Path(configured) if configured else SAMPLES
    return sorted(corpus.glob("**/*.jsonl")) if corpus.is_dir() else [corpus]


def repeated_conversations(path: Path, events: int) -> int:
    """Fill a store with repetitions of the corpus under new ids. Returns the number of events."""
    return repeated_in(store_url(path), events)


def repeated_in(url: str, events: int) -> int:
    """The same for the store at a URL."""
    with Conversations.open(url, embedded=False) as conversations:
        conversations.import_files(corpus_files())
    with closing(store_at(url).open_log()) as log:
        rows = cast("Recorder", log.recorder).rows(after=0, limit=events)
        _append(cast("Recorder", log.recorder), islice(_repeat(rows), events - len(rows)))
    return events


def many_threads(path: Path, threads: int) -> int:
    """Fill a store with threads of one message, with a common label ``channel`` and one of 20 labels ``team``.

    Returns the number of events.
    """
    with closing(store_at(store_url(path)).open_log()) as log:
        _append(cast("Recorder", log.recorder), _threads(threads))
    return 2 * threads


def many_messages(path: Path, messages: int) -> int:
    """Fill a store with messages, 100 per thread, with natural word frequencies. Returns the number of events.

    Word number n has the frequency 1/n; one message of twenty is from the corpus.
    """
    corpus = corpus_texts()
    chance = random.Random(1)
    words = vocabulary()
    weights = list(accumulate(1 / number for number in range(1, WORDS + 1)))

    def texts() -> Iterator[str]:
        while True:
            drawn = chance.choices(words, cum_weights=weights, k=12_000)
            begin = 0
            for number in range(1_000):
                end = begin + 8 + number % 9
                yield chance.choice(corpus) if number % 20 == 0 else " ".join(drawn[begin:end])
                begin = end

    with closing(store_at(store_url(path)).open_log()) as log:
        _append(cast("Recorder", log.recorder), _conversations(islice(texts(), messages)))
    return messages + -(-messages // 100)


def vocabulary() -> list[str]:
    """Generated words, the most frequent first. None of them is in the corpus."""
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    return [_word(number, syllables) for number in range(WORDS)]


def corpus_texts() -> list[str]:
    """The message texts of the corpus."""
    with Conversations.open("memory:", embedded=False) as conversations:
        conversations.import_files(corpus_files())
        messages: list[Any] = [message for each in conversations.export() for message in cast("Any", each["messages"])]
        return [message["content"] for message in messages if isinstance(message["content"], str)]


def _word(number: int, syllables: list[str]) -> str:
    word = "qu"
    while True:
        number, rest = divmod(number, len(syllables))
        word += syllables[rest]
        if not number:
            return word


def _repeat(rows: list[Row]) -> Iterator[StoredEvent]:
    """The same rows without end, each time under new names."""
    time = 0
    while True:
        time += 1
        for row in rows:
            yield StoredEvent(f"{row.stream}-{time}", row.version, row.type, row.state)


def _threads(count: int) -> Iterator[StoredEvent]:
    for number in range(count):
        name = thread_id_of(number)
        labels: JsonObject = {"channel": "web", "team": f"team {number % VALUES}"}
        started = ThreadStarted(title=f"Conversation {number}", labels=labels, metadata={"number": number})
        yield thread_event(name, 1, started, 2 * number, 0)
        yield thread_event(name, 2, MessageAppended(message=Message.user("Where is my parcel?")), 2 * number + 1, 1)


def _conversations(texts: Iterable[str]) -> Iterator[StoredEvent]:
    for number, text in enumerate(texts):
        thread, version = divmod(number, 100)
        name = thread_id_of(thread)
        if version == 0:
            yield thread_event(name, 1, ThreadStarted(), number, 0)
        message = Message.user(text) if version % 2 == 0 else Message.assistant(text)
        yield thread_event(name, version + 2, MessageAppended(message=message), number, version + 1)


def thread_id_of(number: int) -> str:
    """The id of a generated thread. As with real ids, their order differs from the order of creation."""
    return f"{number * 2_654_435_761 % 2**32:08x}"


def thread_event(thread: str, version: int, data: ThreadEvent, number: int, messages: int) -> StoredEvent:
    """A stored event of a generated thread: the ``number``-th of all, after that many messages."""
    stream = stream_name("default", "thread", thread)
    type_ = "thread-started" if isinstance(data, ThreadStarted) else "message-appended"
    event_id = f"00000000-0000-7000-8000-{number:012d}"
    event = Event(stream, version, type_, event_id, START + number * 1_000, messages, data)
    return StoredEvent(stream, version, type_, encode(event))


def _append(recorder: Recorder, events: Iterator[StoredEvent]) -> None:
    while batch := list(islice(events, BATCH_SIZE)):
        recorder.submit(Append(batch)).result()
