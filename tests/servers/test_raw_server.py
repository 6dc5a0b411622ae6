"""The scripted server of the tests, and of applications that test their clients."""

from __future__ import annotations

from http.client import HTTPConnection

import pytest
from tests.servers.raw_server import RawServer, whole


def test_a_connection_that_a_client_leaves_open_ends_quietly_with_the_server(caplog: pytest.LogCaptureFixture) -> None:
    with RawServer() as server:
        server.add_replies(whole({}))
        connection = HTTPConnection("127.0.0.1", server.port)
        connection.request("POST", "/")
        assert connection.getresponse().read() == b"{}"
    connection.close()
    assert caplog.records == []
