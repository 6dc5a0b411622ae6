from __future__ import annotations

import pytest
import redis as package
from tests.servers.redis_server import RedisServer


def test_takes_nobody_without_the_password(redis: RedisServer) -> None:
    with (
        package.Redis(host="127.0.0.1", port=redis.port) as client,
        pytest.raises(package.AuthenticationError),
    ):
        client.ping()
    assert redis.ask("PING") in {True, "PONG"}


def test_has_nothing_and_is_where_it_was_when_it_starts_again_after_it_was_killed(redis: RedisServer) -> None:
    redis.ask("SET", "a", "b")
    assert redis.keys() == ["a"]
    port = redis.port
    redis.kill()
    with pytest.raises(package.ConnectionError):
        redis.ask("PING")
    redis.kill()  # once is enough
    redis.start()
    assert (redis.port, redis.keys()) == (port, [])


def test_is_given_to_each_test_with_nothing_in_it(redis: RedisServer) -> None:
    assert redis.keys() == []
