"""The directory of shards: a PostgreSQL database that records the shard of each tenant.

A store reads it once, when it is opened. Later reads and writes go directly to the shard.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any
from uuid import UUID

import psycopg

from clew.domain.errors import ShardError, StoreSchemaError, StoreUrlError
from clew.domain.streams import tenant_part
from clew.infrastructure.postgres import schema
from clew.infrastructure.postgres.connection import Address
from clew.infrastructure.postgres.errors import unavailable
from clew.infrastructure.postgres.sql_files import statements
from clew.infrastructure.shards import Shard, check_shard_name

_SQL = {name: sql.encode() for name, sql in statements("directory.sql", __package__).items()}

_LOCK = 0x436C6578
"""Of the advisory lock that serialises creating the directory's tables; the event tables have another."""

_HOST = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._%-]+)(?::[0-9]{1,5})?"
_ADDRESS = re.compile(rf"{_HOST}(?:,{_HOST})*/[^/?#@\s]+")
_SERVICE = re.compile(r"service=[^\s&?#@/]+")

_LOCATION_SETTINGS = ("host", "hostaddr", "port", "dbname", "service")
"""Settings of the directory's URL that locate the directory itself. Its shards do not inherit them."""

Connection = psycopg.Connection[tuple[Any, ...]]


class Directory:
    """The directory in the database at ``address``.

    ``url`` is the same place as a URL. The shards inherit its user, its password and its settings. Every method raises
    StoreUnavailableError, or StoreSchemaError where the directory's tables do not exist.
    """

    def __init__(self, url: str, address: Address) -> None:
        self._url = url
        self._address = address
        self._label = address.shown

    def create(self) -> None:
        """Create the tables if they do not exist."""
        with self._connected(create=True):
            pass

    def shards(self) -> list[Shard]:
        """All shards, sorted by name."""
        with self._connected() as connection:
            return _shards(connection)

    def url_of(self, tenant: str, *, place: bool) -> str:
        """The URL of the store that holds a tenant.

        With ``place`` a new tenant is assigned, for ever, to the open shard with the fewest tenants. Raises ShardError.
        """
        name = tenant_part(tenant)
        with self._connected() as connection:
            address = _address_of(connection, name)
            if address is None and place:
                with connection.transaction():
                    connection.execute(_SQL["lock shards"])
                    connection.execute(_SQL["place"], {"tenant": name})
                    address = _address_of(connection, name)
        if address is not None:
            return self.url_at(address)
        if place:
            msg = f"{self._label}: no shard accepts new tenants. Add one with `clew shards add`."
        else:
            msg = f"{self._label}: tenant {tenant!r} has no shard yet. Opening its store for writing assigns one."
        raise ShardError(msg)

    def check_free(self, name: str, address: str) -> None:
        """Raise ShardError for a name or an address that a shard has."""
        with self._connected(create=True) as connection:
            if any(name == shard.name or address == shard.address for shard in _shards(connection)):
                raise self._taken(name, address)

    def add(self, name: str, address: str, store: Address) -> None:
        """Add the shard whose tables are at ``store``; it gets new tenants from now on.

        Raises InvalidNameError, or ShardError for a name, an address or a store that a shard has.
        """
        check_shard_name(name)
        new = {"name": name, "address": address, "store": _store_id(store)}
        with self._connected(create=True) as connection:
            if connection.execute(_SQL["add"], new).fetchone() is not None:
                return
            same = connection.execute(_SQL["same store"], new).fetchone()
        if same is None:
            raise self._taken(name, address)
        msg = f"{self._label}: this store is already the shard {same[0]!r}, at {same[1]}. See `clew shards list`."
        raise ShardError(msg)

    def move(self, name: str, address: str, store: Address) -> None:
        """Record the new address of a shard's store. Raises ShardError for an unknown shard, or another store."""
        new_id = _store_id(store)
        with self._connected() as connection, connection.transaction():
            row = connection.execute(_SQL["store"], {"name": name}).fetchone()
            if row is None:
                raise self._unknown(name)
            if row[0] != new_id:
                msg = (
                    f"{self._label}: the store at {address} is not the store of shard {name!r}. Copy the shard's own "
                    "store there first."
                )
                raise ShardError(msg)
            try:
                connection.execute(_SQL["move"], {"name": name, "address": address})
            except psycopg.errors.UniqueViolation:
                raise self._taken(name, address) from None

    def take_no_more(self, name: str) -> None:
        """Give a shard no new tenants; it keeps those that it has. Raises ShardError for an unknown shard."""
        with self._connected() as connection:
            if connection.execute(_SQL["close"], {"name": name}).fetchone() is None:
                raise self._unknown(name)

    def url_at(self, address: str) -> str:
        """The URL of the store at a shard's address, with the directory's user, password and settings.

        Raises StoreUrlError for an invalid address.
        """
        _check_address(address)
        scheme, _, rest = self._url.partition("://")
        location, _, query = rest.partition("?")
        user, at, _ = location.split("/", 1)[0].rpartition("@")
        settings = [part for part in query.split("&") if part and part.split("=")[0] not in _LOCATION_SETTINGS]
        if _SERVICE.fullmatch(address):
            settings.append(address)
            address = ""
        return f"{scheme}://{user}{at}{address}" + ("?" + "&".join(settings) if settings else "")

    def _taken(self, name: str, address: str) -> ShardError:
        msg = f"{self._label}: a shard {name!r}, or a shard at {address}, already exists. See `clew shards list`."
        return ShardError(msg)

    def _unknown(self, name: str) -> ShardError:
        return ShardError(f"{self._label}: shard {name!r} does not exist. See `clew shards list`.")

    @contextmanager
    def _connected(self, *, create: bool = False) -> Iterator[Connection]:
        with closing(self._address.connect()) as connection:
            try:
                if not _exists(connection):
                    if not create:
                        msg = f"{self._label}: this is not a directory of shards yet. Add a server: `clew shards add`."
                        raise StoreSchemaError(msg)
                    _create_tables(connection)
                yield connection
            except psycopg.Error as error:
                raise unavailable(self._label, error) from None


def _check_address(address: str) -> None:
    """Raise StoreUrlError unless it is ``host:port/database``, several hosts with commas, or ``service=name``."""
    if not (_ADDRESS.fullmatch(address) or _SERVICE.fullmatch(address)):
        # The message does not repeat the address: it may contain a password.
        msg = "This is not the address of a shard. Write HOST:PORT/DATABASE or service=NAME, without user and password."
        raise StoreUrlError(msg)


def _shards(connection: Connection) -> list[Shard]:
    return [Shard(*row) for row in connection.execute(_SQL["shards"]).fetchall()]


def _exists(connection: Connection) -> bool:
    return bool(connection.execute(_SQL["exists"]).fetchall())


def _create_tables(connection: Connection) -> None:
    with connection.transaction():
        schema.lock(connection, _LOCK)
        if not _exists(connection):
            connection.execute(_SQL["tables"])


def _store_id(address: Address) -> UUID:
    """The id of the store at an address."""
    with closing(address.connect()) as connection:
        try:
            ((store,),) = connection.execute(_SQL["store id"]).fetchall()
        except psycopg.Error as error:
            raise unavailable(address.shown, error) from None
    return UUID(str(store))


def _address_of(connection: Connection, tenant: str) -> str | None:
    row = connection.execute(_SQL["address of a tenant"], {"tenant": tenant}).fetchone()
    return None if row is None else str(row[0])
