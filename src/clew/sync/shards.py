"""All the shards of a directory at once, for an operator; a tenant's own threads are in the service for threads."""

from __future__ import annotations

from contextlib import closing
from typing import Self

from clew.domain.errors import StoreError
from clew.domain.ports import EventLog
from clew.domain.sharding import Positions, Shard, check_shard_name
from clew.infrastructure import urls
from clew.service.shard_events import ShardEvents


class Shards:
    """The servers of a ``postgresql+shards://`` directory, for an operator: no ``authorize`` is asked here.

    It holds nothing open but what ``events`` gives.
    """

    def __init__(self, url: str) -> None:
        self._directory = urls.directory(url)

    @classmethod
    def open(cls, url: str) -> Self:
        """The shards of the directory that a URL names. Raises StoreUrlError."""
        return cls(url)

    def add(self, name: str, address: str) -> None:
        """Give the directory a server, at ``host:port/database`` or ``service=name``; its tables are made if need be.

        It gets new tenants from now on, and no others. One store is one shard, whichever of its addresses is given.
        Raises ShardError, StoreUrlError, InvalidNameError, StoreSchemaError or StoreUnavailableError.
        """
        check_shard_name(name)
        url = self._directory.url_at(address)
        self._directory.check_free(name, address)  # before tables are made there
        urls.open_log(url).close()
        self._directory.add(name, address, urls.address(url))

    def move(self, name: str, address: str) -> None:
        """Say that the store of a shard is at another address now; the same store, or a copy that takes its place.

        Who has it open goes on where he is until he opens it again. Raises ShardError, StoreUrlError, StoreSchemaError
        or StoreUnavailableError.
        """
        url = self._directory.url_at(address)
        urls.open_log(url, create=False).close()
        self._directory.move(name, address, urls.address(url))

    def take_no_more(self, name: str) -> None:
        """Give a server no more tenants; those that it has stay. Raises ShardError."""
        self._directory.take_no_more(name)

    def shards(self) -> list[Shard]:
        """The servers, in the order of their names. Raises StoreSchemaError or StoreUnavailableError."""
        return self._directory.shards()

    def events(self, *, after: Positions | None = None) -> ShardEvents:
        """Every event of every tenant on all shards after these positions, and then those that come, as they come.

        Each shard's come in its own order; between shards there is none. Store the ``positions`` of the event that was
        taken in last, as text, and give them as ``after`` to go on.
        """
        return ShardEvents(self.shards, self._log, Positions() if after is None else after)

    def positions(self) -> Positions:
        """The newest position of each shard. Raises StoreUnavailableError where one cannot be reached."""
        found = {}
        for shard in self.shards():
            with closing(self._log(shard)) as log:
                found[shard.name] = log.newest_position()
        return Positions(found)

    def make(self) -> None:
        """Make the tables of the directory, if they are not there. Raises StoreUnavailableError."""
        self._directory.make()

    def unreachable(self, shard: Shard) -> str | None:
        """Why a shard cannot be read, None when it can."""
        try:
            self._log(shard).close()
        except StoreError as error:
            return str(error)
        return None

    def url(self, shard: Shard) -> str:
        """The URL of a shard as an ordinary store, with the user and the password of the directory's."""
        return self._directory.url_at(shard.address)

    def _log(self, shard: Shard) -> EventLog:
        return urls.open_log(self.url(shard), create=False)
