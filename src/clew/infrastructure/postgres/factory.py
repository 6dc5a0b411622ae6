"""The library's factory for Clew's PostgreSQL stores: ``PERSISTENCE_MODULE=clew.infrastructure.postgres.factory``."""

from __future__ import annotations

from typing import Literal, Self, cast

import eventsourcing.postgres as library
from eventsourcing.persistence import ApplicationRecorder, ProcessRecorder
from eventsourcing.utils import Environment, EnvType, strtobool
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from clew.infrastructure.postgres.connection import Address
from clew.infrastructure.postgres.datastore import READERS, WORKERS, PostgresDatastore
from clew.infrastructure.postgres.recorder import PostgresRecorder


class PostgresFactory(library.PostgresFactory):
    """Serves every application of the library, with the settings of the library's own factory.

    Clew adds ``POSTGRES_URL``, which replaces all of them; ``POSTGRES_WORKERS`` and ``POSTGRES_READERS``, how many
    appends and queries run at a time; ``POSTGRES_CREATE``, with ``no`` missing tables are a StoreSchemaError; and
    ``POSTGRES_TENANT``, whose rows are read and written. Snapshots and tracking without events stay in the library's
    tables.
    """

    POSTGRES_URL = "POSTGRES_URL"
    POSTGRES_WORKERS = "POSTGRES_WORKERS"
    POSTGRES_READERS = "POSTGRES_READERS"
    POSTGRES_CREATE = "POSTGRES_CREATE"
    POSTGRES_TENANT = "POSTGRES_TENANT"

    def __init__(self, env: Environment | EnvType | None) -> None:
        given_env = settings = env if isinstance(env, Environment) else Environment(env=env)
        url = settings.get(self.POSTGRES_URL)
        if url:
            # The library reads each setting separately.
            given = conninfo_to_dict(Address(url).conninfo)
            known = {settings.create_keys(name)[0]: str(given.get(key) or "") for name, key in _NAMES.items()}
            settings = Environment(settings.name, {**settings, **known})
        super().__init__(settings)
        self.env = given_env
        parts = {key: given_env.get(name) for name, key in _NAMES.items()}
        self._conninfo = url or make_conninfo(**{key: value for key, value in parts.items() if value})
        self._store: PostgresDatastore | None = None

    def __enter__(self) -> Self:
        """Nothing is opened before its first use."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close everything."""
        self.close()

    def application_recorder(self) -> ApplicationRecorder:
        """Clew's recorder."""
        return PostgresRecorder(self._opened())

    def process_recorder(self) -> ProcessRecorder:
        """Clew's recorder."""
        return PostgresRecorder(self._opened())

    def close(self) -> None:
        """Close the store, and the library's connections."""
        if self._store is not None:
            self._store.close()
        super().close()

    def _opened(self) -> PostgresDatastore:
        if self._store is None:
            self._store = PostgresDatastore(
                self._conninfo,
                workers=int(self.env.get(self.POSTGRES_WORKERS) or WORKERS),
                readers=int(self.env.get(self.POSTGRES_READERS) or READERS),
                originator_id_type=cast("Literal['uuid', 'text']", self.datastore.originator_id_type),
                tenant=self.env.get(self.POSTGRES_TENANT),
                create=strtobool(self.env.get(self.POSTGRES_CREATE) or "yes") and self.env_create_table(),
            )
        return self._store


_NAMES = {
    "POSTGRES_DBNAME": "dbname",
    "POSTGRES_HOST": "host",
    "POSTGRES_PORT": "port",
    "POSTGRES_USER": "user",
    "POSTGRES_PASSWORD": "password",
}
