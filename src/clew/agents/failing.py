"""What errors are recorded as."""

from __future__ import annotations

from clew.domain.errors import ClewError
from clew.domain.models.answer_parts import joined
from clew.domain.runs.errors import ModelError
from clew.domain.runs.events import Failure


def failure(error: BaseException) -> Failure:
    """What an error is recorded as: of a model service what it said, of any but Clew's own only what it is."""
    kind = type(error).__name__
    if not isinstance(error, ClewError):
        return Failure(kind=kind)
    message = joined([str(error)])  # services may say what nothing can store
    if not isinstance(error, ModelError):
        return Failure(kind=kind, message=message)
    code = None if error.code is None else joined([error.code])
    return Failure(kind=kind, message=message, status=error.status, code=code)
