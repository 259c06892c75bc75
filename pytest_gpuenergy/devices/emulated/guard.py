"""Runs a program and kills it, with every process it has started, when its parent is gone.

``python -I -S guard.py LIFELINE ADDRESS_BYTES PROGRAM ARGUMENT...``, in a session of its own.
``LIFELINE`` is the reading end of a pipe that is never written to: it reaches its end when the
parent closes the other end or dies. Without that, the processes that a compiler's driver starts
would go on for minutes and hold gigabytes. None of them may use an address space of more than
``ADDRESS_BYTES``.
"""

import os
import resource
import select
import signal
import sys

CANNOT_START = 127
"""Exit code when the program cannot be started, as in a shell."""


def main() -> int:
    """Start the program, then wait for it or for the end of the lifeline."""
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
        sys.stderr.write(f"error: it was ended by signal {-code}, {signal.strsignal(-code)}\n")
    return abs(code)


if __name__ == "__main__":
    sys.exit(main())
