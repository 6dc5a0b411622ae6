"""Calls the control APIs of test servers: JSON over HTTP, with the standard library only."""

from __future__ import annotations

import json
import urllib.request
from typing import Any


def send_json(method: str, url: str, body: Any = None) -> Any:
    """Send JSON and return the JSON of the answer. A status of 400 or more raises `HTTPError`."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310 - the URL is of our own server
    # Ignores the proxies of the environment, because the servers run on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=60) as answer:
        return json.loads(answer.read() or b"null")
