"""A simulated process of an agent that may die at any commit or answer, and the effects of its tools."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from typing import Any, NoReturn

from tests.agents.run_checks import check_body

from clew.agents.tools import Tool, ToolContext, tool
from clew.domain.json_values import JsonObject
from clew.domain.models.client import ModelRequest, Update
from clew.domain.runs.errors import ModelRequestError
from clew.infrastructure.scripted_client import Line, ScriptedChatClient, call, fault
from clew.service.run_log import ThreadRuns

TOOLS = {"again": "idempotent", "once": "once", "ask": "approved", "fail": "once", "fail_all": "once", "stop": "once"}
"""The tools, and the repetition that each one allows."""


class Died(BaseException):
    """The process died: it stops and records no end."""


class Mortal(ScriptedChatClient):
    """A client that may call ``death`` once, in the middle of an answer."""

    death: Callable[[], None] | None = None

    async def ask(self, request: ModelRequest) -> AsyncIterator[Update]:
        async for update in super().ask(request):
            if self.death is not None:
                self.death()
            yield update


class Life:
    """The instructions for a process, and what it did.

    ``lines`` are the answers of the model, ``requests`` the requests to it, ``effects`` counts how often each call was
    executed, by idempotency key. ``deaths`` counts the moments until the process dies; None means never.
    """

    def __init__(self) -> None:
        self.lines: deque[Any] = deque()
        self.requests: list[JsonObject] = []
        self.effects: Counter[str] = Counter()
        self.task: asyncio.Task[Any] | None = None
        self.streams = False
        self.deaths: int | None = None
        self.died = False
        self.tools = self._tools()
        self.client = self.start_process()

    def start_process(self) -> Mortal:
        """Return a client for the next process."""
        self.client = Mortal(self._line)
        return self.client

    def die(self) -> NoReturn:
        self.died = True
        raise Died

    def pass_by(self) -> None:
        """Mark a point at which the process may die; a dead process stops recording."""
        if self.deaths is not None:
            self.deaths -= 1
            if self.deaths <= 0:
                self.die()

    def recording(self, record_steps: Any) -> Any:
        """Wrap ``record`` so that the process may die before or after it."""

        async def record(log: ThreadRuns, *args: Any, **options: Any) -> Any:
            self.pass_by()
            done = await record_steps(log, *args, **options)
            self.pass_by()
            return done

        return record

    def _line(self, body: JsonObject) -> Line:
        check_body(body)
        self.requests.append(body)
        answer = self.lines.popleft() if self.lines else "Fine."
        match answer:
            case ("overloaded",):
                return fault("overloaded", retry_after=0.0)
            case ("refused",):
                return ModelRequestError("No.", status=400)
            case ("cut",):
                return fault("cut", after="Half an answer") if self.streams else ModelRequestError("Cut.")
            case ("die",):
                return self.die()
            case ("die later",):
                self.client.death = self.die
                return "This answer is never complete."
            case list(names):
                return [call(name) for name in names]
            case _:
                return str(answer)

    def _tools(self) -> list[Tool]:
        async def act(context: ToolContext) -> str:
            self.effects[context.idempotency_key] += 1
            return "done"

        async def fail(context: ToolContext) -> str:
            await act(context)
            message = "no"
            raise ValueError(message)

        async def stop(context: ToolContext) -> str:
            """Cancel the caller during the call."""
            await act(context)
            if self.task is not None:
                self.task.cancel()
            await asyncio.sleep(0)
            return "done"

        return [
            tool(act, name="again", idempotent=True),
            tool(act, name="once"),
            tool(act, name="ask", approval="always"),
            tool(fail, name="fail"),
            tool(fail, name="fail_all", errors="raise"),
            tool(stop, name="stop"),
        ]
