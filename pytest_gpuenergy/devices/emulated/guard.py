"""Starts a program and ends it, with all it has started, when whoever asked for it is gone.

``python -I -S guard.py LIFELINE ADDRESS_BYTES PROGRAM ARGUMENT...``, in a session of its own:
``LIFELINE`` is the reading end of a pipe that nobody writes to. It ends when its other end is
closed, which the kernel does for a process that was killed. A compiler's driver starts others,
which would go on otherwise, for minutes and with gigabytes. No process of it may address more than
``ADDRESS_BYTES``.
"""

import os
import resource
import select
import signal
import sys

CANNOT_START = 127
"""Exit code when the program cannot be started, as a shell has it."""


def main() -> int:
    """Take the arguments, start the program, wait for it or for the end of the lifeline."""
    lifeline, address_bytes, *command = sys.argv[1:]
    limit = int(address_bytes)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    ended, wakes = os.pipe()
    for end in (ended, wakes):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        child = os.posix_spawn(command[0], command, os.environ)
    except OSError as error:
        sys.stderr.write(f"{error.strerror}\n")
        return CANNOT_START
    ready, _, _ = select.select([int(lifeline), ended], [], [])
    if int(lifeline) in ready:
        os.killpg(0, signal.SIGKILL)  # this process too
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        sys.stderr.write(f"error: it was ended by {signal.Signals(-code).name}\n")
    return abs(code)


if __name__ == "__main__":
    sys.exit(main())
