"""The formats of other programs, and how each is recognised."""

from __future__ import annotations

from typing import Any

from clew.domain.formats.agent_framework_sessions import is_agent_framework, read_agent_framework
from clew.domain.formats.assistants_threads import is_assistants, read_assistants
from clew.domain.formats.chatgpt_export import is_chatgpt, read_chatgpt
from clew.domain.formats.claude_export import is_claude, read_claude
from clew.domain.formats.conversation_import import Item
from clew.domain.formats.responses_items import is_session, read_session
from clew.domain.formats.semantic_kernel_chats import is_semantic_kernel, read_semantic_kernel
from clew.domain.formats.traces import is_trace, read_trace
from clew.domain.formats.transcripts import Transcript


def is_foreign(value: object) -> bool:
    """Whether parsed JSON is a conversation of another program."""
    formats = (is_chatgpt, is_claude, is_session, is_agent_framework, is_assistants, is_semantic_kernel, is_trace)
    return any(is_of(value) for is_of in formats)


def read_transcript(item: Item) -> Transcript | None:
    """The conversation of another program, None for messages of Chat Completions and for anything else.

    Raises ImportFormatError, and InvalidContentError for JSON that cannot be stored.
    """
    value: Any = item.value
    if is_chatgpt(value):
        return read_chatgpt(value, item.files)
    if is_claude(value):
        return read_claude(value, item.files)
    if is_session(value):
        return read_session(value)
    if is_agent_framework(value):
        return read_agent_framework(value)
    if is_assistants(value):
        return read_assistants(value)
    if is_semantic_kernel(value):
        return read_semantic_kernel(value)
    if is_trace(value):
        return read_trace(value)
    return None
