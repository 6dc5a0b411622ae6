"""One append or fork in a new process, and its CPU time: the program that ``long_threads`` starts.

Not counted: the interpreter, imports, opening the store. Counted: everything from looking up the thread by its id to
storing the event; with ``none`` also what the first call of a process builds for all later ones.
"""

from __future__ import annotations

import sys

from benchmarks.measurement import cpu
from clew import Conversations, Message


def main(url: str, operation: str, thread_id: str, before: str) -> None:
    """Print milliseconds of CPU."""
    message = Message.user("One more thing.")
    with Conversations.open(url) as conversations:

        def once(thread: str) -> None:
            if operation == "fork":
                conversations.thread(thread).fork()
            else:
                conversations.thread(thread).append(message)

        if before != "none":
            once(before)
        print(cpu(lambda: once(thread_id)) * 1e3)


if __name__ == "__main__":
    main(*sys.argv[1:])
