"""A table of faults in a run, and the events that each one leaves on the log."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tests.agents.run_checks import RoleAndText
from tests.agents.scripted_wires import PARTIAL_ANSWER, ScriptedReply, Trouble
from tests.agents.services import as_json, calls

from clew.agents.tools import Tool, tool
from clew.domain.runs.errors import (
    ContextWindowError,
    ModelAccessError,
    ModelError,
    ModelOverloadedError,
    ModelStreamError,
    ModelUnavailableError,
    ToolFailedError,
)

QUESTION = "What now?"


@tool
async def lookup(order: int) -> str:
    """Look up an order."""
    return f"order {order} is on its way"


@tool
async def breaks(order: int) -> str:
    """Fail, and report it to the model."""
    message = f"no order {order}"
    raise KeyError(message)


@tool(errors="raise")
def breaks_all(order: int) -> str:
    """Fail, and end the run."""
    message = f"no order {order}"
    raise KeyError(message)


@tool(timeout=0.01)
async def is_late(order: int) -> str:
    """Take longer than the timeout."""
    await asyncio.Event().wait()
    return f"{order}"


@dataclass
class Waiting:
    """A tool that runs until its run is stopped."""

    started: asyncio.Event = field(default_factory=asyncio.Event)

    def tools(self) -> list[Tool]:
        """Return all tools of the agent, including this one."""

        async def waits(order: int) -> str:
            """Wait forever."""
            self.started.set()
            await asyncio.Event().wait()
            return f"{order}"

        return [lookup, breaks, breaks_all, is_late, tool(waits)]


Interruption = Literal["uninterrupted", "cancelled in the answer", "cancelled in a tool", "abandoned"]


@dataclass(frozen=True)
class Fault:
    """A run with a fault.

    ``lines`` are the answers of the model; ``events`` are the types of the events after the user's message,
    ``added`` the new messages, ``recorded`` fields of some of the events, ``sent`` what the log says of each request
    with the trouble, and ``error`` is what the run raises.
    """

    name: str
    lines: tuple[ScriptedReply, ...]
    events: tuple[str, ...]
    added: tuple[RoleAndText, ...]
    recorded: dict[str, dict[str, Any]]
    error: type[BaseException] | None = None
    streams: tuple[bool, ...] = (False, True)
    sent: bool | None = True
    retries: int = 0
    interruption: Interruption = "uninterrupted"

    @property
    def trouble(self) -> Trouble | None:
        """Return the fault of the service, if there is one."""
        return next((line for line in self.lines if isinstance(line, Trouble)), None)

    @property
    def words(self) -> str:
        """Return the words of the answers: the caller of a stream gets no others."""
        return "".join(text for role, text in self.added if role == "assistant" and "{" not in text)


_CALLED = ("model-called", "message-appended", "model-answered")
_ENDED = (*_CALLED, "run-completed")
_LOOKED_UP: tuple[RoleAndText, ...] = (
    ("assistant", 'lookup{"order": 7}'),
    ("tool", "order 7 is on its way"),
)
_ANSWER = ("assistant", "I see.")


def after_tools(fault: Fault) -> Fault:
    """Return the same fault after a tool call and its result."""
    return replace(
        fault,
        name=f"{fault.name}, after a tool",
        lines=(calls(("lookup", as_json(order=7))), *fault.lines),
        events=(*_CALLED, "tool-started", "message-appended", "tool-finished", *fault.events),
        added=(*_LOOKED_UP, *fault.added),
    )


def _refused(trouble: Trouble, kind: type[ModelError], *, sent: bool | None = True, status: int | None = None) -> Fault:
    error = {"kind": kind.__name__, "status": status}
    recorded = {"model-failed": {**error, "retry_in": None}, "run-failed": error}
    events = ("model-called", "model-failed", "run-failed")
    return Fault(trouble.value, (trouble,), events, (), recorded, kind, sent=sent)


def _broken(trouble: Trouble, **error: Any) -> Fault:
    """Return a fault in which the stream breaks off; the partial answer is recorded."""
    error |= {"kind": ModelStreamError.__name__}
    return Fault(
        f"{trouble.value} in the stream",
        (trouble,),
        ("model-called", "message-appended", "answer-interrupted", "run-failed"),
        (("assistant", PARTIAL_ANSWER),),
        {"answer-interrupted": {"reason": "fault", **error}, "run-failed": error},
        ModelStreamError,
        (True,),
    )


def _no_answer(trouble: Trouble, kind: type[ModelError], *, sent: bool | None = True) -> Fault:
    """Return the same fault without streaming: no partial answer exists."""
    return replace(_refused(trouble, kind, sent=sent), name=f"{trouble.value} of the whole", streams=(False,))


def _failing_tool(name: str, arguments: str, result: str, **recorded: Any) -> Fault:
    """Return a fault in which a tool fails; the model gets the error and answers."""
    started = () if recorded["reason"] == "unknown-tool" else ("tool-started",)
    return Fault(
        recorded["reason"],
        (calls((name, arguments)), "I see."),
        (*_CALLED, *started, "message-appended", "tool-failed", *_ENDED),
        (("assistant", f"{name}{arguments}"), ("tool", result), _ANSWER),
        {"tool-failed": recorded},
    )


_OVERLOADED = {"kind": ModelOverloadedError.__name__, "status": 429}

OF_THE_SERVICE = (
    _refused(Trouble.SERVER_ERROR, ModelUnavailableError, status=500),
    _refused(Trouble.REFUSED, ModelUnavailableError, sent=False),
    _refused(Trouble.CONTEXT_WINDOW, ContextWindowError, status=400),
    _refused(Trouble.DENIED, ModelAccessError, status=401),
    *(_broken(each, status=None) for each in (Trouble.CUT, Trouble.STALL, Trouble.MALFORMED, Trouble.EARLY_END)),
    _broken(Trouble.BROKEN_WITH_WORDS),  # the words have a status in some formats
    _no_answer(Trouble.CUT, ModelUnavailableError),
    _no_answer(Trouble.STALL, ModelUnavailableError, sent=None),
    _no_answer(Trouble.MALFORMED, ModelStreamError),
    _no_answer(Trouble.EARLY_END, ModelStreamError),
    Fault(
        "overloaded once",
        (Trouble.OVERLOADED, "I see."),
        ("model-called", "model-failed", *_ENDED),
        (_ANSWER,),
        {"model-failed": {"retry_in": 0.001, **_OVERLOADED}},
        retries=1,
    ),
    Fault(
        "overloaded for too long",
        (Trouble.OVERLOADED, Trouble.OVERLOADED),
        ("model-called", "model-failed", "model-called", "model-failed", "run-failed"),
        (),
        {"model-failed": _OVERLOADED, "run-failed": _OVERLOADED},
        ModelOverloadedError,
        retries=1,
    ),
    Fault(
        "cancelled before an answer",
        (Trouble.SILENCE,),
        ("model-called", "answer-interrupted", "run-abandoned"),
        (),
        {"answer-interrupted": {"reason": "cancelled"}, "run-abandoned": {"reason": "cancelled"}},
        asyncio.CancelledError,
        (False,),
        sent=None,
        interruption="cancelled in the answer",
    ),
    Fault(
        "cancelled in the answer",
        (Trouble.SILENCE,),
        ("model-called", "message-appended", "answer-interrupted", "run-abandoned"),
        (("assistant", PARTIAL_ANSWER),),
        {"answer-interrupted": {"reason": "cancelled"}, "run-abandoned": {"reason": "cancelled"}},
        asyncio.CancelledError,
        (True,),
        interruption="cancelled in the answer",
    ),
    Fault(
        "abandoned in the answer",
        (Trouble.SILENCE,),
        ("model-called", "message-appended", "answer-interrupted", "run-abandoned"),
        (("assistant", PARTIAL_ANSWER),),
        {"answer-interrupted": {"reason": "stopped"}, "run-abandoned": {"reason": "stopped"}},
        streams=(True,),
        interruption="abandoned",
    ),
)

_STOPPED = "Error: the call was stopped before it gave a result. Nobody knows how far it came."
_TOOLS = "lookup, breaks, breaks_all, is_late, waits"

_OF_THE_TOOLS = (
    _failing_tool(
        "lookup",
        '{"order": ',
        "Error: the arguments for lookup do not fit.\n- arguments: Invalid JSON: EOF while parsing a value at line 1 "
        'column 10 (given: "{\\"order\\": ").\nCall it again with arguments that fit its schema.',
        reason="invalid-arguments",
        kind="InvalidArgumentsError",
    ),
    _failing_tool(
        "find",
        '{"order": 7}',
        f"Error: there is no tool 'find'. There are: {_TOOLS}.",
        reason="unknown-tool",
        kind="UnknownToolError",
    ),
    _failing_tool("breaks", '{"order": 7}', "Error: KeyError: 'no order 7'", reason="raised", kind="KeyError"),
    _failing_tool(
        "is_late", '{"order": 7}', "Error: is_late gave no result in 0.01 s.", reason="timeout", kind="TimeoutError"
    ),
    Fault(
        "raised, and ended the run",
        (calls(("breaks_all", '{"order": 7}')),),
        (*_CALLED, "tool-started", "message-appended", "tool-failed", "run-failed"),
        (("assistant", 'breaks_all{"order": 7}'), ("tool", "Error: KeyError: 'no order 7'")),
        {"tool-failed": {"reason": "raised", "kind": "KeyError"}, "run-failed": {"kind": "ToolFailedError"}},
        ToolFailedError,
    ),
    Fault(
        "cancelled in a tool",
        (calls(("waits", '{"order": 7}')),),
        (*_CALLED, "tool-started", "message-appended", "tool-failed", "run-abandoned"),
        (("assistant", 'waits{"order": 7}'), ("tool", _STOPPED)),
        {"tool-failed": {"reason": "stopped"}, "run-abandoned": {"reason": "cancelled"}},
        asyncio.CancelledError,
        interruption="cancelled in a tool",
    ),
    Fault(
        "one of four calls fails",
        (
            calls(("lookup", '{"order": 7}'), ("find", "{}"), ("breaks", '{"order": 7}'), ("lookup", '{"order": 8}')),
            "I see.",
        ),
        (
            *_CALLED,
            *("tool-started", "message-appended", "tool-failed", "tool-started", "tool-started"),
            *("message-appended", "tool-finished", "message-appended", "tool-failed"),
            *("message-appended", "tool-finished"),
            *_ENDED,
        ),
        (
            ("assistant", 'lookup{"order": 7} find{} breaks{"order": 7} lookup{"order": 8}'),
            ("tool", f"Error: there is no tool 'find'. There are: {_TOOLS}."),
            ("tool", "order 7 is on its way"),
            ("tool", "Error: KeyError: 'no order 7'"),
            ("tool", "order 8 is on its way"),
            _ANSWER,
        ),
        {},
    ),
)

_LATER = tuple(after_tools(fault) for fault in OF_THE_SERVICE if fault.trouble is not Trouble.REFUSED)

FAULTS = (*OF_THE_SERVICE, *_LATER, *_OF_THE_TOOLS)
