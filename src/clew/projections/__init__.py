"""Read models: each declared as tables and a pure function, filled from the log, and built anew from it at will.

Those that are shipped, and what it takes to write one.
"""

from clew.domain.projection import (
    Change,
    Column,
    Delete,
    ForgetText,
    IndexText,
    Projection,
    Query,
    Recorded,
    Recount,
    Rows,
    Table,
    Upsert,
    Where,
)
from clew.projections.audit import Audit
from clew.projections.directory import Directory
from clew.projections.memory import Memory
from clew.projections.search import Search
from clew.projections.usage import Usage

SHIPPED = (Directory(), Search(), Audit(), Usage(), Memory())
"""The projections that every service has unless it is told otherwise."""

__all__ = [
    "SHIPPED",
    "Audit",
    "Change",
    "Column",
    "Delete",
    "Directory",
    "ForgetText",
    "IndexText",
    "Memory",
    "Projection",
    "Query",
    "Recorded",
    "Recount",
    "Rows",
    "Search",
    "Table",
    "Upsert",
    "Usage",
    "Where",
]
