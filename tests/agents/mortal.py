"""A process that an agent runs in, which may die at any commit and in any answer, and what it does to the world."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from typing import Any, NoReturn

from tests.agents.run_checks import check_body

from clew.agents.tools import Tool, ToolContext, tool
from clew.domain.json_values import JsonObject
from clew.domain.models.client import Update
from clew.domain.runs.errors import ModelRequestError
from clew.infrastructure.scripted_client import Line, ScriptedChatClient, call, fault
from clew.service.run_log import ThreadRuns

TOOLS = {"again": "idempotent", "once": "once", "ask": "approved", "fail": "once", "fail_all": "once", "stop": "once"}
"""The tools, and how careful a run must be with each."""


class Died(BaseException):
    """The process is gone: nothing of it goes on, and nothing is recorded of how it ended."""


class Mortal(ScriptedChatClient):
    """A client in whose answers a process may die; ``death`` is then called once."""

    death: Callable[[], None] | None = None

    async def ask(self, body: JsonObject, *, stream: bool) -> AsyncIterator[Update]:
        async for update in super().ask(body, stream=stream):
            if self.death is not None:
                self.death()
            yield update


class Life:
    """What a process is told to do, and what it did.

    ``lines`` are the answers of the model, ``asked`` the requests that it had, ``effects`` how often each call was
    carried out, by idempotency key. ``deaths`` is how many moments it has to live, None for ever.
    """

    def __init__(self) -> None:
        self.lines: deque[Any] = deque()
        self.asked: list[JsonObject] = []
        self.effects: Counter[str] = Counter()
        self.task: asyncio.Task[Any] | None = None
        self.streams = False
        self.deaths: int | None = None
        self.died = False
        self.tools = self._tools()
        self.client = self.begin()

    def begin(self) -> Mortal:
        """A client for another process."""
        self.client = Mortal(self._line)
        return self.client

    def die(self) -> NoReturn:
        self.died = True
        raise Died

    def pass_by(self) -> None:
        """A moment at which the process may die; of one that is dead nothing more is recorded."""
        if self.deaths is not None:
            self.deaths -= 1
            if self.deaths <= 0:
                self.die()

    def recording(self, really: Any) -> Any:
        """Dies before or after what is to be recorded, when its time has come."""

        async def record(log: ThreadRuns, *args: Any, **options: Any) -> Any:
            self.pass_by()
            done = await really(log, *args, **options)
            self.pass_by()
            return done

        return record

    def _line(self, body: JsonObject) -> Line:
        check_body(body)
        self.asked.append(body)
        said = self.lines.popleft() if self.lines else "Fine."
        match said:
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
                return "Not to be heard to its end."
            case list(names):
                return [call(name) for name in names]
            case _:
                return str(said)

    def _tools(self) -> list[Tool]:
        async def act(context: ToolContext) -> str:
            self.effects[context.idempotency_key] += 1
            return "done"

        async def fail(context: ToolContext) -> str:
            await act(context)
            message = "no"
            raise ValueError(message)

        async def stop(context: ToolContext) -> str:
            """The caller goes away while it is under way."""
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
