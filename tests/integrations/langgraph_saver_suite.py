"""LangGraph's checkpoints in Clew: LangGraph's conformance tests, and the same calls to LangGraph's own saver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import count
from operator import add
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from examples.integrations.langgraph_saver import ClewSaver
from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from clew import Conversations


@pytest.fixture
def conversations(tmp_path: Path) -> Iterator[Conversations]:
    with Conversations.open(tmp_path / "clew.db") as opened:
        yield opened


def test_passes_the_conformance_tests_of_langgraph(tmp_path: Path) -> None:
    numbers = count()

    @checkpointer_test(name="ClewSaver")
    async def saver() -> AsyncIterator[ClewSaver]:
        with Conversations.open(tmp_path / f"{next(numbers)}.db") as opened:
            yield ClewSaver(opened)

    report = asyncio.run(validate(saver)).to_dict()["results"]
    failures = [failure for each in report.values() for failure in each["failures"]]
    assert failures == []
    assert {name: each["tests_passed"] for name, each in report.items()} == {
        "put": 17,
        "put_writes": 10,
        "get_tuple": 10,
        "list": 16,
        "delete_thread": 5,
        "delete_for_runs": 7,
        "copy_thread": 8,
        "prune": 8,
    }


def write(value: Any, channel: str = "c", path: str = "", task: str | None = None) -> tuple[str, Any, str, str]:
    """What a task writes after a step: a value to a channel."""
    return channel, value, task or f"task-{value}", path


SNAPSHOT = {"c": _DeltaSnapshot(0)}

DELTAS: dict[str, tuple[list[tuple[dict[str, Any], list[Any]]], list[str]]] = {
    "writes come in the order of the steps": ([(SNAPSHOT, []), *[({}, [write(n)]) for n in range(1, 6)]], ["c"]),
    "the nearest snapshot is the seed": (
        [({"c": _DeltaSnapshot(n)} if n in {0, 2} else {}, [write(n)]) for n in range(5)],
        ["c"],
    ),
    "writes at the target are left out": ([(SNAPSHOT, []), ({}, [write("pending")])], ["c"]),
    "each channel has its own seed": (
        [
            ({"a": _DeltaSnapshot("a")}, [write(0, "a")]),
            ({"b": _DeltaSnapshot("b")}, [write(1, "a"), write(2, "b")]),
            ({}, [write(3, "b")]),
            ({}, []),
        ],
        ["a", "b"],
    ),
    "no channels": ([(SNAPSHOT, []), ({}, [write(1)])], []),
    "without a snapshot there is no seed": ([({}, [write(n)]) for n in range(4)], ["c"]),
    "a plain value is a seed, with the writes at its checkpoint": (
        [({"c": [1]}, [write("older")]), ({"c": [1, 2]}, [write("at the seed")]), ({}, [write("after")]), ({}, [])],
        ["c"],
    ),
    "parallel writes come in the order of the paths of their tasks": (
        [(SNAPSHOT, []), ({}, [write(2, path="~2", task="0"), write(1, path="~1", task="f"), write(0)]), ({}, [])],
        ["c"],
    ),
}
"""Cases of delta channels: for each step the values at its checkpoint and the writes after it; and the channels."""


@pytest.mark.parametrize("case", DELTAS)
def test_builds_delta_channels_as_the_saver_of_langgraph_does(case: str, conversations: Conversations) -> None:
    steps, channels = DELTAS[case]
    clew = asyncio.run(delta_history(ClewSaver(conversations), steps, channels))
    assert clew == asyncio.run(delta_history(InMemorySaver(), steps, channels))
    assert clew.keys() == set(channels)


async def delta_history(saver: Any, steps: Any, channels: list[str]) -> dict[str, Any]:
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    versions: dict[str, str] = {}
    for number, (values, writes) in enumerate(steps):
        new = {channel: saver.get_next_version(versions.get(channel), None) for channel in values}
        versions.update(new)
        config = await saver.aput(config, checkpoint(number, values, new), {"step": number}, new)
        for channel, value, task, path in writes:
            await saver.aput_writes(config, [(channel, value)], task, path)
    history = await saver.aget_delta_channel_history(config=config, channels=channels)
    return {name: (repr(each.get("seed", "no seed")), each["writes"]) for name, each in history.items()}


def checkpoint(number: int, values: dict[str, Any], versions: dict[str, str]) -> Any:
    whole = {"v": 1, "id": f"{number:032}", "ts": "", "channel_values": values, "channel_versions": versions}
    return {**whole, "versions_seen": {}, "updated_channels": None}


class Order(TypedDict):
    """The state of a graph: a list that grows, and a value that changes."""

    steps: Annotated[list[str], add]
    total: int


def order_graph(saver: Any) -> Any:
    """A graph with two parallel nodes, then one that asks a person."""

    def price(state: Order) -> Any:
        return {"steps": ["priced"], "total": len(state["steps"]) * 10}

    def stock(state: Order) -> Any:
        del state
        return {"steps": ["in stock"]}

    def confirm(state: Order) -> Any:
        return {"steps": [f"confirmed by {interrupt({'total': state['total']})}"]}

    graph: Any = StateGraph(Order)
    graph.add_node("price", price).add_node("stock", stock).add_node("confirm", confirm)
    graph.add_edge(START, "price").add_edge(START, "stock")
    graph.add_edge(["price", "stock"], "confirm").add_edge("confirm", END)
    return graph.compile(checkpointer=saver)


def snapshots(graph: Any, config: Any) -> list[Any]:
    """The past of a thread, without ids and times."""
    return [
        (each.values, each.next, each.metadata["source"], each.metadata["step"], [task.name for task in each.tasks])
        for each in graph.get_state_history(config)
    ]


def play(saver: Any) -> list[Any]:
    """Ask, answer, then go back and answer otherwise."""
    graph, config = order_graph(saver), {"configurable": {"thread_id": "order"}}
    graph.invoke({"steps": ["asked"]}, config)
    asked = snapshots(graph, config)
    graph.invoke(Command(resume="Ada"), config)
    answered = snapshots(graph, config)
    early = next(each for each in graph.get_state_history(config) if each.next == ("confirm",))
    graph.invoke(None, graph.update_state(early.config, {"steps": ["edited"], "total": 99}, as_node="stock"))
    graph.invoke(Command(resume="Bo"), config)
    return [asked, answered, snapshots(graph, config), graph.get_state(config).values]


def test_a_graph_with_interrupts_and_time_travel_has_the_same_past(conversations: Conversations) -> None:
    past = play(ClewSaver(conversations))
    assert past == play(InMemorySaver())
    assert [len(each) for each in past] == [3, 4, 6, 2]
    assert conversations.verify().first_bad is None


def test_a_graph_of_asyncio_finds_what_one_of_threads_wrote(conversations: Conversations) -> None:
    graph, config = order_graph(ClewSaver(conversations)), {"configurable": {"thread_id": "order"}}
    graph.invoke({"steps": ["asked"]}, config)

    async def answer() -> list[Any]:
        await graph.ainvoke(Command(resume="Ada"), config)
        return [each.values async for each in graph.aget_state_history(config)]

    assert asyncio.run(answer()) == [each.values for each in graph.get_state_history(config)]
    assert graph.get_state(config).values["steps"][-1] == "confirmed by Ada"


def test_a_list_is_stored_as_the_elements_that_were_added(conversations: Conversations) -> None:
    saver, config = ClewSaver(conversations), {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    version = None
    values: dict[str, Any] = {}
    for number in range(1, 41):
        version = saver.get_next_version(version, None)
        values = {"c": [f"message {each:04}" for each in range(number)]}
        config = saver.put(config, checkpoint(number, values, {"c": version}), {}, {"c": version})
    sizes = {len(each.blob or b"") for each in conversations.thread("langgraph/t").records("value")}
    assert len(sizes) == 1
    found = saver.get_tuple(config)
    assert found is not None
    assert found.checkpoint["channel_values"] == values


def test_a_copy_is_one_event_and_continues_alone(conversations: Conversations) -> None:
    saver = ClewSaver(conversations)
    graph, config = order_graph(saver), {"configurable": {"thread_id": "order"}}
    graph.invoke({"steps": ["asked"]}, config)
    before = conversations.thread("langgraph/order").version
    saver.copy_thread("order", "copy")
    assert conversations.thread("langgraph/copy").version == before + 1
    copied = {"configurable": {"thread_id": "copy"}}
    assert graph.invoke(Command(resume="Ada"), copied)["steps"][-1] == "confirmed by Ada"
    assert graph.get_state(config).next == ("confirm",)
    assert {each.config["configurable"]["thread_id"] for each in saver.list(None)} == {"order", "copy"}


def test_another_process_continues_a_thread(conversations: Conversations, tmp_path: Path) -> None:
    config = {"configurable": {"thread_id": "order"}}
    order_graph(ClewSaver(conversations)).invoke({"steps": ["asked"]}, config)
    with Conversations.open(tmp_path / "clew.db") as other:
        order_graph(ClewSaver(other)).invoke(Command(resume="Ada"), config)
    assert order_graph(ClewSaver(conversations)).get_state(config).values["steps"][-1] == "confirmed by Ada"


def test_an_interrupt_is_replaced_and_other_writes_are_not(conversations: Conversations) -> None:
    special = min(WRITES_IDX_MAP)
    answers = []
    for saver in (ClewSaver(conversations), InMemorySaver()):
        config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
        config = saver.put(config, checkpoint(1, {}, {}), {}, {})
        for value in ("first", "second"):
            saver.put_writes(config, [("c", value), (special, value)], "task")
        found = saver.get_tuple(config)
        assert found is not None
        answers.append(found.pending_writes)
    assert answers[0] == answers[1]
    assert {(channel, value) for _, channel, value in answers[0] or ()} == {("c", "first"), (special, "second")}


def test_a_deleted_thread_is_destroyed_and_begins_again(conversations: Conversations, tmp_path: Path) -> None:
    saver = ClewSaver(conversations)
    graph, config = order_graph(saver), {"configurable": {"thread_id": "order"}}
    graph.invoke({"steps": ["quokka"]}, config)
    saver.delete_thread("order")
    assert saver.get_tuple(config) is None
    assert not [path.name for path in tmp_path.iterdir() if b"quokka" in path.read_bytes()]
    graph.invoke({"steps": ["quokka again"]}, config)
    assert graph.get_state(config).values["steps"][0] == "quokka again"
