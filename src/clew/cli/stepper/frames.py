"""What replay shows of a step: a block of lines, or a screen of the stepper. Nothing here does I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from clew.cli.output import console, one_line, time_text
from clew.cli.rendering.events import Lookup, nowhere, what_happened
from clew.cli.rendering.messages import INDENT, contents, heading
from clew.cli.rendering.threads import STATUS_STYLES
from clew.cli.stepper.state import HELP, Stepper
from clew.domain import messages as content_types
from clew.domain.events import EVENT_TYPES, MESSAGE_APPENDED

if TYPE_CHECKING:
    from clew.domain.history import HistoryMessage, Step

SHORT = 4
"""Lines of a message, except the newest one."""

TAB = 4

FOOTER = "? help · q quit · ← → step · PgUp PgDn ten · Home End · [ ] message · c checkpoint · : go to"


def block(step: Step, thread_id: str, look: Lookup = nowhere) -> Iterable[Text]:
    """A step without a terminal: what happened, and its message in full."""
    yield place(step).append(" · ").append_text(when(step))
    yield Text(INDENT).append_text(words(step, thread_id, look))
    for said in new_messages(step):
        for content in contents(said):
            for line in content.split(allow_blank=True):
                yield Text(INDENT).append_text(line) if line else line
    yield Text()


def place(step: Step) -> Text:
    """The version of the step, and the state of the thread after it."""
    count = step.control.messages
    text = Text.assemble(
        (f"version {step.version} of {step.newest}", "bold"),
        " · ",
        (step.status, STATUS_STYLES[step.status]),
        f" · {count} message{'' if count == 1 else 's'}",
    )
    for name in step.checkpoints:
        text.append(f" · checkpoint {one_line(name)}", style="bold yellow")
    return text


def when(step: Step) -> Text:
    """The type, time and actor of the event."""
    by = "" if step.event.actor is None else f" · by {one_line(step.event.actor)}"
    return Text(f"{one_line(step.event.type)} · {time_text(step.event.time)}{by}")


def words(step: Step, thread_id: str, look: Lookup = nowhere) -> Text:
    """What the event did, on one line."""
    event = step.event
    details = what_happened(event, look)
    if event.type == MESSAGE_APPENDED:
        details = details.partition(":")[0]  # its text is shown with the message
    declared = EVENT_TYPES.get(event.type)
    done = None if declared is None else declared.headline
    text = Text(": ".join(part for part in (done, details) if part) + ("" if details else "."))
    if event.thread_id != thread_id:
        text.append(f" (inherited from {one_line(event.thread_id)})", style="dim")
    return text


def new_messages(step: Step) -> Sequence[HistoryMessage]:
    """The message that the event appended, as a sequence of one or none."""
    return [said for said in step.messages[-1:] if said.version == step.version]


def frame(step: Step, stepper: Stepper, thread_id: str, width: int, height: int, look: Lookup = nowhere) -> list[Text]:
    """A screen of exactly ``height`` lines, none wider than ``width``."""
    title = one_line(step.control.title or "")
    top = [
        Text.assemble((title, "bold"), " " if title else "", (one_line(thread_id), "dim")),
        place(step),
        when(step),
        words(step, thread_id, look),
        Text("─" * width, style="dim"),
    ]
    rows = max(height - len(top) - 1, 0)
    body = _help() if stepper.helping else _conversation(step, width, rows)
    lines = [*top, *body[:rows], *(Text() for _ in range(rows - len(body)))]
    lines = [*lines[: max(height - 1, 0)], _footer(stepper)]
    for line in lines:
        line.expand_tabs(TAB)
        line.truncate(width, overflow="ellipsis")
    return lines


def _help() -> list[Text]:
    return [Text.assemble((f"{keys:>20}", "bold"), f"  {meaning}") for keys, meaning in HELP]


def _footer(stepper: Stepper) -> Text:
    if stepper.typed is not None:
        return Text.assemble(("Go to version: ", "bold"), stepper.typed, ("▏ Enter to go, Esc to cancel", "dim"))
    return Text(stepper.note, style="yellow") if stepper.note else Text(FOOTER, style="dim")


def _conversation(step: Step, width: int, rows: int) -> list[Text]:
    """The end of the conversation at the version, as far as it fits, and the messages that a rewind took from it."""
    gone = _taken(step, width, rows // 2)
    rows -= len(gone)
    new = bool(new_messages(step))
    lines: list[Text] = []
    number = step.control.messages
    for said in reversed(step.messages):
        longest = max(rows * 2 // 3, 2) if not lines and new else SHORT
        shown = _message(number, said, width, longest, new=new and not lines)
        if len(shown) + len(lines) + 1 > rows:
            break
        lines = [*shown, Text(), *lines] if lines else shown
        number -= 1
    if number > 0:
        lines = [Text(f"{INDENT}… {number:,} earlier", style="dim"), *lines]
    return [*(lines or [Text(f"{INDENT}No messages.", style="dim")]), *gone]


def _taken(step: Step, width: int, rows: int) -> list[Text]:
    """The last messages that a rewind took from the path, struck out."""
    if not step.taken:
        return []
    lines: list[Text] = []
    for said in reversed(step.taken):
        shown = _message(None, said, width, SHORT - 1, new=False)
        if len(lines) + len(shown) + 3 > rows:
            lines.insert(0, Text(f"{INDENT}… and earlier ones", style="dim"))
            break
        for line in shown:
            line.stylize("dim strike")
        lines = [*shown, *lines]
    return [Text(), Text("Taken back by the rewind:", style="bold red"), *lines]


def _message(number: int | None, said: HistoryMessage, width: int, longest: int, *, new: bool) -> list[Text]:
    """A message in at most ``longest`` lines; a longer one says that it is cut."""
    head = heading(number or 0, said)
    if number is None:
        head = Text("  - ").append_text(head[4:])
    if new:
        head = Text("▶").append_text(head[1:]) if head.plain.startswith(" ") else Text("▶ ").append_text(head)
        head.stylize("reverse")
    lines: list[Text] = []
    room = max(width - len(INDENT), 1)
    characters = room * (longest + 1)
    for content in contents(_beginning(said, characters)):
        some = content[:characters]
        some.expand_tabs(TAB)
        lines += some.wrap(console(width=width), room, overflow="fold")
        if len(lines) >= longest:
            break
    if len(lines) >= longest:
        lines = [*lines[: longest - 2], Text(f"… cut here; clew show --at {said.version} shows all of it", style="dim")]
    return [head, *(Text(INDENT).append_text(line) for line in lines)]


def _beginning(said: HistoryMessage, characters: int) -> HistoryMessage:
    """The message with only as much text as can be shown: it may have many megabytes."""
    if said.message is None:
        return said
    some = tuple(
        content.model_copy(update={"text": content.text[:characters]})
        if isinstance(content, content_types.Text)
        else content
        for content in said.message.contents
    )
    return said._replace(message=said.message.model_copy(update={"contents": some}))
