"""The scripted answers and faults of model services, in the bytes of each wire format."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

from tests.servers import strict_bedrock
from tests.servers.raw_server import CUT, STALL, Reply, Step, stream, whole

from clew.domain.json_values import JsonObject
from clew.domain.models.client import ModelClient
from clew.infrastructure.anthropic.client import AnthropicClient
from clew.infrastructure.bedrock.client import BedrockClient
from clew.infrastructure.gemini.client import GeminiClient
from clew.infrastructure.gemini.interactions_client import GeminiInteractionsClient
from clew.infrastructure.openai.clients import OpenAIChatClient, OpenAIResponsesClient

CANARY = "sk-canary0123456789"
"""An API key that must not appear anywhere."""

PARTIAL_ANSWER = "Halfway"
"""The text of an answer that breaks off."""


class Trouble(Enum):
    """Faults of a service."""

    OVERLOADED = "overloaded"
    SERVER_ERROR = "server-error"
    REFUSED = "refused"
    CONTEXT_WINDOW = "context-window"
    CUT = "cut"
    STALL = "stall"
    MALFORMED = "malformed"
    EARLY_END = "early-end"
    DENIED = "denied"
    """The service refuses the key and repeats it in the error."""
    BROKEN_WITH_WORDS = "broken, with words"
    """The service sends an error in the stream and repeats the key."""
    SILENCE = "silence"
    """The service stops sending until the client disconnects."""


@dataclass(frozen=True)
class Calls:
    """Function calls of one answer: id, name and arguments as the model wrote them, with an optional text before."""

    calls: tuple[tuple[str, str, str], ...]
    text: str = ""


ScriptedReply: TypeAlias = str | Calls | Trouble
Spoken: TypeAlias = str | Calls


@dataclass(frozen=True, kw_only=True)
class ScriptedWire:
    """A wire format as a service speaks it.

    ``client`` makes a client from an address and a timeout in seconds. ``whole`` gives a complete answer and
    ``pieces`` the pieces of a streamed one, of which the first ``begun`` end with the text. ``refusal`` gives an
    error's body from its status and words, and ``broken`` the piece that reports an error in a stream. ``codes`` are
    the service's codes of its errors. ``media_type`` is that of a stream, ``done`` says that the end marker is one
    more line after them, and ``damaged`` is a piece that cannot be read. ``writes_text`` says whether arguments can be
    sent that are not JSON: whole, and streamed.
    """

    client: Callable[[str, float], ModelClient]
    whole: Callable[[Spoken], Any]
    pieces: Callable[[Spoken], list[Any]]
    begun: int
    refusal: Callable[[Trouble, int, str], Any]
    broken: Callable[[str], Any]
    codes: Mapping[Trouble, str]
    done: bool = False
    media_type: str = "text/event-stream"
    damaged: bytes = b"data: {" + CANARY.encode() + b"\n\n"
    writes_text: tuple[bool, bool] = field(default=(False, True))

    def reply(self, reply: ScriptedReply, *, streams: bool) -> Reply:
        """The bytes of an answer or of a fault."""
        if not isinstance(reply, Trouble):
            return self._streamed(*self.pieces(reply), done=self.done) if streams else whole(self.whole(reply))
        match reply:
            case Trouble.OVERLOADED:
                headers = {"retry-after-ms": "1"}
                return whole(self.refusal(reply, 429, f"Slow, {CANARY}."), status=429, headers=headers)
            case Trouble.DENIED:
                return whole(self.refusal(reply, 401, f"Incorrect API key provided: {CANARY}."), status=401)
            case Trouble.SERVER_ERROR:
                return whole(self.refusal(reply, 500, f"Broken, {CANARY}."), status=500)
            case Trouble.CONTEXT_WINDOW:
                return whole(self.refusal(reply, 400, ""), status=400)
            case _:
                return self._broken_off(reply) if streams else _broken_whole(reply)

    def _streamed(self, *pieces: Any, end: Step | None = None, done: bool = False) -> Reply:
        return stream(*pieces, end=end, done=done, kind=self.media_type)

    def _broken_off(self, trouble: Trouble) -> Reply:
        begun = self.pieces(PARTIAL_ANSWER)[: self.begun]
        if trouble is Trouble.BROKEN_WITH_WORDS:
            return self._streamed(*begun, self.broken(f"No more of {CANARY}."), done=self.done)
        if trouble is Trouble.MALFORMED:
            return self._streamed(*begun, self.damaged, done=self.done)
        if trouble is Trouble.EARLY_END:
            return self._streamed(*begun, done=False)
        return self._streamed(*begun, end=CUT if trouble is Trouble.CUT else STALL)


def _broken_whole(trouble: Trouble) -> Reply:
    if trouble is Trouble.CUT:
        return Reply((*whole({}, headers={"content-length": "99"}).steps, CUT))
    if trouble in {Trouble.STALL, Trouble.SILENCE}:
        return Reply((STALL,))
    return whole(b"{" + CANARY.encode() if trouble is Trouble.MALFORMED else {"id": CANARY, "model": "m-1"})


def can_send(kind: str, replies: Sequence[ScriptedReply], *, streams: bool) -> bool:
    """Whether a service can send these answers: those of some have arguments only as objects."""
    if kind not in WIRES or WIRES[kind].writes_text[streams]:
        return True
    return all(
        _is_object(arguments) for reply in replies if isinstance(reply, Calls) for _, _, arguments in reply.calls
    )


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _text_of(reply: Spoken) -> str:
    return reply if isinstance(reply, str) else reply.text


def _calls_of(reply: Spoken) -> tuple[tuple[str, str, str], ...]:
    return () if isinstance(reply, str) else reply.calls


def _halves(text: str) -> list[str]:
    """The pieces of a text; one piece if the answer breaks off."""
    if text == PARTIAL_ANSWER:
        return [text]
    half = len(text) // 2
    return [piece for piece in (text[:half], text[half:]) if piece]


# Chat Completions

_TOKENS = {"prompt_tokens": 9, "completion_tokens": 4}


def _completion(reply: Spoken) -> Any:
    message: JsonObject = {"role": "assistant", "content": _text_of(reply) or None}
    if isinstance(reply, Calls):
        message["tool_calls"] = [
            {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id_, name, arguments in reply.calls
        ]
    choice = {"index": 0, "message": message, "finish_reason": _finish(reply)}
    return {"id": "c1", "model": "m-1", "choices": [choice], "usage": _TOKENS}


def _finish(reply: Spoken) -> str:
    return "tool_calls" if isinstance(reply, Calls) else "stop"


def _chunks(reply: Spoken) -> list[Any]:
    deltas: list[Any] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": piece} for piece in _halves(_text_of(reply))]
    for index, (id_, name, arguments) in enumerate(_calls_of(reply)):
        started = {"index": index, "id": id_, "type": "function", "function": {"name": name, "arguments": ""}}
        deltas.append({"tool_calls": [started]})
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in _halves(arguments)]
    chunks = [_chunk(delta) for delta in deltas]
    return [*chunks, _chunk({}, _finish(reply)), {"id": "c1", "model": "m-1", "choices": [], "usage": _TOKENS}]


def _chunk(delta: Any, finish_reason: str | None = None) -> Any:
    return {"id": "c1", "model": "m-1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


_TOO_LARGE = {
    "message": "This model's maximum context length is 8192 tokens, and your messages resulted in 9000 tokens.",
    "type": "invalid_request_error",
    "param": "messages",
    "code": "context_length_exceeded",
}


def _openai_refusal(trouble: Trouble, status: int, words: str) -> Any:
    del status
    if trouble is Trouble.CONTEXT_WINDOW:
        return {"error": _TOO_LARGE}
    code = {"code": "invalid_api_key", "param": CANARY} if trouble is Trouble.DENIED else {}
    return {"error": {"message": words, **code}}


_OPENAI_CODES = {
    Trouble.CONTEXT_WINDOW: "context_length_exceeded",
    Trouble.DENIED: "invalid_api_key",
    Trouble.BROKEN_WITH_WORDS: "server_error",
}

_CHAT = ScriptedWire(
    client=lambda url, timeout: OpenAIChatClient("m-1", api_key=CANARY, base_url=url, timeout=timeout),
    whole=_completion,
    pieces=_chunks,
    begun=2,
    refusal=_openai_refusal,
    broken=lambda words: {"error": {"message": words, "code": "server_error"}},
    codes=_OPENAI_CODES,
    done=True,
    writes_text=(True, True),
)


# Responses


def _response(reply: Spoken) -> Any:
    return {
        "id": "resp_1",
        "object": "response",
        "model": "m-1",
        "status": "completed",
        "output": _items(reply),
        "usage": {"input_tokens": 9, "output_tokens": 4},
    }


def _items(reply: Spoken) -> list[Any]:
    items: list[Any] = []
    if text := _text_of(reply):
        part = {"type": "output_text", "text": text, "annotations": []}
        items.append({"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": [part]})
    for id_, name, arguments in _calls_of(reply):
        made = {"type": "function_call", "id": f"fc_{id_}", "call_id": id_, "name": name, "arguments": arguments}
        items.append({**made, "status": "completed"})
    return items


def _response_events(reply: Spoken) -> list[Any]:
    done = _response(reply)
    events: list[Any] = [{"type": "response.created", "response": {**done, "status": "in_progress", "output": []}}]
    for number, item in enumerate(done["output"]):
        at = {"output_index": number}
        if item["type"] == "message":
            text = item["content"][0]["text"]
            events += [{"type": "response.output_text.delta", **at, "delta": piece} for piece in _halves(text)]
            continue
        events.append({"type": "response.output_item.added", **at, "item": {**item, "arguments": ""}})
        events += [
            {"type": "response.function_call_arguments.delta", **at, "delta": piece}
            for piece in _halves(item["arguments"])
        ]
        events.append({"type": "response.output_item.done", **at, "item": item})
    return [*events, {"type": "response.completed", "response": done}]


_RESPONSES = ScriptedWire(
    client=lambda url, timeout: OpenAIResponsesClient("m-1", api_key=CANARY, base_url=url, timeout=timeout),
    whole=_response,
    pieces=_response_events,
    begun=2,
    refusal=_openai_refusal,
    broken=lambda words: {"type": "error", "message": words, "code": "server_error"},
    codes=_OPENAI_CODES,
    writes_text=(True, True),
)


# Anthropic's Messages


def _anthropic_message(reply: Spoken) -> Any:
    blocks: list[Any] = [{"type": "text", "text": _text_of(reply)}] if _text_of(reply) else []
    blocks += [
        {"type": "tool_use", "id": id_, "name": name, "input": json.loads(arguments)}
        for id_, name, arguments in _calls_of(reply)
    ]
    return {**_anthropic_begin(), "content": blocks, "stop_reason": "tool_use" if _calls_of(reply) else "end_turn"}


def _anthropic_begin() -> dict[str, Any]:
    usage = {"input_tokens": 9, "output_tokens": 4}
    about = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m-1", "content": []}
    return {**about, "stop_reason": None, "stop_sequence": None, "usage": usage}


def _anthropic_events(reply: Spoken) -> list[Any]:
    begin = {**_anthropic_begin(), "usage": {"input_tokens": 9, "output_tokens": 1}}
    events: list[Any] = [{"type": "message_start", "message": begin}]
    blocks: list[tuple[Any, list[Any]]] = []
    if text := _text_of(reply):
        blocks.append(({"type": "text", "text": ""}, [{"type": "text_delta", "text": each} for each in _halves(text)]))
    for id_, name, arguments in _calls_of(reply):
        pieces = [{"type": "input_json_delta", "partial_json": each} for each in _halves(arguments)]
        blocks.append(({"type": "tool_use", "id": id_, "name": name, "input": {}}, pieces))
    for index, (block, deltas) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": "tool_use" if _calls_of(reply) else "end_turn", "stop_sequence": None}
    return [
        *events,
        {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 4}},
        {"type": "message_stop"},
    ]


_ANTHROPIC_CODES = {
    Trouble.CONTEXT_WINDOW: "invalid_request_error",
    Trouble.DENIED: "authentication_error",
    Trouble.OVERLOADED: "rate_limit_error",
    Trouble.SERVER_ERROR: "api_error",
    Trouble.BROKEN_WITH_WORDS: "api_error",
}


def _anthropic_refusal(trouble: Trouble, status: int, words: str) -> Any:
    del status
    told = words or "prompt is too long: 9000 tokens > 8192 maximum"
    return {"type": "error", "error": {"type": _ANTHROPIC_CODES[trouble], "message": told}, "request_id": "req_1"}


_ANTHROPIC = ScriptedWire(
    client=lambda url, timeout: AnthropicClient(
        "m-1", api_key=CANARY, base_url=url.removesuffix("/v1"), timeout=timeout
    ),
    whole=_anthropic_message,
    pieces=_anthropic_events,
    begun=3,
    refusal=_anthropic_refusal,
    broken=lambda words: {"type": "error", "error": {"type": "api_error", "message": words}},
    codes=_ANTHROPIC_CODES,
)


# Gemini's generateContent


def _gemini_reply(parts: list[Any], **about: Any) -> Any:
    candidate = {"content": {"role": "model", "parts": parts}, "index": 0, **about}
    usage = {"promptTokenCount": 9, "candidatesTokenCount": 4}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "m-1", "responseId": "r-1"}


def _gemini_calls(reply: Spoken) -> list[Any]:
    return [
        {"functionCall": {"id": id_, "name": name, "args": json.loads(arguments)}}
        for id_, name, arguments in _calls_of(reply)
    ]


def _gemini_whole(reply: Spoken) -> Any:
    texts = [{"text": _text_of(reply)}] if _text_of(reply) else []
    return _gemini_reply([*texts, *_gemini_calls(reply)], finishReason="STOP")


def _gemini_pieces(reply: Spoken) -> list[Any]:
    parts = [*({"text": piece} for piece in _halves(_text_of(reply))), *_gemini_calls(reply)]
    last = [{"text": ""}] if parts else []  # a whole reply without words has no parts
    return [*(_gemini_reply([part]) for part in parts), _gemini_reply(last, finishReason="STOP")]


_GEMINI_CODES = {
    Trouble.CONTEXT_WINDOW: "INVALID_ARGUMENT",
    Trouble.DENIED: "UNAUTHENTICATED",
    Trouble.OVERLOADED: "RESOURCE_EXHAUSTED",
    Trouble.SERVER_ERROR: "INTERNAL",
    Trouble.BROKEN_WITH_WORDS: "INTERNAL",
}


def _gemini_refusal(trouble: Trouble, status: int, words: str) -> Any:
    told = words or "The input token count (9000) exceeds the maximum number of tokens allowed (8192)."
    return {"error": {"code": status, "message": told, "status": _GEMINI_CODES[trouble]}}


_GEMINI = ScriptedWire(
    client=lambda url, timeout: GeminiClient("m-1", api_key=CANARY, base_url=url, timeout=timeout),
    whole=_gemini_whole,
    pieces=_gemini_pieces,
    begun=1,
    refusal=_gemini_refusal,
    broken=lambda words: {"error": {"code": 500, "message": words, "status": "INTERNAL"}},
    codes=_GEMINI_CODES,
    writes_text=(False, False),
)


# Gemini's Interactions


def _interaction(reply: Spoken, **more: Any) -> Any:
    status = "requires_action" if _calls_of(reply) else "completed"
    usage = {"total_input_tokens": 9, "total_output_tokens": 4}
    return {"id": "v1_1", "object": "interaction", "model": "m-1", "status": status, "usage": usage, **more}


def _interaction_whole(reply: Spoken) -> Any:
    steps: list[Any] = []
    if text := _text_of(reply):
        steps.append({"type": "model_output", "content": [{"type": "text", "text": text}]})
    for id_, name, arguments in _calls_of(reply):
        steps.append({"type": "function_call", "id": id_, "name": name, "arguments": json.loads(arguments)})
    return _interaction(reply, steps=steps)


def _interaction_events(reply: Spoken) -> list[Any]:
    events: list[Any] = [{"event_type": "interaction.created", "interaction": {"id": "v1_1", "status": "in_progress"}}]
    steps: list[tuple[Any, list[Any]]] = []
    if text := _text_of(reply):
        steps.append(({"type": "model_output"}, [{"type": "text", "text": each} for each in _halves(text)]))
    for id_, name, arguments in _calls_of(reply):
        call = {"type": "function_call", "id": id_, "name": name, "arguments": {}}
        steps.append((call, [{"type": "arguments_delta", "arguments": each} for each in _halves(arguments)]))
    for index, (step, deltas) in enumerate(steps):
        events.append({"event_type": "step.start", "index": index, "step": step})
        events += [{"event_type": "step.delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"event_type": "step.stop", "index": index})
    return [*events, {"event_type": "interaction.completed", "interaction": _interaction(reply)}]


_INTERACTIONS = ScriptedWire(
    client=lambda url, timeout: GeminiInteractionsClient("m-1", api_key=CANARY, base_url=url, timeout=timeout),
    whole=_interaction_whole,
    pieces=_interaction_events,
    begun=3,
    refusal=_gemini_refusal,
    broken=lambda words: {"event_type": "error", "error": {"code": "internal", "message": words}},
    codes={**_GEMINI_CODES, Trouble.BROKEN_WITH_WORDS: "internal"},
    done=True,
)


# Bedrock's Converse


def _converse_whole(reply: Spoken) -> Any:
    blocks: list[Any] = [{"text": _text_of(reply)}] if _text_of(reply) else []
    blocks += [
        {"toolUse": {"toolUseId": id_, "name": name, "input": json.loads(arguments)}}
        for id_, name, arguments in _calls_of(reply)
    ]
    message = {"role": "assistant", "content": blocks}
    return {"output": {"message": message}, "stopReason": _converse_reason(reply), "usage": _CONVERSE_TOKENS}


def _converse_reason(reply: Spoken) -> str:
    return "tool_use" if _calls_of(reply) else "end_turn"


_CONVERSE_TOKENS = {"inputTokens": 9, "outputTokens": 4, "totalTokens": 13}


def _converse_frames(reply: Spoken) -> list[Any]:
    frame = strict_bedrock.frame
    frames = [frame("messageStart", {"role": "assistant"})]
    blocks: list[tuple[Any, list[Any]]] = []
    if text := _text_of(reply):
        blocks.append((None, [{"text": piece} for piece in _halves(text)]))
    for id_, name, arguments in _calls_of(reply):
        deltas = [{"toolUse": {"input": piece}} for piece in _halves(arguments)]
        blocks.append(({"toolUse": {"toolUseId": id_, "name": name}}, deltas))
    for index, (start, pieces) in enumerate(blocks):
        at = {"contentBlockIndex": index}
        if start is not None:
            frames.append(frame("contentBlockStart", {**at, "start": start}))
        frames += [frame("contentBlockDelta", {**at, "delta": piece}) for piece in pieces]
        frames.append(frame("contentBlockStop", at))
    return [
        *frames,
        frame("messageStop", {"stopReason": _converse_reason(reply)}),
        frame("metadata", {"usage": _CONVERSE_TOKENS}),
    ]


_CONVERSE_CODES = {
    Trouble.CONTEXT_WINDOW: "ValidationException",
    Trouble.DENIED: "UnrecognizedClientException",
    Trouble.OVERLOADED: "ThrottlingException",
    Trouble.SERVER_ERROR: "InternalServerException",
    Trouble.BROKEN_WITH_WORDS: "internalServerException",
}


def _converse_refusal(trouble: Trouble, status: int, words: str) -> Any:
    del status
    told = words or "The model returned the following errors: prompt is too long: 9000 tokens > 8192 maximum"
    return {"message": told, "__type": _CONVERSE_CODES[trouble]}


_CONVERSE = ScriptedWire(
    client=lambda url, timeout: BedrockClient(
        "m-1", api_key=CANARY, region="us-east-1", base_url=url.removesuffix("/v1"), timeout=timeout
    ),
    whole=_converse_whole,
    pieces=_converse_frames,
    begun=2,
    refusal=_converse_refusal,
    broken=lambda words: strict_bedrock.frame("internalServerException", {"message": words}, "exception"),
    codes=_CONVERSE_CODES,
    damaged=strict_bedrock.frame("contentBlockDelta", {"delta": {"text": "x"}})[:-1] + b"\x00",
    media_type="application/vnd.amazon.eventstream",
)

WIRES: Mapping[str, ScriptedWire] = {
    "chat": _CHAT,
    "responses": _RESPONSES,
    "anthropic": _ANTHROPIC,
    "gemini": _GEMINI,
    "interactions": _INTERACTIONS,
    "bedrock": _CONVERSE,
}
