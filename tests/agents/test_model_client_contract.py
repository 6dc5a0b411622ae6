"""The contract of model clients: each of Clew's clients keeps it, and it names the rule that another breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest
from tests.agents.parrot_client import PARROT, PIECES, WHOLE, ParrotClient, parrot_body
from tests.agents.scripted_wires import WIRES, Calls, ScriptedWire, Spoken

from clew.domain.messages import Message
from clew.domain.models.client import Answer, ModelClient, ModelRequest, TextDelta, Update
from clew.domain.runs.errors import ModelError, ModelStreamError
from clew.testing import (
    HttpModelService,
    ModelClientContractError,
    ModelService,
    ScriptedChatClient,
    ScriptedReply,
    check_model_client,
    fault,
    model_client_contract,
)

pytestmark = pytest.mark.anyio

ANSWERS: dict[str, Spoken] = {
    "text": "Hello there, and welcome. 🧶",
    "calls": Calls((("call_1", "look_up", '{"order": 7}'), ("call_2", "look_up", '{"order": 8}')), "Let me see."),
}
_OPTIONAL = {"chat": 2, "interactions": 1}
"""Pieces after the last one that an answer needs: the end marker and, in Chat Completions, the usage."""


def over_http(kind: str, wire: ScriptedWire, reply: Spoken) -> HttpModelService:
    return HttpModelService(
        lambda address: wire.client(f"{address}/v1", 60),
        whole=wire.whole(reply),
        pieces=[*wire.pieces(reply), *([b"data: [DONE]\n\n"] if wire.done else [])],
        optional=_OPTIONAL.get(kind, 0),
        garbage=wire.damaged,
        media_type=wire.media_type,
    )


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("kind", WIRES)
async def test_a_client_over_http_keeps_the_contract(kind: str, answer: str) -> None:
    with over_http(kind, WIRES[kind], ANSWERS[answer]) as service:
        await check_model_client(service)


class Recording(ScriptedChatClient):
    """A scripted client with what a service does besides: it knows what arrived, and whether the caller left."""

    def __init__(self, service: ScriptedService) -> None:
        super().__init__(lambda _: service.lines.pop(0))
        self._service = service

    async def ask(self, request: ModelRequest) -> AsyncIterator[Update]:
        self._service.arrived.append(request.content)
        try:
            async with aclosing(super().ask(request)) as updates:  # type: ignore[type-var]  # it is a generator
                async for update in updates:
                    yield update
        finally:
            self._service.left.set()


class ScriptedService(ModelService):
    """A service without HTTP: another transport than the one that Clew has a server for."""

    pieces = 3
    statuses = (429, 500)

    def __init__(self) -> None:
        self.lines: list[Any] = []
        self.arrived: list[bytes] = []
        self.left = asyncio.Event()

    def client(self) -> ModelClient:
        return Recording(self)

    def add_reply(self, reply: ScriptedReply) -> None:
        self.left.clear()
        words = "".join(["One ", "two ", "three."][: reply.after])
        match reply.kind:
            case "answer":
                self.lines.append("One two three.")
            case "status" if reply.status == 429:
                self.lines.append(fault("overloaded", retry_after=reply.retry_after))
            case "status":
                self.lines.append(fault("server-error"))
            case "garbage":
                self.lines.append(fault("malformed", after=words))
            case kind:
                self.lines.append(fault(kind, after=words))

    def received(self) -> Sequence[bytes]:
        return self.arrived

    def disconnected(self) -> bool:
        return self.left.is_set()


async def test_the_scripted_client_keeps_the_contract() -> None:
    await check_model_client(ScriptedService())


class Retries(ParrotClient):
    async def ask(self, request: ModelRequest) -> AsyncGenerator[Update]:
        try:
            async for update in super().ask(request):
                yield update
        except ModelError as error:
            if not error.retryable:
                raise
            async for update in super().ask(request):
                yield update


class Alters(ParrotClient):
    def ask(self, request: ModelRequest) -> AsyncGenerator[Update]:
        return super().ask(replace(request, content=request.content.replace(b":", b": ")))


class AcceptsEarlyEnds(ParrotClient):
    async def ask(self, request: ModelRequest) -> AsyncGenerator[Update]:
        text = ""
        try:
            async for update in super().ask(request):
                text += update.text if isinstance(update, TextDelta) else ""
                yield update
        except ModelStreamError as error:
            if "asleep" not in str(error) or not text:
                raise
            yield Answer(message=Message.assistant(text))


class Changed(ParrotClient):
    """Changes each update."""

    def changed(self, update: Update, request: ModelRequest) -> list[Any]:
        raise NotImplementedError

    async def ask(self, request: ModelRequest) -> AsyncGenerator[Update]:
        async for update in super().ask(request):
            for each in self.changed(update, request):
                yield each


class StreamsMore(Changed):
    def changed(self, update: Update, request: ModelRequest) -> list[Any]:
        if isinstance(update, Answer) and request.streams:
            return [replace(update, message=update.message.model_copy(update={"author": "Polly"}))]
        return [update]


class AnswersTwice(Changed):
    def changed(self, update: Update, request: ModelRequest) -> list[Any]:
        del request
        return [update, update] if isinstance(update, Answer) else [update]


class LosesPieces(Changed):
    def changed(self, update: Update, request: ModelRequest) -> list[Any]:
        del request
        return [TextDelta("Hello")] if isinstance(update, TextDelta) else [update]


class YieldsTexts(Changed):
    def changed(self, update: Update, request: ModelRequest) -> list[Any]:
        del request
        return [update.text] if isinstance(update, TextDelta) else [update]


class SpeaksAsUser(Changed):
    def changed(self, update: Update, request: ModelRequest) -> list[Any]:
        del request
        if isinstance(update, Answer):
            return [replace(update, message=Message.user("Hello there."))]
        return [update]


class RaisesItsOwn(ParrotClient):
    async def ask(self, request: ModelRequest) -> AsyncGenerator[Update]:
        try:
            async for update in super().ask(request):
                yield update
        except ModelError as error:
            raise LookupError(str(error)) from None


class ForgetsTheStatus(ParrotClient):
    async def ask(self, request: ModelRequest) -> AsyncGenerator[Update]:
        try:
            async for update in super().ask(request):
                yield update
        except ModelError as error:
            error.status = None
            raise


class RetriesAlways(ParrotClient):
    async def ask(self, request: ModelRequest) -> AsyncGenerator[Update]:
        try:
            async for update in super().ask(request):
                yield update
        except ModelError as error:
            error.retryable = error.status is not None or error.retryable
            raise


class RetriesWhatBreaksOff(ParrotClient):
    async def ask(self, request: ModelRequest) -> AsyncGenerator[Update]:
        begun = False
        try:
            async for update in super().ask(request):
                begun = True
                yield update
        except ModelError as error:
            error.retryable = begun or error.retryable
            raise


class CannotReadAgain(RetriesWhatBreaksOff):
    """Its format has tasks, but no task was named."""

    wire = replace(ParrotClient.wire, has_tasks=True)


class KeepsTheCause(ParrotClient):
    async def ask(self, request: ModelRequest) -> AsyncGenerator[Update]:
        try:
            async for update in super().ask(request):
                yield update
        except ModelError as error:
            raise error from ConnectionError("Bearer hunter2")


class KeepsTheContext(ParrotClient):
    async def ask(self, request: ModelRequest) -> AsyncGenerator[Update]:
        failed: ModelError | None = None
        try:
            async for update in super().ask(request):
                yield update
        except ModelError as error:
            failed = error
        if failed is not None:
            try:
                raise ConnectionError("Bearer hunter2")  # noqa: TRY301  # as a package does
            except ConnectionError:
                raise type(failed)(str(failed), status=failed.status, retryable=failed.retryable)  # noqa: B904


class OneAtATime(ParrotClient):
    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.lock = asyncio.Lock()

    async def ask(self, request: ModelRequest) -> AsyncGenerator[Update]:
        async with self.lock:
            async for update in super().ask(request):
                yield update


class StaysConnected(ParrotClient):
    """Reads an answer in a task, which goes on when the caller leaves."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.tasks: list[asyncio.Task[None]] = []

    async def ask(self, request: ModelRequest) -> AsyncGenerator[Update]:
        updates: asyncio.Queue[Any] = asyncio.Queue()
        self.tasks.append(asyncio.create_task(self._read(super().ask(request), updates)))
        while not isinstance(update := await updates.get(), Answer | ModelError):
            yield update
        if isinstance(update, ModelError):
            raise update
        yield update

    async def _read(self, updates: AsyncGenerator[Update], queue: asyncio.Queue[Any]) -> None:
        try:
            async for update in updates:
                queue.put_nowait(update)
        except ModelError as error:
            queue.put_nowait(error)

    async def aclose(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await super().aclose()


class NamesChange(ParrotClient):
    numbers = iter(range(100))

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.kind = f"parrot-{next(self.numbers)}"


def with_field(**fields: Any) -> type[ParrotClient]:
    return type("WithField", (ParrotClient,), {"__init__": _setting(fields)})


def _setting(fields: dict[str, Any]) -> Any:
    def init(self: Any, *args: Any, **more: Any) -> None:
        ParrotClient.__init__(self, *args, **more)
        vars(self).update(fields)

    return init


def with_wire(**functions: Any) -> type[ParrotClient]:
    return with_field(wire=replace(PARROT, **functions))


_NUMBERS = iter(range(1000))


def _counting(question: Any) -> Any:
    return {**parrot_body(question), "number": next(_NUMBERS)}


def _growing(body: Any) -> Any:
    body["stream"] = True
    return body


async def _check(client: type[ParrotClient], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_client_contract, "_PATIENCE", 2.0)
    made: list[ParrotClient] = []

    def make(address: str) -> ParrotClient:
        made.append(client("polly", base_url=address))
        return made[-1]

    try:
        with HttpModelService(make, whole=WHOLE, pieces=PIECES) as service:
            await check_model_client(service)
    finally:
        for each in made:
            await each.aclose()


@pytest.mark.parametrize(
    ("client", "rule"),
    [
        (Retries, r"sends exactly request\.content, once: .*2 requests"),
        (Alters, r"sends exactly request\.content, once: .* bytes that are not"),
        (AcceptsEarlyEnds, "not complete is a ModelError: For 1 of 3"),
        (StreamsMore, "a streamed answer is the same as another: its message"),
        (AnswersTwice, "the last update is the only Answer"),
        (LosesPieces, "the pieces of a stream add up"),
        (YieldsTexts, "it yields only updates: .*'Hello'"),
        (SpeaksAsUser, "the message of an answer is the assistant's"),
        (RaisesItsOwn, "only ModelError: .*LookupError"),
        (ForgetsTheStatus, "an error has the status.*None"),
        (RetriesAlways, "429 and 5xx are retryable.*HTTP 400"),
        (RetriesWhatBreaksOff, "breaks off is retryable only if it can be read again.*: For 1 of 3"),
        (CannotReadAgain, "breaks off is retryable only if it can be read again.*: For 1 of 3"),
        (KeepsTheCause, "errors keep no other error.*keeps a ConnectionError"),
        (KeepsTheContext, "errors keep no other error.*keeps a ConnectionError"),
        (OneAtATime, "each request ends: During another answer"),
        (StaysConnected, "closing the iterator closes the connection"),
        (NamesChange, "always the same"),
        (with_field(kind=""), "its kind and the name.*kind"),
        (with_field(model=""), "it has a model"),
        (with_field(thread_kinds=["local"]), "thread_kinds is a tuple"),
        (with_field(thread_kinds=()), r"thread_kinds is a tuple.*\(\)"),
        (with_field(options={"password": "hunter2"}), "without credentials"),
        (with_field(options={"n": float("nan")}), "options are JSON"),
        (with_wire(name=""), "its kind and the name.*wire.name"),
        (with_wire(make_body=_counting), "the same bytes for the same question"),
        (with_wire(make_body=lambda _: {"said": {1, 2}}), "make_body gives a JSON object"),
        (with_wire(as_stream=_growing), "as_stream returns another body"),
        (with_wire(as_stream=lambda _: {"stream": True}), "as_stream only adds fields: it changed model, said"),
        (with_wire(make_path=lambda *_: f"/{next(_NUMBERS)}"), "make_path gives the same"),
        (with_wire(prefix_of=lambda _: "1"), "prefix_of gives the same SHA-256"),
        (with_wire(left_out=lambda *_: (99,)), "left_out gives numbers"),
    ],
)
async def test_names_the_broken_rule(client: Any, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelClientContractError, match=rule) as raised:
        await _check(client, monkeypatch)
    assert isinstance(raised.value, AssertionError)
