"""Scripts that send the request of a model call again, with the key from the environment."""

from __future__ import annotations

import re
from pprint import pformat
from shlex import quote
from typing import TYPE_CHECKING, Literal, NamedTuple

from clew.cli.errors import WrongUsage
from clew.cli.output import one_line, safe
from clew.domain.models.anthropic_requests import VERSION
from clew.infrastructure.gemini.interactions_client import REVISION

if TYPE_CHECKING:
    from clew.domain.runs.request_construction import Request

OPENAI = frozenset({"openai-chat", "openai-responses"})
"""The formats whose requests --python can send."""


class Endpoint(NamedTuple):
    """Where a service takes requests in a format: parts of a shell command, which reads keys from the environment."""

    url: str
    headers: tuple[str, ...]


_OPENAI = Endpoint("${OPENAI_BASE_URL:-https://api.openai.com/v1}", ("Authorization: Bearer $OPENAI_API_KEY",))
_BEDROCK = Endpoint(
    "${AWS_ENDPOINT_URL_BEDROCK_RUNTIME:-https://bedrock-runtime.$AWS_REGION.amazonaws.com}",
    ("Authorization: Bearer $AWS_BEARER_TOKEN_BEDROCK",),
)
_GEMINI = Endpoint(
    "${GOOGLE_GEMINI_BASE_URL:-https://generativelanguage.googleapis.com}/v1beta", ("x-goog-api-key: $GEMINI_API_KEY",)
)
_VERTEX = (
    "${ANTHROPIC_VERTEX_BASE_URL:-https://$CLOUD_ML_REGION-aiplatform.googleapis.com/v1}/projects/"
    "$ANTHROPIC_VERTEX_PROJECT_ID/locations/$CLOUD_ML_REGION/publishers/anthropic"
)

ENDPOINTS = {
    "anthropic-bedrock": _BEDROCK,
    "anthropic-messages": Endpoint(
        "${ANTHROPIC_BASE_URL:-https://api.anthropic.com}",
        ("Authorization: Bearer $ANTHROPIC_API_KEY", f"anthropic-version: {VERSION}"),
    ),
    "anthropic-vertex": Endpoint(_VERTEX, ("Authorization: Bearer $(gcloud auth print-access-token)",)),
    "bedrock-converse": _BEDROCK,
    "gemini": _GEMINI,
    "gemini-interactions": Endpoint(_GEMINI.url, (*_GEMINI.headers, f"api-revision: {REVISION}")),
    "openai-chat": _OPENAI,
    "openai-responses": _OPENAI,
}
"""The formats whose requests --curl can send."""

LONGEST_ARGUMENT = 100_000
"""Bytes of one argument of a command; systems accept 128 KiB at most."""

_ESCAPED_IN_PRINTF = re.compile(r"[\x7f-\xff]")


def script(language: Literal["curl", "python"], thread_id: str, request: Request) -> str:
    """A command or program that sends the request of a model call of a thread. Raises WrongUsage for other formats."""
    known = OPENAI if language == "python" else frozenset(ENDPOINTS)
    if request.wire not in known:
        raise WrongUsage(f"--{language} can send {', '.join(sorted(known))}, and this request is {request.wire}")
    return python(thread_id, request) if language == "python" else curl(request)


def curl(request: Request) -> str:
    """A POSIX shell command that sends exactly the bytes of the request, with the key from the environment."""
    body = request.content.decode()
    argument = quote(body) if safe(body) == body else f'"$(printf {_printf_format(request.content)})"'
    long = len(request.content) > LONGEST_ARGUMENT
    endpoint = ENDPOINTS[request.wire]
    streams = request.body.get("stream") is True or "stream" in request.path.rpartition("/")[2].lower()
    parts = [
        "curl -sS --no-buffer" if streams else "curl -sS",
        f'"{endpoint.url}"{quote(request.path)}',
        *(f'-H "{header}"' for header in endpoint.headers),
        "-H 'Content-Type: application/json'",
        "--data-binary @-" if long else f"--data-raw {argument}",
    ]
    command = " \\\n  ".join(parts)
    return f"printf %s {argument} |\n{command}" if long else command


def python(thread_id: str, request: Request) -> str:
    """A script that sends exactly the bytes of the request with the ``openai`` package, and prints the answer."""
    path = request.path
    lines = [
        f"# The model call at version {request.version} of thread {one_line(thread_id)}, rebuilt from the log.",
        "# It reads OPENAI_API_KEY and OPENAI_BASE_URL from the environment.",
        "import json",
        "",
        "import openai",
        "",
        f"body = {pformat(request.body, width=100, sort_dicts=False)}",
        "",
        "client = openai.OpenAI(max_retries=0)",
        "# post() sends the body unchanged; the methods for each kind of request would reorder it.",
        'options = {"security": {"bearer_auth": True}}',
    ]
    if request.body.get("stream") is True:
        arguments = (
            f'"{path}", body=body, cast_to=object, options=options, stream=True, stream_cls=openai.Stream[object]'
        )
        lines += [f"for event in client.post({arguments}):", "    print(json.dumps(event))"]
    else:
        arguments = f'"{path}", body=body, cast_to=object, options=options'
        lines += [f"print(json.dumps(client.post({arguments}), indent=2))"]
    return "\n".join(lines)


def _printf_format(content: bytes) -> str:
    """Bytes as a format of ``printf``, with everything escaped that could control the terminal."""
    text = content.decode("latin-1").replace("\\", r"\\").replace("%", "%%")
    return quote(_ESCAPED_IN_PRINTF.sub(lambda match: f"\\{ord(match[0]):03o}", text))
