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
from pytest_gpuenergy.pytest_plugin.declarations import (
    AUTO,
    LARGEST_SEED,
    either,
    named_device,
    stated,
)
from pytest_gpuenergy.pytest_plugin.distribute.link import BOARDS, GPU, REMOTE
from pytest_gpuenergy.pytest_plugin.selection import setpoints_named
from pytest_gpuenergy.report import check_sort
from pytest_gpuenergy.support import InputError, gpu_number

_MOST_S = 1_000_000
ORDERS = ("interleaved", "file")
WHEN = (AUTO, "always", "never")
CLOCKS = "clocks"
"""What ``--gpuenergy-allow`` takes besides differences from the baseline."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class Options:
    """The options' values; paths are absolute.

    ``setpoints_named`` are those in ids on the command line. Without measurements there is no
    ``baseline``. ``strict_named`` reports whether the command line, not the ini file, asks for a
    strict gate. ``selection`` is what chose among the tests, as pytest takes it. ``remote`` reports
    whether this process is a worker that may be on another host.
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
    def from_pytest_config(cls, config: pytest.Config) -> Options:
        """Read the options from the command line, or else from the ini file.

        Raises:
            InputError: a value is invalid.
        """
        device = named_device(config)
        device = "auto" if device is None else device
        check_spec(device)
        worker_input = getattr(config, "workerinput", {})
        export_folder = _path(config, "gpuenergy_export")
        verify_only = _verify_only(config) and export_folder is None  # which measures nothing too
        return cls(
            device=device,
            powercap=_words(config, "powercap", cap_words),
            smclock=_words(config, "smclock", clock_words),
            setpoints_named=tuple(setpoints_named(config)),
            strict_powercap=bool(either(config, "strict_powercap")),
            json_path=_path(config, "gpuenergy_json"),
            csv_folder=_path(config, "gpuenergy_csv"),
            html_path=_path(config, "gpuenergy_html"),
            sort=check_sort(str(either(config, "gpuenergy_sort")), "--gpuenergy-sort"),
            durations=bool(either(config, "gpuenergy_durations")),
            resume=bool(either(config, "gpuenergy_resume")),
            timeout_s=_seconds(config, "gpuenergy_timeout"),
            lock_wait_s=_seconds(config, "gpuenergy_lock_wait", zero=True),
            cache=_choice(config, "gpuenergy_cache", CACHE_STATES),
            order=_choice(config, "gpuenergy_order", ORDERS),
            preheat_s=_preheat(config),
            anchor_s=_seconds(config, "gpuenergy_anchor", zero=True),
            boards=_choice(config, "gpuenergy_boards", WHEN),
            seed=_seed(config),
            export_folder=export_folder,
            verify_only=verify_only,
            baseline=None if verify_only else _path(config, "gpuenergy_compare"),
            gate=_gate(config),
            strict_named=bool(config.getoption("gpuenergy_strict")),
            allow_clocks=CLOCKS in _allowed(config),
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


def _words(config: pytest.Config, name: str, check: Callable[[str], Sequence[str]]) -> str | None:
    given = config.getoption(name)
    text = (str(stated(config, name)) or None) if given is None else str(given)
    if text is not None:
        check(text)
    return text


def _path(config: pytest.Config, name: str) -> Path | None:
    """The path, relative to the working directory or to the ini file that sets it."""
    if (given := config.getoption(name)) is not None:
        if not given:  # such as an unset variable in a CI job
            raise InputError(f"{_option(name)} is empty: give a path, or leave it out.")
        return config.invocation_params.dir / str(given)
    text = str(stated(config, name))
    folder = config.inipath.parent if config.inipath else config.rootpath
    return folder / text if text else None


def _gate(config: pytest.Config) -> GateSettings:
    fail = either(config, "gpuenergy_fail")
    settings = GateSettings.parse(
        list(filter(None, [fail])) if isinstance(fail, str) else fail,
        session_sd=either(config, "gpuenergy_session_sd"),
        allow=",".join(word for word in _allowed(config) if word != CLOCKS),
        also_allowed=(CLOCKS,),
        strict=bool(either(config, "gpuenergy_strict")),
        prefix="--gpuenergy-",
    )
    if config.getoption("gpuenergy_fail") and not either(config, "gpuenergy_compare"):
        raise InputError("--gpuenergy-fail needs a baseline: give --gpuenergy-compare too.")
    return settings


def _allowed(config: pytest.Config) -> list[str]:
    return [word.strip() for word in str(either(config, "gpuenergy_allow")).split(",")]


def _selection(config: pytest.Config) -> str:
    option, words = config.option, []
    for name, key in (("-k", "keyword"), ("-m", "markexpr")):
        words += [name, value] if (value := getattr(option, key, "")) else []
    words += [f"--{key}" for key in ("lf", "stepwise") if getattr(option, key, False)]
    for key in ("deselect", "ignore", "ignore_glob"):
        words += [f"{_option(key)}={value}" for value in getattr(option, key, None) or ()]
    words += getattr(option, "file_or_dir", None) or ()
    return shlex.join(words)


def _verify_only(config: pytest.Config) -> bool:
    asked = bool(either(config, "gpuenergy_verify_only"))
    if asked and config.getoption("gpuenergy_fail"):
        raise InputError(
            "--gpuenergy-verify-only measures nothing that --gpuenergy-fail could judge: give only "
            "one of them."
        )
    return asked


def _preheat(config: pytest.Config) -> float | None:
    """In seconds; None to choose it by the number of items."""
    if either(config, "gpuenergy_preheat") == AUTO:
        return None
    return _seconds(config, "gpuenergy_preheat", zero=True)


def _seconds(config: pytest.Config, name: str, *, zero: bool = False) -> float:
    text = either(config, name)
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not (0 < seconds <= _MOST_S or (zero and seconds == 0)):
        least = "from 0" if zero else "above 0,"
        raise InputError(
            f"{_option(name)} {text!r} is not a number of seconds {least} up to {_MOST_S}."
        )
    return seconds


def _seed(config: pytest.Config) -> int | None:
    text = str(either(config, "gpuenergy_seed") or "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and int(text[:20]) <= LARGEST_SEED):
        raise InputError(
            f"--gpuenergy-seed {text[:40]!r} is not a whole number from 0 to {LARGEST_SEED}."
        )
    return int(text)


def _choice(config: pytest.Config, name: str, choices: Sequence[_T]) -> _T:
    text = either(config, name)
    if text not in choices:
        raise InputError(f"{_option(name)} {text!r} is not understood: give {_or(choices)}.")
    return choices[choices.index(text)]


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _or(choices: Sequence[object]) -> str:
    return " or ".join(map(str, choices))
