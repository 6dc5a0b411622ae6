from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.domain.strategies import messages

from clew.domain.decider_state import Control
from clew.domain.formats.markdown import ForkedThread, as_markdown
from clew.domain.history import HistoryMessage, ThreadState
from clew.domain.messages import ApprovalRequest, ApprovalResponse, FunctionCall, Media, Message, Raw, Reasoning

BRANCH = r"""# Refund \*now\*

- Thread: `b`
- Forked from: `root` at version 7
- Status: active
- Version: 12
- Messages: 4
- Started: 2023-11-14 22:13:20 UTC
- Updated: 2023-11-14 22:14:20 UTC
- Imported from: `airline-0`
- Checkpoint: `before refund` at version 3
- Label: `topic=refund`
- Label: `stars=5`
- Metadata: `{"a": 1}`

## 1. user `Maeve`

2023-11-14 22:13:20 UTC, version 2, recorded by `user:1`

```text
Where is it?
```

## 2. assistant

2023-11-14 22:13:20 UTC, version 3, recorded by `user:1`

```text
Let me look.
```

Calls `refund` (`c1`):

```json
{
  "sum": 48
}
```

## 3. tool

2023-11-14 22:13:20 UTC, version 4, recorded by `user:1`

Result of `refund` (`c1`):

```json
{
  "ok": true
}
```

## 4. user

2023-11-14 22:13:20 UTC, version 5, recorded by `user:1`

*Redacted.*

## Forks

- `branch` at version 3: What if
- `other` at version 4
"""

FENCE = re.compile(r"^(`{3,})[a-z]*$")


def in_history(message: Message | None, version: int = 2) -> HistoryMessage:
    role = "user" if message is None else message.role
    return HistoryMessage(version, role, message, "e", 1_700_000_000_000_000, "user:1")


def markdown_of(*contents: Message | None, control: Control | None = None) -> str:
    placed = [in_history(message, version) for version, message in enumerate(contents, start=2)]
    return as_markdown("t", ThreadState(control or Control(version=9), tuple(placed)))


def outside_fences(markdown: str) -> list[str]:
    """Return the lines outside code fences, by the rules of CommonMark."""
    lines: list[str] = []
    fence = None
    for line in re.split(r"\r\n|\r|\n", markdown):
        opening = FENCE.match(line)
        if fence is None and opening is not None:
            fence = opening[1]
        elif fence is None:
            lines.append(line)
        elif re.fullmatch(rf" {{0,3}}`{{{len(fence)},}}\s*", line):
            fence = None
    assert fence is None
    return lines


def test_contains_the_properties_of_a_thread_and_its_messages() -> None:
    control = Control(
        version=12,
        title="Refund *now*",
        labels={"topic": "refund", "stars": 5},
        metadata={"a": 1},
        source_id="airline-0",
        checkpoints={"before refund": 3},
        parent_id="root",
        forked_at=7,
        created_at=1_700_000_000_000_000,
        updated_at=1_700_000_060_000_000,
    )
    call = FunctionCall(call_id="c1", name="refund", arguments='{"sum": 48}')
    state = ThreadState(
        control,
        (
            in_history(Message.user("Where is it?", author="Maeve"), 2),
            in_history(Message.assistant("Let me look.", calls=[call]), 3),
            in_history(Message.tool("c1", {"ok": True}, name="refund"), 4),
            in_history(None, 5),
        ),
    )
    forks = [ForkedThread("branch", 3, "What if"), ForkedThread("other", 4, None)]
    assert as_markdown("b", state, forks) == BRANCH


def test_contains_every_kind_of_content() -> None:
    call = FunctionCall(call_id="c`1", name="a``b", arguments="not JSON")
    markdown = markdown_of(
        Message(role="assistant", contents=(Reasoning(text="Hm."), Raw(value={"x": [1]}), Media(uri="d" * 999))),
        Message(role="assistant", contents=(ApprovalRequest(approval_id="1", call=call, reason="*big*"),)),
        Message(role="user", contents=(ApprovalResponse(approval_id="1", approved=False, reason="no"),)),
        Message(role="user", contents=(ApprovalResponse(approval_id="1", approved=True),)),
        Message(role="user", contents=()),
    )
    for each in (
        "Reasoning:\n\n```text\nHm.\n```",
        '```json\n{\n  "x": [\n    1\n  ]\n}\n```',
        f"Media: `{'d' * 40}… (999 characters)`",
        "Asks for approval to call ```a``b``` (\\*big\\*):\n\n```text\nnot JSON\n```",
        "Rejected (no).",
        "Approved.",
        "*No content.*",
    ):
        assert each in markdown


@pytest.mark.parametrize(
    "text", ["```", "````\n# Not a heading\n```", "a\r```\r# No", "~~~\n# No", "`" * 50, "</pre># No", "\n\n# No\n"]
)
def test_text_stays_in_its_fence(text: str) -> None:
    lines = outside_fences(markdown_of(Message.user(text), Message.tool("c", text)))
    assert [line for line in lines if line.startswith("#")] == ["# `t`", "## 1. user", "## 2. tool"]
    assert not [line for line in lines if "No" in line]


@given(st.lists(messages | st.none(), max_size=3), st.text(max_size=20), st.text(max_size=20))
def test_no_message_becomes_markup(drawn: list[Message | None], title: str, label: str) -> None:
    markdown = markdown_of(
        *drawn, control=Control(version=9, title=title, labels={label: label}, checkpoints={label: 1})
    )
    headings = [line for line in outside_fences(markdown) if line.startswith("#")]
    assert len(headings) == 1 + len(drawn)
    roles = ["user" if each is None else each.role for each in drawn]
    assert [line.split()[2] for line in headings[1:]] == roles


def test_escapes_markdown_outside_fences() -> None:
    markdown = markdown_of(control=Control(title="a\n# b ![x](y) <script> & `code` | $1$"))
    assert markdown.startswith("# a \\# b \\!\\[x\\](y) \\<script\\> \\& \\`code\\` \\| \\$1\\$\n")


def test_a_thread_without_a_title_is_named_by_its_id() -> None:
    assert markdown_of().startswith("# `t`\n")
    assert json.dumps(markdown_of(control=Control(title="  "))).startswith('"# `t`\\n')
