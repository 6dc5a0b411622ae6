"""A manager who leads a chat: a model keeps a ledger of facts, plan and progress, and gives each turn an instruction.

The loop is that of Magentic-One (Fourney et al., 2024, arXiv:2411.04468), with one call of the model for each decision.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from pydantic import BaseModel

from clew.agents.agent import Agent
from clew.chats.chat_view import ChatView
from clew.chats.turn_selection import Decision, spoken_text
from clew.domain.json_values import JsonObject
from clew.domain.messages import Message, Value
from clew.domain.models.client import TokenUsage
from clew.domain.runs.errors import AgentConfigurationError, AnswerFormatError

_SHOWN = 20
"""How many messages the manager sees. What came before is in its ledger."""

_LEAD = (
    "You lead this conversation until the task is done. Keep the ledger: the facts that are known or still to be "
    "found, the plan, and the progress. is_progressing is false if the last turns brought nothing new. If the task is "
    "done, is_satisfied is true and answer is the whole answer for the user. Otherwise give next_speaker, one of the "
    "participants, and an instruction that this participant can follow without knowing the plan."
)
_REPLAN = (
    "There was no progress for too long. Correct the facts, find what went wrong, and make another plan. "
    "Then give the next speaker and the instruction."
)
_CONCLUDE = (
    "There will be no more turns. Set is_satisfied, and give the best answer that is possible with what is known."
)


class Ledger(BaseModel):
    """What the manager answers at each decision."""

    facts: list[str]
    plan: list[str]
    progress: str
    is_progressing: bool
    is_satisfied: bool
    next_speaker: str | None = None
    instruction: str | None = None
    answer: str | None = None


class ManagerState(Value):
    """What is kept on the log between two decisions."""

    task: str = ""
    facts: tuple[str, ...] = ()
    plan: tuple[str, ...] = ()
    progress: str = ""
    stalls: int = 0
    replans: int = 0


class ManagerSelection:
    """An agent leads the chat: it plans, selects who speaks next with which instruction, and answers in the end.

    Its ledger is on the log, and so are its runs, one or a few for each decision. The run ends when the manager is
    ``satisfied``; after ``max_stalls`` decisions in a row without progress it makes another plan, and after
    ``max_replans`` plans the run ends as ``stalled``. ``max_turns`` and ``max_tokens`` (of the participants and the
    manager together) are the budget: when it is used up, the manager answers with what is known. The agent must be
    given again when the chat is opened.
    """

    def __init__(
        self,
        agent: Agent[Any, Any],
        *,
        max_turns: int | None = None,
        max_tokens: int | None = None,
        max_stalls: int = 3,
        max_replans: int = 1,
    ) -> None:
        least = {"max_turns": 1, "max_tokens": 1, "max_stalls": 1, "max_replans": 0}
        limits = {
            "max_turns": max_turns,
            "max_tokens": max_tokens,
            "max_stalls": max_stalls,
            "max_replans": max_replans,
        }
        for name, value in limits.items():
            if value is not None and (type(value) is not int or value < least[name]):
                raise AgentConfigurationError(
                    f"ManagerSelection({name}={value!r}): give a whole number from {least[name]}."
                )
        self._agent = agent
        self._limits = limits
        self._budget = {"max-turns": max_turns, "max-tokens": max_tokens}
        self._max_stalls, self._max_replans = max_stalls, max_replans

    @property
    def data(self) -> JsonObject:
        """The selection as JSON, with the id of the agent."""
        return {"type": "manager", "agent": self._agent.id, **self._limits}

    async def select(self, chat: ChatView) -> Decision:
        """The next speaker with an instruction, or the end of the run with an answer. Raises AnswerFormatError."""
        state = await _state_before(chat)
        asking = _Asking(self._agent, chat)
        used = {"max-turns": chat.turns, "max-tokens": chat.tokens}
        end = next((name for name, most in self._budget.items() if most is not None and used[name] >= most), None)
        context = await _context(chat, state)
        ledger = await asking.ask(f"{context}\n\n{_LEAD if end is None else _CONCLUDE}", ends=end is not None)
        if end is None:
            stalls = 0 if not chat.turns or ledger.is_progressing or ledger.is_satisfied else state.stalls + 1
            state = state.model_copy(update={"stalls": stalls})
            if stalls >= self._max_stalls:
                end = "stalled" if state.replans >= self._max_replans else None
                ledger = await asking.ask(_REPLAN if end is None else _CONCLUDE, ends=end is not None)
                state = state.model_copy(update={"stalls": 0, "replans": state.replans + 1})
        kept = {"facts": tuple(ledger.facts), "plan": tuple(ledger.plan), "progress": ledger.progress}
        state = state.model_copy(update=kept)
        over = end is not None or ledger.is_satisfied
        words = (ledger.answer if over else ledger.instruction) or ""
        return Decision(
            None if over else asking.speaker(ledger),
            message=Message.assistant(words, author=self._agent.name or self._agent.id),
            reason=end or "satisfied",
            state=state.model_dump(mode="json"),
            by=self._agent.id,
            thread_id=asking.thread.id,
            usage=asking.usage,
            cost=asking.cost,
        )


async def _state_before(chat: ChatView) -> ManagerState:
    """The state before a decision. A run begins with its input as the task, and keeps the facts of earlier runs."""
    state = ManagerState.model_validate(chat.selection_state or {})
    if chat.turns:
        return state
    newest = [each.message for each in await chat.history(last=_SHOWN) if each.message is not None]
    task = next((spoken_text(each) for each in reversed(newest) if each.role == "user"), state.task)
    return ManagerState(task=task, facts=state.facts)


async def _context(chat: ChatView, state: ManagerState) -> str:
    who = "\n".join(f"- {each.author}: {each.description or each.type}" for each in chat.participants)
    newest = "\n".join(
        f"{each.message.author or each.role}: {spoken_text(each.message)}"
        for each in await chat.history(last=_SHOWN)
        if each.message is not None
    )
    lines = {"Facts": state.facts, "Plan": state.plan, "Progress": (state.progress,) if state.progress else ()}
    ledger = "\n".join(
        f"{name}:\n" + "\n".join(f"- {each}" for each in items) for name, items in lines.items() if items
    )
    parts = {"Task": state.task, "Participants": who, "Ledger": ledger, "Newest messages": newest}
    return "\n\n".join(f"{name}:\n{text}" for name, text in parts.items() if text)


@dataclass
class _Asking:
    """The runs of the manager for one decision, on a thread of their own.

    Each has a key, so that a process that makes the decision again after a crash reads or continues them.
    """

    agent: Agent[Any, Any]
    chat: ChatView
    usage: TokenUsage = field(default_factory=TokenUsage)
    cost: Decimal | None = Decimal(0)
    thread: Any = None
    asked: int = 0

    async def ask(self, prompt: str, *, ends: bool) -> Ledger:
        """The ledger. An answer that cannot be used is asked for once more. Raises AnswerFormatError."""
        try:
            return await self._ask(prompt, ends=ends)
        except AnswerFormatError as error:
            return await self._ask(f"{error}\nAnswer again.", ends=ends)

    async def _ask(self, prompt: str, *, ends: bool) -> Ledger:
        self.asked += 1
        options: dict[str, Any] = {} if self.thread is None else {"thread": self.thread}
        response = await self.chat.ask(self.agent, prompt, f"next:{self.asked}", response_format=Ledger, **options)
        self.thread = response.thread
        self.usage += response.usage
        self.cost = None if self.cost is None or response.cost is None else self.cost + response.cost
        ledger: Ledger = response.value
        if problem := self._problem(ledger, ends=ends):
            raise AnswerFormatError(problem, response.text)
        return ledger

    def _problem(self, ledger: Ledger, *, ends: bool) -> str | None:
        if ledger.is_satisfied or ends:
            return None if (ledger.answer or "").strip() else "The answer of the manager has no text in `answer`."
        if not (ledger.instruction or "").strip():
            return "The answer of the manager has no text in `instruction`."
        if self.speaker(ledger) is None:
            names = ", ".join(repr(each.author) for each in self.chat.participants) or "nobody"
            return f"`next_speaker` is {ledger.next_speaker!r}, who is not in the chat. In it are: {names}."
        return None

    def speaker(self, ledger: Ledger) -> str | None:
        """The id of the participant that the ledger names, None if it names nobody."""
        named = (ledger.next_speaker or "").strip().casefold()
        return next(
            (each.id for each in self.chat.participants if named in {each.id.casefold(), each.author.casefold()}), None
        )
