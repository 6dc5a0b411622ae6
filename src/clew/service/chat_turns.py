"""The open turns of a chat that wait for somebody, and what ends them when their run is over."""

from __future__ import annotations

from functools import partial

from clew.domain.chats.events import CHANNEL_OF, GROUP_CHAT
from clew.domain.chats.state import CHAT_STATE, OpenTurn
from clew.domain.decider_state import Control
from clew.service.application_folds import fold
from clew.service.core import Core, load
from clew.service.effects import Operation, read


def waiting_turns(core: Core, chat_id: str, control: Control) -> Operation[list[str]]:
    """The threads with runs of a chat's open turns that nobody executes, also of turns in chats that have a turn in it.

    Only threads that name the chat, because a turn of an imported chat can name any thread. A run that is executed ends
    by itself, and its answer is not recorded. None for a thread that is not a chat.
    """
    if not control.labels.get(GROUP_CHAT):
        return []
    state = yield from fold(core, chat_id, CHAT_STATE)
    waiting: list[str] = []
    for turn in state.turns:
        waiting += yield from _of_turn(core, chat_id, turn)
    return waiting


def _of_turn(core: Core, chat_id: str, turn: OpenTurn) -> Operation[list[str]]:
    there = yield from load(core, turn.thread_id)
    if there.status != "active":
        return []
    if there.labels.get(GROUP_CHAT):
        inner = yield from fold(core, turn.thread_id, CHAT_STATE)
        is_of_chat = inner.run is not None and inner.run.within == chat_id
        return (yield from waiting_turns(core, turn.thread_id, there)) if is_of_chat else []
    if there.run is None or there.labels.get(CHANNEL_OF) != chat_id:
        return []
    lease = yield from read(partial(core.log.lease, core.stream(turn.thread_id)))
    return [turn.thread_id] if lease is None or lease.until <= core.now() else []
