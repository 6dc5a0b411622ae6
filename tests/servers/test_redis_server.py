from __future__ import annotations

import pytest
import redis as package
from tests.servers.redis_server import RedisServer


def test_needs_the_password(redis: RedisServer) -> None:
    with (
        package.Redis(host="127.0.0.1", port=redis.port) as client,
        pytest.raises(package.AuthenticationError),
    ):
        client.ping()
    assert redis.ask("PING") in {True, "PONG"}


def test_is_empty_and_on_the_same_port_after_a_kill_and_a_restart(redis: RedisServer) -> None:
    redis.ask("SET", "a", "b")
    assert redis.keys() == ["a"]
    port = redis.port
    redis.kill()
    with pytest.raises(package.ConnectionError):
        redis.ask("PING")
    redis.kill()  # a second kill does nothing
    redis.start()
    assert (redis.port, redis.keys()) == (port, [])


def test_is_empty_for_each_test(redis: RedisServer) -> None:
    assert redis.keys() == []
