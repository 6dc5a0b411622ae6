"""Standing approvals: the tools whose calls need no further approval in a thread. They are a state of the thread."""

from __future__ import annotations

from collections.abc import Mapping
from operator import not_

from pydantic import Field, ValidationError

from clew.domain.context.events import ContextStateRecorded
from clew.domain.context.state import STANDING_APPROVALS, ContextState
from clew.domain.messages import Value, is_none

MOST = 100
"""The most standing approvals of a thread: of more, the oldest no longer hold."""


class StandingApproval(Value):
    """An approval of all calls of one tool in a thread.

    ``tool`` is the tool's name and ``digest`` the SHA-256, in hex, of its schema: a tool with another schema needs its
    own approval. ``actor`` gave it, with the decision on the request at version ``request`` of the thread
    ``thread_id``, or of the thread that has the approval if that is None.
    """

    tool: str
    digest: str
    request: int = Field(default=0, exclude_if=not_)
    actor: str | None = Field(default=None, exclude_if=is_none)
    thread_id: str | None = Field(default=None, exclude_if=is_none)


def standing_approvals(context: ContextState) -> dict[str, StandingApproval]:
    """The standing approvals in the state of a thread, by the digests of the tools' schemas, oldest first."""
    recorded = context.states.get(STANDING_APPROVALS)
    if recorded is None or not isinstance(recorded.state, list):
        return {}
    try:
        approvals = [StandingApproval.model_validate(each) for each in recorded.state]
    except ValidationError:  # only a forged event has another state: then each call needs its approval
        return {}
    return {each.digest: each for each in approvals}


def with_approval(approvals: Mapping[str, StandingApproval], new: StandingApproval) -> ContextStateRecorded:
    """The event that adds a standing approval."""
    rest = [each for each in approvals.values() if each.digest != new.digest]
    return _recorded([*rest, new][-MOST:])


def without_approvals(approvals: Mapping[str, StandingApproval], tool: str) -> ContextStateRecorded | None:
    """The event that removes the standing approvals of tools with that name; None if there is none."""
    rest = [each for each in approvals.values() if each.tool != tool]
    return None if len(rest) == len(approvals) else _recorded(rest)


def _recorded(approvals: list[StandingApproval]) -> ContextStateRecorded:
    state = [each.model_dump(mode="json") for each in approvals]
    return ContextStateRecorded(provider=STANDING_APPROVALS, state=[*state])
