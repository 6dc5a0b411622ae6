"""The errors of group chats, a branch of the tree in ``clew.domain.errors``.

ClewError
├── ChatRunOpenError               the chat has a run that is not over
├── ChatRunAbandonedError          the run of the chat was abandoned, or rewound
├── ChatNotRestoredError           a document cannot be restored in this chat
├── ChatDocumentError              not a chat document, one of a newer version, or a changed one
├── NextSpeakerError               a turn selection selected somebody who is not in the chat
└── ChannelContractError           a channel breaks a rule for channels
"""

from __future__ import annotations

from collections.abc import Sequence

from clew.domain.errors import ClewError


class ChatRunOpenError(ClewError):
    """The chat has a run that is not over: it waits for somebody, another process executes it, or it crashed."""

    def __init__(self, chat_id: str, request: str) -> None:
        super().__init__(
            f"{request}: chat {chat_id!r} has a run that is not over. Continue it: await chat.continue_run(). "
            "Or abandon it: await chat.run(…, abandon_run=True)."
        )
        self.chat_id = chat_id


class ChatRunAbandonedError(ClewError):
    """The run of the chat was abandoned, or the chat was rewound to before it."""

    def __init__(self, chat_id: str, run: int) -> None:
        super().__init__(
            f"The run of chat {chat_id!r} that began at version {run} was abandoned, or the chat was rewound. "
            "The log has its steps so far: await chat.run(…) begins another one."
        )
        self.chat_id = chat_id


class ChatNotRestoredError(ClewError):
    """A document cannot be restored in this chat. Nothing in the chat has changed.

    ``needed`` are the ids of the participants in the document.
    """

    def __init__(self, problem: str, needed: Sequence[str]) -> None:
        super().__init__(problem)
        self.needed = list(needed)


class ChatDocumentError(ClewError):
    """Not a chat document, one of a newer version, or a changed one. The message says where."""


class NextSpeakerError(ClewError):
    """A turn selection selected somebody who is not in the chat."""

    def __init__(self, selected: str, present: Sequence[str]) -> None:
        super().__init__(
            f"The next speaker is {selected!r}, who is not in the chat. The participants are: "
            f"{', '.join(map(repr, present)) or 'none'}. Select one of them by id."
        )
        self.selected = selected


class ChannelContractError(ClewError, AssertionError):
    """A channel breaks a rule for all channels, the ``rule``. In a test it is a failure."""

    def __init__(self, channel: str, rule: str, found: str) -> None:
        super().__init__(f"Channel {channel} breaks the rule that {rule}: {found}")
        self.channel = channel
        self.rule = rule
