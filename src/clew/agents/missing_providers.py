"""Who serves a run and who is missed there, and what those leave who served one that was given up."""

from __future__ import annotations

import warnings

from clew.agents.journal import Recording
from clew.agents.orphaned_run import LeftRun, tell_given_up
from clew.agents.run_setup import Setup
from clew.domain.context.provider_state import HISTORY_STORE
from clew.domain.decider import RunStep
from clew.domain.runs.errors import MissingProviderError, MissingProviderWarning, missing_words
from clew.domain.runs.events import RunStarted
from clew.domain.runs.ports import RunLog, ThreadPort
from clew.domain.runs.state import RunState


async def run_started(setup: Setup, recording: Recording) -> RunStarted:
    """How a run begins. Warns with MissingProviderWarning of providers that are missed, or raises the error.

    Missed are those that served the thread before, or this agent there, and that nobody supplied. Where nobody has run
    yet, as on a thread that was begun again from a document, they are those of whom something is kept.
    """
    await recording.history()
    providers, kept = setup.providers, recording.kept
    supplied = {provider.id for provider in providers.all}
    begun_with = () if kept.own else (id_ for id_ in kept.states if id_ != HISTORY_STORE)
    served = dict.fromkeys((*kept.named, *kept.own.get(setup.identity.id, ()), *begun_with))
    missing = tuple(id_ for id_ in served if id_ not in supplied and id_ not in setup.not_missed)
    if missing and (await recording.log.control()).status == "active":
        _report(setup, recording.log.thread_id, missing)
    return RunStarted(
        agent=setup.identity,
        fingerprint=setup.fingerprint,
        providers=tuple(provider.id for provider in providers.thread),
        run_providers=tuple(provider.id for provider in providers.run),
        missing=missing,
    )


async def check_supplied(setup: Setup, log: RunLog, run_id: str) -> None:
    """Say which of those who served a run are missed by who goes on with it, as ``run_started`` does."""
    supplied = {provider.id for provider in setup.providers.all}
    served = (await log.history()).kept.serving.get(run_id, ())
    missing = tuple(id_ for id_ in served if id_ not in supplied and id_ not in setup.not_missed)
    if missing:
        _report(setup, log.thread_id, missing)


def _report(setup: Setup, thread_id: str, missing: tuple[str, ...]) -> None:
    if setup.on_missing == "raise":
        raise MissingProviderError(thread_id, missing)
    if setup.missed.is_news(thread_id, missing):
        warnings.warn(missing_words(thread_id, missing), MissingProviderWarning, stacklevel=2)


async def left_by_providers(setup: Setup, thread: ThreadPort, state: RunState, reason: str) -> list[RunStep]:
    """What those leave to be recorded who served a run that is given up, as far as they are supplied."""
    left = LeftRun(state, await thread.runs.history())
    serving = await tell_given_up(left, thread, setup.providers.all, setup.identity, reason=reason, actor=setup.actor)
    return [*serving.steps, *serving.states(shown=True)]
