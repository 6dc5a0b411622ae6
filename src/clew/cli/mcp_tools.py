"""The tools that assistants get over MCP: each reads or changes the store, and returns a bounded page of JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from itertools import islice
from typing import Annotated, Any, Literal, TypeVar

from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from clew.cli.commands.model_requests import newest_call, verification_text
from clew.cli.errors import WrongUsage
from clew.cli.options import Moment, parse_moment, parse_time, version_of
from clew.cli.output import json_text, one_line
from clew.cli.rendering import json_shapes
from clew.conversations import Conversations
from clew.domain.errors import ClewError
from clew.domain.messages import Message
from clew.sync.threads import Thread

MOST_CHARACTERS = 30_000
"""The most characters of an answer, about 8,000 tokens. The rest comes in pages."""

LONGEST_TEXT = 4_000
MOST_ELEMENTS = 50
"""Limits of the texts and lists in a part of a page: what is longer is cut, and ``read`` returns it whole."""

_LONGEST_ERROR = 1_000

ThreadId = Annotated[str, Field(description="The id of a thread, or a unique prefix of it.")]
At = Annotated[
    int | str | None,
    Field(
        description="A version, message:N, an ISO 8601 time with offset, or a checkpoint's name. Default: the newest."
    ),
]
Limit = Annotated[int, Field(ge=1, le=200, description="The most parts of the page.")]
Offset = Annotated[int, Field(ge=0, description="The first character to return: the `next` of the page before.")]
Version = Annotated[int, Field(ge=1, description="A version of the thread.")]
Expected = Annotated[int | None, Field(description="Fail if the thread has another version by now.")]

FunctionT = TypeVar("FunctionT", bound=Callable[..., str])


def _tool(function: FunctionT) -> FunctionT:
    """Errors of Clew become errors of the tool, with their text; others are bugs, and the SDK hides their text."""

    @wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> str:
        try:
            return function(*args, **kwargs)
        except (ClewError, WrongUsage) as error:
            text = error.format_message() if isinstance(error, WrongUsage) else str(error)
            raise ToolError(one_line(text)[:_LONGEST_ERROR]) from None

    return guarded  # type: ignore[return-value]  # it has the same parameters


class ReadingTools:
    """What assistants can read. Nothing here changes the store or calls a model."""

    def __init__(self, conversations: Conversations) -> None:
        self._conversations = conversations

    def tools(self) -> Sequence[Callable[..., str]]:
        """The tools. Their names, parameters and docstrings are what assistants see."""
        return (
            self.search,
            self.threads,
            self.show,
            self.read,
            self.diff,
            self.replay,
            self.audit,
            self.verify,
            self.request,
        )

    @_tool
    def search(
        self,
        words: Annotated[str, Field(description='Words, "phrases" and -excluded words, as in: parcel -refund')],
        thread: str | None = None,
        limit: Limit = 20,
        before: Annotated[int | None, Field(description="The `next` of the page before.")] = None,
    ) -> str:
        """Find messages by their words, also in tool calls and results. The newest hits come first."""
        found = None if thread is None else self._conversations.find(thread)
        hits = self._conversations.search(words, thread=found, limit=limit + 1, before=before)
        return _page("hits", map(json_shapes.hit, hits), limit, lambda hit: hit["position"])

    @_tool
    def threads(
        self,
        status: Literal["active", "suspended", "ended", "deleted"] | None = None,
        limit: Limit = 20,
        after: Annotated[str | None, Field(description="The `next` of the page before.")] = None,
    ) -> str:
        """List threads with their titles and versions. Those that changed last come first."""
        found = self._conversations.threads(
            status=status, order="updated", newest_first=True, limit=limit + 1, after=after
        )
        return _page("threads", map(json_shapes.thread, found), limit, lambda thread: thread["thread_id"])

    @_tool
    def show(
        self,
        thread: ThreadId,
        at: At = None,
        limit: Limit = 20,
        before: Annotated[
            int | None, Field(description="Only messages before this version: the `next` of a page.")
        ] = None,
    ) -> str:
        """Show the newest messages of a thread, as it is or as it was. `next` leads to earlier messages."""
        opened = self._thread(thread)
        history = opened.history(at=_version(opened, at), last=limit + 1, before=before)
        newest_first = map(json_shapes.message, reversed(history.messages))
        more = {"thread_id": opened.id, "version": history.version}
        return _page("messages", newest_first, limit, lambda each: each["version"], more, backwards=True)

    @_tool
    def read(self, thread: ThreadId, version: Version, offset: Offset = 0) -> str:
        """Read one event whole, such as a message that another tool cut: its JSON, in slices."""
        opened = self._thread(thread)
        events = list(opened.events(after=version - 1, at=version))
        if not events:
            raise ToolError(f"Thread {opened.id!r} has no version {version}. Its newest is {opened.version}.")
        return _slice(json_text(json_shapes.event(events[0])), offset, {"thread_id": opened.id, "version": version})

    @_tool
    def diff(
        self,
        thread: ThreadId,
        other: ThreadId,
        at: At = None,
        other_at: At = None,
        after: Annotated[int, Field(ge=0, description="The `next` of the page before.")] = 0,
        limit: Limit = 20,
    ) -> str:
        """Compare two threads message by message, from where they part."""
        one, two = self._thread(thread), self._thread(other)
        diff = self._conversations.diff(one.id, two.id, at=_version(one, at), other_at=_version(two, other_at))
        shape = json_shapes.diff(diff)
        rows = ({"row": number, **row} for number, row in enumerate(shape.pop("rows"), start=1) if number > after)
        return _page("rows", rows, limit, lambda row: row["row"], shape)

    @_tool
    def replay(
        self,
        thread: ThreadId,
        after: Annotated[int, Field(ge=0, description="Steps after this version: the `next` of a page.")] = 0,
        limit: Limit = 20,
    ) -> str:
        """Step through a thread: each event, and the state after it. It only reads the log; nothing runs again."""
        opened = self._thread(thread)
        steps = (json_shapes.step(opened.step(at=event.version, last=1)) for event in opened.events(after=after))
        return _page("steps", steps, limit, lambda step: step["version"], {"thread_id": opened.id})

    @_tool
    def audit(  # every filter has its own parameter
        self,
        thread: str | None = None,
        actor: str | None = None,
        event_type: Annotated[str | None, Field(description="A type of events, such as tool-started.")] = None,
        since: Annotated[str | None, Field(description="A time in ISO 8601 with an offset, a date, or 7d.")] = None,
        until: str | None = None,
        after: Annotated[int | None, Field(description="The `next` of the page before.")] = None,
        limit: Limit = 50,
    ) -> str:
        """Say who did what and when, oldest first. The entries quote no messages."""
        entries = self._conversations.audit(
            thread=None if thread is None else self._conversations.find(thread),
            actor=actor,
            type=event_type,
            since=parse_time(since, "since"),
            until=parse_time(until, "until"),
            limit=limit + 1,
            after=after,
        )
        return _page("entries", map(json_shapes.audit_entry, entries), limit, lambda entry: entry["position"])

    @_tool
    def verify(self, thread: str | None = None) -> str:
        """Recompute the hashes of a thread, or of the whole store, and name the first event that was changed."""
        found = None if thread is None else self._conversations.find(thread)
        return json_text(_cut(json_shapes.verdict(self._conversations.verify(found))))

    @_tool
    def request(
        self,
        thread: ThreadId,
        version: Annotated[
            int | None, Field(description="The version of a model call; default: the newest call.")
        ] = None,
        offset: Offset = 0,
    ) -> str:
        """Rebuild the request that a model was sent from the log, and check it against its digest. In slices."""
        opened = self._thread(thread)
        rebuilt = opened.request(newest_call(opened) if version is None else version)
        more = {"thread_id": opened.id, "version": rebuilt.version, "model": rebuilt.model, "path": rebuilt.path}
        more |= {"verified": rebuilt.verified, "sent": rebuilt.sent, "verification": verification_text(rebuilt)}
        return _slice(json_text(rebuilt.body), offset, more)

    def _thread(self, prefix: str) -> Thread:
        return self._conversations.thread(self._conversations.find(prefix))


class WritingTools(ReadingTools):
    """What assistants can do with ``--allow-write``: reading, and the changes that delete nothing."""

    def tools(self) -> Sequence[Callable[..., str]]:
        """The tools that read, and those that write."""
        return (*super().tools(), *self.changes())

    def changes(self) -> Sequence[Callable[..., str]]:
        """The tools that write."""
        return (self.append, self.fork, self.rewind)

    @_tool
    def append(
        self,
        thread: ThreadId,
        text: str,
        role: Literal["user", "assistant"] = "user",
        expected_version: Expected = None,
        idempotency_key: Annotated[
            str | None, Field(description="A repeated call with the same key appends once.")
        ] = None,
    ) -> str:
        """Append a message to a thread."""
        message = Message.user(text) if role == "user" else Message.assistant(text)
        appended = self._thread(thread).append(
            message, expected_version=expected_version, idempotency_key=idempotency_key
        )
        return json_text({"thread_id": self._thread(thread).id, "version": appended.version})

    @_tool
    def fork(self, thread: ThreadId, at: At = None, title: str | None = None) -> str:
        """Start a new thread whose past is this one, up to a version. This thread does not change."""
        opened = self._thread(thread)
        forked = opened.fork(at=_version(opened, at), title=title)
        return json_text({"thread_id": forked.id, "parent_id": opened.id, "version": forked.version})

    @_tool
    def rewind(self, thread: ThreadId, to: int | str, expected_version: Expected = None) -> str:
        """Continue a thread from an earlier version. Nothing is deleted: a rewind to `undo` takes it back."""
        opened = self._thread(thread)
        version = opened.rewind(_version(opened, to), expected_version=expected_version)
        return json_text({"thread_id": opened.id, "version": version, "undo": version - 1})


def _version(thread: Thread, at: int | str | None) -> Any:
    """A version, a time or a checkpoint's name. Raises WrongUsage."""
    return version_of(thread, Moment(at=at) if isinstance(at, int) else parse_moment(at, "at"))


def _page(
    name: str,
    items: Iterable[dict[str, Any]],
    limit: int,
    cursor: Callable[[dict[str, Any]], Any],
    more: dict[str, Any] | None = None,
    *,
    backwards: bool = False,
) -> str:
    """A page of at most ``limit`` items, and no more than fit; ``next`` is None after the last one."""
    taken: list[dict[str, Any]] = []
    size, next_ = 0, None
    for item in islice(items, limit + 1):
        shown = _fitting(item)
        size += len(json_text(shown))
        if len(taken) == limit or (taken and size > MOST_CHARACTERS):
            next_ = cursor(taken[-1])
            break
        taken.append(shown)
    return json_text({**(more or {}), name: taken[::-1] if backwards else taken, "next": next_})


def _fitting(item: dict[str, Any]) -> dict[str, Any]:
    """An item whose JSON fits into an answer. One that is too large keeps its numbers, ids and names."""
    shown = _cut(item)
    if len(json_text(shown)) <= MOST_CHARACTERS:
        return dict(shown)
    plain = {key: value for key, value in shown.items() if not isinstance(value, dict | list)}
    return {**plain, "too_large": "Read it with the tool `read`."}


def _cut(value: Any) -> Any:
    """The value with shorter texts and lists."""
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        return f"{value[:LONGEST_TEXT]}… ({len(value):,} characters; the tool `read` returns them)"
    if isinstance(value, list | tuple):
        rest = [f"… ({len(value):,} elements)"] if len(value) > MOST_ELEMENTS else []
        return [*map(_cut, value[:MOST_ELEMENTS]), *rest]
    return {key: _cut(each) for key, each in value.items()} if isinstance(value, dict) else value


def _slice(text: str, offset: int, more: dict[str, Any]) -> str:
    """A slice of a text; ``next`` is the offset of the next one."""
    end = offset + MOST_CHARACTERS
    rest = end if end < len(text) else None
    return json_text({**more, "characters": len(text), "json": text[offset:end], "next": rest})


def lines(tools: Sequence[Callable[..., str]]) -> Iterator[str]:
    """The names of tools and the first lines of their descriptions."""
    for tool in tools:
        yield f"{tool.__name__}: {(tool.__doc__ or '').splitlines()[0]}"
