from __future__ import annotations

import asyncio
import json
import logging
import time
import traceback
from base64 import b32encode, b64encode, urlsafe_b64encode
from email.utils import formatdate
from html import escape
from textwrap import wrap
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.domain.wire_requests import to_send
from tests.infrastructure.openai.replies import CANARY, CONTENT, SERVICES, Service, updates_of
from tests.servers.raw_server import CUT, STALL, RawServer, Reply, stream, whole

from clew.domain.models.client import Question
from clew.domain.runs.errors import (
    ContextWindowError,
    ModelAccessError,
    ModelError,
    ModelOverloadedError,
    ModelRequestError,
    ModelStreamError,
    ModelUnavailableError,
)
from clew.infrastructure.openai.errors import RequestContext, model_error, retry_after, service_error

CONTEXT = RequestContext("m-1", "localhost:1")


@pytest.mark.parametrize(
    ("message", "tokens", "limit"),
    [
        (
            "This model's maximum context length is 8,192 tokens. However, your messages resulted in 10,000 tokens.",
            10000,
            8192,
        ),
        (
            "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4000 for it).",
            5000,
            4096,
        ),
        ("maximum context length is 4096 tokens and your request has 5000 input tokens", 5000, 4096),
        ("The decoder prompt (length 5000) is longer than the maximum model length of 4096.", 5000, 4096),
        ("request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it", 5000, 4096),
        ("the request exceeds the available context size, try increasing it", None, None),
        ("Your input exceeds the context window of this model. Please adjust your input.", None, None),
        ("prompt is too long: 210000 tokens > 200000 maximum", 210000, 200000),
        ("The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).", 1200000, 1048576),
        ("Prompt contains 40000 tokens, too large for model with 32768 maximum context length", 40000, 32768),
        ("`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens", 5000, 4096),
        ("This model's maximum prompt length is 131072 but the request contains 200000 tokens.", 200000, 131072),
        (
            "Trying to keep the first 5000 tokens when context the overflows. It has a context length of only 4096",
            5000,
            4096,
        ),
    ],
)
def test_recognizes_the_context_overflows_of_many_services(message: str, tokens: int | None, limit: int | None) -> None:
    error = service_error({"error": {"message": message, "type": "invalid_request_error"}}, CONTEXT, begun=False)
    assert isinstance(error, ContextWindowError)
    assert (error.tokens, error.limit) == (tokens, limit)


def test_reads_the_numbers_of_an_overflow_from_fields() -> None:
    failure: Any = {"code": 400, "type": "exceed_context_size_error", "n_prompt_tokens": 5000, "n_ctx": 4096}
    error = service_error(failure, CONTEXT, begun=True)
    assert isinstance(error, ContextWindowError)
    assert (error.tokens, error.limit, error.status) == (5000, 4096, 400)
    assert "5000 tokens" in str(error)


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        ({"code": "server_error", "message": "x"}, ModelUnavailableError),
        ({"type": "overloaded_error", "message": "x"}, ModelOverloadedError),
        ({"code": 502, "message": "x"}, ModelUnavailableError),
        ({"code": 429, "message": "x"}, ModelOverloadedError),
        ({"code": 401, "message": "x"}, ModelAccessError),
        ({"code": "invalid_prompt", "message": "x"}, ModelRequestError),
        ({"error": "model not found"}, ModelRequestError),
        ("unknown", ModelRequestError),
        (7, ModelRequestError),
    ],
)
def test_the_code_of_an_error_determines_its_type(failure: Any, kind: type[ModelError]) -> None:
    assert type(service_error(failure, CONTEXT, begun=False)) is kind
    assert type(service_error(failure, CONTEXT, begun=True)) is ModelStreamError


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "2.5"}, 2.5),
        ({"retry-after": "-1"}, 0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0),
        ({"retry-after-ms": "20", "retry-after": "9"}, 0.02),
        ({"retry-after-ms": "?", "retry-after": "9"}, 9),
    ],
)
def test_reads_the_retry_time_from_headers(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds


def test_reads_the_retry_time_from_a_date() -> None:
    seconds = retry_after({"retry-after": formatdate(time.time() + 1000, usegmt=True)})
    assert seconds is not None
    assert 0 < seconds <= 1001


def test_an_internal_error_of_the_client_shows_only_its_type() -> None:
    error = model_error(RuntimeError(CANARY), CONTEXT, begun=False)
    assert "RuntimeError" in str(error)
    assert CANARY not in str(error)
    assert not error.retryable


@given(before=st.text("ab .", max_size=9), after=st.text("ab .", max_size=9))
def test_hides_quotes_of_the_request_in_error_messages(before: str, after: str) -> None:
    context = RequestContext("m-1", "localhost", (CANARY,), {"messages": [{"role": "user", "content": CONTENT}]})
    quoted = f"{before}{CONTENT[3:40]}{after}{CANARY}"
    message = str(service_error({"message": quoted, "code": CANARY}, context, begun=False))
    assert "[…]" in message
    assert CONTENT[10:34] not in message
    assert CANARY not in message


def test_hides_a_short_quote_of_the_request() -> None:
    context = RequestContext("m-1", "localhost", (), {"messages": [{"role": "assistant", "content": "4111 2222"}]})
    message = str(service_error({"message": "The assistant message '4111 2222' is bad."}, context, begun=False))
    assert "The assistant message '[…]' is bad" in message


def test_hides_other_keys_in_error_messages() -> None:
    failure: Any = {"message": "Incorrect API key provided: sk-proj-****************abcd and gsk_abcdefghij."}
    message = str(service_error({"error": failure}, CONTEXT, begun=False))
    assert "Incorrect API key provided: [hidden] and [hidden]" in message


REPLIES = [
    whole({"error": {"message": f"Incorrect key {CANARY} of org-canary for {CONTENT}."}}, status=401),
    whole({"error": {"message": f"{CANARY} {CONTENT}", "code": CANARY, "type": CANARY}}, status=400),
    whole({"error": f"{CANARY} {CONTENT}"}, status=500),
    whole(f"{CANARY} {CONTENT}".encode(), status=503),
    whole({"error": {"message": f"{CANARY} {CONTENT}"}}),
    whole(f"not JSON: {CANARY} {CONTENT}".encode()),
    stream(f"data: {{{CANARY} {CONTENT}\n\n".encode()),
    stream({"error": {"message": f"{CANARY} {CONTENT}"}}),
    stream({"type": "error", "message": f"{CANARY} {CONTENT}"}),
    stream(done=False),
    Reply((CUT,)),
    Reply((STALL,)),
]


@pytest.mark.parametrize("service", SERVICES, ids=lambda each: each.kind)
@pytest.mark.parametrize("reply", REPLIES)
def test_no_error_and_no_log_line_contains_the_key_or_the_request(
    service: Service, reply: Reply, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org-canary")
    for logger in ("openai", "clew", "httpx2", "httpcore2"):
        caplog.set_level(logging.DEBUG, logger=logger)
    with RawServer() as server:
        server.add_replies(reply)
        address = server.url.replace("http://", "http://user:pass-canary@")
        client = service.client(address, timeout=0.3 if STALL in reply.steps else 60)
        outputs = [repr(client), repr(vars(client))]
        with pytest.raises(ModelError) as raised:
            asyncio.run(updates_of(client.ask(to_send(client, service.body(client), streams=True))))
        assert server.requests[0].headers["openai-organization"] == "org-canary"
        assert server.requests[0].headers["authorization"] == "Basic dXNlcjpwYXNzLWNhbmFyeQ=="
    assert raised.value.__cause__ is None
    assert raised.value.__context__ is None, "the context would contain the request with the key"
    outputs += [repr(raised.value), repr(vars(raised.value)), *traceback.format_exception(raised.value)]
    outputs += [record.getMessage() for record in caplog.records]
    for secret in (CANARY, "org-canary", "pass-canary", CONTENT):
        assert secret not in "\n".join(outputs)


WORD = "p@ss/wörd +1"
WORD_IN_URL = "p%40ss%2Fw%C3%B6rd%20+1"
ENCODINGS = {
    "plain": WORD,
    "in upper case": WORD.upper(),
    "as in the URL": WORD_IN_URL,
    "percent-encoded": "".join(f"%{byte:02x}" for byte in WORD.encode()),
    "percent-encoded twice": quote(quote(WORD, safe=""), safe=""),
    "as in a form": quote_plus(WORD),
    "in JSON": json.dumps(WORD)[1:-1],
    "in HTML": "".join(f"&#{ord(character)};" for character in WORD),
    "in hexadecimal digits": WORD.encode().hex(),
    "in base64": b64encode(WORD.encode()).decode(),
    "in the header": b64encode(f"user:{WORD}".encode()).decode(),
    "the header in base64": b64encode(b"Basic " + b64encode(f"user:{WORD}".encode())).decode(),
    "after one other byte": b64encode(f"x{WORD}".encode()).decode(),
    "in base64 for URLs": urlsafe_b64encode(f"xx{WORD}".encode()).decode().rstrip("="),
}


@pytest.mark.parametrize("encoded", ENCODINGS.values(), ids=ENCODINGS)
@pytest.mark.parametrize("streamed", [False, True])
def test_hides_the_password_of_base_url_in_every_encoding(encoded: str, *, streamed: bool) -> None:
    service = SERVICES[0]
    failure = {"error": {"message": f"No access with <{encoded}>.", "code": encoded}}
    with RawServer() as server:
        server.add_replies(stream(failure) if streamed else whole(failure, status=401))
        client = service.client(server.url.replace("http://", f"http://user:{WORD_IN_URL}@"))
        with pytest.raises(ModelError) as raised:
            asyncio.run(updates_of(client.ask(to_send(client, service.body(client), streams=True))))
    shown = f"{raised.value} {raised.value.code}"
    assert "No access with <" in shown
    secret = encoded[len(encoded) // 4 :]  # without the bytes before the password
    assert not [secret[start : start + 6] for start in range(len(secret) - 5) if secret[start : start + 6] in shown]


SWORDFISH = """Sw0rdfish%Quay&"Lantern"""
NESTED = {
    "JSON in JSON": json.dumps(json.dumps(SWORDFISH)),
    "JSON in JSON in JSON": json.dumps({"upstream": json.dumps({"error": json.dumps(SWORDFISH)})}),
    "a string of Python in JSON": json.dumps(json.dumps(repr(SWORDFISH))),
    "HTML in HTML": escape(escape(SWORDFISH)),
    "HTML in a URL": quote(escape(SWORDFISH), safe=""),
    "hexadecimal digits with spaces": SWORDFISH.encode().hex(" "),
    "hexadecimal digits with colons": SWORDFISH.encode().hex(":").upper(),
    "escaped bytes": "".join(f"\\x{byte:02x}" for byte in SWORDFISH.encode()),
    "UTF-16 in base64": b64encode(SWORDFISH.encode("utf-16-le")).decode(),
    "UTF-16 with the high byte first in base64": b64encode(SWORDFISH.encode("utf-16-be")).decode(),
    "base32": b32encode(SWORDFISH.encode()).decode(),
    "the header in base32": b32encode(f"user:{SWORDFISH}".encode()).decode().lower(),
    "base64 in base64": b64encode(b64encode(SWORDFISH.encode())).decode(),
    "base64 on lines": "\n".join(wrap(b64encode(f"user:{SWORDFISH}".encode()).decode(), 8)),
    "a part of it": "Sw0rdfish",
}


@pytest.mark.parametrize("encoded", NESTED.values(), ids=NESTED)
def test_quotes_nothing_that_gives_the_password_of_base_url_away(encoded: str) -> None:
    service = SERVICES[0]
    failure = {"error": {"message": f"No access with <{encoded}>.", "code": encoded}}
    with RawServer() as server:
        server.add_replies(whole(failure, status=401))
        client = service.client(server.url.replace("http://", f"http://user:{quote(SWORDFISH, safe='')}@"))
        with pytest.raises(ModelAccessError) as raised:
            asyncio.run(updates_of(client.ask(to_send(client, service.body(client), streams=False))))
    assert ": [hidden]. Check that the key" in str(raised.value)
    assert raised.value.code == "[hidden]"


def test_the_openai_package_logs_no_key_and_no_content() -> None:
    """Its debug log contains the method and the status of a request, but none of its content."""
    records: list[logging.LogRecord] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    handler = Handler()
    logger = logging.getLogger("openai")
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.DEBUG)
    try:
        with RawServer() as server:
            server.add_replies(whole(SERVICES[0].whole))
            client = SERVICES[0].client(server)
            body = client.wire.make_body(Question("m-1", (), CONTENT))
            asyncio.run(updates_of(client.ask(to_send(client, body, streams=False))))
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    message = "\n".join(record.getMessage() for record in records)
    assert "HTTP Response" in message
    assert CANARY not in message
    assert CONTENT not in message
