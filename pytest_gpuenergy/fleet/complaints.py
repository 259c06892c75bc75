"""What programs that start something on another host say when they fail, and what to do then."""

from __future__ import annotations

import re

from pytest_gpuenergy.support import printable, shortened

_LATER = re.compile(
    r"srun: (Job step aborted|forcing job|got SIG|interrupt)|Connection closed|"
    r"kex_exchange_identification"
)
"""Lines that only tell what follows from an error."""

_ERROR = re.compile("error|fail|denied|refused|not found|cannot|no such", re.IGNORECASE)

_ADVICE = (
    (
        "Host key verification failed",
        "connect once with ssh and compare the key it shows, or correct ~/.ssh/known_hosts",
    ),
    (
        r"Permission denied \(",
        "it must be reached without a password: give it a key, such as with ssh-copy-id",
    ),
    (
        "No module named '?pytest_gpuenergy",
        "install pytest-gpuenergy there, or give python=PATH of an interpreter that has it",
    ),
    (
        r"\benv: .*(No such file|Permission denied)|there is no interpreter",
        "give python=PATH of the interpreter there",
    ),
    (
        "unrecognized arguments",
        "the project there has another conftest.py than here: copy it, or give dir=PATH",
    ),
    ("Invalid partition|Requested node configuration", "see sinfo"),
)


def reason_in(text: str) -> str:
    """Why a program failed, from what it has printed, as a sentence; empty if that is nothing.

    That is the last line, or an error before lines that only follow from it; with advice, if it is
    known what to do.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    last = lines[-1]
    if _LATER.match(last):
        errors = (one for one in reversed(lines) if _ERROR.search(one) and not _LATER.match(one))
        last = next(errors, last)
    said = shortened(printable(last), 300)
    advice = next((what for pattern, what in _ADVICE if re.search(pattern, last)), None)
    if advice is not None:
        return f"{said.rstrip('.')}: {advice}."
    return said if said.endswith((".", "!", "?")) else f"{said}."


def usage_problem(text: str) -> str:
    """What a usage error of pytest says, as a sentence, without its lines about usage and files."""
    lines = [line.partition(": error: ")[2] for line in text.splitlines() if ": error: " in line]
    return reason_in(lines[0] if lines else text.partition("\n")[0])
