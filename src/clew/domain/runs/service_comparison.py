"""Compares the messages that a service holds with the record of the thread, both in the service's format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from clew.domain.differences.diff import Diff, diff
from clew.domain.history import History, HistoryMessage
from clew.domain.messages import Message
from clew.domain.models.answer_parts import as_objects
from clew.domain.models.client import Question
from clew.domain.models.request_encoding import request_body
from clew.domain.models.responses_answers import bare, item_messages


def reconciled(record: History, held: Sequence[Message]) -> Diff:
    """The difference between the record, ``a``, and the messages that a service holds, ``b``.

    A service stores no authors and no metadata, and results only as text. So the record is converted to the service's
    items and back before the comparison. Adjacent messages of the assistant become one, with the version of the last.
    ``b`` counts messages where ``a`` has versions. A redacted message differs from every message of the service.
    """
    ours = History(record.thread_id, record.version, tuple(_joined(_as_service_messages(record))))
    numbered = (
        HistoryMessage(number, message.role, _bare(message), "", 0) for number, message in enumerate(held, start=1)
    )
    theirs = tuple(_joined(numbered))
    return diff(ours, History(record.thread_id, len(held), theirs))


def _bare(message: Message) -> Message:
    return Message(role=message.role, contents=tuple(bare(content) for content in message.contents))


def _as_service_messages(record: Iterable[HistoryMessage]) -> Iterator[HistoryMessage]:
    for said in record:
        if said.message is None:
            yield said
            continue
        items = request_body("openai-responses", Question("", (said.message,)))["input"]
        for message in item_messages(as_objects(items)):
            yield said._replace(role=message.role, message=_bare(message))


def _joined(messages: Iterable[HistoryMessage]) -> Iterator[HistoryMessage]:
    """The messages, with adjacent ones of the assistant joined."""
    last: HistoryMessage | None = None
    for said in messages:
        if last is None or last.message is None or said.message is None or not last.role == said.role == "assistant":
            if last is not None:
                yield last
            last = said
            continue
        contents = (*last.message.contents, *said.message.contents)
        last = said._replace(message=Message(role="assistant", contents=contents))
    if last is not None:
        yield last
