"""What is said of an event that a projection cannot take in."""

from __future__ import annotations

import sys
import traceback
from pathlib import PurePath

from clew.domain.errors import InvalidProjectionError
from clew.domain.projection import Projection


def kind_and_place(error: Exception, projection: Projection) -> str:
    """The kind of error and its place; not what it says, which may quote a message that is redacted one day."""
    if isinstance(error, InvalidProjectionError):
        return f"InvalidProjectionError: {error}"
    module = sys.modules.get(type(projection).__module__)
    file = getattr(module, "__file__", None)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if file is not None and frame.filename == file:
            return f"{type(error).__name__} in {PurePath(file).name}, line {frame.lineno}"
    return f"{type(error).__name__}: the store cannot take what is projected of it"
