"""A support desk that pays refunds after approval. You can kill it at any moment and start it again.

    python examples/support_agent.py                  # the customer asks; the refund waits for approval
    python examples/support_agent.py --approve ada    # ada approves; the run continues
    clew log desk                                     # what happened

It runs offline with a scripted model, or with a real one if OPENAI_API_KEY is set.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path
from typing import Any

from clew import Agent, Engine, OpenAIChatClient, ScriptedChatClient, ToolContext, tool
from clew.errors import ApprovalPendingError, NoOpenRunError
from clew.testing import call
from clew.types import AgentResponse, Thread

THREAD = "desk"
QUESTION = "My lamp from order 7 came broken. Can I have my money back?"
PRICES = {7: 4800}


@tool(idempotent=True)
def look_up(order: int) -> str:
    """Look up an order."""
    return f"Order {order}: {PRICES[order]} cents, delivered." if order in PRICES else "There is no such order."


@tool(approval="always", idempotent=True)
def refund(order: int, cents: int, context: ToolContext) -> str:
    """Refund an order."""
    ledger: Path = context.deps
    entry = f"{context.idempotency_key} order {order}: {cents} cents\n"
    paid = ledger.read_text(encoding="utf-8") if ledger.exists() else ""
    if entry not in paid:  # a repeated call after a crash does not pay twice
        with ledger.open("a", encoding="utf-8") as file:
            file.write(entry)
    return f"{cents} cents are on their way."


def script(body: dict[str, Any]) -> Any:
    """Return answers like a model's: look up the order, refund it, and say so."""
    last = body["messages"][-1]
    if last["role"] != "tool":
        return call("look_up", order=7)
    if "delivered" in last["content"]:
        return ["I pay you back.", call("refund", order=7, cents=PRICES[7])]
    return f"I am sorry. {last['content']}"


def desk(engine: Engine) -> Agent:
    """Return the agent. It holds no conversation."""
    online = bool(os.environ.get("OPENAI_API_KEY"))
    return Agent(
        OpenAIChatClient(model="gpt-5.4-mini") if online else ScriptedChatClient(script),
        engine=engine,
        name="Desk",
        instructions="You help customers with their orders. Look an order up before you pay anything back.",
        tools=[look_up, refund],
    )


async def attend(engine: Engine, question: str, ledger: Path, approver: str | None = None) -> AgentResponse[Thread]:
    """Continue an open run, however it was interrupted; otherwise answer the question."""
    await engine.open_thread(THREAD)
    thread = await desk(engine).thread(THREAD)
    if approver is not None:
        for approval in await thread.approvals():
            await approval.approve(actor=approver)
    try:
        response = await thread.continue_run(on_conflict="wait", deps=ledger)
    except NoOpenRunError:
        response = await thread.run(question, on_conflict="wait", deps=ledger)
    return response


async def main() -> None:
    """Serve the desk once and print the result."""
    parser = argparse.ArgumentParser(description="A support desk.")
    parser.add_argument("question", nargs="?", default=QUESTION)
    parser.add_argument("--approve", metavar="WHO", help="approve the waiting call as WHO")
    parser.add_argument("--db", default="sqlite:///clew.db")
    parser.add_argument("--ledger", type=Path, default=Path("refunds.txt"))
    arguments = parser.parse_args()
    async with Engine.open(arguments.db) as engine:
        try:
            response = await attend(engine, arguments.question, arguments.ledger, arguments.approve)
        except ApprovalPendingError as error:
            print(error)
            return
        print(response.text)
        for approval in response.approvals:
            print(f"This waits for --approve WHO: {approval.call.name}({approval.call.arguments})")


if __name__ == "__main__":
    asyncio.run(main())
