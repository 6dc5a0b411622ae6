"""What can be wrong with a context provider itself.

ClewError
└── ProviderContractError  a context provider does what none may do
"""

from __future__ import annotations

from clew.domain.errors import ClewError


class ProviderContractError(ClewError, AssertionError):
    """A context provider does what none may do: ``rule`` is what it breaks. In a test, a failure."""

    def __init__(self, provider: str, rule: str, found: str) -> None:
        super().__init__(f"Context provider {provider} breaks the rule that {rule}: {found}")
        self.provider = provider
        self.rule = rule
