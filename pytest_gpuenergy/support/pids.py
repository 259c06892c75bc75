"""Identifies a process beyond its ID, since IDs are reused."""

from __future__ import annotations

from pathlib import Path


def start_ticks(pid: int) -> int | None:
    """When process ``pid`` started, in clock ticks since boot; None if it is not running.

    Uses fields 3 (state; a zombie is not running) and 22 (start time) of ``/proc/PID/stat``,
    counted from the end of the command's name, which is in parentheses and may contain anything:
    see proc_pid_stat(5).
    """
    try:
        line = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = line.rpartition(b")")[2].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])
