"""Every type that a public signature names, for annotations and for ``isinstance``.

The types of threads, memory scopes and subscriptions are those of an Engine. Those of Conversations begin with Sync.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew.lazy import resolver

if TYPE_CHECKING:
    from clew.agents.background_runs import BackgroundRun
    from clew.agents.followed_runs import FollowedRun
    from clew.agents.guardrails import GuardrailContext
    from clew.agents.middleware import ModelCallContext, Proceed, RunContext, ToolCallContext
    from clew.agents.response import AgentResponse, AgentUpdate, Approval
    from clew.agents.run_setup import (
        ContinueOptions,
        Input,
        OnChangedAgent,
        OnConflict,
        OnExpiredServiceThread,
        OnMissingProvider,
        ReadFrom,
        RunOptions,
        ToolFunction,
    )
    from clew.agents.stream import AgentStream
    from clew.agents.tool_schemas import Signature as ToolSignature
    from clew.agents.tool_use import ToolResult, ToolUseBehavior
    from clew.agents.tools import Approval as ToolApproval
    from clew.agents.tools import IsEnabled, Tool, ToolErrors, ToolFailure, ToolOptions, ToolOutcome
    from clew.aio.batch import Batch
    from clew.aio.subscription import Subscription
    from clew.aio.threads import LocalThread, RemoteThread, Thread
    from clew.chats.chat_view import ChatView
    from clew.chats.group_chat import ChatParticipant
    from clew.chats.participants import Joining, SubChat
    from clew.chats.response import ChatResponse, ChatStream
    from clew.chats.serializer import ChatDocument, OnTurn, RestoredChat, TextReader, TextWriter
    from clew.chats.termination import Termination
    from clew.chats.turn_selection import Decision, Speakers, TurnSelection
    from clew.domain.authorization import Action, Authorize, ThreadFilter
    from clew.domain.call_pairing import ModelView, Repair, RepairReason
    from clew.domain.chats.channel_documents import ChannelBlob, ChannelEvent, ChannelStream, ChannelThread
    from clew.domain.chats.channels import AgentChannel, Channel
    from clew.domain.chats.document import ChannelItem, ChatContent, ChatItem, ParticipantItem, ProviderStateItem
    from clew.domain.chats.events import ChatTurn
    from clew.domain.chats.state import ChannelState, ChatRun, ChatState, OpenTurn
    from clew.domain.context.provider import (
        ContextProviders,
        OnFailure,
        ProvidedApproval,
        ProvidedTool,
        ThreadProviders,
        ThreadView,
    )
    from clew.domain.context.state import ContextState, ContextVersions, ProviderState
    from clew.domain.decider_state import CallLocation, Control, OpenRun
    from clew.domain.differences.content_diff import FieldDiff
    from clew.domain.differences.content_diff import Path as FieldPath
    from clew.domain.differences.diff import ContentDiff, Diff, DiffCounts, DiffRow
    from clew.domain.differences.record_diff import RecordDiff
    from clew.domain.differences.word_diff import DiffPart, Side
    from clew.domain.differences.word_diff import Kind as DiffKind
    from clew.domain.event_types import Status
    from clew.domain.events import Event, MemoryReading
    from clew.domain.fork_tree import Branch, BranchCheckpoint, ForkPoint
    from clew.domain.formats.conversation_import import ImportFailure, ImportReport, Item
    from clew.domain.formats.event_import import EventsReport, RefusedLine
    from clew.domain.formats.transcripts import ExportedFile, Files
    from clew.domain.history import History, HistoryMessage, Step, ThreadState
    from clew.domain.history_stores import StoreFactory
    from clew.domain.json_values import Json, JsonObject
    from clew.domain.memory.facts import FactOrigin, FactStatus, FactUse, FoundFact
    from clew.domain.memory.ports import DocumentPort, MemoryAt, MemoryPort, Screen, VectorIndex
    from clew.domain.messages import (
        ApprovalRequest,
        ApprovalResponse,
        Content,
        FunctionCall,
        FunctionResult,
        Media,
        Native,
        Raw,
        Reasoning,
        Role,
        Text,
    )
    from clew.domain.models.client import (
        Answer,
        CallDelta,
        ModelClient,
        ModelRequest,
        Question,
        ReasoningDelta,
        RemoteTask,
        ResponseFormat,
        ServiceBound,
        ServiceKind,
        ServiceReference,
        ServiceThreads,
        TextDelta,
        ThreadKind,
        TokenUsage,
        ToolSchema,
        WireFormat,
    )
    from clew.domain.models.client import Update as ModelUpdate
    from clew.domain.models.prices import Cost, Dollars, Prices
    from clew.domain.ports import IntegrityFault, Verdict
    from clew.domain.projection import Kind as ColumnKind
    from clew.domain.projection import Parked, RowValues
    from clew.domain.reducers.reducer import Group, Groups, ReductionTrigger
    from clew.domain.runs.events import GuardrailStage
    from clew.domain.runs.ports import EnginePort, OnExisting, RunLog, ThreadPort
    from clew.domain.runs.request_construction import Request
    from clew.domain.runs.standing_approvals import StandingApproval
    from clew.domain.search_terms import Snippet, SnippetPart
    from clew.hosted_threads import HostedThread
    from clew.infrastructure.mcp.connection import MCPProtocol
    from clew.infrastructure.mcp.tools import MCPApproval, MCPOptions
    from clew.infrastructure.media_files import MediaSource
    from clew.infrastructure.scripted_client import FaultKind
    from clew.infrastructure.scripted_client import Line as ScriptLine
    from clew.infrastructure.scripted_client import LineFunction as ScriptFunction
    from clew.infrastructure.shards import Shard
    from clew.memory.text_retrieval import When as RetrievalTime
    from clew.service.audit_trail import AuditEntry
    from clew.service.batches import BatchResult
    from clew.service.cost_queries import Costs, CostsBy
    from clew.service.memory.scope_queries import ScopeSummary
    from clew.service.message_search import Hit
    from clew.service.projection_status import ProjectionStatus
    from clew.service.redactions import Purged, Redaction
    from clew.service.shards import ShardEvent, ShardEvents
    from clew.service.thread_directory import Order as ThreadOrder
    from clew.service.thread_queries import At, ThreadSummary
    from clew.service.usage_queries import By as UsageBy
    from clew.service.usage_queries import UsageCounts
    from clew.service.version_comparison import Variant
    from clew.sync.batch import Batch as SyncBatch
    from clew.sync.memory import MemoryScope as SyncMemoryScope
    from clew.sync.subscription import Subscription as SyncSubscription
    from clew.sync.threads import LocalThread as SyncLocalThread
    from clew.sync.threads import RemoteThread as SyncRemoteThread
    from clew.sync.threads import Thread as SyncThread

# `make generate` writes what follows, from the imports above.

__all__ = [
    "Action",
    "AgentChannel",
    "AgentResponse",
    "AgentStream",
    "AgentUpdate",
    "Answer",
    "Approval",
    "ApprovalRequest",
    "ApprovalResponse",
    "At",
    "AuditEntry",
    "Authorize",
    "BackgroundRun",
    "Batch",
    "BatchResult",
    "Branch",
    "BranchCheckpoint",
    "CallDelta",
    "CallLocation",
    "Channel",
    "ChannelBlob",
    "ChannelEvent",
    "ChannelItem",
    "ChannelState",
    "ChannelStream",
    "ChannelThread",
    "ChatContent",
    "ChatDocument",
    "ChatItem",
    "ChatParticipant",
    "ChatResponse",
    "ChatRun",
    "ChatState",
    "ChatStream",
    "ChatTurn",
    "ChatView",
    "ColumnKind",
    "Content",
    "ContentDiff",
    "ContextProviders",
    "ContextState",
    "ContextVersions",
    "ContinueOptions",
    "Control",
    "Cost",
    "Costs",
    "CostsBy",
    "Decision",
    "Diff",
    "DiffCounts",
    "DiffKind",
    "DiffPart",
    "DiffRow",
    "DocumentPort",
    "Dollars",
    "EnginePort",
    "Event",
    "EventsReport",
    "ExportedFile",
    "FactOrigin",
    "FactStatus",
    "FactUse",
    "FaultKind",
    "FieldDiff",
    "FieldPath",
    "Files",
    "FollowedRun",
    "ForkPoint",
    "FoundFact",
    "FunctionCall",
    "FunctionResult",
    "Group",
    "Groups",
    "GuardrailContext",
    "GuardrailStage",
    "History",
    "HistoryMessage",
    "Hit",
    "HostedThread",
    "ImportFailure",
    "ImportReport",
    "Input",
    "IntegrityFault",
    "IsEnabled",
    "Item",
    "Joining",
    "Json",
    "JsonObject",
    "LocalThread",
    "MCPApproval",
    "MCPOptions",
    "MCPProtocol",
    "Media",
    "MediaSource",
    "MemoryAt",
    "MemoryPort",
    "MemoryReading",
    "ModelCallContext",
    "ModelClient",
    "ModelRequest",
    "ModelUpdate",
    "ModelView",
    "Native",
    "OnChangedAgent",
    "OnConflict",
    "OnExisting",
    "OnExpiredServiceThread",
    "OnFailure",
    "OnMissingProvider",
    "OnTurn",
    "OpenRun",
    "OpenTurn",
    "Parked",
    "ParticipantItem",
    "Prices",
    "Proceed",
    "ProjectionStatus",
    "ProvidedApproval",
    "ProvidedTool",
    "ProviderState",
    "ProviderStateItem",
    "Purged",
    "Question",
    "Raw",
    "ReadFrom",
    "Reasoning",
    "ReasoningDelta",
    "RecordDiff",
    "Redaction",
    "ReductionTrigger",
    "RefusedLine",
    "RemoteTask",
    "RemoteThread",
    "Repair",
    "RepairReason",
    "Request",
    "ResponseFormat",
    "RestoredChat",
    "RetrievalTime",
    "Role",
    "RowValues",
    "RunContext",
    "RunLog",
    "RunOptions",
    "ScopeSummary",
    "Screen",
    "ScriptFunction",
    "ScriptLine",
    "ServiceBound",
    "ServiceKind",
    "ServiceReference",
    "ServiceThreads",
    "Shard",
    "ShardEvent",
    "ShardEvents",
    "Side",
    "Snippet",
    "SnippetPart",
    "Speakers",
    "StandingApproval",
    "Status",
    "Step",
    "StoreFactory",
    "SubChat",
    "Subscription",
    "SyncBatch",
    "SyncLocalThread",
    "SyncMemoryScope",
    "SyncRemoteThread",
    "SyncSubscription",
    "SyncThread",
    "Termination",
    "Text",
    "TextDelta",
    "TextReader",
    "TextWriter",
    "Thread",
    "ThreadFilter",
    "ThreadKind",
    "ThreadOrder",
    "ThreadPort",
    "ThreadProviders",
    "ThreadState",
    "ThreadSummary",
    "ThreadView",
    "TokenUsage",
    "Tool",
    "ToolApproval",
    "ToolCallContext",
    "ToolErrors",
    "ToolFailure",
    "ToolFunction",
    "ToolOptions",
    "ToolOutcome",
    "ToolResult",
    "ToolSchema",
    "ToolSignature",
    "ToolUseBehavior",
    "TurnSelection",
    "UsageBy",
    "UsageCounts",
    "Variant",
    "VectorIndex",
    "Verdict",
    "WireFormat",
]

_HOMES = {
    "Action": "clew.domain.authorization",
    "AgentChannel": "clew.domain.chats.channels",
    "AgentResponse": "clew.agents.response",
    "AgentStream": "clew.agents.stream",
    "AgentUpdate": "clew.agents.response",
    "Answer": "clew.domain.models.client",
    "Approval": "clew.agents.response",
    "ApprovalRequest": "clew.domain.messages",
    "ApprovalResponse": "clew.domain.messages",
    "At": "clew.service.thread_queries",
    "AuditEntry": "clew.service.audit_trail",
    "Authorize": "clew.domain.authorization",
    "BackgroundRun": "clew.agents.background_runs",
    "Batch": "clew.aio.batch",
    "BatchResult": "clew.service.batches",
    "Branch": "clew.domain.fork_tree",
    "BranchCheckpoint": "clew.domain.fork_tree",
    "CallDelta": "clew.domain.models.client",
    "CallLocation": "clew.domain.decider_state",
    "Channel": "clew.domain.chats.channels",
    "ChannelBlob": "clew.domain.chats.channel_documents",
    "ChannelEvent": "clew.domain.chats.channel_documents",
    "ChannelItem": "clew.domain.chats.document",
    "ChannelState": "clew.domain.chats.state",
    "ChannelStream": "clew.domain.chats.channel_documents",
    "ChannelThread": "clew.domain.chats.channel_documents",
    "ChatContent": "clew.domain.chats.document",
    "ChatDocument": "clew.chats.serializer",
    "ChatItem": "clew.domain.chats.document",
    "ChatParticipant": "clew.chats.group_chat",
    "ChatResponse": "clew.chats.response",
    "ChatRun": "clew.domain.chats.state",
    "ChatState": "clew.domain.chats.state",
    "ChatStream": "clew.chats.response",
    "ChatTurn": "clew.domain.chats.events",
    "ChatView": "clew.chats.chat_view",
    "ColumnKind": "clew.domain.projection:Kind",
    "Content": "clew.domain.messages",
    "ContentDiff": "clew.domain.differences.diff",
    "ContextProviders": "clew.domain.context.provider",
    "ContextState": "clew.domain.context.state",
    "ContextVersions": "clew.domain.context.state",
    "ContinueOptions": "clew.agents.run_setup",
    "Control": "clew.domain.decider_state",
    "Cost": "clew.domain.models.prices",
    "Costs": "clew.service.cost_queries",
    "CostsBy": "clew.service.cost_queries",
    "Decision": "clew.chats.turn_selection",
    "Diff": "clew.domain.differences.diff",
    "DiffCounts": "clew.domain.differences.diff",
    "DiffKind": "clew.domain.differences.word_diff:Kind",
    "DiffPart": "clew.domain.differences.word_diff",
    "DiffRow": "clew.domain.differences.diff",
    "DocumentPort": "clew.domain.memory.ports",
    "Dollars": "clew.domain.models.prices",
    "EnginePort": "clew.domain.runs.ports",
    "Event": "clew.domain.events",
    "EventsReport": "clew.domain.formats.event_import",
    "ExportedFile": "clew.domain.formats.transcripts",
    "FactOrigin": "clew.domain.memory.facts",
    "FactStatus": "clew.domain.memory.facts",
    "FactUse": "clew.domain.memory.facts",
    "FaultKind": "clew.infrastructure.scripted_client",
    "FieldDiff": "clew.domain.differences.content_diff",
    "FieldPath": "clew.domain.differences.content_diff:Path",
    "Files": "clew.domain.formats.transcripts",
    "FollowedRun": "clew.agents.followed_runs",
    "ForkPoint": "clew.domain.fork_tree",
    "FoundFact": "clew.domain.memory.facts",
    "FunctionCall": "clew.domain.messages",
    "FunctionResult": "clew.domain.messages",
    "Group": "clew.domain.reducers.reducer",
    "Groups": "clew.domain.reducers.reducer",
    "GuardrailContext": "clew.agents.guardrails",
    "GuardrailStage": "clew.domain.runs.events",
    "History": "clew.domain.history",
    "HistoryMessage": "clew.domain.history",
    "Hit": "clew.service.message_search",
    "HostedThread": "clew.hosted_threads",
    "ImportFailure": "clew.domain.formats.conversation_import",
    "ImportReport": "clew.domain.formats.conversation_import",
    "Input": "clew.agents.run_setup",
    "IntegrityFault": "clew.domain.ports",
    "IsEnabled": "clew.agents.tools",
    "Item": "clew.domain.formats.conversation_import",
    "Joining": "clew.chats.participants",
    "Json": "clew.domain.json_values",
    "JsonObject": "clew.domain.json_values",
    "LocalThread": "clew.aio.threads",
    "MCPApproval": "clew.infrastructure.mcp.tools",
    "MCPOptions": "clew.infrastructure.mcp.tools",
    "MCPProtocol": "clew.infrastructure.mcp.connection",
    "Media": "clew.domain.messages",
    "MediaSource": "clew.infrastructure.media_files",
    "MemoryAt": "clew.domain.memory.ports",
    "MemoryPort": "clew.domain.memory.ports",
    "MemoryReading": "clew.domain.events",
    "ModelCallContext": "clew.agents.middleware",
    "ModelClient": "clew.domain.models.client",
    "ModelRequest": "clew.domain.models.client",
    "ModelUpdate": "clew.domain.models.client:Update",
    "ModelView": "clew.domain.call_pairing",
    "Native": "clew.domain.messages",
    "OnChangedAgent": "clew.agents.run_setup",
    "OnConflict": "clew.agents.run_setup",
    "OnExisting": "clew.domain.runs.ports",
    "OnExpiredServiceThread": "clew.agents.run_setup",
    "OnFailure": "clew.domain.context.provider",
    "OnMissingProvider": "clew.agents.run_setup",
    "OnTurn": "clew.chats.serializer",
    "OpenRun": "clew.domain.decider_state",
    "OpenTurn": "clew.domain.chats.state",
    "Parked": "clew.domain.projection",
    "ParticipantItem": "clew.domain.chats.document",
    "Prices": "clew.domain.models.prices",
    "Proceed": "clew.agents.middleware",
    "ProjectionStatus": "clew.service.projection_status",
    "ProvidedApproval": "clew.domain.context.provider",
    "ProvidedTool": "clew.domain.context.provider",
    "ProviderState": "clew.domain.context.state",
    "ProviderStateItem": "clew.domain.chats.document",
    "Purged": "clew.service.redactions",
    "Question": "clew.domain.models.client",
    "Raw": "clew.domain.messages",
    "ReadFrom": "clew.agents.run_setup",
    "Reasoning": "clew.domain.messages",
    "ReasoningDelta": "clew.domain.models.client",
    "RecordDiff": "clew.domain.differences.record_diff",
    "Redaction": "clew.service.redactions",
    "ReductionTrigger": "clew.domain.reducers.reducer",
    "RefusedLine": "clew.domain.formats.event_import",
    "RemoteTask": "clew.domain.models.client",
    "RemoteThread": "clew.aio.threads",
    "Repair": "clew.domain.call_pairing",
    "RepairReason": "clew.domain.call_pairing",
    "Request": "clew.domain.runs.request_construction",
    "ResponseFormat": "clew.domain.models.client",
    "RestoredChat": "clew.chats.serializer",
    "RetrievalTime": "clew.memory.text_retrieval:When",
    "Role": "clew.domain.messages",
    "RowValues": "clew.domain.projection",
    "RunContext": "clew.agents.middleware",
    "RunLog": "clew.domain.runs.ports",
    "RunOptions": "clew.agents.run_setup",
    "ScopeSummary": "clew.service.memory.scope_queries",
    "Screen": "clew.domain.memory.ports",
    "ScriptFunction": "clew.infrastructure.scripted_client:LineFunction",
    "ScriptLine": "clew.infrastructure.scripted_client:Line",
    "ServiceBound": "clew.domain.models.client",
    "ServiceKind": "clew.domain.models.client",
    "ServiceReference": "clew.domain.models.client",
    "ServiceThreads": "clew.domain.models.client",
    "Shard": "clew.infrastructure.shards",
    "ShardEvent": "clew.service.shards",
    "ShardEvents": "clew.service.shards",
    "Side": "clew.domain.differences.word_diff",
    "Snippet": "clew.domain.search_terms",
    "SnippetPart": "clew.domain.search_terms",
    "Speakers": "clew.chats.turn_selection",
    "StandingApproval": "clew.domain.runs.standing_approvals",
    "Status": "clew.domain.event_types",
    "Step": "clew.domain.history",
    "StoreFactory": "clew.domain.history_stores",
    "SubChat": "clew.chats.participants",
    "Subscription": "clew.aio.subscription",
    "SyncBatch": "clew.sync.batch:Batch",
    "SyncLocalThread": "clew.sync.threads:LocalThread",
    "SyncMemoryScope": "clew.sync.memory:MemoryScope",
    "SyncRemoteThread": "clew.sync.threads:RemoteThread",
    "SyncSubscription": "clew.sync.subscription:Subscription",
    "SyncThread": "clew.sync.threads:Thread",
    "Termination": "clew.chats.termination",
    "Text": "clew.domain.messages",
    "TextDelta": "clew.domain.models.client",
    "TextReader": "clew.chats.serializer",
    "TextWriter": "clew.chats.serializer",
    "Thread": "clew.aio.threads",
    "ThreadFilter": "clew.domain.authorization",
    "ThreadKind": "clew.domain.models.client",
    "ThreadOrder": "clew.service.thread_directory:Order",
    "ThreadPort": "clew.domain.runs.ports",
    "ThreadProviders": "clew.domain.context.provider",
    "ThreadState": "clew.domain.history",
    "ThreadSummary": "clew.service.thread_queries",
    "ThreadView": "clew.domain.context.provider",
    "TokenUsage": "clew.domain.models.client",
    "Tool": "clew.agents.tools",
    "ToolApproval": "clew.agents.tools:Approval",
    "ToolCallContext": "clew.agents.middleware",
    "ToolErrors": "clew.agents.tools",
    "ToolFailure": "clew.agents.tools",
    "ToolFunction": "clew.agents.run_setup",
    "ToolOptions": "clew.agents.tools",
    "ToolOutcome": "clew.agents.tools",
    "ToolResult": "clew.agents.tool_use",
    "ToolSchema": "clew.domain.models.client",
    "ToolSignature": "clew.agents.tool_schemas:Signature",
    "ToolUseBehavior": "clew.agents.tool_use",
    "TurnSelection": "clew.chats.turn_selection",
    "UsageBy": "clew.service.usage_queries:By",
    "UsageCounts": "clew.service.usage_queries",
    "Variant": "clew.service.version_comparison",
    "VectorIndex": "clew.domain.memory.ports",
    "Verdict": "clew.domain.ports",
    "WireFormat": "clew.domain.models.client",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = resolver(__name__, _HOMES)
