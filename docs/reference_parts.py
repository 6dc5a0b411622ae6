"""The parts of docs/reference.md and the public names in each, in their order.

A name without a module is in ``clew``; ``types.Hit`` is in ``clew.types``. Events, errors and type aliases need no
entry here; other public names without one are at the end of the page.
"""

from __future__ import annotations

PROVIDERS = (
    "UserFacts UserPreferences ConversationSummaries Whiteboard AgentLessons MemoryTools TextRetrieval Mem0Memory"
)

CONSTRUCTED = frozenset(
    "Agent Telemetry OpenAIChatClient OpenAIResponsesClient AnthropicClient BedrockClient GeminiClient "
    "GeminiInteractionsClient AnyClient ScriptedChatClient A2AClient AssistantsClient BedrockAgentClient "
    "AgentCoreClient OpenAIEmbedder LocalEmbedder HashingEmbedder Document Reducers RedisHistory ThreadStore "
    "HandoffSelection ModelSelection ManagerSelection FunctionSelection MaxTurns MaxTokens MaxCost TextMentioned "
    "FunctionTermination ModelTermination "
    f"{PROVIDERS}".split()
)
"""The classes that people construct and whose parameters are not fields."""

INTERNAL = frozenset(
    {
        "Engine.unstarted_thread",
        "Engine.start_remote_thread",
        "MemoryScope.reads",
        "RunLog.begins",
        "RunLog.blob",
        "RunLog.changed",
        "RunLog.claim_state",
        "RunLog.control",
        "RunLog.draft",
        "RunLog.event",
        "RunLog.events",
        "RunLog.history",
        "RunLog.history_part",
        "RunLog.hold",
        "RunLog.lease",
        "RunLog.put_draft",
        "RunLog.reads_at",
        "RunLog.record",
        "RunLog.service_state",
        "RunLog.supply",
        "Thread.branch",
        "Thread.notify",
        "Thread.scope",
        "ThreadPort.bound_to",
        "ThreadPort.branch",
        "ThreadPort.notify",
        "ThreadPort.runs",
        "ThreadPort.scope",
        "ThreadProviders.copy",
    }
)
"""Methods for Clew's own agents, threads and engines. The reference only names them."""

PARTS = {
    "Threads": (
        "Conversations types.SyncThread types.SyncLocalThread types.SyncRemoteThread types.SyncSubscription "
        "types.SyncBatch types.BatchResult types.ThreadFilter"
    ),
    "Threads with asyncio": "Engine types.Thread types.LocalThread types.RemoteThread types.Subscription types.Batch",
    "Agents": (
        "Agent types.RunOptions types.ContinueOptions AgentResponse types.AgentUpdate types.AgentStream types.Approval "
        "types.StandingApproval Handoff "
        "ThreadStore types.Request tool types.ToolOptions types.Tool ToolContext Middleware types.RunContext "
        "types.ModelCallContext types.ToolCallContext types.ToolOutcome types.ToolSignature Telemetry"
    ),
    "Group chats": (
        "GroupChat Participant Human types.ChatParticipant types.ChatResponse types.ChatStream types.ChatView "
        "types.TurnSelection types.Decision RoundRobin HandoffSelection ModelSelection "
        "ManagerSelection FunctionSelection ManualSelection Together "
        "types.Termination MaxTurns MaxTokens MaxCost TextMentioned FunctionTermination ModelTermination "
        "ChatSerializer types.ChatDocument types.RestoredChat types.ParticipantItem "
        "types.Channel types.AgentChannel testing.check_channel types.ChatState types.ChannelState types.ChatRun "
        "types.OpenTurn"
    ),
    "Model clients": (
        "OpenAIChatClient OpenAIResponsesClient AnthropicClient BedrockClient GeminiClient "
        "GeminiInteractionsClient A2AClient AssistantsClient BedrockAgentClient AgentCoreClient AnyClient "
        "ScriptedChatClient testing.call testing.fault testing.Fault testing.check_model_client "
        "testing.HttpModelService testing.ModelService testing.ScriptedReply types.ModelClient "
        "types.ModelRequest types.WireFormat types.ServiceThreads "
        "types.Question types.ToolSchema types.ResponseFormat types.Answer "
        "types.TokenUsage types.TextDelta types.ReasoningDelta types.CallDelta types.ServiceBound "
        "types.ServiceReference"
    ),
    "Costs": "PriceTable Price GenaiPrices types.Prices types.Cost types.Costs",
    "Memory": (
        "MemoryScope types.SyncMemoryScope Fact types.FoundFact types.FactOrigin types.FactUse types.ScopeSummary "
        "Allow Redact Refuse DocumentStore Document Passage Embedder OpenAIEmbedder LocalEmbedder HashingEmbedder "
        "types.VectorIndex"
    ),
    "Context providers": (
        f"ContextProvider Context ProviderContext types.ThreadProviders {PROVIDERS} testing.check_context_provider"
    ),
    "Reducers and history stores": (
        "KeepLast SlidingWindow TokenBudget TrimToolResults Summarise Reducers Reducer Reducible Reduction "
        "types.Groups types.Group HistoryStore StoreContext StoredMessage RedisHistory testing.check_history_store"
    ),
    "Messages": (
        "Message Text Image Audio File types.Reasoning Media FunctionCall types.FunctionResult types.ApprovalRequest "
        "types.ApprovalResponse types.Raw Record Fold"
    ),
    "Results": (
        "History HistoryMessage ThreadRecord types.ThreadState types.Control types.Step types.ModelView types.Repair "
        "types.ThreadSummary types.Branch types.BranchCheckpoint types.Hit types.SnippetPart types.AuditEntry "
        "types.Redaction types.Purged "
        "types.UsageCounts types.Diff types.DiffRow types.DiffCounts types.ContentDiff types.RecordDiff types.DiffPart "
        "types.FieldDiff "
        "types.Verdict types.IntegrityFault types.ImportReport types.ImportFailure types.Item types.ExportedFile "
        "types.RefusedLine types.EventsReport"
    ),
    "Events": "Event",
    "Projections": (
        "projections.Projection projections.Recorded projections.Table projections.Column projections.Upsert "
        "projections.Delete projections.Recount projections.IndexText projections.ForgetText projections.Rows "
        "projections.Query projections.Where types.ProjectionStatus types.Parked projections.Directory "
        "projections.Search projections.Audit projections.Usage projections.Memory"
    ),
    "Several servers": "Shards types.Shard types.ShardEvents types.ShardEvent Positions",
    "Protocols for agents": (
        "types.EnginePort types.ThreadPort types.RunLog types.ThreadView types.MemoryPort types.DocumentPort"
    ),
}
