from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

import clew
from clew import ClewError, Conversations, Engine, Message


def test_clew_exports_these_names() -> None:
    assert clew.__all__ == [
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
    assert clew.__all__ == sorted(clew.__all__)
    assert set(clew.__all__) <= set(dir(clew))
    for name in clew.__all__:
        assert getattr(clew, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        getattr(clew, "Nothing")  # noqa: B009  # mypy knows that it does not exist


def test_heavy_modules_are_imported_on_first_use_only() -> None:
    program = (
        "import sys; import clew, clew.types; dir(clew); dir(clew.types)\n"
        "heavy = 'asyncio eventsourcing httpx openai orjson pydantic psycopg rich sqlite3 typer'\n"
        "print(sorted(set(heavy.split()) & set(sys.modules)))\n"
        "from clew import *\n"
        "extras = 'httpx httpx2 mem0 openai opentelemetry psycopg rich typer'\n"
        "print(sorted(set(extras.split()) & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n[]\n"


def test_clew_errors_has_every_error() -> None:
    from clew import errors

    def subclasses(root: type[ClewError]) -> set[type[ClewError]]:
        return {root}.union(*map(subclasses, root.__subclasses__()))

    warnings = {"AgentChangedWarning", "MediaNotSentWarning", "MissingProviderWarning"}
    warnings |= {"PricesFailedWarning", "ToolsChangedWarning"}
    public = {each.__name__ for each in subclasses(ClewError) if each.__module__.startswith("clew.domain.")}
    assert errors.__all__ == sorted(errors.__all__)
    assert set(errors.__all__) == public | warnings
    assert all(issubclass(getattr(errors, name), ClewError | UserWarning) for name in errors.__all__)


def test_clew_testing_exports_these_names() -> None:
    from clew import ScriptedChatClient, testing

    assert testing.__all__ == [
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
    assert testing.ScriptedChatClient is ScriptedChatClient


def test_the_example_of_the_design_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Conversations.open("sqlite:///clew.db") as conversations:
        thread = conversations.start_thread(title="Refund", actor="user:42")
        thread.append(Message.user("Where is my parcel?"))
        message = thread.append(Message.assistant("Let me look."))
        thread.checkpoint("before refund")
        branch = thread.fork(at="before refund", title="What if")
        messages = branch.history().messages
        assert [(each.version, each.role, each.text) for each in messages] == [
            (2, "user", "Where is my parcel?"),
            (3, "assistant", "Let me look."),
        ]
        assert [each.text for each in thread.history(at_message=1).messages] == ["Where is my parcel?"]
        thread.rewind(to="before refund")
        edited = thread.edit(message, "I cannot look.")
        assert [each.text for each in edited.history().messages] == ["Where is my parcel?", "I cannot look."]
        assert [event.type for event in conversations.thread(thread.id).events()] == [
            "thread-started",
            "message-appended",
            "message-appended",
            "checkpoint-made",
            "history-rewound",
        ]
        with pytest.raises(ClewError, match="There is no thread 'missing'") as caught:
            conversations.thread("missing")
        assert type(caught.value).__name__ == "UnknownThreadError"
        assert [each.title for each in conversations.threads()] == ["Refund", "What if", "Refund"]
        assert conversations.open_thread("mine").version == conversations.open_thread("mine").version == 1
    assert (tmp_path / "clew.db").stat().st_size > 0


def test_the_example_of_the_design_runs_with_asyncio(tmp_path: Path) -> None:
    async def talk() -> None:
        async with Engine.open(f"sqlite:///{tmp_path}/clew.db") as engine:
            thread = await engine.start_thread(title="Refund", actor="user:42")
            await thread.append(Message.user("Where is my parcel?"))
            message = await thread.append(Message.assistant("Let me look."))
            await thread.checkpoint("before refund")
            branch = await thread.fork(at="before refund", title="What if")
            assert [each.version for each in (await branch.history()).messages] == [2, 3]
            assert [each.text for each in await thread.history(at_message=1)] == ["Where is my parcel?"]
            await thread.rewind(to="before refund")
            edited = await thread.edit(message, "I cannot look.")
            assert [each.text for each in await edited.history()] == ["Where is my parcel?", "I cannot look."]
            again = await engine.thread(thread.id)
            assert [event.version async for event in again.events()] == [1, 2, 3, 4, 5]
            with pytest.raises(ClewError, match="There is no thread 'missing'"):
                await engine.thread("missing")

    asyncio.run(talk())
    with Conversations.open(f"sqlite:///{tmp_path}/clew.db") as conversations:
        assert [each.title for each in conversations.threads()] == ["Refund", "What if", "Refund"]
        assert conversations.verify().first_bad is None


def test_a_url_that_names_no_store_raises_an_error_of_clew() -> None:
    with pytest.raises(ClewError, match=r"Use sqlite:///file\.db"):
        Conversations.open("mysql://localhost/clew")
    with pytest.raises(ClewError, match=r"Use sqlite:///file\.db"):
        Engine.open("postgres")


def test_a_path_works_instead_of_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Conversations.open("clew.db") as conversations:
        conversations.start_thread(thread_id="a")

    async def again() -> int:
        async with Engine.open(tmp_path / "clew.db", create=False) as engine:
            return await (await engine.thread("a")).version

    assert asyncio.run(again()) == 1
    listed = subprocess.run(
        [sys.executable, "-m", "clew", "--db", "clew.db", "threads", "--json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert '"thread_id":"a"' in listed.stdout.replace(" ", "")


def test_both_services_see_the_writes_of_another_client(tmp_path: Path) -> None:
    async def compare() -> None:
        async with Engine.open(tmp_path / "clew.db") as engine:
            thread = await engine.start_thread()
            assert (await thread.version, await thread.status) == (1, "active")
            with Conversations.open(tmp_path / "clew.db") as other:
                other_thread = other.thread(thread.id)
                other_thread.append(Message.user("Hello"))
                assert (
                    (await thread.version, await thread.status)
                    == (other_thread.version, other_thread.status)
                    == (2, "active")
                )
                other_thread.end()
                assert (
                    (await thread.version, await thread.status)
                    == (other_thread.version, other_thread.status)
                    == (3, "ended")
                )
                summary = await thread.summary()
                assert (summary.id, summary.version, summary.status) == (thread.id, 3, "ended")
                await thread.delete()
                assert other_thread.status == "deleted"

    asyncio.run(compare())
