"""The options of ``pytest``, read once into one frozen object."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
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
from pytest_gpuenergy.support import InputError, gpu_number

_MOST_S = 1_000_000
"""The longest time that an option may set, to refuse typing errors."""
_ORDERS = ("interleaved", "file")
_WHEN = (AUTO, "always", "never")
_CLOCKS = "clocks"
"""What ``--gpuenergy-allow`` takes besides differences from the baseline."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class PytestOptions:
    """The values of the options.

    Attributes:
        device: ``--gpu-device``.
        powercap: ``--powercap``; None where it is not given.
        smclock: ``--smclock``; None where it is not given.
        setpoints_named: labels of the setpoints in ids on the command line.
        strict_powercap: whether an item fails whose setpoint cannot be set.
        json_path: where to write the JSON report besides the run folder.
        csv_folder: where to write the classic CSV tree besides the run folder.
        html_path: where to write the HTML page.
        sort: the key by which the summary's tables are sorted.
        durations: whether to show where wall time was spent.
        resume: whether to continue the last run.
        timeout_s: time after which a kernel counts as hung.
        lock_wait_s: how long to wait for a GPU that another run is using.
        cache: state of the L2 cache at each launch.
        order: ``interleaved`` or ``file``.
        preheat_s: most seconds to heat the card up; None if it depends on the number of items.
        anchor_s: seconds between measurements of an anchor kernel; 0 disables them.
        boards: when GPUs measure the kernels by which boards are compared.
        seed: seed of the last inputs; None if one is drawn.
        export_folder: where to write verified kernels instead of measuring them.
        verify_only: whether nothing is measured.
        baseline: the run to compare with; None in a run that measures nothing.
        gate: limits and strictness of the gate.
        strict_named: whether the command line, not the ini file, asks for a strict gate.
        allow_clocks: whether to lock clocks that somebody else seems to have locked.
        selection: the arguments that chose among the tests, as pytest takes them.
        root: pytest's root folder.
        worker: this process's id as a worker of pytest-xdist; None for others.
        worker_index: number of the worker's GPU.
        worker_boards: number of GPUs in the run, if the controller knows it.
        remote: whether this process is a worker that may be on another host.
    """

    device: str
    powercap: str | None
    smclock: str | None
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
        worker_input = getattr(config, "workerinput", {})
        export_folder = _path(config, declared.EXPORT)
        # An export measures nothing either, and has its own way of verifying.
        verify_only = _verify_only(config) and export_folder is None
        sort = str(declared.SORT.value(config))
        return cls(
            device=device,
            powercap=_words(config, declared.POWERCAP, cap_words),
            smclock=_words(config, declared.SMCLOCK, clock_words),
            setpoints_named=tuple(setpoints_named(config)),
            strict_powercap=bool(declared.STRICT_POWERCAP.value(config)),
            json_path=_path(config, declared.JSON),
            csv_folder=_path(config, declared.CSV),
            html_path=_path(config, declared.HTML),
            sort=check_sort(sort, declared.SORT.name),
            durations=bool(declared.DURATIONS.value(config)),
            resume=bool(declared.RESUME.value(config)),
            timeout_s=_seconds(config, declared.TIMEOUT),
            lock_wait_s=_seconds(config, declared.LOCK_WAIT, zero=True),
            cache=_choice(config, declared.CACHE, CACHE_STATES),
            order=_choice(config, declared.ORDER, _ORDERS),
            preheat_s=_preheat(config),
            anchor_s=_seconds(config, declared.ANCHOR, zero=True),
            boards=_choice(config, declared.BOARDS, _WHEN),
            seed=_seed(config),
            export_folder=export_folder,
            verify_only=verify_only,
            baseline=None if verify_only else _path(config, declared.COMPARE),
            gate=_gate(config),
            strict_named=bool(declared.STRICT.given(config)),
            allow_clocks=_CLOCKS in _allowed(config),
            selection=_selection(config),
            root=config.rootpath,
            worker=worker_input.get("workerid"),
            worker_index=gpu_number(worker_input.get(GPU)),
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


def _words(
    config: pytest.Config, option: PytestOption, check: Callable[[str], Sequence[str]]
) -> str | None:
    text = option.text(config)
    if text is not None:
        check(text)
    return text


def _path(config: pytest.Config, option: PytestOption) -> Path | None:
    """Return the path, relative to the working directory or to the ini file that sets it."""
    if (given := option.given(config)) is not None:
        if not given:  # such as an unset variable in a CI job
            raise InputError(f"{option.name} is empty: give a path, or leave it out.")
        return config.invocation_params.dir / str(given)
    text = str(option.stated(config))
    folder = config.inipath.parent if config.inipath else config.rootpath
    return folder / text if text else None


def _gate(config: pytest.Config) -> GateSettings:
    fail = declared.FAIL.value(config)
    settings = GateSettings.parse(
        list(filter(None, [fail])) if isinstance(fail, str) else fail,
        session_sd=declared.SESSION_SD.value(config),
        allow=",".join(word for word in _allowed(config) if word != _CLOCKS),
        also_allowed=(_CLOCKS,),
        strict=bool(declared.STRICT.value(config)),
        prefix="--gpuenergy-",
    )
    if declared.FAIL.given(config) and not declared.COMPARE.value(config):
        raise InputError(
            f"{declared.FAIL.name} needs a baseline: give {declared.COMPARE.name} too."
        )
    return settings


def _allowed(config: pytest.Config) -> list[str]:
    return [word.strip() for word in str(declared.ALLOW.value(config)).split(",")]


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


def _verify_only(config: pytest.Config) -> bool:
    asked = bool(declared.VERIFY_ONLY.value(config))
    if asked and declared.FAIL.given(config):
        raise InputError(
            f"{declared.VERIFY_ONLY.name} measures nothing that {declared.FAIL.name} could judge: "
            "give only one of them."
        )
    return asked


def _preheat(config: pytest.Config) -> float | None:
    """Return the limit in seconds, or None if it depends on the number of items."""
    if declared.PREHEAT.value(config) == AUTO:
        return None
    return _seconds(config, declared.PREHEAT, zero=True)


def _seconds(config: pytest.Config, option: PytestOption, *, zero: bool = False) -> float:
    text = option.value(config)
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not (0 < seconds <= _MOST_S or (zero and seconds == 0)):
        least = "from 0" if zero else "above 0,"
        raise InputError(
            f"{option.name} {text!r} is not a number of seconds {least} up to {_MOST_S}."
        )
    return seconds


def _seed(config: pytest.Config) -> int | None:
    text = str(declared.SEED.value(config) or "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and int(text[:20]) <= MAX_SEED):
        raise InputError(
            f"{declared.SEED.name} {text[:40]!r} is not a whole number from 0 to {MAX_SEED}."
        )
    return int(text)


def _choice(config: pytest.Config, option: PytestOption, choices: Sequence[_T]) -> _T:
    text = option.value(config)
    if text not in choices:
        listed = " or ".join(map(str, choices))
        raise InputError(f"{option.name} {text!r} is not understood: give {listed}.")
    return choices[choices.index(text)]
