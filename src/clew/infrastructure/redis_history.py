"""A history store in Redis: one list for each thread, with an optional limit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, urlsplit

from clew.domain.errors import HistoryStoreError, InvalidContentError
from clew.domain.history_stores import HistoryStore, StoredMessage, kept_from
from clew.domain.json_values import Json
from clew.domain.runs.errors import AgentConfigurationError, MissingExtraError
from clew.domain.streams import check_id

if TYPE_CHECKING:
    from redis.asyncio import Redis

_TIMEOUT = 5.0
"""The timeout to connect to Redis, and for each reply, unless the URL sets another."""


class RedisHistory(HistoryStore):
    """Keeps the messages of one thread in a Redis list, each a JSON object of ``id`` and ``message``, oldest first.

    ``max_messages`` limits the length of the list; None means no limit. The oldest messages are removed in groups of a
    call and its results, so the list never begins with a result. A group larger than the limit is removed, too. The
    key consists of ``key_prefix``, tenant and thread, so each thread has its own. ``serialize`` returns the key, but
    not the URL, which may contain a password, and not the limit.

    Each method opens a connection and closes it at the end: an idle thread holds no connection. Methods raise
    HistoryStoreError if Redis cannot be reached, refuses, or has other data under the key. The constructor raises
    MissingExtraError without the extra ``redis``, AgentConfigurationError for an invalid URL or limit, and
    InvalidNameError.
    """

    def __init__(
        self,
        redis_url: str,
        tenant: str,
        thread_id: str,
        max_messages: int | None = None,
        key_prefix: str = "clew",
    ) -> None:
        for value, what in ((tenant, "tenant"), (thread_id, "thread id"), (key_prefix, "key prefix")):
            check_id(value, what)
        if max_messages is not None and (type(max_messages) is not int or max_messages < 1):
            raise AgentConfigurationError(f"max_messages={max_messages!r} is not a number of messages. Give 1 or more.")
        _check_url(redis_url)
        # Tenant and thread are quoted, so the last two colons of the key separate them.
        self._key_end = f":{quote(tenant, safe='')}:{quote(thread_id, safe='')}"
        self.key = f"{key_prefix}{self._key_end}"
        self.max_messages = max_messages
        self._url = redis_url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.key!r} at {_address(self._url)})"

    async def add_messages(self, messages: Sequence[StoredMessage]) -> None:
        """Add messages in order, skip those whose ids are in the list, and remove the oldest above the limit."""
        async with self._connected() as redis, redis.pipeline() as transaction:
            while True:
                await transaction.watch(self.key)
                stored = self._read(await cast("Awaitable[list[bytes]]", transaction.lrange(self.key, 0, -1)))
                new = list({each.id: each for each in messages}.values())
                known = {each.id for each in stored}
                new = [each for each in new if each.id not in known]
                if not new:
                    return
                first = kept_from([each.message for each in (*stored, *new)], self.max_messages)
                transaction.multi()  # type: ignore[no-untyped-call]  # of the package
                transaction.rpush(self.key, *(each.to_text() for each in new))
                if first:
                    transaction.ltrim(self.key, first, -1)
                try:
                    await transaction.execute()
                except _redis_errors().WatchError:
                    continue  # another client changed the list: read it again
                return

    async def list_messages(self) -> list[StoredMessage]:
        """The messages in the list, oldest first."""
        async with self._connected() as redis:
            return self._read(await cast("Awaitable[list[bytes]]", redis.lrange(self.key, 0, -1)))

    async def serialize(self, **options: Any) -> Json:
        """The key."""
        del options
        return {"key": self.key}

    async def update_from_state(self, state: Json, **options: Any) -> None:
        """Continue the list under the key of a state, which may have another prefix.

        Raises HistoryStoreError for a state of another store, or of another thread or tenant.
        """
        del options
        key = state.get("key") if isinstance(state, dict) else None
        if not isinstance(key, str) or not key:
            raise HistoryStoreError("This is not a state of RedisHistory: it has no key. Was it made by another store?")
        if not key.endswith(self._key_end):
            raise HistoryStoreError(
                f"The state names the key {key!r}, which belongs to another thread or tenant. The keys of this one end "
                f"with {self._key_end!r}."
            )
        self.key = key

    def _read(self, items: list[bytes]) -> list[StoredMessage]:
        try:
            return [StoredMessage.from_text(item) for item in items]
        except InvalidContentError:
            raise HistoryStoreError(
                f"The Redis key {self.key!r} holds something other than Clew's messages. Delete it: Clew fills it "
                "again from the log. Or give another key_prefix."
            ) from None

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Redis]:
        errors = _redis_errors()
        client = _client(self._url)
        try:
            async with client:
                yield client
        except (errors.RedisError, OSError) as error:
            # The package's message may quote the URL, with its password.
            raise HistoryStoreError(f"Redis at {_address(self._url)}: {self._why(error)}") from None

    def _why(self, error: Exception) -> str:
        errors = _redis_errors()
        match error:
            case errors.AuthenticationError() | errors.AuthorizationError():
                return "it refuses this user or this password. Check redis_url."
            case errors.NoPermissionError():
                return (
                    f"this user lacks a permission. Allow it LRANGE, RPUSH, LTRIM, WATCH, UNWATCH, MULTI and EXEC on "
                    f"the key {self.key!r}."
                )
            case errors.OutOfMemoryError():
                return "its memory is full. Give it more memory, or keep fewer messages with max_messages."
            case errors.MovedError():
                return "it belongs to a cluster, and another server has the key. Use a standalone server, or a proxy."
            case errors.TimeoutError() | TimeoutError():
                return f"it took longer than {_TIMEOUT:g} s. Check its load and the network."
            case errors.ConnectionError() | OSError():
                return "it cannot be reached, or closed the connection. Check that it is running, and redis_url."
            case errors.ResponseError() if str(error).startswith("WRONGTYPE"):
                return f"the key {self.key!r} holds something other than a list. Give another key_prefix."
            case _:
                return f"it refused ({type(error).__name__})."


def _redis_errors() -> ModuleType:
    """The package's errors. Raises MissingExtraError."""
    try:
        from redis import exceptions
    except ImportError:
        raise MissingExtraError("RedisHistory", "redis", "redis") from None
    return exceptions


def _client(url: str) -> Redis:
    from redis.asyncio import Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    # No retries: the caller feeds missing messages again later, and a retry here would delay the run.
    return Redis.from_url(
        url, socket_timeout=_TIMEOUT, socket_connect_timeout=_TIMEOUT, retry=Retry(NoBackoff(), retries=0)
    )


def _check_url(url: str) -> None:
    """Raise AgentConfigurationError, which never quotes the URL, for a URL that the package does not accept."""
    _redis_errors()
    try:
        pool = _client(url).connection_pool
        pool.connection_class(**pool.connection_kwargs)
    except (AttributeError, TypeError, ValueError):
        raise AgentConfigurationError(
            "redis_url is not the URL of a Redis server. Give redis://HOST:PORT/0, with a password "
            "redis://:PASSWORD@HOST:PORT/0, over TLS rediss://…, or a socket, unix:///PATH."
        ) from None


def _address(url: str) -> str:
    """The host and port, or the socket, of a URL: no user, password or options."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return parts.path
    return f"{parts.hostname or 'localhost'}:{parts.port or 6379}"
