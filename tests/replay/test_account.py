"""The energy of a step as the sum of its calls."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st
from msgspec import json as msgspec_json
from msgspec.structs import replace
from recorded_profile import BLOOM, QWEN
from replayed_calls import measurement

from pytest_gpuenergy.record import Interval, KernelInfo, Measurement, WorkloadInfo
from pytest_gpuenergy.replay import (
    EAGER,
    GRAPH,
    LAYERS,
    Account,
    GraphCalls,
    UniqueCall,
    account_for_step,
    call_settings,
    extract_kernels,
    gaps_key,
    host_gaps_key,
    module_level,
    read_calls,
    read_profile,
    replayed_key,
    savings,
    slight_modules,
    step_key,
)


def call(name: str, steps: dict[int, int], in_layers: dict[int, int] | None = None) -> UniqueCall:
    calls = sum(steps.values())
    return UniqueCall(
        *(name, "aten.mm.default", [], "prefill", (), calls, 10.0 * calls, steps),
        steps_in_layers=steps if in_layers is None else in_layers,
        turns=(0,),
    )


def test_gaps_cost_idle_power():
    found = account_for_step(
        *(0, EAGER, measurement(10.0, 2000.0), [call("a", {0: 4})]),
        {"a": measurement(1.0, 400.0)},
        idle_w=50.0,
        tokens=1,
    )
    assert (found.kernels_ms, found.kernels_mj) == (4.0, 1600.0)
    assert (found.gaps_ms, found.gaps_mj) == (6.0, 300.0)
    assert found.residual_mj == pytest.approx(100.0)
    assert found.energy_error == pytest.approx(-0.05)


def test_gaps_of_the_host_cost_the_power_of_empty_kernels_that_it_launches():
    found = account_for_step(
        *(0, EAGER, measurement(10.0, 2000.0), [call("a", {0: 4})]),
        {
            "a": measurement(1.0, 400.0),
            host_gaps_key(0): measurement(0.5, 26.0, half_width_mj=1.0),
        },
        idle_w=50.0,
        tokens=1,
    )
    assert (found.gaps_w, found.gaps_mj, found.gaps_mj_half_width) == (52.0, 312.0, 12.0)


def test_energies_are_brought_to_the_temperature_of_the_step():
    warm = measurement(1.0, 100.0, temperature_c=60.0, energy_change_per_k=0.002)
    whole = measurement(1.0, 100.0, temperature_c=50.0)
    found = account_for_step(0, GRAPH, whole, [call("a", {0: 1})], {"a": warm}, 50.0, 1)
    assert found.temperature_mj == pytest.approx(-2.0)
    assert found.predicted_mj == pytest.approx(98.0)


class TestEachTermHasAnInterval:
    """Which is a part of the prediction's."""

    def test_temperature_has_that_of_the_change_per_kelvin(self):
        warm = measurement(1.0, 100.0, 0.0, temperature_c=60.0, energy_change_per_k=0.002)
        whole = measurement(1.0, 100.0, temperature_c=50.0)
        found = account_for_step(0, GRAPH, whole, [call("a", {0: 1})], {"a": warm}, 50.0, 1)
        assert found.temperature_mj_half_width == pytest.approx(1.96 * 0.15 * 2.0)  # 15 % of 2 mJ
        assert found.predicted_mj_half_width == found.temperature_mj_half_width

    def test_gaps_at_the_power_after_a_load_have_that_of_this_power(self):
        whole, alone = measurement(10.0, 2000.0), {"a": measurement(1.0, 400.0, 0.0)}
        found = account_for_step(
            *(0, EAGER, whole, [call("a", {0: 4})], alone, 50.0, 1), idle_half_width_w=2.0
        )
        assert found.gaps_mj_half_width == 2.0 * 6.0
        assert found.predicted_mj_half_width == found.gaps_mj_half_width

    def test_links_have_that_of_their_measurements(self):
        measured = {
            "b": measurement(0.5, 100.0, 1.0),
            "gap": measurement(0.25, 25.0, 0.5),
            "step0-graph-links": replace(
                spaced_exchange(1.5, 230.0), energy_mj_ci95=Interval(227.0, 233.0)
            ),
        }
        whole = measurement(10.0, 2000.0)
        found = account_for_step(0, GRAPH, whole, [EXCHANGE], measured, 90.0, 1)
        assert found.links_mj_half_width == pytest.approx((4.0 / 1.0 + 0.5 / 0.25) * (10.0 - 1.0))
        assert found.predicted_mj_half_width == pytest.approx(found.links_mj_half_width + 2 * 1.0)


def restored(key: str, time_ms: float, energy_mj: float, **parameters: object) -> Measurement:
    parameters |= {"replays": key, "restores": f"{key}-restores"}
    return measurement(time_ms, energy_mj, workload=WorkloadInfo("model", parameters, 0, 0))


def test_what_restores_the_values_of_calls_and_windows_is_no_part_of_them():
    measured = {
        "a": restored("a", 1.0, 400.0),
        "a-restores": measurement(0.25, 100.0),
        "step0-window0": restored("step0-window0", 2.5, 900.0, step=0, calls="a a", count=2),
        "step0-window0-restores": measurement(0.5, 200.0),
    }
    whole = measurement(4.0, 1400.0)
    found = account_for_step(0, GRAPH, whole, [call("a", {0: 4})], measured, 50.0, 1)
    assert (found.kernels_ms, found.kernels_mj) == (3.0, 1200.0)
    assert (found.neighbours_ms, found.neighbours_mj) == (2 * (2.0 - 1.5), 2 * (700.0 - 600.0))
    assert found.residual_mj == pytest.approx(0.0)
    del measured["a-restores"]  # of which nothing is known then
    found = account_for_step(0, GRAPH, whole, [call("a", {0: 4})], measured, 50.0, 1)
    assert found.missing == ("a",)


EXCHANGE = replace(call("b", {0: 2}), operator="gpuenergy.all_reduce_.default")


def spaced_exchange(time_ms: float, energy_mj: float) -> Measurement:
    parameters = {"replays": "step0-graph-links", "exchange": "b", "gaps": 4}
    return measurement(time_ms, energy_mj, workload=WorkloadInfo("model", parameters, 0, 0))


@pytest.mark.parametrize(("level", "links_w"), [(GRAPH, 30.0), (LAYERS, 30.0), (EAGER, None)])
def test_links_take_power_between_exchanges(level, links_w):
    found = account_for_step(
        *(0, level, measurement(10.0, 2000.0), [call("a", {0: 4}), EXCHANGE]),
        {
            "a": measurement(1.0, 400.0),
            "b": measurement(0.5, 100.0),
            "gap": measurement(0.25, 25.0),
            "step0-graph-links": spaced_exchange(1.5, 100.0 + 100.0 + 30.0),
        },
        idle_w=90.0,
        tokens=1,
    )
    assert found.links_w == (None if links_w is None else pytest.approx(links_w))
    assert found.links_mj == pytest.approx((links_w or 0.0) * (10.0 - 2 * 0.5))
    parts_mj = 4 * 400.0 + 2 * 100.0
    assert found.predicted_mj == pytest.approx(parts_mj + found.links_mj + 90.0 * 5.0)


@pytest.mark.parametrize("lacking", ["b", "gap"])
def test_links_need_the_exchange_and_the_gaps_alone(lacking):
    measured = {
        "b": measurement(0.5, 100.0),
        "gap": measurement(0.25, 25.0),
        "step0-graph-links": spaced_exchange(1.5, 230.0),
    }
    del measured[lacking]
    found = account_for_step(0, GRAPH, measurement(10.0, 2000.0), [EXCHANGE], measured, 90.0, 1)
    assert (found.links_w, found.links_mj) == (None, 0.0)


def test_gaps_that_take_no_time_tell_nothing_of_links():
    measured = {
        "b": measurement(0.5, 100.0),
        "gap": measurement(0.25, 25.0),
        "step0-graph-links": spaced_exchange(0.5, 100.0),
    }
    found = account_for_step(0, GRAPH, measurement(10.0, 2000.0), [EXCHANGE], measured, 90.0, 1)
    assert found.links_w is None


def test_the_gpu_time_of_exchanges_is_not_compared_since_they_wait_in_the_model():
    exchange = replace(call("b", {0: 1}), operator="gpuenergy.all_reduce_.default")
    found = account_for_step(
        *(0, GRAPH, measurement(1.0, 100.0), [call("a", {0: 4}), exchange]),
        {
            "a": measurement(
                0.01, 1.0, kernel=KernelInfo("a", "", "replay", details={"gpu_us": 9.0})
            ),
            "b": measurement(
                0.01, 1.0, kernel=KernelInfo("b", "", "replay", details={"gpu_us": 1.0})
            ),
        },
        idle_w=50.0,
        tokens=1,
    )
    assert (found.gpu_ms, found.trace_ms, found.coverage) == (0.036, 0.04, 1.0)
    assert found.kernels_mj == 5.0


def test_gpu_time_alone_is_compared_with_that_in_the_model():
    calls = [call("a", {0: 4}), call("b", {0: 1})]  # 10 µs each in the trace
    kernel = KernelInfo("call", "", "replay", details={"gpu_us": 10.5})
    known = measurement(1.0, 1.0, kernel=kernel)
    found = account_for_step(
        0, EAGER, measurement(9.0, 9.0), calls, {"a": known, "b": known}, 1.0, 1
    )
    assert (found.trace_ms, found.gpu_ms) == pytest.approx((0.05, 0.0525))
    assert found.time_error == pytest.approx(0.05)
    measured = {"a": known, "b": measurement(1.0, 1.0)}
    found = account_for_step(0, EAGER, measurement(9.0, 9.0), calls, measured, 1.0, 1)
    assert (found.gpu_ms, found.time_error) == (None, None)


def test_a_call_without_figures_is_missing_and_not_zero():
    calls = [call("a", {0: 3}), call("b", {0: 1})]
    failed = replace(measurement(1.0, 1.0), time_ms=None, energy_mj=None, raw_energy_mj=None)
    found = account_for_step(
        0, GRAPH, measurement(4.0, 4.0), calls, {"a": measurement(1, 1), "b": failed}, 1, 1
    )
    assert (found.missing, found.coverage) == (("b",), 0.75)


def test_calls_of_other_steps_do_not_count():
    calls = [call("a", {0: 1}), call("b", {1: 5})]
    found = account_for_step(
        0, GRAPH, measurement(1.0, 1.0), calls, {"a": measurement(1.0, 1.0)}, 50.0, 1
    )
    assert [one.call for one in found.parts] == ["a"]
    assert found.missing == ()


def test_only_calls_in_layers_count_for_the_layers():
    calls = [call("a", {0: 50}, {0: 48})]
    measured = {"a": measurement(1.0, 1.0)}
    found = account_for_step(0, LAYERS, measurement(48.0, 48.0), calls, measured, 1.0, 1)
    assert found.parts[0].calls == 48


def test_only_calls_in_a_module_count_for_it():
    calls = [replace(call("a", {0: 50}, {0: 48}), steps_in_modules={1: {0: 2}})]
    found = account_for_step(
        *(0, module_level("head"), measurement(2.0, 2.0), calls, {"a": measurement(1.0, 1.0)}),
        *(1.0, 1),
        modules=("norm", "head"),
    )
    assert (found.parts[0].calls, found.residual_mj) == (2, 0.0)


def qwen_account(step: int, level: str) -> Account:
    """An account of the recorded figures of Qwen2-0.5B's configuration on an H200."""
    profile, calls = read_profile(QWEN), read_calls(QWEN)
    lines = (QWEN / "results/measurements.jsonl").read_bytes().splitlines()
    found = [msgspec_json.decode(line, type=Measurement) for line in lines]
    measured = {replayed_key(one): one for one in found}
    whole = measured[step_key(step, level)]
    return account_for_step(
        *(step, level, whole, calls, measured, 126.0, profile.tokens(step)), profile.modules
    )


@pytest.mark.parametrize("step", [0, 1], ids=["prefill", "decode"])
@pytest.mark.parametrize(
    "level",
    [GRAPH, EAGER, LAYERS, module_level("lm_head")],
)
def test_the_account_of_a_model_with_masks_in_its_graph_closes(step, level):
    found = qwen_account(step, level)
    assert found.coverage == 1.0
    assert abs(found.energy_error) < 0.03
    assert found.time_error is not None
    assert abs(found.time_error) < 0.02
    assert found.is_within_intervals


class TestGapPower:
    """The power in the gaps of a graph, measured with an empty kernel after each call."""

    def account(self, level: str, **gapped: object) -> Account:
        measured = {
            "a": measurement(1.0, 400.0),
            step_key(0, GRAPH): measurement(10.0, 2000.0),
            gaps_key(0): replace(measurement(12.0, 2400.0), **gapped),
        }
        whole = measurement(10.0, 2000.0)
        return account_for_step(0, level, whole, [call("a", {0: 4})], measured, 50.0, 1)

    @pytest.mark.parametrize("level", [GRAPH, LAYERS])
    def test_gaps_of_graphs_take_what_empty_kernels_take(self, level):
        found = self.account(level)
        assert (found.gaps_ms, found.gaps_w) == (6.0, pytest.approx(200.0))
        assert found.gaps_mj == pytest.approx(1200.0)
        assert found.gaps_mj_half_width == pytest.approx((24.0 + 20.0) / 2.0 * 6.0)

    @pytest.mark.parametrize(
        "gapped",
        [
            {"cap_binding": True},
            {"time_ms": 10.0},
            {"time_ms": None, "energy_mj": None, "raw_energy_mj": None},
        ],
        ids=["limited", "no longer", "no figures"],
    )
    def test_what_tells_nothing_of_gaps_is_not_used(self, gapped):
        found = self.account(GRAPH, **gapped)
        assert (found.gaps_w, found.gaps_mj, found.gaps_mj_half_width) == (50.0, 300.0, 0.0)

    def test_a_power_that_may_be_that_after_a_load_is_taken_for_it(self):
        found = self.account(GRAPH, time_ms=10.1, raw_energy_mj=1990.0, energy_mj=1990.0)
        assert found.gaps_w == 50.0  # not -100 W
        assert found.gaps_mj_half_width == pytest.approx((24.0 + 20.0) / 0.1 * 6.0)

    def test_gaps_of_the_host_take_the_power_after_a_load(self):
        assert self.account(EAGER).gaps_w == 50.0


@pytest.mark.parametrize(("energy_mj", "within"), [(404.0, True), (420.0, False)])
def test_a_residual_is_within_the_intervals_or_not(energy_mj, within):
    found = account_for_step(
        *(0, GRAPH, measurement(1.0, energy_mj), [call("a", {0: 1})]),
        {"a": measurement(1.0, 400.0)},
        idle_w=50.0,
        tokens=1,
    )
    assert found.is_within_intervals == within


def test_calls_that_the_limit_held_back_alone_are_named():
    calls, alone = [call("a", {0: 1})], measurement(1.0, 1.0, cap_binding=True)
    whole = measurement(1.0, 1.0, cap_binding=False)
    found = account_for_step(0, GRAPH, whole, calls, {"a": alone}, 1.0, 1)
    assert found.limited == ("a",)


class TestSpacedCalls:
    """Calls that the power limit held back alone, measured again with gaps after them."""

    WHOLE = measurement(1.0, 500.0, cap_binding=False, temperature_c=50.0)
    ALONE = measurement(1.2, 800.0, cap_binding=True)
    GAP = measurement(0.02, 2.0)

    def pair(self, **changes: object) -> Measurement:
        workload = WorkloadInfo("model", {"gaps": 75}, 0, 0)
        return replace(measurement(2.5, 870.0), workload=workload, **changes)

    def account(self, **measured: Measurement) -> Account:
        found = {name.replace("_", "-"): one for name, one in measured.items()}
        return account_for_step(0, GRAPH, self.WHOLE, [call("a", {0: 1})], found, 1.0, 1)

    def test_they_count_without_their_gaps(self):
        found = self.account(a=self.ALONE, a_spaced=self.pair(), gap=self.GAP)
        assert (found.spaced, found.limited) == (("a",), ())
        assert found.parts[0].time_ms == pytest.approx(1.0)
        assert found.parts[0].energy_mj == pytest.approx(720.0)
        assert found.parts[0].energy_mj_half_width == pytest.approx(8.7 + 75 * 0.02)

    @pytest.mark.parametrize(
        ("clock_mhz", "energy_mj", "time_ms"),
        [(1200.0, 800.0, 1.2), (1500.0, 760.0, 1.1), (1900.0, 720.0, 1.0)],
    )
    def test_they_count_as_at_the_clock_of_a_step_that_was_limited_less(
        self, clock_mhz, energy_mj, time_ms
    ):
        whole = replace(self.WHOLE, cap_binding=True, effective_sm_clock_mhz=clock_mhz)
        measured = {
            "a": replace(self.ALONE, effective_sm_clock_mhz=1199.99999999),
            "a-spaced": self.pair(effective_sm_clock_mhz=1800.0),
            "gap": self.GAP,
        }
        found = account_for_step(0, GRAPH, whole, [call("a", {0: 1})], measured, 1.0, 1)
        assert found.spaced == ("a",)
        assert found.parts[0].energy_mj == pytest.approx(energy_mj)
        assert found.parts[0].time_ms == pytest.approx(time_ms)
        assert found.parts[0].clock_mhz == pytest.approx(min(clock_mhz, 1800.0))

    def test_calls_that_the_limit_held_back_like_the_step_count_as_they_are(self):
        whole = replace(self.WHOLE, cap_binding=True, effective_sm_clock_mhz=1200.0)
        alone = replace(self.ALONE, effective_sm_clock_mhz=1300.0)
        found = account_for_step(0, GRAPH, whole, [call("a", {0: 1})], {"a": alone}, 1.0, 1)
        assert (found.spaced, found.limited) == ((), ())

    def test_calls_that_were_not_held_back_count_as_they_are(self):
        free = replace(self.ALONE, cap_binding=False)
        found = self.account(a=free, a_spaced=self.pair(), gap=self.GAP)
        assert (found.spaced, found.limited) == ((), ())
        assert found.parts[0].energy_mj == 800.0

    def test_a_pair_that_is_held_back_too_does_not_help(self):
        found = self.account(a=self.ALONE, a_spaced=self.pair(cap_binding=True), gap=self.GAP)
        assert (found.spaced, found.limited) == ((), ("a",))

    def test_both_energies_are_brought_to_the_temperature_of_the_step(self):
        pair = self.pair(temperature_c=60.0, energy_change_per_k=0.002)
        gap = replace(self.GAP, temperature_c=40.0, energy_change_per_k=0.002)
        found = self.account(a=self.ALONE, a_spaced=pair, gap=gap)
        assert found.parts[0].energy_mj == pytest.approx(870 * 0.98 - 75 * 2.0 * 1.02)
        together_mj = found.kernels_mj + found.temperature_mj + found.clocks_mj
        assert together_mj == pytest.approx(found.parts[0].energy_mj)


class TestWindows:
    """Successive calls of a layer that were measured together."""

    CALLS = (call("a", {0: 3}), call("b", {0: 2}))
    WHOLE = measurement(10.0, 2000.0)

    def window(self, time_ms: float, energy_mj: float, **changes: object) -> Measurement:
        parameters = {"replays": "step0-window0", "step": 0, "calls": "a b", "count": 2}
        workload = WorkloadInfo("model", parameters, 0, 0)
        kernel = KernelInfo("graph", "", "replay", details={"gpu_us": 23.0})
        plain = replace(measurement(time_ms, energy_mj), workload=workload, kernel=kernel)
        return replace(plain, **changes)

    def account(
        self,
        window: Measurement,
        level: str = GRAPH,
        calls: tuple[UniqueCall, ...] = CALLS,
        **whole: object,
    ) -> Account:
        kernel = KernelInfo("call", "", "replay", details={"gpu_us": 10.0})
        measured = {
            "a": measurement(1.0, 100.0, kernel=kernel),
            "b": measurement(2.0, 300.0, kernel=kernel),
            "step0-window0": window,
        }
        of_step = replace(self.WHOLE, **whole)
        return account_for_step(0, level, of_step, calls, measured, 50.0, 1)

    @pytest.mark.parametrize("level", [GRAPH, LAYERS, EAGER])
    def test_what_they_take_more_than_alone_is_a_term(self, level):
        found = self.account(self.window(3.5, 420.0), level)
        assert (found.neighbours_ms, found.neighbours_mj) == (1.0, 40.0)
        assert found.neighbours_mj_half_width == pytest.approx(2 * (4.2 + 1.0 + 3.0))
        assert found.gaps_ms == pytest.approx(10.0 - 3 * 1.0 - 2 * 2.0 - 1.0)
        assert found.windows == ("step0-window0",)

    def test_the_prediction_has_the_interval_of_a_window_in_place_of_those_of_its_calls(self):
        found = self.account(self.window(3.5, 420.0))
        # One call of a lies in no window.
        assert found.predicted_mj_half_width == pytest.approx(1 * 1.0 + 2 * 4.2)

    def test_a_call_without_figures_alone_is_missing_and_in_the_term(self):
        measured = {"a": measurement(1.0, 100.0), "step0-window0": self.window(3.5, 420.0)}
        found = account_for_step(0, GRAPH, self.WHOLE, self.CALLS, measured, 50.0, 1)
        assert (found.missing, found.windows) == (("b",), ("step0-window0",))
        assert (found.neighbours_ms, found.neighbours_mj) == (2 * 2.5, 2 * 320.0)
        assert found.neighbours_gpu_ms == 0.0

    def test_their_gpu_time_is_that_of_the_window(self):
        found = self.account(self.window(3.5, 420.0))
        assert found.gpu_ms == pytest.approx(0.05)
        assert found.neighbours_gpu_ms == pytest.approx(2 * 0.003)
        assert found.time_error == pytest.approx(0.056 / 0.05 - 1)

    @pytest.mark.parametrize(
        "window",
        [
            {"time_ms": None, "energy_mj": None, "raw_energy_mj": None},
            {"workload": WorkloadInfo("model", {"step": 0, "calls": "a c", "count": 2}, 0, 0)},
            {"workload": WorkloadInfo("model", {"step": 1, "calls": "a b", "count": 2}, 0, 0)},
            {"cap_binding": True},
        ],
        ids=["no figures", "a call that was not measured", "another step", "held back"],
    )
    def test_a_window_that_tells_nothing_does_not_count(self, window):
        found = self.account(replace(self.window(3.5, 420.0), **window))
        assert (found.neighbours_ms, found.neighbours_mj, found.windows) == (0.0, 0.0, ())

    @pytest.mark.parametrize(("time_ms", "counts"), [(0.05, True), (0.5, False)])
    def test_of_a_window_a_short_call_may_be_another_one_in_some_layer(self, time_ms, counts):
        window = self.window(3.5, 420.0)
        parameters = window.workload.parameters | {"calls": "a b c"}
        measured = {
            "a": measurement(1.0, 100.0),
            "b": measurement(2.0, 300.0),
            "c": measurement(time_ms, 1.0),
            "step0-window0": replace(window, workload=WorkloadInfo("model", parameters, 0, 0)),
        }
        calls = (*self.CALLS, call("c", {0: 1}))
        found = account_for_step(0, GRAPH, self.WHOLE, calls, measured, 50.0, 1)
        assert found.windows == (("step0-window0",) if counts else ())

    def test_a_window_under_the_limit_counts_if_its_clock_is_that_of_the_step(self):
        of_step = {"cap_binding": True, "effective_sm_clock_mhz": 1500.0}
        same = self.window(3.5, 420.0, cap_binding=True, effective_sm_clock_mhz=1490.0)
        assert self.account(same, **of_step).neighbours_ms == 1.0
        slower = self.window(3.5, 420.0, cap_binding=True, effective_sm_clock_mhz=1300.0)
        assert self.account(slower, **of_step).neighbours_ms == 0.0

    def test_a_window_near_the_limit_that_is_not_slower_than_its_step_counts(self):
        near = self.window(3.5, 420.0, cap_binding=True, effective_sm_clock_mhz=1960.0)
        assert self.account(near, effective_sm_clock_mhz=1980.0).neighbours_ms == 1.0
        assert self.account(near, effective_sm_clock_mhz=2100.0).neighbours_ms == 0.0

    def layer(self, *, is_limited: bool) -> Account:
        """Of layers with the calls ``a b``, as a whole and as a part, a of which is held back."""
        details: dict[str, str | int | float] = {"gpu_us": 10.0}
        kernel = KernelInfo("call", "", "replay", details=details)
        part, clocks = self.window(3.5, 420.0), {"effective_sm_clock_mhz": 1300.0}
        parameters = part.workload.parameters | {"replays": "step0-layer0", "layer": 1}
        workload = WorkloadInfo("model", parameters, 0, 0)
        held_back = {"cap_binding": True, **clocks}
        measured = {
            "step0-window0": part,
            "step0-layer0": replace(self.window(3.0, 450.0), workload=workload, **held_back),
            "a": measurement(1.0, 100.0, kernel=kernel, **held_back),
            "a-spaced": measurement(0.9, 110.0, workload=WorkloadInfo("model", {"gaps": 1}, 0, 0)),
            "gap": measurement(0.1, 1.0),
            "b": measurement(2.0, 300.0, kernel=kernel),
        }
        whole = replace(self.WHOLE, cap_binding=is_limited, effective_sm_clock_mhz=1500.0)
        return account_for_step(0, GRAPH, whole, self.CALLS, measured, 50.0, 1)

    def test_under_the_limit_whole_layers_count_and_no_clocks(self):
        found = self.layer(is_limited=True)
        assert (found.windows, found.clocks_mj, found.spaced) == (("step0-layer0",), 0.0, ())
        assert (found.neighbours_ms, found.neighbours_mj) == (0.0, 2 * (450.0 - 400.0))

    def test_without_the_limit_a_layer_that_it_holds_back_does_not_count(self):
        found = self.layer(is_limited=False)
        assert (found.windows, found.spaced) == (("step0-window0",), ("a",))

    def test_of_a_window_under_the_limit_only_the_gpu_time_counts_for_the_host(self):
        found = self.account(self.window(3.5, 420.0, cap_binding=True), EAGER)
        assert found.neighbours_gpu_ms == pytest.approx(2 * 0.003)
        assert (found.windows, found.neighbours_ms, found.neighbours_mj) == ((), 0.0, 0.0)
        assert found.predicted_mj_half_width == pytest.approx(3 * 1.0 + 2 * 3.0)

    @pytest.mark.parametrize(
        ("level", "windows", "limited"), [(EAGER, ("step0-window0",), ()), (GRAPH, (), ("b",))]
    )
    def test_a_window_under_the_limit_counts_with_gaps_of_the_step_for_the_host(
        self, level, windows, limited
    ):
        kernel = KernelInfo("call", "", "replay", details={"gpu_us": 10.0})
        workload = WorkloadInfo("model", {"gaps": 5}, 0, 0)
        measured = {
            "a": measurement(1.0, 100.0, kernel=kernel),
            "b": measurement(2.0, 300.0, kernel=kernel, cap_binding=True),
            "step0-window0": self.window(3.5, 420.0, cap_binding=True),
            "step0-window0-spaced": measurement(4.3, 450.0, workload=workload, cap_binding=True),
            "gap": measurement(0.2, 2.0),
        }
        found = account_for_step(0, level, self.WHOLE, self.CALLS, measured, 50.0, 1)
        assert (found.windows, found.limited) == (windows, limited)
        assert found.neighbours_ms == pytest.approx(2 * (4.3 - 5 * 0.2 - 3.0) * len(windows))
        assert found.neighbours_mj == pytest.approx(2 * (450.0 - 5 * 2.0 - 400.0) * len(windows))

    @pytest.mark.parametrize(("level", "clocks_mj"), [(EAGER, 40.0), (GRAPH, 0.0)])
    def test_whole_layers_under_the_limit_leave_clocks_to_the_host_alone(self, level, clocks_mj):
        limited = {"cap_binding": True, "effective_sm_clock_mhz": 1300.0}
        layer = {"replays": "step0-layer0", "step": 0, "calls": "a", "count": 2, "layer": 1}
        pair = WorkloadInfo("model", {"gaps": 1}, 0, 0)
        measured = {
            "a": measurement(1.0, 100.0),
            "b": measurement(2.0, 300.0, **limited),
            "b-spaced": measurement(1.9, 341.0, workload=pair, effective_sm_clock_mhz=1700.0),
            "step0-layer0": measurement(1.0, 100.0, workload=WorkloadInfo("", layer, 0, 0)),
            "gap": measurement(0.1, 1.0),
        }
        whole = replace(self.WHOLE, cap_binding=True, effective_sm_clock_mhz=1500.0)
        found = account_for_step(0, level, whole, self.CALLS, measured, 50.0, 1)
        assert found.clocks_mj == pytest.approx(clocks_mj)

    def of_host(self, level: str, *calls: UniqueCall) -> Account:
        """With a shorter window that only the host makes."""
        parameters = {"replays": "step0-host-window0", "step": 0, "calls": "b", "count": 2}
        of_host = replace(
            self.window(2.5, 320.0),
            workload=WorkloadInfo("model", parameters | {"host": 1}, 0, 0),
        )
        measured = {
            "a": measurement(1.0, 100.0),
            "b": measurement(2.0, 300.0),
            "step0-window0": self.window(3.5, 420.0),
            "step0-host-window0": of_host,
        }
        return account_for_step(0, level, self.WHOLE, calls or self.CALLS, measured, 50.0, 1)

    def test_windows_of_the_host_come_first_where_it_launches(self):
        found = self.of_host(EAGER)
        assert found.windows == ("step0-host-window0",)
        assert (found.neighbours_ms, found.neighbours_mj) == (1.0, 40.0)

    def test_windows_of_the_host_tell_a_graph_nothing(self):
        assert self.of_host(GRAPH).windows == ("step0-window0",)

    def test_windows_of_calls_that_the_host_does_not_make_tell_it_nothing(self):
        in_graph = GraphCalls({0: 3}, {0: 3}, (0,))
        calls = (replace(call("a", {0: 1}), graph=in_graph), call("b", {0: 2}))
        found = self.account(self.window(3.5, 420.0), EAGER, calls=calls)
        assert found.neighbours_gpu_ms == 0.0


class TestVicunaOnAnH200:
    """The prefill of Vicuna-7B, which the power limit slows down, as an H200 measured it."""

    def test_what_the_clock_of_the_step_changes_is_a_term(self):
        folder = BLOOM.parent / "vicuna-7b"
        lines = (folder / "results/measurements.jsonl").read_bytes().splitlines()
        measured = {
            replayed_key(one): one
            for one in (msgspec_json.decode(line, type=Measurement) for line in lines)
        }
        whole, calls = measured["step0-graph"], read_calls(folder)
        found = account_for_step(0, GRAPH, whole, calls, measured, 120.0, 1024)
        assert found.spaced
        assert found.clocks_ms < -1.0  # alone, they run at lower clocks
        terms_mj = found.kernels_mj + found.temperature_mj + found.clocks_mj
        assert terms_mj == pytest.approx(sum(part.energy_mj for part in found.parts))
        assert abs(found.energy_error) < 0.02


def test_energy_is_given_by_token():
    found = account_for_step(0, GRAPH, measurement(10.0, 4000.0), [], {}, 1.0, 1024)
    assert found.joules_per_token == pytest.approx(4.0 / 1024)
    assert found.tokens_per_joule == pytest.approx(256.0)
    assert found.edp_mj_ms == pytest.approx(40_000.0)


class TestSavings:
    """What calls would save under the power limit that suits them best."""

    def test_the_limit_with_the_least_energy_is_the_best(self):
        measured = {
            "300W": {"a": measurement(1.5, 70.0, cap="300W")},
            "500W": {"a": measurement(1.1, 80.0, cap="500W")},
            "700W": {"a": measurement(1.0, 100.0, cap="700W")},
        }
        (found,) = savings(0, [call("a", {0: 4})], measured, "700W")
        assert (found.cap, found.energy_mj, found.saved_mj) == ("300W", 400.0, 120.0)
        assert found.slowdown == pytest.approx(1.5)

    def test_a_difference_within_noise_saves_nothing(self):
        measured = {
            "300W": {"a": measurement(1.5, 98.5, cap="300W")},
            "700W": {"a": measurement(1.0, 100.0, cap="700W")},
        }
        (found,) = savings(0, [call("a", {0: 1})], measured, "700W")
        assert (found.cap, found.saved_mj, found.slowdown) == ("700W", 0.0, 1.0)

    def test_a_call_without_figures_under_the_reference_is_left_out(self):
        measured = {"300W": {"a": measurement(1.5, 98.5, cap="300W")}, "700W": {}}
        assert savings(0, [call("a", {0: 1})], measured, "700W") == []


@given(
    st.lists(
        st.tuples(st.integers(1, 100), st.floats(1e-3, 1e2), st.floats(1e-3, 1e4)), max_size=8
    ),
    st.floats(1e-2, 1e4),
    st.floats(1e-2, 1e6),
    st.floats(0, 200),
)
def test_the_items_add_up_to_what_was_measured(drawn, time_ms, energy_mj, idle_w):
    calls = [call(str(number), {0: count}) for number, (count, _, _) in enumerate(drawn)]
    measured = {
        str(number): measurement(ms, mj, temperature_c=55.0, energy_change_per_k=0.003)
        for number, (_, ms, mj) in enumerate(drawn)
    }
    whole = measurement(time_ms, energy_mj, temperature_c=48.0)
    found = account_for_step(0, GRAPH, whole, calls, measured, idle_w, 1)
    items = found.kernels_mj + found.temperature_mj + found.gaps_mj + found.residual_mj
    scale = max(1.0, abs(found.predicted_mj), energy_mj)
    assert math.isclose(items, energy_mj, abs_tol=1e-9 * scale)
    assert math.isclose(found.predicted_mj + found.residual_mj, energy_mj, abs_tol=1e-9 * scale)


class TestBloomOnAnH200:
    """The prefill and a decode step of BLOOM-560M, as an H200 traced and measured them."""

    @pytest.mark.slow
    def test_the_trace_can_be_replayed_by_99_percent_of_its_gpu_time(self):
        assert extract_kernels(BLOOM).time_coverage > 0.99

    @pytest.mark.slow
    def test_all_that_ran_belongs_to_calls(self):
        calls = read_calls(BLOOM)
        total_us = sum(one.total_us for one in calls)
        assert total_us == pytest.approx(extract_kernels(BLOOM).gpu_time_us)
        assert {one.phase for one in calls} == {"prefill", "decode"}

    @pytest.mark.parametrize("step", [0, 1])
    def test_the_replayed_calls_take_the_gpu_time_of_the_trace_within_3_percent(self, step):
        lines = (BLOOM / "results/measurements.jsonl").read_bytes().splitlines()
        measured = {
            replayed_key(one): one
            for one in (msgspec_json.decode(line, type=Measurement) for line in lines)
        }
        calls = read_calls(BLOOM)
        whole = measured[f"step{step}-graph"]
        found = account_for_step(step, GRAPH, whole, calls, measured, 120.0, 1024)
        assert found.coverage > 0.99
        assert found.time_error is not None
        assert abs(found.time_error) < 0.03


CALLS_BY_SHARE = [
    call("large", {0: 290, 1: 1}),
    call("minor", {0: 9}),
    call("slight", {0: 1, 1: 0}),
    call("large later", {0: 1, 1: 99}),
    call("elsewhere", {7: 5}),
]


def test_the_less_of_every_step_a_call_takes_the_shorter_it_is_measured():
    found = call_settings(CALLS_BY_SHARE, [0, 1])
    assert {*found} == {"minor", "slight", "elsewhere"}
    minor, slight, trifle = found["minor"], found["slight"], found["elsewhere"]
    seconds = [one.warmup_s + one.max_measure_s for one in (minor, slight, trifle)]
    assert seconds == sorted(seconds, reverse=True)
    assert trifle.min_trials <= 10 * trifle.max_measure_s  # a counter is renewed ten times a second
    briefly = call_settings(CALLS_BY_SHARE, [0, 1], brief=True)
    assert briefly["large"] == briefly["large later"] == minor
    assert briefly["minor"] == slight
    assert briefly["slight"] == briefly["elsewhere"] == trifle


def test_a_minor_call_that_is_measured_with_others_too_is_measured_shortly():
    found = call_settings(CALLS_BY_SHARE, [0, 1], ["minor", "large"])
    assert found["minor"] == found["slight"]
    assert "large" not in found


def test_calls_that_are_measured_with_others_are_measured_shortly_where_all_are_briefly():
    found = call_settings(CALLS_BY_SHARE, [0, 1], ["slight", "minor", "large"], brief=True)
    alone = call_settings(CALLS_BY_SHARE, [0, 1], brief=True)
    assert found["slight"] == found["minor"] == alone["slight"]
    assert found["large"] == alone["minor"]
    assert found["large later"] == alone["large later"]


def test_modules_of_less_than_a_percent_of_a_step_are_not_measured_as_wholes_briefly():
    head = replace(call("head", {0: 1, 1: 1}), steps_in_modules={1: {0: 1, 1: 1}})
    norm = replace(call("norm", {0: 1, 1: 1}), steps_in_modules={0: {0: 1, 1: 1}})
    layers = call("in layers", {0: 200, 1: 50})
    found = slight_modules([head, norm, layers], [0, 1], ["norm", "head"])
    assert found == {step_key(0, module_level("norm")), step_key(0, module_level("head"))}
    head = replace(head, total_us=100.0)
    found = slight_modules([head, norm, layers], [0, 1], ["norm", "head"])
    assert found == {step_key(0, module_level("norm"))}
