"""Digests of a projection's code and of the shape of its tables: a projection whose digests change is rebuilt."""

from __future__ import annotations

import inspect
import json
from hashlib import sha256
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clew.domain.projection import Projection, Table


def code(projection: Projection) -> str:
    """The digest of the projection's source file and version; only of its version if the source is not available.

    A class can declare its own ``code_digest``: then its file can be edited without a rebuild.
    """
    declared = vars(type(projection)).get("code_digest")
    if declared is not None:
        return str(declared)
    try:
        source = inspect.getsource(inspect.getmodule(type(projection)) or type(projection))
    except (OSError, TypeError):
        source = ""
    return _digest(f"{projection.version}\n{source}")


def shape(projection: Projection, made: Iterable[str]) -> str:
    """The digest of the tables and indexes as they are declared, and of the statements that create them."""
    return _digest(json.dumps([declared(projection.tables), projection.texts, *made]))


def declared(tables: Iterable[Table]) -> list[Any]:
    """Tables as they are stored. Only columns that keep a value say so: the digests of others are those of before."""
    return [
        table._replace(columns=tuple([column if column.keeps else column[:3] for column in table.columns]))  # type: ignore[misc]
        for table in tables
    ]


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]
