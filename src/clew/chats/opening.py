"""How a chat begins: a new one, or one that is on the log."""

from __future__ import annotations

from collections.abc import Sequence

from clew.aio.threads import LocalThread, RemoteThread
from clew.chats.group_chat import GroupChat, joined
from clew.chats.participants import Joining, members_of
from clew.chats.termination import MAX_TURNS, MaxTurns, Termination, terminations_of
from clew.chats.turn_selection import RoundRobin, TurnSelection, selection_of
from clew.chats.turns import read_chat
from clew.domain.chats.events import GROUP_CHAT, ChatConfigured
from clew.domain.context.provider import ContextProviders, as_providers
from clew.domain.decider import RecordEvents
from clew.domain.events import ThreadEvent
from clew.domain.runs.errors import AgentConfigurationError
from clew.domain.runs.ports import EnginePort


async def start_chat(  # noqa: PLR0913  # named arguments, each documented at the front door
    engine: EnginePort[LocalThread, RemoteThread],
    participants: Sequence[Joining],
    *,
    chat_id: str | None,
    selection: TurnSelection | None,
    termination: Termination | Sequence[Termination] | None,
    max_turns: int | None,
    context_providers: ContextProviders | None,
    newcomers_read: int | None,
    actor: str | None,
) -> GroupChat:
    """Start a chat. See ``engine.start_chat``."""
    members = members_of(participants)
    thread = engine.unstarted_thread("local", chat_id, {GROUP_CHAT: True})
    thread.context_providers.add(*as_providers(context_providers))
    chosen = selection or RoundRobin()
    ends = _terminations(termination, max_turns) or (MaxTurns(MAX_TURNS),)
    configured = ChatConfigured(
        selection=chosen.data, termination=tuple([each.data for each in ends]), newcomers_read=newcomers_read
    )
    steps: list[ThreadEvent] = [configured, *[await joined(each) for each in members.values()]]
    await thread.runs.record([RecordEvents(tuple(steps))], actor=actor)
    await thread.notify("on_thread_created", [], actor=actor)
    chat = GroupChat(engine, thread, members, selection=chosen, termination=ends)
    await chat.refresh()
    return chat


async def open_chat(  # as start_chat
    engine: EnginePort[LocalThread, RemoteThread],
    chat_id: str,
    participants: Sequence[Joining],
    *,
    selection: TurnSelection | None,
    termination: Termination | Sequence[Termination] | None,
    context_providers: ContextProviders | None,
) -> GroupChat:
    """Open a chat. See ``engine.chat``."""
    members = members_of(participants)
    thread = await engine.thread(chat_id)
    thread.context_providers.add(*as_providers(context_providers))
    _, state = await read_chat(thread)
    if not state.selection:
        raise AgentConfigurationError(f"Thread {chat_id!r} is not a chat. Start one with engine.start_chat([…]).")
    strangers = sorted(set(members) - set(state.present))
    if strangers:
        raise AgentConfigurationError(
            f"{', '.join(map(repr, strangers))} did not join chat {chat_id!r}. Open it without them, and let them "
            "join: await chat.add(agent)."
        )
    chosen = selection or selection_of(state.selection)
    ends = _terminations(termination, None) or terminations_of(state.termination)
    chat = GroupChat(engine, thread, members, selection=chosen, termination=ends)
    await chat.refresh()
    return chat


def _terminations(
    termination: Termination | Sequence[Termination] | None, max_turns: int | None
) -> tuple[Termination, ...]:
    given = (
        () if termination is None else (termination,) if isinstance(termination, Termination) else tuple(termination)
    )
    return given if max_turns is None else (MaxTurns(max_turns), *given)
