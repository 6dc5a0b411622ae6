"""Each provider's answers, as it sends them: whole and as a stream, and what it wants to get back.

The fields of an answer are split into pieces as the provider's documentation says. ``rebuilt`` makes the provider's
JSON of what is on the log alone.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar

from tests.domain.models.provider_types import schemas
from tests.domain.models.provider_values import AtRandom, EveryField, Types, extended

from clew.domain.json_patch import patched
from clew.domain.messages import FunctionCall, FunctionResult, Message, Raw
from clew.domain.models.anthropic_answers import AnthropicAnswer, written_blocks
from clew.domain.models.anthropic_requests import ANTHROPIC
from clew.domain.models.bedrock_answers import BedrockAnswer
from clew.domain.models.bedrock_requests import BEDROCK, written_blocks_of
from clew.domain.models.chat_answers import ChatAnswer, written_answer
from clew.domain.models.chat_requests import OPENAI_CHAT
from clew.domain.models.client import Answer, Question, ToolSchema, WireFormat
from clew.domain.models.client_calls import client_calls
from clew.domain.models.gemini_answers import GeminiAnswer, written_parts
from clew.domain.models.gemini_requests import GEMINI
from clew.domain.models.interactions_answers import InteractionsAnswer, written_steps
from clew.domain.models.interactions_requests import INTERACTIONS
from clew.domain.models.native import received
from clew.domain.models.responses_answers import ResponsesAnswer, written_items
from clew.domain.models.responses_requests import OPENAI_RESPONSES
from clew.infrastructure.model_streams import AnswerReader

MODEL = "m-1"
SAID = Message.user("Hello")
TOOL = ToolSchema(name="tool_0", parameters={"type": "object"})


def pruned(value: Any) -> Any:
    """A value without what says nothing: nulls, zeros, empty texts, lists and objects. Documented exceptions."""
    if isinstance(value, dict):
        found = {name: pruned(each) for name, each in value.items()}
        return {name: each for name, each in found.items() if each or each is False}
    return [pruned(each) for each in value] if isinstance(value, list) else value


def without_nulls(value: Any) -> Any:
    return {name: each for name, each in value.items() if each is not None}


def halves(text: str) -> list[str]:
    return [text[: len(text) // 2], text[len(text) // 2 :]]


class ProviderFormat(ABC):
    """A provider's answers. ``kinds`` are the schemas of the ``items`` of an answer, whose type is ``types``."""

    name: ClassVar[str]
    wire: ClassVar[WireFormat]
    types: Types
    items: Types
    kinds: list[Any]
    totals: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def reader(self) -> AnswerReader:
        """A new reader of an answer."""

    @abstractmethod
    def reply(self, items: list[Any], rest: Any) -> Any:
        """The reply with these items. ``rest`` is a reply of the provider's type, whose other fields it has."""

    @abstractmethod
    def events(self, reply: Any) -> list[Any] | None:
        """The reply as a stream; None if the provider streams no such answer."""

    @abstractmethod
    def rebuilt(self, answer: Answer) -> Any:
        """The reply, made of what is on the log."""

    @abstractmethod
    def expected(self, reply: Any) -> Any:
        """The reply without what is not kept: what the documents say."""

    @abstractmethod
    def wanted(self, reply: Any) -> Any:
        """What the provider must get back."""

    @abstractmethod
    def sent(self, body: Any) -> Any:
        """What it gets back in this request."""

    def at_random(self, seed: int) -> Any:
        """A reply of up to three items of any kind."""
        choices = AtRandom(seed)
        kinds = [self.kinds[choices.number(len(self.kinds))] for _ in range(1 + choices.number(3))]
        return self.reply([self.items.value(choices, kind) for kind in kinds], self.types.value(choices))

    def full(self) -> Iterator[Any]:
        """Replies with an item of each kind, with every field, and every member of its fields."""
        for kind in self.kinds:
            for number in range(self.items.variants(kind)):
                choices = EveryField(number)
                yield self.reply([self.items.value(choices, kind)], self.types.value(choices))

    def whole(self, reply: Any) -> Answer:
        reader = self.reader()
        list(reader.take_whole(json.loads(json.dumps(reply))))
        return _complete(reader)

    def streamed(self, events: list[Any]) -> Answer:
        reader = self.reader()
        for event in json.loads(json.dumps(events)):
            list(reader.take(event))
        return _complete(reader)

    def extended_events(self, events: list[Any], numbers: Iterator[int]) -> list[Any]:
        """The events with a new field in each object, but in running totals: of these, the last one holds."""
        return [extended(event, numbers, self.totals) for event in events]

    def logged(self, answer: Answer) -> Answer:
        """The answer after it was written to the log and read again. The run adds who made it."""
        native = answer.message.native
        if native is not None:
            prefix = None
            if native.prefix is not None:
                assert self.wire.prefix_of is not None
                prefix = self.wire.prefix_of(self.wire.make_body(self._question(SAID)))
            native = native.model_copy(update={"provider": self.name, "model": MODEL, "prefix": prefix})
        message = answer.message.model_copy(update={"native": native})
        return replace(answer, message=Message.model_validate_json(message.model_dump_json()))

    def next_body(self, answer: Answer) -> Any:
        """The request after the answer, with the results of its calls."""
        results = tuple(FunctionResult(call_id=call.call_id, result="done") for call in answer.message.calls)
        after = [Message(role="tool", contents=(each,)) for each in results] or [Message.user("Go on")]
        return json.loads(json.dumps(self.wire.make_body(self._question(SAID, answer.message, *after))))

    def _question(self, *messages: Message) -> Question:
        return Question(MODEL, messages, tools=(TOOL,), provider=self.name)


def _complete(reader: AnswerReader) -> Answer:
    answer = reader.answer()
    assert answer is not None
    return answer


class AnthropicFormat(ProviderFormat):
    name = "anthropic"
    wire = ANTHROPIC

    prefix = ""

    def __init__(self) -> None:
        self.types = Types(schemas(self.name)[f"{self.prefix}Message"])
        self.items = Types(schemas(self.name)[f"{self.prefix}ContentBlock"])
        self.kinds = self.items.members()

    def reader(self) -> AnswerReader:
        return AnthropicAnswer()

    def reply(self, items: list[Any], rest: Any) -> Any:
        blocks = [
            {**block, "id": f"toolu_{number}", "name": f"tool_{number}"} if block["type"] == "tool_use" else block
            for number, block in enumerate(items)
        ]
        usage = {**rest["usage"], "output_tokens": 5}
        return {**rest, "content": blocks, "usage": usage, "stop_reason": rest.get("stop_reason") or "end_turn"}

    def events(self, reply: Any) -> list[Any] | None:
        late = ("stop_reason", "stop_sequence", "stop_details", "container", "context_management", "content")
        begun = {name: None if name in late else value for name, value in reply.items()}
        events: list[Any] = [{"type": "message_start", "message": {**begun, "content": []}}, {"type": "ping"}]
        for index, block in enumerate(reply["content"]):
            started, deltas = _anthropic_pieces(block)
            events.append({"type": "content_block_start", "index": index, "content_block": started})
            events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
            events.append({"type": "content_block_stop", "index": index})
        ended = {name: reply[name] for name in late[:-1] if name in reply}
        usage = {"output_tokens": reply["usage"]["output_tokens"]}
        return [*events, {"type": "message_delta", "delta": ended, "usage": usage}, {"type": "message_stop"}]

    def rebuilt(self, answer: Answer) -> Any:
        own: Any = received(answer.message, {"content": [*written_blocks(answer.message)]})
        more = own.get("reply", {})
        kept = more.get("usage", {})
        assert answer.usage is not None
        cached, created = answer.usage.cached_tokens, kept.get("cache_creation_input_tokens", 0)
        usage = {
            **kept,
            "input_tokens": answer.usage.input_tokens - cached - created,
            "output_tokens": answer.usage.output_tokens,
            "cache_read_input_tokens": cached,
            "output_tokens_details": {"thinking_tokens": answer.usage.reasoning_tokens},
        }
        reasons = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}
        reason = more.get("stop_reason") or reasons.get(str(answer.finish_reason), answer.finish_reason)
        about = {"id": answer.response_id, "model": answer.model, "type": "message", "role": "assistant"}
        return {**pruned({**more, **about, "usage": usage, "stop_reason": reason}), "content": own["content"]}

    def expected(self, reply: Any) -> Any:
        return {**pruned(reply), "content": [without_nulls(block) for block in reply["content"]]}

    def wanted(self, reply: Any) -> Any:
        blocks = [
            without_nulls(block) for block in reply["content"] if block["type"] != "text" or block["text"].strip()
        ]
        return blocks, (reply.get("container") or {}).get("id") or None

    def sent(self, body: Any) -> Any:
        found = [message["content"] for message in body["messages"] if message["role"] == "assistant"]
        return found[0] if found else [], body.get("container") or None


def _anthropic_pieces(block: Any) -> tuple[Any, list[Any]]:
    match block["type"]:
        case "text":
            deltas: list[Any] = [{"type": "text_delta", "text": each} for each in halves(block["text"])]
            deltas += [{"type": "citations_delta", "citation": each} for each in block.get("citations") or []]
            none: Any = [] if block.get("citations") == [] else None
            return {**block, "text": "", "citations": none}, deltas
        case "thinking":
            deltas = [{"type": "thinking_delta", "thinking": each} for each in halves(block["thinking"])]
            deltas += [{"type": "signature_delta", "signature": each} for each in halves(block["signature"])]
            return {**block, "thinking": "", "signature": ""}, deltas
        case "tool_use" | "server_tool_use":
            pieces = ["", *halves(json.dumps(block["input"]))]
            return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": each} for each in pieces]
        case "compaction":
            names = ("content", "encrypted_content")
            delta = {name: block[name] for name in names if block.get(name)}
            return {**block, **dict.fromkeys(delta)}, [{"type": "compaction_delta", **delta}]
        case _:
            return block, []


class AnthropicBetaFormat(AnthropicFormat):
    """The same API with beta headers: more kinds of blocks and more fields."""

    name = "anthropic-beta"
    prefix = "Beta"


class BedrockFormat(ProviderFormat):
    name = "bedrock"
    wire = BEDROCK

    def __init__(self) -> None:
        self.types = self.items = Types(schemas("bedrock")["ConverseResponse"])
        block = {"$ref": "#/$defs/ContentBlock"}
        fields = self.types.resolved(block)["properties"]
        self.kinds = [{"type": "object", "properties": {n: f}, "required": [n]} for n, f in fields.items()]

    def reader(self) -> AnswerReader:
        return BedrockAnswer()

    def reply(self, items: list[Any], rest: Any) -> Any:
        blocks = [_converse_block(block, number) for number, block in enumerate(items)]
        return {**rest, "output": {"message": {"role": "assistant", "content": blocks}}}

    def events(self, reply: Any) -> list[Any] | None:
        events: list[Any] = [{"messageStart": {"role": "assistant"}}]
        for index, block in enumerate(reply["output"]["message"]["content"]):
            if (pieces := _converse_pieces(block)) is None:
                return None
            start, deltas = pieces
            at = {"contentBlockIndex": index}
            events += [{"contentBlockStart": {**at, "start": start}}] if start else []
            events += [{"contentBlockDelta": {**at, "delta": delta}} for delta in deltas]
            events.append({"contentBlockStop": at})
        stop = {name: reply[name] for name in ("stopReason", "additionalModelResponseFields") if name in reply}
        metadata = {name: value for name, value in reply.items() if name not in {*stop, "output"}}
        events += [{"messageStop": stop}, {"metadata": metadata}]
        return [{kind: {**payload, "p": "abcd"}} for event in events for kind, payload in event.items()]

    def extended_events(self, events: list[Any], numbers: Iterator[int]) -> list[Any]:
        """The type of an event is in a header, so that only its payload has fields."""
        return [{kind: extended(payload, numbers) for kind, payload in event.items()} for event in events]

    def rebuilt(self, answer: Answer) -> Any:
        written = written_blocks_of(answer.message)
        patch = () if answer.message.native is None else answer.message.native.patch
        own: Any = patched({"json": written}, patch)
        more = own.get("reply", {})
        kept = more.get("usage", {})
        assert answer.usage is not None
        cached = answer.usage.cached_tokens
        inputs = answer.usage.input_tokens - cached - kept.get("cacheWriteInputTokens", 0)
        usage = {
            "inputTokens": inputs,
            "outputTokens": answer.usage.output_tokens,
            "cacheReadInputTokens": cached,
            "totalTokens": answer.usage.total_tokens,
            **kept,
        }
        reasons = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}
        reason = more.get("stopReason") or reasons.get(str(answer.finish_reason), answer.finish_reason)
        return {**pruned({**more, "stopReason": reason, "usage": usage}), "blocks": own["json"]}

    def expected(self, reply: Any) -> Any:
        rest = {name: value for name, value in reply.items() if name != "output"}
        return {**pruned(rest), "blocks": reply["output"]["message"]["content"]}

    def wanted(self, reply: Any) -> Any:
        return [block for block in reply["output"]["message"]["content"] if not _is_blank(block)]

    def sent(self, body: Any) -> Any:
        found = [message["content"] for message in body["messages"] if message["role"] == "assistant"]
        return found[0] if found else []


def _is_blank(block: Any) -> bool:
    """What the service refuses: a blank text, and reasoning that is not signed."""
    reasoning = block.get("reasoningContent", {})
    is_unsigned = "reasoningText" in reasoning and not reasoning["reasoningText"].get("signature")
    return is_unsigned or ("text" in block and not block["text"].strip())


def _converse_block(block: Any, number: int) -> Any:
    """A block as the service sends it: with an id for each call, and a call's input that is an object."""
    match block:
        case {"toolUse": use}:
            given = use["input"] if isinstance(use["input"], dict) else {"value": use["input"]}
            return {"toolUse": {**use, "toolUseId": f"tooluse_{number}", "input": given}}
        case _:
            return block


def _converse_pieces(block: Any) -> tuple[Any, list[Any]] | None:
    match block:
        case {"text": text}:
            return None, [{"text": each} for each in halves(text)]
        case {"toolUse": use}:
            start = {name: value for name, value in use.items() if name != "input"}
            return {"toolUse": start}, [{"toolUse": {"input": each}} for each in halves(json.dumps(use["input"]))]
        case {"toolResult": result} if all({*each} <= {"text", "json"} for each in result["content"]):
            start = {name: value for name, value in result.items() if name != "content"}
            return {"toolResult": start}, [{"toolResult": [each]} for each in result["content"]]
        case {"reasoningContent": {"reasoningText": reasoning}}:
            deltas = [{"reasoningContent": {"text": each}} for each in halves(reasoning["text"])]
            signed = [{"reasoningContent": {"signature": reasoning["signature"]}}] if "signature" in reasoning else []
            return None, deltas + signed
        case {"reasoningContent": {"redactedContent": data}}:
            return None, [{"reasoningContent": {"redactedContent": data}}]
        case {"citationsContent": {"content": [{"text": text}], "citations": [_, *_] as citations}}:
            return None, [*({"text": each} for each in halves(text)), *({"citation": each} for each in citations)]
        case {"image": {"format": kind, **rest}}:
            return {"image": {"format": kind}}, [{"image": {name: value}} for name, value in rest.items()]
        case _:
            return None


class GeminiFormat(ProviderFormat):
    name = "gemini"
    wire = GEMINI
    totals = ("usageMetadata",)
    data: ClassVar = (
        *(
            "text",
            "functionCall",
            "functionResponse",
            "inlineData",
            "fileData",
            "executableCode",
            "codeExecutionResult",
        ),
        *("toolCall", "toolResponse"),
    )
    """The fields of which a part has one. The others say something of it."""

    def __init__(self) -> None:
        self.types = self.items = Types(schemas("gemini")["GenerateContentResponse"])
        fields: Any = self.types.resolved({"$ref": "#/$defs/Part"})["properties"]
        about = {name: field for name, field in fields.items() if name not in self.data}
        self.kinds = [
            {"type": "object", "properties": {kind: self._filled(fields[kind]), **about}, "required": [kind]}
            for kind in self.data
        ]

    def _filled(self, schema: Any) -> Any:
        """The type without null."""
        return {"anyOf": [each for each in schema["anyOf"] if each.get("type") != "null"]}

    def reader(self) -> AnswerReader:
        return GeminiAnswer()

    def reply(self, items: list[Any], rest: Any) -> Any:
        """A reply of one or two candidates; the second is on the log, and is not sent back."""
        first, *others = [each or {} for each in (rest.get("candidates") or [{}])[:2]]
        made = {name: value for name, value in rest.items() if name not in _OF_THE_SDK}
        usage = {"promptTokenCount": 3, **without_nulls(rest.get("usageMetadata") or {})}
        counted = ("candidatesTokenCount", "promptTokenCount", "thoughtsTokenCount", "toolUsePromptTokenCount")
        usage.setdefault("totalTokenCount", sum(usage.get(name, 0) for name in counted))
        candidates = [
            self._candidate(0, first, items),
            *(self._candidate(1, each, [*items, *items]) for each in others),
        ]
        return pruned_nulls({**made, "candidates": candidates, "usageMetadata": usage, "promptFeedback": None})

    def _candidate(self, index: int, about: Any, parts: list[Any]) -> Any:
        content = {"role": "model", "parts": [pruned_nulls(part) for part in parts]}
        return {**about, "index": index, "content": content, "finishReason": about.get("finishReason") or "STOP"}

    def events(self, reply: Any) -> list[Any] | None:
        """The pieces of a stream. A text continues only at the beginning of a piece, and no other part begins one."""
        rest = {name: value for name, value in reply.items() if name != "candidates"}
        chunks: list[Any] = []
        for candidate in reply["candidates"]:
            pieces: list[list[Any]] = [[]]
            for part in candidate["content"]["parts"]:
                if {*part} <= {"text", "thought"} and len(part["text"]) > 1:
                    begin, end = halves(part["text"])
                    pieces[-1].append({**part, "text": begin})
                    pieces.append([{**part, "text": end}])
                else:
                    pieces[-1].append(part)
            about: list[Any] = [{} for _ in pieces]
            for name, value in candidate.items():
                if name not in {"index", "content", "finishReason"}:
                    said = _citations(name, value) if len(pieces) > 1 else [value]
                    for number, piece in enumerate(said):
                        about[number - len(said)][name] = piece
            chunks += [
                {
                    **rest,
                    "candidates": [{"index": candidate["index"], **more, "content": {"role": "model", "parts": each}}],
                }
                for each, more in zip(pieces, about, strict=True)
            ]
            ended = {"index": candidate["index"], "finishReason": candidate["finishReason"]}
            chunks.append({**rest, "candidates": [{**ended, "content": {"role": "model", "parts": [{"text": ""}]}}]})
        return chunks

    def rebuilt(self, answer: Answer) -> Any:
        own: Any = received(answer.message, {"parts": [*written_parts(answer.message)]})
        more = own.get("reply", {})
        kept = more.get("usageMetadata", {})
        assert answer.usage is not None
        usage = answer.usage
        counts = {
            "cachedContentTokenCount": usage.cached_tokens,
            "thoughtsTokenCount": usage.reasoning_tokens,
            "candidatesTokenCount": usage.output_tokens - usage.reasoning_tokens,
            "promptTokenCount": usage.input_tokens - kept.get("toolUsePromptTokenCount", 0),
            "totalTokenCount": usage.total_tokens,
        }
        reasons = {"stop": "STOP", "tool_calls": "STOP", "length": "MAX_TOKENS"}
        reason = reasons.get(str(answer.finish_reason), answer.finish_reason)
        content = {"role": "model", **own.get("content", {}), "parts": own["parts"]}
        first = {"index": 0, "finishReason": reason, **own.get("candidate", {}), "content": content}
        about = {"modelVersion": answer.model, "responseId": answer.response_id}
        candidates = [first, *more.get("candidates", [])]
        return self.expected({**more, **about, "usageMetadata": {**counts, **kept}, "candidates": candidates})

    def expected(self, reply: Any) -> Any:
        about = {name: reply.get(name) or None for name in ("modelVersion", "responseId")}
        about |= {"candidates": [*map(without_nulls, reply["candidates"])]}
        return without_nulls({**reply, **about, "usageMetadata": pruned(reply["usageMetadata"])})

    def wanted(self, reply: Any) -> Any:
        return [part for part in reply["candidates"][0]["content"]["parts"] if part != {"text": ""}]

    def sent(self, body: Any) -> Any:
        found = [content["parts"] for content in body["contents"] if content["role"] == "model"]
        return found[0] if found else []


_OF_THE_SDK = ("sdkHttpResponse", "automaticFunctionCallingHistory", "parsed")


def pruned_nulls(value: Any) -> Any:
    """The service sends no nulls, but some in free values."""
    return {name: each for name, each in value.items() if each is not None}


def _citations(name: str, value: Any) -> list[Any]:
    """What a stream says of its citations: those of each piece. All else it says once."""
    citations = (value or {}).get("citations") if name == "citationMetadata" else None
    if not citations or citations[:1] == citations[1:2]:
        return [value]
    return [{**value, "citations": each} for each in (citations[:1], citations[1:]) if each]


def _content_of(delta: Any) -> Any:
    """A delta of a text as the part of a thought's summary, whose annotations come with a text."""
    if delta["type"] == "text_annotation_delta":
        return {"type": "text", "text": "", "annotations": delta["annotations"]}
    return delta


class InteractionsFormat(ProviderFormat):
    name = "gemini-interactions"
    wire = INTERACTIONS
    totals = ("usage", "total_usage")

    def __init__(self) -> None:
        self.types = Types(schemas("gemini-interactions")["Interaction"])
        self.items = Types(schemas("gemini-interactions")["Step"])
        given = {"user_input", "function_result"}
        self.kinds = [each for each in self.items.members() if each["properties"]["type"]["const"] not in given]
        deltas = Types(schemas("gemini-interactions")["StepDeltaData"])
        self._deltas = {each["properties"]["type"]["const"]: {*each["properties"]} for each in deltas.members()}

    def reader(self) -> AnswerReader:
        return InteractionsAnswer({})

    def reply(self, items: list[Any], rest: Any) -> Any:
        steps = [
            {**step, "id": f"call_{number}", "name": f"tool_{number}"} if step["type"] == "function_call" else step
            for number, step in enumerate(items)
        ]
        usage = {"total_input_tokens": 3, "total_output_tokens": 2, **without_nulls(rest.get("usage") or {})}
        counted = ("total_input_tokens", "total_output_tokens", "total_thought_tokens", "total_tool_use_tokens")
        usage.setdefault("total_tokens", sum(usage.get(name, 0) for name in counted))
        return {**rest, "id": "v1_1", "status": "completed", "steps": steps, "usage": usage}

    def events(self, reply: Any) -> list[Any] | None:
        begun = {
            "id": reply["id"],
            "status": "in_progress",
            "object": "interaction",
            "usage": {"total_input_tokens": 1},
        }
        events: list[Any] = [{"event_type": "interaction.created", "interaction": begun, "event_id": "e"}]
        for index, step in enumerate(reply["steps"]):
            start, deltas = self._pieces(without_nulls(step))
            totals = {"metadata": {"total_usage": {"total_input_tokens": index}}}
            events.append({"event_type": "step.start", "index": index, "step": start})
            events += [{"event_type": "step.delta", "index": index, "delta": delta, **totals} for delta in deltas]
            events.append({"event_type": "step.stop", "index": index})
        ended = {name: value for name, value in reply.items() if name != "steps"}
        return [*events, {"event_type": "interaction.completed", "interaction": ended}]

    def _pieces(self, step: Any) -> tuple[Any, list[Any]]:
        """The beginning of a step and its deltas. What no delta can say is in the beginning."""
        name = "summary" if step["type"] == "thought" else "content"
        if step["type"] == "function_call":
            texts = halves(json.dumps(step["arguments"]))
            return {**step, "arguments": {}}, [{"type": "arguments_delta", "arguments": each} for each in texts]
        if step["type"] not in {"thought", "model_output"}:
            said = {key: value for key, value in step.items() if key in self._deltas[step["type"]] and value != []}
            start = {key: value for key, value in step.items() if key == "type" or key not in said}
            return start, [{**said, "type": step["type"]}]
        parts = [[*self._part_pieces(part)] for part in step.get(name, ())]
        kinds = [part["type"] for part in step.get(name, ())]
        if not all(parts) or ("text", "text") in pairwise(kinds):
            return step, []
        deltas: list[Any] = [piece for pieces in parts for piece in pieces]
        if step["type"] == "thought":
            deltas = [{"type": "thought_summary", "content": _content_of(each)} for each in deltas]
            if signature := step.get("signature"):
                deltas += [{"type": "thought_signature", "signature": each} for each in halves(signature)]
        kept = {"summary", "signature"} if step.get("signature") else {"summary"}
        start = {key: value for key, value in step.items() if key not in {"content", *kept} or value == []}
        return start, deltas

    def _part_pieces(self, part: Any) -> Iterator[Any]:
        """The deltas of a content; none if they cannot say all of it."""
        match part:
            case {"type": "text", "text": text, **rest} if {*rest} <= {"annotations"} and None not in rest.values():
                yield from ({"type": "text", "text": each} for each in halves(text))
                if "annotations" in rest:
                    yield {"type": "text_annotation_delta", **rest}
            case {"type": kind} if {*part} <= self._deltas.get(kind, set()):
                yield part

    def rebuilt(self, answer: Answer) -> Any:
        own: Any = received(answer.message, {"steps": written_steps(answer.message)})
        more = own.get("reply", {})
        kept = more.get("usage", {})
        usage = answer.usage
        assert usage is not None
        counts = {
            "total_input_tokens": usage.input_tokens - kept.get("total_tool_use_tokens", 0),
            "total_output_tokens": usage.output_tokens - usage.reasoning_tokens,
            "total_thought_tokens": usage.reasoning_tokens,
            "total_cached_tokens": usage.cached_tokens,
            "total_tokens": usage.total_tokens,
        }
        about = {"id": answer.response_id, "model": answer.model, "status": "completed"}
        return self.expected({**more, **about, "usage": {**counts, **kept}, "steps": own["steps"]})

    def expected(self, reply: Any) -> Any:
        about = {"usage": pruned(reply["usage"]), "model": reply.get("model") or None}
        return without_nulls({**reply, **about, "steps": [*map(without_nulls, reply["steps"])]})

    def wanted(self, reply: Any) -> Any:
        return [*map(without_nulls, reply["steps"])]

    def sent(self, body: Any) -> Any:
        return [step for step in body["input"] if step["type"] not in {"user_input", "function_result"}]


class ChatFormat(ProviderFormat):
    name = "openai-chat"
    wire = OPENAI_CHAT

    def __init__(self) -> None:
        self.types = self.items = Types(schemas("openai-chat")["ChatCompletion"])
        self.kinds = [{"$ref": "#/$defs/Choice"}]

    def reader(self) -> AnswerReader:
        return ChatAnswer()

    def reply(self, items: list[Any], rest: Any) -> Any:
        message = without_nulls(items[0]["message"])
        calls = [_chat_call(call, number) for number, call in enumerate(message.get("tool_calls") or [])]
        message = {**message, **({"tool_calls": calls} if calls else {})}
        usage = rest.get("usage") or {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        return {**rest, "choices": [{**items[0], "index": 0, "message": message}], "usage": usage}

    def events(self, reply: Any) -> list[Any] | None:
        (choice,) = reply["choices"]
        message = choice["message"]
        deltas: list[Any] = [{"role": "assistant", "content": ""}]
        for name in ("content", "refusal"):
            deltas += [{name: each} for each in halves(message.get(name) or "")]
        for index, call in enumerate(message.get("tool_calls") or []):
            kind = call["type"]
            field = "arguments" if kind == "function" else "input"
            deltas.append({"tool_calls": [{**call, "index": index, kind: {**call[kind], field: ""}}]})
            deltas += [
                {"tool_calls": [{"index": index, kind: {field: each}}]} for each in halves(call[kind][field]) if each
            ]
        if (called := message.get("function_call")) is not None:
            deltas.append({"function_call": {**called, "arguments": ""}})
            deltas += [{"function_call": {"arguments": each}} for each in halves(called["arguments"])]
        others = {"role", "content", "refusal", "tool_calls", "function_call"}
        deltas.append({name: value for name, value in message.items() if name not in others})
        rest = {name: value for name, value in reply.items() if name not in {"choices", "usage"}}
        chunks = [{**rest, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
        ended = {name: value for name, value in choice.items() if name != "message"}
        return [
            *chunks,
            {**rest, "choices": [{**ended, "delta": {}}]},
            {**rest, "choices": [], "usage": reply["usage"]},
        ]

    def rebuilt(self, answer: Answer) -> Any:
        own: Any = received(answer.message, {"message": written_answer(answer.message)})
        more = own.get("reply", {})
        usage = answer.usage
        assert usage is not None
        counts = {
            "prompt_tokens": usage.input_tokens,
            "completion_tokens": usage.output_tokens,
            "total_tokens": usage.total_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        }
        reason = "stop" if answer.finish_reason == "refusal" else answer.finish_reason
        choice = {**own.get("choice", {}), "finish_reason": reason, "message": own["message"]}
        about = {"id": answer.response_id, "model": answer.model, "object": "chat.completion"}
        return pruned({**more, **about, "usage": merged(counts, more.get("usage", {})), "choices": [choice]})

    def expected(self, reply: Any) -> Any:
        return pruned(reply)

    def wanted(self, reply: Any) -> Any:
        message = reply["choices"][0]["message"]
        calls = [without_nulls(call) for call in message.get("tool_calls") or []]
        audio = {"audio": {"id": message["audio"]["id"]}} if (message.get("audio") or {}).get("id") else {}
        texts = {name: message[name] for name in ("content", "refusal") if message.get(name)}
        return {**texts, **({"tool_calls": calls} if calls else {}), **audio}

    def sent(self, body: Any) -> Any:
        (message,) = [each for each in body["messages"] if each["role"] == "assistant"]
        return {name: value for name, value in message.items() if name != "role" and value}


def _chat_call(call: Any, number: int) -> Any:
    """A call as the service sends it: with an id, and the name of a tool."""
    kind = call["type"]
    made = {**call[kind], "name": f"tool_{number}"}
    if kind == "function":
        made["arguments"] = made["arguments"] or "{}"
    return {**call, "id": f"call_{number}", kind: made}


def merged(one: Any, other: Any) -> Any:
    """The fields of both, also those of objects within."""
    return {
        name: merged(one.get(name, {}), value) if isinstance(value, dict) else value
        for name, value in {**one, **other}.items()
    } | {name: merged(value, other.get(name, {})) for name, value in one.items() if isinstance(value, dict)}


class ResponsesFormat(ProviderFormat):
    name = "openai-responses"
    wire = OPENAI_RESPONSES

    def __init__(self) -> None:
        self.types = Types(schemas("openai-responses")["Response"])
        self.items = Types(schemas("openai-responses")["ResponseOutputItem"])
        self.kinds = self.items.members()
        self.results: list[Any] = []

    def reader(self) -> AnswerReader:
        return ResponsesAnswer({"store": False})

    def reply(self, items: list[Any], rest: Any) -> Any:
        output = [self._item(number, item) for number, item in enumerate(items)]
        done = {"output": output, "status": "completed", "error": None, "incomplete_details": None}
        usage = rest.get("usage") or {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
        return {**rest, **done, "usage": usage}

    def _item(self, number: int, item: Any) -> Any:
        if item["type"] == "function_call":
            return {**item, "call_id": f"call_{number}", "arguments": item["arguments"] or "{}"}
        if item["type"] == "reasoning":  # a request that stores nothing asks for it
            return {**item, "encrypted_content": item.get("encrypted_content") or "encrypted"}
        return item

    def events(self, reply: Any) -> list[Any] | None:
        begun = {**reply, "output": [], "status": "in_progress", "usage": None}
        events: list[Any] = [{"type": "response.created", "response": begun}]
        for index, item in enumerate(reply["output"]):
            events.append({"type": "response.output_item.added", "output_index": index, "item": item})
            events.append({"type": "response.output_item.done", "output_index": index, "item": item})
        return [*events, {"type": "response.completed", "response": reply}]

    def rebuilt(self, answer: Answer) -> Any:
        own: Any = received(answer.message, {"output": written_items(answer.message)})
        more = own.get("reply", {})
        usage = answer.usage
        assert usage is not None
        counts = {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "total_tokens": usage.total_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        }
        about = {"id": answer.response_id, "model": answer.model, "object": "response", "status": "completed"}
        return {
            **pruned({**more, **about, "usage": merged(counts, more.get("usage", {}))}),
            "output": own["output"],
        }

    def expected(self, reply: Any) -> Any:
        rest = {name: value for name, value in reply.items() if DEFAULTS.get(name) != value}
        if (text := rest.get("text")) is not None:
            default = {"format": {"type": "text"}, "verbosity": "medium"}
            rest["text"] = {name: value for name, value in text.items() if default.get(name) != value}
        return {**pruned(rest), "output": reply["output"]}

    def wanted(self, reply: Any) -> Any:
        output = [*reply["output"]]
        while output and output[-1]["type"] == "reasoning":
            output.pop()
        return output

    def next_body(self, answer: Answer) -> Any:
        results = [_result(answer.message.contents[index], each.call) for index, each in client_calls(answer.message)]
        self.results = results
        contents = tuple([Raw(value=each) for each in results])
        after = (Message(role="tool", contents=contents),) if contents else ()
        calls = tuple(FunctionResult(call_id=call.call_id, result="done") for call in answer.message.calls)
        told = [Message(role="tool", contents=(each,)) for each in calls] or [Message.user("Go on")]
        question = self._question(SAID, answer.message, *told, *after)
        return json.loads(json.dumps(self.wire.make_body(question)))

    def sent(self, body: Any) -> Any:
        results = {"type": "function_call_output", "output": "done"}
        return [
            item
            for item in body["input"][1:]
            if not results.items() <= item.items() and item != _GO_ON and item not in self.results
        ]


_SHELL = [{"stdout": "", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]
_RESULTS: dict[str, Any] = {
    "computer_call": {"output": {"type": "computer_screenshot", "image_url": "https://example.com/1.png"}},
    "custom_tool_call": {"output": "done for the test"},
    "shell_call": {"output": _SHELL},
    "apply_patch_call": {"status": "completed"},
}


def _result(item: Any, call: FunctionCall) -> Any:
    """The result of an item that waits for the client."""
    kind = item.value["type"]
    if kind == "mcp_approval_request":
        return {"type": "mcp_approval_response", "approval_request_id": call.call_id, "approve": True}
    if kind == "local_shell_call":
        return {"type": "local_shell_call_output", "id": call.call_id, "output": "done for the test"}
    return {"type": f"{kind}_output", "call_id": call.call_id, **_RESULTS[kind]}


_GO_ON = {"role": "user", "content": "Go on"}


DEFAULTS = {
    "background": False,
    "parallel_tool_calls": True,
    "store": True,
    "tool_choice": "auto",
    "truncation": "disabled",
}
"""Fields of a response that say nothing if they have these values, and the request has none."""

FORMATS: tuple[type[ProviderFormat], ...] = (
    *(AnthropicFormat, AnthropicBetaFormat, BedrockFormat, ChatFormat, GeminiFormat, InteractionsFormat),
    ResponsesFormat,
)
