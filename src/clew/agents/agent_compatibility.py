"""Taking up a thread again: whether the agent is made of what it was made of before."""

from __future__ import annotations

import warnings
from typing import Literal, TypeAlias

from clew.agents.run_setup import Setup
from clew.domain.models.client import ResponseFormat
from clew.domain.runs.definitions import blobs, changed
from clew.domain.runs.errors import AgentChangedError, AgentChangedWarning
from clew.domain.runs.events import Fingerprint, RunResumed, RunStarted
from clew.domain.runs.ports import RunLog
from clew.domain.runs.state import RunState

OnChangedAgent: TypeAlias = Literal["warn", "raise"]
"""What is done when a thread is taken up again by an agent that is made of something else than before."""


async def take_up(log: RunLog, setup: Setup, on_changed: OnChangedAgent) -> None:
    """Compare with what the agent was when it last ran on the thread, and supply definitions that are missing there.

    Warns with AgentChangedWarning, or raises AgentChangedError.
    """
    if setup.identity.id not in (await log.control()).agents:
        return
    version = (await log.control(fresh=True)).agents.get(setup.identity.id)
    if version is None:
        return  # it is only just on its way to the log
    data = (await log.event(version)).data
    if isinstance(data, RunStarted | RunResumed):
        compare(log.thread_id, data.fingerprint, setup, on_changed)
        await log.supply(blobs(setup.definitions))


def compare(thread_id: str, before: Fingerprint | None, setup: Setup, on_changed: OnChangedAgent) -> None:
    """Say what differs from a fingerprint."""
    differs = [] if before is None else changed(before, setup.fingerprint)
    if not differs:
        return
    if on_changed == "raise":
        raise AgentChangedError(thread_id, differs)
    warnings.warn(
        f"Thread {thread_id!r} was last run by another agent than this {setup.identity.id!r}: "
        f"{', '.join(differs)} differ.",
        AgentChangedWarning,
        stacklevel=2,
    )


async def as_it_was(log: RunLog, state: RunState, setup: Setup) -> Setup:
    """The setup with the model, the options and the format of answers that the run was begun with.

    The options are those of the same kind of client only; a format that was given now stays.
    """
    fingerprint, asked, definitions = state.fingerprint, state.asked, setup.definitions
    if fingerprint is not None and fingerprint.response_format is not None and definitions.response_format is None:
        found = await log.blob(fingerprint.response_format)
        if found is not None:
            definitions = definitions._replace(response_format=ResponseFormat.model_validate_json(found))
    if asked is None or asked.client != setup.client.kind:
        return setup.made_of(definitions)
    return setup.made_of(definitions, asked.model, asked.options)
