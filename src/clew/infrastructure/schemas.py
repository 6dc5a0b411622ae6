"""How the tables of a database are made, by the numbers that Clew's versions give to that."""

from __future__ import annotations

from typing import NamedTuple


class Schemas(NamedTuple):
    """The schema that a database has, 0 for none, and the one that this Clew knows."""

    found: int
    known: int
