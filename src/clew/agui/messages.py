"""Messages of a thread as messages of AG-UI, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ag_ui import core

from clew.domain.events import Event
from clew.domain.history import HistoryMessage
from clew.domain.messages import FunctionResult, Media, Message, Reasoning, Text
from clew.domain.models.chat_requests import media_type, result_words
from clew.domain.models.client import TokenUsage
from clew.domain.runs.state import RunState, after

METADATA = "ag-ui"
"""The key in a message's metadata under which its id at the client is stored."""

_PARTS = {"image": core.ImagePart, "audio": core.AudioPart, "video": core.VideoPart}


class UnsupportedContentError(Exception):
    """A message of a client has a content that Clew cannot store."""


def message_id(run: str, number: int) -> str:
    """The id of a message that a run added: known before the message is recorded."""
    return f"{run}-{number}"


def version_id(version: int) -> str:
    """The id of a message that neither a run added nor a client of AG-UI sent."""
    return f"clew-{version}"


def call_id(answer: str, index: int) -> str:
    """The id of a call in an answer. Unlike the ids that models give, it is unique in the thread."""
    return f"{answer}.{index}"


def reasoning_id(answer: str) -> str:
    """The id of the reasoning before an answer."""
    return f"{answer}.reasoning"


def result_id(message: str, index: int) -> str:
    """The id of a result in a message with results."""
    return f"{message}.{index}" if index else message


def result_of(call: str) -> str:
    """The key under which a reader notes that it has the result of a call: clients give it an id of their own."""
    return f"{call}.result"


def reasoning_text(message: HistoryMessage) -> str:
    """The reasoning in an answer."""
    return "".join(each.text for each in message.contents if isinstance(each, Reasoning))


def result_content(result: FunctionResult) -> str | list[Any]:
    """The content of a tool's result: its text as the model reads it, or texts and media."""
    if any(isinstance(each, Media) for each in result.contents):
        return [_part(each) for each in result.contents]
    return result_words(result)


class Pairing:
    """Pairs results with calls. Ids that models give to calls recur: results are paired by order."""

    def __init__(self) -> None:
        self._waiting: list[tuple[str, str]] = []

    def answered(self, answer: str, message: HistoryMessage) -> None:
        """Note the calls of an answer."""
        if message.calls:
            self._waiting = [(call.call_id, call_id(answer, index)) for index, call in enumerate(message.calls)]

    def call(self, given: str) -> str:
        """The id of the first call without a result to which the model gave that id."""
        return next((id_ for own, id_ in self._waiting if own == given), given)

    def taken(self, given: str) -> str:
        """The same; the call has a result now."""
        found = self.call(given)
        self._waiting = [each for each in self._waiting if each[1] != found]
        return found


async def agui_messages(thread: Any) -> list[core.Message]:
    """The history of a thread as messages of AG-UI, with the ids that the events of its runs have.

    It reads the whole thread.
    """
    ids = message_ids([event async for event in thread.events()])
    return as_agui((await thread.history()).messages, ids)


def message_ids(events: Iterable[Event]) -> dict[int, str]:
    """The ids of the messages that runs added, by version."""
    runs: dict[str, RunState] = {}
    for event in events:
        if event.run_id is not None:
            runs[event.run_id] = after(runs.get(event.run_id) or RunState(event.run_id), event)
    ids: dict[int, str] = {}
    places: dict[str, tuple[str, int]] = {}
    for run, state in runs.items():
        before = None if state.handed_from is None else state.handed_from.run_id
        first, number = places.get(before or "", (run, 0))  # the runs of a conversation count on
        places[run] = first, number + len(state.added)
        ids |= {each.version: message_id(first, number + n) for n, each in enumerate(state.added)}
    return ids


def as_agui(messages: Sequence[HistoryMessage], ids: Mapping[int, str]) -> list[core.Message]:
    """The messages of a history; ``ids`` are those of the messages that runs added, by version."""
    made: list[core.Message] = []
    pairing = Pairing()
    for message in messages:
        id_ = ids.get(message.version) or client_id(message) or version_id(message.version)
        name = None if message.version in ids else message.author
        made += _as_agui(message, id_, name, pairing)
    return made


def _as_agui(message: HistoryMessage, id_: str, name: str | None, pairing: Pairing) -> list[core.Message]:
    match message.role:
        case "user":
            return [core.UserMessage(id=id_, content=_user_content(message), name=name)]
        case "assistant":
            pairing.answered(id_, message)
            calls = [
                core.ToolCall(
                    id=call_id(id_, index), function=core.FunctionCall(name=each.name, arguments=each.arguments)
                )
                for index, each in enumerate(message.calls)
            ]
            thoughts = reasoning_text(message)
            reasoning = [core.ReasoningMessage(id=reasoning_id(id_), content=thoughts)] if thoughts else []
            content = message.text if message.text or not calls else None
            return [*reasoning, core.AssistantMessage(id=id_, content=content, tool_calls=calls or None, name=name)]
        case "tool":
            return [
                core.ToolMessage(
                    id=result_id(id_, index), content=result_content(each), tool_call_id=pairing.taken(each.call_id)
                )
                for index, each in enumerate(message.results)
            ]
        case "system":
            return [core.SystemMessage(id=id_, content=message.text)]
        case _:
            return [core.DeveloperMessage(id=id_, content=message.text)]


def usage_of(usage: TokenUsage) -> list[core.TokenUsage] | None:
    """The tokens of a run, None if the service has not counted them."""
    if not usage.total_tokens:
        return None
    counted = core.TokenUsage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        total_tokens=usage.total_tokens,
        cached_input_tokens=usage.cached_tokens or None,
        reasoning_tokens=usage.reasoning_tokens or None,
    )
    return [counted]


def client_id(message: HistoryMessage) -> str | None:
    """The id that a client gave to a message."""
    own = message.message.metadata.get(METADATA) if message.message is not None else None
    id_ = own.get("id") if isinstance(own, dict) else None
    return id_ if isinstance(id_, str) else None


def as_clew(message: core.UserMessage) -> Message:
    """A message of a client. Raises UnsupportedContentError."""
    given = message.content
    parts: Sequence[Any] = [core.TextPart(text=given)] if isinstance(given, str) else given
    contents = tuple(part_content(part) for part in parts)
    return Message(role="user", author=message.name, contents=contents, metadata={METADATA: {"id": message.id}})


def part_content(part: Any) -> Text | Media:
    """A part of a client's message as a content. Raises UnsupportedContentError."""
    if isinstance(part, core.TextPart):
        return Text(text=part.text)
    source = part.source
    metadata = part.metadata if isinstance(part.metadata, dict) else {}
    name = metadata.get("filename")
    if isinstance(source, core.DataSource):
        uri = f"data:{source.mime_type};base64,{source.value}"
    elif isinstance(source, core.UrlSource):
        uri = source.value
    else:
        raise UnsupportedContentError("Clew cannot read files of a service. Send their data or a URL.")
    return Media(uri=uri, media_type=source.mime_type, name=name if isinstance(name, str) else None)


def _user_content(message: HistoryMessage) -> str | list[Any]:
    contents = message.contents
    if any(isinstance(each, Media) for each in contents):
        return [_part(each) for each in contents if isinstance(each, Text | Media)]
    return message.text


def _part(content: Text | Media) -> Any:
    if isinstance(content, Text):
        return core.TextPart(text=content.text)
    type_ = media_type(content)
    head, comma, data = content.uri.partition(";base64,")
    source: core.DataSource | core.UrlSource
    if comma and head.startswith("data:"):
        source = core.DataSource(value=data, mime_type=type_ or "application/octet-stream")
    else:
        source = core.UrlSource(value=content.uri, mime_type=type_ or None)
    made = _PARTS.get(type_.partition("/")[0], core.DocumentPart)
    return made(source=source, metadata={"filename": content.name} if content.name else None)
