"""The base class of all values of the domain: frozen, strict about its fields, with clear errors."""

from __future__ import annotations

from functools import partial
from operator import is_
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from clew.domain.errors import InvalidContentError

is_none = partial(is_, None)
"""Whether a field is None, for ``exclude_if``. It is called for every value that is written, so it runs in C."""


class Value(BaseModel):
    """A frozen value. Invalid fields raise InvalidContentError."""

    # NaN is written as NaN, so that it can be found and refused: pydantic would write null instead.
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    if not TYPE_CHECKING:  # type checkers see the fields, not this signature

        def __init__(self, **fields: Any) -> None:
            try:
                self.__pydantic_validator__.validate_python(fields, self_instance=self)  # as in pydantic's own
            except ValidationError as error:
                raise InvalidContentError(explain(type(self).__name__, error) + self._advice(fields)) from None

        # Only direct calls come through here: bulk reads are validated without a Python call per value.
        __init__.__pydantic_base_init__ = True

    @classmethod
    def _advice(cls, fields: dict[str, Any]) -> str:
        """Advice for these invalid fields, with a space before it."""
        del fields
        return ""


def explain(name: str, error: ValidationError) -> str:
    """One line for a validation error: the place and what is expected, but never the input, which may be private."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    more = error.error_count() - 1
    return f"{name}{'.' + where if where else ''}: {_reason(first)}" + (f" (and {more} more)" if more else "") + "."


def _reason(error: ErrorDetails) -> str:
    """Pydantic's message, except for unknown types, where it would quote the input."""
    return "its type is not known" if error["type"] == "union_tag_invalid" else error["msg"]
