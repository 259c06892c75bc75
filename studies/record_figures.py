"""Write the figures of a bench run into the record files of its kernels.

    pytest bench --powercap current --gpuenergy-json report.json
    python studies/record_figures.py report.json

Only runs without a power cap, on a real GPU of the model for which the records were tuned, are
accepted. Kernels that were not measured, or whose measurement has a flag that is not accepted, keep
their figures.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Set
from pathlib import Path

from pytest_gpuenergy.record import Measurement
from pytest_gpuenergy.report import load_report, merge
from pytest_gpuenergy.support import GpuEnergyError, InputError
from pytest_gpuenergy.tuners import load_records
from pytest_gpuenergy.tuning import Measured, dump_records, find_records
from pytest_gpuenergy.workloads import find_workload

RECORDS = Path(__file__).parents[1] / "bench" / "records"


def figures(m: Measurement, accepted: Set[str]) -> Measured | None:
    """The figures to record from a measurement; None if it must not be recorded."""
    limit_w = m.enforced_power_limit_w
    doubts = set(m.validity) - accepted
    if doubts or m.time_ms is None or m.energy_mj is None or m.power_w is None or not limit_w:
        return None
    return Measured(m.time_ms, m.power_w, m.energy_mj, limit_w)


def record(reports: list[Path], folder: Path, accepted: Set[str]) -> dict[str, int]:
    """Update the files in ``folder``; return the number of kernels updated, by workload.

    Raises:
        InputError: the run is emulated, capped, or from a GPU other than that of the records.
        ReportError: a report cannot be read.
    """
    report = merge([load_report(path) for path in reports])
    if report.run.emulated:
        raise InputError("An emulated run's figures are not measured: run on a real GPU.")
    updated: dict[str, int] = {}
    for name in dict.fromkeys(m.workload.name for m in report.measurements):
        path = find_records(folder, find_workload(name), report.run.gpu_name)
        file = load_records(path)
        if file.gpu != report.run.gpu_name:
            raise InputError(f"{path} is for {file.gpu}, but the run was on {report.run.gpu_name}.")
        rows = [m for m in report.measurements if m.workload.name == name]
        if any(m.cap != "current" for m in rows):
            raise InputError("Records keep figures at the card's own limit: --powercap current.")
        new = {m.kernel.rank: figures(m, accepted) for m in rows if m.kernel.rank is not None}
        new = {rank: measured for rank, measured in new.items() if measured is not None}
        dump_records(file.with_measured(new), path)
        updated[name] = len(new)
    return updated


def main() -> int:
    """Run the command; exit code 2 if a report cannot be recorded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", nargs="+", type=Path)
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument(
        "--accept",
        action="append",
        default=[],
        metavar="FLAG",
        help="Also record measurements with this flag",
    )
    arguments = parser.parse_args()
    try:
        updated = record(arguments.report, arguments.records, set(arguments.accept))
    except GpuEnergyError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for name, count in updated.items():
        print(f"{name}: {count} kernels")
    return 0


if __name__ == "__main__":
    sys.exit(main())
