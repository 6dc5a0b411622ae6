"""Whether reducers are configured so that they can reduce."""

from __future__ import annotations

from typing import Any, get_args

from clew.domain.reducers.reducer import Reducer, Trigger
from clew.domain.runs.errors import AgentConfigurationError


def checked_limit(owner: object, word: str, value: Any, least: int) -> None:
    """Raise AgentConfigurationError for a limit that is no whole number, or is below ``least``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise AgentConfigurationError(
            f"{type(owner).__name__}: {word}={value!r} is no limit. Give a whole number, {least} or more."
        )


def checked_trigger(owner: object, when: Any) -> None:
    """Raise AgentConfigurationError for a moment that is none."""
    if when not in get_args(Trigger):
        known = " or ".join(map(repr, get_args(Trigger)))
        raise AgentConfigurationError(f"{type(owner).__name__}: when={when!r} is no moment to reduce at. Give {known}.")


def counts_own(reducer: Reducer) -> bool:
    """Whether what a reducer leaves depends on the run's own messages, so that it is asked again as they grow."""
    return getattr(reducer, "counts_own", False) is True


def checked_reducer(reducer: Any) -> Reducer:
    """The reducer, if it is one. Raises AgentConfigurationError for what has no name, no moment or no ``reduce``."""
    called = getattr(reducer, "name", None)
    if isinstance(reducer, type) or not isinstance(called, str) or not called:
        raise AgentConfigurationError(
            f"reducer={reducer!r} is none: it has no name. Give one such as KeepLast(20), or an object with name, when "
            "and reduce(given)."
        )
    checked_trigger(reducer, getattr(reducer, "when", None))
    if not callable(getattr(reducer, "reduce", None)):
        raise AgentConfigurationError(f"The reducer {called} has no method reduce(given). Give it one.")
    found: Reducer = reducer
    return found
