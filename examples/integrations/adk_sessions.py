"""Sessions of Google's ADK: a session is a thread of Clew, and the state of a user or an application is a scope."""

import time
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import quote
from uuid import uuid4

from examples.integrations.items import as_items, as_message, text_paths
from google.adk.errors._stale_session_error import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.sessions._session_util import extract_state_delta, make_json_safe_state
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig, ListSessionsResponse
from google.adk.sessions.session import Session

from clew import Engine, Fold, Record
from clew.errors import ConflictError, ThreadDeletedError, ThreadExistsError, UnknownThreadError
from clew.events import MessageAppended, RecordAppended


class State(NamedTuple):
    """The session's own state and the time of its last event."""

    values: dict[str, Any]
    updated: float


def evolve(state: State | None, event: Any) -> State | None:
    """The state after one more message or record."""
    values = state.values if state else {}
    data, kind = event.data, type(event.data)
    if kind is RecordAppended:
        return State({**values, **data.data["delta"]}, data.data["time"])
    if kind is MessageAppended and "item" in data.message.source:
        return State(values, data.message.source["item"]["timestamp"])
    return state


STATE: Fold[State | None] = Fold("adk", 1, None, evolve, types=["message-appended", "record-appended"])


class ClewSessionService(BaseSessionService):
    """A deleted session is purged: its content is destroyed, and its id can be used again."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def create_session(
        self, *, app_name: str, user_id: str, state: dict[str, Any] | None = None, session_id: str | None = None
    ) -> Session:
        id = (session_id or "").strip() or str(uuid4())
        names: Any = {"app": app_name, "user": user_id, "session": id}
        with suppress(ThreadExistsError):
            await self.engine.start_thread(thread_id=name(*names.values()), labels=names, replace_deleted=True)
        thread, version, there = await self._find(app_name, user_id, id)
        deltas = extract_state_delta(make_json_safe_state(state or {}))
        now = time.time()
        created = Record("state", {"delta": deltas["session"], "time": now})
        with suppress(ConflictError):  # another process was faster
            if there is None:
                await self._append(app_name, user_id, thread, version, [created], deltas)
                return await self._session(app_name, user_id, id, State(deltas["session"], now))
        raise AlreadyExistsError(f"Session with id {id} already exists.")

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        thread, version, state = await self._find(app_name, user_id, session_id)
        if state is None:
            return None
        newest, since = (config.num_recent_events, config.after_timestamp) if config else (None, None)
        history = await thread.history(at=version, last=None if since else newest)
        events = [Event.model_validate(item) for item in as_items(history)]
        events = [event for event in events if event.timestamp >= (since or event.timestamp)]
        session = await self._session(app_name, user_id, session_id, state)
        session.events = events if newest is None else events[max(len(events) - newest, 0) :]
        return session

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        labels = {"app": app_name} if user_id is None else {"app": app_name, "user": user_id}
        sessions = []
        async for each in self.engine.threads(status="active", labels=labels):
            names = app_name, str(each.labels["user"]), str(each.labels["session"])
            if (state := (await self._find(*names))[2]) is not None:
                sessions.append(await self._session(*names, state))
        return ListSessionsResponse(sessions=sorted(sessions, key=lambda each: each.last_update_time))

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        thread, _, state = await self._find(app_name, user_id, session_id)
        if state is not None:
            await (thread.rewind(1) if await thread.forks() else thread.purge())  # forks keep what they share

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        return {fact.key: fact.value for fact in await (await self._scopes(app_name, user_id))["user"].facts()}

    async def append_event(self, session: Session, event: Event) -> Event:
        if event.partial:
            return event
        self._apply_temp_state(session, event)
        event = self._trim_temp_delta_state(event)
        thread, version, state = await self._find(session.app_name, session.user_id, session.id)
        if state is None:
            raise SessionNotFoundError(f"Session {session.id} not found.")
        if state.updated > session.last_update_time:
            raise StaleSessionError(f"Session {session.id} has changed since it was read.")
        deltas = extract_state_delta(make_json_safe_state(event.actions.state_delta))
        item, role = event.model_dump(mode="json", exclude_none=True), "user" if event.author == "user" else "assistant"
        said: list[Any] = [as_message(role, item, text_paths(item, "content", "parts"), author=event.author)]
        if deltas["session"]:
            said.append(Record("state", {"delta": deltas["session"], "time": event.timestamp}))
        try:
            await self._append(session.app_name, session.user_id, thread, version, said, deltas)
        except ConflictError:  # by another process, after it was found
            raise StaleSessionError(f"Session {session.id} has changed since it was read.") from None
        session.last_update_time = event.timestamp
        return self._commit_event_to_session(session, event)

    async def _append(self, app: str, user: str, thread: Any, version: int, said: Any, deltas: Any) -> None:
        """Append to a session and change the shared states in one commit."""
        async with self.engine.batch() as batch:
            batch.append(thread, said, expected_version=version)
            for kind, scope in (await self._scopes(app, user)).items():
                for key, value in deltas[kind].items():
                    batch.put(scope, key, value)

    async def _find(self, app: str, user: str, id: str) -> tuple[Any, int, State | None]:
        """The thread of a session, its version, and the state there, which is None if the session does not exist."""
        try:
            thread = await self.engine.thread(name(app, user, id))
            version = await thread.version
            return thread, version, await thread.fold(STATE, at=version)
        except (UnknownThreadError, ThreadDeletedError):
            return None, 0, None

    async def _session(self, app: str, user: str, id: str, state: State) -> Session:
        values = dict(state.values)
        for kind, scope in (await self._scopes(app, user)).items():
            values |= {f"{kind}:{fact.key}": fact.value for fact in await scope.facts()}
        return Session(app_name=app, user_id=user, id=id, state=values, last_update_time=state.updated)

    async def _scopes(self, app: str, user: str) -> dict[str, Any]:
        return {"app": await self.engine.memory(name(app)), "user": await self.engine.memory(name(app, user))}


def name(*parts: str) -> str:
    """The id of a session's thread, or the name of a scope."""
    return "adk/" + "/".join(quote(part.strip(), safe="") for part in parts)
