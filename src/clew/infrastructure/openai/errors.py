"""Converts errors of the ``openai`` package, its HTTP client and services to Clew's own errors.

No message contains a key, an organization, a header or a part of the request, not even where the service quotes it. No
error keeps its original, which holds the request with its key.
"""

from __future__ import annotations

import json
import re
import sys
import time
from base64 import b32encode, b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from html import escape, unescape
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

from clew.domain.json_values import Json, JsonObject
from clew.domain.runs.errors import (
    ContextWindowError,
    ModelAccessError,
    ModelError,
    ModelOverloadedError,
    ModelRequestError,
    ModelStreamError,
    ModelUnavailableError,
    ServiceThreadExpiredError,
)

_SHOWN = 300
"""The longest part of a service's message, in characters, that an error shows."""
_EXAMINED = 64 * 1024
"""Secrets are hidden in this many characters of a service's message; the rest is dropped."""
_SHORTEST_ENCODED = 4
"""The bytes of the shortest secret that is also hidden in encoded form: a shorter one is in many words."""
_SHORTEST_SPELLED = 6
"""The letters and digits of the shortest form of a secret that is looked for whatever is between them."""
_SHORTEST_PART = 8
"""The letters and digits of the shortest part of a secret, between other characters, that gives it away."""
_NESTED = 12
"""How often a text can be escaped again, for example as JSON in JSON."""
_ESCAPED = re.compile(r"\\(?:u\{?([0-9a-f]{1,6})\}?|x([0-9a-f]{2})|(.))", re.IGNORECASE | re.DOTALL)
_QUOTED = 24
"""If a message and a request share this many characters in a row, the message quotes the request."""
_WORD = 6
"""A shorter text of the request, of at least this many characters, is also hidden: common words are shorter."""
_NO_CONTENT = frozenset({"model", "role", "type", "name", "id", "call_id", "tool_call_id"})
_KEY = re.compile(r"\b(?:sk|pk|rk|key|sess|gsk|xai)[-_][\w*.\-]{6,}|Bearer \S+|\w{2,}\*{3,}\w*")
_SECRET_ATTRIBUTES = (
    *("api_key", "admin_api_key", "organization", "project", "webhook_secret", "_azure_ad_token"),
    *("access_token", "aws_access_key", "aws_secret_key", "aws_session_token"),
)
"""Attributes of the packages' clients."""
_SIGNED = re.compile(r"(?:Credential|Signature)=([^/,\s]+)")
"""The id of the key, and the signature, in a header of AWS Signature Version 4."""
_SECRET_HEADERS = re.compile(r"auth|key|token|secret|cookie|organization|project", re.IGNORECASE)

_OVERFLOW_CODES = frozenset(
    {"context_length_exceeded", "exceed_context_size_error", "model_max_prompt_tokens_exceeded"}
)
_SERVER_ERROR_CODES = frozenset({"server_error", "internal_error", "vector_store_timeout"})
_OVERFLOW = re.compile(
    r"(?:maximum|max) (?:context|model|prompt) length|exceeds? the (?:available )?context|context (?:length|size|"
    r"window) (?:exceeded|of only)|prompt is too long|input token count .{0,30}exceeds|too large for model with|"
    r"tokens.{0,40} must be <=|context the overflows|input is too long for",
    re.IGNORECASE,
)
_LOST = re.compile(r"not found|does not exist|no such|expired", re.IGNORECASE)
_NUMBER = r"\(?(\d[\d,]*)"
_LIMIT = re.compile(
    rf"(?:length (?:is|of)(?: only)?|context (?:size|window|length)(?: of(?: only)?| is)?|tokens allowed|must be <=|>) "
    rf"{_NUMBER}|with (\d[\d,]*) maximum context",
    re.IGNORECASE,
)
_SECONDS = re.compile(r"\d{1,6}(\.\d{1,9})?s")
_TOKENS = re.compile(
    rf"(?:resulted in|requested|request has|request contains|request|too long:|token count|contains|prompt|given:|"
    rf"keep the first) {_NUMBER} (?:input )?(?:tokens|`inputs`)|token count {_NUMBER}|\(length (\d[\d,]*)\)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What an error may show of a request (model and host), and what it must hide (secrets and content)."""

    model: str
    host: str
    secrets: tuple[str, ...] = field(default=(), repr=False)
    content: JsonObject = field(default_factory=dict, repr=False)
    key: str = "OPENAI_API_KEY"
    """The variable of the environment with the key."""

    def __str__(self) -> str:
        return f"{self.model!r} at {self.host}"


def model_error(raised: Exception, context: RequestContext, *, begun: bool, sdk: Any = None) -> ModelError:
    """Clew's error for an exception; ``begun`` is True if a part of the answer has arrived.

    An error before that can be retried. An answer that breaks off cannot: a part of it may have been shown. ``sdk`` is
    the package that raised it: ``openai``, or another with the same errors.
    """
    if isinstance(raised, ModelError):
        return raised
    import httpx2

    sdk = sdk or _openai()
    base = sdk.APIError.__base__  # of all errors of the package
    kind = type(raised.__cause__ or raised).__name__
    if isinstance(raised, sdk.APIStatusError):
        return _refused(raised, context)
    if isinstance(raised, ValueError | RecursionError) and not isinstance(raised, base):  # not JSON, or too deep
        return ModelStreamError(f"{context} answered with something that is not JSON. {_base_url_advice(context)}")
    if isinstance(raised, sdk.APITimeoutError | httpx2.TimeoutException):
        problem, advice = "sent nothing within the timeout", "Try again, or give the client a longer timeout."
    elif isinstance(raised, httpx2.UnsupportedProtocol | httpx2.InvalidURL) or kind in {
        "UnsupportedProtocol",
        "InvalidURL",
    }:
        return ModelUnavailableError(
            f"{context}: this is not a valid address. Give a base_url that begins with https://."
        )
    elif isinstance(raised, sdk.APIConnectionError | httpx2.RequestError | OSError):
        problem, advice = f"could not be reached ({kind})", "Check base_url, and that the service is running."
        if begun:
            problem, advice = f"broke off in the middle of its answer ({kind})", "Run again."
    elif isinstance(raised, base):
        return ModelAccessError(
            f"The request to {context} has no valid credentials ({kind}). Set {context.key} or give api_key=."
        )
    else:
        missing = raised.name if isinstance(raised, ModuleNotFoundError) else None
        why = f"needs the package {missing!r}. Install it." if missing else f"failed ({kind}). See its debug log."
        return ModelError(f"{context} received no request: the client {why}")
    if begun:
        return ModelStreamError(f"{context} {problem}. {advice}")
    return ModelUnavailableError(f"{context} {problem}. {advice}", retryable=True)


def _openai() -> Any:
    import openai

    return openai


def incomplete_answer_error(context: RequestContext) -> ModelStreamError:
    """The error for a stream that ended normally, but before the answer was complete."""
    return ModelStreamError(f"{context} ended its answer before it was complete. Run again.")


def invalid_reply_error(context: RequestContext) -> ModelStreamError:
    """The error for a reply that is not a model's answer."""
    return ModelStreamError(f"{context} replied, but not with an answer. {_base_url_advice(context)}")


def repetition_error(status: int | None, context: RequestContext) -> ModelError:
    """The error for a request that its client wanted to send again after a response with ``status``."""
    found = "got no response" if status is None else f"got HTTP {status}"
    kind = ModelAccessError if status in {401, 403, 407} else ModelUnavailableError
    return kind(
        f"The request to {context} {found}, and the client wanted to send it again. The run does that instead, so that "
        "each attempt is on the log. Run again, or allow it more retries.",
        status=status,
        retryable=True,
        retry_after=None if status is None else 0.0,
    )


def service_error(failure: Json, context: RequestContext, *, begun: bool) -> ModelError:
    """Clew's error for an error that the service sent instead of an answer, or in the middle of one."""
    reported = _parse_error(failure)
    error = _classified(_status_in(failure), reported, context, None)
    if begun and not isinstance(error, ContextWindowError):
        quote = _quote(reported, context)
        return ModelStreamError(
            f"{context} failed in the middle of its answer{quote}. Run again.", status=error.status, code=error.code
        )
    return error


def secrets_of(client: Any, raised: BaseException | None = None) -> tuple[str, ...]:
    """All secrets of a client and of the request in its error: messages must not contain them.

    The longest is first.
    """
    secrets = {getattr(client, name, None) for name in _SECRET_ATTRIBUTES}
    for headers in (
        getattr(client, "default_headers", None),
        getattr(getattr(raised, "request", None), "headers", None),
    ):
        for name, value in (headers or {}).items():
            if _SECRET_HEADERS.search(name) and isinstance(value, str):
                scheme, _, credentials = value.rpartition(" ")
                secrets |= {credentials, *(_user_and_password(credentials) if scheme.lower() == "basic" else ())}
                secrets |= set(_SIGNED.findall(value))
    secrets |= set(getattr(client, "secrets", ()))
    url = getattr(client, "base_url", None)
    secrets |= {getattr(url, "username", None), getattr(url, "password", None)}
    return tuple(sorted((each for each in secrets if isinstance(each, str) and each), key=len, reverse=True))


def _user_and_password(credentials: str) -> tuple[str, ...]:
    """What the credentials of basic authentication (RFC 7617) encode: both together, and the password."""
    try:
        both = b64decode(credentials, validate=True).decode()
    except ValueError:
        return ()
    return both, both.partition(":")[2]


def _written(secret: str) -> Iterator[re.Pattern[str]]:
    """Patterns of a secret as services quote it: as it is, escaped, in hexadecimal digits, or in base64."""
    yield re.compile("".join(map(_escaped, secret)), re.IGNORECASE)
    data = secret.encode(errors="surrogatepass")
    if len(data) < _SHORTEST_ENCODED:
        return
    yield re.compile(data.hex(), re.IGNORECASE)
    for offset, shared in enumerate((0, 2, 3)):  # base64 depends on the bytes before; these characters share their bits
        encoded = b64encode(bytes(offset) + data).decode()[shared : (offset + len(data)) * 8 // 6]
        yield re.compile(re.escape(encoded).replace(r"\+", r"[+-]").replace("/", "[/_]"))


def _escaped(character: str) -> str:
    """A pattern of one character of a secret: plain, or as escaped in a URL, in JSON or in HTML."""
    encoded, code = character.encode(errors="surrogatepass"), ord(character)
    forms = [
        re.escape(character),
        "".join(f"%(?:25)*{byte:02x}" for byte in encoded),
        rf"\\+u{{?0*{code:x}}}?",
        rf"&#(?:x0*{code:x}|0*{code});?",
        re.escape(escape(character)),
        re.escape(json.dumps(character)[1:-1]),
    ]
    return f"(?:{'|'.join(dict.fromkeys(forms))}{'|[+]' if character == ' ' else ''})"


def _gives_away(text: str, secrets: Iterable[str]) -> bool:
    """Whether a text has one of these secrets in a form that no pattern finds, or a long part of one.

    The text is unescaped until nothing changes. Only letters and digits are compared, in any case, so it does not
    matter what separates them. It finds too much rather than too little.
    """
    forms = {form for secret in secrets for form in _forms(secret)}
    for _ in range(_NESTED):
        spelled = _spelled(text)
        if any(form in spelled for form in forms):
            return True
        text, before = unquote(unescape(_ESCAPED.sub(_character, text))), text
        if text == before:
            break
    return False


def _forms(secret: str) -> Iterator[str]:
    """The letters and digits of a secret, of its long parts, and of its encodings in base 16, 32 and 64."""
    whole = _spelled(secret)
    if len(whole) >= _SHORTEST_SPELLED:
        yield whole
    yield from (part.casefold() for part in re.findall(r"[^\W_]+", secret) if len(part) >= _SHORTEST_PART)
    if len(secret.encode(errors="surrogatepass")) < _SHORTEST_ENCODED:
        return
    for coding in ("utf-8", "utf-16-le", "utf-16-be"):
        data = secret.encode(coding, errors="surrogatepass")
        yield data.hex()
        for encode, bits, block in ((b64encode, 6, 3), (b32encode, 5, 5)):
            for offset in range(block):  # the encoding depends on the bytes before
                encoded = encode(bytes(offset) + data).decode()
                yield _spelled(encoded[-(-offset * 8 // bits) : (offset + len(data)) * 8 // bits])
                if encode is b64encode and not offset:  # encoded twice, as a header in a header
                    yield _spelled(b64encode(encoded.encode()).decode()[: len(encoded.rstrip("=")) * 8 // 6])


def _spelled(text: str) -> str:
    return "".join(filter(str.isalnum, text.casefold()))


def _character(found: re.Match[str]) -> str:
    """What a backslash and the characters after it stand for. White space does not matter."""
    code = found[1] or found[2]
    if code is None:
        return " " if found[3] in "nrtbf" else found[3]
    return chr(int(code, 16)) if int(code, 16) <= sys.maxunicode else " "


@dataclass(frozen=True, slots=True)
class _ServiceError:
    """The error as the service reported it."""

    message: str = ""
    code: str | None = None
    tokens: int | None = None
    limit: int | None = None


def _parse_error(body: Json) -> _ServiceError:
    match body:
        case {"error": dict(inner)}:
            return _parse_error(inner)
        case {"error": str(message)}:
            return _ServiceError(message)
        case [dict(first), *_]:  # Google's services send lists
            return _parse_error(first)
        case dict(error):
            code = error.get("code") if isinstance(error.get("code"), str) else None
            kind = next((name for each in ("type", "status") if isinstance(name := error.get(each), str)), None)
            tokens, limit = error.get("n_prompt_tokens"), error.get("n_ctx")
            return _ServiceError(
                _message(error),
                str(code or kind) if code or kind else None,
                tokens if isinstance(tokens, int) else None,
                limit if isinstance(limit, int) else None,
            )
        case str(text) if "<" not in text:  # not a page of a proxy
            return _ServiceError(text)
        case _:
            return _ServiceError()


def _message(error: JsonObject) -> str:
    match error:
        case {"message": str(text)} | {"detail": str(text)}:
            return text
        case {"detail": [{"msg": str(text)}, *_]}:
            return text
        case _:
            return ""


def _status_in(failure: Json) -> int | None:
    match failure:
        case {"code": int(status)} | {"status": int(status)} if status in range(400, 600):
            return status
        case _:
            return None


def _refused(raised: Any, context: RequestContext) -> ModelError:
    after = retry_after(raised.response.headers)
    reported = _parse_error(raised.body)
    return _classified(raised.status_code, reported, context, _retry_delay(raised.body) if after is None else after)


def _retry_delay(body: Json) -> float | None:
    """The seconds that Gemini asks to wait, which it says in the error and not in a header."""
    match body:
        case {"error": {"details": list(details)}}:
            for detail in details:
                match detail:
                    case {"retryDelay": str(delay)} if _SECONDS.fullmatch(delay):
                        return float(delay.removesuffix("s"))
                    case _:
                        pass
        case [dict(first), *_]:  # Google's services send lists
            return _retry_delay(first)
    return None


_CONTINUED = {
    "previous_response_id": "the response",
    "previous_interaction_id": "the interaction",
    "conversation": "the conversation",
}
"""Fields of requests that name what they continue, and the words for it."""


def _lost_service_thread(status: int | None, reported: _ServiceError, context: RequestContext) -> str | None:
    """What the request continues, if the service reports that it does not have it; None for any other error."""
    said = reported.message
    for name, what in _CONTINUED.items():
        id_ = context.content.get(name)
        if not isinstance(id_, str):
            continue
        if reported.code == "previous_response_not_found" or (id_ in said and _LOST.search(said)):
            return what
        # Gemini may not repeat the id. Of what the request names, only the model can also be unknown.
        if name == "previous_interaction_id" and status == HTTPStatus.NOT_FOUND and context.model not in said:
            return what
    return None


def _classified(
    status: int | None, reported: _ServiceError, context: RequestContext, after: float | None
) -> ModelError:
    code = _clean_code(reported.code, context)
    at = f" with HTTP {status}" if status is not None else ""
    quote = _quote(reported, context)
    if status not in {401, 403, 404, 429} and (reported.code in _OVERFLOW_CODES or _OVERFLOW.search(reported.message)):
        tokens = reported.tokens if reported.tokens is not None else _first(_TOKENS, reported.message)
        limit = reported.limit if reported.limit is not None else _first(_LIMIT, reported.message)
        sizes = f": {tokens or 'more'} tokens, limit {limit or 'unknown'}" if tokens or limit else ""
        return ContextWindowError(
            f"The request is larger than the context window of {context}{sizes}. Send less of the history, or ask a "
            "model with a larger window.",
            tokens=tokens,
            limit=limit,
            status=status,
            code=code,
        )
    if status in {None, 400, 404} and (lost := _lost_service_thread(status, reported, context)) is not None:
        return ServiceThreadExpiredError(
            f"{context} does not have {lost}, which the thread continues{quote}. Give "
            "Agent(on_expired_service_thread='reseed') to send it the record again, or run on "
            "thread.fork(kind='local'), whose history Clew holds.",
            status=status,
            code=code,
        )
    if status in {401, 403}:
        return ModelAccessError(
            f"{context} refused access{at}{quote}. Check that the key ({context.key} or api_key=) is right and may "
            "use this model.",
            status=status,
            code=code,
        )
    if reported.code in {"insufficient_quota", "billing_hard_limit_reached"}:
        return ModelOverloadedError(
            f"{context} refused{at}{quote}. The account has no quota left: check its billing.", status=status, code=code
        )
    if status in {429, 529} or reported.code in {"rate_limit_exceeded", "overloaded_error", "server_is_overloaded"}:
        wait = "later" if after is None else f"in {after:g} s"
        return ModelOverloadedError(
            f"{context} accepts no more requests for now: it refused{at}{quote}. Try again {wait}.",
            status=status,
            code=code,
            retryable=True,
            retry_after=after,
        )
    if status in {408, 409, 424, *range(500, 600)} or reported.code in _SERVER_ERROR_CODES:
        return ModelUnavailableError(
            f"{context} failed{at}{quote}. Try again later.",
            status=status,
            code=code,
            retryable=True,
            retry_after=after,
        )
    advice = "Change the request."
    if status == HTTPStatus.NOT_FOUND:
        advice = "Check that the names, ids and base_url are right."
    return ModelRequestError(f"{context} refused the request{at}{quote}. {advice}", status=status, code=code)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds that a service asks to wait: RFC 9110 10.2.3, or in milliseconds, as OpenAI also sends it."""
    try:
        return max(0.0, float(headers["retry-after-ms"]) / 1000)
    except (KeyError, ValueError):
        pass
    value = headers.get("retry-after", "")
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return None
    return max(0.0, seconds) if seconds < float("inf") else None


def _quote(reported: _ServiceError, context: RequestContext) -> str:
    """The service's code and message, without secrets and content of the request."""
    code = _clean_code(reported.code, context)
    words = " ".join(_redact(reported.message, context).split()).rstrip(".")
    shown = words if len(words) <= _SHOWN else words[: _SHOWN - 1] + "…"
    return (f" ({code})" if code else "") + (f": {shown}" if shown else "")


def _clean_code(code: str | None, context: RequestContext) -> str | None:
    return None if code is None else _redact(code, context)[:64]


def _redact(text: str, context: RequestContext) -> str:
    text = text[:_EXAMINED]
    for secret in context.secrets:
        for written in _written(secret):
            text = written.sub("[hidden]", text)
    if _gives_away(text, context.secrets):
        return "[hidden]"
    text = _KEY.sub("[hidden]", text[: 4 * _SHOWN])
    texts = list(_texts(context.content))
    for quoted in sorted((each for each in texts if _WORD <= len(each) < _QUOTED), key=len, reverse=True):
        text = text.replace(quoted, "[…]")
    request = "\n".join(texts)
    start, shown = 0, []
    while start < len(text):
        length = _quoted_length(text, start, request)
        shown.append("[…]" if length else text[start])
        start += length or 1
    return "".join(shown)


def _quoted_length(text: str, start: int, request: str) -> int:
    """How many characters from ``start`` also occur in the request; 0 if they are too few to be a quotation."""
    length = _QUOTED
    if len(text) - start < length or text[start : start + length] not in request:
        return 0
    while start + length < len(text) and text[start : start + length + 1] in request:
        length += 1
    return length


def _texts(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, dict):
        for name, each in value.items():
            if name not in _NO_CONTENT:
                yield from _texts(each)


def _first(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    if match is None:
        return None
    return int(next(filter(None, match.groups())).replace(",", ""))


def _base_url_advice(context: RequestContext) -> str:
    return f"Check that base_url is the API of a model service: the request was sent to {context.host}."
