"""Profiles variants with Nsight Compute, where it works.

``python -m pytest_gpuenergy.search.running.ncu_profiler CONTROL_JSON GPU_UUID`` is the process that
ncu profiles: it launches a variant a few times on a GPU that the caller has claimed.
"""

from __future__ import annotations

import csv
import math
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

from pytest_gpuenergy.engine import seeded_arenas
from pytest_gpuenergy.kernels import Job
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.search.moves.move import Region
from pytest_gpuenergy.search.running.kernel_folder import read_control
from pytest_gpuenergy.search.spec.spec_file import read_spec
from pytest_gpuenergy.search.spec.spec_workload import workload_of
from pytest_gpuenergy.search.spec.state_kernel import kernel_of
from pytest_gpuenergy.support import (
    AS_MEASURED,
    FORBIDDEN,
    INSTALL,
    FormError,
    InputError,
    dump,
    forbidden,
    is_there,
    read_record,
    run_child,
    shown,
    write_atomically,
)
from pytest_gpuenergy.tuning import writing

PROFILE, _LOG = "profile.json", "profile.log"
_TIMEOUT_S = 120.0
"""Seconds for one profile."""
_MAX_BYTES = 1 << 20
"""Size of a stored profile."""
LAUNCHES = 3
"""Launches of a variant. The last one is profiled: the caches are then as in a measurement."""

_OF_PEAK = ".avg.pct_of_peak_sustained_elapsed"
_UNITS: Mapping[Region, tuple[str, ...]] = {
    "compute": ("sm__inst_executed", "sm__pipe_fma_cycles_active", "sm__pipe_tensor_cycles_active"),
    "gmem": ("dram__throughput", "lts__throughput"),
    "sfu": ("sm__inst_executed_pipe_xu",),
    "smem": ("l1tex__data_pipe_lsu_wavefronts_mem_shared",),
}
"""The counters of each region; the busiest one stands for the region."""
_UPDATES = ("lts__t_sectors_op_atom.sum", "lts__t_sectors_op_red.sum")
_SECTORS, _L2 = "lts__t_sectors.sum", f"lts__throughput{_OF_PEAK}"


class Profile(Struct, frozen=True, forbid_unknown_fields=True):
    """The profile of a variant.

    Attributes:
        used: the share of the time for which each unit is busy; empty if there is no profile.
        message: the reason why there is none.
    """

    used: dict[Region, float] = {}
    message: str = ""


@dataclass
class Profiler:
    """Profiles every nth visited variant, and writes the profile into the variant's folder.

    Once ncu has failed it is not run again, and one sentence says why.

    Attributes:
        every: the number of visits from one profile to the next; 0 for no profiles.
        gpu: the UUID of the GPU, which the caller has claimed.
        gpu_name: the name of the GPU.
        entry: the name of the kernel.
        tell: called with that sentence.
        timeout_s: the time for one profile, in seconds.
    """

    every: int
    gpu: str
    gpu_name: str
    entry: str
    tell: Callable[[str], None]
    timeout_s: float = _TIMEOUT_S

    def __post_init__(self) -> None:
        self._visits = 0
        self._trouble = ""

    def visit(self, place: Path) -> Mapping[Region, float]:
        """Return the profile of the variant in a folder; empty if it is not the variant's turn.

        Raises:
            InputError: an existing profile is damaged.
            OutputError: the profile cannot be written.
        """
        due = self.every > 0 and self._visits % self.every == 0
        self._visits += 1
        if not due:
            return {}
        path = place / PROFILE
        if is_there(path):
            remedy = "delete it to have it made again"
            return read_record(path, "profile", Profile, _MAX_BYTES, remedy=remedy).used
        profile = Profile(message=self._trouble)
        if not self._trouble:
            try:
                profile = Profile(read_counters(self._run_ncu(place)))
            except (InputError, FormError, OSError) as error:
                self._trouble = str(error)
            except subprocess.TimeoutExpired:
                self._trouble = f"ncu has not finished within {self.timeout_s:g} s"
            if self._trouble:
                profile = Profile(message=self._trouble)
                self.tell(
                    f"Variants are not profiled, and their bottlenecks are estimated instead: "
                    f"{self._trouble.rstrip('.')}."
                )
        with writing(path):
            write_atomically(path, dump(profile), durable=True)
        return profile.used

    def _run_ncu(self, place: Path) -> str:
        """Run ncu on a variant and return what it prints."""
        ncu = shutil.which("ncu")
        if ncu is None:
            raise InputError(f"ncu is not on the PATH: {INSTALL}")
        options: dict[str, object] = {
            **AS_MEASURED,
            "--page": "raw",
            "--metrics": ",".join(metrics()),
            "--target-processes": "all",
            "--kernel-name": self.entry.partition("<")[0].split("::")[-1],
            "--launch-skip": LAUNCHES - 1,
            "--launch-count": 1,
        }
        words = [str(word) for option in options.items() for word in option]
        child = [sys.executable, "-m", "pytest_gpuenergy.search.running.ncu_profiler"]
        command = [ncu, "--csv", *words, *child, str(place.absolute() / "control.json"), self.gpu]
        done = run_child(command, place, timeout_s=self.timeout_s)
        with writing(place / _LOG):
            write_atomically(place / _LOG, done.stdout)
        if FORBIDDEN in done.stdout:
            raise InputError(forbidden(self.gpu_name))
        if done.returncode:
            raise InputError(
                f"ncu failed with exit code {done.returncode}: {place / _LOG} says why"
            )
        return done.stdout


_SMALL_BYTES = 1 << 28
"""Tensors of so many bytes are copied sooner than this process has a context of its own."""


def metrics() -> tuple[str, ...]:
    """Return the names of the metrics that ncu is asked for."""
    of_units = tuple(f"{name}{_OF_PEAK}" for names in _UNITS.values() for name in names)
    return (*of_units, *_UPDATES, _SECTORS)


def read_counters(printed: str) -> dict[Region, float]:
    """Return the share of a launch's time for which each unit is busy, from ``ncu --csv``.

    A metric that this version or GPU does not have is left out. The last of several launches
    counts.

    Raises:
        FormError: the text is no such table, or has none of the metrics.
    """
    lines = printed.splitlines()
    first = next((n for n, line in enumerate(lines) if line.startswith('"ID"')), None)
    if first is None:
        raise FormError("it has no table")
    try:
        header, _units, *rows = csv.reader(lines[first:], strict=True)
    except (ValueError, csv.Error):
        raise FormError("its table is not complete") from None
    launches = [row for row in rows if len(row) == len(header)]
    if not launches:
        raise FormError("its table has no launch")
    texts = dict(zip(header, launches[-1], strict=True))
    values = {
        name: _number(name, texts[name])
        for name in metrics()
        if texts.get(name, "").strip() not in ("", "n/a")
    }
    used: dict[Region, float] = {}
    for region, names in _UNITS.items():
        known = [values[key] / 100 for name in names if (key := f"{name}{_OF_PEAK}") in values]
        if known:
            used[region] = min(1.0, max(known))
    if values.get(_SECTORS) and _L2 in values:
        updates = sum(values.get(name, 0.0) for name in _UPDATES)
        used["atomics"] = min(1.0, values[_L2] / 100 * updates / values[_SECTORS])
    if not used:
        raise FormError("it has none of the metrics that were asked for")
    return used


def _number(name: str, text: str) -> float:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise FormError(f"its {name} is {shown(text)}")
    return value


def main(words: Sequence[str]) -> int:
    """Launch the kernel of a control file with the first set of sizes."""
    path, gpu = Path(words[0]), words[1]
    with open_device(gpu) as device:
        device.begin_context()  # takes a second with imports, while this process does other things
        control = read_control(path)
        spec = read_spec(path.parent / control.spec)
        workload = workload_of(spec, spec.sizes[0], dict)
        kernel = kernel_of(spec, control.state, spec.sizes[0])
        nbytes = sum(tensor.nbytes for tensor in workload.tensors)
        job = Job.of(kernel, workload, seed=control.seed)
        arrays = device.arrays if nbytes > _SMALL_BYTES else None
        with (
            seeded_arenas(workload, job.seed, arrays) as arenas,
            device.load(job, arenas) as loaded,
        ):
            for _ in range(LAUNCHES):
                loaded.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
