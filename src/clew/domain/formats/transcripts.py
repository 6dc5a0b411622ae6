"""Conversations of other programs: trees of messages and records, and the paths through them that become threads.

A conversation with several versions of a message is a tree. The path to the message that its program shows becomes one
thread; each message next to this path begins a fork. A thread stays on its path in later imports, even if the program
shows another one by then: the thread has a record of the node that its path leads to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeAlias

from clew.domain.decider import Said, Start, message_appended
from clew.domain.errors import ImportFormatError, InvalidContentError
from clew.domain.events import MessageAppended, RecordAppended, Source
from clew.domain.formats.openai_messages import encode
from clew.domain.history import HistoryMessage
from clew.domain.json_values import Json, JsonObject, check_json
from clew.domain.media_types import media_of_bytes
from clew.domain.messages import Media, Message, check_message
from clew.domain.records import Record, ThreadRecord, record_appended

_IMPORT = "import"
_LONGEST_NAME = 40


class ExportedFile(NamedTuple):
    """A file of an export."""

    name: str
    data: bytes


Files: TypeAlias = Callable[[str], ExportedFile | None]
"""Finds a file of an export by its id or its name; None if the export does not have it, or if it is too large."""


class Entry(NamedTuple):
    """A message or a record, and when it was said, in microseconds since 1970."""

    event: MessageAppended | RecordAppended
    said: int | None = None


class Node(NamedTuple):
    """A node of a conversation. It may have no entry, as the root of a tree, or several."""

    id: str
    parent: str | None
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Transcript:
    """A conversation of another program. ``format`` names its format.

    ``nodes`` are in an order in which the versions of a message follow one another; ``shown`` is the last node of the
    path that the program shows. Without ``branches``, the nodes are a list. ``labels`` are those of its thread.
    """

    format: str
    id: str
    title: str | None
    fields: JsonObject
    nodes: Mapping[str, Node]
    shown: str | None = None
    branches: bool = False
    labels: JsonObject = field(default_factory=dict)

    @cached_property
    def children(self) -> dict[str | None, list[str]]:
        """The nodes below each node; those below None are the roots. Raises ImportFormatError for a circle."""
        below: dict[str | None, list[str]] = {}
        for node in self.nodes.values():
            below.setdefault(node.parent if node.parent in self.nodes else None, []).append(node.id)
        found, pending = 0, list(below.get(None, ()))
        while pending:
            found += 1
            pending += below.get(pending.pop(), ())
        if found < len(self.nodes):
            raise ImportFormatError(
                f"{len(self.nodes) - found} of its {len(self.nodes)} messages answer each other in a circle."
            )
        return below

    @cached_property
    def spoken(self) -> frozenset[str]:
        """The nodes that have an entry, or a node below them that has one."""
        found: set[str] = set()
        for node in self.nodes.values():
            if node.entries:
                for above in self._up(node.id):
                    if above in found:
                        break
                    found.add(above)
        return frozenset(found)

    @cached_property
    def _shown_path(self) -> frozenset[str]:
        return frozenset(self._up(self.shown))

    def path(self, first: str | None = None, leads_to: str | None = None) -> TranscriptPath:
        """The path of the main thread, or of the fork that begins with the node ``first``.

        It goes through the node ``leads_to``, and where that leaves a choice to the node that the program shows, and
        otherwise through the newest version of each message.
        """
        upwards = list(self._up(leads_to))
        if first is not None and first not in upwards:
            upwards = list(self._up(first))
        nodes = upwards[::-1]
        last = nodes[-1] if nodes else None
        while below := self.children.get(last):
            last = next((node for node in below if node in self._shown_path), below[-1])
            nodes.append(last)
        return TranscriptPath(self, first, tuple(nodes))

    def _up(self, node: str | None) -> Iterator[str]:
        _ = self.children  # there is no circle
        while node is not None and node in self.nodes:
            yield node
            node = self.nodes[node].parent


@dataclass(frozen=True)
class TranscriptPath:
    """A path through a transcript, which becomes a thread. ``first`` is the first node of a fork."""

    transcript: Transcript
    first: str | None
    nodes: tuple[str, ...]

    @property
    def id(self) -> Json:
        """The id of the conversation in its program."""
        return self.transcript.id

    def key(self, occurrence: int = 1) -> Json:
        """The key of its thread: the ids of two programs are different conversations."""
        del occurrence
        key: list[Json] = [self.transcript.format, self.transcript.id]
        return key if self.first is None else [*key, self.first]

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """All entries from the root, inherited ones included."""
        nodes = self.transcript.nodes
        return tuple([entry for node in self.nodes for entry in nodes[node].entries])

    @cached_property
    def shared(self) -> int:
        """The number of entries that a fork inherits."""
        nodes, shared = self.transcript.nodes, 0
        for node in self.nodes:
            if node == self.first:
                return shared
            shared += len(nodes[node].entries)
        return 0

    @cached_property
    def values(self) -> list[Json]:
        """The entries as JSON that can be compared."""
        return [_comparable(entry.event) for entry in self.entries]

    @property
    def media_size(self) -> int:
        """The number of characters of the media in its messages."""
        messages = (entry.event.message for entry in self.entries if isinstance(entry.event, MessageAppended))
        return sum(len(each.uri) for message in messages for each in message.contents if isinstance(each, Media))

    def forks(self) -> Iterator[str]:
        """The first nodes of the forks that leave this path. Those without any entry are left out."""
        children, spoken = self.transcript.children, self.transcript.spoken
        start = 0 if self.first is None else self.nodes.index(self.first) + 1
        for parent, taken in zip((None, *self.nodes)[start:], (*self.nodes, None)[start:], strict=True):
            for node in children.get(parent, ()):
                if node != taken and node in spoken:
                    yield node

    def appended(self, first: int = 0) -> tuple[MessageAppended | RecordAppended, ...]:
        """The events of its entries from an index on, and the record of the import."""
        return (*[entry.event for entry in self.entries[first:]], *self._import_record())

    def said_from(self, first: int = 0) -> Said:
        """When each of these was said; empty if that is not known of any."""
        times = [entry.said for entry in self.entries[first:]]
        known = [time for time in times if time is not None]
        return (*times, *[known[-1] for _ in self._import_record()]) if known else ()

    def start(self) -> Start:
        """The intent that starts its thread."""
        transcript = self.transcript
        title: JsonObject = {} if transcript.title is None else {"title": transcript.title}
        return Start(
            title=transcript.title,
            labels=transcript.labels,
            source=Source(id=transcript.id, fields={**title, "format": transcript.format, **transcript.fields}),
            messages=self.appended(),
            said=self.said_from(),
        )

    def stored(
        self, messages: Sequence[HistoryMessage], records: Sequence[ThreadRecord]
    ) -> tuple[list[Json | None], list[int]]:
        """The entries of a thread as ``values``, None for a redacted one, and their versions.

        Records of other types are the application's own.
        """
        prefix, own = f"{self.transcript.format}.", import_type(self.transcript.format)
        items: list[HistoryMessage | ThreadRecord] = list(messages)
        items += [record for record in records if record.type.startswith(prefix) and record.type != own]
        items.sort(key=lambda item: item.version)
        return [_stored(item) for item in items], [item.version for item in items]

    def _import_record(self) -> tuple[RecordAppended, ...]:
        if not self.transcript.branches or not self.nodes:
            return ()
        return (RecordAppended(type=import_type(self.transcript.format), data={"leads_to": self.nodes[-1]}),)


def import_type(format_: str) -> str:
    """The type of the record that an import of this format leaves in the thread of a conversation with branches."""
    return f"{format_}.{_IMPORT}"


def record_counts(events: Iterable[object]) -> Counter[str]:
    """The number of records of each type, without those of imports."""
    types = (event.type for event in events if isinstance(event, RecordAppended))
    return Counter(type_ for type_ in types if not type_.endswith(f".{_IMPORT}"))


def leads_to(record: ThreadRecord) -> str | None:
    """The node that the path of a thread leads to, from the record of its import."""
    match record.data:
        case {"leads_to": str(node)}:
            return node
        case _:
            return None


def message(role_message: Message, said: int | None = None) -> Entry:
    """The entry of a message. Raises InvalidContentError if it cannot be stored."""
    check_message(role_message)
    return Entry(message_appended(role_message), said)


def record(format_: str, kind: object, data: Json, key: str, said: int | None = None) -> Entry:
    """The entry of something that has no counterpart. Raises InvalidContentError if it cannot be stored."""
    is_name = isinstance(kind, str) and kind.replace("-", "_").isidentifier() and len(kind) <= _LONGEST_NAME
    name = kind if is_name and kind != _IMPORT else "item"
    return Entry(record_appended(Record(f"{format_}.{name}", data, key=key or None)), said)


def media(uri: str, found: ExportedFile | None, media_type: object = None, name: object = None) -> Media:
    """Media with the bytes of a file of the export, or else with only the address that the export names."""
    type_ = media_type if isinstance(media_type, str) and "/" in media_type else None
    named = name if isinstance(name, str) and name else None
    if found is None:
        return Media(uri=uri, media_type=type_, name=named)
    try:
        return media_of_bytes("File", found.data, media_type=type_, name=named or found.name, named=found.name)
    except InvalidContentError:  # its type is not known
        return media_of_bytes("File", found.data, media_type="application/octet-stream", name=named or found.name)


def checked_fields(value: Mapping[str, Json], without: set[str]) -> JsonObject:
    """The fields of a conversation except some. Raises InvalidContentError for JSON that cannot be stored."""
    fields = {name: item for name, item in value.items() if name not in without}
    check_json(fields, "the conversation")
    return fields


def text_or_none(value: object) -> str | None:
    """The value if it is a text that is not empty."""
    return value if isinstance(value, str) and value else None


def identifier(value: object, what: str) -> str:
    """The value if it can be an id. Raises ImportFormatError."""
    if isinstance(value, str) and value:
        return value
    raise ImportFormatError(f"{what} has no id. The file may be damaged: export it again.")


def _comparable(event: MessageAppended | RecordAppended) -> Json:
    if isinstance(event, RecordAppended):
        return [event.type, event.data, event.key]
    encoded = encode(event.message)
    return encoded[0] if len(encoded) == 1 else list(encoded)


def _stored(item: HistoryMessage | ThreadRecord) -> Json | None:
    if isinstance(item, ThreadRecord):
        return None if item.redacted else [item.type, item.data, item.key]
    return None if item.message is None else _comparable(message_appended(item.message))
