"""Processes of other users, which the administrator's tests can play."""

import os
from collections.abc import Callable

from system_needs import needs

VICTIM, ATTACKER = 54321, 54322

needs_root = needs("the administrator, who can play another user", hasattr(os, "geteuid") and os.geteuid() == 0)


def as_user(user: int, act: Callable[[], object]) -> int:
    """The number of a process of another user that acts; forked, since that user may not read this interpreter."""
    import grp
    import pwd

    assert grp, pwd  # imported before that user would have to
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
        os.chdir("/")
        act()
        status = 0
    finally:
        os._exit(status)


def status_of(process: int) -> int:
    """The exit code of a process, once it has ended."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
