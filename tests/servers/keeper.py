"""A script that runs a command for as long as its own standard input is open.

Whoever starts it holds the other end of the pipe. The system closes that end however the holder dies, SIGKILL included,
so that no server outlives the tests. Standard library only, so that it starts in a few milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading


def main() -> int:
    """Run the command in a process group of its own; kill the group when the command or the input ends."""
    server = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True)

    def kill(*_: object) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS refuses for a group of zombies
            os.killpg(server.pid, signal.SIGKILL)

    def wait_for_the_end_of_the_input() -> None:
        while os.read(0, 1024):
            pass
        kill()

    signal.signal(signal.SIGTERM, kill)
    threading.Thread(target=wait_for_the_end_of_the_input, daemon=True).start()
    code = server.wait()
    kill()  # what the command has left behind
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
