"""How the emulated GPU's model ranks kernels, against the figures measured on a real GPU.

    python bench/model_ranking.py
    python bench/model_ranking.py --cases case5,case7 --json ranking.json
    python bench/model_ranking.py --fit

The recorded figures are taken away from each kernel, so that the model speaks, and its time and
power are compared with them. Its first run compiles each kernel for the host and runs a sample of
its blocks to count what they access, which is remembered by content.

With ``--fit`` the model's coefficients are fitted on ``--fit-cases`` and printed, with the figures
of each case by coefficients that were fitted on all the others. Nothing is written to the source.
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
from scipy.optimize import least_squares

from pytest_gpuenergy.devices.device import Work
from pytest_gpuenergy.devices.emulated.coefficients import COEFFICIENTS, Coefficients
from pytest_gpuenergy.devices.emulated.host import HostRunner
from pytest_gpuenergy.devices.emulated.model import demand_of
from pytest_gpuenergy.devices.emulated.profiles import PROFILES, GpuProfile
from pytest_gpuenergy.devices.emulated.traffic import Traffic, TrafficCache
from pytest_gpuenergy.errors import GpuEnergyError, InputError
from pytest_gpuenergy.kernels.kernel import Kernel
from pytest_gpuenergy.kernels.records import Measured, load_records
from pytest_gpuenergy.paths import cache_dir
from pytest_gpuenergy.tuning.lowering import KernelStore
from pytest_gpuenergy.verification import arenas_for
from pytest_gpuenergy.workloads.workload import Workload

RECORDS = Path(__file__).parent / "records" / "nvidia-h200"
FIT_CASES = ("case1", "case3", "case5", "case7")
CHECK_TIMEOUT_S = 120.0

Bounds = dict[str, tuple[float, float, float]]
Figures = npt.NDArray[np.float64]

# Start, lower and upper bound of each coefficient that is fitted.
TIME_BOUNDS: Bounds = {
    "instructions_per_fma": (1.2, 1.0, 2.0),
    "instructions_per_global": (10.0, 2.0, 40.0),
    "instructions_per_shared": (1.5, 1.0, 8.0),
    "instructions_per_spill": (4.0, 1.0, 20.0),
    "latency_cycles": (300.0, 200.0, 800.0),
    "barrier_cycles": (40.0, 10.0, 400.0),
    "shared_cycles": (0.5, 0.25, 1.0),
    "conflict_cycles": (0.5, 0.1, 1.0),
}
POWER_BOUNDS: Bounds = {
    "power_base": (0.05, 0.0, 0.2),
    "power_fp32": (0.5, 0.0, 2.0),
    "power_issue": (0.2, 0.0, 2.0),
    "power_l2": (0.2, 0.0, 2.0),
    "power_spill": (0.2, 0.0, 4.0),
}

REGISTERS = range(24, 97, 8)


@dataclass(frozen=True)
class Sample:
    """A kernel without its recorded figures, what was counted of it, and what was measured."""

    case: str
    rank: int
    kernel: Kernel
    work: Work
    traffic: tuple[Traffic, ...]
    profile: GpuProfile
    measured: Measured

    def modelled(self, coefficients: Coefficients) -> tuple[float, float]:
        """Milliseconds and watts."""
        demand = demand_of(
            self.kernel, self.work, self.traffic, self.profile, coefficients=coefficients
        )
        return demand.time_s * 1e3, demand.power_w


def row_of(case: str, samples: Sequence[Sample], modelled: Figures, *, pooled: bool = False) -> Row:
    """``modelled`` has shape (samples, 2): milliseconds and watts."""
    times = [sample.measured.time_ms for sample in samples]
    powers = [sample.measured.power_w for sample in samples]
    time = modelled[:, 0].tolist()
    return Row(
        case,
        agreement(time, times),
        agreement(modelled[:, 1].tolist(), powers),
        None if pooled else close_pairs(time, times),
        None if pooled else regret(time, times, 1),
        None if pooled else regret(time, times, TOP),
    )


def rows_of(samples: Sequence[Sample], modelled: Figures) -> list[Row]:
    """One row per case, and one of all kernels together."""
    rows = []
    for case in cases_of(samples):
        of_case = [k for k, sample in enumerate(samples) if sample.case == case]
        rows.append(row_of(case, [samples[k] for k in of_case], modelled[of_case]))
    if len(rows) > 1:
        rows.append(row_of("all", samples, modelled, pooled=True))
    return rows


def cases_of(samples: Iterable[Sample]) -> list[str]:
    """Each once, in order."""
    return list(dict.fromkeys(sample.case for sample in samples))


def model(samples: Sequence[Sample], coefficients: Coefficients) -> Figures:
    """Shape (samples, 2): milliseconds and watts."""
    return np.array([sample.modelled(coefficients) for sample in samples])


def fit(samples: Sequence[Sample]) -> Coefficients:
    """Least squares on the logarithms: first of the times, then of the powers."""
    times = np.log([sample.measured.time_ms for sample in samples])
    powers = np.log([sample.measured.power_w for sample in samples])
    # Registers decide how many blocks fit, in steps that have no slope: each number is tried.
    tried = [
        _least_squares(samples, replace(COEFFICIENTS, registers=count), TIME_BOUNDS, 0, times)
        for count in REGISTERS
    ]
    _, timed = min(tried, key=lambda found: found[0])
    return _least_squares(samples, timed, POWER_BOUNDS, 1, powers)[1]


def _least_squares(
    samples: Sequence[Sample], fixed: Coefficients, bounds: Bounds, column: int, truth: Figures
) -> tuple[float, Coefficients]:
    """The cost and the coefficients of ``bounds`` that meet ``truth`` best, the others fixed."""
    first, low, high = (np.array(limits) for limits in zip(*bounds.values(), strict=True))

    def with_values(values: Figures) -> Coefficients:
        return replace(fixed, **dict(zip(bounds, values.tolist(), strict=True)))

    # Some kernels are off by factors that no coefficient explains: a robust loss.
    found = least_squares(
        lambda values: np.log(model(samples, with_values(values))[:, column]) - truth,
        first,
        bounds=(low, high),
        x_scale=high - low,
        diff_step=1e-3,
        loss="soft_l1",
        f_scale=0.3,
    )
    return float(found.cost), with_values(found.x)


def held_out(samples: Sequence[Sample]) -> Figures:
    """Each case modelled with coefficients fitted on all the others."""
    modelled = np.empty((len(samples), 2))
    for case in cases_of(samples):
        fitted = fit([sample for sample in samples if sample.case != case])
        for k, sample in enumerate(samples):
            if sample.case == case:
                modelled[k] = sample.modelled(fitted)
    return modelled


def load_samples(folder: Path, cases: Sequence[str] | None, jobs: int) -> list[Sample]:
    """All measured kernels of the record files in ``folder``.

    Raises:
        InputError: there are none, or a case has none; a record file is damaged; the GPU has no
            emulated twin.
        KernelFault: a kernel cannot be lowered, compiled or run.
    """
    files = [load_records(path) for path in sorted(folder.glob("*.json"))]
    names = [file.workload.name for file in files]
    if not files or set(cases or ()) - set(names):
        raise InputError(
            f"{folder} has records of {', '.join(names) or 'no case'}: choose of these with "
            "--cases, or another folder with --records."
        )
    profiles = {profile.name: profile for profile in PROFILES.values()}
    counter = Counter(jobs)
    with KernelStore() as store, ThreadPoolExecutor(jobs) as pool:
        pending = []
        for file in files:
            if cases and file.workload.name not in cases:
                continue
            if file.gpu not in profiles:
                raise InputError(f"{file.gpu} cannot be emulated: give records of another GPU.")
            for record in file.records:
                if record.measured is None:
                    continue
                kernel = replace(store.kernel(file, record.rank), recorded=())
                traffic = pool.submit(counter.traffic, kernel, file.workload)
                pending.append((file, record, kernel, traffic))
        try:
            return [
                Sample(
                    file.workload.name,
                    record.rank,
                    kernel,
                    Work(file.workload.flops, file.workload.bytes_moved),
                    traffic.result(),
                    profiles[file.gpu],
                    record.measured,
                )
                for file, record, kernel, traffic in pending
            ]
        finally:
            pool.shutdown(cancel_futures=True)
            counter.runner.close()


class Counter:
    """Counts what kernels access, each once: the emulated GPU remembers it in the same place."""

    def __init__(self, jobs: int) -> None:
        self.runner = HostRunner(cache_dir("emulated", "host"), jobs=jobs)
        self.cache = TrafficCache()

    def traffic(self, kernel: Kernel, workload: Workload) -> tuple[Traffic, ...]:
        def count() -> tuple[Traffic, ...]:
            with arenas_for(workload, 0) as arenas:
                profile = self.runner.check_races(kernel, arenas, {}, timeout_s=CHECK_TIMEOUT_S)
            return profile.traffic

        return self.cache.traffic(kernel, count)


def main() -> int:
    """Exit code 2 when the records are not fit for it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=Path, default=RECORDS, metavar="DIR")
    parser.add_argument("--cases", type=lambda text: text.split(","), metavar="LIST")
    parser.add_argument("--json", type=Path, metavar="PATH", help="Write the figures here too")
    parser.add_argument("--fit", action="store_true", help="Fit the coefficients and print them")
    parser.add_argument(
        "--fit-cases", type=lambda text: text.split(","), default=FIT_CASES, metavar="LIST"
    )
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
    """Print what was asked for, and return it as plain data."""
    samples = load_samples(arguments.records, arguments.cases, arguments.jobs)
    coefficients = COEFFICIENTS
    result: dict[str, object] = {}
    if arguments.fit:
        chosen = [sample for sample in samples if sample.case in arguments.fit_cases]
        if len(cases_of(chosen)) < 2 or len(cases_of(samples)) < 3:
            raise InputError("A fit needs two cases of --fit-cases and one more to be held out.")
        coefficients = fit(chosen)
        for name, value in asdict(coefficients).items():
            print(f"    {name}: float = {value:.3g}")
        rows = rows_of(samples, held_out(samples))
        print("\nModel against measured, each case held out from its fit:\n\n" + table(rows))
        result["leave_one_case_out"] = [asdict(row) for row in rows]
    rows = rows_of(samples, model(samples, coefficients))
    marked = arguments.fit_cases if arguments.fit or arguments.records == RECORDS else ()
    print("\nModel against measured:\n\n" + table(rows, marked))
    result |= {
        "gpu": samples[0].profile.name,
        "coefficients": asdict(coefficients),
        "fitted_on": list(arguments.fit_cases),
        "cases": [asdict(row) for row in rows],
        "kernels": [
            {"case": s.case, "rank": s.rank, "modelled": m, "measured": asdict(s.measured)}
            for s, m in zip(samples, model(samples, coefficients).tolist(), strict=True)
        ],
    }
    return result


if __name__ == "__main__":
    sys.exit(main())
