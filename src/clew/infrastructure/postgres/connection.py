"""A session with a PostgreSQL database: a connection, what it found when it began, and how statements go over it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import psycopg
from psycopg.pq.abc import PGresult

from clew.domain.errors import StoreSchemaError, TenantRequiredError
from clew.infrastructure.postgres.errors import PostgresUnavailableError
from clew.infrastructure.postgres.pipeline import (
    BYTEA_TYPE,
    Asked,
    Statement,
    answer,
    answers,
    asked,
    found,
    numbers,
    rows,
)
from clew.infrastructure.postgres.sql_files import statements

ORDINAL_BITS = 20
"""Of a position, below those of its transaction."""

_OPENING = statements("connection.sql")
_BASE, _RAISE_BASE = (_OPENING[name].encode() for name in ("base", "raise base"))

_UNSETTLED = (
    "this is a standby of a server to which a dump was restored, and where its positions go on is not seen to yet. "
    "Open the primary first."
)

_TENANCY = statements("row_level_security.sql")
_IS_BOUND, _BASE_OF_ALL = (_TENANCY[name].encode() for name in ("is bound", "base"))

_PLACE_OF_MINE, _MINE = "/* mine */", _TENANCY["mine"]

_ON_BEHALF = Statement(_TENANCY["on behalf"].encode(), [BYTEA_TYPE])

# What a transaction has waited for it must see, however the database would isolate it. Readers stop below a transaction
# that is open: that of a process that stands still must not stay so.
_BEGIN: Sequence[Asked] = (
    (Statement(b"BEGIN ISOLATION LEVEL READ COMMITTED"), ()),
    (Statement(b"SET LOCAL idle_in_transaction_session_timeout = '30s'"), ()),
)

_COMMIT: Asked = Statement(b"COMMIT"), ()
_ROLL_BACK: Asked = Statement(b"ROLLBACK"), ()

Rows = list[tuple[Any, ...]]


class Session(NamedTuple):
    """A connection, and what it found when it was made."""

    connection: psycopg.Connection[tuple[Any, ...]]
    cursor: psycopg.Cursor[tuple[Any, ...]]
    """For statements whose rows are fetched at once."""
    base: int
    """What is added to transaction ids."""
    standby: bool
    """Whether the server only follows another, and is written to by that one alone."""
    secured: bool
    """Whether policies on rows are in force; COPY FROM is refused then."""
    tenant: str | None
    """Whose rows alone can be seen and written; None where the user may see all."""
    prepared: dict[Statement, bytes]
    """Statements that were prepared past the cursor, and their names."""

    def ask(
        self, sql: str, parameters: Mapping[str, Any] | Sequence[Any] | None = None, *, setting: bytes | None = None
    ) -> Rows:
        """The rows of a prepared statement, in binary; ``setting`` is a statement that sets something for it alone."""
        before: list[Asked] = []
        if self.tenant is not None:
            sql = sql.replace(_PLACE_OF_MINE, _MINE)
        if self.connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            before += self._on_behalf()
        if setting is not None:
            before.append((Statement(setting), ()))
        if before:
            # Sent together they are one transaction, and one round trip. Not by the driver's pipeline: what that sends
            # when it has come to its end lets a pooler think that more is asked.
            return found(self.connection, self._alone(*before, asked(self.connection, sql, parameters)))
        self.cursor.execute(sql.encode(), parameters, prepare=True)
        return [] if self.cursor.rownumber is None else self.cursor.fetchall()

    def numbers(self, statement: Statement, values: Sequence[bytes | None]) -> list[int]:
        """What a statement answers that is a transaction by itself."""
        return numbers(self._alone(*self._on_behalf(), (statement, values)))

    def together(self, *asked: Asked) -> list[Rows]:
        """The rows of statements that are sent together. Those after one that fails are not carried out.

        They are of numbers and bytes.
        """
        return list(map(rows, answers(self.connection, self.prepared, *asked)))

    def begin(self, *asked: Asked) -> list[Rows]:
        """Begin a transaction, on behalf of the tenant, with what is asked in it first: the rows of that.

        One that stands still is ended by the server.
        """
        first = [*_BEGIN, *self._on_behalf()]
        return self.together(*first, *asked)[len(first) :]

    def commit(self, *asked: Asked) -> None:
        """Commit the transaction after these statements: what comes to an error stays uncommitted."""
        self.together(*asked, _COMMIT)

    def roll_back(self) -> None:
        """Break the transaction off. What is prepared stays so, as the driver would not leave it."""
        self.together(_ROLL_BACK)

    def _alone(self, *asked: Asked) -> PGresult:
        return answer(self.connection, self.prepared, *asked)

    def _on_behalf(self) -> Sequence[Asked]:
        return () if self.tenant is None else ((_ON_BEHALF, (self.tenant.encode(),)),)


def begun(connection: psycopg.Connection[tuple[Any, ...]], shown: str, tenant: str | None) -> Session:
    """See where the positions are: a dump that was restored begins with lower transaction ids than it holds.

    Raises TenantRequiredError on a connection that is bound to a tenant and is given none.
    """
    secured, bound = connection.execute(_IS_BOUND).fetchall()[0]
    if bound:
        if not tenant:
            connection.close()
            msg = f"{shown}: this database keeps tenants apart, and none was named. "
            raise TenantRequiredError(msg + "Open it with a tenant, or as a user that is a member of clew_operator.")
        # Without the others' rows it cannot be seen from here.
        base, standby = connection.execute(_BASE_OF_ALL).fetchall()[0]
    else:
        found = connection.execute(_BASE).fetchone()
        if found is None:
            msg = f"{shown}: clew_meta is empty, as in a copy that was broken off. Restore or copy the database again."
            raise StoreSchemaError(msg)
        base, last, transaction, standby = found
        if last is not None and last >= base + transaction:
            if standby:
                connection.close()
                raise PostgresUnavailableError(f"{shown}: {_UNSETTLED}")
            (base,) = connection.execute(_RAISE_BASE, {"base": last + 1}).fetchall()[0]
    return Session(connection, connection.cursor(binary=True), base, standby, secured, tenant if bound else None, {})
