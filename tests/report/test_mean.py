"""`gpuenergy report --mean`: the mean of several runs of the same kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from gate_shift_simulation import scaled
from gate_simulation import Session, drawn_measurement
from hypothesis import given, strategies as st
from msgspec.structs import replace
from report_fixtures import a_run

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.record import METRICS, Interval, Measurement, Metric, StationInfo
from pytest_gpuenergy.report import Report, load_report, mean_of_runs, write_json

STEADY = Session(0.0, 0.0)
LABELS = [f"k{number:02d}" for number in range(1, 9)]


def kernels(seed: int = 1) -> list[Measurement]:
    measure = drawn_measurement(np.random.default_rng(seed))
    return [measure(label, STEADY, 1.0) for label in LABELS]


def times(m: Measurement, energy: float) -> Measurement:
    return scaled(m, {Metric.TIME: 1.0, Metric.ENERGY: energy, Metric.EDP: energy})


def elsewhere(m: Measurement, time: float, energy: float) -> Measurement:
    """On a board where the kernel takes another time and energy, its windows included."""
    windows = tuple(
        replace(
            one,
            seconds=one.seconds * time,
            busy_seconds=one.busy_seconds * time,
            joules=one.joules * energy,
        )
        for one in m.trials
    )
    factors = {Metric.TIME: time, Metric.ENERGY: energy, Metric.EDP: time * energy}
    return replace(scaled(m, factors), power_w=(m.power_w or 0.0) * energy / time, trials=windows)


def run(name: str, measurements: Sequence[Measurement], **changes: object) -> Report:
    of_its_own = {"run_id": name, "started": name, "gpu_uuid": f"GPU-{name}", "emulated": False}
    return Report(a_run(**{**of_its_own, **changes}), tuple(measurements))


def by_label(report: Report) -> dict[str, Measurement]:
    return {m.kernel.label: m for m in report.measurements}


def half(m: Measurement, metric: Metric) -> float:
    found = m.estimate(metric)
    assert found is not None
    return found.relative_half_width


def test_figures_are_geometric_means(tmp_path):
    one = kernels()
    runs = [run("1", one), run("2", [times(m, 1.21) for m in one])]
    paths = [tmp_path / f"{report.run.run_id}.json" for report in runs]
    for path, report in zip(paths, runs, strict=True):
        write_json(report, path)
    assert main(["report", "--mean", *map(str, paths), "--json", str(tmp_path / "mean.json")]) == 0
    mean = load_report(tmp_path / "mean.json")
    for before, m in zip(one, mean.measurements, strict=True):
        assert m.energy_mj == pytest.approx((before.energy_mj or 0.0) * 1.1)
        assert m.time_ms == pytest.approx(before.time_ms)
        assert m.edp_mj_ms == pytest.approx((before.edp_mj_ms or 0.0) * 1.1)
    assert mean.run.options["mean_of"] == "1, 2"


def test_intervals_of_runs_that_agree_shrink_with_the_square_root_of_their_number():
    one = kernels()
    mean = by_label(mean_of_runs([run(str(number), one) for number in range(4)]))
    for m in one:
        for metric in METRICS:
            assert half(mean[m.kernel.label], metric) == pytest.approx(
                half(m, metric) / 2, rel=0.01
            )


def test_intervals_of_runs_that_disagree_are_wider():
    one = kernels()
    apart = [times(m, 1.05 if place % 2 else 1 / 1.05) for place, m in enumerate(one)]
    mean = by_label(mean_of_runs([run("1", one), run("2", apart)]))
    for m in one:
        assert half(mean[m.kernel.label], Metric.ENERGY) > 0.02
        assert half(mean[m.kernel.label], Metric.TIME) < half(m, Metric.TIME)


def test_one_kernel_far_apart_keeps_its_own_scatter():
    one = kernels()
    other = [times(one[0], 1.5), *one[1:]]
    mean = by_label(mean_of_runs([run("1", one), run("2", other)]))
    assert half(mean["k01"], Metric.ENERGY) > 0.15
    assert half(mean["k02"], Metric.ENERGY) < half(mean["k01"], Metric.ENERGY) / 2


@given(
    levels=st.lists(st.floats(0.9, 1.1), min_size=3, max_size=3),
    lacking=st.lists(st.sampled_from(LABELS[5:]), max_size=3, unique=True),
)
def test_what_a_run_lacks_does_not_shift_a_kernel(levels, lacking):
    one = kernels()
    runs = [
        run(
            str(number),
            [times(m, level) for m in one if number or m.kernel.label not in lacking],
        )
        for number, level in enumerate(levels)
    ]
    middle = math.prod(levels) ** (1 / 3)
    found = by_label(mean_of_runs(runs))
    for m in one:
        expected = (m.energy_mj or 0.0) * middle
        assert found[m.kernel.label].energy_mj == pytest.approx(expected, rel=1e-4)


@given(
    st.lists(
        st.lists(st.tuples(st.floats(0.8, 1.25), st.floats(0.8, 1.25)), min_size=8, max_size=8),
        min_size=2,
        max_size=3,
    ),
    st.sets(st.sampled_from(LABELS), max_size=3),
)
def test_whatever_the_runs_are_like_their_mean_can_be_read(tmp_path_factory, factors, lacking):
    runs = []
    for number, of_kernels in enumerate(factors):
        made = [elsewhere(m, *of) for m, of in zip(kernels(number), of_kernels, strict=True)]
        left = [m for m in made if number or m.kernel.label not in lacking]
        runs.append(run(str(number), left))
    path = tmp_path_factory.mktemp("mean") / "mean.json"
    mean = mean_of_runs(runs)
    write_json(mean, path)
    assert load_report(path) == mean


def test_a_kernel_that_failed_in_any_run_has_failed():
    one = kernels()
    wrong = Measurement(
        one[0].node_id, one[0].workload, one[0].kernel, "correctness", one[0].cap, error="wrong"
    )
    mean = by_label(mean_of_runs([run("1", [wrong, *one[1:]]), run("2", one)]))
    assert (mean["k01"].outcome, mean["k01"].measured) == ("correctness", False)
    assert mean["k02"].measured


def test_flagged_measurements_are_left_out_where_there_are_others():
    one = kernels()
    doubtful = [times(m, 2.0).flagged("not_steady") for m in one]
    mean = mean_of_runs([run("1", one), run("2", doubtful)])
    assert [m.energy_mj for m in mean.measurements] == pytest.approx([m.energy_mj for m in one])
    assert not any(m.validity for m in mean.measurements)


def test_what_is_flagged_in_all_runs_stays_flagged():
    one = [m.flagged("not_steady") for m in kernels()]
    mean = mean_of_runs([run("1", one), run("2", one)])
    assert {m.validity for m in mean.measurements} == {("not_steady",)}


def test_parts_of_one_run_are_one_run():
    one = kernels()
    parts = [run("1", one[:4]), run("1", one[4:])]
    with pytest.raises(Exception, match="at least two runs"):
        mean_of_runs(parts)
    mean = mean_of_runs([*parts, run("2", one)])
    assert len(mean.measurements) == len(one)


def test_a_mean_is_a_baseline_and_finds_what_single_runs_do_not(tmp_path, capsys):
    rng = np.random.default_rng(4)
    measure = drawn_measurement(rng)

    def session(name: str, edp: float) -> Path:
        level, made = rng.normal(0, 0.03), []
        for place, label in enumerate([*LABELS, *(f"m{number:02d}" for number in range(9))]):
            own = Session(rng.normal(0, 0.001), level + rng.normal(0, 0.005))
            m = measure(label, own, edp if place == 0 else 1.0)
            text = f"text {edp}" if place == 0 else label
            made.append(replace(m, kernel=replace(m.kernel, digest=text)))
        write_json(run(name, made), tmp_path / f"{name}.json")
        return tmp_path / f"{name}.json"

    sides = []
    for side, edp in (("old", 1.0), ("new", 1.02)):
        runs = [str(session(f"{side}{number}", edp)) for number in range(4)]
        sides.append(str(tmp_path / f"{side}.json"))
        assert main(["report", "--mean", *runs, "--json", sides[-1]]) == 0
    assert main(["compare", *sides, "--fail", "edp:0%"]) == 1
    worse = [line for line in capsys.readouterr().out.splitlines() if "WORSE" in line]
    assert any("k01" in line for line in worse)


def test_a_kernel_with_another_text_has_no_mean():
    one = kernels()
    other = [replace(m, kernel=replace(m.kernel, digest="another")) for m in one]
    with pytest.raises(Exception, match=r"has another kernel in one of these runs"):
        mean_of_runs([run("1", one), run("2", other)])


def test_several_models_have_no_mean():
    stations = tuple(
        StationInfo(f"GPU-{name}", name, "host", "sm_90", False, {}, {})
        for name in ("NVIDIA H100", "NVIDIA H200")
    )
    mixed = replace(run("1", kernels()), stations=stations)
    with pytest.raises(Exception, match="several GPU models"):
        mean_of_runs([mixed, run("2", kernels())])


def test_one_run_is_refused_with_a_sentence(tmp_path, capsys):
    write_json(run("1", kernels()), tmp_path / "1.json")
    assert main(["report", "--mean", str(tmp_path / "1.json")]) == 2
    assert "A mean needs at least two runs: name more of them." in capsys.readouterr().err


def test_a_mean_of_figures_with_hardly_a_bound_can_be_read_back(tmp_path):
    sides = [run(name, kernels()) for name in "12"]
    vague, *rest = sides[0].measurements
    vague = replace(vague, energy_mj_ci95=Interval(-1e300, 1e300))
    write_json(
        mean_of_runs([replace(sides[0], measurements=(vague, *rest)), sides[1]]),
        tmp_path / "mean.json",
    )
    (found, *_) = load_report(tmp_path / "mean.json").measurements
    assert found.energy_mj_ci95 is not None
    assert found.energy_mj_ci95.high > 1e6 * (found.energy_mj or 0.0)
