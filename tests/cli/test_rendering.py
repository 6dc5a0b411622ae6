from __future__ import annotations

from datetime import UTC, datetime
from io import StringIO
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from clew.cli.rendering import conversation as rendering
from clew.cli.rendering.threads import thread_table
from clew.domain.history import History, HistoryMessage
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
    Text,
)
from clew.service.thread_queries import ThreadSummary

if TYPE_CHECKING:
    from clew.domain.event_types import Status

CALL = FunctionCall(call_id="1", name="look", arguments='{"at": "sea"}')


def console(width: int = 80, *, terminal: bool = False) -> Console:
    return Console(
        file=StringIO(),
        width=width,
        force_terminal=terminal,
        no_color=True,
        color_system=None,
        markup=False,
        emoji=False,
        highlight=False,
    )


def written(out: Console) -> str:
    assert isinstance(out.file, StringIO)
    return out.file.getvalue()


def render(*messages: HistoryMessage, out: Console | None = None) -> str:
    out = out or console()
    for line in rendering.conversation_lines(History("t", len(messages), messages), None, len(messages), out):
        out.print(line, soft_wrap=True)
    return written(out)


def history_message(*contents: Content, author: str | None = None) -> HistoryMessage:
    message = Message(role="assistant", author=author, contents=contents)
    return HistoryMessage(2, "assistant", message, "e", 0)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (Text(text="[bold]Hi[/bold] :smile: 42"), "[bold]Hi[/bold] :smile: 42"),
        (Reasoning(text="Hm."), "Hm."),
        (Media(uri="https://example.org/a.png", media_type="image/png"), "[image/png: https://example.org/a.png]"),
        (Media(uri="data:image/png;base64," + "A" * 2_000), "[image/png: 1,500 bytes]"),
        (CALL, '→ look({"at": "sea"})'),
        (FunctionResult(call_id="1", result="waves"), "← waves"),
        (FunctionResult(call_id="1", name="look", result={"é": 1}), '← look: {"é": 1}'),
        (ApprovalRequest(approval_id="a", call=CALL), 'approve? look({"at": "sea"})'),
        (ApprovalResponse(approval_id="a", approved=True), "approved"),
        (ApprovalResponse(approval_id="a", approved=False, reason="no"), "rejected: no"),
        (Raw(value={"type": "odd"}), '{"type": "odd"}'),
    ],
)
def test_every_content_is_shown(content: Content, line: str) -> None:
    assert line in render(history_message(content))


def test_a_message_says_its_number_role_author_version_and_time() -> None:
    assert "  1 assistant Maeve  version 2 · 1970-01-01 00:00:00Z\n    Hi\n" in render(
        history_message(Text(text="Hi"), author="Maeve")
    )


def test_empty_messages_and_threads_say_so() -> None:
    assert "[no content]" in render(history_message())
    assert "[redacted]" in render(HistoryMessage(2, "user", None, "e", 0))


def test_messages_are_wrapped_on_a_terminal_and_whole_elsewhere() -> None:
    message = history_message(Text(text="word " * 100))
    assert max(len(line) for line in render(message, out=console(40, terminal=True)).splitlines()) <= 60
    assert ("word " * 100).strip() in render(message, out=console(40))


def summary(id_: str, parent: str | None = None, title: str | None = "T", status: Status = "active") -> ThreadSummary:
    time = datetime(2026, 1, 31, tzinfo=UTC)
    return ThreadSummary(id_, title, status, 7, 5, parent, None, "", time, time, {}, {}, {}, imported=False)


def table(*threads: ThreadSummary, width: int = 80) -> list[str]:
    out = console(width)
    out.print(thread_table([(each, "how it begins") for each in threads], out))
    return written(out).splitlines()


def test_forks_are_under_their_parents() -> None:
    lines = table(
        summary("one"), summary("two"), summary("fork", "one"), summary("deeper", "fork"), summary("lost", "x")
    )
    assert [line[:12].rstrip() for line in lines[2:]] == ["one", "└ fork", "  └ deeper", "two", "lost"]


def test_a_chain_of_forks_of_any_depth_is_listed() -> None:
    chain = [summary("0"), *(summary(str(number), str(number - 1)) for number in range(1, 3_000))]
    assert len(table(*chain)) == 2 + 3_000


def test_a_thread_without_a_title_shows_its_first_words() -> None:
    assert "how it begins" in table(summary("one", title=None))[2]
    assert "how it begins" not in table(summary("one"))[2]


def test_a_narrow_terminal_gets_fewer_columns_and_whole_ids() -> None:
    wide, narrow = table(summary("0123456789abcdef")), table(summary("0123456789abcdef"), width=50)
    assert "2026-01-31 00:00" in wide[2]
    assert "2026" not in narrow[2]
    assert "0123456789abcdef" in narrow[2]
    assert max(len(line) for line in narrow) <= 50
