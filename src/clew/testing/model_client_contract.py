"""The contract of model clients, as a test: it asks a client against a scripted service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any, NamedTuple, NoReturn, get_args

from clew.domain.credential_detection import check_no_credentials
from clew.domain.errors import ClewError
from clew.domain.json_values import Json, JsonObject, check_json
from clew.domain.messages import FunctionCall, Media, Message
from clew.domain.models.client import (
    Answer,
    CallDelta,
    ModelClient,
    ModelRequest,
    Question,
    ReasoningDelta,
    ResponseFormat,
    ServiceBound,
    TextDelta,
    ThreadKind,
    ToolSchema,
    Update,
    WireFormat,
)
from clew.domain.runs.errors import ModelClientContractError, ModelError, ModelRequestError, ModelStreamError
from clew.domain.runs.request_construction import checked_options, request_bytes, stream_request
from clew.domain.streams import check_id
from clew.testing.model_service import ModelService, ReplyKind, ScriptedReply

_PATIENCE = 30.0
"""Seconds after which a request that does not end is a broken rule."""

_INTERVAL = 0.005
"""Seconds between two looks at the service."""

_RETRY_AFTER = 7
_TOO_MANY = 429
_OF_THE_SERVER = 500
_DIGEST = 64

_SCHEMA: JsonObject = {"type": "object", "properties": {"order": {"type": "integer"}}, "required": ["order"]}
_CALL = FunctionCall(call_id="call_1", name="look_up", arguments='{"order": 7}')
_MESSAGES = (
    Message.system("Be kind."),
    Message.user("Was it günstig? 🧶", author="Zoë"),
    Message.assistant("Let me look.", calls=[_CALL]),
    Message.tool("call_1", {"found": ["a", None, 1.5]}, name="look_up"),
    Message.assistant("Here it is."),
    Message(role="user", contents=(Media(uri="data:image/png;base64,aGk=", media_type="image/png"),)),
    Message.system("Be brief, too."),
    Message.user("And now?"),
)


async def check_model_client(service: ModelService) -> None:
    """Ask a model client. Raises ModelClientContractError, which names the broken rule.

    ``service`` makes clients and scripts the replies. :class:`HttpModelService` is one for clients that speak HTTP; for
    another transport, write a :class:`ModelService`. It has one answer: for several (a text, calls, reasoning), check
    the client against a service for each.

    The check covers: the names, options and kinds of threads of the client; its format, which must be a pure function
    of the question; the bytes that the service receives; an answer, whole and streamed; an answer that ends early after
    each of its pieces, is cut, or cannot be read; errors of HTTP; that no error keeps another one; a caller who closes
    the answer or is cancelled; and several requests at once. Nothing may be sent twice: a run retries, and records each
    attempt.
    """
    client = service.client()
    contract = _Contract(service, client)
    _check_fields(contract, service.client())
    _check_wire(contract)
    for check in (_check_answers, _check_faults, _check_statuses, _check_closing, _check_at_once):
        await check(contract)
    await _check_answers(contract)  # no fault is remembered
    if (close := getattr(client, "aclose", None)) is not None:
        await close()


class _Asked(NamedTuple):
    """The updates of a request, and the error at their end."""

    updates: list[Update]
    error: ModelError | None


class _Contract:
    """The service, the client and its requests."""

    def __init__(self, service: ModelService, client: ModelClient) -> None:
        self.service = service
        self.client = client

    def broken(self, rule: str, found: str) -> NoReturn:
        raise ModelClientContractError(repr(self.client), rule, found)

    def question(self, messages: Sequence[Message] = (Message.user("Hello"),), **more: Any) -> Question:
        client = self.client
        options = client.options
        if client.wire.options_on is not None:
            options = client.wire.options_on(client.thread_kinds[0], options)
        provider = getattr(client, "provider", None)
        return Question(client.model, tuple(messages), options=options, provider=provider, **more)

    def request(self, *, streams: bool) -> ModelRequest:
        """The request that a run would send."""
        body = self.client.wire.make_body(self.question())
        content = request_bytes(body)
        if streams:
            return stream_request(self.client.wire, body, content, self.client.model)
        return ModelRequest(body, content, streams=False, model=self.client.model)

    async def ask(self, reply: ReplyKind, *, streams: bool, what: str, **about: int) -> _Asked:
        """Send one request, which gets this reply."""
        before = len(self.service.received())
        self.service.add_reply(ScriptedReply(kind=reply, streams=streams, **about))
        request = self.request(streams=streams)
        updates: list[Update] = []
        error: ModelError | None = None
        try:
            async with asyncio.timeout(_PATIENCE):
                async for update in self.client.ask(request):
                    updates.append(update)  # noqa: PERF401  # keeps the updates before an error
        except ModelError as raised:
            error = raised
        except TimeoutError:
            self.broken("each request ends", f"{what}, it did not end in {_PATIENCE:g} s.")
        except Exception as raised:  # noqa: BLE001  # any other error breaks the rule
            self.broken("it raises only ModelError", f"{what}, it raises {type(raised).__name__}: {raised}")
        sent = list(self.service.received())[before:]
        if sent != [request.content]:
            found = f"the service received {len(sent)} requests." if len(sent) != 1 else _difference(sent[0], request)
            self.broken("it sends exactly request.content, once", f"{what}, {found}")
        return _Asked(updates, error)


def _check_fields(contract: _Contract, other: ModelClient) -> None:
    client = contract.client
    for name, value in (("kind", client.kind), ("wire.name", client.wire.name)):
        try:
            check_id(value, name)
        except ClewError as error:
            contract.broken("its kind and the name of its format are names of 1 to 200 characters", str(error))
    if (client.kind, client.wire.name) != (other.kind, other.wire.name):
        contract.broken(
            "its kind and the name of its format are always the same",
            f"they are {(client.kind, client.wire.name)!r}, and {(other.kind, other.wire.name)!r} for another client.",
        )
    if not isinstance(client.model, str) or not client.model:
        contract.broken("it has a model", f"model is {client.model!r}.")
    kinds = client.thread_kinds
    known = set(get_args(ThreadKind))
    if not isinstance(kinds, tuple) or not kinds or not known.issuperset(kinds) or len(set(kinds)) != len(kinds):
        contract.broken("thread_kinds is a tuple of 'local' and 'remote'", f"it is {kinds!r}.")
    try:
        check_no_credentials(checked_options(client.options), "options")
    except ClewError as error:
        contract.broken("options are JSON without credentials, because they are recorded", str(error))


def _check_wire(contract: _Contract) -> None:
    wire = contract.client.wire
    tools = (ToolSchema(name="look_up", description="Look up an order.", parameters=_SCHEMA),)
    form = ResponseFormat(name="order", json_schema=_SCHEMA)
    for question in (
        contract.question(),
        contract.question(_MESSAGES, instructions="You track parcels.", tools=tools),
        contract.question(_MESSAGES[1:2], response_format=form),
    ):
        _check_body(contract, wire, question)
    for streams in (False, True):
        path: Any = wire.make_path(contract.client.model, streams)
        if not isinstance(path, str) or path != wire.make_path(contract.client.model, streams):
            contract.broken("make_path gives the same text each time", f"it gives {path!r}.")


def _check_body(contract: _Contract, wire: WireFormat, question: Question) -> None:
    pure = "make_body gives the same bytes for the same question, and changes nothing"
    again = deepcopy(question)
    try:
        body = wire.make_body(question)
        check_json(body, "body")
    except ClewError as error:
        contract.broken("make_body gives a JSON object", str(error))
    content = request_bytes(body)
    if request_bytes(wire.make_body(question)) != content or request_bytes(wire.make_body(again)) != content:
        contract.broken(pure, "it gave others.")
    if question != again:
        contract.broken(pure, "it changed the question.")
    streamed = wire.as_stream(body)
    if request_bytes(body) != content:
        contract.broken("as_stream returns another body", "it changed the one that it got.")
    if changed := [name for name, value in body.items() if not _is_in(value, streamed.get(name))]:
        contract.broken("as_stream only adds fields", f"it changed {', '.join(sorted(changed))}.")
    if wire.prefix_of is not None:
        prefix: Any = wire.prefix_of(body)
        if not isinstance(prefix, str) or len(prefix) != _DIGEST or prefix != wire.prefix_of(deepcopy(body)):
            contract.broken("prefix_of gives the same SHA-256 in hex each time", f"it gives {prefix!r}.")
    if wire.left_out is not None:
        numbers = wire.left_out(question, body)
        if numbers != wire.left_out(again, body) or not set(range(len(question.messages))).issuperset(numbers):
            contract.broken("left_out gives numbers of messages", f"it gives {numbers!r}.")


def _is_in(before: Json, after: Json) -> bool:
    """Whether a value is unchanged, or an object that has more fields now."""
    if isinstance(before, dict) and isinstance(after, dict):
        return all(name in after and after[name] == value for name, value in before.items())
    return before == after


async def _check_answers(contract: _Contract) -> None:
    whole = _answer(contract, await contract.ask("answer", streams=False, what="For an answer"), "For an answer")
    asked = await contract.ask("answer", streams=True, what="For a stream")
    streamed = _answer(contract, asked, "For a stream")
    for name in ("message", "finish_reason", "usage"):
        one, other = getattr(whole, name), getattr(streamed, name)
        if one != other:
            contract.broken("a streamed answer is the same as another", f"its {name} is {other!r} instead of {one!r}.")
    texts = "".join(update.text for update in asked.updates if isinstance(update, TextDelta))
    if texts != streamed.message.text:
        contract.broken(
            "the pieces of a stream add up to the answer", f"the texts are {texts!r} of {streamed.message.text!r}."
        )
    for number, call in enumerate(streamed.message.calls):
        pieces = [each for each in asked.updates if isinstance(each, CallDelta) and each.index == number]
        made = FunctionCall(
            call_id=pieces[-1].call_id if pieces else "",
            name=pieces[-1].name if pieces else "",
            arguments="".join(each.arguments for each in pieces),
        )
        if made != call:
            contract.broken("the pieces of a stream add up to the answer", f"call {number} is {made!r} of {call!r}.")


def _answer(contract: _Contract, asked: _Asked, what: str) -> Answer:
    updates, error = asked
    if error is not None:
        contract.broken("a complete answer is an Answer", f"{what}, it raises {type(error).__name__}: {error}")
    if strange := [each for each in updates if not isinstance(each, get_args(Update))]:
        contract.broken("it yields only updates", f"{what}, it yields {strange[0]!r}.")
    if [isinstance(each, Answer) for each in updates] != [False] * (len(updates) - 1) + [True]:
        contract.broken(
            "the last update is the only Answer", f"{what}, it yields {[type(each).__name__ for each in updates]}."
        )
    answer = updates[-1]
    assert isinstance(answer, Answer)  # noqa: S101  # checked above
    if answer.message.role != "assistant":
        contract.broken("the message of an answer is the assistant's", f"its role is {answer.message.role!r}.")
    return answer


async def _check_faults(contract: _Contract) -> None:
    """An answer that is not complete is an error, after whatever piece it ends."""
    faults: tuple[ReplyKind, ...] = ("early-end", "cut", "garbage")
    for fault in faults:
        _failed(contract, await contract.ask(fault, streams=False, what=f"For a whole answer ({fault})"), fault)
        for after in range(contract.service.pieces):
            what = f"For {after} of {contract.service.pieces} pieces ({fault})"
            _failed(contract, await contract.ask(fault, streams=True, what=what, after=after), what)


def _failed(contract: _Contract, asked: _Asked, what: str) -> ModelError:
    if asked.error is None:
        contract.broken("an answer that is not complete is a ModelError", f"{what}, it yields {asked.updates[-1:]}.")
    _check_origin(contract, asked.error, what)
    if any(isinstance(each, Answer) for each in asked.updates):
        contract.broken("an Answer is yielded only if it is complete", f"{what}, it yields one, and raises.")
    begun = any(isinstance(each, TextDelta | ReasoningDelta | CallDelta) for each in asked.updates)
    if begun and not isinstance(asked.error, ModelStreamError):
        contract.broken(
            "an answer that breaks off is a ModelStreamError", f"{what}, it raises {type(asked.error).__name__}."
        )
    reads_again = contract.client.wire.has_tasks and any(
        isinstance(each, ServiceBound) and each.task is not None for each in asked.updates
    )
    if begun and asked.error.retryable and not reads_again:
        contract.broken(
            "an answer that breaks off is retryable only if it can be read again, because a part of it may have been "
            "shown",
            f"{what}, retryable is True.",
        )
    return asked.error


def _check_origin(contract: _Contract, error: ModelError, what: str) -> None:
    """A traceback shows the cause of an error, and the error that was being handled unless it is suppressed."""
    origin = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if origin is not None:
        contract.broken(
            "its errors keep no other error, which may hold the key and the request (raise … from None)",
            f"{what}, {type(error).__name__} keeps a {type(origin).__name__}.",
        )


async def _check_statuses(contract: _Contract) -> None:
    for status in contract.service.statuses:
        later = status == _TOO_MANY or status >= _OF_THE_SERVER
        for streams in (False, True):
            what = f"For HTTP {status}"
            about = {"status": status, "retry_after": _RETRY_AFTER} if status == _TOO_MANY else {"status": status}
            error = _failed(contract, await contract.ask("status", streams=streams, what=what, **about), what)
            if error.retryable is not later:
                contract.broken(
                    "HTTP 429 and 5xx are retryable, and no other error is", f"{what}, retryable is {error.retryable}."
                )
            if not later and not isinstance(error, ModelRequestError):
                contract.broken(
                    "what a service refuses is a ModelRequestError", f"{what}, it raises {type(error).__name__}."
                )
            if error.status != status or ("retry_after" in about and error.retry_after != _RETRY_AFTER):
                contract.broken(
                    "an error has the status, and the seconds to wait",
                    f"{what}, they are {error.status} and {error.retry_after}.",
                )


async def _check_closing(contract: _Contract) -> None:
    """Who leaves an answer closes its connection."""
    rule = "closing the iterator closes the connection"
    updates = await _begun(contract)
    await updates.aclose()
    await _left(contract, rule)
    contract.service.add_reply(ScriptedReply(kind="stall", streams=False))
    arrived = len(contract.service.received())
    task = asyncio.ensure_future(_collected(contract.client.ask(contract.request(streams=False))))
    await _within(contract, rule, _until(lambda: len(contract.service.received()) > arrived or task.done()))
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await _left(contract, "cancelling a request closes its connection")


async def _check_at_once(contract: _Contract) -> None:
    """A second request is answered while the answer to the first one stalls; and several at once."""
    rule = "many requests may run at once"
    updates = await _begun(contract)
    _answer(contract, await contract.ask("answer", streams=True, what="During another answer"), "During another answer")
    await updates.aclose()
    await _left(contract, rule)
    many = 4
    before = len(contract.service.received())
    request = contract.request(streams=True)
    for _ in range(many):
        contract.service.add_reply(ScriptedReply(kind="answer", streams=True))
    asked = (_collected(contract.client.ask(request)) for _ in range(many))
    answers = await _within(contract, rule, asyncio.gather(*asked))
    messages = [_answer(contract, _Asked(updates, None), "At once").message for updates in answers]
    if any(message != messages[0] for message in messages):
        contract.broken(rule, "the answers differ.")
    if list(contract.service.received())[before:] != [request.content] * many:
        contract.broken(rule, "the service received others.")


async def _begun(contract: _Contract) -> Any:
    """The iterator of an answer that stalls just before its end. A part of it has arrived."""
    contract.service.add_reply(ScriptedReply(kind="stall", streams=True, after=contract.service.pieces - 1))
    updates: Any = contract.client.ask(contract.request(streams=True))
    await _within(contract, "a stream yields the pieces of an answer as they arrive", anext(updates))
    return updates


async def _left(contract: _Contract, rule: str) -> None:
    await _within(contract, rule, _until(contract.service.disconnected))


async def _within(contract: _Contract, rule: str, work: Any) -> Any:
    try:
        async with asyncio.timeout(_PATIENCE):
            return await work
    except ModelError as error:
        contract.broken(rule, f"it raises {type(error).__name__}: {error}")
    except TimeoutError:
        contract.broken(rule, f"nothing happened in {_PATIENCE:g} s.")


async def _until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110  # the service may run in another thread or process
        await asyncio.sleep(_INTERVAL)


async def _collected(updates: AsyncIterator[Update]) -> list[Update]:
    return [update async for update in updates]


def _difference(sent: bytes, request: ModelRequest) -> str:
    return f"the service received {len(sent)} bytes that are not the {len(request.content)} of the request."
