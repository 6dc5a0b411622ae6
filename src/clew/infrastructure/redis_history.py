"""Histories in Redis: a list for each thread, as long as it may be."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, urlsplit

from clew.domain.errors import HistoryStoreError, InvalidContentError
from clew.domain.history_stores import HistoryStore, StoredMessage, kept_from
from clew.domain.json_values import Json
from clew.domain.names import check_id
from clew.domain.runs.errors import AgentConfigurationError, MissingExtraError

if TYPE_CHECKING:
    from redis.asyncio import Redis

_SECONDS = 5.0
"""How long Redis may take to be reached, and to answer, unless the URL says otherwise."""


class RedisHistory(HistoryStore):
    """Keeps the messages of one thread in a Redis list, each a JSON object of ``id`` and ``message``, oldest first.

    ``max_messages`` is how many the list holds at most, None for all of them. Older ones go in whole groups, a call
    with its results, so that the list never begins with a result; a group that alone is larger goes, too. The key is
    made of ``key_prefix``, tenant and thread, and no two threads share one. ``serialize`` gives the key: not the URL,
    which may have a password, and not the limit, which is whatever it is made with.

    It connects when it is asked for something and lets go then, so a thread that rests costs no connection. Methods
    raise HistoryStoreError when Redis is not there, refuses, or holds something else under the key. To make one raises
    MissingExtraError without the extra ``redis``, AgentConfigurationError for a URL or a limit that is none, and
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
            raise AgentConfigurationError(f"max_messages={max_messages!r} is no number of messages. Give 1 or more.")
        _check_url(redis_url)
        # What comes after the last two colons is the thread and the tenant: neither has a colon of its own.
        self._of = f":{quote(tenant, safe='')}:{quote(thread_id, safe='')}"
        self.key = f"{key_prefix}{self._of}"
        self.max_messages = max_messages
        self._url = redis_url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.key!r} at {_shown(self._url)})"

    async def add_messages(self, messages: Sequence[StoredMessage]) -> None:
        """Add messages in their order, without those whose ids are in the list, and let go of the oldest."""
        async with self._connected() as redis, redis.pipeline() as transaction:
            while True:
                await transaction.watch(self.key)
                held = self._read(await cast("Awaitable[list[bytes]]", transaction.lrange(self.key, 0, -1)))
                new = list({each.id: each for each in messages}.values())
                known = {each.id for each in held}
                new = [each for each in new if each.id not in known]
                if not new:
                    return
                first = kept_from([each.message for each in (*held, *new)], self.max_messages)
                transaction.multi()  # type: ignore[no-untyped-call]  # of the package
                transaction.rpush(self.key, *(each.to_text() for each in new))
                if first:
                    transaction.ltrim(self.key, first, -1)
                try:
                    await transaction.execute()
                except _package().WatchError:
                    continue  # somebody else added some: look again
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
        """Go on with the list under the key of a state, which may have another prefix.

        Raises HistoryStoreError for a state of another store, or of another thread or tenant.
        """
        del options
        key = state.get("key") if isinstance(state, dict) else None
        if not isinstance(key, str) or not key:
            raise HistoryStoreError("The state is none of RedisHistory: it has no key. Was it another store's?")
        if not key.endswith(self._of):
            raise HistoryStoreError(
                f"The state names the key {key!r}, which is of another thread or tenant. The keys of this one end with "
                f"{self._of!r}."
            )
        self.key = key

    def _read(self, items: list[bytes]) -> list[StoredMessage]:
        try:
            return [StoredMessage.from_text(item) for item in items]
        except InvalidContentError:
            raise HistoryStoreError(
                f"The Redis key {self.key!r} holds something other than messages of Clew's. Delete it: it is filled "
                "again from the log. Or give another key_prefix."
            ) from None

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Redis]:
        package = _package()
        client = _client(self._url)
        try:
            async with client:
                yield client
        except (package.RedisError, OSError) as error:
            # The package's own words may quote what it was given, a password included.
            raise HistoryStoreError(f"Redis at {_shown(self._url)}: {self._why(error)}") from None

    def _why(self, error: Exception) -> str:
        package = _package()
        match error:
            case package.AuthenticationError() | package.AuthorizationError():
                return "it does not take this user or this password. Check redis_url."
            case package.NoPermissionError():
                return (
                    f"this user may not do that. Allow it LRANGE, RPUSH, LTRIM, WATCH, UNWATCH, MULTI and EXEC on the "
                    f"key {self.key!r}."
                )
            case package.OutOfMemoryError():
                return "it is full, and may not make room. Give it more memory, or keep fewer with max_messages."
            case package.MovedError():
                return "it is one of a cluster, and another has the key. Give a server that stands alone, or a proxy."
            case package.TimeoutError() | TimeoutError():
                return f"it took longer than {_SECONDS:g} s. Is it busy, or the way to it?"
            case package.ConnectionError() | OSError():
                return "it could not be reached, or hung up. Is it running, and redis_url right?"
            case package.ResponseError() if str(error).startswith("WRONGTYPE"):
                return f"the key {self.key!r} holds something other than a list. Give another key_prefix."
            case _:
                return f"it refused ({type(error).__name__})."


def _package() -> ModuleType:
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

    # Whoever feeds the store tries again with what it missed: to be waited for here would keep a run waiting.
    return Redis.from_url(
        url, socket_timeout=_SECONDS, socket_connect_timeout=_SECONDS, retry=Retry(NoBackoff(), retries=0)
    )


def _check_url(url: str) -> None:
    """Raise AgentConfigurationError, which never quotes the URL, for one that the package does not take."""
    _package()
    try:
        pool = _client(url).connection_pool
        pool.connection_class(**pool.connection_kwargs)
    except (AttributeError, TypeError, ValueError):
        raise AgentConfigurationError(
            "redis_url is no URL of a Redis server. Give redis://HOST:PORT/0, with a password "
            "redis://:PASSWORD@HOST:PORT/0, over TLS rediss://…, or a socket, unix:///PATH."
        ) from None


def _shown(url: str) -> str:
    """Where a URL leads, without the user, the password and the options in it."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return parts.path
    return f"{parts.hostname or 'localhost'}:{parts.port or 6379}"
