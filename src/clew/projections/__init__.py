"""Read models: the projections that Clew ships, and the types to declare your own.

A projection declares tables and a pure function. Its tables are built from the log, and can be rebuilt at any time.
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
from clew.projections.approvals import Approvals
from clew.projections.audit import Audit
from clew.projections.directory import Directory
from clew.projections.memory_uses import Memory
from clew.projections.search import Search
from clew.projections.usage import Usage

SHIPPED = (Directory(), Search(), Audit(), Usage(), Memory(), Approvals())
"""The projections of every service that is opened without others."""

__all__ = [
    "SHIPPED",
    "Approvals",
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
