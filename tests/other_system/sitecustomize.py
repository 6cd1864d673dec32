"""Makes a Python of Linux look like one of macOS, or of a system with less still, to the program that starts in it.

Python imports this file where its folder is in PYTHONPATH, also in the processes that a program starts. OTHER_SYSTEM is
"macos" or "least". What only Linux has is not there: functions, constants, and the files of /proc, /sys and /dev/shm.
It is no macOS: torch and the C library remain those of Linux.
"""

import io
import mmap
import os
import signal
import socket
import sys
import sysconfig
import types

LINUX_ALONE = {
    os: "sched_getaffinity sched_setaffinity memfd_create MFD_CLOEXEC posix_fallocate posix_fadvise eventfd pidfd_open "
    "copy_file_range splice setns unshare O_TMPFILE O_PATH O_DIRECT getrandom SCHED_BATCH",
    mmap: "MADV_HUGEPAGE MADV_DONTFORK MADV_DONTDUMP MAP_POPULATE MAP_NORESERVE",
    signal: "pidfd_send_signal SIGPWR SIGSTKFLT SIGRTMIN SIGRTMAX",
    socket: "SO_PEERCRED SCM_CREDENTIALS",
}
UNIX_ALONE = {
    os: "getuid geteuid getgid killpg getpgid sysconf nice getloadavg",
    signal: "SIGUSR1 SIGUSR2 SIGHUP pthread_sigmask setitimer",
}
UNIX_MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty")
HIDDEN = ("/proc", "/sys", "/dev/shm")


def hide(names):
    for module, words in names.items():
        for word in words.split():
            if hasattr(module, word):
                delattr(module, word)


def is_hidden(path):
    return isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith(HIDDEN)


def refuse_hidden(name, function):
    def refusing(path, *args, **kwargs):
        if is_hidden(path):
            raise FileNotFoundError(2, "No such file or directory", os.fspath(path))
        return function(path, *args, **kwargs)

    refusing.__name__ = name
    return refusing


for place, names in ((os, "open stat lstat access listdir scandir readlink statvfs"), (io, "open")):
    for name in names.split():
        setattr(place, name, refuse_hidden(name, getattr(place, name)))
os.access = lambda path, mode, real=os.access, **options: not is_hidden(path) and real(path, mode, **options)
__builtins__["open"] = io.open

hide(LINUX_ALONE)
sysconfig.get_config_vars()  # this Python's own files, which have the name of its system
sys.platform = "darwin"
sys.modules["_scproxy"] = types.ModuleType("_scproxy")  # macOS's settings of proxies, for urllib
sys.modules["_scproxy"]._get_proxy_settings = sys.modules["_scproxy"]._get_proxies = dict
if os.environ.get("OTHER_SYSTEM") == "least":
    hide(UNIX_ALONE)
    for name in UNIX_MODULES:
        sys.modules[name] = None
