"""Conversion between OpenAI chat messages and Clew's messages, without loss.

Decoding reads the fields that Clew's messages have; encoding writes the simplest OpenAI form. If that form differs from
the original, ``Message.source["openai"]`` stores the difference: ``parts`` (the content was a list, although a string
would do), ``function_call`` (the call had the older form), and ``patch`` (see ``difference``). If the patch would nest
too deep, ``text`` stores the whole message as JSON instead. So the encoded message always equals the original, whatever
fields it has.

Content without an OpenAI form is written as a content part with Clew's own JSON: reasoning, approvals, media other than
images, and function results outside tool messages. Images lose their media type, and calls come after other contents.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from clew.domain.errors import ImportFormatError, InvalidContentError
from clew.domain.json_values import Json, JsonObject, check_json, check_text, is_text
from clew.domain.messages import (
    ApprovalRequest,
    ApprovalResponse,
    Content,
    FunctionCall,
    FunctionResult,
    Media,
    Message,
    Raw,
    Reasoning,
    Role,
    Text,
)

_FORMAT = "openai"
_LONGEST_ROLE = 20
"""The most characters of an unknown role that an error quotes: a longer value is probably user text."""

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",  # the older form of a function result
}

_TEXT_ROLES = ("user", "assistant", "system", "developer")
_TEXT_FIELDS = {"role", "content"}
_CALLS_FIELDS = {"role", "content", "tool_calls"}
_CALL_FIELDS = {"id", "type", "function"}
_FUNCTION_FIELDS = {"name", "arguments"}
_RESULT_FIELDS = {"role", "tool_call_id", "content"}
_NAME_FIELD = {"name"}

_make_message: Callable[[dict[str, Any]], Message] = Message.__pydantic_validator__.validate_python
"""Makes a message and its contents in one call, in a fraction of the time of their constructors."""

_OWN: TypeAdapter[Content] = TypeAdapter(Reasoning | Media | FunctionResult | ApprovalRequest | ApprovalResponse)
_OWN_TYPES = ("reasoning", "media", "function-result", "approval-request", "approval-response")


def decode(value: object, number: int | None = None) -> Message:
    """Decode an OpenAI chat message. Errors name its ``number`` among others, which counts from 1.

    Raises ImportFormatError for anything else, and InvalidContentError for JSON that cannot be stored.
    """
    where = "message" if number is None else f"message {number}"
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise ImportFormatError(f"{where}: {kind} is not an object with a role. Each message must be one.")
    message = _read_exact(value)
    if message is not None:
        return message
    role = _role(value, where)
    content = value.get("content")
    if content is not None and not isinstance(content, str | list):
        kind = type(content).__name__
        raise ImportFormatError(f"{where}: its content is {kind}, but it must be a string, a list of parts or null.")
    for key, item in value.items():
        check_text(key, f"{where}: a key")
        check_json(item, f"{where}: {key}")
    return _with_source(_read(value, role), value)


def encode(message: Message) -> list[JsonObject]:
    """The message in the OpenAI chat format: one object, or one per result for a tool message."""
    hints = message.source.get(_FORMAT)
    if not isinstance(hints, dict):
        return _plain(message, {})
    if isinstance(text := hints.get("text"), str):
        return [json.loads(text)]
    plain = _plain(message, hints)
    if "patch" not in hints:
        return plain
    return [cast("JsonObject", patched(plain[0], cast("JsonObject", hints["patch"])))]


def encode_redacted(role: Role) -> JsonObject:
    """A redacted message in the OpenAI chat format."""
    return {"role": role, "content": None, "redacted": True}


def _read_exact(value: dict[Any, Any]) -> Message | None:
    """The message of an object with exactly the fields of a text, calls or a text result, as most have; else None.

    Encoded, it has the same fields again. All values are texts, which are checked here, so nothing else needs a check.
    """
    role, names = value.get("role"), value.keys()
    contents: list[JsonObject] | None = None
    if type(role) is not str:
        return None
    if role in _TEXT_ROLES and names == _TEXT_FIELDS:
        contents = [{"type": "text", "text": value["content"]}] if is_text(value["content"]) else None
    elif role in _TEXT_ROLES and names == _CALLS_FIELDS:
        contents = _exact_calls(value["content"], value["tool_calls"])
    elif role == "tool" and names - _NAME_FIELD == _RESULT_FIELDS:
        texts = {**value, "type": "function-result", "call_id": value["tool_call_id"], "result": value["content"]}
        del texts["role"], texts["tool_call_id"], texts["content"]
        contents = [texts] if all(map(is_text, texts.values())) else None
    return None if contents is None else _make_message({"role": role, "contents": contents})


def _exact_calls(text: object, calls: object) -> list[JsonObject] | None:
    """The contents of a message with a text or none and with calls of exactly the usual fields; else None."""
    if type(calls) is not list or not calls:
        return None
    contents: list[JsonObject] = [] if text is None else [{"type": "text", "text": cast("str", text)}]
    texts = [] if text is None else [text]
    for call in calls:
        if type(call) is not dict or call.keys() != _CALL_FIELDS or call["type"] != "function":
            return None
        function = call["function"]
        if type(function) is not dict or function.keys() != _FUNCTION_FIELDS:
            return None
        contents.append({"type": "function-call", "call_id": call["id"], **function})
        texts += call["id"], function["name"], function["arguments"]
    return contents if all(map(is_text, texts)) else None


def _role(value: dict[Any, Any], where: str) -> Role:
    role = value.get("role")
    if isinstance(role, str) and role in _ROLES:
        return _ROLES[role]
    if "role" not in value:
        problem = "it has no role"
    elif isinstance(role, str) and len(role) <= _LONGEST_ROLE and role.isidentifier():
        problem = f"the role {role!r} is not known"
    else:
        problem = "its role is not known"
    raise ImportFormatError(f"{where}: {problem}. It must be one of {', '.join(_ROLES)}.")


def _with_source(message: Message, value: JsonObject) -> Message:
    if _plain(message, {})[0] == value:  # most are; numbers in both are the same objects, so 1 is not taken for true
        return message
    hints: JsonObject = {}
    if isinstance(value.get("content"), list) and not isinstance(_plain(message, {})[0].get("content"), list):
        hints["parts"] = True
    if _is_older_call(value):
        hints["function_call"] = True
    patch = difference(_plain(message, hints)[0], value)
    if patch is not None:
        hints["patch"] = patch
    if not hints:
        return message
    source: JsonObject = {_FORMAT: hints}
    try:
        check_json(source, "source")
    except InvalidContentError:  # the value is valid, so the patch nests too deep
        source = {_FORMAT: {"text": json.dumps(value, ensure_ascii=False)}}
    return message.model_copy(update={"source": source})


def _read(value: JsonObject, role: Role) -> Message:
    name = value.get("name")
    author = name if isinstance(name, str) else None
    metadata = fields if isinstance(fields := value.get("metadata"), dict) else {}
    content = value.get("content")
    contents: list[Content] = []
    if role == "tool":
        call_id = value.get("tool_call_id")
        id_ = call_id if isinstance(call_id, str) else ""
        parts = _result_parts(content)
        result = FunctionResult(call_id=id_, name=author, contents=parts, result=None if parts else content)
        contents.append(result)
        return Message(role=role, contents=tuple(contents), metadata=metadata)
    if isinstance(content, str):
        contents.append(Text(text=content))
    elif isinstance(content, list):
        contents += [_read_part(part) for part in content]
    if isinstance(refusal := value.get("refusal"), str) and not isinstance(content, list):
        contents.append(Raw(value={"type": "refusal", "refusal": refusal}))
    if _is_older_call(value):
        contents.append(_read_function("", value["function_call"]))
    elif isinstance(calls := value.get("tool_calls"), list):
        contents += [_read_call(call) for call in calls]
    return Message(role=role, author=author, contents=tuple(contents), metadata=metadata)


def _result_parts(content: Json) -> tuple[Text | Media, ...]:
    """The contents of a result that has media in Clew's own JSON, none for any other: that is JSON as it is."""
    if not isinstance(content, list) or not any(
        isinstance(each, dict) and each.get("type") == "media" for each in content
    ):
        return ()
    parts = [part for each in content if isinstance(part := _read_part(each), Text | Media)]
    return tuple(parts) if len(parts) == len(content) else ()


def _read_part(part: Json) -> Content:
    match part:
        case {"type": "text", "text": str(text)}:
            return Text(text=text)
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return Media(uri=url)
        case {"type": str(kind)} if kind in _OWN_TYPES:
            try:
                own = _OWN.validate_python(part)
            except ValidationError:  # another provider's part of the same type
                return Raw(value=part)
            is_stored = isinstance(own, Media) and own.digest is not None  # its bytes are in another place
            return own if same(_own_json(own), part) and not is_stored else Raw(value=part)
        case _:
            return Raw(value=part)


def _read_call(call: Json) -> Content:
    match call:
        case {"function": {"name": str()} as function}:
            return _read_function(_call_id(call), function)
        case {"custom": {"name": str(name), "input": str(text)}}:
            return FunctionCall(call_id=_call_id(call), name=name, arguments=text)
        case _:
            return Raw(value=call)


def _call_id(call: Json) -> str:
    match call:
        case {"id": str(id_)}:
            return id_
        case _:
            return ""


def _read_function(call_id: str, function: Any) -> FunctionCall:
    """``arguments`` is usually text and stays unchanged; some programs write an object, which becomes JSON text."""
    arguments = function.get("arguments", "")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return FunctionCall(call_id=call_id, name=function["name"], arguments=text)


def _is_older_call(value: JsonObject) -> bool:
    match value:
        case {"role": "tool" | "function"} | {"tool_calls": [_, *_]}:
            return False
        case {"function_call": {"name": str()}}:
            return True
        case _:
            return False


def _plain(message: Message, hints: JsonObject) -> list[JsonObject]:
    """The simplest form of a message; ``hints`` are those of its source except the patch."""
    if message.role == "tool" and message.contents and len(message.results) == len(message.contents):
        return [_plain_result(message, result, hints) for result in message.results]
    rest = [content for content in message.contents if not isinstance(content, FunctionCall)]
    plain: JsonObject = {"role": message.role}
    if not hints.get("parts") and (refusal := _last_refusal(rest)) is not None:
        plain["refusal"] = refusal
        del rest[-1]
    plain["content"] = _plain_content(rest, as_parts=bool(hints.get("parts")))
    if message.author is not None:
        plain["name"] = message.author
    if message.calls and hints.get("function_call"):
        plain["function_call"] = {"name": message.calls[0].name, "arguments": message.calls[0].arguments}
    elif message.calls:
        plain["tool_calls"] = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.calls
        ]
    return [_with_metadata(plain, message)]


def _plain_result(message: Message, result: FunctionResult, hints: JsonObject) -> JsonObject:
    """A result that is not text is written as JSON, because the format takes only text. Several contents are parts."""
    content: Json = [_own_json(each) for each in result.contents] if result.contents else result.result
    if not isinstance(content, str) and not result.contents and not hints.get("parts"):
        content = json.dumps(content, ensure_ascii=False)
    plain: JsonObject = {"role": message.role, "tool_call_id": result.call_id, "content": content}
    name = message.author if result.name is None else result.name
    if name is not None:
        plain["name"] = name
    return _with_metadata(plain, message)


def _with_metadata(plain: JsonObject, message: Message) -> JsonObject:
    if message.metadata:
        plain["metadata"] = message.metadata
    return plain


def _plain_content(contents: Sequence[Content], *, as_parts: bool) -> Json:
    if not contents:
        return [] if as_parts else None
    if len(contents) == 1 and isinstance(contents[0], Text) and not as_parts:
        return contents[0].text
    return [_plain_part(content) for content in contents]


def _plain_part(content: Content) -> Json:
    match content:
        case Text(text=text):
            return {"type": "text", "text": text}
        case Media(uri=uri, media_type=kind) if kind is None or kind.startswith("image/"):
            return {"type": "image_url", "image_url": {"url": uri}}
        case Raw(value=value):
            return value
        case _:
            return _own_json(content)


def _own_json(content: Content) -> JsonObject:
    return content.model_dump(mode="python")


def _last_refusal(contents: Sequence[Content]) -> str | None:
    """The refusal at the end of a message, if at most one text is before it."""
    match contents:
        case [Raw(value={"type": "refusal", "refusal": str(refusal), **rest})] | [
            Text(),
            Raw(value={"type": "refusal", "refusal": str(refusal), **rest}),
        ] if not rest:
            return refusal
        case _:
            return None


def same(one: Json, other: Json) -> bool:
    """Whether two values are the same JSON: 1, 1.0 and true differ, and the order of keys does not count."""
    return difference(one, other) is None


def difference(old: Json, new: Json) -> JsonObject | None:
    """The patch from ``old`` to ``new``, None if they are the same JSON. Nearly equal values have a small patch.

    A patch is an object. ``{"is": value}`` replaces the whole value. Otherwise ``set`` has the added keys, ``drop``
    names the removed keys, and ``in`` has patches for keys in both values, or for indexes of equally long lists (as
    decimal text).
    """
    if isinstance(old, dict) and isinstance(new, dict):
        return _object_difference(old, new)
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        inner: JsonObject = {}
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            if (patch := difference(before, after)) is not None:
                inner[str(index)] = patch
        return {"in": inner} if inner else None
    # Floats are compared as text: 0.0 and -0.0 are equal numbers, but not the same JSON.
    equal = repr(old) == repr(new) if isinstance(old, float) else old == new
    return None if type(old) is type(new) and equal else {"is": new}


def patched(old: Json, patch: JsonObject) -> Json:
    """The result of applying the patch to ``old``, which does not change; patches of missing keys are ignored."""
    if "is" in patch:
        return patch["is"]
    inner = cast("dict[str, JsonObject]", patch.get("in", {}))
    if isinstance(old, list):
        return [patched(item, inner[str(index)]) if str(index) in inner else item for index, item in enumerate(old)]
    if not isinstance(old, dict):
        return old
    dropped = cast("list[str]", patch.get("drop", []))
    rest = {key: patched(item, inner.get(key, {})) for key, item in old.items() if key not in dropped}
    return {**rest, **cast("JsonObject", patch.get("set", {}))}


def _object_difference(old: JsonObject, new: JsonObject) -> JsonObject | None:
    patch: JsonObject = {}
    if added := {key: value for key, value in new.items() if key not in old}:
        patch["set"] = added
    if dropped := [key for key in old if key not in new]:
        patch["drop"] = list(dropped)
    inner: JsonObject = {}
    for key, before in old.items():
        if key in new and (change := difference(before, new[key])) is not None:
            inner[key] = change
    if inner:
        patch["in"] = inner
    return patch or None
