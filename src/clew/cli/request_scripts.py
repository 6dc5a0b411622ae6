"""Requests as one sends them again: a curl command, and a script for the ``openai`` package."""

from __future__ import annotations

import re
from pprint import pformat
from shlex import quote
from typing import TYPE_CHECKING

from clew.cli.text import one_line, safe

if TYPE_CHECKING:
    from clew.domain.models.client import Wire
    from clew.domain.runs.request_building import Request

PATHS: dict[Wire, str] = {"openai-chat": "/chat/completions", "openai-responses": "/responses"}
"""Where a service takes requests of each form, below its base URL."""

LONGEST_WORD = 100_000
"""Bytes that a command is given as one word; systems take no more than 128 KiB of them."""

_NOT_IN_PRINTF = re.compile(r"[\x7f-\xff]")

_URL = '"${OPENAI_BASE_URL:-https://api.openai.com/v1}%s"'


def curl(request: Request) -> str:
    """A command for any POSIX shell that sends the very bytes of the request, with the key from the environment."""
    body = request.content.decode()
    word = quote(body) if safe(body) == body else f'"$(printf {_format(request.content)})"'
    long = len(request.content) > LONGEST_WORD
    parts = [
        "curl -sS --no-buffer" if request.body.get("stream") is True else "curl -sS",
        _URL % PATHS[request.wire],
        '-H "Authorization: Bearer $OPENAI_API_KEY"',
        "-H 'Content-Type: application/json'",
        "--data-binary @-" if long else f"--data-raw {word}",
    ]
    command = " \\\n  ".join(parts)
    return f"printf %s {word} |\n{command}" if long else command


def python(thread_id: str, request: Request) -> str:
    """A script that sends the very bytes of the request with the ``openai`` package, and prints what comes."""
    path = PATHS[request.wire]
    lines = [
        f"# The model call at version {request.version} of thread {one_line(thread_id)}, as it is on the log.",
        "# OPENAI_API_KEY and OPENAI_BASE_URL are taken from the environment.",
        "import json",
        "",
        "import openai",
        "",
        f"body = {pformat(request.body, width=100, sort_dicts=False)}",
        "",
        "client = openai.OpenAI(max_retries=0)",
        "# post() sends the body as it stands; the methods for each kind of request would put it in their own order.",
        'options = {"security": {"bearer_auth": True}}',
    ]
    if request.body.get("stream") is True:
        sent = f'"{path}", body=body, cast_to=object, options=options, stream=True, stream_cls=openai.Stream[object]'
        lines += [f"for event in client.post({sent}):", "    print(json.dumps(event))"]
    else:
        sent = f'"{path}", body=body, cast_to=object, options=options'
        lines += [f"print(json.dumps(client.post({sent}), indent=2))"]
    return "\n".join(lines)


def _format(content: bytes) -> str:
    """Bytes as a format of ``printf``, where what could steer the terminal that shows the command is escaped."""
    text = content.decode("latin-1").replace("\\", r"\\").replace("%", "%%")
    return quote(_NOT_IN_PRINTF.sub(lambda found: f"\\{ord(found[0]):03o}", text))
