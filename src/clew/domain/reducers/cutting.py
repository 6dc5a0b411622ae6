"""Cutting the results in a message: what is left of them is text, and says how long it was."""

from __future__ import annotations

from clew.domain.history import HistoryMessage
from clew.domain.messages import Content, FunctionResult
from clew.domain.models.request_parts import result_text

SHORTEST = 40
"""The fewest characters that a result can be cut to: the note on how long it was has room in them."""


def cut(said: HistoryMessage, characters: int) -> HistoryMessage:
    """The message with each of its results cut to so many characters, the note among them."""
    if said.message is None:
        return said
    contents = tuple(_cut(content, characters) for content in said.message.contents)
    if contents == said.message.contents:
        return said
    # What its source says of the whole is not true of the rest.
    return said._replace(message=said.message.model_copy(update={"contents": contents, "source": {}}))


def _cut(content: Content, characters: int) -> Content:
    if not isinstance(content, FunctionResult):
        return content
    text = result_text(content.result)
    if len(text) <= characters:
        return content
    note = f"… [cut: {len(text)} characters]"
    return content.model_copy(update={"result": text[: max(0, characters - len(note))] + note})
