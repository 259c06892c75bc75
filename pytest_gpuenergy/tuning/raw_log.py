"""The raw results of a search, on disk: every trial, written as soon as it has ended.

A folder contains a file of recipes in their own form and ``trials.jsonl``, which states how each
trial ended. Both have a line for every trial, also for a failed one. Lines are only ever appended,
so a search that is killed loses at most the trial in progress, and can be continued.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.engine import Evaluation
from pytest_gpuenergy.record import NotNegative
from pytest_gpuenergy.support import (
    FormError,
    InputError,
    OutputError,
    decode,
    drop_torn_line,
    emulated_mark,
    encode,
    is_there,
    lock,
    open_file,
    read_bytes,
    read_unpacked,
    write_atomically,
)
from pytest_gpuenergy.tuning.remote_device import setpoint_of
from pytest_gpuenergy.tuning.search_space import RecipeForm
from pytest_gpuenergy.workloads import Workload, from_parameters, to_parameters

IDENTITY_FILE = "search.json"
TRIALS_FILE = "trials.jsonl"

_MAX_TRIALS_BYTES = 256 << 20


class Trial(Evaluation, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One candidate of a search, and what is known about it.

    Attributes:
        index: its place in the search, from 0.
        digest: the digest of its kernel; None if there is no kernel.
        elapsed_s: the time from the start of its search until its result was known.
    """

    index: int
    digest: str | None = None
    elapsed_s: NotNegative | None = None


def read_trials(path: Path) -> list[Trial]:
    """Return every trial in ``trials.jsonl``, as of the last line about it.

    An incomplete last line is ignored. The file may be compressed (``.gz``, ``.xz``).

    Raises:
        InputError: it cannot be read, or is damaged.
    """
    trials: list[Trial] = []
    content = read_unpacked(path, "list of trials", _MAX_TRIALS_BYTES)
    lines = content[: content.rfind(b"\n") + 1].splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            trial = decode(line, Trial)
            if trial.good and trial.time_ms is None:
                raise FormError("time_ms is missing")
            if not 0 <= trial.index <= len(trials):
                raise FormError("its index is out of order")
        except FormError as error:
            raise InputError(
                f"Line {number} of {path} cannot be used, because {error}: restore the file, or "
                "name another folder."
            ) from None
        trials[trial.index : trial.index + 1] = [trial]
    return trials


_MAX_BYTES = 1 << 20
_NEVER = frozenset(
    [
        errno.ENOTDIR,
        errno.EISDIR,
        errno.ENOENT,
        errno.EEXIST,
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
    ]
)
"""Errors that more room on the disk does not cure."""


class RawLog:
    """A folder of raw results, open for appending; a context manager.

    Args:
        folder: created, or continued if it contains the same search.
        workload: the workload that the kernels compute.
        device: the device on which they run.
        form: the form of the recipes.

    Attributes:
        trials: all trials.
        recipes: the recipes of all trials, as they are stored.

    Raises:
        InputError: the folder contains a search of another workload, on another GPU or under
            another power limit or clock; it is damaged or cannot be written; or another process
            writes to it.
    """

    def __init__(self, folder: Path, workload: Workload, device: Device, form: RecipeForm) -> None:
        self.folder = folder
        self._form = form
        self._recipes_path = folder / form.file_name
        enforced = setpoint_of(device)
        identity = {
            "workload": to_parameters(workload),
            "gpu": gpu_name(device),
            "architecture": device.architecture,
            "power_limit_w": enforced.power_limit_w,
        }
        if enforced.sm_clock_mhz is not None:  # searches of earlier versions do not have it
            identity["sm_clock_mhz"] = enforced.sm_clock_mhz
        with ExitStack() as stack:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                _identify(folder / IDENTITY_FILE, identity)
                # Line-buffered, so that nothing is lost if the process is killed.
                self._events = stack.enter_context(_opened(folder / TRIALS_FILE))
                if not lock(self._events.fileno(), wait=False):  # until the process ends
                    raise InputError(
                        f"Another process is searching in {folder}: wait for it to end, or name "
                        "another folder with --out."
                    )
                drop_torn_line(folder / TRIALS_FILE)
                self.trials = read_trials(folder / TRIALS_FILE)
                self.recipes: list[str] = []
                if is_there(self._recipes_path):
                    drop_torn_line(self._recipes_path)
                    self.recipes = form.read(self._recipes_path)
                self._agree()
                self._check_recipes()
                self._lines = stack.enter_context(_opened(self._recipes_path))
            except OSError as error:
                path = error.filename or folder
                raise InputError(f"{path} cannot be written: {error.strerror}.") from None
            stack.pop_all()

    def add(self, recipe: str, trial: Trial) -> Trial:
        """Log how the trial of ``recipe`` ended, and set its ``index``.

        Raises:
            OutputError: it cannot be written.
        """
        trial = replace(trial, index=len(self.trials))
        kept = self._form.with_time(recipe, trial.time_ms)
        with writing(self._recipes_path):
            self._lines.write(self._form.line(kept) + "\n")
        self._write(trial)
        self.trials.append(trial)
        self.recipes.append(kept)
        return trial

    def amend(self, trial: Trial) -> None:
        """Log a trial again, with what has become known since it was added.

        Raises:
            OutputError: it cannot be written.
        """
        self._write(trial)
        self.trials[trial.index] = trial

    def __enter__(self) -> RawLog:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self._lines, self._events):
            with suppress(OSError):  # a line that could not be written has been reported already
                stream.close()

    def _write(self, trial: Trial) -> None:
        with writing(self.folder / TRIALS_FILE):
            self._events.write(encode(trial).decode() + "\n")

    def _check_recipes(self) -> None:
        """Refuse recipes that no search can have written, because the search learns from them."""
        for line, (recipe, trial) in enumerate(
            zip(self.recipes, self.trials, strict=True), start=1
        ):
            try:
                self._form.check_stored(recipe, ran=trial.time_ms is not None)
            except FormError as error:
                raise InputError(
                    f"Line {line} of {self._recipes_path} cannot be used, because {error}: restore "
                    "the file, or name another folder with --out."
                ) from None

    def _agree(self) -> None:
        """Drop a line that a killed search wrote to only one of the files."""
        count = min(len(self.trials), len(self.recipes))
        if len(self.recipes) > count:
            kept = self._recipes_path.read_bytes().splitlines(keepends=True)[:count]
            write_atomically(self._recipes_path, b"".join(kept))
        if len(self.trials) > count:
            raise InputError(
                f"{self._recipes_path} has {len(self.recipes)} trials and "
                f"{TRIALS_FILE} {len(self.trials)}: restore them, or name another folder with "
                "--out."
            )
        del self.recipes[count:]


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an error of writing ``path`` into one that says what to do.

    Raises:
        OutputError: it cannot be written.
    """
    try:
        yield
    except OSError as error:
        is_full = error.errno not in _NEVER
        hint = "make room, then continue with --resume" if is_full else "name another folder"
        raise OutputError(f"{path} cannot be written ({error.strerror}): {hint}.") from None


def gpu_name(device: Device) -> str:
    """Return the device's name as in record files, marked if it is emulated."""
    return f"{device.name}{emulated_mark(device.emulated)}"


def _opened(path: Path) -> TextIOWrapper:
    return open(path, "a", buffering=1, encoding="utf-8", opener=open_file)


def _identify(path: Path, identity: dict[str, Any]) -> None:
    if not is_there(path) or not path.stat().st_size:  # as a full disk may have left it
        write_atomically(path, json.dumps(identity, indent=2) + "\n")
        return
    try:
        stored: Any = decode(read_bytes(path, "description of a search", _MAX_BYTES), Any)
    except FormError as error:
        raise InputError(
            f"{path} cannot be used, because {error}: name another folder with --out."
        ) from None
    # Compare as a search of this version writes it: older ones leave out the workload's kind.
    with suppress(InputError, TypeError, KeyError, ValueError):
        stored = {**stored, "workload": to_parameters(from_parameters(stored["workload"]))}
    if stored != identity:
        limit_w = identity["power_limit_w"]
        under = "" if limit_w is None else f" under {limit_w:g} W"
        under += f" at {identity['sm_clock_mhz']} MHz" if "sm_clock_mhz" in identity else ""
        raise InputError(
            f"{path.parent} contains another search than that of {identity['workload']['name']} on "
            f"{identity['gpu']}{under}: name another folder with --out."
        )
