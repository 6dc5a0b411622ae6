"""Random operations on a thread: appends, rewinds, forks, redactions and others."""

from __future__ import annotations

from hypothesis import strategies as st

from clew.domain.errors import NotRedactableError
from clew.domain.messages import Message
from clew.sync.threads import LocalThread

numbers = st.integers(0, 9_999)
operations = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "append many", "rewind", "fork", "redact", "label", "checkpoint"]), numbers
    ),
    max_size=25,
)


def apply_operation(thread: LocalThread, operation: str, number: int, count: int) -> LocalThread:
    """Apply an operation and return the thread to continue with. A number chooses a version by its remainder."""
    version = number % thread.version + 1
    match operation:
        case "append":
            thread.append(Message.user(f"text {number}"))
        case "append many":
            thread.append([Message.assistant(f"text {number}.{each}") for each in range(number % 9 + 1)])
        case "rewind":
            thread.rewind(to=version)
        case "fork":
            return thread.fork(at=version, title=f"fork {count}")
        case "redact":
            try:
                thread.redact(version)
            except NotRedactableError:
                thread.suspend()
                thread.resume()
        case "label":
            thread.label(topic=number)
        case _:
            thread.checkpoint(f"checkpoint {count}", at=version)
    return thread
