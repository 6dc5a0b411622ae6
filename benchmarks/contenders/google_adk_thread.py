"""Google's ADK with its SqliteSessionService. It runs in a separate environment."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent, RunConfig
from google.adk.events import Event
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import Runner
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai.types import Content, Part

from benchmarks.contenders.growing_thread import NEWEST, WINDOW, Contender, Operation, Texts, main

APP, USER = "app", "user"
TEXTS = Texts()


class Instant(BaseLlm):
    """A model that answers at once."""

    async def generate_content_async(self, *_: Any, **__: Any) -> AsyncGenerator[LlmResponse, None]:
        """The next text."""
        yield LlmResponse(content=_said("model"))


def _said(role: str) -> Content:
    return Content(role=role, parts=[Part(text=TEXTS.next())])


def _service(folder: Path) -> SqliteSessionService:
    return SqliteSessionService(str(folder / "sessions.db"))


async def _session(service: SqliteSessionService, thread: str, events: int) -> Any:
    config = GetSessionConfig(num_recent_events=events)
    return await service.get_session(app_name=APP, user_id=USER, session_id=thread, config=config)


@asynccontextmanager
async def starting(folder: Path) -> AsyncIterator[Operation]:
    """Create the session."""

    async def start(thread: str, _: int) -> None:
        await _service(folder).create_session(app_name=APP, user_id=USER, session_id=thread)

    yield start


@asynccontextmanager
async def appending(folder: Path) -> AsyncIterator[Operation]:
    """Append an event to a session that was read before."""
    service, sessions = _service(folder), dict[str, Any]()

    async def append(thread: str, times: int) -> None:
        if thread not in sessions:
            sessions[thread] = await _session(service, thread, NEWEST)
        for _ in range(times):
            await service.append_event(sessions[thread], Event(author="user", invocation_id="i", content=_said("user")))

    yield append


@asynccontextmanager
async def reading(folder: Path) -> AsyncIterator[Operation]:
    """Read the session with its newest events."""
    service = _service(folder)

    async def read(thread: str, times: int) -> int:
        for _ in range(times):
            session = await _session(service, thread, NEWEST)
        return len(session.events)

    yield read


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Operation]:
    """Run an agent that sends the newest events."""
    agent = LlmAgent(name="agent", model=Instant(model="instant"), instruction="You answer at once.")
    runner = Runner(agent=agent, app_name=APP, session_service=_service(folder))
    config = RunConfig(get_session_config=GetSessionConfig(num_recent_events=WINDOW))

    async def run(thread: str, times: int) -> None:
        for _ in range(times):
            running = runner.run_async(user_id=USER, session_id=thread, new_message=_said("user"), run_config=config)
            async for _event in running:
                pass

    yield run


if __name__ == "__main__":
    main(Contender("google-adk", {"start": starting, "newest": reading, "append": appending, "run": running}))
