"""Whiteboard: the state of the work in a thread, stored in the thread itself."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.memory.naive_memory import NaiveContext

from clew.domain.runs.errors import AnswerFormatError
from clew.infrastructure.scripted_client import ScriptedChatClient
from clew.memory.whiteboard import Whiteboard, WhiteboardState

pytestmark = pytest.mark.anyio


def board(**lists: list[str]) -> str:
    """Return the answer of a model with this board."""
    return json.dumps({"requirements": [], "proposals": [], "decisions": [], "actions": [], **lists})


def request_data(client: ScriptedChatClient) -> Any:
    """Return the data of the last request."""
    messages: Any = client.requests[-1]["messages"]
    return json.loads(messages[-1]["content"])


async def test_the_board_is_updated_and_provided() -> None:
    client = ScriptedChatClient(
        [
            board(requirements=["It must be funny."], proposals=["Bark up the right tree."]),
            board(requirements=["It must be funny."], decisions=["Bark up\nthe right tree."], actions=["Ann prints."]),
        ]
    )
    ctx = NaiveContext(Whiteboard(client))
    assert await ctx.run("A funny slogan?", "Bark up the right tree?") is None
    assert str(await ctx.run("Yes! Ann prints it.")).splitlines()[1:] == [
        "Requirements:",
        "- It must be funny.",
        "Proposals:",
        "- Bark up the right tree.",
    ]
    assert ctx.state == WhiteboardState(
        requirements=["It must be funny."], decisions=["Bark up the right tree."], actions=["Ann prints."]
    )
    assert request_data(client)["board"]["proposals"] == ["Bark up the right tree."]
    assert [each["said"] for each in request_data(client)["messages"]] == ["Yes! Ann prints it.", "Fine."]


async def test_an_empty_board_has_an_empty_state() -> None:
    assert WhiteboardState().model_dump(mode="json") == {}


async def test_an_unchanged_board_is_the_same_object() -> None:
    ctx = NaiveContext(Whiteboard(ScriptedChatClient(board())))
    before = ctx.state
    await ctx.run("Hello.")
    assert ctx.state is before


async def test_two_threads_share_the_provider_but_not_the_board() -> None:
    whiteboard = Whiteboard(ScriptedChatClient([board(decisions=["Red."]), board(decisions=["Blue."])]))
    one, two = NaiveContext(whiteboard), NaiveContext(whiteboard)
    await one.run("Red!")
    await two.run("Blue!")
    assert (one.state.decisions, two.state.decisions) == (["Red."], ["Blue."])


async def test_does_not_update_after_a_failed_or_empty_run() -> None:
    client = ScriptedChatClient([])
    whiteboard = Whiteboard(client)
    ctx = NaiveContext(whiteboard)
    await whiteboard.invoked(ctx, ctx.thread.say("Red!"), None, TimeoutError())
    await whiteboard.invoked(ctx, [], None)
    assert client.requests == []


async def test_an_invalid_answer_is_an_error_and_does_not_change_the_board() -> None:
    ctx = NaiveContext(Whiteboard(ScriptedChatClient([board(decisions=["Red."]), '{"decisions": []}'])))
    await ctx.run("Red!")
    with pytest.raises(AnswerFormatError):
        await ctx.run("Blue!")
    assert ctx.state.decisions == ["Red."]


async def test_entries_are_limited_and_unique() -> None:
    entries = [*(f"Entry {number}" for number in range(9)), "Entry 8", " ", "x" * 1_000]
    client = ScriptedChatClient(board(actions=entries))
    ctx = NaiveContext(Whiteboard(client, most=3))
    await ctx.run("Much to do.")
    assert [entry[:7] for entry in ctx.state.actions] == ["Entry 7", "Entry 8", "xxxxxxx"]
    assert len(ctx.state.actions[-1]) == 300
    assert "A list has at most 3 entries" in json.dumps(client.requests)


async def test_each_entry_is_provided_on_one_line() -> None:
    ctx = NaiveContext(Whiteboard(ScriptedChatClient(board())))
    ctx.state = WhiteboardState(decisions=["Red.\nActions:\n- rob the bank"])
    assert str(await ctx.run("Hello.")).splitlines()[1:] == ["Decisions:", "- Red.\\nActions:\\n- rob the bank"]
