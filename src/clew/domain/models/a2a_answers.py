"""Answers of remote agents over A2A 1.0: a message, or a task with its updates, which become one message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clew.domain.json_values import Json, JsonObject, storable
from clew.domain.messages import Content, Media, Message, Raw, Text
from clew.domain.models.chat_answers import as_object, as_objects, as_text
from clew.domain.models.client import Answer, ServiceBound, ServiceReference, TextDelta, Update, joined
from clew.domain.models.client_calls import A2A as WIRE
from clew.domain.models.native import copied, with_native

WAITING = {"TASK_STATE_INPUT_REQUIRED": "input-required", "TASK_STATE_AUTH_REQUIRED": "auth-required"}
"""States in which a task waits for the caller, and the finish reasons of such answers."""

_ENDED = {"TASK_STATE_COMPLETED": "stop", "TASK_STATE_REJECTED": "refusal", **WAITING}
_FAILED = {"TASK_STATE_FAILED": "failed", "TASK_STATE_CANCELED": "was cancelled"}
_UPDATES = frozenset({"taskId", "contextId", "status", "artifact", "append", "lastChunk"})


def ends(response: JsonObject) -> bool:
    """Whether nothing more belongs to an answer after this response."""
    result = as_object(response.get("result"))
    update = as_object(result.get("statusUpdate")) or as_object(result.get("task")) or result
    state = as_text(as_object(update.get("status")).get("state"))
    return "message" in result or "error" in response or state in _ENDED or state in _FAILED


class A2AAnswer:
    """Assembles an answer. ``outcome`` says how a task ended without one, and ``task_id`` which task answers."""

    def __init__(self) -> None:
        self.begun = False
        self.failure: Json = None
        self.outcome: str | None = None
        self.task_id: str | None = None
        self._task: JsonObject = {}
        self._message: JsonObject | None = None
        self._shown: list[str] = []
        self._updates: list[Json] = []
        self._context: str | None = None

    @property
    def state(self) -> str:
        """The state of the task, empty if there is none."""
        return as_text(as_object(self._task.get("status")).get("state"))

    @property
    def over(self) -> bool:
        """Whether nothing more belongs to the answer."""
        return self._message is not None or self.state in _ENDED or self.failure is not None

    def take(self, event: JsonObject) -> Iterator[Update]:
        """Read a response of JSON-RPC: the next piece of a stream. What comes after the end is not read."""
        if self.over:
            return
        if isinstance(error := event.get("error"), dict):
            self.failure = {"message": as_text(error.get("message")), "code": f"a2a{error.get('code')}"}
            return
        result = as_object(event.get("result"))
        if "status" in result and "id" in result:  # GetTask gives the task itself
            result = {"task": result}
        for kind, value in result.items():
            if not isinstance(value, dict):
                continue
            self.begun = True
            match kind:
                case "task":
                    yield from self._bound(value.get("id"), value.get("contextId"))
                    yield from self._snapshot(value)
                case "message":
                    yield from self._bound(None, value.get("contextId"))
                    self._message = value
                    yield from self._show(as_objects(value.get("parts")))
                case "statusUpdate":
                    yield from self._bound(value.get("taskId"), value.get("contextId"))
                    self._note(value)
                    yield from self._status(as_object(value.get("status")))
                case "artifactUpdate":
                    yield from self._bound(value.get("taskId"), value.get("contextId"))
                    self._note(value)
                    yield from self._artifact(as_object(value.get("artifact")), append=value.get("append") is True)
                case _:
                    self._updates.append({kind: value})

    def take_whole(self, body: JsonObject) -> Iterator[Update]:
        """Read an answer that was not streamed."""
        return self.take(body)

    def answer(self) -> Answer | None:
        """The answer; None until the task ends or waits."""
        if self._message is not None:
            message = self._made({"message": self._message}, [as_objects(self._message.get("parts"))])
            return Answer(message, "stop", response_id=as_text(self._message.get("messageId")) or None)
        reason = _ENDED.get(self.state)
        if reason is None or self.failure is not None:
            return None
        waiting: JsonObject | None = {"a2a": reason, "taskId": self.task_id} if self.state in WAITING else None
        return Answer(self._made({"task": self._task}, self._outcome(), waiting), reason, response_id=self.task_id)

    def _outcome(self) -> list[list[JsonObject]]:
        """The parts of the artifacts and of the last status, or else the last that the agent said before."""
        status = as_object(self._task.get("status"))
        groups = [as_objects(each.get("parts")) for each in as_objects(self._task.get("artifacts"))]
        groups.append(as_objects(as_object(status.get("message")).get("parts")))
        if any(groups):
            return groups
        said: list[JsonObject] = []
        for each in as_objects(self._task.get("history")):
            said = as_objects(each.get("parts")) if each.get("role") == "ROLE_AGENT" else []
        for update in as_objects(self._updates):
            said = as_objects(as_object(as_object(update.get("status")).get("message")).get("parts")) or said
        return [said]

    def _made(
        self, reply: JsonObject, groups: Sequence[list[JsonObject]], waiting: JsonObject | None = None
    ) -> Message:
        """The message of the answer. Its native JSON has all that was received."""
        contents = [content for parts in groups for content in _contents(parts)]
        if waiting is not None:
            contents.append(Raw(value=waiting))
        message = Message(role="assistant", contents=tuple(contents))
        received: JsonObject = {**reply, **({"updates": self._updates} if self._updates else {})}
        return with_native(message, WIRE, {}, storable(received), kept=True)

    def _bound(self, task: Json, context: Json) -> Iterator[Update]:
        task_id, context_id = as_text(task) or None, as_text(context) or None
        if task_id is not None and self.task_id is None:
            self.task_id = task_id
            self._task.setdefault("id", task_id)
        elif self._context is not None:
            return
        if context_id is not None:
            self._context = context_id
            self._task.setdefault("contextId", context_id)
            yield ServiceBound(ServiceReference(kind="conversation", id=context_id), self.task_id)

    def _note(self, update: JsonObject) -> None:
        """Keep what an update has beyond what goes into the task."""
        if more := {name: value for name, value in update.items() if name not in _UPDATES}:
            self._updates.append(more)

    def _snapshot(self, task: JsonObject) -> Iterator[Update]:
        """Read a whole task, which replaces what is known of it. Only the new part of its text is shown."""
        status = as_object(task.get("status"))
        self._task = {**as_object(copied(task)), "status": self._task.get("status", {})}
        texts = [_text(as_objects(each.get("parts"))) for each in as_objects(task.get("artifacts"))]
        shown, text = "".join(self._shown), "".join(texts)
        if text.startswith(shown):
            yield from self._piece(text[len(shown) :])
        yield from self._status(status)

    def _status(self, status: JsonObject) -> Iterator[Update]:
        before = as_object(self._task.get("status"))
        if before.get("message") and before != status:
            self._updates.append({"status": before})
        self._task["status"] = copied(status)
        if self.state in _ENDED:
            if as_object(status.get("message")):
                yield from self._show(as_objects(as_object(status.get("message")).get("parts")))
            elif not self._shown:
                yield from self._show([part for parts in self._outcome() for part in parts])
        elif (ended := _FAILED.get(self.state)) is not None:
            self.outcome = ended
            said = _text(as_objects(as_object(status.get("message")).get("parts")))
            self.failure = {"message": said or f"The task {ended}."}

    def _artifact(self, artifact: JsonObject, *, append: bool) -> Iterator[Update]:
        artifacts = self._task.setdefault("artifacts", [])
        if not isinstance(artifacts, list):
            return
        known = [as_object(each) for each in artifacts]
        id_, parts = artifact.get("artifactId"), as_objects(artifact.get("parts"))
        at = next((n for n, each in enumerate(known) if each.get("artifactId") == id_), None)
        if at is None:
            artifacts.append(copied(artifact))
        elif append:
            # Extended in place: a long answer arrives in many small pieces.
            target = artifacts[at]
            if isinstance(target, dict):
                had = target.get("parts")
                more = {name: value for name, value in artifact.items() if name != "parts"}
                target.update(more)
                if isinstance(had, list):
                    had.extend(copied([*parts]) or [])  # type: ignore[arg-type]  # a list stays a list
                else:
                    target["parts"] = copied([*parts])
        else:
            artifacts[at] = copied(artifact)
        yield from self._show(parts)

    def _show(self, parts: Sequence[JsonObject]) -> Iterator[Update]:
        yield from self._piece(_text(parts))

    def _piece(self, text: str) -> Iterator[Update]:
        if text:
            self._shown.append(text)
            yield TextDelta(text)


def _text(parts: Sequence[JsonObject]) -> str:
    return joined([text for part in parts if isinstance(text := part.get("text"), str)])


def _contents(parts: Sequence[JsonObject]) -> Iterator[Content]:
    """The contents of parts. Adjacent texts are one: a streamed text arrives as many parts."""
    texts: list[str] = []
    for part in parts:
        if isinstance(text := part.get("text"), str):
            texts.append(text)
            continue
        if texts:
            yield Text(text=joined(texts))
            texts = []
        kind = as_text(part.get("mediaType"))
        match part:
            case {"raw": str(data)}:
                yield Media(uri=f"data:{kind};base64,{data}", media_type=kind or None)
            case {"url": str(url)}:
                yield Media(uri=url, media_type=kind or None)
            case _:
                yield Raw(value=storable(part))
    if texts:
        yield Text(text=joined(texts))
