"""The store of ``postgresql:`` URLs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from clew.domain.errors import StoreUrlError
from clew.domain.streams import tenant_part
from clew.infrastructure.stores import Schemas, Store, without_secrets

if TYPE_CHECKING:
    from clew.domain.diagnostics import Finding
    from clew.infrastructure.event_log import ConversationLog
    from clew.infrastructure.postgres.completion_names import PostgresNames
    from clew.infrastructure.postgres.connection import Address
    from clew.infrastructure.postgres.projection_store import PostgresProjections
    from clew.infrastructure.postgres.vectors import PostgresVectors

MOST_CONNECTIONS = 1_000
_OWN = {"workers", "readers", "mode"}
_NUMBER = re.compile(r"[0-9]{1,4}")


class PostgresStore(Store):
    """The PostgreSQL database that a URL names; everything is in it, and ``address`` is where it is."""

    def __init__(self, url: str) -> None:
        self._settings = _settings(url)
        self.read_only = self._settings.pop("POSTGRES_MODE", "rw") == "ro"
        from clew.infrastructure.postgres.connection import Address

        self._conninfo = self._settings["POSTGRES_URL"]
        self.address: Address = Address(self._conninfo)
        self.name = self.address.shown

    def open_log(self, *, create: bool = True, tenant: str | None = None) -> ConversationLog:
        """Open the log. Without ``create`` a database without Clew's tables is a StoreSchemaError."""
        from clew.infrastructure.event_log import ConversationLog

        owner = {} if tenant is None else {"POSTGRES_TENANT": tenant_part(tenant)}
        return ConversationLog(
            {
                "PERSISTENCE_MODULE": "clew.infrastructure.postgres.factory:PostgresFactory",
                "POSTGRES_CREATE": "yes" if create else "no",
                "ORIGINATOR_ID_TYPE": "text",
                **self._settings,
                **owner,
            }
        )

    def open_projections(self, *, tenant: str | None = None) -> PostgresProjections:
        """The tables of projections, in the database."""
        from clew.infrastructure.postgres.projection_store import PostgresProjections

        return PostgresProjections(
            self._conninfo, tenant=None if tenant is None else tenant_part(tenant), read_only=self.read_only
        )

    def open_vectors(self, *, tenant: str | None = None) -> PostgresVectors:
        """The index of vectors: a table in the database, where each tenant has its own rows."""
        from clew.infrastructure.postgres.vectors import PostgresVectors

        return PostgresVectors(self._conninfo, tenant=None if tenant is None else tenant_part(tenant))

    def list_names(self, tenant: str) -> PostgresNames:
        """Names of a tenant's streams, on a separate connection."""
        from clew.infrastructure.postgres.completion_names import PostgresNames

        return PostgresNames(self.address, tenant_part(tenant))

    def schemas(self) -> Schemas:
        """The schema of the database and the schema that this Clew knows."""
        from clew.infrastructure.postgres import schema

        return Schemas(schema.version(self.address), schema.SCHEMA_VERSION)

    def migrate(
        self, *, backup: str | None = None, partitions: int | None = None, row_level_security: bool = False
    ) -> Schemas:
        """Bring the database to the schema that this Clew knows; returns what its schema was."""
        if backup is not None:
            raise StoreUrlError("PostgreSQL's own pg_dump copies a PostgreSQL database; leave out the backup file.")
        from clew.infrastructure.postgres import schema

        found = schema.migrate(self.address, partitions=partitions)
        if row_level_security:
            from clew.infrastructure.postgres.row_level_security import secure

            secure(self.address)
        return Schemas(found, schema.SCHEMA_VERSION)

    def check_environment(self) -> Iterator[Finding]:
        """The server."""
        from clew.infrastructure.postgres import doctor

        return doctor.of_server(self.address)

    def check_tables(self, tenant: str, now: int) -> Iterator[Finding]:
        """The tables of the database."""
        from clew.infrastructure.postgres import doctor

        return doctor.of_tables(self.address, tenant_part(tenant), now)


def _settings(url: str) -> dict[str, str]:
    """The settings of a store. Raises StoreUrlError."""
    if "\0" in url:  # the client library would read no further
        raise StoreUrlError(f"{without_secrets(url)!r} holds U+0000, which cannot be part of an address.")
    place, _, query = url.partition("?")
    own = {name: value for name, value in parse_qsl(query, keep_blank_values=True) if name in _OWN}
    for name, value in own.items():
        if name == "mode":
            if value not in {"ro", "rw"}:
                raise StoreUrlError(f"{without_secrets(url)!r}: mode must be ro or rw.")
        elif not (_NUMBER.fullmatch(value) and 0 < int(value) <= MOST_CONNECTIONS):
            raise StoreUrlError(f"{without_secrets(url)!r}: {name} must be a number from 1 to {MOST_CONNECTIONS}.")
    rest = "&".join(part for part in query.split("&") if part.split("=")[0] not in own)
    return {
        "POSTGRES_URL": f"{place}?{rest}" if rest else place,
        **{f"POSTGRES_{name.upper()}": value for name, value in own.items()},
    }
