"""ADK's sessions in Clew: the same calls to ADK's own session service, and what only Clew has."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from examples.integrations.adk_sessions import ClewSessionService
from google.adk.agents import BaseAgent
from google.adk.errors._stale_session_error import StaleSessionError
from google.adk.events import Event, EventActions
from google.adk.runners import Runner
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types

from clew import Engine

ADA: dict[str, Any] = {"app_name": "shop", "user_id": "ada"}
ONE: dict[str, Any] = {**ADA, "session_id": "1"}
LATER = 2e9
"""A time after every test, in seconds since 1970."""


def event(number: int, **delta: Any) -> Event:
    parts = [types.Part(text=f"message {number}"), types.Part.from_bytes(data=b"\0\xff", mime_type="image/png")]
    return Event(
        author="user" if number % 2 else "helper",
        id=f"event-{number}",
        invocation_id=str(number),
        timestamp=LATER + number,
        content=types.Content(role="user", parts=parts),
        actions=EventActions(state_delta=delta),
    )


async def outcome(awaitable: Awaitable[Any]) -> Any:
    """The result, or the name of the error."""
    try:
        return await awaitable
    except Exception as error:  # noqa: BLE001  # which error it is, is compared
        return type(error).__name__


def shown(session: Any) -> Any:
    """A session without times of the test, in plain values."""
    if session is None or isinstance(session, str):
        return session
    events = [each.model_dump(mode="json", exclude_none=True) for each in session.events]
    updated = session.last_update_time if session.last_update_time >= LATER else "now"
    return session.app_name, session.user_id, session.id, sorted(session.state.items()), events, updated


async def play(service: Any) -> dict[str, Any]:
    """The answers of a service to the same calls, by name."""
    state = {"app:x": 1, "user:y": [1], "z": 2, "temp:t": 3}
    first = await service.create_session(**ONE, state=state)
    said: dict[str, Any] = {"created": shown(first)}
    second = await service.create_session(**ADA, session_id="2")
    said["shares the state of the user and the application"] = shown(second)
    said["id is taken"] = await outcome(service.create_session(**ONE))
    said["padded id is taken"] = await outcome(service.create_session(**ADA, session_id=" 1 "))
    for number in range(5):
        delta = {"app:x": number, "user:y": {"n": number}, "z": number, "temp:q": 1}
        await service.append_event(first, event(number, **delta))
    said["in memory"] = shown(first)
    said["read"] = shown(await service.get_session(**ONE))
    configs: dict[str, dict[str, Any]] = {
        "newest": {"num_recent_events": 2},
        "no events": {"num_recent_events": 0},
        "more than there are": {"num_recent_events": 9},
        "after": {"after_timestamp": LATER + 3},
        "newest after": {"after_timestamp": LATER + 1, "num_recent_events": 2},
        "none after": {"after_timestamp": LATER + 1, "num_recent_events": 0},
    }
    for name, config in configs.items():
        said[name] = shown(await service.get_session(**ONE, config=GetSessionConfig(**config)))
    stale = await service.get_session(**ONE)
    await service.append_event(first, event(7))
    said["stale"] = await outcome(service.append_event(stale, event(8)))
    partial = event(9)
    partial.partial = True
    await service.append_event(first, partial)
    said["after a partial event"] = shown(await service.get_session(**ONE))
    said["state of a user"] = await service.get_user_state(**ADA)
    said["no state of a user"] = await service.get_user_state(app_name="shop", user_id="nobody")
    await service.create_session(app_name="shop", user_id="bo", session_id="1", state={"user:y": "bo's"})
    lists: dict[str, Any] = {"of a user": ADA, "of an app": {"app_name": "shop"}, "of none": {"app_name": "none"}}
    for name, asked in lists.items():
        listed = (await service.list_sessions(**asked)).sessions
        said[f"list {name}"] = sorted(shown(each) for each in listed)
    await service.delete_session(**ONE)
    said["deleted"] = await service.get_session(**ONE)
    said["appended to a deleted one"] = await outcome(service.append_event(first, event(11)))
    said["id again"] = shown(await service.create_session(**ONE))
    said["deleted twice"] = await outcome(service.delete_session(**ADA, session_id="none"))
    said["unknown"] = await outcome(service.get_session(**ADA, session_id="none"))
    said["generated id"] = len((await service.create_session(**ADA)).id)
    return said


def test_answers_as_the_session_service_of_adk_does(tmp_path: Path) -> None:
    async def both() -> Any:
        async with Engine.open(tmp_path / "clew.db") as engine:
            clew = await play(ClewSessionService(engine))
            assert (await engine.verify()).first_bad is None
        return clew, await play(SqliteSessionService(str(tmp_path / "own.db")))

    clew, own = asyncio.run(both())
    assert clew.keys() == own.keys()
    assert {name: answer for name, answer in clew.items() if answer != own[name]} == {}
    assert len(clew) == 25
    assert clew["stale"] == "StaleSessionError"
    assert clew["id is taken"] == "AlreadyExistsError"


class Echo(BaseAgent):
    """An agent that repeats the last message and counts its answers for the user."""

    async def _run_async_impl(self, ctx: Any) -> Any:
        words = "".join(part.text or "" for part in ctx.user_content.parts)
        count = ctx.session.state.get("user:count", 0) + 1
        actions = EventActions(state_delta={"user:count": count})
        content = types.Content(role="model", parts=[types.Part(text=f"{count}: {words}")])
        yield Event(author=self.name, invocation_id=ctx.invocation_id, content=content, actions=actions)


def test_a_runner_continues_a_session(tmp_path: Path) -> None:
    async def talk(service: Any) -> list[Any]:
        await service.create_session(**ONE)
        runner = Runner(app_name="shop", agent=Echo(name="echo"), session_service=service)
        for words in ("Hello", "Again"):
            message = types.Content(role="user", parts=[types.Part(text=words)])
            async for _ in runner.run_async(user_id="ada", session_id="1", new_message=message):
                pass
        session = await service.get_session(**ONE)
        texts = [(each.author, each.content.parts[0].text) for each in session.events]
        return [texts, await service.get_user_state(**ADA)]

    async def both() -> Any:
        async with Engine.open(tmp_path / "clew.db") as engine:
            clew = await talk(ClewSessionService(engine))
            history = await (await engine.thread("adk/shop/ada/1")).history()
            assert [each.text for each in history] == ["Hello", "1: Hello", "Again", "2: Again"]
        return clew, await talk(SqliteSessionService(str(tmp_path / "own.db")))

    clew, own = asyncio.run(both())
    assert clew == own
    assert clew[1] == {"count": 2}


def test_of_two_services_that_append_at_once_one_is_stale_and_changes_no_state(tmp_path: Path) -> None:
    async def race() -> Any:
        async with Engine.open(tmp_path / "clew.db") as engine:
            services = [ClewSessionService(engine), ClewSessionService(engine)]
            await services[0].create_session(**ONE)
            sessions: list[Any] = [await service.get_session(**ONE) for service in services]
            appends = [
                service.append_event(session, event(number, **{"app:x": number}))
                for number, (service, session) in enumerate(zip(services, sessions, strict=True))
            ]
            results = await asyncio.gather(*appends, return_exceptions=True)
            read: Any = await services[0].get_session(**ONE)
            return results, read

    results, session = asyncio.run(race())
    [failed] = [number for number, result in enumerate(results) if isinstance(result, StaleSessionError)]
    assert session.state == {"app:x": 1 - failed}
    assert [each.invocation_id for each in session.events] == [str(1 - failed)]


def test_a_label_of_another_program_does_not_make_a_session_stale(tmp_path: Path) -> None:
    async def label() -> Any:
        async with Engine.open(tmp_path / "clew.db") as engine:
            service = ClewSessionService(engine)
            session = await service.create_session(**ONE)
            await (await engine.thread("adk/shop/ada/1")).label(reviewed=True)
            await service.append_event(session, event(1))
            return await service.get_session(**ONE)

    assert [each.invocation_id for each in asyncio.run(label()).events] == ["1"]
