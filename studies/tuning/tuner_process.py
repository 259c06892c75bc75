"""Runs a tuner in its own process, and times the end of each trial from outside.

Both TVM's own tuner and ours append a line to ``trials.jsonl`` when a trial has ended. The time
that counts is when the line appears, on the same clock for all, from the start of the process.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuners import RECORD_FILE, DatabaseRecord, load_database
from pytest_gpuenergy.tuning import TRIALS_FILE, Trial

LOOK_EVERY_S = 0.02
GRACE_S = 30.0
_LAST_LINES = 3


class Watch:
    """Trials as they appear in a growing file, each with the time when it was first seen."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.seen: dict[int, tuple[float, Trial]] = {}

    def look(self, elapsed_s: float) -> None:
        """Read the lines added since; an incomplete line is left for later."""
        try:
            with self._path.open("rb") as stream:
                stream.seek(self._offset)
                whole, newline, _ = stream.read().rpartition(b"\n")
        except FileNotFoundError:
            return
        self._offset += len(whole) + len(newline)
        for line in whole.splitlines():
            trial = Trial(**json.loads(line))
            # A later line about the same trial adds details, not a later end.
            first_s = self.seen.get(trial.index, (elapsed_s, trial))[0]
            self.seen[trial.index] = (first_s, trial)


@dataclass(frozen=True)
class Search:
    """What was observed of a tuner's process.

    Attributes:
        trials: seconds since the start of the process, and the trial, in the order of trials.
        wall_s: time until the process had ended.
        exit_code: of the process; None if it was ended at its limit.
        error: the end of its output, if it failed.
        printed: its standard output.
        energy_j: energy the card used meanwhile; None if it does not report it.
    """

    trials: tuple[tuple[float, Trial], ...]
    wall_s: float
    exit_code: int | None
    error: str | None
    printed: str
    energy_j: float | None

    def summary(self) -> dict[str, Any]:
        """As plain data. ``curve`` has seconds and the best time so far in ms for every trial.

        The rate includes failed trials and the start of the process; ``steady_trials_per_min``
        excludes the time before the end of the first trial.
        """
        best_ms: float | None = None
        curve: list[tuple[float, float | None]] = []
        for elapsed_s, trial in self.trials:
            if trial.good and trial.time_ms is not None:
                best_ms = min(trial.time_ms, best_ms or trial.time_ms)
            curve.append((round(elapsed_s, 3), best_ms))
        count = len(curve)
        first_s, last_s = (curve[0][0], curve[-1][0]) if curve else (None, None)
        steady_s = last_s - first_s if first_s is not None and last_s is not None else 0.0
        return {
            "trials": count,
            "failed": Counter(trial.outcome for _, trial in self.trials if not trial.good),
            "wall_s": round(self.wall_s, 3),
            "exit_code": self.exit_code,
            "error": self.error,
            "energy_j": self.energy_j,
            "first_trial_s": first_s,
            "last_trial_s": last_s,
            "trials_per_min": 60 * count / last_s if last_s else None,
            "steady_trials_per_min": 60 * (count - 1) / steady_s if steady_s > 0 else None,
            "best_ms": best_ms,
            "curve": curve,
        }


def run_tuner(
    command: Sequence[str], folder: Path, raw: Path, limit_s: float, device: str
) -> Search:
    """Run a tuner to its end or its time limit.

    Args:
        command: the process; it gets SIGTERM at the limit.
        folder: emptied, or created; also receives the process's output.
        raw: where it writes ``trials.jsonl``.
        limit_s: limit on its wall time.
        device: as ``--gpu-device``, to read the card's energy.

    Raises:
        InputError: the process cannot be started.
    """
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    printed, said = folder / "stdout.txt", folder / "stderr.txt"
    watch = Watch(raw / TRIALS_FILE)
    before_j = card_energy_j(device)
    begun_s = time.monotonic()
    with printed.open("w") as out, said.open("w") as err:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )
        except OSError as error:
            raise InputError(f"{command[0]} cannot be started: {error.strerror}.") from None
        try:
            code = _wait(process, watch, begun_s, limit_s)
        finally:
            # Even if the bench is interrupted; the tuner's own children are in its group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    wall_s = time.monotonic() - begun_s
    watch.look(wall_s)
    after_j = card_energy_j(device)
    known = before_j is not None and after_j is not None
    return Search(
        trials=tuple(watch.seen[index] for index in sorted(watch.seen)),
        wall_s=wall_s,
        exit_code=code,
        error=_last_lines(said, code) if code else None,
        printed=printed.read_text(errors="replace"),
        energy_j=after_j - before_j if known else None,
    )


def contenders(raw: Path, count: int) -> list[dict[str, Any]]:
    """The fastest trials in a database by the tuner's own figures, with distinct schedules.

    Dictionaries with the MetaSchedule ``record`` as JSON text and ``search_ms``; none if there is
    no database, or no trial ran.
    """
    if not (raw / RECORD_FILE).exists():
        return []
    fastest: dict[str, DatabaseRecord] = {}
    for record in sorted(load_database(raw).valid, key=lambda record: record.time_ms):
        fastest.setdefault(record.trace_text, record)
    return [
        {"record": record.text, "search_ms": record.time_ms}
        for record in list(fastest.values())[:count]
    ]


def card_energy_j(device: str) -> float | None:
    """Energy the card has used since its driver was loaded; None if it does not report it."""
    with open_device(device) as card:
        try:
            return float(card.nvml.nvmlDeviceGetTotalEnergyConsumption(card.handle)) / 1e3
        except card.nvml.NVMLError:
            return None


def _wait(
    process: subprocess.Popen[bytes], watch: Watch, begun_s: float, limit_s: float
) -> int | None:
    """The exit code; None if the process had to be ended."""
    while (elapsed_s := time.monotonic() - begun_s) < limit_s:
        code = process.poll()
        watch.look(elapsed_s)
        if code is not None:
            return code
        time.sleep(LOOK_EVERY_S)
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)
    return None


def _last_lines(said: Path, code: int | None) -> str:
    cause = f"ended by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
    lines = [line for line in said.read_text(errors="replace").splitlines() if line.strip()]
    return " / ".join([cause, *lines[-_LAST_LINES:]])
