"""A server with the rules of Chat Completions services that want the reasoning of their calls again.

Each call must come with ``reasoning_content``: with what the service sent for its own calls, with any for others. It
answers each turn with ``rounds`` rounds of two calls, and then with a text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.servers.strict_server import RefusedError, StrictServer, check_fields, halves

_FIELDS = {"model", "messages", "tools", "stream", "stream_options", "thinking", "max_tokens", "response_format"}
_OF_ROLE = {
    "system": {"role", "content"},
    "user": {"role", "content", "name"},
    "assistant": {"role", "content", "name", "tool_calls", "reasoning_content", "refusal"},
    "tool": {"role", "content", "tool_call_id"},
}


class StrictReasoning(StrictServer):
    """``reasoned`` is the reasoning of each call that was made, by model and call id."""

    path = "/chat/completions"

    def __init__(self, rounds: int = 3) -> None:
        super().__init__(rounds)
        self.reasoned: dict[tuple[str, str], str] = {}

    def check(self, body: Any) -> None:
        check_fields(body, _FIELDS, "body")
        due: list[str] = []
        for number, message in enumerate(body["messages"]):
            where = f"messages.{number}"
            check_fields(message, _OF_ROLE.get(message["role"], set()), where)
            if message["role"] == "tool":
                if not due or message["tool_call_id"] != due.pop(0):
                    raise RefusedError(f"{where}: a result without its call")
                continue
            if due:
                raise RefusedError(f"{where}: tool_calls must be followed by tool messages")
            if "tool_calls" in message:
                due = [call["id"] for call in message["tool_calls"]]
                self._check_reasoning(body["model"], message, due, where)
        if due:
            raise RefusedError("tool_calls must be followed by tool messages")

    def _check_reasoning(self, model: str, message: Any, ids: list[str], where: str) -> None:
        told = message.get("reasoning_content")
        if not isinstance(told, str):
            raise RefusedError(f"{where}: Missing reasoning_content in the assistant message with tool_calls")
        for id_ in ids:
            if told != self.reasoned.get((model, id_), told):
                raise RefusedError(f"{where}: another reasoning_content than that of its call")

    def answer(self, body: Any) -> Any:
        done = 0
        for message in reversed(body["messages"]):
            if message["role"] == "user":
                break
            done += "tool_calls" in message
        number = len(self.requests)
        told = f"Thought {number} of {body['model']}."
        message = {"role": "assistant", "content": f"Step {number}.", "reasoning_content": told}
        if done < self.rounds and body.get("tools"):
            name = body["tools"][0]["function"]["name"]
            calls = [
                {
                    "id": f"call_{number}_{place}",
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps({"order": place})},
                }
                for place in range(2)
            ]
            self.reasoned |= {(body["model"], str(call["id"])): told for call in calls}
            message |= {"tool_calls": calls}
        else:
            message |= {"content": f"Done {number}."}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if "tool_calls" in message else "stop"}
        usage = {"prompt_tokens": 10, "completion_tokens": 5}
        return {"id": f"chat_{number}", "object": "chat.completion", "model": body["model"], "choices": [choice]} | {
            "usage": usage
        }

    def events(self, answer: Any) -> Iterator[Any]:
        message = answer["choices"][0]["message"]
        about = {"id": answer["id"], "object": "chat.completion.chunk", "model": answer["model"]}
        deltas: list[Any] = [{"role": "assistant"}]
        for name in ("reasoning_content", "content"):
            deltas += [{name: piece} for piece in halves(message[name])]
        for index, call in enumerate(message.get("tool_calls", ())):
            deltas.append({"tool_calls": [{"index": index, **call, "function": {**call["function"], "arguments": ""}}]})
            for piece in halves(call["function"]["arguments"]):
                deltas.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        for delta in deltas:
            yield {**about, "choices": [{"index": 0, "delta": delta}]}
        yield {
            **about,
            "choices": [{"index": 0, "delta": {}, "finish_reason": answer["choices"][0]["finish_reason"]}],
            "usage": answer["usage"],
        }
