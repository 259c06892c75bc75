"""The options of ``pytest``, read once into one frozen object."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuenergy.devices.select import check_spec
from pytest_gpuenergy.errors import InputError

TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Options:
    """What the user asked for. Paths are absolute."""

    device: str
    powercap: str | None
    strict_powercap: bool
    json_path: Path | None
    csv_folder: Path | None
    html_path: Path | None
    durations: bool
    resume: bool
    timeout_s: float
    root: Path
    worker: str | None
    worker_index: int

    @classmethod
    def from_pytest_config(cls, config: pytest.Config) -> Options:
        """Read the command line, then the ini file.

        Raises:
            InputError: a value is not understood.
        """
        device = str(_either(config, "gpu_device"))
        check_spec(device)
        worker = os.environ.get("PYTEST_XDIST_WORKER")
        return cls(
            device=device,
            powercap=_either(config, "powercap") or None,
            strict_powercap=bool(_either(config, "strict_powercap")),
            json_path=_path(config, "gpuenergy_json"),
            csv_folder=_path(config, "gpuenergy_csv"),
            html_path=_path(config, "gpuenergy_html"),
            durations=bool(_either(config, "gpuenergy_durations")),
            resume=bool(_either(config, "gpuenergy_resume")),
            timeout_s=_seconds(_either(config, "gpuenergy_timeout")),
            root=config.rootpath,
            worker=worker,
            worker_index=int("".join(filter(str.isdigit, worker)) or 0) if worker else 0,
        )

    def described(self) -> dict[str, str]:
        """What is worth keeping in the report."""
        return {
            "gpu-device": self.device,
            "powercap": self.powercap or "default",
            "gpuenergy-timeout": f"{self.timeout_s:g}",
        }


def add_options(parser: pytest.Parser) -> None:
    """Add the options of group ``gpuenergy``, each with an ini option of the same name."""
    group = parser.getgroup("gpuenergy", "energy of GPU kernels")

    def add(name: str, help_text: str, *, ini: Any = "string", **keywords: Any) -> None:
        default = keywords.pop("ini_default", False if ini == "bool" else "")
        group.addoption(name, default=None, help=help_text, **keywords)
        parser.addini(name.lstrip("-").replace("-", "_"), help_text, type=ini, default=default)

    add(
        "--gpu-device",
        "Where kernels run: auto (the first NVIDIA GPU, else emulated), an index, a UUID, or "
        "emulated[:PROFILE][xN]",
        metavar="DEVICE",
        ini_default="auto",
    )
    add(
        "--powercap",
        "Power caps to measure under, comma-separated: 1 to 5 (index into the GPU's table, "
        "1 = lowest), watts such as 300W, all, or current (touch nothing). Default: current on "
        "a real GPU, all on the emulated one",
        metavar="LIST",
    )
    add(
        "--strict-powercap",
        "Fail, rather than skip, items whose power cap cannot be set",
        ini="bool",
        action="store_true",
    )
    add("--gpuenergy-json", "Write the report to this file as JSON", metavar="PATH")
    add("--gpuenergy-csv", "Write the classic CSV tree to this folder", metavar="DIR")
    add("--gpuenergy-html", "Write the report to this file as one HTML page", metavar="PATH")
    add(
        "--gpuenergy-durations",
        "Show where the wall time went: compiling, verifying, loading, heating up, measuring",
        ini="bool",
        action="store_true",
    )
    add(
        "--gpuenergy-resume",
        "Continue the last run: skip items that it measured without a flag",
        ini="bool",
        action="store_true",
    )
    add(
        "--gpuenergy-timeout",
        f"Seconds after which a kernel counts as hung (default: {TIMEOUT_S:g})",
        metavar="S",
        ini_default=f"{TIMEOUT_S:g}",
    )


def _either(config: pytest.Config, name: str) -> Any:
    given = config.getoption(name)
    return config.getini(name) if given is None else given


def _path(config: pytest.Config, name: str) -> Path | None:
    """Relative to where pytest was started, or to the ini file that gives it."""
    if given := config.getoption(name):
        return config.invocation_params.dir / str(given)
    stated = str(config.getini(name))
    folder = config.inipath.parent if config.inipath else config.rootpath
    return folder / stated if stated else None


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise InputError(f"--gpuenergy-timeout {text!r} is not a number of seconds above zero.")
    return seconds
