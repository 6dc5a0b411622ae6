"""What docs/reference.md tells of, in its order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import clew
from clew import (
    Agent,
    Conversations,
    Middleware,
    OpenAIChatClient,
    OpenAIResponsesClient,
    ScriptedChatClient,
    Telemetry,
    ToolContext,
    testing,
    tool,
)
from clew.agents import middleware, response, run_options, stream, tools
from clew.agents.response import Approval
from clew.aio.threads import RemoteThread
from clew.domain import errors, events, history, messages, model_view, ports, projection
from clew.domain.context import errors as context_errors
from clew.domain.context import thread_providers
from clew.domain.differences import content_diff, diff
from clew.domain.formats import conversation_import, event_import
from clew.domain.memory import events as memory_events
from clew.domain.memory import facts
from clew.domain.memory import ports as memory_ports
from clew.domain.models import client as model_client
from clew.domain.reducers.reducer import Group, Groups
from clew.domain.runs import errors as run_errors
from clew.domain.runs import events as run_events
from clew.domain.runs import request_building
from clew.domain.views import fork_tree, replay, search_text
from clew.infrastructure import shards as shard_values
from clew.service import audit_trail, projection_status, shards, subscription, thread_queries, usage_queries
from clew.service.memory.scope_queries import ScopeSummary
from clew.service.message_search import Hit
from clew.sync.threads import Thread

SHIPPED = (
    clew.UserFacts,
    clew.UserPreferences,
    clew.ConversationSummaries,
    clew.Whiteboard,
    clew.AgentLessons,
    clew.TextRetrieval,
    clew.Mem0Memory,
)
"""The context providers that Clew has."""

EMBEDDERS = (clew.OpenAIEmbedder, clew.LocalEmbedder, clew.HashingEmbedder)
CONSTRUCTED = (
    Agent,
    Telemetry,
    OpenAIChatClient,
    OpenAIResponsesClient,
    ScriptedChatClient,
    *SHIPPED,
    *EMBEDDERS,
    clew.Document,
    clew.Reducers,
    clew.RedisHistory,
    clew.ThreadStore,
)
"""The classes that people make by calling them, and that are no values."""

BEHIND = {
    "Tool.signature",
    "Engine.beginning",
    "Engine.start_remote_thread",
    "Thread.begun_by_run",
    "Thread.bound_to",
    "Thread.branch",
    "Thread.runs",
    "Thread.scope",
    "Thread.notify",
    "MemoryScope.of_thread",
    "MemoryScope.reads",
    "ThreadProviders.copy",
    "Telemetry.model_call",
    "Telemetry.run",
    "Telemetry.tool_call",
}
"""What agents, threads and engines call of each other."""

PARTS: tuple[tuple[str, tuple[type | Callable[..., Any], ...]], ...] = (
    ("Threads", (Conversations, Thread, subscription.Subscription)),
    (
        "Agents",
        (
            Agent,
            run_options.RunOptions,
            run_options.ContinueOptions,
            response.AgentResponse,
            response.AgentUpdate,
            stream.AgentStream,
            Approval,
            RemoteThread,
            clew.ThreadStore,
            request_building.Request,
            tool,
            tools.Tool,
            ToolContext,
            Middleware,
            middleware.RunContext,
            middleware.ModelCallContext,
            middleware.ToolCallContext,
            tools.ToolOutcome,
            Telemetry,
        ),
    ),
    (
        "Model clients",
        (
            OpenAIChatClient,
            OpenAIResponsesClient,
            ScriptedChatClient,
            testing.call,
            testing.fault,
            model_client.ModelClient,
            model_client.ServiceThreads,
            model_client.Question,
            model_client.ToolSchema,
            model_client.Answer,
            model_client.Usage,
            model_client.TextDelta,
            model_client.ReasoningDelta,
            model_client.CallDelta,
            model_client.ServiceBound,
            model_client.ServiceReference,
        ),
    ),
    (
        "Memory",
        (
            clew.MemoryScope,
            clew.Fact,
            facts.Found,
            facts.Why,
            facts.Use,
            ScopeSummary,
            clew.Allow,
            clew.Redact,
            clew.Refuse,
            clew.DocumentStore,
            clew.Document,
            clew.Passage,
            clew.Embedder,
            *EMBEDDERS,
            memory_ports.VectorIndex,
        ),
    ),
    (
        "Context providers",
        (
            clew.ContextProvider,
            clew.Context,
            clew.ProviderContext,
            thread_providers.ThreadProviders,
            *SHIPPED,
            testing.check_context_provider,
        ),
    ),
    (
        "Reducers and history stores",
        (
            clew.KeepLast,
            clew.SlidingWindow,
            clew.TokenBudget,
            clew.TrimToolResults,
            clew.Summarise,
            clew.Reducers,
            clew.Reducer,
            clew.Reducible,
            clew.Reduction,
            Groups,
            Group,
            clew.HistoryStore,
            clew.StoreContext,
            clew.StoredMessage,
            clew.RedisHistory,
            testing.check_history_store,
        ),
    ),
    (
        "Messages",
        (
            messages.Message,
            messages.Text,
            messages.Reasoning,
            messages.Media,
            messages.FunctionCall,
            messages.FunctionResult,
            messages.ApprovalRequest,
            messages.ApprovalResponse,
            messages.Raw,
        ),
    ),
    (
        "What is read",
        (
            history.History,
            history.HistoryMessage,
            history.ThreadState,
            replay.Step,
            model_view.ModelView,
            model_view.Repair,
            thread_queries.ThreadSummary,
            fork_tree.Branch,
            fork_tree.Mark,
            Hit,
            search_text.Part,
            audit_trail.AuditEntry,
            usage_queries.Usage,
            diff.Diff,
            diff.Row,
            diff.Counts,
            diff.ContentDiff,
            content_diff.FieldDiff,
            ports.Verdict,
            ports.Fault,
            conversation_import.ImportReport,
            conversation_import.Failure,
            event_import.EventsReport,
        ),
    ),
    (
        "Events",
        (
            events.Event,
            *(declared.model for declared in events.EVENT_TYPES.values()),
            run_events.AgentIdentity,
            run_events.Fingerprint,
            run_events.ServiceCall,
            run_events.Failure,
            memory_events.Statement,
            memory_events.Provenance,
            memory_events.FactReference,
            memory_events.ScopeRead,
            events.Shredded,
            events.Opaque,
        ),
    ),
    (
        "Projections",
        (
            projection.Projection,
            projection.Recorded,
            projection.Table,
            projection.Column,
            projection.Upsert,
            projection.Delete,
            projection.Recount,
            projection.IndexText,
            projection.ForgetText,
            projection.Rows,
            projection.Query,
            projection.Where,
            projection_status.ProjectionStatus,
            projection.Parked,
        ),
    ),
    (
        "Several servers",
        (
            clew.Shards,
            shard_values.Shard,
            shards.ShardEvents,
            shards.ShardEvent,
            clew.Positions,
        ),
    ),
)

ERRORS = (errors, run_errors, context_errors)
"""Where the errors are."""
