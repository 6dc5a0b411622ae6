"""Requests to models: a pure function of the call, the definitions and the history, so that they can be rebuilt."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import sha256
from typing import Any

from clew.domain.call_pairing import ModelView, model_view
from clew.domain.context.events import ContextProvided, HistoryReduced
from clew.domain.errors import InvalidContentError
from clew.domain.history import HistoryMessage
from clew.domain.json_patch import patched
from clew.domain.json_values import JsonObject, check_json
from clew.domain.messages import Message, may_have_media
from clew.domain.models.client import ModelRequest, Question, ResponseFormat, ToolSchema, WireFormat
from clew.domain.models.media import UnsentMedia, media_kind, unsent_media
from clew.domain.ports import Blob
from clew.domain.reducers.history_reduction import reduced
from clew.domain.runs.errors import AgentConfigurationError
from clew.domain.runs.events import Fingerprint, ModelCalled, RequestChanged, ServiceCall
from clew.domain.streams import digest


@dataclass(frozen=True)
class Definitions:
    """What goes into every request of an agent, whatever the history is."""

    instructions: str | None = None
    tools: tuple[ToolSchema, ...] = ()
    response_format: ResponseFormat | None = None
    own_tools: int | None = None
    """How many of the tools are the agent's own, and not those of a single run; None for all."""
    agent: str | None = None
    """The name of the agent: it is not named in its own answers."""

    @cached_property
    def blobs(self) -> tuple[Blob, ...]:
        """The stored form, in the order of the fingerprint's digests."""
        parts = [] if self.instructions is None else [self.instructions.encode()]
        parts += [_json(tool) for tool in self.tools]
        if self.response_format is not None:
            parts.append(_json(self.response_format))
        return tuple(Blob(digest(part), "definition", part) for part in parts)

    def fingerprint(self, client: str) -> Fingerprint:
        """The digests, with the kind of client."""
        names = [blob.digest.hex() for blob in self.blobs]
        instructions = names.pop(0) if self.instructions is not None else None
        response_format = names.pop() if self.response_format is not None else None
        own = len(names) if self.own_tools is None else self.own_tools
        return Fingerprint(
            client=client,
            instructions=instructions,
            tools=tuple(names[:own]),
            run_tools=tuple(names[own:]),
            response_format=response_format,
        )


def read_definitions(named: Fingerprint, data: Mapping[str, bytes], agent: str | None = None) -> Definitions:
    """The definitions that a fingerprint names; ``data`` holds the bytes of each digest, ``agent`` is its name."""
    return Definitions(
        None if named.instructions is None else data[named.instructions].decode(),
        read_tools((*named.tools, *named.run_tools), data),
        None if named.response_format is None else ResponseFormat.model_validate_json(data[named.response_format]),
        len(named.tools),
        agent,
    )


def read_tools(digests: Sequence[str], data: Mapping[str, bytes]) -> tuple[ToolSchema, ...]:
    """The schemas of tools by their digests."""
    return tuple(ToolSchema.model_validate_json(data[digest]) for digest in digests)


_COMPARED = {
    "client": "the kind of client",
    "instructions": "the instructions",
    "tools": "the tools",
    "reducer": "the reducer",
}


def changed(before: Fingerprint, now: Fingerprint) -> list[str]:
    """The differences between two fingerprints, in words."""
    return [words for name, words in _COMPARED.items() if getattr(before, name) != getattr(now, name)]


def digest_of_tool(schema: ToolSchema) -> str:
    """The SHA-256, in hex, by which fingerprints name the schema of a tool."""
    return digest(_json(schema)).hex()


def _json(value: ToolSchema | ResponseFormat) -> bytes:
    """JSON with the keys in their given order: a rebuilt request must have the same bytes."""
    return json.dumps(value.model_dump(), ensure_ascii=False, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Contributions:
    """What providers gave to a run, in order; ``tools`` are the schemas of the tools that it names by digest.

    ``late`` is what is sent as late messages: also what providers gave to earlier runs, at its place, so that the
    beginning of the request stays the same. None if the agent's instructions contain what providers gave to the run.
    """

    provided: tuple[ContextProvided, ...] = ()
    tools: tuple[ToolSchema, ...] = ()
    late: tuple[ContextProvided, ...] | None = None

    def instructions(self, own: str | None, *, with_messages: bool) -> str | None:
        """The agent's own instructions and those of providers, with a blank line between them.

        ``with_messages`` adds the providers' messages: a service that holds the history would keep them as messages.
        """
        if not self.provided or self.late is not None:
            return own
        parts = [own]
        for each in self.provided:
            parts.append(each.instructions)
            if with_messages:
                parts += [message.text for message in each.messages]
        return "\n\n".join(part for part in parts if part) or own

    def messages(self, view: Sequence[tuple[int, Message]]) -> list[tuple[int, Message]]:
        """A view, as versions and messages, with the providers' messages inserted, which have version 0."""
        if self.late is not None:
            return _with_late(view, self.late)
        merged: list[tuple[int, Message]] = list(view)
        for each in self.provided:
            if each.messages:
                place = _place(merged, each.before)
                merged[place:place] = [(0, message) for message in each.messages]
        return merged


REPLACES = "(This replaces the earlier context of {provider}.)"
"""The beginning of a late message with context, if an earlier one of the same provider is in the request."""

NO_LONGER = "(The earlier context of {provider} no longer holds.)"
"""A late message in place of the context of a provider that gives none any more."""


def _place(view: Sequence[tuple[int, Message]], before: int) -> int:
    """Where messages go that come before a version: at the end if it is 0. Results stay with their calls."""
    place = next((n for n, (version, _) in enumerate(view) if before and version >= before), len(view))
    while place < len(view) and view[place][1].results:
        place += 1
    return place


def _with_late(view: Sequence[tuple[int, Message]], late: Sequence[ContextProvided]) -> list[tuple[int, Message]]:
    """The messages with late context; of that of a provider which comes to the same place, only the newest."""
    at: dict[tuple[int, str], ContextProvided] = {}
    for each in late:
        key = _place(view, each.before), each.provider
        at.pop(key, None)
        at[key] = each
    inserted: dict[int, list[Message]] = {}
    known: set[str] = set()
    for (place, provider), each in sorted(at.items(), key=lambda item: item[0][0]):
        inserted.setdefault(place, []).extend(_late_messages(each, replaces=provider in known))
        known.add(provider)
    messages: list[tuple[int, Message]] = []
    for number in range(len(view) + 1):
        messages += [(0, message) for message in inserted.get(number, ())]
        messages += view[number : number + 1]
    return messages


def _late_messages(given: ContextProvided, *, replaces: bool) -> list[Message]:
    texts = [REPLACES.format(provider=given.provider)] if replaces else []
    if given.instructions:
        texts.append(given.instructions)
    elif replaces and not given.messages:
        texts = [NO_LONGER.format(provider=given.provider)]
    return [*([Message.system("\n\n".join(texts))] if texts else []), *given.messages]


NO_CONTRIBUTIONS = Contributions()


@dataclass(frozen=True, slots=True)
class Request:
    """The request of a model call, rebuilt from the log.

    ``version`` is the version of the call. ``body`` is the request as JSON values, ``content`` as bytes, and ``path``
    where it was sent, below the service's address. ``digest`` is the one on the log, in hex. ``sent`` says whether the
    service has received the request: False if it could not be reached or a middleware did not proceed, None if that is
    not known, because nothing came back. ``verified`` says that it was sent, and that the rebuilt request has the
    digests on the log. It has others if a text was redacted since; ``redacted`` are the versions of such messages and
    changes. ``changed_by`` names the middleware that changed the request, ``withheld_by`` the one that did not send it.
    """

    version: int
    client: str
    wire: str
    path: str
    model: str
    body: JsonObject
    content: bytes
    digest: str
    verified: bool
    redacted: tuple[int, ...] = ()
    changed_by: tuple[str, ...] = ()
    withheld_by: str | None = None
    sent: bool | None = None


def question_of(
    call: ModelCalled,
    definitions: Definitions,
    history: Iterable[HistoryMessage],
    contributions: Contributions = NO_CONTRIBUTIONS,
    reduction: HistoryReduced | None = None,
) -> Question:
    """The request to a model, in no provider's format.

    ``history`` is the path at the call; ``contributions`` are what context providers gave to the run; ``reduction`` is
    the current reduction of the history, None for all of it.
    """
    remote = call.service is not None
    view = model_view(history if reduction is None else reduced(history, reduction, 0))
    messages, versions = view.messages, view.versions
    if remote or contributions.provided or contributions.late:
        merged = unsent(view, call.service) if remote else contributions.messages(unsent(view, None))
        messages, versions = tuple([each for _, each in merged]), tuple([version for version, _ in merged])
    tools = (*definitions.tools, *contributions.tools)
    if call.disabled:
        tools = tuple([each for each in tools if each.name not in call.disabled])
    return Question(
        model=call.model,
        messages=messages,
        versions=versions,
        instructions=contributions.instructions(definitions.instructions, with_messages=remote),
        tools=tools,
        response_format=definitions.response_format,
        options=call.options,
        service=None if call.service is None else call.service.reference,
        provider=call.provider,
        agent=definitions.agent,
        edition=call.edition,
        task=None if call.service is None else call.service.task,
    )


def request_of(
    wire: WireFormat,
    call: ModelCalled,
    definitions: Definitions,
    history: Iterable[HistoryMessage],
    contributions: Contributions = NO_CONTRIBUTIONS,
    reduction: HistoryReduced | None = None,
) -> tuple[Question, JsonObject, bytes]:
    """The question of a call (see ``question_of``), and the body of its request as JSON values and as bytes."""
    question = question_of(call, definitions, history, contributions, reduction)
    body = wire.make_body(question)
    return question, body, request_bytes(body)


def lost_media(
    wire: WireFormat, call: ModelCalled, question: Question, contributions: Contributions
) -> tuple[UnsentMedia, ...]:
    """The media that a model does not receive with the question of a call.

    A service that holds the history gets the messages of context providers as instructions, which are text.
    """
    lost = unsent_media(wire, question) if may_have_media(question.messages) else ()
    if call.service is None:
        return lost
    provided = [message for each in contributions.provided for message in each.messages]
    kinds = [(index, media_kind(each)) for message in provided for index, each in enumerate(message.contents)]
    return lost + tuple(UnsentMedia(0, index, kind) for index, kind in kinds if kind is not None)


def stream_request(wire: WireFormat, body: JsonObject, content: bytes, model: str) -> ModelRequest:
    """The request for a stream, of a body that has the bytes ``content`` without one."""
    sent = wire.as_stream(body)
    if all(sent.get(name) is value for name, value in body.items()) and content != b"{}":
        added = {name: value for name, value in sent.items() if name not in body}
        more = b"," + _as_json(added).encode()[1:] if added else b"}"
        return ModelRequest(body, content[:-1] + more, streams=True, model=model)
    return ModelRequest(body, request_bytes(sent), streams=True, model=model)


def prefix_of(wire: WireFormat, body: JsonObject, content: bytes) -> str | None:
    """The SHA-256, in hex, of the part of a request that the model reads; ``content`` are the bytes of ``body``.

    It is the digest of the JSON of the shorter fields and of the messages. The messages are not written to JSON again:
    their bytes are those of ``content``. None if the format does not say which fields the model reads.
    """
    if wire.prefix_of is not None:
        return wire.prefix_of(body)
    *others, messages = wire.prefix_fields or ("",)
    if messages not in body:
        return None
    before: JsonObject = {}
    after: JsonObject = {}
    part = before
    for name, value in body.items():
        part[name] = value
        if name == messages:
            before[name], part = 0, after
    first = len(_as_json(before).encode()) - 2
    last = len(content) - (len(_as_json(after).encode()) if after else 1)
    shorter: JsonObject = {}
    for name in others:
        if name in body:
            shorter[name] = body[name]
    hashed = sha256(_as_json(shorter).encode())
    hashed.update(memoryview(content)[first:last])
    return hashed.hexdigest()


def rebuilt(  # all that a request depends on
    version: int,
    wire: WireFormat,
    call: ModelCalled,
    definitions: Definitions,
    history: Iterable[HistoryMessage],
    contributions: Contributions = NO_CONTRIBUTIONS,
    reduction: HistoryReduced | None = None,
    changes: Sequence[tuple[int, RequestChanged]] = (),
) -> Request:
    """The request of the model call at a version. ``changes`` are those of middleware, with their versions."""
    messages = list(history)
    _, body, content = request_of(wire, call, definitions, messages, contributions, reduction)
    verified = digest(content).hex() == call.digest
    after = 0 if call.service is None else call.service.sent
    # Of the answer that a service has, only the results were sent: without it, they have no calls.
    had = 0 if call.service is None or not verified else call.service.answer
    redacted = [each.version for each in messages if each.redacted and each.version != had and each.version > after]
    redacted += [at for at, change in changes if not change.patch]
    if changes:
        try:
            for _, change in changes:
                body = patched(body, change.patch)
        except InvalidContentError:  # the patch was made for a text that was redacted since
            verified = False
        content = request_bytes(body)
    service = call.service or ServiceCall()
    request = ModelRequest(body, content, call.streamed, call.model, service.reference, service.task)
    sent = stream_request(wire, body, content, call.model).content if call.streamed else content
    return Request(
        version=version,
        client=call.client,
        wire=call.wire,
        path=wire.path_of(request),
        model=call.model,
        body=wire.as_stream(body) if call.streamed else body,
        content=sent,
        digest=call.digest,
        verified=verified and call.as_sent in {None, digest(sent).hex()},
        redacted=tuple(redacted),
        changed_by=tuple(change.by for _, change in changes),
    )


def unsent(view: ModelView, service: ServiceCall | None) -> list[tuple[int, Message]]:
    """The messages of a view that go into a request, with their versions.

    For a remote thread these are the messages that the service does not have. It has those up to its last call, and its
    own answer, but not the results of the calls in that answer.
    """
    messages = list(zip(view.versions, view.messages, strict=True))
    if service is None:
        return messages
    return [
        (version, message)
        for version, message in messages
        if version > service.sent and (version != service.answer or message.role == "tool")
    ]


_SET_BY_RUN = frozenset({"model", "messages", "input", "stream", "previous_response_id", "conversation"})
"""Fields that the question sets, so options must not."""

_NOT_SENT = frozenset({"api_key", "extra_body", "extra_headers", "extra_query", "timeout"})
"""Settings of the client, not fields of the body. Some are secret, and options are recorded."""


def checked_options(options: Mapping[str, Any] | None) -> JsonObject:
    """The options, which go into the bodies of requests and are recorded in the log.

    Raises AgentConfigurationError for names that are not options, and InvalidContentError for values that are not JSON.
    """
    checked: JsonObject = dict(options or {})
    check_json(checked, "options")
    if set_by_run := sorted(_SET_BY_RUN & set(checked)):
        raise AgentConfigurationError(f"options has {', '.join(set_by_run)}, which the run sets itself. Leave it out.")
    if client_settings := sorted(_NOT_SENT & set(checked)):
        raise AgentConfigurationError(
            f"options has {', '.join(client_settings)}. Options are fields of a request's body, and are "
            "recorded. Set the others on the client, as in client=AsyncOpenAI(default_headers=…)."
        )
    tools = checked.get("tools")
    for each in tools if isinstance(tools, list) else ():
        if isinstance(each, dict) and each.get("type") == "mcp" and (each.get("authorization") or each.get("headers")):
            raise AgentConfigurationError(
                "options has the credentials of an MCP server, and options are recorded. Leave them out, and give them "
                "to the client: OpenAIResponsesClient(mcp_credentials={server_label: token})."
            )
    return checked


def request_bytes(body: JsonObject) -> bytes:
    """The bytes of a body as the ``openai`` package sends them: JSON without spaces, in UTF-8.

    Long lists are written in parts: while ``json`` writes, no other thread can run.
    """
    if not [value for value in body.values() if isinstance(value, list) and len(value) > _PART]:
        return _as_json(body).encode()
    parts: list[str] = []
    for name, value in body.items():
        parts += ["," if parts else "{", _as_json(name), ":"]
        if isinstance(value, list) and len(value) > _PART:
            starts = range(0, len(value), _PART)
            parts += ["[", ",".join([_as_json(value[start : start + _PART])[1:-1] for start in starts]), "]"]
        else:
            parts.append(_as_json(value))
    return "".join([*parts, "}"]).encode()


_PART = 500
"""Items of a list that are written to JSON at once."""


_as_json = partial(json.dumps, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
