"""How the tests speak to the servers' control doors: JSON over HTTP, by the standard library alone."""

from __future__ import annotations

import json
import urllib.request
from typing import Any


def ask(method: str, url: str, body: Any = None) -> Any:
    """Send JSON and return the JSON that comes back; an answer of 400 or more is an `HTTPError`."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310 - the URL is of our own server
    # Without the proxies of the environment: the servers are on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=60) as answer:
        return json.loads(answer.read() or b"null")
