"""The mapper: between Clew's events and the library's four-field stored events."""

from __future__ import annotations

from typing import Any

from eventsourcing.persistence import JSONTranscoder, Mapper, StoredEvent

from clew.domain.events import Event
from clew.infrastructure.envelope import decode, encode


class EnvelopeMapper(Mapper[str]):
    """Looks types up in Clew's closed registry.

    The library's own mapper imports what a stored row names, and its transcoder changes user data that looks like its
    tags: neither is used.
    """

    def __init__(self) -> None:
        super().__init__(transcoder=JSONTranscoder())

    def to_stored_event(self, domain_event: Any) -> StoredEvent:
        """The stored form of an Event. Raises InvalidContentError for one that is too large."""
        event: Event = domain_event
        return StoredEvent(event.stream, event.version, event.type, encode(event))

    def to_domain_event(self, stored_event: StoredEvent) -> Any:
        """The Event that a stored event holds; unknown types are opaque. Raises CorruptEventError."""
        return decode(
            str(stored_event.originator_id),
            stored_event.originator_version,
            stored_event.topic,
            stored_event.state,
        )
