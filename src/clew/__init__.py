"""Clew: event-sourced conversations to fork, rewind, read at any past version and verify.

The public modules are ``clew``, ``clew.types``, ``clew.events``, ``clew.errors``, ``clew.projections`` and
``clew.testing``. Every other module is private and can change in any release.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew.lazy import resolver

if TYPE_CHECKING:
    from clew.agents.guardrails import Guardrail
    from clew.agents.handoffs import Handoff
    from clew.agents.middleware import Middleware
    from clew.agents.response import AgentResponse
    from clew.agents.telemetry import Telemetry
    from clew.agents.tools import ToolContext, tool
    from clew.aio.memory import DocumentStore, MemoryScope
    from clew.chats.group_chat import GroupChat
    from clew.chats.manager_selection import ManagerSelection
    from clew.chats.participants import Human, Participant
    from clew.chats.serializer import ChatSerializer
    from clew.chats.termination import (
        FunctionTermination,
        MaxCost,
        MaxTokens,
        MaxTurns,
        ModelTermination,
        TextMentioned,
    )
    from clew.chats.turn_selection import (
        FunctionSelection,
        HandoffSelection,
        ManualSelection,
        ModelSelection,
        RoundRobin,
        Together,
    )
    from clew.conversations import Conversations
    from clew.domain.application_folds import Fold
    from clew.domain.context.provider import Context, ContextProvider, ProviderContext
    from clew.domain.errors import ClewError
    from clew.domain.events import Event
    from clew.domain.history import History, HistoryMessage
    from clew.domain.history_stores import HistoryStore, StoreContext, StoredMessage
    from clew.domain.memory.events import Provenance
    from clew.domain.memory.facts import Allow, Document, Fact, Passage, Redact, Refuse
    from clew.domain.memory.ports import Embedder
    from clew.domain.messages import FunctionCall, Media, Message, Text
    from clew.domain.models.prices import Price, PriceTable
    from clew.domain.records import Record, ThreadRecord
    from clew.domain.reducers.reducer import Reducer, Reducible, Reduction
    from clew.domain.reducers.strategies import KeepLast, Reducers, SlidingWindow, TokenBudget, TrimToolResults
    from clew.engine import Agent, Engine
    from clew.hosted_threads import ThreadStore
    from clew.infrastructure.a2a.client import A2AClient
    from clew.infrastructure.anthropic.client import AnthropicClient
    from clew.infrastructure.any_client import AnyClient
    from clew.infrastructure.assistants.client import AssistantsClient
    from clew.infrastructure.bedrock.agent_client import AgentCoreClient, BedrockAgentClient
    from clew.infrastructure.bedrock.client import BedrockClient
    from clew.infrastructure.gemini.client import GeminiClient
    from clew.infrastructure.gemini.interactions_client import GeminiInteractionsClient
    from clew.infrastructure.genai_price_list import GenaiPrices
    from clew.infrastructure.hashing_embedder import HashingEmbedder
    from clew.infrastructure.mcp.tools import MCPTools
    from clew.infrastructure.media_files import Audio, File, Image
    from clew.infrastructure.minilm import LocalEmbedder
    from clew.infrastructure.openai.clients import OpenAIChatClient, OpenAIResponsesClient
    from clew.infrastructure.openai.embedder import OpenAIEmbedder
    from clew.infrastructure.redis_history import RedisHistory
    from clew.infrastructure.scripted_client import ScriptedChatClient
    from clew.infrastructure.shards import Positions
    from clew.memory.agent_lessons import AgentLessons
    from clew.memory.conversation_summaries import ConversationSummaries
    from clew.memory.mem0_memory import Mem0Memory
    from clew.memory.memory_tools import MemoryTools
    from clew.memory.summary_reducer import Summarise
    from clew.memory.text_retrieval import TextRetrieval
    from clew.memory.user_facts import UserFacts
    from clew.memory.user_preferences import UserPreferences
    from clew.memory.whiteboard import Whiteboard
    from clew.service.shards import Shards

# `make generate` writes what follows, from the imports above.

__all__ = [
    "A2AClient",
    "Agent",
    "AgentCoreClient",
    "AgentLessons",
    "AgentResponse",
    "Allow",
    "AnthropicClient",
    "AnyClient",
    "AssistantsClient",
    "Audio",
    "BedrockAgentClient",
    "BedrockClient",
    "ChatSerializer",
    "ClewError",
    "Context",
    "ContextProvider",
    "ConversationSummaries",
    "Conversations",
    "Document",
    "DocumentStore",
    "Embedder",
    "Engine",
    "Event",
    "Fact",
    "File",
    "Fold",
    "FunctionCall",
    "FunctionSelection",
    "FunctionTermination",
    "GeminiClient",
    "GeminiInteractionsClient",
    "GenaiPrices",
    "GroupChat",
    "Guardrail",
    "Handoff",
    "HandoffSelection",
    "HashingEmbedder",
    "History",
    "HistoryMessage",
    "HistoryStore",
    "Human",
    "Image",
    "KeepLast",
    "LocalEmbedder",
    "MCPTools",
    "ManagerSelection",
    "ManualSelection",
    "MaxCost",
    "MaxTokens",
    "MaxTurns",
    "Media",
    "Mem0Memory",
    "MemoryScope",
    "MemoryTools",
    "Message",
    "Middleware",
    "ModelSelection",
    "ModelTermination",
    "OpenAIChatClient",
    "OpenAIEmbedder",
    "OpenAIResponsesClient",
    "Participant",
    "Passage",
    "Positions",
    "Price",
    "PriceTable",
    "Provenance",
    "ProviderContext",
    "Record",
    "Redact",
    "RedisHistory",
    "Reducer",
    "Reducers",
    "Reducible",
    "Reduction",
    "Refuse",
    "RoundRobin",
    "ScriptedChatClient",
    "Shards",
    "SlidingWindow",
    "StoreContext",
    "StoredMessage",
    "Summarise",
    "Telemetry",
    "Text",
    "TextMentioned",
    "TextRetrieval",
    "ThreadRecord",
    "ThreadStore",
    "Together",
    "TokenBudget",
    "ToolContext",
    "TrimToolResults",
    "UserFacts",
    "UserPreferences",
    "Whiteboard",
    "tool",
]

_HOMES = {
    "A2AClient": "clew.infrastructure.a2a.client",
    "Agent": "clew.engine",
    "AgentCoreClient": "clew.infrastructure.bedrock.agent_client",
    "AgentLessons": "clew.memory.agent_lessons",
    "AgentResponse": "clew.agents.response",
    "Allow": "clew.domain.memory.facts",
    "AnthropicClient": "clew.infrastructure.anthropic.client",
    "AnyClient": "clew.infrastructure.any_client",
    "AssistantsClient": "clew.infrastructure.assistants.client",
    "Audio": "clew.infrastructure.media_files",
    "BedrockAgentClient": "clew.infrastructure.bedrock.agent_client",
    "BedrockClient": "clew.infrastructure.bedrock.client",
    "ChatSerializer": "clew.chats.serializer",
    "ClewError": "clew.domain.errors",
    "Context": "clew.domain.context.provider",
    "ContextProvider": "clew.domain.context.provider",
    "ConversationSummaries": "clew.memory.conversation_summaries",
    "Conversations": "clew.conversations",
    "Document": "clew.domain.memory.facts",
    "DocumentStore": "clew.aio.memory",
    "Embedder": "clew.domain.memory.ports",
    "Engine": "clew.engine",
    "Event": "clew.domain.events",
    "Fact": "clew.domain.memory.facts",
    "File": "clew.infrastructure.media_files",
    "Fold": "clew.domain.application_folds",
    "FunctionCall": "clew.domain.messages",
    "FunctionSelection": "clew.chats.turn_selection",
    "FunctionTermination": "clew.chats.termination",
    "GeminiClient": "clew.infrastructure.gemini.client",
    "GeminiInteractionsClient": "clew.infrastructure.gemini.interactions_client",
    "GenaiPrices": "clew.infrastructure.genai_price_list",
    "GroupChat": "clew.chats.group_chat",
    "Guardrail": "clew.agents.guardrails",
    "Handoff": "clew.agents.handoffs",
    "HandoffSelection": "clew.chats.turn_selection",
    "HashingEmbedder": "clew.infrastructure.hashing_embedder",
    "History": "clew.domain.history",
    "HistoryMessage": "clew.domain.history",
    "HistoryStore": "clew.domain.history_stores",
    "Human": "clew.chats.participants",
    "Image": "clew.infrastructure.media_files",
    "KeepLast": "clew.domain.reducers.strategies",
    "LocalEmbedder": "clew.infrastructure.minilm",
    "MCPTools": "clew.infrastructure.mcp.tools",
    "ManagerSelection": "clew.chats.manager_selection",
    "ManualSelection": "clew.chats.turn_selection",
    "MaxCost": "clew.chats.termination",
    "MaxTokens": "clew.chats.termination",
    "MaxTurns": "clew.chats.termination",
    "Media": "clew.domain.messages",
    "Mem0Memory": "clew.memory.mem0_memory",
    "MemoryScope": "clew.aio.memory",
    "MemoryTools": "clew.memory.memory_tools",
    "Message": "clew.domain.messages",
    "Middleware": "clew.agents.middleware",
    "ModelSelection": "clew.chats.turn_selection",
    "ModelTermination": "clew.chats.termination",
    "OpenAIChatClient": "clew.infrastructure.openai.clients",
    "OpenAIEmbedder": "clew.infrastructure.openai.embedder",
    "OpenAIResponsesClient": "clew.infrastructure.openai.clients",
    "Participant": "clew.chats.participants",
    "Passage": "clew.domain.memory.facts",
    "Positions": "clew.infrastructure.shards",
    "Price": "clew.domain.models.prices",
    "PriceTable": "clew.domain.models.prices",
    "Provenance": "clew.domain.memory.events",
    "ProviderContext": "clew.domain.context.provider",
    "Record": "clew.domain.records",
    "Redact": "clew.domain.memory.facts",
    "RedisHistory": "clew.infrastructure.redis_history",
    "Reducer": "clew.domain.reducers.reducer",
    "Reducers": "clew.domain.reducers.strategies",
    "Reducible": "clew.domain.reducers.reducer",
    "Reduction": "clew.domain.reducers.reducer",
    "Refuse": "clew.domain.memory.facts",
    "RoundRobin": "clew.chats.turn_selection",
    "ScriptedChatClient": "clew.infrastructure.scripted_client",
    "Shards": "clew.service.shards",
    "SlidingWindow": "clew.domain.reducers.strategies",
    "StoreContext": "clew.domain.history_stores",
    "StoredMessage": "clew.domain.history_stores",
    "Summarise": "clew.memory.summary_reducer",
    "Telemetry": "clew.agents.telemetry",
    "Text": "clew.domain.messages",
    "TextMentioned": "clew.chats.termination",
    "TextRetrieval": "clew.memory.text_retrieval",
    "ThreadRecord": "clew.domain.records",
    "ThreadStore": "clew.hosted_threads",
    "Together": "clew.chats.turn_selection",
    "TokenBudget": "clew.domain.reducers.strategies",
    "ToolContext": "clew.agents.tools",
    "TrimToolResults": "clew.domain.reducers.strategies",
    "UserFacts": "clew.memory.user_facts",
    "UserPreferences": "clew.memory.user_preferences",
    "Whiteboard": "clew.memory.whiteboard",
    "tool": "clew.agents.tools",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = resolver(__name__, _HOMES)
