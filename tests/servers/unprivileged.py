"""A script that runs a command as an unprivileged user, because PostgreSQL refuses to run as root."""

from __future__ import annotations

import os
import pwd
import sys


def user() -> pwd.struct_passwd:
    """The user that runs the command instead of root: ``nobody``, or another user if it does not exist."""
    others = [each for each in pwd.getpwall() if each.pw_uid]
    if not others:
        message = "PostgreSQL does not run as root, and this machine has no other user. Add one: useradd clew"
        raise LookupError(message)
    return next((each for each in others if each.pw_name == "nobody"), others[0])


def main() -> None:
    """Change to that user if this process runs as root, and execute the command."""
    if os.geteuid() == 0:
        chosen = user()
        os.setgroups([])
        os.setgid(chosen.pw_gid)
        os.setuid(chosen.pw_uid)
    os.execv(sys.argv[1], sys.argv[1:])  # noqa: S606 - the command comes from the tests


if __name__ == "__main__":
    main()
