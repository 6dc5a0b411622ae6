"""The directory of several PostgreSQL servers: a database that says on which of them each tenant is.

It is asked when a store is opened. What is read and written then goes to one server, with nothing of this between.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import starmap
from typing import Any
from uuid import UUID

import psycopg

from clew.domain.errors import StoreSchemaError, StoreUrlError
from clew.domain.names import tenant_part
from clew.domain.sharding import Shard, ShardError, check_shard_name
from clew.infrastructure.postgres import schema
from clew.infrastructure.postgres.address import Address
from clew.infrastructure.postgres.errors import unavailable
from clew.infrastructure.postgres.sql_files import statements

_SQL = statements("shards.sql")

_LOCK = 0x436C6578
"""Of the advisory lock under which the tables are made, beside that of the tables of events."""

_HOST = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._%-]+)(?::[0-9]{1,5})?"
_ADDRESS = re.compile(rf"{_HOST}(?:,{_HOST})*/[^/?#@\s]+")
_SERVICE = re.compile(r"service=[^\s&?#@/]+")

_PLACES = ("host", "hostaddr", "port", "dbname", "service")
"""Settings of a directory's URL that say where it is, and so are not those of its shards."""

Connection = psycopg.Connection[tuple[Any, ...]]


class Directory:
    """The database at an address, as a directory of shards.

    ``url`` names it too: user, password and every setting in it are those for the shards as well. What is asked raises
    StoreUnavailableError, or StoreSchemaError where the tables of a directory are not there.
    """

    def __init__(self, url: str, address: Address) -> None:
        self._url = url
        self._address = address
        self.shown = self._address.shown

    def make(self) -> None:
        """Make the tables, if they are not there."""
        with self._connected(make=True):
            pass

    def shards(self) -> list[Shard]:
        """All shards, in the order of their names."""
        with self._connected() as connection:
            return [Shard(*row) for row in connection.execute(_SQL["shards"].encode()).fetchall()]

    def url_of(self, tenant: str, *, place: bool) -> str:
        """The URL of the store that a tenant is in.

        With ``place`` a new tenant gets the shard with the fewest of those that take any, for ever. Raises ShardError.
        """
        name = tenant_part(tenant)
        with self._connected() as connection:
            address = _address_of(connection, name)
            if address is None and place:
                with connection.transaction():
                    connection.execute(_SQL["lock shards"].encode())
                    connection.execute(_SQL["place"].encode(), {"tenant": name})
                    address = _address_of(connection, name)
        if address is not None:
            return self.url_at(address)
        if place:
            msg = f"{self.shown}: no shard takes new tenants. Add one with `clew shards add`."
            raise ShardError(msg)
        msg = (
            f"{self.shown}: tenant {tenant!r} is on no shard yet. It gets one when a store is opened to be written to."
        )
        raise ShardError(msg)

    def check_free(self, name: str, address: str) -> None:
        """Raise ShardError for a name or an address that a shard has."""
        with self._connected(make=True) as connection:
            found = connection.execute(_SQL["shards"].encode()).fetchall()
        if any(name == shard.name or address == shard.address for shard in starmap(Shard, found)):
            raise self._taken(name, address)

    def add(self, name: str, address: str, there: Address) -> None:
        """Note a shard, which is given tenants from now on; ``there`` Clew's tables are.

        Raises InvalidNameError, or ShardError for a name, an address or a store that is taken.
        """
        check_shard_name(name)
        new = {"name": name, "address": address, "store": _store(there)}
        with self._connected(make=True) as connection:
            if connection.execute(_SQL["add"].encode(), new).fetchone() is not None:
                return
            same = connection.execute(_SQL["same store"].encode(), new).fetchone()
        if same is None:
            raise self._taken(name, address)
        msg = f"{self.shown}: that store is the shard {same[0]!r}, at {same[1]}, already. See `clew shards list`."
        raise ShardError(msg)

    def move(self, name: str, address: str, there: Address) -> None:
        """Note that the store of a shard is at another address from now on, which is ``there``.

        Raises ShardError for a shard that is not there, or another store.
        """
        found = _store(there)
        with self._connected() as connection, connection.transaction():
            store = connection.execute(_SQL["store"].encode(), {"name": name}).fetchone()
            if store is not None and store[0] == found:
                try:
                    connection.execute(_SQL["move"].encode(), {"name": name, "address": address})
                except psycopg.errors.UniqueViolation:
                    raise self._taken(name, address) from None
                return
        if store is None:
            raise self._unknown(name)
        msg = f"{self.shown}: at {address} is another store than that of the shard {name!r}. Bring its own there."
        raise ShardError(msg)

    def take_no_more(self, name: str) -> None:
        """Give a shard no more tenants. Those that it has stay. Raises ShardError for one that is not there."""
        with self._connected() as connection:
            if connection.execute(_SQL["close"].encode(), {"name": name}).fetchone() is None:
                raise self._unknown(name)

    def url_at(self, address: str) -> str:
        """The URL of the store at a shard's address: everything but the place is the directory's.

        Raises StoreUrlError for an address that is none.
        """
        _check(address)
        scheme, _, rest = self._url.partition("://")
        place, _, query = rest.partition("?")
        user, at, _ = place.split("/", 1)[0].rpartition("@")
        settings = [part for part in query.split("&") if part and part.split("=")[0] not in _PLACES]
        if _SERVICE.fullmatch(address):
            settings.append(address)
            address = ""
        return f"{scheme}://{user}{at}{address}" + ("?" + "&".join(settings) if settings else "")

    def _taken(self, name: str, address: str) -> ShardError:
        msg = f"{self.shown}: there is a shard {name!r} or one at {address} already. See `clew shards list`."
        return ShardError(msg)

    def _unknown(self, name: str) -> ShardError:
        return ShardError(f"{self.shown}: there is no shard {name!r}. See `clew shards list`.")

    @contextmanager
    def _connected(self, *, make: bool = False) -> Iterator[Connection]:
        with closing(self._address.connect()) as connection:
            try:
                if not _is_there(connection):
                    if not make:
                        msg = f"{self.shown}: this is no directory of shards yet. Add a server with `clew shards add`."
                        raise StoreSchemaError(msg)
                    _make(connection)
                yield connection
            except psycopg.Error as error:
                raise unavailable(self.shown, error) from None


def _check(address: str) -> None:
    """Raise StoreUrlError unless it is ``host:port/database``, several hosts with commas, or ``service=name``."""
    if not (_ADDRESS.fullmatch(address) or _SERVICE.fullmatch(address)):
        # It is not repeated: there may be a password in it.
        msg = "That is no address of a shard. Write HOST:PORT/DATABASE or service=NAME, without a user or a password."
        raise StoreUrlError(msg)


def _is_there(connection: Connection) -> bool:
    return bool(connection.execute(_SQL["are there"].encode()).fetchall())


def _store(there: Address) -> UUID:
    """Which store is at an address."""
    with closing(there.connect()) as connection:
        try:
            ((found,),) = connection.execute(_SQL["this store"].encode()).fetchall()
        except psycopg.Error as error:
            raise unavailable(there.shown, error) from None
    return UUID(str(found))


def _make(connection: Connection) -> None:
    with connection.transaction():
        schema.lock(connection, _LOCK)
        if not _is_there(connection):
            connection.execute(_SQL["tables"].encode())


def _address_of(connection: Connection, tenant: str) -> str | None:
    found = connection.execute(_SQL["address of a tenant"].encode(), {"tenant": tenant}).fetchone()
    return None if found is None else str(found[0])
