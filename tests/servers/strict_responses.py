"""A server with the strict rules of OpenAI's Responses: reasoning goes with its items, stored or encrypted.

It answers each turn with ``rounds`` rounds of two calls, each after reasoning and a commentary, and then with a text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.servers.strict_server import RefusedError, StrictServer, check_fields, halves

ENCRYPTED = "reasoning.encrypted_content"
_FIELDS = {
    *("model", "input", "instructions", "tools", "store", "include", "stream", "previous_response_id", "reasoning"),
    *("conversation", "text", "max_output_tokens", "metadata", "tool_choice"),
}
_OF_ITEM = {
    "message": {"type", "id", "role", "content", "status", "phase"},
    "function_call": {"type", "id", "call_id", "name", "arguments", "status"},
    "function_call_output": {"type", "id", "call_id", "output", "status"},
    "reasoning": {"type", "id", "summary", "content", "encrypted_content", "status"},
}
_IGNORED = {"status", "encrypted_content"}


class StrictResponses(StrictServer):
    """``stored`` has the items of each stored response with those before it; ``made`` each item, by its id.

    ``before`` is the reasoning that an item came after, by the item's id.
    """

    path = "/responses"

    def __init__(self, rounds: int = 3) -> None:
        super().__init__(rounds)
        self.stored: dict[str, list[Any]] = {}
        self.made: dict[str, Any] = {}
        self.before: dict[str, str] = {}

    def check(self, body: Any) -> None:
        check_fields(body, _FIELDS, "body")
        earlier = self._earlier(body)
        held = {item["id"] for items in self.stored.values() for item in items if "id" in item}
        items = body["input"]
        for number, item in enumerate(items):
            where = f"input.{number}"
            kind = item.get("type", "message")
            check_fields(item, _OF_ITEM.get(kind, set()), where)
            self._check_unchanged(item, where)
            if kind == "reasoning":
                self._check_reasoning(body, item, items[number + 1 :], held, where)
            elif self.before.get(item.get("id", "")) not in {None, *(each.get("id") for each in items[:number])}:
                raise RefusedError(f"{where}: '{item['id']}' was provided without its required 'reasoning' item")
            if kind == "message":
                _check_message(item, where)
        _check_pairs([*earlier, *items])

    def _earlier(self, body: Any) -> list[Any]:
        id_ = body.get("previous_response_id")
        if id_ is None:
            return []
        if id_ not in self.stored:
            raise RefusedError(f"Previous response with id '{id_}' not found.")
        return self.stored[id_]

    def _check_unchanged(self, item: Any, where: str) -> None:
        made = self.made.get(item.get("id", ""))
        if made is None:
            if "id" in item:
                raise RefusedError(f"{where}: Item with id '{item['id']}' not found.")
            return
        if [_plain(item), item.get("id")] != [_plain(made), made["id"]]:
            raise RefusedError(f"{where}: item '{item['id']}' was changed")

    def _check_reasoning(self, body: Any, item: Any, following: list[Any], held: set[str], where: str) -> None:
        if not following or self.before.get(following[0].get("id", "")) != item["id"]:
            raise RefusedError(f"{where}: 'reasoning' was provided without its required following item")
        encrypted = item.get("encrypted_content")
        if encrypted is None and (body.get("store") is False or item["id"] not in held):
            raise RefusedError(f"{where}: Items are not persisted when `store` is set to false.")
        if encrypted is not None and encrypted != f"{body['model']}/{item['id']}":
            raise RefusedError(f"{where}: the encrypted content could not be verified")

    def answer(self, body: Any) -> Any:
        items = [*self._earlier(body), *body["input"]]
        number = len(self.requests)
        thought: Any = {"type": "reasoning", "id": f"rs_{number}", "summary": [_summary(f"Thought {number}.")]}
        if ENCRYPTED in body.get("include", ()):
            thought["encrypted_content"] = f"{body['model']}/rs_{number}"
        calls_more = self._calls_more(items) and body.get("tools")
        said = _message(number, f"Step {number}." if calls_more else f"Done {number}.")
        output = [thought, {**said, "phase": "commentary" if calls_more else "final_answer"}]
        for place in range(2) if calls_more else ():
            call = {"id": f"fc_{number}_{place}", "call_id": f"call_{number}_{place}", "status": "completed"}
            arguments = json.dumps({"order": place})
            output.append({"type": "function_call", **call, "name": body["tools"][0]["name"], "arguments": arguments})
        self.made |= {item["id"]: item for item in output}
        self.before |= {item["id"]: f"rs_{number}" for item in output[1:]}
        id_ = f"resp_{number}"
        if body.get("store") is not False:
            self.stored[id_] = [*items, *output]
        usage = {"input_tokens": 10, "output_tokens": 5}
        about = {"id": id_, "object": "response", "status": "completed", "store": body.get("store", True)}
        return {**about, "model": body["model"], "output": output, "usage": usage}

    def _calls_more(self, items: list[Any]) -> bool:
        """Whether the model has made fewer rounds since the user's last message than it makes."""
        last = max((number for number, item in enumerate(items) if item.get("role") == "user"), default=-1)
        outputs = [item for item in items[last + 1 :] if item.get("type") == "function_call_output"]
        return len(outputs) < 2 * self.rounds

    def events(self, answer: Any) -> Iterator[Any]:
        yield {"type": "response.created", "response": {**answer, "status": "in_progress", "output": []}}
        for index, item in enumerate(answer["output"]):
            at = {"output_index": index, "item_id": item["id"]}
            yield {"type": "response.output_item.added", "output_index": index, "item": item}
            if item["type"] == "message":
                for piece in halves(item["content"][0]["text"]):
                    yield {"type": "response.output_text.delta", **at, "content_index": 0, "delta": piece}
            elif item["type"] == "reasoning":
                for piece in halves(item["summary"][0]["text"]):
                    yield {"type": "response.reasoning_summary_text.delta", **at, "summary_index": 0, "delta": piece}
            yield {"type": "response.output_item.done", "output_index": index, "item": item}
        yield {"type": "response.completed", "response": answer}


def _check_message(item: Any, where: str) -> None:
    if item["role"] not in {"user", "assistant", "system", "developer"}:
        raise RefusedError(f"{where}: role {item['role']}")
    for part in item["content"] if isinstance(item["content"], list) else ():
        if (part["type"] in {"output_text", "refusal"}) != (item["role"] == "assistant"):
            raise RefusedError(f"{where}: {part['type']} in a message of {item['role']}")


def _check_pairs(items: list[Any]) -> None:
    called: list[str] = []
    for number, item in enumerate(items):
        kind = item.get("type")
        if kind == "function_call":
            if item["call_id"] in called:
                raise RefusedError(f"input.{number}: call_id is repeated")
            called.append(item["call_id"])
        elif kind == "function_call_output" and item["call_id"] not in called:
            raise RefusedError(f"input.{number}: No tool call found for function call output {item['call_id']}")
    answered = [item["call_id"] for item in items if item.get("type") == "function_call_output"]
    if sorted(called) != sorted(answered):
        raise RefusedError(f"No tool output found for function calls {sorted(set(called) - set(answered))}")


def _plain(item: Any) -> Any:
    return {name: value for name, value in item.items() if name not in _IGNORED}


def _summary(text: str) -> Any:
    return {"type": "summary_text", "text": text}


def _message(number: int, text: str) -> Any:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed", "content": [part]}
