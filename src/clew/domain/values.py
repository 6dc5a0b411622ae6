"""What every value of the domain is: frozen, strict about its fields, and clear about what is wrong with them."""

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
    """A frozen value. Building one from wrong parts raises InvalidContentError."""

    # NaN is written as what it is, and so found and refused: pydantic would write null in its place.
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    if not TYPE_CHECKING:  # type checkers see the fields, not this signature

        def __init__(self, **fields: Any) -> None:
            try:
                self.__pydantic_validator__.validate_python(fields, self_instance=self)  # as pydantic's own does
            except ValidationError as error:
                raise InvalidContentError(explain(type(self).__name__, error) + self._advice(fields)) from None

        # Only a direct call comes through here: bulk reads are validated without a Python call a value.
        __init__.__pydantic_base_init__ = True

    @classmethod
    def _advice(cls, fields: dict[str, Any]) -> str:
        """What to write instead of these fields, which are invalid; with a space before it."""
        del fields
        return ""


def explain(name: str, error: ValidationError) -> str:
    """One line for a validation error: where, what was expected; never the input, which may be private."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    more = error.error_count() - 1
    return f"{name}{'.' + where if where else ''}: {_said(first)}" + (f" (and {more} more)" if more else "") + "."


def _said(error: ErrorDetails) -> str:
    """What pydantic says; of an unknown type it would quote the input."""
    return "its type is not known" if error["type"] == "union_tag_invalid" else error["msg"]
