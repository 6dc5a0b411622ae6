"""For tests and demos of agents: a model client with a script, and the contracts of your own components."""

from __future__ import annotations

from clew.domain.chats.errors import ChannelContractError
from clew.domain.errors import HistoryStoreContractError
from clew.domain.runs.errors import ModelClientContractError, ProviderContractError
from clew.infrastructure.scripted_client import Fault, ScriptedChatClient, call, fault
from clew.testing.channel_contract import check_channel
from clew.testing.history_store_contract import check_history_store
from clew.testing.model_client_contract import check_model_client
from clew.testing.model_service import HttpModelService, ModelService, ReplyKind, ScriptedReply
from clew.testing.provider_contract import MakeProvider, check_context_provider

__all__ = [
    "ChannelContractError",
    "Fault",
    "HistoryStoreContractError",
    "HttpModelService",
    "MakeProvider",
    "ModelClientContractError",
    "ModelService",
    "ProviderContractError",
    "ReplyKind",
    "ScriptedChatClient",
    "ScriptedReply",
    "call",
    "check_channel",
    "check_context_provider",
    "check_history_store",
    "check_model_client",
    "fault",
]
