"""What a command of ours prints, and how it ends, in this process."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any, NamedTuple

from pytest_gpuenergy.cli import main


class Outcome(NamedTuple):
    """An exit code, and what was printed."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Of a command that prints JSON."""
        return json.loads(self.out)


def outcome_of(*words: object) -> Outcome:
    """Run ``gpuenergy`` with these words; unlike ``capsys``, also for each of many examples."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([*map(str, words)])
    return Outcome(code, out.getvalue(), err.getvalue())


def ended(code: int, *words: object) -> Outcome:
    """What is printed by ``gpuenergy`` with these words, which ends with this exit code."""
    outcome = outcome_of(*words)
    assert outcome.code == code, outcome
    return outcome
