"""Both APIs have the same names: the sync API is generated from the async one."""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

from clew import conversations, engine
from clew.aio import batch as aio_batch
from clew.aio import memory as aio_memory
from clew.aio import subscription as aio_subscription
from clew.aio import threads as aio_threads
from clew.domain.runs.ports import EnginePort, ThreadPort
from clew.sync import batch, memory, subscription, threads

ROOT = Path(__file__).parent.parent.parent


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sync_twin", ROOT / "tools/sync_twin.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


sync_twin = tool()


@pytest.mark.parametrize("source", sync_twin.TWINS)
def test_the_sync_api_is_up_to_date_with_its_source(source: str) -> None:
    target, _ = sync_twin.TWINS[source]
    stored = (sync_twin.PACKAGE / target).read_text(encoding="utf-8")
    assert stored == sync_twin.twin(source), f"{target} is older than {source}: run `make generate`"


def test_the_sync_api_contains_no_asyncio() -> None:
    for target, _ in sync_twin.TWINS.values():
        text = (sync_twin.PACKAGE / target).read_text(encoding="utf-8")
        text = re.sub(r"    @property\n    def awaited\(.*?\n\n    def ", "", text, flags=re.DOTALL)
        text = text.replace("if TYPE_CHECKING:\n    from clew.engine import Engine\n", "")
        for word in ("async", "await", "asyncio", "Engine", "clew.aio", "clew.agents", "__aenter__"):
            assert word not in text.split("\n", 1)[1], f"{word} is in {target}"


def test_each_replaced_sentence_occurs_in_a_source() -> None:
    sources = "".join((sync_twin.PACKAGE / source).read_text(encoding="utf-8") for source in sync_twin.TWINS)
    assert [prose for prose in sync_twin.PROSE if prose not in sources] == []


def test_omits_only_marked_lines() -> None:
    text = (
        "def one(\n"
        "    a: int,\n"
        "    b: int = 0,  # asyncio only\n"
        ") -> int:\n"
        "    if b:  # asyncio only\n"
        "        a += b\n"
        "    return a\n"
        "# asyncio only: begin\n"
        "def two() -> None: ...\n"
        "# asyncio only: end\n"
        "THREE = 3\n"
    )
    assert sync_twin.without_marked(text) == "def one(\n    a: int,\n) -> int:\n    return a\nTHREE = 3\n"


def public(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


FOR_AGENTS = public(ThreadPort) - public(object) - {"id", "kind", "runs"} | {
    "agent",
    "approvals",
    "context",
    "continue_run",
    "follow",
    "revoke_standing_approval",
    "run",
    "standing_approvals",
    "stop_run",
}
PAIRS = [
    (
        conversations.Conversations,
        engine.Engine,
        public(EnginePort) - public(conversations.Conversations)
        | {"approvals", "documents", "blocking", "start_chat", "chat"},
    ),
    (threads.LocalThread, aio_threads.LocalThread, FOR_AGENTS),
    (threads.RemoteThread, aio_threads.RemoteThread, FOR_AGENTS | {"service_history", "reconcile"}),
    (batch.Batch, aio_batch.Batch, set()),
    (memory.MemoryScope, aio_memory.MemoryScope, {"reads", "tools"}),
    (subscription.Subscription, aio_subscription.Subscription, set()),
]


@pytest.mark.parametrize(("sync", "aio", "only"), PAIRS, ids=lambda value: getattr(value, "__name__", ""))
def test_the_sync_api_lacks_only_the_names_for_agents(sync: type, aio: type, only: set[str]) -> None:
    assert public(aio) - public(sync) == only
    assert public(sync) - public(aio) == ({"awaited"} if sync is conversations.Conversations else set())
    for name in public(sync) & public(aio):
        assert inspect.getdoc(getattr(sync, name))
        assert inspect.getdoc(getattr(aio, name))
