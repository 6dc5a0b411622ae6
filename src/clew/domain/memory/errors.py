"""What can go wrong with memory.

ClewError
├── ScopeError              a scope or a namespace that is none, or that is not the caller's to write
├── UnknownFactError        no live fact of that id in the scope
├── UnknownDocumentError    no document of that id or link in the namespace
├── FactRefusedError        the scope's screen keeps the fact out
├── EmbeddingError          no vectors were to be had
│   └── EmbeddingMismatchError  vectors of another model, or of another size, than the scope's
└── MemoryServiceError      an external memory service that did not do what it was asked
"""

from __future__ import annotations

from shlex import quote

from clew.domain.errors import ClewError


class ScopeError(ClewError):
    """A scope or a namespace that is none, or that is not the caller's to write: unset never means everyone's."""


class UnknownFactError(ClewError):
    """The scope holds no live fact of that id."""

    def __init__(self, scope: str, fact: str) -> None:
        super().__init__(
            f"Scope {scope!r} has no live fact {fact!r}. `clew memory list {quote(scope)} --history` shows all of them."
        )
        self.scope = scope
        self.fact = fact

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        """Survive pickling, as exceptions that cross processes must."""
        return type(self), (self.scope, self.fact)


class UnknownDocumentError(ClewError):
    """The namespace holds no document of that id or link."""


class FactRefusedError(ClewError):
    """The scope's screen keeps the fact out; ``reason`` is what it gave as its own."""

    def __init__(self, scope: str, reason: str) -> None:
        super().__init__(f"Scope {scope!r} does not take the fact: {reason}")
        self.scope = scope
        self.reason = reason

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        """Survive pickling, as exceptions that cross processes must."""
        return type(self), (self.scope, self.reason)


class EmbeddingError(ClewError):
    """No vectors were to be had for a text. Nothing was stored."""


class EmbeddingMismatchError(EmbeddingError):
    """Vectors of another model, or of another size, than those that the scope is searched by. Nothing was stored."""


class MemoryServiceError(ClewError):
    """An external memory service that could not be reached, or refused."""
