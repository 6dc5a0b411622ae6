"""What a run gives back: updates while it goes on, and the response in the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from clew.domain.history import HistoryMessage
from clew.domain.models.client import Usage
from clew.domain.runs.errors import AgentConfigurationError, AnswerFormatError
from clew.domain.runs.ports import ThreadPort
from clew.domain.values import explain

if TYPE_CHECKING:
    from clew.agents.approvals import Approval

ThreadT_co = TypeVar("ThreadT_co", bound=ThreadPort, covariant=True)


@dataclass(frozen=True, slots=True)
class AgentUpdate:
    """Something that happened in a run: a piece of the answer, of what the model thinks, of a call, or a message.

    ``text`` is the piece that came; of a call that of its arguments, with ``call_id`` and ``name``. ``message`` is what
    was recorded: an answer of the model's (``answer``) or a tool's result (``result``).
    """

    type: Literal["text", "reasoning", "call", "answer", "result"]
    text: str = ""
    call_id: str | None = None
    name: str | None = None
    message: HistoryMessage | None = None


@dataclass(frozen=True)  # with slots AgentResponse[Thread](…) is a TypeError
class AgentResponse(Generic[ThreadT_co]):
    """What came of a run.

    ``messages`` are those that it added, without what it was given; ``thread`` is the one that it ran on. ``usage`` are
    the tokens of all its model calls, and ``finish_reason`` is why the last answer ended. ``approvals`` are the
    function calls that wait for somebody: then the run is not over, and ``agent.continue_run(thread)`` goes on.
    """

    run_id: str
    thread: ThreadT_co
    messages: list[HistoryMessage]
    usage: Usage
    finish_reason: str | None = None
    approvals: list[Approval] = field(default_factory=list)
    response_format: type[BaseModel] | None = field(default=None, repr=False)

    @property
    def text(self) -> str:
        """The words of the last answer."""
        answers = [message for message in self.messages if message.role == "assistant"]
        return answers[-1].text if answers else ""

    @property
    def value(self) -> Any:
        """The answer as the ``response_format`` that was asked for. Raises AnswerFormatError when it is not one."""
        if self.response_format is None:
            raise AgentConfigurationError(
                "value: the run was not asked for a format. Give agent.run(response_format=…)."
            )
        if self.approvals:
            raise AgentConfigurationError("value: the run waits for approvals, and has not answered yet.")
        try:
            return self.response_format.model_validate_json(self.text)
        except ValidationError as error:
            said = explain(self.response_format.__name__, error)
            message = f"The answer is not what was asked for: {said} The text of the answer is on the error."
            raise AnswerFormatError(message, self.text) from None

    def __str__(self) -> str:
        return self.text
