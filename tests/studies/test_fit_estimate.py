"""The study fits what trials show, judges choices by them, and refuses what is no trial."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import fit_estimate
import pytest
from fit_estimate import (
    HOPPER,
    Steady,
    Trial,
    choices,
    fit,
    fit_costs,
    fit_energies,
    fit_trees,
    held_out,
    steady_choices,
)

from pytest_gpuenergy.tuners import (
    TRAITS,
    Costs,
    FittedCosts,
    SimtParameters,
    WgmmaParameters,
    fitted,
)
from pytest_gpuenergy.workloads import Gemm

SIMT = SimtParameters(tile_m=64, tile_n=64, tile_k=16, thread_m=8, thread_n=8)
WGMMA = WgmmaParameters(tile_m=128, tile_n=128, consumers=1)


def trial(gemm: Gemm, tiling: Any, factor: float = 1.0, costs: Costs | None = None) -> Trial:
    """A trial that takes as long as is estimated, times a factor."""
    time_ms = factor * tiling.cycles(gemm, HOPPER, costs) / 1.755e6
    return Trial("searches", "NVIDIA H100", gemm, tiling, time_ms)


def test_trees_learn_what_the_estimate_does_not_know():
    """Here kernels of three stages take a fifth longer than is estimated."""
    trials = [
        trial(Gemm("g", size, size, 512), replace(SIMT, stages=stages), 1.2 ** (stages == 3))
        for size in range(256, 4096, 128)
        for stages in (2, 3)
    ]
    trees = fit_trees(trials, fitted().costs, TRAITS, evenness=0.75, count=200)
    product = Gemm("g", 1000, 1000, 512)
    pair = [replace(SIMT, stages=stages) for stages in (2, 3)]
    rows = [one.traits(product, HOPPER, one.cycles(product, HOPPER)) for one in pair]
    two, three = trees.sums(fit_estimate.np.array(rows, dtype=float))
    assert three - two == pytest.approx(math.log(1.2), abs=0.05)


def test_costs_are_found_again_where_trials_show_them():
    """Here the L2 gives twice as many bytes in a cycle as was thought."""
    start = Costs(**fit_estimate._priors("hopper"))
    values = {**fit_estimate._priors("hopper"), "loaded_bytes_per_cycle": 96.0}
    trials = [
        trial(
            Gemm("g", size, size, 1024, mode="bfloat16"),
            replace(WGMMA, tile_m=rows, cluster_m=cluster),
            costs=Costs(**values),
        )
        for size in (1024, 2048, 3000, 4096)
        for rows in (64, 128)
        for cluster in (1, 2)
    ]
    found = fit_costs(trials, ["hopper"], 0.5)["hopper"]
    assert found.loaded_bytes_per_cycle > 1.3 * start.loaded_bytes_per_cycle


def test_the_regret_is_that_of_the_first_choice():
    product = Gemm("g", 2048, 2048, 2048)
    slow, fast = SIMT, replace(SIMT, tile_m=128, tile_n=128)
    first, second = sorted((slow, fast), key=lambda one: one.cycles(product, HOPPER))
    trials = [Trial("s", "gpu", product, first, 1.1), Trial("s", "gpu", product, second, 1.0)]
    (chosen,) = choices(trials, FittedCosts(fitted().costs, {}))
    assert chosen.kernels == 2
    assert chosen.regrets["time"] == pytest.approx(0.1)
    assert chosen.regrets["better of two"] == 0
    assert chosen.regrets["best of 8 tiles"] == 0


def test_a_kernel_under_steady_load_counts_with_its_medians():
    product = Gemm("g", 2048, 2048, 2048)
    pair = (SIMT, replace(SIMT, tile_m=128, tile_n=128))
    first, second = sorted(pair, key=lambda one: one.cycles(product, HOPPER))
    runs = [(first, 1.1, 2.0), (first, 1.3, 2.2), (first, 9.0, 9.0), (second, 1.0, 3.0)]
    kernels = [Steady("gpu", product, tiling, *figures) for tiling, *figures in runs]
    (chosen,) = steady_choices(kernels, FittedCosts(fitted().costs, {}))
    assert chosen.kernels == 2
    assert chosen.regrets == pytest.approx({"steady time": 0.3, "energy": 0, "EDP": 0})


def test_energy_is_learned_from_kernels_at_the_power_limit_only():
    product = Gemm("g", 4096, 4096, 4096, mode="bfloat16")
    busy_ms = 2 * product.flops / 2 / 132 / 2048 / 1.755e6  # twice as long as at the peak rate

    def steady(power_w: float) -> Steady:
        return Steady("gpu", product, WGMMA, busy_ms, power_w * busy_ms)

    usual = fit_energies([], "hopper", Costs())
    held = fit_energies([steady(700)] * 9, "hopper", Costs())
    for power_w in (400, 740):  # the limit has not taken effect yet
        assert fit_energies([steady(power_w)] * 9, "hopper", Costs()) == usual
    assert held.energy_shares["bfloat16"] > 1.1 * usual.energy_shares["bfloat16"]
    assert held.energy_shares["tf32"] == usual.energy_shares["tf32"]


def test_a_size_is_judged_by_an_estimate_that_has_not_seen_it(monkeypatch):
    trials = [
        trial(Gemm("g", size, size, size), replace(SIMT, stages=stages))
        for size in (512, 1024)
        for stages in (2, 3)
    ]
    seen: list[set[tuple[int, int, int]]] = []

    def noted(chosen: list[Trial], *_: object) -> FittedCosts:
        seen.append({one.size for one in chosen})
        return fit(chosen)

    monkeypatch.setattr(fit_estimate, "fit", noted)
    judged = held_out(trials, [])
    assert seen == [{(1024,) * 3}, {(512,) * 3}]
    assert [one.group[2] for one in judged] == [(512,) * 3, (1024,) * 3]
    folded = held_out(
        [*trials, *(replace(one, gemm=replace(one.gemm, M=64)) for one in trials)], [], 2
    )
    assert len(seen) == 4
    assert seen[2].isdisjoint(seen[3])
    assert len(seen[2] | seen[3]) == 4
    assert len(folded) == 4


@pytest.mark.parametrize("line", ["{}", "no JSON", "[]", json.dumps({"gpu": "g", "workload": {}})])
def test_a_line_that_is_no_trial_is_told(tmp_path, capsys, line):
    path = tmp_path / "more.jsonl"
    path.write_text(line + "\n")
    assert fit_estimate.main([str(path)]) == 2
    assert f"Line 1 of {path} is no trial: see --help." in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"\x1f\x8b broken", b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_told(tmp_path, capsys, content):
    path = tmp_path / "more.jsonl.gz"
    path.write_bytes(content)
    assert fit_estimate.main([str(path)]) == 2
    assert "is no text with a trial on each line" in capsys.readouterr().err
