"""Whether the agent that runs now has what the thread's earlier runs had: definitions, tools, context providers."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Literal, TypeAlias

from clew.agents.journal import Journal
from clew.agents.run_setup import RunSetup
from clew.domain.context.state import HISTORY_STORE
from clew.domain.models.client import ResponseFormat
from clew.domain.runs.definitions import changed
from clew.domain.runs.errors import (
    AgentChangedError,
    AgentChangedWarning,
    MissingProviderError,
    MissingProviderWarning,
    missing_words,
)
from clew.domain.runs.events import Fingerprint, RunResumed, RunStarted
from clew.domain.runs.ports import RunLog
from clew.domain.runs.state import RunState

OnChangedAgent: TypeAlias = Literal["warn", "raise"]
"""What happens if an agent runs on a thread again and its definitions have changed."""


async def compare_with_last_run(log: RunLog, setup: RunSetup, on_changed: OnChangedAgent) -> None:
    """Compare the agent with its last run on the thread, and store definitions that the store lacks.

    Warns with AgentChangedWarning, or raises AgentChangedError.
    """
    if setup.identity.id not in (await log.control()).agents:
        return
    version = (await log.control(fresh=True)).agents.get(setup.identity.id)
    if version is None:
        return  # the run is handed to the writer, and not on the log yet
    data = (await log.event(version)).data
    if isinstance(data, RunStarted | RunResumed):
        compare(log.thread_id, data.fingerprint, setup, on_changed)
        await log.supply(setup.definitions.blobs)


def compare(thread_id: str, before: Fingerprint | None, setup: RunSetup, on_changed: OnChangedAgent) -> None:
    """Report what differs from a fingerprint."""
    differences = [] if before is None else changed(before, setup.fingerprint)
    if not differences:
        return
    if on_changed == "raise":
        raise AgentChangedError(thread_id, differences)
    warnings.warn(
        f"Thread {thread_id!r} was last run by another agent than this {setup.identity.id!r}: "
        f"{', '.join(differences)} differ.",
        AgentChangedWarning,
        stacklevel=2,
    )


async def with_recorded_options(log: RunLog, state: RunState, setup: RunSetup) -> RunSetup:
    """The setup with the model, the options and the response format that the run began with.

    Options are taken over only for the same kind of client; a response format that is given now is kept.
    """
    fingerprint, asked, definitions = state.fingerprint, state.asked, setup.definitions
    if fingerprint is not None and fingerprint.response_format is not None and definitions.response_format is None:
        found = await log.blob(fingerprint.response_format)
        if found is not None:
            definitions = replace(definitions, response_format=ResponseFormat.model_validate_json(found))
    if asked is None or asked.client != setup.client.kind:
        return setup.with_definitions(definitions)
    return setup.with_definitions(definitions, asked.model, asked.options)


async def run_started(setup: RunSetup, journal: Journal) -> RunStarted:
    """The event with which a run begins. Warns of missing providers, or raises MissingProviderError.

    A provider is missing if it served the thread before, or this agent on the thread, and is not supplied now. On a
    thread without runs, such as one that was restored from a document, those with a recorded state are missing.
    """
    await journal.history()
    providers, recorded = setup.providers, journal.context_state
    expected = [*recorded.thread_providers, *recorded.agent_providers.get(setup.identity.id, ())]
    if not recorded.agent_providers:
        expected += [id_ for id_ in recorded.states if id_ != HISTORY_STORE]
    missing = _missing(setup, expected)
    if missing and (await journal.log.control()).status == "active":
        _report_missing(setup, journal.log.thread_id, missing)
    return RunStarted(
        agent=setup.identity,
        fingerprint=setup.fingerprint,
        providers=tuple([provider.id for provider in providers.thread]),
        run_providers=tuple([provider.id for provider in providers.run]),
        missing=missing,
    )


async def check_providers(setup: RunSetup, log: RunLog, run_id: str) -> None:
    """Report the providers that served a run and are missing now that it continues, as ``run_started`` does."""
    missing = _missing(setup, (await log.history()).context.open_runs.get(run_id, ()))
    if missing:
        _report_missing(setup, log.thread_id, missing)


def _missing(setup: RunSetup, expected: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    if not expected:
        return ()
    supplied = {*(provider.id for provider in setup.providers.all), *setup.removed_providers}
    return tuple(id_ for id_ in dict.fromkeys(expected) if id_ not in supplied)


def _report_missing(setup: RunSetup, thread_id: str, missing: tuple[str, ...]) -> None:
    if setup.on_missing == "raise":
        raise MissingProviderError(thread_id, missing)
    if setup.reports.is_news(thread_id, missing):
        warnings.warn(missing_words(thread_id, missing), MissingProviderWarning, stacklevel=2)
