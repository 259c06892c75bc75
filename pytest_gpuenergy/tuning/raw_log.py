"""The raw results of a search, on disk: every trial, written as soon as it has ended.

A folder holds a file of recipes in their own form, a line for every trial, failed ones too, and
``trials.jsonl``, which says how each ended. Both are only ever added to, line by line, so that a
search that is killed loses at most the trial in flight, and can be continued.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from types import TracebackType
from typing import Any

from msgspec.structs import replace

from pytest_gpuenergy.control.limits import enforced_setpoint
from pytest_gpuenergy.devices.device import Device
from pytest_gpuenergy.support.errors import InputError, OutputError
from pytest_gpuenergy.support.files import lock, open_file, write_atomically
from pytest_gpuenergy.support.json_input import FormError, decode, read_bytes
from pytest_gpuenergy.support.json_output import encode
from pytest_gpuenergy.tuning.space import RecipeForm
from pytest_gpuenergy.tuning.trial import IDENTITY_FILE, TRIALS_FILE, Trial, read_trials
from pytest_gpuenergy.workloads.registry import from_parameters, to_parameters
from pytest_gpuenergy.workloads.workload import Workload

_LARGEST_BYTES = 1 << 20
_LARGEST_LIST_BYTES = 1 << 30


class RawLog:
    """A folder of raw results, open for more; a context manager.

    Args:
        folder: created, or continued if it holds a search of the same.
        workload: what is searched.
        device: where.
        form: of the recipes.

    Attributes:
        trials: all there are.
        recipes: those of the trials, as they are kept.

    Raises:
        InputError: the folder holds a search of something else, on another GPU or under another
            power limit, is damaged, cannot be written, or another process writes to it.
    """

    def __init__(self, folder: Path, workload: Workload, device: Device, form: RecipeForm) -> None:
        self.folder = folder
        self._form = form
        self._recipes_path = folder / form.file_name
        identity = {
            "workload": to_parameters(workload),
            "gpu": gpu_name(device),
            "architecture": device.architecture,
            "power_limit_w": enforced_setpoint(device).power_limit_w,
        }
        with ExitStack() as stack:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                _identify(folder / IDENTITY_FILE, identity)
                # Not buffered beyond a line, so that what is known survives a kill.
                self._events = stack.enter_context(_opened(folder / TRIALS_FILE))
                _lock(self._events, folder)
                self.trials = _read_trials(folder / TRIALS_FILE)
                self.recipes = self._read_recipes()
                self._agree()
                self._check_recipes()
                self._lines = stack.enter_context(_opened(self._recipes_path))
            except OSError as error:
                path = error.filename or folder
                raise InputError(f"{path} cannot be written: {error.strerror}.") from None
            stack.pop_all()

    def add(self, recipe: str, trial: Trial) -> Trial:
        """Write down how the trial of ``recipe`` ended; its ``index`` is set here.

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
        """Write down what has become known of a trial since.

        Raises:
            OutputError: it cannot be written.
        """
        self._write(trial)
        self.trials[trial.index] = trial

    def __enter__(self) -> RawLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for stream in (self._lines, self._events):
            with suppress(OSError):  # of a line that could not be written, which has been reported
                stream.close()

    def _write(self, trial: Trial) -> None:
        with writing(self.folder / TRIALS_FILE):
            self._events.write(encode(trial).decode() + "\n")

    def _read_recipes(self) -> list[str]:
        if not self._recipes_path.exists():
            return []
        _drop_torn_line(self._recipes_path)
        return self._form.read(self._recipes_path)

    def _check_recipes(self) -> None:
        """Refuse recipes that no search has written: the search is given those that ran."""
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
        """Drop what a killed search wrote in one of the files only."""
        count = min(len(self.trials), len(self.recipes))
        if len(self.recipes) > count:
            _truncate(self._recipes_path, count)
        if len(self.trials) > count:
            raise InputError(
                f"{self._recipes_path} has {len(self.recipes)} trials and "
                f"{TRIALS_FILE} {len(self.trials)}: restore them, or name another folder with "
                "--out."
            )
        del self.recipes[count:]


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Report what keeps a search from writing ``path``.

    Raises:
        OutputError: it cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written ({error.strerror}): make room, then go on with --resume."
        ) from None


def gpu_name(device: Device) -> str:
    """The device's name for record files; an emulated one is called so."""
    return f"{device.name} (emulated)" if device.emulated else device.name


def _opened(path: Path) -> TextIOWrapper:
    return open(path, "a", buffering=1, encoding="utf-8", opener=open_file)


def _lock(stream: TextIOWrapper, folder: Path) -> None:
    """One search at a time writes to a folder; the lock goes with the process."""
    if not lock(stream.fileno(), wait=False):
        raise InputError(
            f"Another process is searching in {folder}: wait for it to end, or name another folder "
            "with --out."
        )


def _identify(path: Path, identity: dict[str, Any]) -> None:
    if not path.exists() or not path.stat().st_size:  # as a full disk may have left it
        write_atomically(path, json.dumps(identity, indent=2) + "\n")
        return
    try:
        found = decode(read_bytes(path, "description of a search", _LARGEST_BYTES), Any)
    except FormError as error:
        raise InputError(
            f"{path} cannot be used, because {error}: name another folder with --out."
        ) from None
    if _with_kind(found) != identity:
        limit_w = identity["power_limit_w"]
        under = "" if limit_w is None else f" under {limit_w:g} W"
        raise InputError(
            f"{path.parent} holds another search than one of {identity['workload']['name']} on "
            f"{identity['gpu']}{under}: name another folder with --out."
        )


def _with_kind(found: Any) -> Any:
    """What a search said of itself; those from before there were kinds named none."""
    try:
        return {**found, "workload": to_parameters(from_parameters(found["workload"]))}
    except (InputError, TypeError, KeyError, ValueError):
        return None


def _read_trials(path: Path) -> list[Trial]:
    _drop_torn_line(path)
    return read_trials(path)


def _drop_torn_line(path: Path) -> None:
    if path.stat().st_size > _LARGEST_LIST_BYTES:
        return  # it will be refused
    with open(path, "rb+", opener=open_file) as stream:
        content = stream.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            stream.truncate(whole)


def _truncate(path: Path, lines: int) -> None:
    kept = path.read_bytes().splitlines(keepends=True)[:lines]
    write_atomically(path, b"".join(kept))
