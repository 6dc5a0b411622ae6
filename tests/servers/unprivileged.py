"""A script that runs a command as an unprivileged user: PostgreSQL refuses to serve as root. Standard library only."""

from __future__ import annotations

import os
import pwd
import sys


def user() -> pwd.struct_passwd:
    """The user that runs the command where this one is root: nobody, or on a machine without it another one."""
    others = [each for each in pwd.getpwall() if each.pw_uid]
    if not others:
        message = "PostgreSQL does not run as root, and this machine has no other user. Add one: useradd clew"
        raise LookupError(message)
    return next((each for each in others if each.pw_name == "nobody"), others[0])


def main() -> None:
    """Become that user, if this one is root, and then the command."""
    if os.geteuid() == 0:
        chosen = user()
        os.setgroups([])
        os.setgid(chosen.pw_gid)
        os.setuid(chosen.pw_uid)
    os.execv(sys.argv[1], sys.argv[1:])  # noqa: S606 - the command that the tests give it


if __name__ == "__main__":
    main()
