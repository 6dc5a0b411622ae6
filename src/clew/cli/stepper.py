"""The stepper: one thread, version by version, in the whole terminal; or its steps as blocks of lines."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rich.text import Text

from clew.cli.options import MOST_DIGITS
from clew.cli.output import console, one_line, plural, time_text
from clew.cli.rendering.conversation import INDENT, content_texts, message_heading
from clew.cli.rendering.events import FindEvent, actor_text, event_finder, find_nothing, what_happened
from clew.cli.rendering.threads import STATUS_STYLES
from clew.domain import messages as content_types
from clew.domain.events import EVENT_TYPES, MESSAGE_APPENDED

if TYPE_CHECKING:
    from clew.cli.terminal import Screen
    from clew.domain.history import HistoryMessage, Step
    from clew.sync.threads import Thread

PAGE = 10
"""Versions that a page key moves."""

SEARCH_PAGE = 100
"""Events that are read at once in the search for the next or the previous message."""

SHORT = 4
"""Lines of a message, except the newest one."""

TAB = 4

MOVES = {
    **dict.fromkeys(("right", "down", "l", "n", " "), 1),
    **dict.fromkeys(("left", "up", "h", "p"), -1),
    "page down": PAGE,
    "page up": -PAGE,
}

FOOTER = "? help · q quit · ← → step · PgUp PgDn ten · Home End · [ ] message · c checkpoint · : go to"

HELP = (
    ("→ l n space", "the next version"),
    ("← h p", "the previous version"),
    ("PgDn PgUp", f"{PAGE} versions forward, {PAGE} back"),
    ("Home g", "the first version"),
    ("End G", "the newest version, including one that was just appended"),
    ("] [", "the next message, the previous one"),
    ("c", "the next version that has a checkpoint"),
    (": or digits, Enter", "the version with that number"),
    ("?", "this help; any key closes it"),
    ("q", "quit"),
)
"""The keys and what they do."""


def run(thread: Thread, step: Step, screen: Screen) -> None:
    """Show a step, and then the steps that the user goes to, until the user quits."""
    stepper, find = Stepper(step.version, step.newest), event_finder(lambda _: thread)
    while not stepper.ended:
        size = screen.size
        screen.draw(frame(step, stepper, thread.id, size.columns, size.lines, find))
        keys = screen.keys()
        summary = thread.summary()
        stepper = with_newest(stepper, summary.version, tuple(sorted(set(summary.checkpoints.values()))))
        for key in keys:
            if not stepper.ended:
                stepper = press(stepper, key)
                if stepper.direction:
                    search = next_message if stepper.direction > 0 else previous_message
                    stepper = after_search(stepper, search(thread, stepper.version))
        step = thread.step(at=stepper.version, last=max(screen.size.lines, 1))


def next_message(thread: Thread, version: int) -> int | None:
    """The first version after this one at which a message was appended, on the path or not."""
    newest = thread.version
    for after in range(version, newest, SEARCH_PAGE):
        versions = _message_versions(thread, after, min(after + SEARCH_PAGE, newest))
        if versions:
            return versions[0]
    return None


def previous_message(thread: Thread, version: int) -> int | None:
    """The last version before this one at which a message was appended, on the path or not."""
    for upto in range(version - 1, 0, -SEARCH_PAGE):
        versions = _message_versions(thread, max(0, upto - SEARCH_PAGE), upto)
        if versions:
            return versions[-1]
    return None


def _message_versions(thread: Thread, after: int, upto: int) -> list[int]:
    return [event.version for event in thread.events(after=after, at=upto) if event.type == MESSAGE_APPENDED]


class Stepper(NamedTuple):
    """The position in a thread: ``version`` of ``newest``, and ``stops``, the versions with checkpoints, ascending.

    ``typed`` holds the digits of a version that is being typed, None otherwise. ``direction`` is 1 or -1 while the next
    or the previous message must be searched. ``note`` is a message about the last key.
    """

    version: int
    newest: int
    stops: tuple[int, ...] = ()
    typed: str | None = None
    helping: bool = False
    direction: int = 0
    note: str = ""
    ended: bool = False


def with_newest(stepper: Stepper, newest: int, stops: tuple[int, ...]) -> Stepper:
    """The stepper after others may have appended to the thread."""
    return stepper._replace(newest=max(stepper.newest, newest), stops=stops)


def press(stepper: Stepper, key: str) -> Stepper:
    """The stepper after a key. Unknown keys change nothing."""
    stepper = stepper._replace(direction=0, note="")
    if key == "closed":
        return stepper._replace(ended=True)
    if stepper.helping and key != "resize":
        return stepper._replace(helping=False)
    if stepper.typed is not None:
        return _type(stepper, stepper.typed, key)
    if key in MOVES:
        return _go(stepper, stepper.version + MOVES[key])
    if key.isascii() and key.isdigit():
        return stepper._replace(typed=key)
    action = _ACTIONS.get(key)
    return stepper if action is None else action(stepper)


def after_search(stepper: Stepper, version: int | None) -> Stepper:
    """The stepper after a search: at the version that the search found, or with a note that it found none."""
    if version is not None:
        return _go(stepper._replace(direction=0), version)
    side = "after" if stepper.direction > 0 else "before"
    return stepper._replace(direction=0, note=f"There is no message {side} this version.")


def _type(stepper: Stepper, typed: str, key: str) -> Stepper:
    if key.isascii() and key.isdigit():
        return stepper._replace(typed=(typed + key)[:MOST_DIGITS])
    if key == "backspace":
        return stepper._replace(typed=typed[:-1] if typed else None)
    if key in {"escape", "q"} or (key == "enter" and not typed):
        return stepper._replace(typed=None)
    if key == "enter":
        stepper, version = stepper._replace(typed=None), int(typed)
        if 1 <= version <= stepper.newest:
            return _go(stepper, version)
        return stepper._replace(note=f"There is no version {version}. The thread has versions 1 to {stepper.newest}.")
    return stepper


def _next_stop(stepper: Stepper) -> Stepper:
    index = bisect_right(stepper.stops, stepper.version)
    if index == len(stepper.stops):
        return stepper._replace(note="There is no checkpoint after this version.")
    return _go(stepper, stepper.stops[index])


def _go(stepper: Stepper, version: int) -> Stepper:
    target = max(1, min(version, stepper.newest))
    edge = "This is the first version." if version < target else "This is the newest version."
    return stepper._replace(version=target, note=edge if version != target == stepper.version else "")


_ACTIONS: dict[str, Callable[[Stepper], Stepper]] = {
    **dict.fromkeys(("home", "g"), lambda stepper: _go(stepper, 1)),
    **dict.fromkeys(("end", "G"), lambda stepper: _go(stepper, stepper.newest)),
    "]": lambda stepper: stepper._replace(direction=1),
    "[": lambda stepper: stepper._replace(direction=-1),
    "c": _next_stop,
    ":": lambda stepper: stepper._replace(typed=""),
    "?": lambda stepper: stepper._replace(helping=True),
    "q": lambda stepper: stepper._replace(ended=True),
}


def step_lines(step: Step, thread_id: str, find: FindEvent = find_nothing) -> Iterable[Text]:
    """A step without a terminal: what happened, and its message in full."""
    yield _position(step).append(" · ").append_text(_origin(step))
    yield Text(INDENT).append_text(event_text(step, thread_id, find))
    for message in _new_messages(step):
        for content in content_texts(message):
            for line in content.split(allow_blank=True):
                yield Text(INDENT).append_text(line) if line else line
    yield Text()


def frame(
    step: Step, stepper: Stepper, thread_id: str, width: int, height: int, find: FindEvent = find_nothing
) -> list[Text]:
    """A screen of exactly ``height`` lines, none wider than ``width``."""
    title = one_line(step.control.title or "")
    top = [
        Text.assemble((title, "bold"), " " if title else "", (one_line(thread_id), "dim")),
        _position(step),
        _origin(step),
        event_text(step, thread_id, find),
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


def _position(step: Step) -> Text:
    """The version of the step, and the state of the thread after it."""
    text = Text.assemble(
        (f"version {step.version} of {step.newest}", "bold"),
        " · ",
        (step.status, STATUS_STYLES[step.status]),
        f" · {plural(step.control.messages, 'message')}",
    )
    for name in step.checkpoints:
        text.append(f" · checkpoint {one_line(name)}", style="bold yellow")
    return text


def _origin(step: Step) -> Text:
    """The type, time and actor of the event."""
    actor = actor_text(step.event)
    by = f" · by {actor}" if actor else ""
    return Text(f"{one_line(step.event.type)} · {time_text(step.event.time)}{by}")


def event_text(step: Step, thread_id: str, find: FindEvent = find_nothing) -> Text:
    """What the event did, on one line."""
    event = step.event
    details = what_happened(event, find)
    if event.type == MESSAGE_APPENDED:
        details = details.partition(":")[0]  # its text is shown with the message
    declared = EVENT_TYPES.get(event.type)
    headline = None if declared is None else declared.headline
    text = Text(": ".join(part for part in (headline, details) if part) + ("" if details else "."))
    if event.thread_id != thread_id:
        text.append(f" (inherited from {one_line(event.thread_id)})", style="dim")
    return text


def _new_messages(step: Step) -> Sequence[HistoryMessage]:
    """The message that the event appended, as a sequence of one or none."""
    return [message for message in step.messages[-1:] if message.version == step.version]


def _help() -> list[Text]:
    return [Text.assemble((f"{keys:>20}", "bold"), f"  {meaning}") for keys, meaning in HELP]


def _footer(stepper: Stepper) -> Text:
    if stepper.typed is not None:
        return Text.assemble(("Go to version: ", "bold"), stepper.typed, ("▏ Enter to go, Esc to cancel", "dim"))
    return Text(stepper.note, style="yellow") if stepper.note else Text(FOOTER, style="dim")


def _conversation(step: Step, width: int, rows: int) -> list[Text]:
    """The end of the conversation at the version, as far as it fits, and the messages that a rewind removed."""
    removed = _removed_messages(step, width, rows // 2)
    rows -= len(removed)
    new = bool(_new_messages(step))
    lines: list[Text] = []
    number = step.control.messages
    for message in reversed(step.messages):
        longest = max(rows * 2 // 3, 2) if not lines and new else SHORT
        message_lines = _message_lines(number, message, width, longest, new=new and not lines)
        if len(message_lines) + len(lines) + 1 > rows:
            break
        lines = [*message_lines, Text(), *lines] if lines else message_lines
        number -= 1
    if number > 0:
        lines = [Text(f"{INDENT}… {number:,} earlier", style="dim"), *lines]
    return [*(lines or [Text(f"{INDENT}No messages.", style="dim")]), *removed]


def _removed_messages(step: Step, width: int, rows: int) -> list[Text]:
    """The last messages that a rewind took from the path, struck out."""
    if not step.taken:
        return []
    lines: list[Text] = []
    for message in reversed(step.taken):
        message_lines = _message_lines(None, message, width, SHORT - 1, new=False)
        if len(lines) + len(message_lines) + 3 > rows:
            lines.insert(0, Text(f"{INDENT}… and earlier ones", style="dim"))
            break
        for line in message_lines:
            line.stylize("dim strike")
        lines = [*message_lines, *lines]
    return [Text(), Text("Taken back by the rewind:", style="bold red"), *lines]


def _message_lines(number: int | None, message: HistoryMessage, width: int, longest: int, *, new: bool) -> list[Text]:
    """A message in at most ``longest`` lines; a longer one says that it is cut."""
    heading = message_heading(number or 0, message)
    if number is None:
        heading = Text("  - ").append_text(heading[4:])
    if new:
        heading = Text("▶").append_text(heading[1:]) if heading.plain.startswith(" ") else Text("▶ ") + heading
        heading.stylize("reverse")
    lines: list[Text] = []
    text_width = max(width - len(INDENT), 1)
    characters = text_width * (longest + 1)
    for content in content_texts(_shorten(message, characters)):
        visible = content[:characters]
        visible.expand_tabs(TAB)
        lines += visible.wrap(console(width=width), text_width, overflow="fold")
        if len(lines) >= longest:
            hint = f"… cut here; clew show --at {message.version} shows all of it"
            lines = [*lines[: longest - 2], Text(hint, style="dim")]
            break
    return [heading, *(Text(INDENT).append_text(line) for line in lines)]


def _shorten(message: HistoryMessage, characters: int) -> HistoryMessage:
    """The message with only as much text as fits on a screen: it may have many megabytes."""
    if message.message is None:
        return message
    contents = tuple(
        content.model_copy(update={"text": content.text[:characters]})
        if isinstance(content, content_types.Text)
        else content
        for content in message.message.contents
    )
    return message._replace(message=message.message.model_copy(update={"contents": contents}))
