"""How well the emulated GPU's model ranks kernels, compared with figures measured on a real GPU.

    python studies/model_ranking.py
    python studies/model_ranking.py --cases case5,case7 --json ranking.json
    python studies/model_ranking.py --fit --records bench/records/nvidia-h200 tuned

The recorded figures are removed from each kernel, so that the model is used, and the model's time
and power are compared with them. A kernel that was not measured has the time from the search that
found it, and no power. The first run compiles each kernel for the host and runs a sample of its
blocks to count their memory accesses; the counts are cached by content.

With ``--fit`` the model's coefficients are fitted to all kernels and printed, along with figures
for each case from coefficients fitted to all other cases, whatever their folder. Source files are
not changed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from ranking import TOP, Row, agreement, close_pairs, regret, table
from study_command import study_parser

from pytest_gpuenergy.devices import Work
from pytest_gpuenergy.emulator import (
    COEFFICIENTS,
    PROFILES,
    Coefficients,
    GpuProfile,
    HostRunner,
    Traffic,
    TrafficCache,
    kernel_demand,
    quantities,
)
from pytest_gpuenergy.engine import seeded_arenas
from pytest_gpuenergy.kernels import Kernel
from pytest_gpuenergy.support import GpuEnergyError, InputError, cache_dir
from pytest_gpuenergy.tuners import KernelStore, search_ms, tuner_files
from pytest_gpuenergy.tuning import TVM, Record, RecordFile
from pytest_gpuenergy.workloads import Workload

RECORDS = Path(__file__).parents[1] / "bench" / "records" / "nvidia-h200"
CHECK_TIMEOUT_S = 120.0

Bounds = dict[str, tuple[float, float, float]]
Figures = npt.NDArray[np.float64]

# Start value, lower and upper bound of each fitted coefficient.
TIME_BOUNDS: Bounds = {
    "instructions_per_fma": (1.2, 1.0, 2.0),
    "instructions_per_global": (10.0, 2.0, 40.0),
    "instructions_per_shared": (1.5, 1.0, 8.0),
    "instructions_per_spill": (4.0, 1.0, 20.0),
    "latency_cycles": (300.0, 200.0, 800.0),
    "branch_cycles": (150.0, 0.0, 600.0),
    "barrier_cycles": (100.0, 10.0, 400.0),
    "shared_cycles": (0.8, 0.25, 2.0),
    "conflict_cycles": (0.5, 0.1, 1.0),
}
POWER_BOUNDS: Bounds = {
    "power_base": (0.05, 0.0, 0.2),
    "power_issue": (0.2, 0.0, 2.0),
    "power_l2": (0.2, 0.0, 2.0),
    "power_spill": (0.2, 0.0, 4.0),
}


@dataclass(frozen=True)
class Sample:
    """A kernel without its recorded figures, with its counted accesses and measured figures.

    Attributes:
        row: its row in the table: its case, and its folder if there are several.
        time_ms: measured, or else from the search.
        power_w: None if it was not measured.
    """

    case: str
    row: str
    rank: int
    kernel: Kernel
    work: Work
    traffic: tuple[Traffic, ...]
    profile: GpuProfile
    time_ms: float
    power_w: float | None

    def modelled(self, coefficients: Coefficients) -> tuple[float, float]:
        """Milliseconds and watts."""
        demand = kernel_demand(
            self.kernel, self.work, self.traffic, self.profile, coefficients=coefficients
        )
        return demand.time_s * 1e3, demand.power_w


def row_of(name: str, samples: Sequence[Sample], modelled: Figures, *, pooled: bool = False) -> Row:
    """``modelled`` has shape (samples, 2): milliseconds and watts."""
    times = [sample.time_ms for sample in samples]
    powers = [s.power_w for s in samples if s.power_w is not None]
    modelled_powers = modelled[_with_power(samples), 1].tolist()
    time = modelled[:, 0].tolist()
    return Row(
        name,
        agreement(time, times),
        agreement(modelled_powers, powers) if len(powers) > 1 else None,
        None if pooled else close_pairs(time, times),
        None if pooled else regret(time, times, 1),
        None if pooled else regret(time, times, TOP),
    )


def rows_of(samples: Sequence[Sample], modelled: Figures) -> list[Row]:
    """One row per case and folder, and one for all kernels together."""
    rows = []
    for name in dict.fromkeys(sample.row for sample in samples):
        of_row = [k for k, sample in enumerate(samples) if sample.row == name]
        rows.append(row_of(name, [samples[k] for k in of_row], modelled[of_row]))
    if len(rows) > 1:
        rows.append(row_of("all", samples, modelled, pooled=True))
    return rows


def _with_power(samples: Sequence[Sample]) -> list[int]:
    return [k for k, sample in enumerate(samples) if sample.power_w is not None]


def cases_of(samples: Iterable[Sample]) -> list[str]:
    """Each once, in order."""
    return list(dict.fromkeys(sample.case for sample in samples))


def model(samples: Sequence[Sample], coefficients: Coefficients) -> Figures:
    """Shape (samples, 2): milliseconds and watts."""
    return np.array([sample.modelled(coefficients) for sample in samples])


def ranges(samples: Iterable[Sample]) -> dict[str, tuple[float, float]]:
    """The least and the greatest value of each quantity in `COMPARED` of the emulated GPU."""
    found: dict[str, list[float]] = {}
    for sample in samples:
        for name, value in quantities(sample.kernel, sample.work, sample.traffic):
            found.setdefault(name, []).append(value)
    return {name: (min(values), max(values)) for name, values in found.items()}


def fit(samples: Sequence[Sample]) -> Coefficients:
    """Least squares on the logarithms, first of the times, then of the measured powers."""
    times = np.log([sample.time_ms for sample in samples])
    timed = _least_squares(samples, COEFFICIENTS, TIME_BOUNDS, 0, times)
    measured = [samples[k] for k in _with_power(samples)]
    if not measured:
        return timed
    powers = np.log([sample.power_w for sample in measured])
    return _least_squares(measured, timed, POWER_BOUNDS, 1, powers)


def _least_squares(
    samples: Sequence[Sample], fixed: Coefficients, bounds: Bounds, column: int, truth: Figures
) -> Coefficients:
    """Fit the coefficients in ``bounds`` to ``truth``; the others are fixed."""
    from scipy.optimize import least_squares  # takes a second

    first, low, high = (np.array(limits) for limits in zip(*bounds.values(), strict=True))

    def with_values(values: Figures) -> Coefficients:
        return replace(fixed, **dict(zip(bounds, values.tolist(), strict=True)))

    # A robust loss: some kernels are off by factors that no coefficient explains.
    found = least_squares(
        lambda values: np.log(model(samples, with_values(values))[:, column]) - truth,
        first,
        bounds=(low, high),
        x_scale=high - low,
        diff_step=1e-3,
        loss="soft_l1",
        f_scale=0.3,
    )
    return with_values(found.x)


def held_out(samples: Sequence[Sample]) -> Figures:
    """Each case modelled with coefficients fitted on all the others."""
    modelled = np.empty((len(samples), 2))
    for case in cases_of(samples):
        fitted = fit([sample for sample in samples if sample.case != case])
        for k, sample in enumerate(samples):
            if sample.case == case:
                modelled[k] = sample.modelled(fitted)
    return modelled


def load_samples(folders: Sequence[Path], cases: Sequence[str] | None, jobs: int) -> list[Sample]:
    """All kernels of the record files in ``folders``.

    Raises:
        InputError: there are none, or a case has none; a record file is damaged; the GPU cannot be
            emulated.
        KernelFault: a kernel cannot be lowered, compiled or run.
    """
    files = [(folder, file) for folder in folders for file in tuner_files(folder, TVM).values()]
    names = list(dict.fromkeys(file.workload.name for _, file in files))
    if not files or set(cases or ()) - set(names):
        raise InputError(
            f"{' and '.join(map(str, folders))} has records of {', '.join(names) or 'no case'}: "
            "choose some of these with --cases, or another folder with --records."
        )
    profiles = {profile.name: profile for profile in PROFILES.values()}
    counter = Counter(jobs)
    with KernelStore() as store, ThreadPoolExecutor(jobs) as pool:
        pending = []
        for folder, file in files:
            if cases and file.workload.name not in cases:
                continue
            if file.gpu not in profiles:
                raise InputError(f"{file.gpu} cannot be emulated: give records of another GPU.")
            for record in file.records:
                kernel = replace(store.kernel(file, record.rank), recorded=())
                traffic = pool.submit(counter.traffic, kernel, file.workload)
                pending.append((folder, file, record, kernel, traffic))
        try:
            return [
                Sample(
                    file.workload.name,
                    file.workload.name + (f" of {folder.name}" if len(folders) > 1 else ""),
                    record.rank,
                    kernel,
                    Work(file.workload.flops, file.workload.bytes_moved),
                    traffic.result(),
                    profiles[file.gpu],
                    *_measured(file, record),
                )
                for folder, file, record, kernel, traffic in pending
            ]
        finally:
            pool.shutdown(cancel_futures=True)
            counter.runner.close()


def _measured(file: RecordFile, record: Record) -> tuple[float, float | None]:
    """Milliseconds and watts; for an unmeasured kernel the milliseconds from its search."""
    if record.measured is not None:
        return record.measured.time_ms, record.measured.power_w
    return search_ms(file, record.rank), None


class Counter:
    """Counts the accesses of each kernel once; shares its cache with the emulated GPU."""

    def __init__(self, jobs: int) -> None:
        self.runner = HostRunner(cache_dir("emulated", "host"), jobs=jobs)
        self.cache = TrafficCache()

    def traffic(self, kernel: Kernel, workload: Workload) -> tuple[Traffic, ...]:
        def count() -> tuple[Traffic, ...]:
            with seeded_arenas(workload, 0) as arenas:
                checked = self.runner.check_races(kernel, arenas, {}, timeout_s=CHECK_TIMEOUT_S)
            return tuple(launch.traffic for launch in checked)

        return self.cache.traffic(kernel, count)


def main() -> int:
    """Run the command; exit code 2 if the records cannot be used."""
    parser = study_parser(__doc__)
    parser.add_argument("--records", type=Path, nargs="+", default=[RECORDS], metavar="DIR")
    parser.add_argument("--cases", type=lambda text: text.split(","), metavar="LIST")
    parser.add_argument("--json", type=Path, metavar="PATH", help="Also write the figures here")
    parser.add_argument("--fit", action="store_true", help="Fit the coefficients and print them")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    arguments = parser.parse_args()
    try:
        result = compare(arguments)
    except GpuEnergyError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


def compare(arguments: argparse.Namespace) -> dict[str, object]:
    """Print the requested tables, and return them as plain data."""
    samples = load_samples(arguments.records, arguments.cases, arguments.jobs)
    coefficients = COEFFICIENTS
    result: dict[str, object] = {}
    if arguments.fit:
        if len(cases_of(samples)) < 2:
            raise InputError("A fit needs two cases, so that each can be held out: see --cases.")
        coefficients = fit(samples)
        for name, value in asdict(coefficients).items():
            print(f"    {name}: float = {value:.3g}")
        rows = rows_of(samples, held_out(samples))
        print("\nModel against measured, each case held out from its fit:\n\n" + table(rows))
        result["leave_one_case_out"] = [asdict(row) for row in rows]
    modelled = model(samples, coefficients)
    rows = rows_of(samples, modelled)
    print("\nModel against measured:\n\n" + table(rows))
    print("\nWhat was compared:\n")
    for name, (low, high) in ranges(samples).items():
        print(f"- {name}: {low:.3g} to {high:.3g}")
    if searched := len(samples) - len(_with_power(samples)):
        print(f"\n{searched} kernels were not measured: their times are from the search.")
    result |= {
        "gpu": samples[0].profile.name,
        "coefficients": asdict(coefficients),
        "cases": [asdict(row) for row in rows],
        "kernels": [
            {"row": s.row, "rank": s.rank, "modelled": m, "measured": [s.time_ms, s.power_w]}
            for s, m in zip(samples, modelled.tolist(), strict=True)
        ],
    }
    return result


if __name__ == "__main__":
    sys.exit(main())
