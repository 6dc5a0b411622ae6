"""Whatever the ``openai`` package, its HTTP client or a service's reply raises, as Clew's own errors.

No message says a key, an organisation, a header or something of the request, not even where the service quotes it; and
no error keeps the one that it was made from, which holds the request with its key.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

from clew.domain.json_values import Json, JsonObject
from clew.domain.runs.errors import (
    ContextWindowError,
    ModelAccessError,
    ModelError,
    ModelOverloadedError,
    ModelRequestError,
    ModelStreamError,
    ModelUnavailableError,
)

_SHOWN = 300
"""Characters of a service's own message that are shown."""
_QUOTED = 24
"""Characters in a row that a message and a request share by quoting, hardly by chance."""
_WORD = 6
"""Characters of a whole text of the request that is shorter than that, and yet more than a common word."""
_NO_CONTENT = frozenset({"model", "role", "type", "name", "id", "call_id", "tool_call_id"})
_KEY = re.compile(r"\b(?:sk|pk|rk|key|sess|gsk|xai)[-_][\w*.\-]{6,}|Bearer \S+|\w{2,}\*{3,}\w*")
_SECRET_HEADERS = re.compile(r"auth|key|token|secret|cookie|organization|project", re.IGNORECASE)

_OVERFLOW_CODES = frozenset(
    {"context_length_exceeded", "exceed_context_size_error", "model_max_prompt_tokens_exceeded"}
)
_OVERFLOW = re.compile(
    r"(?:maximum|max) (?:context|model|prompt) length|exceeds? the (?:available )?context|context (?:length|size|"
    r"window) (?:exceeded|of only)|prompt is too long|input token count .{0,30}exceeds|too large for model with|"
    r"tokens.{0,40} must be <=|context the overflows",
    re.IGNORECASE,
)
_NUMBER = r"\(?(\d[\d,]*)"
_LIMIT = re.compile(
    rf"(?:length (?:is|of)(?: only)?|context (?:size|window|length)(?: of(?: only)?| is)?|tokens allowed|must be <=|>) "
    rf"{_NUMBER}|with (\d[\d,]*) maximum context",
    re.IGNORECASE,
)
_TOKENS = re.compile(
    rf"(?:resulted in|requested|request has|request contains|request|too long:|token count|contains|prompt|given:|"
    rf"keep the first) {_NUMBER} (?:input )?(?:tokens|`inputs`)|token count {_NUMBER}|\(length (\d[\d,]*)\)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Asked:
    """What an error tells of a request, and what it must not tell."""

    model: str
    host: str
    secrets: tuple[str, ...] = field(default=(), repr=False)
    content: JsonObject = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return f"{self.model!r} at {self.host}"


def model_error(raised: Exception, asked: Asked, *, begun: bool) -> ModelError:
    """The error for what was raised; ``begun`` says whether some of the answer had come.

    What happens before is worth another try. An answer that breaks off is not: it has been shown already.
    """
    if isinstance(raised, ModelError):
        return raised
    import httpx2
    import openai

    kind = type(raised.__cause__ or raised).__name__
    if isinstance(raised, openai.APIStatusError):
        return _refused(raised, asked)
    if isinstance(raised, ValueError) and not isinstance(raised, openai.OpenAIError):
        return ModelStreamError(f"{asked} answered with something that is no JSON. {_no_answer(asked)}")
    if isinstance(raised, openai.APITimeoutError | httpx2.TimeoutException):
        found, advice = "sent nothing for as long as may be waited", "Try again, or give the client a longer timeout."
    elif isinstance(raised, httpx2.UnsupportedProtocol | httpx2.InvalidURL) or kind in {
        "UnsupportedProtocol",
        "InvalidURL",
    }:
        return ModelUnavailableError(f"{asked}: that is no address. Give a base_url that begins with https://.")
    elif isinstance(raised, openai.APIConnectionError | httpx2.RequestError | OSError):
        found, advice = f"could not be reached ({kind})", "See that base_url is right and the service runs."
        if begun:
            found, advice = f"broke off in the middle of its answer ({kind})", "Run again."
    elif isinstance(raised, openai.OpenAIError):
        return ModelAccessError(
            f"The request to {asked} could not be given its credentials ({kind}). Set OPENAI_API_KEY or give api_key=."
        )
    else:
        found, advice = f"could not be asked: the client failed ({kind})", "See what its debug log says."
        return ModelError(f"{asked} {found}. {advice}")
    if begun:
        return ModelStreamError(f"{asked} {found}. {advice}")
    return ModelUnavailableError(f"{asked} {found}. {advice}", retryable=True)


def unfinished(asked: Asked) -> ModelStreamError:
    """The error for an answer whose stream ended well, but before it was complete."""
    return ModelStreamError(f"{asked} ended its answer before it was complete. Run again.")


def no_answer(asked: Asked) -> ModelStreamError:
    """The error for a reply that is none of a model."""
    return ModelStreamError(f"{asked} replied, but not with an answer. {_no_answer(asked)}")


def service_error(failure: Json, asked: Asked, *, begun: bool) -> ModelError:
    """The error for one that the service sent in place of an answer, or in the middle of one."""
    told = _told(failure)
    found = _classified(_status_in(failure), told, asked, None)
    if begun and not isinstance(found, ContextWindowError):
        said = _said(told, asked)
        return ModelStreamError(
            f"{asked} failed in the middle of its answer{said}. Run again.", status=found.status, code=found.code
        )
    return found


def secrets_of(client: Any, raised: BaseException | None = None) -> tuple[str, ...]:
    """Every secret that a client or the request of its error holds, so that none is ever said."""
    found = {
        getattr(client, name, None)
        for name in ("api_key", "admin_api_key", "organization", "project", "webhook_secret", "_azure_ad_token")
    }
    request = getattr(raised, "request", None)
    headers = getattr(request, "headers", None)
    if headers is not None:
        found |= {
            value.removeprefix("Bearer ").removeprefix("Basic ")
            for name, value in headers.items()
            if _SECRET_HEADERS.search(name)
        }
    url = getattr(client, "base_url", None)
    found |= {getattr(url, "username", None), getattr(url, "password", None)}
    return tuple(sorted((each for each in found if isinstance(each, str) and each), key=len, reverse=True))


@dataclass(frozen=True, slots=True)
class _Told:
    """What a service says of its error."""

    message: str = ""
    code: str | None = None
    tokens: int | None = None
    limit: int | None = None


def _told(body: Json) -> _Told:
    match body:
        case {"error": dict(inner)}:
            return _told(inner)
        case {"error": str(message)}:
            return _Told(message)
        case dict(error):
            code = error.get("code") if isinstance(error.get("code"), str) else None
            kind = error.get("type") if isinstance(error.get("type"), str) else None
            tokens, limit = error.get("n_prompt_tokens"), error.get("n_ctx")
            return _Told(
                _message(error),
                str(code or kind) if code or kind else None,
                tokens if isinstance(tokens, int) else None,
                limit if isinstance(limit, int) else None,
            )
        case str(text) if "<" not in text:  # not a page of a proxy
            return _Told(text)
        case _:
            return _Told()


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
        case {"code": int(status)} | {"status": int(status)} if 400 <= status < 600:  # noqa: PLR2004  # errors of HTTP
            return status
        case _:
            return None


def _refused(raised: Any, asked: Asked) -> ModelError:
    return _classified(raised.status_code, _told(raised.body), asked, retry_after(raised.response.headers))


def _classified(status: int | None, told: _Told, asked: Asked, after: float | None) -> ModelError:
    code = _clean_code(told.code, asked)
    at = f" with HTTP {status}" if status is not None else ""
    said = _said(told, asked)
    if status not in {401, 403, 404, 429} and (told.code in _OVERFLOW_CODES or _OVERFLOW.search(told.message)):
        tokens = told.tokens if told.tokens is not None else _first(_TOKENS, told.message)
        limit = told.limit if told.limit is not None else _first(_LIMIT, told.message)
        sizes = f": {tokens or 'more'} tokens, and it takes {limit or 'fewer'}" if tokens or limit else ""
        return ContextWindowError(
            f"The request is larger than the context window of {asked}{sizes}. Send less of the history, or ask a "
            "model with a larger window.",
            tokens=tokens,
            limit=limit,
            status=status,
            code=code,
        )
    if status in {401, 403}:
        return ModelAccessError(
            f"{asked} refused access{at}{said}. See that the key (OPENAI_API_KEY or api_key=) is right and may use "
            "this model.",
            status=status,
            code=code,
        )
    if told.code in {"insufficient_quota", "billing_hard_limit_reached"}:
        return ModelOverloadedError(
            f"{asked} refused{at}{said}. The account has no quota left: see to its billing.", status=status, code=code
        )
    if status in {429, 529} or told.code in {"rate_limit_exceeded", "overloaded_error", "server_is_overloaded"}:
        wait = "later" if after is None else f"in {after:g} s"
        return ModelOverloadedError(
            f"{asked} takes no more requests for now: it refused{at}{said}. Try again {wait}.",
            status=status,
            code=code,
            retryable=True,
            retry_after=after,
        )
    if (status is not None and (status >= 500 or status in {408, 409})) or told.code in {  # noqa: PLR2004  # of HTTP
        "server_error",
        "internal_error",
        "vector_store_timeout",
    }:
        return ModelUnavailableError(
            f"{asked} failed{at}{said}. Try again later.", status=status, code=code, retryable=True, retry_after=after
        )
    advice = "See that the names, ids and base_url are right." if status == 404 else "Change the request."  # noqa: PLR2004  # of HTTP
    return ModelRequestError(f"{asked} refused the request{at}{said}. {advice}", status=status, code=code)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds that a service asks to wait: RFC 9110 10.2.3, or in milliseconds as OpenAI also says it."""
    try:
        return max(0.0, float(headers["retry-after-ms"]) / 1000)
    except (KeyError, ValueError):
        pass
    said = headers.get("retry-after", "")
    try:
        seconds = float(said)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(said).timestamp() - time.time()
        except ValueError:
            return None
    return max(0.0, seconds) if seconds < float("inf") else None


def _said(told: _Told, asked: Asked) -> str:
    """The service's own words, without what must not be told."""
    code = _clean_code(told.code, asked)
    words = " ".join(_without(told.message, asked).split()).rstrip(".")
    shown = words if len(words) <= _SHOWN else words[: _SHOWN - 1] + "…"
    return (f" ({code})" if code else "") + (f": {shown}" if shown else "")


def _clean_code(code: str | None, asked: Asked) -> str | None:
    return None if code is None else _without(code, asked)[:64]


def _without(text: str, asked: Asked) -> str:
    text = text[: 4 * _SHOWN]
    for secret in asked.secrets:
        text = text.replace(secret, "[hidden]")
    text = _KEY.sub("[hidden]", text)
    texts = list(_texts(asked.content))
    for quoted in sorted((each for each in texts if _WORD <= len(each) < _QUOTED), key=len, reverse=True):
        text = text.replace(quoted, "[…]")
    request = "\n".join(texts)
    start, kept = 0, []
    while start < len(text):
        length = _shared(text, start, request)
        kept.append("[…]" if length else text[start])
        start += length or 1
    return "".join(kept)


def _shared(text: str, start: int, request: str) -> int:
    """How many characters from ``start`` on stand in the request too; 0 if they may do so by chance."""
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
    found = pattern.search(text)
    if found is None:
        return None
    return int(next(filter(None, found.groups())).replace(",", ""))


def _no_answer(asked: Asked) -> str:
    return f"See that base_url names the API of a model service: it was sent to {asked.host}."
