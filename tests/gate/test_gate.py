"""Verdicts: what is compared, what counts as worse, and what is ambiguous."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
from gate_simulation import Session, drawn_measurement
from hypothesis import given, strategies as st
from msgspec.structs import replace
from report_fixtures import a_run

from pytest_gpuenergy.gate import (
    Comparison,
    GateSettings,
    Identities,
    Verdict,
    budget_words,
    compare,
    decide,
    json_document,
    judge_budget,
    markdown,
    shared_identities,
    terminal,
)
from pytest_gpuenergy.record import (
    Estimate,
    Identity,
    KernelInfo,
    Measurement,
    Metric,
    RunInfo,
    session_mean,
)
from pytest_gpuenergy.report import Report
from pytest_gpuenergy.support import InputError

RunMaker = Callable[..., RunInfo]
EDP_5 = GateSettings.parse(["edp:5%"])
STEADY = Session(0.0, 0.0)
CHANGES = st.floats(-0.5, 0.5)
WIDTHS = st.floats(0, 0.2)
LIMITS = st.floats(0, 0.5)


def measurement(label: str = "k01", edp: float = 1.0, seed: int = 0) -> Measurement:
    return drawn_measurement(np.random.default_rng(seed))(label, STEADY, edp)


def change(mean: float, half: float) -> Estimate:
    return Estimate(mean, mean - half, mean + half)


@pytest.fixture
def judged(run_info: RunMaker) -> Callable[..., Comparison]:
    """Compare two lists of measurements of one board."""

    def make(
        base: list[Measurement],
        new: list[Measurement],
        settings: GateSettings = EDP_5,
        **changes: object,
    ) -> Comparison:
        runs = run_info(run_id="base"), run_info(run_id="new", **changes)
        return compare(Report(runs[0], tuple(base)), Report(runs[1], tuple(new)), settings)

    return make


def verdicts(comparison: Comparison) -> list[str]:
    return [str(judgement.verdict) for judgement in comparison.judgements]


@pytest.mark.parametrize(
    ("edp", "verdict"), [(1.0, "SAME"), (1.2, "WORSE"), (0.8, "BETTER"), (1.05, "AMBIGUOUS")]
)
def test_the_interval_and_the_limit_make_the_verdict(judged, edp, verdict):
    comparison = judged([measurement()], [measurement(edp=edp, seed=1)])
    assert verdicts(comparison) == [verdict]
    assert comparison.passed is (verdict != "WORSE")


@given(CHANGES, WIDTHS, LIMITS)
def test_swapped_sides_turn_worse_to_better(mean, half, limit):
    there, back = decide(change(mean, half), limit), decide(change(-mean, half), limit)
    assert (there is Verdict.WORSE) is (back is Verdict.BETTER)


@given(CHANGES, WIDTHS, LIMITS)
def test_only_an_interval_that_holds_the_limit_is_ambiguous(mean, half, limit):
    found = change(mean, half)
    holds = found.low <= math.log1p(limit) < found.high
    assert (decide(found, limit) is Verdict.AMBIGUOUS) is holds


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (-0.057, 0.040, "SAME"),
        (-0.300, 0.040, "SAME"),
        (-0.300, -0.060, "BETTER"),
        (-0.300, 0.051, "AMBIGUOUS"),
        (0.049, 0.300, "AMBIGUOUS"),
        (0.051, 0.300, "WORSE"),
    ],
)
def test_what_cannot_be_worse_by_the_limit_passes(low, high, verdict):
    found = Estimate(*map(math.log1p, ((low + high) / 2, low, high)))
    assert decide(found, 0.05) == verdict


@given(CHANGES, WIDTHS, LIMITS, LIMITS)
def test_a_wider_limit_never_makes_a_pass_fail(mean, half, first, second):
    narrow, wide = sorted((first, second))
    order = [Verdict.SAME, Verdict.AMBIGUOUS, Verdict.WORSE]
    found = [decide(change(abs(mean), half), limit) for limit in (wide, narrow)]
    assert order.index(found[0]) <= order.index(found[1])


@pytest.mark.slow
@given(st.floats(0.5, 2), st.integers(0, 1000))
def test_swapped_reports_turn_worse_to_better(edp, seed):
    run = a_run()
    sides = [
        Report(run, (measurement(edp=factor, seed=seed + at),)) for at, factor in ((0, 1), (1, edp))
    ]
    (there,) = compare(*sides, EDP_5).judgements
    (back,) = compare(*reversed(sides), EDP_5).judgements
    assert (there.verdict is Verdict.WORSE) is (back.verdict is Verdict.BETTER)


def test_the_intervals_widen_with_the_number_of_kernels(judged):
    widths = []
    for count in (1, 100):
        sides = [[measurement(f"k{n}", seed=n) for n in range(count)] for _ in range(2)]
        comparison = judged(*sides)
        assert comparison.comparisons == count
        found = comparison.judgements[0].change
        assert found is not None
        widths.append(found.high - found.low)
    assert widths[1] > 1.3 * widths[0]


def test_an_interval_is_of_the_heat_ups_trials_too():
    one = measurement()
    known = session_mean(replace(one, warm_trials=(*one.trials, *one.trials)), Metric.ENERGY)
    assert known is not None
    assert known.degrees == 3 * len(one.trials) - 1


def test_a_changed_kernel_is_found_by_its_label(judged):
    old = replace(measurement(), kernel=KernelInfo("k01", "a" * 64, "record"))
    new = replace(measurement(), kernel=KernelInfo("k01", "b" * 64, "file"), node_id="moved.py::t")
    assert verdicts(judged([old], [new])) == ["SAME"]


@pytest.mark.parametrize("change", [{"cap": "300W"}, {"cap": "1500MHz"}, {"cache": "cold"}])
def test_another_cap_or_cache_is_another_item(judged, change):
    comparison = judged([measurement()], [replace(measurement(), **change)])
    assert verdicts(comparison) == []
    assert [one.why for one in comparison.missing_in_base] == ["not in the baseline"]
    assert [one.why for one in comparison.missing_in_new] == ["not in the new run"]
    assert not comparison.passed  # there was nothing to compare


def test_items_of_one_name_are_told_apart_by_their_ids(judged):
    sides = [
        [replace(measurement(edp=edp), node_id=f"{name}::t") for name, edp in pairs]
        for pairs in ((("a", 1.0), ("b", 2.0)), (("b", 2.0), ("a", 1.0), ("c", 1.0)))
    ]
    comparison = judged(*sides)
    assert verdicts(comparison) == ["SAME", "SAME"]
    (unknown,) = comparison.missing_in_base
    assert unknown.why == "several in the baseline"


def test_strict_fails_what_is_ambiguous_or_new(judged):
    strict = GateSettings.parse(["edp:5%"], strict=True)
    assert not judged([measurement()], [measurement(edp=1.05)], strict).passed
    assert not judged([], [measurement()], strict).passed
    assert judged([measurement()], [measurement()], strict).passed


def test_what_vanished_fails_when_strict_and_is_counted(judged):
    base, new = [measurement(), measurement("k02"), measurement("k03")], [measurement()]
    found = judged(base, new)
    assert found.passed
    assert [*terminal(found)][-1].endswith(": passed; 2 of 3 missing")
    assert len(json.loads(json_document(found))["missing_in_new"]) == 2
    assert "passed; 2 of 3 missing" in markdown(found)
    strict = judged(base, new, GateSettings.parse(["edp:5%"], strict=True))
    assert not strict.passed
    assert [*terminal(strict)][-1].endswith(": FAILED; 2 of 3 missing")


def test_what_had_no_figures_is_not_missed(judged):
    names = ("time_ms", "energy_mj", "edp_mj_ms", "power_w", "gflops", "gflops_per_w")
    failed = replace(measurement("k02"), outcome="correctness", **dict.fromkeys(names))
    found = judged(
        [measurement(), failed], [measurement()], GateSettings.parse(["edp:5%"], strict=True)
    )
    assert found.passed
    assert found.missing_in_new == ()


def test_a_measurement_that_is_in_the_baseline_twice_is_not_missed(judged):
    base = [measurement(), measurement(seed=3)]
    assert judged(base, [measurement()]).missing_in_new == ()


def test_figures_of_gpus_that_took_no_part_are_not_missed(run_info):
    stations = tuple(
        replace(run_info().station, gpu_name=name, gpu_uuid=uuid)
        for name, uuid in ((run_info().gpu_name, "GPU-1"), ("NVIDIA A30", "GPU-9"))
    )
    rows = [replace(measurement(), gpu_uuid=uuid) for uuid in ("GPU-1", "GPU-9")]
    rows.append(replace(measurement("k02"), gpu_uuid="GPU-1"))
    base = Report(run_info(), tuple(rows), stations=stations)
    found = compare(base, Report(run_info(), (rows[0],)), EDP_5)
    assert [one.measurement.kernel.label for one in found.missing_in_new] == ["k02"]


def test_without_a_limit_nothing_fails(judged):
    comparison = judged([measurement()], [measurement(edp=2.0)], GateSettings.parse())
    assert [j.metric for j in comparison.judgements] == ["time", "energy", "edp"]
    assert verdicts(comparison) == ["WORSE"] * 3
    assert comparison.passed


@pytest.mark.parametrize("side", [0, 1])
def test_a_flagged_measurement_is_ambiguous_near_the_limit(judged, side):
    sides = [[measurement()], [measurement(edp=1.08)]]
    sides[side] = [replace(sides[side][0], validity=("not_steady",))]
    comparison = judged(*sides)
    assert verdicts(comparison) == ["AMBIGUOUS"]
    (reason,) = comparison.judgements[0].reasons
    assert reason.startswith("flagged")
    assert reason.endswith("not_steady")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"enforced_power_limit_w": 300.0}, "the enforced power limit was 700 W and is now 300 W"),
        (
            {"locked_sm_clock_max_mhz": 1500},
            "the SM clocks were not locked and are now locked to 1500 MHz",
        ),
        ({"trials": ()}, "no interval in the new run"),
        ({"edp_mj_ms_ci95": None}, "no interval in the new run"),
    ],
)
def test_what_else_cannot_be_decided(judged, change, reason):
    comparison = judged([measurement()], [replace(measurement(edp=2.0), **change)])
    assert [(j.verdict, j.reasons) for j in comparison.judgements] == [("AMBIGUOUS", (reason,))]


def test_another_workload_of_the_same_name_is_ambiguous(judged):
    other = measurement()
    larger = replace(other, workload=replace(other.workload, flops=2 * other.workload.flops))
    (judgement,) = judged([other], [larger]).judgements
    assert judgement.reasons == ("the workload of that name has changed",)


@pytest.mark.parametrize(
    ("sources", "verdict"),
    [
        (("counter", "counter"), "WORSE"),
        ((None, "counter"), "WORSE"),
        (("instant power", "instant power"), "WORSE"),
        (("counter", "instant power"), "AMBIGUOUS"),
        (("average power", "counter"), "AMBIGUOUS"),
        ((None, "average power"), "AMBIGUOUS"),
    ],
    ids=str,
)
def test_joules_of_different_sources_are_ambiguous_and_times_are_not(judged, sources, verdict):
    base, new = (
        replace(measurement(edp=edp), energy_source=source)
        for edp, source in zip((1.0, 2.0), sources, strict=True)
    )
    comparison = judged([base], [new], GateSettings.parse(["time:5%,energy:5%,edp:5%"]))
    assert verdicts(comparison) == ["WORSE", verdict, verdict]
    if verdict == "AMBIGUOUS":
        (reason,) = comparison.judgements[1].reasons
        was, now = (source or "counter" for source in sources)
        assert reason == f"the energy source was {was} and is now {now}"


@pytest.mark.parametrize(
    ("difference", "allowance"),
    [({"gpu_uuid": "GPU-2"}, "board"), ({"software": {"driver": "590"}}, "driver")],
)
def test_another_board_or_driver_is_ambiguous_unless_allowed(judged, difference, allowance):
    sides = [measurement()], [measurement(edp=2.0)]
    comparison = judged(*map(list, sides), **difference)
    assert verdicts(comparison) == ["AMBIGUOUS"]
    assert allowance in comparison.judgements[0].reasons[0]
    allowing = GateSettings.parse(["edp:5%"], allow=allowance)
    assert verdicts(judged(*map(list, sides), allowing, **difference)) == ["WORSE"]


def test_the_board_is_that_of_the_measurement(judged):
    base = [replace(measurement(f"k0{n}"), gpu_uuid=f"GPU-{n}") for n in (1, 2)]
    new = [replace(measurement(f"k0{n}", edp=2.0), gpu_uuid="GPU-2") for n in (1, 2)]
    comparison = judged(base, new)
    assert verdicts(comparison) == ["AMBIGUOUS", "WORSE"]
    assert comparison.judgements[0].reasons == (
        "the board is not the baseline's (GPU-2 instead of GPU-1)",
    )


def test_another_board_widens_the_intervals(judged):
    allowing = GateSettings.parse(["edp:5%"], allow="board")
    widths = []
    for uuid in ("GPU-1", "GPU-2"):
        (found,) = judged([measurement()], [measurement()], allowing, gpu_uuid=uuid).judgements
        assert found.change is not None
        widths.append(found.change.high - found.change.low)
    assert widths[1] > 3 * widths[0]


@pytest.mark.parametrize(("capped", "verdict"), [(False, "WORSE"), (True, "AMBIGUOUS")])
def test_at_the_power_limit_another_board_may_take_longer(judged, capped, verdict):
    base, new = (
        replace(measurement(edp=edp), cap_binding=capped) for edp in (1.0, 1.08)
    )  # half of it time
    allowing = GateSettings.parse(["time:0%"], allow="board")
    assert verdicts(judged([base], [new], allowing, gpu_uuid="GPU-2")) == [verdict]
    assert verdicts(judged([base], [new], allowing)) == ["WORSE"]


@pytest.mark.parametrize(
    ("difference", "word"),
    [({"gpu_name": "NVIDIA A30"}, "gpu_name"), ({"emulated": False}, "emul")],
)
def test_another_kind_of_gpu_is_refused_by_name(judged, difference, word):
    with pytest.raises(InputError, match=f"they differ in {word}"):
        judged([measurement()], [measurement()], **difference)


def test_legacy_runs_are_refused(run_info):
    good, legacy = (Report(run_info(legacy=flag), (measurement(),)) for flag in (False, True))
    for sides in ((good, legacy), (legacy, good)):
        with pytest.raises(InputError, match="marked legacy"):
            compare(*sides, EDP_5)


def test_a_kernel_that_fails_now_fails_the_gate(judged):
    names = ("time_ms", "energy_mj", "edp_mj_ms", "power_w", "gflops", "gflops_per_w")
    broken = replace(
        measurement(), outcome="correctness", error="It is wrong.", **dict.fromkeys(names)
    )
    comparison = judged([measurement()], [broken])
    assert [one.why for one in comparison.failed] == ["It is wrong."]
    assert not comparison.passed
    other = measurement("k02")
    mended = judged([broken, other], [measurement(), other])
    assert [one.why for one in mended.missing_in_base] == ["without figures in the baseline"]
    assert mended.passed


def test_the_views_say_the_same(judged):
    comparison = judged(
        [measurement(), measurement("k03")], [measurement(edp=1.2), measurement("k02")]
    )
    document = json.loads(json_document(comparison))
    assert not document["passed"]
    (found,) = document["judgements"]
    assert (found["kernel"], found["metric"], found["verdict"]) == ("k01", "edp", "WORSE")
    low, high = found["interval"]
    assert low < found["change"] < high
    assert math.isclose(found["change"], 0.2, abs_tol=0.02)
    assert [one["kernel"] for one in document["missing_in_base"]] == ["k02"]
    assert [one["kernel"] for one in document["missing_in_new"]] == ["k03"]
    lines = list(terminal(comparison))
    assert any("k01-current" in line and line.endswith("WORSE") for line in lines)
    assert "missing from the new run: simulated-k03-current (not in the new run)" in lines
    assert lines[-1].startswith("1 WORSE;")
    assert lines[-1].endswith(": FAILED; 1 of 2 missing")
    page = markdown(comparison)
    assert "| **WORSE** |" in page
    assert page.startswith("# Failed: run new against run base (emulated)\n")


@pytest.mark.parametrize(("most", "verdict"), [(0.5, "WORSE"), (1.0, "AMBIGUOUS"), (2.0, "SAME")])
def test_a_budget_is_judged_by_the_interval(most, verdict):
    found = measurement()
    assert found.edp_mj_ms is not None
    judgement = judge_budget(found, most * found.edp_mj_ms, 0.0, EDP_5, 1)
    assert judgement.verdict == verdict


def test_a_budget_leaves_room_for_what_is_allowed():
    found = measurement()
    assert found.edp_mj_ms is not None
    most = found.edp_mj_ms / 1.1
    assert judge_budget(found, most, 0.0, EDP_5, 1).verdict is Verdict.WORSE
    assert judge_budget(found, most, 0.2, EDP_5, 1).verdict is Verdict.SAME


def test_a_flagged_measurement_leaves_its_budget_open():
    flagged = replace(measurement(), validity=("host_gaps",))
    assert flagged.edp_mj_ms is not None
    judgement = judge_budget(flagged, 2 * flagged.edp_mj_ms, 0.0, EDP_5, 1)
    assert (judgement.verdict, judgement.reasons) == ("AMBIGUOUS", ("flagged now: host_gaps",))


@pytest.mark.parametrize(
    ("most", "words"),
    [
        (0.5, ": over budget by 100 %"),
        (1.0, ": undecided"),
        (2.0, ": within budget"),
    ],
)
def test_a_budget_speaks_as_a_budget(most, words):
    found = measurement()
    assert found.edp_mj_ms is not None
    told = budget_words(judge_budget(found, most * found.edp_mj_ms, 0.0, EDP_5, 1), emulated=False)
    assert told.endswith(words)
    assert f", budget {most * found.edp_mj_ms:.4g} mJ·ms" in told
    assert not {*Verdict} & {*told.split()}


@pytest.mark.parametrize(
    "words",
    [
        {"fail": ["edp"]},
        {"fail": ["edp:5"]},
        {"fail": ["power:5%"]},
        {"fail": ["edp:-5%"]},
        {"fail": ["edp:5%", "edp:6%"]},
        {"session_sd": "edp=1%"},
        {"allow": "driver,gpu"},
    ],
    ids=str,
)
def test_settings_that_cannot_be_used_are_told(words):
    with pytest.raises(InputError, match=r"^--(fail|session-sd|allow) "):
        GateSettings.parse(**words)  # type: ignore[arg-type]


def test_several_limits_in_any_form():
    settings = GateSettings.parse(["edp:5%,time: 2.5 %", "energy:0%"], session_sd="edp:0.1%")
    assert settings.limits == {"edp": 0.05, "time": 0.025, "energy": 0.0}
    assert settings.enforced
    assert settings.sd(Metric.EDP) == settings.sd(Metric.EDP, same_board=False) == 0.001
    assert settings.sd(Metric.ENERGY) < settings.sd(Metric.ENERGY, same_board=False)


NAME = Identity("scale", "scale", "450W", "hot")


@pytest.mark.parametrize("place", range(4))
def test_workload_label_cap_and_cache_tell_items_apart(place):
    identities = Identities()
    identities.assign(NAME, "a")
    identities.assign(Identity(*NAME[:place], "another", *NAME[place + 1 :]), "b")


def test_an_item_that_runs_again_keeps_its_identity(measured):
    earlier = measured(1)
    identities = Identities([earlier])
    for _ in range(2):
        identities.assign(earlier.identity, earlier.node_id)


def test_a_second_item_is_refused():
    identities = Identities()
    identities.assign(NAME, "test_a.py::test_x")
    with pytest.raises(InputError) as error:
        identities.assign(NAME, "test_b.py::test_y")
    assert str(error.value) == (
        "test_a.py::test_x and test_b.py::test_y would both be recorded as scale-scale-450W, which "
        "would make them indistinguishable: give energy_benchmark a label= of its own in each."
    )


def test_an_item_that_was_renamed_before_a_run_is_resumed_is_refused(measured):
    earlier = measured(1)
    with pytest.raises(InputError, match="If the test was renamed, run without --gpuenergy-resume"):
        Identities([earlier]).assign(earlier.identity, "test_b.py::test_y")


def test_each_item_of_a_report_that_shares_an_identity_is_told(measured):
    items = [measured(1, node_id=name) for name in "abc"]
    assert shared_identities([measured(2), *items[:1], measured(1, 4)]) == []
    first, second = shared_identities([*items, measured(2)])
    assert first.startswith("a and b were both recorded as case1-k01-450W, ")
    assert second.startswith("a and c were both recorded as case1-k01-450W, ")
