"""``clew tree --chat``: the flow of a group chat, on a terminal, as Mermaid and as SVG."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from tests.agents.group_chats import agent_of

from clew import Agent, Engine, FunctionSelection, HandoffSelection, Human, ManualSelection, ScriptedChatClient, tool
from clew.testing import call

if TYPE_CHECKING:
    from tests.cli.conftest import CalledClew as Clew

HOSTILE = '</svg><script>alert(1)</script>\x1b[2J" ; end %% \u202e'


@tool(approval="always")
def refund() -> str:
    """Refund."""
    return "Done."


async def _chats(url: str) -> None:
    async with Engine.open(url) as engine:
        agents = [agent_of(engine, name) for name in ("A", "B")]
        together = FunctionSelection(lambda chat: {0: ["A", "B"], 2: "B"}.get(chat.turns))
        chat = await engine.start_chat(agents, chat_id="debate", selection=together)
        await chat.run("Begin.")
        await chat.add(Human("ann", HOSTILE))
        await chat.remove("A")
        triage = Agent(ScriptedChatClient([call("hand_off_to_Refunds"), "Soon."]), engine=engine, name="Triage")
        refunds = Agent(ScriptedChatClient([call("refund"), "12 €."]), engine=engine, name="Refunds", tools=[refund])
        chat = await engine.start_chat([triage, refunds], chat_id="triage", selection=HandoffSelection("Triage"))
        response = await chat.run("Money!")
        await response.approvals[0].approve()
        await chat.continue_run()
        chat = await engine.start_chat([Human("ann", HOSTILE)], chat_id="hostile", selection=ManualSelection())
        await chat.run(HOSTILE, next_speaker="ann")
        await chat.thread.rewind(3)
        await chat.run(HOSTILE, next_speaker="ann")
        await chat.respond("ann", HOSTILE)


def test_draws_chats_safely_in_every_form(clew: Clew, tmp_path: Path) -> None:
    asyncio.run(_chats(f"sqlite:///{tmp_path / 'clew.db'}"))
    db = ("--db", f"sqlite:///{tmp_path / 'clew.db'}")
    text = clew.run(*db, "tree", "--chat", "triage").stdout
    assert "Soon. → Refunds" in text
    assert "✓ refund approved" in text
    assert "ended: nobody" in text
    together = clew.run(*db, "tree", "--chat", "debate").stdout
    for expected in ("at the same time", "joins", "leaves"):
        assert expected in together
    assert "par at the same time" in clew.run(*db, "tree", "--chat", "debate", "--format", "mermaid").stdout
    steps = [json.loads(line) for line in clew.run(*db, "tree", "--chat", "hostile", "--json").stdout.splitlines()]
    assert [each["kind"] for each in steps] == ["said", "turn"], "the rewind removed the first run"
    for chat in ("debate", "triage", "hostile"):
        for form in ("text", "mermaid", "svg"):
            out = clew.run(*db, "tree", "--chat", chat, "--format", form).stdout
            assert "\x1b[2J" not in out
            assert "\u202e" not in out
            if form == "svg":
                assert {each.tag.rpartition("}")[2] for each in ET.fromstring(out).iter()} <= {  # noqa: S314  # written here
                    *("svg", "title", "rect", "text", "path", "defs", "marker", "g"),
                }
            elif form == "mermaid":
                assert "<" not in out
                assert "%%" not in out
