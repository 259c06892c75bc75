"""Makes a report from the text outputs of older tools, one per kernel and power cap.

``kernel_outputs/case1/powercap3/output_kernel7.txt`` has GFLOP/s, energy and time of one launch.
How they were measured, and whether the kernel was correct, is unknown: each measurement is flagged
``legacy``, and such a report is never merged with a measured one.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from pytest_gpuenergy.record import KernelInfo, Measurement, RunInfo, WorkloadInfo, check
from pytest_gpuenergy.report.store import UNKNOWN_GPU, Report, is_run
from pytest_gpuenergy.support import (
    FormError,
    InputError,
    is_folder,
    is_link,
    is_there,
    matching,
    read_bytes,
)

FLAG = "legacy"
"""The flag in `Measurement.validity`: how the figures were measured is unknown."""

_OUTPUT = "output_kernel*.txt"
_FILES = f"powercap*/{_OUTPUT}"
_PATTERNS = (f"kernel_outputs/*/{_FILES}", f"*/{_FILES}", _FILES)
_NAME = re.compile(r"output_kernel(.*)\.txt", re.DOTALL)
_RANK = re.compile("[0-9]{1,9}")
_MAX_BYTES = 1 << 20

# Bounded digits keep matching fast on any text; "Peak GFLOP/s:" is a different label.
_NUMBER = r"([0-9]{1,40}(?:\.[0-9]{0,40})?(?:[eE][+-]?[0-9]{1,4})?)"
_FIGURES = {
    name: re.compile(rf"(?<!\w)(?<![A-Za-z][ \t]){label}:[ \t]*{_NUMBER}{unit}", re.ASCII)
    for name, label, unit in (
        ("GFLOP/s", "GFLOP/s", r"(?![\w.%]|,[0-9])"),
        ("energy", "Mean energy per iteration", r"[ \t]*mJ\b"),
        ("time", "Mean time per iteration", r"[ \t]*ms\b"),
    )
}
# A figure's unit is not part of the label that follows it.
_UNIT = re.compile(rf"{_NUMBER}[ \t]*(?:[kmunµ]?[JWs]|[kMG]?Hz)\b")


@dataclass(frozen=True)
class LaunchFigures:
    """The figures of one launch in one output.

    Raises:
        ValueError, ArithmeticError: a figure derived from them is zero or infinite.
    """

    gflops: float
    energy_mj: float
    time_ms: float

    def __post_init__(self) -> None:
        derived = (self.flops, self.edp_mj_ms, self.power_w, self.gflops_per_w)
        if not all(0 < figure < math.inf for figure in derived):
            raise ValueError("figures out of range")

    @property
    def flops(self) -> float:
        """Floating-point operations."""
        return self.gflops * self.time_ms * 1e6

    @property
    def edp_mj_ms(self) -> float:
        """Energy-delay product in mJ ms."""
        return self.energy_mj * self.time_ms

    @property
    def power_w(self) -> float:
        """Mean power in W."""
        return self.energy_mj / self.time_ms

    @property
    def gflops_per_w(self) -> float:
        """Energy efficiency in GFLOP/s/W."""
        return self.gflops / self.power_w


def is_legacy(folder: Path) -> bool:
    """Return whether ``folder`` is a tree of text outputs, or part of one, and not a run."""
    if not is_folder(folder) or is_run(folder):
        return False
    return bool(find_outputs(folder) or matching(folder, _OUTPUT))


def load_legacy(folder: Path, gpu: str | None = None) -> Report:
    """Read a tree of text outputs.

    An output that lacks a figure becomes a measurement without figures whose error says so. One
    that vanishes meanwhile is left out.

    Args:
        folder: ``kernel_outputs``, its parent, or the folder of one workload in it.
        gpu: name of the GPU that was measured; it is not derived from the files.

    Raises:
        InputError: there are no outputs in ``folder``.
    """
    measurements = [m for path in find_outputs(folder) if (m := _measurement(path)) is not None]
    if not measurements:
        raise InputError(
            f"{folder} contains no power cap folders with text outputs: give a folder with files "
            "such as case1/powercap3/output_kernel1.txt, or the folder of one workload in it."
        )
    run = RunInfo(
        run_id=f"{FLAG}-{_text(folder.resolve().name)}",
        started="",
        host="unknown",
        gpu_name=gpu or UNKNOWN_GPU,
        gpu_uuid="unknown",
        architecture="unknown",
        emulated=False,
        power_limits_w={},
        software={},
        options={},
        legacy=True,
    )
    return Report(run, tuple(measurements))


def parse_figures(text: str) -> LaunchFigures | str:
    """Return the figures in an output's text, or a clause that says what is wrong with it."""
    text = _UNIT.sub(r"\g<0>\n", text)
    found = {name: set(map(float, figure.findall(text))) for name, figure in _FIGURES.items()}
    # Older tools printed 0 mJ when NVML failed; no launch takes that.
    if missing := [name for name, values in found.items() if not values - {0.0, math.inf}]:
        return f"it has no {_join_words(missing)}"
    if several := [name for name, values in found.items() if len(values) > 1]:
        return f"it has different values for {_join_words(several)}"
    try:
        return LaunchFigures(*(values.pop() for values in found.values()))
    except (ValueError, ArithmeticError):
        return "its figures are out of range"


def _join_words(names: list[str]) -> str:
    return " and ".join(names) if len(names) < 3 else f"{', '.join(names[:-1])} and {names[-1]}"


def find_outputs(folder: Path) -> list[Path]:
    """Return the outputs sorted by workload, power cap and kernel, numbers in natural order."""
    found = (matching(folder.resolve(), pattern) for pattern in _PATTERNS)
    paths = next(filter(None, found), [])

    def natural(path: Path) -> list[list[tuple[int, str]]]:
        # "case10" sorts after "case2": numbers sort by length first.
        words = (re.split("([0-9]+)", name) for name in path.parts[-3:])
        return [
            [(len(word.lstrip("0")) if word[:1].isdigit() else 0, word) for word in several]
            for several in words
        ]

    return sorted(paths, key=natural)


def _text(name: str) -> str:
    """Return a file name with undecodable bytes replaced, which no view could contain."""
    return os.fsencode(name).decode("utf-8", "replace")


def _measurement(path: Path) -> Measurement | None:
    """Read an output, with or without figures; None if it has vanished."""
    parts = path.parts[-3:]
    workload, powercap, file_name = map(_text, parts)
    figures: LaunchFigures | str
    try:
        content = read_bytes(path, "output", _MAX_BYTES)
    except InputError as error:
        with contextlib.suppress(InputError):  # whether it is there cannot be known
            if not (is_there(path) or is_link(path)):
                return None
        figures = str(error)
    else:
        figures = parse_figures(content.decode("utf-8", "replace"))
        if isinstance(figures, str):
            name = f"{workload}/{powercap}/{file_name}"
            figures = f"The output {name} cannot be used: {figures}."
    match = _NAME.fullmatch(file_name)
    number = match.group(1) if match else file_name
    if _RANK.fullmatch(number):
        kernel = KernelInfo(f"k{int(number):02d}", "", FLAG, int(number))
    else:
        kernel = KernelInfo(number or "kernel", "", FLAG)
    words = powercap.removeprefix("powercap")
    index = int(words) if _RANK.fullmatch(words) else 0
    draft = Measurement(
        # Escaped, so that any two names give different ids.
        node_id="/".join(os.fsencode(part).decode("utf-8", "backslashreplace") for part in parts),
        workload=WorkloadInfo(workload, {}, 0, 0),
        kernel=kernel,
        outcome="runtime",
        cap=powercap if index else words.lstrip("_") or powercap,
        cap_index=index or None,
        cache="unknown",
        validity=(FLAG,),
    )
    if isinstance(figures, str):
        return replace(draft, error=figures)
    found = replace(
        draft,
        workload=WorkloadInfo(workload, {}, round(figures.flops), 0),
        outcome="correct",
        time_ms=figures.time_ms,
        energy_mj=figures.energy_mj,
        edp_mj_ms=figures.edp_mj_ms,
        power_w=figures.power_w,
        gflops=figures.gflops,
        gflops_per_w=figures.gflops_per_w,
    )
    try:
        check(found)
    except FormError as error:
        return replace(draft, error=f"The output {draft.node_id} cannot be used: {error}.")
    return found
