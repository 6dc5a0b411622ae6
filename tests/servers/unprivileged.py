"""A script that runs a command as nobody in particular: PostgreSQL refuses to serve as root. Standard library only."""

from __future__ import annotations

import os
import pwd
import sys

NAME = "nobody"


def main() -> None:
    """Become that user, if this one is root, and then the command."""
    if os.geteuid() == 0:
        user = pwd.getpwnam(NAME)
        os.setgroups([])
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
    os.execv(sys.argv[1], sys.argv[1:])  # noqa: S606 - the command that the tests give it


if __name__ == "__main__":
    main()
