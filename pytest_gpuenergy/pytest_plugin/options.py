"""The options of ``pytest``, read once into one frozen object."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import pytest

from pytest_gpuenergy.control import cap_words, clock_words
from pytest_gpuenergy.gate import GateSettings
from pytest_gpuenergy.kernels import CACHE_STATES, CacheState
from pytest_gpuenergy.opening import check_spec, count_gpus
from pytest_gpuenergy.pytest_plugin import declared_options as declared
from pytest_gpuenergy.pytest_plugin.declared_options import AUTO, MAX_SEED, PytestOption
from pytest_gpuenergy.pytest_plugin.distribute.link import BOARDS, GPU, REMOTE
from pytest_gpuenergy.pytest_plugin.selection import setpoints_named
from pytest_gpuenergy.report import check_sort
from pytest_gpuenergy.support import FLEET_GPU, InputError

_MAX_SECONDS = 1_000_000
"""The longest time that an option may set, to refuse typing errors."""
_ORDERS = ("interleaved", "file")
_WHEN = (AUTO, "always", "never")
_CLOCKS = "clocks"
"""The word that ``--gpuenergy-allow`` takes besides differences from the baseline."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class PytestOptions:
    """The values of the options.

    Attributes:
        powercap: None where it is not given; so is ``smclock``.
        powercap_named: whether the command line, not the ini file, gives ``powercap``.
        smclock_named: whether the command line gives ``smclock``.
        setpoints_named: labels of the setpoints in ids on the command line.
        preheat_s: most seconds to heat the card up; None if it depends on the number of items.
        seed: seed of the last inputs; None if one is drawn.
        verify_only: whether nothing is measured, except by an export.
        baseline: the run to compare with; None in a run that measures nothing.
        strict_named: whether the command line, not the ini file, asks for a strict gate.
        allow_clocks: whether to lock clocks that somebody else seems to have locked.
        selection: the arguments that chose among the tests, as pytest takes them.
        worker: this process's id as a worker of pytest-xdist; None for others.
        worker_index: number of the worker's GPU.
        worker_boards: number of GPUs in the run, if the controller knows it.
        remote: whether this process is a worker that may be on another host.
    """

    device: str
    powercap: str | None
    smclock: str | None
    powercap_named: bool
    smclock_named: bool
    setpoints_named: tuple[str, ...]
    strict_powercap: bool
    json_path: Path | None
    csv_folder: Path | None
    html_path: Path | None
    sort: str
    durations: bool
    resume: bool
    timeout_s: float
    lock_wait_s: float
    cache: CacheState
    order: str
    preheat_s: float | None
    anchor_s: float
    boards: str
    seed: int | None
    export_folder: Path | None
    verify_only: bool
    baseline: Path | None
    gate: GateSettings
    strict_named: bool
    allow_clocks: bool
    selection: str
    root: Path
    worker: str | None
    worker_index: int
    worker_boards: int | None
    remote: bool

    @classmethod
    def from_pytest_config(cls, config: pytest.Config) -> PytestOptions:
        """Read the options from the command line, or else from the ini file.

        Raises:
            InputError: a value is invalid.
        """
        device = declared.DEVICE.text(config)
        device = AUTO if device is None else device
        check_spec(device)
        powercap, smclock = declared.POWERCAP.text(config), declared.SMCLOCK.text(config)
        if powercap is not None:
            cap_words(powercap)
        if smclock is not None:
            clock_words(smclock)
        export_folder = _path(config, declared.EXPORT)
        verify_only = bool(declared.VERIFY_ONLY.value(config))
        if verify_only and declared.FAIL.given(config):
            raise InputError(
                f"{declared.VERIFY_ONLY.name} measures nothing that {declared.FAIL.name} could "
                "judge: give only one of them."
            )
        # An export measures nothing either, and has its own way of verifying.
        verify_only = verify_only and export_folder is None
        auto_preheat = declared.PREHEAT.value(config) == AUTO
        allowed = [word.strip() for word in str(declared.ALLOW.value(config)).split(",")]
        worker_input = getattr(config, "workerinput", {})
        gpu_number = int(worker_input.get(GPU) or 0)
        fleet_number = os.environ.get(FLEET_GPU, "")
        if GPU in worker_input and fleet_number.isascii() and fleet_number.isdecimal():
            gpu_number = int(fleet_number)  # among those that CUDA sees on the worker's host
        return cls(
            device=device,
            powercap=powercap,
            smclock=smclock,
            powercap_named=declared.POWERCAP.given(config) is not None,
            smclock_named=declared.SMCLOCK.given(config) is not None,
            setpoints_named=tuple(setpoints_named(config)),
            strict_powercap=bool(declared.STRICT_POWERCAP.value(config)),
            json_path=_path(config, declared.JSON),
            csv_folder=_path(config, declared.CSV),
            html_path=_path(config, declared.HTML),
            sort=check_sort(str(declared.SORT.value(config)), declared.SORT.name),
            durations=bool(declared.DURATIONS.value(config)),
            resume=bool(declared.RESUME.value(config)),
            timeout_s=_seconds(config, declared.TIMEOUT),
            lock_wait_s=_seconds(config, declared.LOCK_WAIT, zero=True),
            cache=_choice(config, declared.CACHE, CACHE_STATES),
            order=_choice(config, declared.ORDER, _ORDERS),
            preheat_s=None if auto_preheat else _seconds(config, declared.PREHEAT, zero=True),
            anchor_s=_seconds(config, declared.ANCHOR, zero=True),
            boards=_choice(config, declared.BOARDS, _WHEN),
            seed=_read_seed(config),
            export_folder=export_folder,
            verify_only=verify_only,
            baseline=None if verify_only else _path(config, declared.COMPARE),
            gate=_gate(config, [word for word in allowed if word != _CLOCKS]),
            strict_named=bool(declared.STRICT.given(config)),
            allow_clocks=_CLOCKS in allowed,
            selection=_selection(config),
            root=config.rootpath,
            worker=worker_input.get("workerid"),
            worker_index=gpu_number,
            worker_boards=worker_input.get(BOARDS),
            remote=bool(worker_input.get(REMOTE)),
        )

    @property
    def may_compare_boards(self) -> bool:
        """Whether a GPU measures the kernels by which boards are compared, if there are others."""
        return not (self.export_folder is not None or self.verify_only or self.boards == "never")

    @cached_property
    def compares_boards(self) -> bool:
        """Whether each GPU measures the kernels by which boards are compared."""
        if not self.may_compare_boards:
            return False
        if self.boards == "always":
            return True
        if self.worker is None:
            return False
        if self.worker_boards is not None:
            return self.worker_boards > 1
        workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        return min(workers, count_gpus(self.device)) > 1

    def described(self) -> dict[str, str]:
        """The options that the report records."""
        return {
            "gpu-device": self.device,
            "powercap": self.powercap or "default",
            **({} if self.smclock is None else {"smclock": self.smclock}),
            **({"selection": self.selection} if self.selection else {}),
            "gpuenergy-timeout": f"{self.timeout_s:g}",
            "gpuenergy-cache": self.cache,
            "gpuenergy-order": self.order,
            "gpuenergy-preheat": AUTO if self.preheat_s is None else f"{self.preheat_s:g}",
            "gpuenergy-anchor": f"{self.anchor_s:g}",
            **({} if self.boards == AUTO else {"gpuenergy-boards": self.boards}),
            **({} if self.seed is None else {"gpuenergy-seed": str(self.seed)}),
            **({"gpuenergy-verify-only": "true"} if self.verify_only else {}),
        }


def _path(config: pytest.Config, option: PytestOption) -> Path | None:
    """Return the path, relative to the working directory or to the ini file that sets it."""
    if (given := option.given(config)) is not None:
        if not given:  # such as an unset variable in a CI job
            raise InputError(f"{option.name} is empty: give a path, or leave it out.")
        return config.invocation_params.dir / str(given)
    text = str(option.stated(config))
    folder = config.inipath.parent if config.inipath else config.rootpath
    return folder / text if text else None


def _gate(config: pytest.Config, allowed: Sequence[str]) -> GateSettings:
    fail = declared.FAIL.value(config)
    settings = GateSettings.parse(
        list(filter(None, [fail])) if isinstance(fail, str) else fail,
        session_sd=declared.SESSION_SD.value(config),
        allow=",".join(allowed),
        also_allowed=(_CLOCKS,),
        strict=bool(declared.STRICT.value(config)),
        prefix="--gpuenergy-",
    )
    if declared.FAIL.given(config) and not declared.COMPARE.value(config):
        raise InputError(
            f"{declared.FAIL.name} needs a baseline: give {declared.COMPARE.name} too."
        )
    return settings


def _selection(config: pytest.Config) -> str:
    option, words = config.option, []
    for name, key in (("-k", "keyword"), ("-m", "markexpr")):
        words += [name, value] if (value := getattr(option, key, "")) else []
    words += [f"--{key}" for key in ("lf", "stepwise") if getattr(option, key, False)]
    for key in ("deselect", "ignore", "ignore_glob"):
        name = f"--{key.replace('_', '-')}"
        words += [f"{name}={value}" for value in getattr(option, key, None) or ()]
    words += getattr(option, "file_or_dir", None) or ()
    return shlex.join(words)


def _seconds(config: pytest.Config, option: PytestOption, *, zero: bool = False) -> float:
    text = option.value(config)
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not (0 < seconds <= _MAX_SECONDS or (zero and seconds == 0)):
        least = "from 0" if zero else "above 0,"
        raise InputError(
            f"{option.name} {text!r} is not a number of seconds {least} up to {_MAX_SECONDS}."
        )
    return seconds


def _read_seed(config: pytest.Config) -> int | None:
    text = str(declared.SEED.value(config) or "").strip()
    if text and not (text.isascii() and text.isdecimal() and int(text[:20]) <= MAX_SEED):
        raise InputError(
            f"{declared.SEED.name} {text[:40]!r} is not a whole number from 0 to {MAX_SEED}."
        )
    return int(text) if text else None


def _choice(config: pytest.Config, option: PytestOption, choices: Sequence[_T]) -> _T:
    text = option.value(config)
    if text not in choices:
        listed = " or ".join(map(str, choices))
        raise InputError(f"{option.name} {text!r} is not understood: give {listed}.")
    return choices[choices.index(text)]
