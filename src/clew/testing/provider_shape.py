"""What a context provider must look like, before anything is asked of it."""

from __future__ import annotations

import inspect
import math
from typing import Any, get_args

from pydantic import BaseModel

from clew.domain.context.errors import ProviderContractError
from clew.domain.context.provider import ContextProvider, OnFailure
from clew.domain.errors import InvalidNameError
from clew.domain.names import check_id

_GIVEN = {
    "initial_state": 1,
    "on_thread_created": 2,
    "on_message": 2,
    "invoking": 2,
    "invoked": 4,
    "on_checkpoint": 2,
    "on_suspend": 1,
    "on_resume": 1,
    "on_thread_ended": 1,
    "on_thread_deleted": 1,
}
"""The hooks, and how much each is given."""


def check_shape(provider: object) -> ContextProvider:
    """The same, as what it is. Raises ProviderContractError."""
    if not isinstance(provider, ContextProvider):
        raise ProviderContractError(
            repr(provider), "it is made of the class ContextProvider", f"it is {_kind(provider)}."
        )
    _check_fields(provider)
    for name in dir(type(provider)):
        if name.startswith("on_") and name not in {*_GIVEN, "on_failure"}:
            _broken(
                provider, "each method that is called on_… is a hook", f"there is no hook {name!r}, so nobody calls it."
            )
    for name, given in _GIVEN.items():
        _check_hook(provider, name, given)
    return provider


def _check_fields(provider: ContextProvider) -> None:
    try:
        check_id(provider.id, "id")
    except InvalidNameError as error:
        _broken(provider, "its id is a name of 1 to 200 characters", str(error))
    if provider.scope is not None and not (isinstance(provider.scope, str) and provider.scope.strip()):
        _broken(provider, "its scope is a name, or None", f"it is {provider.scope!r}.")
    if provider.on_failure not in get_args(OnFailure):
        _broken(provider, "on_failure is 'fail' or 'continue'", f"it is {provider.on_failure!r}.")
    timeout: Any = provider.timeout
    if timeout is not None and not (
        isinstance(timeout, int | float) and not isinstance(timeout, bool) and 0 < timeout < math.inf
    ):
        _broken(provider, "its timeout is a number of seconds above 0, or None", f"it is {timeout!r}.")
    model: Any = provider.state_model
    if model is not None and not (isinstance(model, type) and issubclass(model, BaseModel)):
        _broken(provider, "its state_model is a class of pydantic's, or None", f"it is {model!r}.")


def _check_hook(provider: ContextProvider, name: str, given: int) -> None:
    hook = getattr(provider, name)
    if not callable(hook):
        _broken(provider, "its hooks are methods", f"{name} is {_kind(hook)}.")
    if name != "initial_state" and not inspect.iscoroutinefunction(hook):
        _broken(provider, "its hooks are async", f"{name} is not, and would hold up everything else. Say async def.")
    try:
        inspect.signature(hook).bind(*range(given))
    except TypeError as error:
        _broken(provider, "its hooks take what they are given", f"{name} does not: {error}.")


def _broken(provider: ContextProvider, rule: str, found: str) -> None:
    raise ProviderContractError(repr(provider.id), rule, found)


def _kind(value: object) -> str:
    return f"the class {value.__name__}, give what makes one" if isinstance(value, type) else type(value).__name__
