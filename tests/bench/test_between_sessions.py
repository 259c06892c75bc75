"""Deviations between sessions, from reports of the same kernels."""

from __future__ import annotations

import re
from collections.abc import Sequence

import between_sessions
import numpy as np
import pytest
from msgspec.structs import replace
from report_fixtures import a_run

from pytest_gpuenergy.gate import GateSettings
from pytest_gpuenergy.record import Interval, KernelInfo, Measurement, Metric, Window, WorkloadInfo
from pytest_gpuenergy.report import Report, write_json
from pytest_gpuenergy.support import InputError

TRIALS = (Window(0.1, 10.0, 100.0, 0.1),) * 5
FACTORS = (0.99, 1.0, 1.01)


def measured(label: str, factor: float) -> Measurement:
    """A kernel whose energy and EDP are ``factor`` times what they are."""
    energy_mj, time_ms = 100.0 * factor, 0.5
    return Measurement(
        node_id=f"test[{label}]",
        workload=WorkloadInfo("case1", {}, 10**9, 10**6),
        kernel=KernelInfo(label, label, "test"),
        outcome="correct",
        cap="current",
        time_ms=time_ms,
        time_ms_ci95=Interval(0.4999, 0.5001),
        energy_mj=energy_mj,
        energy_mj_ci95=Interval(energy_mj - 0.1, energy_mj + 0.1),
        edp_mj_ms=energy_mj * time_ms,
        edp_mj_ms_ci95=Interval(energy_mj * time_ms - 0.1, energy_mj * time_ms + 0.1),
        power_w=energy_mj / time_ms,
        gflops=1.0,
        gflops_per_w=1.0,
        trials=TRIALS,
    )


def report(name: str, factors: Sequence[float], **changes: object) -> Report:
    run = a_run(run_id=name, emulated=False)
    rows = tuple(measured(f"k{number:02d}", factor) for number, factor in enumerate(factors, 1))
    return Report(replace(run, **changes), rows)


def sessions(kernels: int = 4) -> list[Report]:
    return [report(f"run{n}", [factor] * kernels) for n, factor in enumerate(FACTORS)]


def test_the_deviation_is_that_between_the_reports():
    kernels = between_sessions.common_kernels(sessions())
    expected = np.std(np.log(FACTORS), ddof=1)
    energy = between_sessions.deviation(kernels, Metric.ENERGY)
    assert energy.total == pytest.approx(expected)
    assert energy.low == pytest.approx(expected)
    assert between_sessions.deviation(kernels, Metric.TIME).total == 0


def test_kernels_that_a_report_lacks_or_flags_are_left_out():
    first, second, third = sessions()
    flagged = replace(second.measurements[1], validity=("host_gaps",))
    second = replace(second, measurements=(second.measurements[0], flagged))
    kernels = between_sessions.common_kernels([first, second, third])
    assert [row[0].kernel.label for row in kernels] == ["k01"]


@pytest.mark.parametrize(
    ("reports", "problem"),
    [
        (sessions()[:2], "At least 3 reports"),
        ([sessions()[0], *sessions()[:2]], "the same run"),
        ([*sessions()[:2], report("run9", [1.0], gpu_name="NVIDIA L4")], "different GPUs"),
        ([*sessions()[:2], report("run9", [1.0], emulated=True)], "different GPUs"),
        ([*sessions()[:2], report("run9", [])], "no kernel in common"),
    ],
)
def test_reports_that_cannot_be_compared_are_refused(reports, problem):
    with pytest.raises(InputError, match=problem):
        between_sessions.common_kernels(reports)


def test_the_gate_understands_the_last_line(tmp_path, capsys):
    paths = [tmp_path / f"{one.run.run_id}.json" for one in sessions()]
    for path, one in zip(paths, sessions(), strict=True):
        write_json(one, path)
    assert between_sessions.main(list(map(str, paths))) == 0
    found = re.search(r"--gpuenergy-session-sd (\S+)", capsys.readouterr().out)
    assert found is not None
    settings = GateSettings.parse(session_sd=found[1])
    assert settings.sd(Metric.ENERGY) == pytest.approx(0.01, rel=0.02)
