"""Which process a process number stands for: numbers are used again."""

from __future__ import annotations

from pathlib import Path


def start_ticks(pid: int) -> int | None:
    """When process ``pid`` began, in clock ticks since boot; None when none of it still runs.

    Fields 3 (state; a zombie does not run) and 22 (start time) of ``/proc/PID/stat``, counted
    behind the command's name, which is in parentheses and may hold anything: see
    proc_pid_stat(5).
    """
    try:
        line = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = line.rpartition(b")")[2].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])
