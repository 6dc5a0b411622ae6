"""What can go wrong with a history that is kept elsewhere.

ClewError
├── HistoryStoreError              a history store that did not do what it was asked
│   ├── HistoryStoreSharedError    two threads would be kept in one place
│   └── HistoryStoreContractError  a history store does what none may do
└── CredentialError                something that looks like a credential, where it would be stored or shown
"""

from __future__ import annotations

from clew.domain.errors import ClewError


class HistoryStoreError(ClewError):
    """A history store that could not be reached, refused, or gave what is no list of messages."""


class HistoryStoreSharedError(HistoryStoreError):
    """Two threads of a tenant have a history store of the same state: each would be shown what the other said.

    Attributes: ``provider`` whose state it is, ``thread_id``, and ``other``, the thread that had it first.
    """

    def __init__(self, provider: str, thread_id: str, other: str) -> None:
        super().__init__(
            f"Thread {thread_id!r} has the same state of {provider!r} as thread {other!r}: both would be kept in one "
            "place. Give each thread its own: make it from ctx.tenant and ctx.thread_id."
        )
        self.provider = provider
        self.thread_id = thread_id
        self.other = other

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        """Survive pickling, as exceptions that cross processes must."""
        return type(self), (self.provider, self.thread_id, self.other)


class HistoryStoreContractError(HistoryStoreError, AssertionError):
    """A history store does what none may do: ``rule`` is what it breaks. In a test, a failure."""

    def __init__(self, rule: str, found: str) -> None:
        super().__init__(f"The history store breaks the rule that {rule}: {found}.")
        self.rule = rule
        self.found = found

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        """Survive pickling, as exceptions that cross processes must."""
        return type(self), (self.rule, self.found)


class CredentialError(ClewError):
    """Something that looks like a credential was about to be stored, or given out. ``place`` says where it is."""

    def __init__(self, place: str, found: str) -> None:
        super().__init__(
            f"{place}: it looks like {found}. Credentials are not kept in threads: leave it out, and have the process "
            "that needs it read it from its own settings."
        )
        self.place = place
        self.found = found

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        """Survive pickling, as exceptions that cross processes must."""
        return type(self), (self.place, self.found)
