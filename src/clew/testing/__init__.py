"""For tests and demos of agents: a model client with a script, and the contracts of your own components."""

from __future__ import annotations

from clew.domain.errors import HistoryStoreContractError
from clew.domain.runs.errors import ProviderContractError
from clew.infrastructure.scripted_client import Fault, ScriptedChatClient, call, fault
from clew.testing.history_store_contract import check_history_store
from clew.testing.provider_contract import MakeProvider, check_context_provider

__all__ = [
    "Fault",
    "HistoryStoreContractError",
    "MakeProvider",
    "ProviderContractError",
    "ScriptedChatClient",
    "call",
    "check_context_provider",
    "check_history_store",
    "fault",
]
