"""LangGraph with its SqliteSaver. It runs in a separate environment.

The argument ``delta`` keeps the messages in a DeltaChannel, which is in beta, and not in the channel of MessagesState.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Annotated, Any

from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    HumanMessage,
)
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from typing_extensions import TypedDict

from benchmarks.contenders.growing_thread import NEWEST, WINDOW, Contender, Operation, Texts, main

TEXTS = Texts()
NODE = "model"


def _all_messages(state: Any, writes: Any) -> Any:
    for write in writes:
        state = add_messages(state, write)
    return state


class DeltaState(TypedDict):
    """The state of MessagesState in a channel that stores only what is new."""

    messages: Annotated[list[AnyMessage], DeltaChannel(_all_messages)]


STATE: Any = DeltaState if sys.argv[2:] == ["delta"] else MessagesState


def answer(state: Any) -> dict[str, Any]:
    """Answer the newest messages at once."""
    if not state["messages"][-WINDOW:]:
        raise RuntimeError("There is no message to answer.")
    return {"messages": [AIMessage(TEXTS.next())]}


@contextmanager
def _graph(folder: Path) -> Iterator[Any]:
    builder = StateGraph(STATE)
    builder.add_node(NODE, answer)
    builder.add_edge(START, NODE)
    builder.add_edge(NODE, END)
    with SqliteSaver.from_conn_string(str(folder / "checkpoints.db")) as saver:
        yield builder.compile(checkpointer=saver)


def _config(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}}


@asynccontextmanager
async def appending(folder: Path) -> AsyncIterator[Operation]:
    """Add a message to the state."""
    with _graph(folder) as graph:

        async def append(thread: str, times: int) -> None:
            for _ in range(times):
                graph.update_state(_config(thread), {"messages": [HumanMessage(TEXTS.next())]}, as_node=NODE)

        yield append


@asynccontextmanager
async def reading(folder: Path) -> AsyncIterator[Operation]:
    """Read the state, and take its newest messages."""
    with _graph(folder) as graph:

        async def read(thread: str, times: int) -> int:
            for _ in range(times):
                newest = graph.get_state(_config(thread)).values["messages"][-NEWEST:]
            return len(newest)

        yield read


@asynccontextmanager
async def forking(folder: Path) -> AsyncIterator[Operation]:
    """Branch off the newest checkpoint, found before."""
    newest: dict[str, Any] = {}
    with _graph(folder) as graph:

        async def fork(thread: str, times: int) -> None:
            if thread not in newest:  # the first call is not measured
                newest[thread] = graph.get_state(_config(thread)).config
            for _ in range(times):
                graph.update_state(newest[thread], None, as_node="__copy__")

        yield fork


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Operation]:
    """Run the graph, whose model receives the newest messages."""
    with _graph(folder) as graph:

        async def run(thread: str, times: int) -> None:
            for _ in range(times):
                graph.invoke({"messages": [HumanMessage(TEXTS.next())]}, _config(thread))

        yield run


if __name__ == "__main__":
    operations = {"newest": reading, "fork": forking, "append": appending, "run": running}
    main(Contender("langgraph", operations))
