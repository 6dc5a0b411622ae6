"""What was said in messages, as the words of a search."""

from __future__ import annotations

from collections.abc import Sequence

from clew.domain.history import HistoryMessage

_LONGEST = 4_000


def words_of(messages: Sequence[HistoryMessage]) -> str:
    """What people and agents said; of a long text its end, where people ask. Empty when nothing was said."""
    texts = (each.text.strip() for each in messages if each.role in {"user", "assistant"})
    return "\n".join(text for text in texts if text)[-_LONGEST:].strip()
