"""Every reducer on real conversations cut at each message: requests are valid and as large as allowed."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from inspect import isawaitable
from typing import Any

import pytest
from tests.agents.test_corpus_runs import sent_turns, turns_of
from tests.domain.request_checks import checked

from clew.domain.call_pairing import NO_RESULT
from clew.domain.context.events import HistoryReduced
from clew.domain.formats.conversation_import import read_conversation
from clew.domain.history import HistoryMessage
from clew.domain.messages import Message
from clew.domain.models.chat_requests import OPENAI_CHAT
from clew.domain.models.responses_requests import OPENAI_RESPONSES
from clew.domain.reducers.history_reduction import reduce_history, reduced, reducible
from clew.domain.reducers.reducer import Reducer
from clew.domain.reducers.strategies import KeepLast, SlidingWindow, TokenBudget, TrimToolResults
from clew.domain.runs.events import ModelCalled
from clew.domain.runs.request_construction import Definitions, question_of
from clew.infrastructure.scripted_client import ScriptedChatClient
from clew.memory.summary_reducer import TITLE, Summarise

WIRES = (OPENAI_CHAT, OPENAI_RESPONSES)
INSTRUCTIONS = "You are a clerk."

Group = list[Message]
Expected = tuple[list[Group], bool]
"""The groups that a reducer must keep, and whether they exceed its limit."""


def groups_of(messages: Sequence[Message]) -> list[Group]:
    """Return the groups of a real conversation, in which results come right after their calls."""
    groups: list[Group] = []
    for message in messages:
        if message.role == "tool":
            groups[-1].append(message)
        else:
            groups.append([message])
    return groups


def tokens(messages: Sequence[Message]) -> int:
    """Return the tokens of messages (a quarter of the characters, rounded up) and of the notes for missing results."""
    missing = sum(len(message.calls) - len(message.results) for message in messages)
    return sum(-(-len(text) // 4) for text in [*map(spoken, messages), *[NO_RESULT] * missing])


def spoken(message: Message) -> str:
    parts = [message.text] if message.text else []
    parts += [f"{call.name} {call.arguments}" for call in message.calls]
    return "\n".join(parts + [str(result.result) for result in message.results])


def last(count: int) -> Callable[[list[Group], Group, int], Expected]:
    return lambda groups, _own, _fixed: (groups[-count:], False)


def turns(count: int) -> Callable[[list[Group], Group, int], Expected]:
    def expected(groups: list[Group], _own: Group, _fixed: int) -> Expected:
        starts = [place for place, group in enumerate(groups) if group[0].role == "user"]
        return (groups[starts[-count] :] if len(starts) >= count else groups), False

    return expected


def budget(most: int) -> Callable[[list[Group], Group, int], Expected]:
    def expected(groups: list[Group], own: Group, fixed: int) -> Expected:
        must = [] if own else groups[-1:]
        room = most - fixed - tokens(own) - sum(map(tokens, must))
        if room < 0:
            return must, True
        rest = groups[: len(groups) - len(must)]
        while rest and tokens(rest[-1]) <= room:
            group = rest.pop()
            room -= tokens(group)
            must.insert(0, group)
        return must, False

    return expected


EVERY: dict[str, tuple[Reducer, list[Callable[[list[Group], Group, int], Expected]]]] = {
    "the last one": (KeepLast(1), [last(1)]),
    "the last five": (KeepLast(5), [last(5)]),
    "two turns": (SlidingWindow(2), [turns(2)]),
    "a small budget": (TokenBudget(300), [budget(300)]),
    "a larger budget": (TokenBudget(2500), [budget(2500)]),
    "turns within a budget": (SlidingWindow(3) | TokenBudget(1800), [turns(3), budget(1800)]),
    "the last in a turn": (KeepLast(6) | SlidingWindow(1), [last(6), turns(1)]),
}
"""Reducers with the expected result of each step."""


class GrowingConversation:
    """A conversation that is reduced as it grows; messages have even versions and reductions odd ones."""

    def __init__(self, messages: Sequence[Message], reducer: Reducer, own: int) -> None:
        self.messages = messages
        self.reducer = reducer
        self.own = own
        self.placed = [
            HistoryMessage(2 * number, message.role, message, f"e{number}", number)
            for number, message in enumerate(messages, start=1)
        ]
        self.current: tuple[int, HistoryReduced] | None = None

    async def cut(self, cut: int) -> tuple[Sequence[Message], Sequence[Message], dict[str, Any], HistoryReduced | None]:
        """Return at a cut the history, the run's own messages, the request for them and the current reduction."""
        history, own = self.placed[:cut], self.placed[cut : cut + self.own]
        version, previous = self.current or (0, None)
        input_history = reducible(history, previous, version, own, INSTRUCTIONS)
        result = self.reducer.reduce(input_history)
        done = await result if isawaitable(result) else result
        event = reduce_history(
            done, input_history, agent="clerk", reducer=self.reducer.name, previous=previous, upto=2 * cut
        )
        if event is not None:
            self.current = (2 * cut + 1, event)
        wire = WIRES[cut % 2]
        path = [*history, *own] if self.current is None else reduced([*history, *own], self.current[1], self.current[0])
        call = ModelCalled(definitions=1, client="test", wire=wire.name, model="m", digest="", attempt=1)
        question = question_of(call, Definitions(INSTRUCTIONS), path)
        return (
            self.messages[:cut],
            self.messages[cut : cut + self.own],
            checked(wire, question),
            None if self.current is None else self.current[1],
        )


def turns_in(body: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the turns of a request, without the agent's instructions."""
    if "instructions" in body:
        return sent_turns(body)
    assert sent_turns(body)[0] == ("system", INSTRUCTIONS)
    return sent_turns(body)[1:]


def split_history(
    history: Sequence[Message], own: Sequence[Message]
) -> tuple[list[Message], list[Group], list[Message]]:
    """Return the system message, the earlier groups, and the run's own messages with the calls that they answer."""
    first = [history[0]] if history and history[0].role == "system" else []
    groups = groups_of(history[len(first) :])
    if own and own[0].role == "tool":
        return first, groups[:-1], [*groups[-1], *own]
    return first, groups, list(own)


@pytest.fixture
def conversations(corpus: list[dict[str, Any]], scale: float) -> list[Sequence[Message]]:
    sample = random.Random(17).sample(corpus, max(1, min(len(corpus), round(len(corpus) * scale / 4))))
    return [read_conversation(each).messages for each in sample]


@pytest.mark.parametrize("name", EVERY)
def test_reducers_keep_exactly_the_allowed_groups(name: str, conversations: list[Sequence[Message]]) -> None:
    asyncio.run(cut_everywhere(*EVERY[name], conversations))


async def cut_everywhere(
    reducer: Reducer,
    steps: Sequence[Callable[[list[Group], Group, int], Expected]],
    conversations: Sequence[Sequence[Message]],
) -> None:
    for number, messages in enumerate(conversations):
        for own in (0, 1 + number % 2):
            growing = GrowingConversation(messages, reducer, own)
            shown = repr(growing.placed)
            for cut in range(1, len(messages) + 1 - own):
                history, mine, body, current = await growing.cut(cut)
                first, groups, own_group = split_history(history, mine)
                over = False
                fixed = tokens([Message.user(INSTRUCTIONS), *first])
                for step in steps:
                    groups, more = step(groups, own_group, fixed)
                    over |= more
                expected = [*first, *(each for group in groups for each in group), *own_group]
                assert turns_in(body) == turns_of(expected)
                assert over == (current is not None and current.over_budget)
            assert repr(growing.placed) == shown


def test_long_results_are_trimmed_and_all_messages_sent(conversations: list[Sequence[Message]]) -> None:
    async def cut_all() -> None:
        for messages in conversations:
            growing = GrowingConversation(messages, TrimToolResults(60, keep_last=2), 1)
            for cut in range(1, len(messages)):
                history, own, body, _ = await growing.cut(cut)
                first, groups, own_group = split_history(history, own)
                shorter = [[shortened(each) for each in group] for group in groups[:-2]] + groups[-2:]
                assert turns_in(body) == turns_of([*first, *(each for group in shorter for each in group), *own_group])

    asyncio.run(cut_all())


def shortened(message: Message) -> Message:
    if not message.results or len(text := str(message.results[0].result)) <= 60:
        return message
    note = f"… [cut: {len(text)} characters]"
    return Message.tool(message.results[0].call_id, text[: 60 - len(note)] + note)


def test_a_summary_of_summaries_contains_each_message_once(conversations: list[Sequence[Message]]) -> None:
    def summary_of(request: Any) -> str:
        """Return a summary that joins the starts of its messages."""
        data = json.loads(request["messages"][-1]["content"])
        parts = [*filter(None, [data.get("summary_so_far")]), *(each["said"][:30] for each in data["messages"])]
        return json.dumps({"summary": " | ".join(" ".join(part.split()) for part in parts) or "-"})

    async def cut_all() -> None:
        for messages in conversations:
            growing = GrowingConversation(messages, Summarise(ScriptedChatClient(summary_of), keep_last=4, every=3), 1)
            for cut in range(1, len(messages)):
                history, own, body, current = await growing.cut(cut)
                first, groups, own_group = split_history(history, own)
                parts = turns_in(body)
                assert parts[: len(first)] == turns_of(first)
                if current is None:
                    assert len(groups) < 7
                    assert parts == turns_of([*history, *own])
                    continue
                assert current.summary is not None
                role, text = parts[len(first)]
                assert (role, text.partition("\n")[0]) == ("user", TITLE)
                newest = parts[len(first) + 1 :]
                for count in (4, 5, 6):
                    if newest == turns_of([*(each for group in groups[-count:] for each in group), *own_group]):
                        break
                else:
                    pytest.fail("the newest groups differ from the sent ones")
                older = [each for group in groups[:-count] for each in group]
                assert text.count(" | ") == len(older) - 1

    asyncio.run(cut_all())
