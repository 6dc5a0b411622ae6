"""A script that runs a command until its own standard input closes.

The process that starts it holds the other end of the pipe. The system closes that end when the process dies, even by
SIGKILL, so that no server outlives the tests. The script uses only the standard library: it starts in milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading


def main() -> int:
    """Run the command in a new process group. Kill the group when the command or the input ends."""
    server = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True)

    def kill(*_: object) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS refuses to signal a group of zombies
            os.killpg(server.pid, signal.SIGKILL)

    def wait_for_end_of_input() -> None:
        while os.read(0, 1024):
            pass
        kill()

    signal.signal(signal.SIGTERM, kill)
    threading.Thread(target=wait_for_end_of_input, daemon=True).start()
    code = server.wait()
    kill()  # the remaining children of the command
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
