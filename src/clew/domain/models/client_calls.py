"""Items of a service's answer that wait for the client: approvals of its MCP servers, custom calls, computer calls.

The items are those of OpenAI's Responses, in the answer of any client. Their results are items, too, and are sent as
they are. A task of a remote agent over A2A may also wait, for the caller's input.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

from clew.domain.json_values import Json, JsonObject
from clew.domain.messages import FunctionCall, Media, Message, Raw

CallKind: TypeAlias = Literal["function", "approval", "input", "custom", "computer", "other"]
"""What an answer waits for: the result of a function, or one of the items of this module."""

_KINDS: dict[str, CallKind] = {
    "mcp_approval_request": "approval",
    "custom_tool_call": "custom",
    "computer_call": "computer",
    "local_shell_call": "other",
    "shell_call": "other",
    "apply_patch_call": "other",
}

_RESULTS = frozenset({"mcp_approval_response", *(f"{kind}_output" for kind in _KINDS)})

COMPUTER = "computer"
"""The name of the function that carries out computer calls."""

A2A = "a2a"
"""The name of A2A's format. A content of an answer with this key says what the task waits for."""


class ClientCall(NamedTuple):
    """An item that waits: its kind, and the call that it asks for. ``asks`` says that a person must approve it."""

    kind: CallKind
    call: FunctionCall
    asks: bool = False


def client_calls(message: Message) -> Iterator[tuple[int, ClientCall]]:
    """The items of an answer that wait for the client, each with its place among the contents."""
    if message.native is None:
        return
    if message.native.wire == A2A:
        yield from _task_inputs(message)
        return
    items = [content.value if isinstance(content, Raw) else None for content in message.contents]
    done = answered_ids(items)
    for place, item in enumerate(items):
        if isinstance(item, dict) and (kind := _KINDS.get(_text(item, "type"))) is not None and id_of(item) not in done:
            yield place, _client_call(kind, item)


def _task_inputs(message: Message) -> Iterator[tuple[int, ClientCall]]:
    for place, content in enumerate(message.contents):
        match content:
            case Raw(value={"a2a": str(state), "taskId": str(id_)}):
                asked = json.dumps({"question": message.text}, ensure_ascii=False)
                yield place, ClientCall("input", FunctionCall(call_id=id_, name=state, arguments=asked), asks=True)


def _client_call(kind: CallKind, item: JsonObject) -> ClientCall:
    id_, name, arguments = id_of(item), _text(item, "name"), _text(item, "arguments")
    if kind == "approval":
        label = _text(item, "server_label")
        return ClientCall(kind, FunctionCall(call_id=id_, name=f"{label}.{name}", arguments=arguments), asks=True)
    if kind == "custom":
        return ClientCall(kind, FunctionCall(call_id=id_, name=name, arguments=_text(item, "input")))
    shown = {key: item[key] for key in ("action", "actions", "operation", _CHECKS) if item.get(key)}
    name = COMPUTER if kind == "computer" else _text(item, "type")
    call = FunctionCall(call_id=id_, name=name, arguments=json.dumps(shown, ensure_ascii=False))
    return ClientCall(kind, call, asks=_CHECKS in shown)


_CHECKS = "pending_safety_checks"


def id_of(item: JsonObject) -> str:
    """The id of an item that waits, or of its result."""
    if item.get("type") == "mcp_approval_response":
        return _text(item, "approval_request_id")
    return _text(item, "id" if item.get("type") == "mcp_approval_request" else "call_id") or _text(item, "id")


def waits(item: Json) -> bool:
    """Whether an item waits for the client, until its result is in the conversation."""
    return isinstance(item, dict) and _text(item, "type") in _KINDS


def answered_ids(items: Iterable[Json]) -> set[str]:
    """The ids of those that are answered among some items."""
    return {id_of(item) for item in items if isinstance(item, dict) and _text(item, "type") in _RESULTS}


def paired(items: Sequence[Json], messages: Iterable[Message]) -> list[Json]:
    """The items of some messages, without those that wait and have no result, and without the reasoning before them.

    Results of calls that are not among the items any more are left out, too: the service refuses both.
    """
    answered, asked = answered_ids(items), _asked_ids(items)
    lost = (
        _asked_ids(content.value for each in messages for content in each.contents if isinstance(content, Raw)) - asked
    )
    kept: list[Json] = []
    for item in items:
        if not isinstance(item, dict):
            kept.append(item)
        elif waits(item) and id_of(item) not in answered:
            while kept and isinstance(before := kept[-1], dict) and before.get("type") == "reasoning":
                kept.pop()
        elif _text(item, "type") not in _RESULTS or id_of(item) not in lost:
            kept.append(item)
    return kept


def _asked_ids(items: Iterable[Json]) -> set[str]:
    return {id_of(item) for item in items if isinstance(item, dict) and waits(item)}


def client_names(tools: Json) -> set[str]:
    """The names of the tools of a service whose calls functions of the agent carry out."""
    listed = [each for each in tools if isinstance(each, dict)] if isinstance(tools, list) else []
    names = {_text(each, "name") for each in listed if each.get("type") == "custom"}
    return names | ({COMPUTER} if any(_text(each, "type").startswith(COMPUTER) for each in listed) else set())


def arguments_for(kind: CallKind, call: FunctionCall, parameters: JsonObject) -> str:
    """The arguments of the function with which a call is carried out, as JSON, from the schema of its parameters.

    The text of a custom call, and the actions of a computer call, are the only argument of a function that has one.
    """
    names = parameters.get("properties")
    if kind == "function" or not isinstance(names, dict) or len(names) != 1:
        return call.arguments
    value: Json = call.arguments
    if kind == "computer":
        item = json.loads(call.arguments)
        value = item.get("actions", item.get("action"))
    return json.dumps(dict.fromkeys(names, value), ensure_ascii=False)


def decision_of(kind: CallKind, call: FunctionCall, *, approved: bool, reason: str | None) -> Raw:
    """The decision about a call of the service's MCP server, or the input that a remote agent's task waits for."""
    if kind == "input":
        return Raw(value={"a2a": "input", "taskId": call.call_id, "approved": approved, "text": reason})
    item: JsonObject = {"type": "mcp_approval_response", "approval_request_id": call.call_id, "approve": approved}
    return Raw(value={**item, "reason": reason} if reason else item)


def custom_result(call: FunctionCall, text: str) -> Raw:
    """The result of a custom call."""
    return Raw(value={"type": "custom_tool_call_output", "call_id": call.call_id, "output": text})


def computer_result(call: FunctionCall, screenshot: Json) -> Raw | None:
    """The result of a computer call, from an address or a ``data:`` URI, or from media; None for anything else."""
    if isinstance(screenshot, dict) and screenshot.get("type") == Media.model_fields["type"].default:
        screenshot = screenshot.get("uri")
    if not isinstance(screenshot, str) or not screenshot.startswith(("data:image/", "https://", "http://")):
        return None
    output: JsonObject = {"type": "computer_screenshot", "image_url": screenshot}
    item: JsonObject = {"type": "computer_call_output", "call_id": call.call_id, "output": output}
    checks = json.loads(call.arguments).get(_CHECKS)
    return Raw(value={**item, "acknowledged_safety_checks": checks} if checks else item)


def _text(item: JsonObject, name: str) -> str:
    value = item.get(name)
    return value if isinstance(value, str) else ""
