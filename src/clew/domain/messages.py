"""Messages and their contents, and the base class of all values of the domain."""

from __future__ import annotations

import re
from binascii import a2b_base64
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from operator import is_, not_
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails

from clew.domain.errors import InvalidContentError
from clew.domain.json_values import Json, JsonObject, check_json, check_text

is_none = partial(is_, None)
"""Whether a field is None, for ``exclude_if``. It is called for each value that is written, and runs in C for speed."""


class Value(BaseModel):
    """A frozen value. Invalid fields raise InvalidContentError."""

    # NaN is written as NaN, so that it can be detected and refused: by default, pydantic writes null.
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    if not TYPE_CHECKING:  # type checkers see the fields, not this signature

        def __init__(self, *values: Any, **fields: Any) -> None:
            if values:
                raise TypeError(self._positional_advice(values))
            try:
                self.__pydantic_validator__.validate_python(fields, self_instance=self)  # as in pydantic's own
            except ValidationError as error:
                raise InvalidContentError(explain(type(self).__name__, error) + self._advice(fields)) from None

        # Only direct calls use this method: bulk reads are validated without a Python call per value.
        __init__.__pydantic_base_init__ = True

    @classmethod
    def _advice(cls, fields: dict[str, Any]) -> str:
        """Advice for these invalid fields, with a space before it."""
        del fields
        return ""

    @classmethod
    def _positional_advice(cls, values: tuple[Any, ...]) -> str:
        """What to write instead of these positional arguments."""
        del values
        names = ", ".join(f"{name}=…" for name, field in cls.model_fields.items() if field.is_required())
        return f"{cls.__name__} takes only named arguments. Write {cls.__name__}({names})."


def explain(name: str, error: ValidationError) -> str:
    """One line for a validation error: the place and what is expected. The input may be private and is left out."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    more = error.error_count() - 1
    return f"{name}{'.' + where if where else ''}: {_reason(first)}" + (f" (and {more} more)" if more else "") + "."


def _reason(error: ErrorDetails) -> str:
    """Pydantic's message, except for unknown types, where it would quote the input."""
    return "its type is not known" if error["type"] == "union_tag_invalid" else error["msg"]


Role: TypeAlias = Literal["system", "developer", "user", "assistant", "tool"]

ROLES: tuple[Role, ...] = ("system", "developer", "user", "assistant", "tool")


class Text(Value):
    """Plain text."""

    type: Literal["text"] = "text"
    text: str


class Reasoning(Value):
    """The reasoning of a model before its answer. ``data`` is the provider's own item and is sent back unchanged."""

    type: Literal["reasoning"] = "reasoning"
    text: str
    data: Json = Field(default=None, exclude_if=is_none)


class Media(Value):
    """An image, audio or a file: ``uri`` is its address, or a ``data:`` URI that contains it.

    ``Image``, ``Audio`` and ``File`` make one of bytes, a file or a URL. ``name`` is the name of its file. ``size`` and
    ``digest`` are only in stored events whose bytes are next to them: there ``uri`` ends before the bytes, and these
    are their number and their SHA-256 in hex. Messages that you make or read have the whole ``uri``, and neither.
    """

    type: Literal["media"] = "media"
    uri: str
    media_type: str | None = Field(default=None, exclude_if=is_none)
    name: str | None = Field(default=None, exclude_if=is_none)
    size: int | None = Field(default=None, ge=0, exclude_if=is_none)
    digest: str | None = Field(default=None, pattern="^[0-9a-f]{64}$", exclude_if=is_none)

    @field_validator("digest")
    @classmethod
    def _check_digest(cls, value: str | None, fields: ValidationInfo) -> str | None:
        if value is not None and (fields.data.get("size") is None or not is_base64_head(fields.data.get("uri", ""))):
            raise ValueError("a digest comes with the size of the bytes, and with a uri that ends before them")
        return value

    @property
    def data(self) -> bytes | None:
        """The bytes in a ``data:`` URI with base64, None for an address and for anything else."""
        head, comma, encoded = self.uri.partition(",")
        if self.digest is not None or not is_base64_head(head + comma):
            return None
        try:
            return a2b_base64(encoded, strict_mode=True)
        except ValueError:
            return None


_BASE64_HEAD = re.compile("data:[^,]*;base64,")


def is_base64_head(uri: str) -> bool:
    """Whether this is the beginning of a ``data:`` URI, up to the comma before its base64."""
    return _BASE64_HEAD.fullmatch(uri) is not None


class FunctionCall(Value):
    """A model's request to call a function; ``arguments`` is the text that the model wrote, usually JSON."""

    type: Literal["function-call"] = "function-call"
    call_id: str
    name: str
    arguments: str


class FunctionResult(Value):
    """The result of a function call. Call ids repeat within a conversation: match by order, not by id alone.

    ``contents`` are the texts, images and files of a result that is more than JSON, in order. ``result`` is then None.
    """

    type: Literal["function-result"] = "function-result"
    call_id: str
    name: str | None = Field(default=None, exclude_if=is_none)
    result: Json = None
    contents: tuple[Annotated[Text | Media, Field(discriminator="type")], ...] = Field(default=(), exclude_if=not_)

    @field_validator("contents")
    @classmethod
    def _check_contents(cls, value: tuple[Text | Media, ...], fields: ValidationInfo) -> tuple[Text | Media, ...]:
        if value and fields.data.get("result") is not None:
            raise ValueError("a result has contents or JSON, not both")
        return value


class ApprovalRequest(Value):
    """A function call that waits for approval."""

    type: Literal["approval-request"] = "approval-request"
    approval_id: str
    call: FunctionCall
    reason: str | None = Field(default=None, exclude_if=is_none)


class ApprovalResponse(Value):
    """The decision on an approval request."""

    type: Literal["approval-response"] = "approval-response"
    approval_id: str
    approved: bool
    reason: str | None = Field(default=None, exclude_if=is_none)


class Raw(Value):
    """A provider's item of another kind, unchanged."""

    type: Literal["raw"] = "raw"
    value: Json = None


Content: TypeAlias = Text | Reasoning | Media | FunctionCall | FunctionResult | ApprovalRequest | ApprovalResponse | Raw


class Native(Value):
    """What a provider's own JSON of an answer has and the contents have not.

    ``wire`` is the format, ``provider`` the service and ``model`` the model that made it; it is sent back to no other.
    ``patch`` makes that JSON of what the format writes for the contents, as operations of RFC 6902. ``prefix`` is the
    SHA-256, in hex, of the part of the request that signed parts of the answer are bound to; None without such parts.
    """

    wire: str
    provider: str | None = Field(default=None, exclude_if=is_none)
    model: str | None = Field(default=None, exclude_if=is_none)
    patch: tuple[JsonObject, ...] = ()
    prefix: str | None = Field(default=None, exclude_if=is_none)


class Message(Value):
    """One message of a conversation.

    ``author`` names the speaker within the role; ``metadata`` is the application's own JSON; ``source`` holds the parts
    of an imported message that these fields cannot hold, so that an export equals the import; ``native`` holds those of
    a model's answer. ``cut`` says that an answer is incomplete: it was interrupted, or reached a limit.
    """

    role: Role
    author: str | None = Field(default=None, exclude_if=is_none)
    contents: tuple[Annotated[Content, Field(discriminator="type")], ...]
    metadata: JsonObject = Field(default_factory=dict, exclude_if=not_)
    source: JsonObject = Field(default_factory=dict, exclude_if=not_)
    native: Native | None = Field(default=None, exclude_if=is_none)
    cut: bool = Field(default=False, exclude_if=not_)

    @classmethod
    def _advice(cls, fields: dict[str, Any]) -> str:
        contents = fields.get("contents")
        is_list = isinstance(contents, list | tuple) and not any(isinstance(each, str) for each in contents)
        if is_list and fields.keys().isdisjoint({"content", "text"}):
            return ""
        return f" Its parts are in contents: {_how_to_write(fields.get('role'))}"

    @classmethod
    def _positional_advice(cls, values: tuple[Any, ...]) -> str:
        advice = _how_to_write(values[0])
        return f"Message takes only named arguments: {advice}"

    @classmethod
    def system(cls, text: str, *, metadata: JsonObject | None = None) -> Message:
        """The instructions of a conversation."""
        return cls(role="system", contents=(Text(text=text),), metadata=metadata or {})

    @classmethod
    def user(
        cls,
        text: str | Content,
        *contents: str | Content,
        author: str | None = None,
        metadata: JsonObject | None = None,
    ) -> Message:
        """A message of a person: texts, images, audio, files and other contents, in order.

        Raises InvalidContentError for anything else, such as bytes, which ``Image(data)`` makes a content.
        """
        if isinstance(text, str) and not contents:  # most are
            parts: tuple[Content, ...] = (Text(text=text),)
        else:
            parts = tuple([_content(each) for each in (text, *contents)])
        return cls(role="user", author=author, contents=parts, metadata=metadata or {})

    @classmethod
    def assistant(
        cls,
        text: str | None = None,
        *,
        calls: Sequence[FunctionCall] = (),
        author: str | None = None,
        metadata: JsonObject | None = None,
    ) -> Message:
        """A message of a model: text, function calls, or both."""
        words = () if text is None else (Text(text=text),)
        return cls(role="assistant", author=author, contents=(*words, *calls), metadata=metadata or {})

    @classmethod
    def tool(
        cls, call_id: str, result: Json, *, name: str | None = None, metadata: JsonObject | None = None
    ) -> Message:
        """The result of a function call."""
        contents = (FunctionResult(call_id=call_id, name=name, result=result),)
        return cls(role="tool", contents=contents, metadata=metadata or {})

    @classmethod
    def from_openai(cls, value: JsonObject) -> Message:
        """A message in the format of OpenAI's Chat Completions: ``{"role": "user", "content": "Hello"}``.

        Everything in it is kept, so an export equals it. Raises ImportFormatError for anything else.
        """
        from clew.domain.formats.openai_messages import decode

        return decode(value)

    @property
    def text(self) -> str:
        """The text of the message: its text contents, joined."""
        return "".join(content.text for content in self.contents if isinstance(content, Text))

    @property
    def calls(self) -> tuple[FunctionCall, ...]:
        """The function calls in the message, in order."""
        contents = self.contents
        if len(contents) == 1:  # most have one
            content = contents[0]
            return (content,) if isinstance(content, FunctionCall) else ()
        return tuple([content for content in contents if isinstance(content, FunctionCall)])

    @property
    def results(self) -> tuple[FunctionResult, ...]:
        """The function results in the message, in order."""
        contents = self.contents
        if len(contents) == 1:  # most have one
            content = contents[0]
            return (content,) if isinstance(content, FunctionResult) else ()
        return tuple([content for content in contents if isinstance(content, FunctionResult)])


_CONSTRUCTORS = {
    "system": 'Message.system("hi")',
    "user": 'Message.user("hi")',
    "assistant": 'Message.assistant("hi")',
    "tool": "Message.tool(call_id, result)",
}


def _content(value: object) -> Content:
    """A text or a content as a content. Raises InvalidContentError for anything else."""
    if isinstance(value, str):
        return Text(text=value)
    if isinstance(value, Content):
        return value
    raise InvalidContentError(
        f"Message.user: {type(value).__name__} is neither a text nor a content. Write Image(…), Audio(…) or File(…) of "
        "bytes, a Path or a URL, and Raw(value=…) for a part in the format of a service."
    )


def _how_to_write(role: object) -> str:
    """How to write a message of a role; of a user if the role is not known."""
    role = role if role in ROLES else "user"
    content = 'FunctionResult(call_id="…", result="…")' if role == "tool" else 'Text(text="hi")'
    in_full = f'Message(role="{role}", contents=[{content}]).'
    return f"write {_CONSTRUCTORS[role]}, or {in_full}" if role in _CONSTRUCTORS else f"write {in_full}"


def only_text(message: Message) -> str | None:
    """The text of a message whose only content is one text, as in most messages; None for any other message."""
    contents = message.contents
    if len(contents) == 1:
        content = contents[0]
        if isinstance(content, Text):
            return content.text
    return None


def may_have_media(items: Iterable[object]) -> bool:
    """Whether a message among these items has media, or an item of a provider, which may be media."""
    for item in items:
        if isinstance(item, Message):
            for content in item.contents:
                if isinstance(content, Media | Raw) or (isinstance(content, FunctionResult) and content.contents):
                    return True
    return False


def media_of(contents: Iterable[Content]) -> Iterator[Media]:
    """The media among contents, also those of results, in order."""
    for content in contents:
        if type(content) is Media:
            yield content
        elif type(content) is FunctionResult:
            yield from [each for each in content.contents if type(each) is Media]


_CONTENTS = "contents: it must be a tuple of contents such as Text."


def check_message(message: Message) -> None:
    """Raise InvalidContentError unless everything in ``message`` can be stored and read back unchanged.

    The types are checked again, because pydantic's ``model_copy`` and ``model_construct`` do not check them.
    """
    contents, metadata, source = message.contents, message.metadata, message.source
    if message.role not in ROLES:
        raise InvalidContentError(f"role: it must be one of {', '.join(ROLES)}.")
    if not isinstance(contents, tuple):
        raise InvalidContentError(_CONTENTS)
    if not isinstance(metadata, dict) or not isinstance(source, dict):
        raise InvalidContentError("metadata: it must be a dict.")
    if metadata:
        check_json(metadata, "metadata")
    if source:
        check_json(source, "source")
    if message.author is not None:
        check_text(message.author, "author")
    if message.native is not None:
        check_json(message.native.model_dump(mode="json"), "native")
    for content in contents:
        text = content.text if type(content) is Text else None
        if type(text) is not str or not text.isascii():  # most are
            _check_contents(contents)
            break


def _check_contents(contents: tuple[object, ...]) -> None:
    for index, content in enumerate(contents):
        _check_content(content, f"contents[{index}]")


def _check_content(content: object, where: str) -> None:
    if type(content) is Text:
        check_text(content.text, f"{where}.text")
    elif isinstance(content, Content):
        if isinstance(content, Media) and content.digest is not None:
            raise InvalidContentError(
                f"{where}.digest: only a stored event has it. Give the bytes: Image(…), Audio(…) or File(…)."
            )
        if isinstance(content, FunctionResult) and content.contents:
            for index, each in enumerate(content.contents):
                _check_content(each, f"{where}.contents[{index}]")
            content = content.model_copy(update={"contents": ()})
        _check_fields(content, where)
    else:
        raise InvalidContentError(_CONTENTS)


def _check_fields(value: Value, where: str) -> None:
    for name in type(value).model_fields:
        field = getattr(value, name)
        if field is None or (type(field) is str and field.isascii()):
            continue  # most are
        if field == () and name == "contents":
            continue
        if isinstance(field, Value):
            _check_fields(field, f"{where}.{name}")
        else:
            check_json(field, f"{where}.{name}")
