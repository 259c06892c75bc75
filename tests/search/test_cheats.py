"""Kernels that seem fast because they cheat: each is refused that the docs say is.

The candidates are in ``cheats/``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cheat_candidates import FOLDER, KNOWN_SEEDS, RIGHT_BUT_READS, SPEC, WHOLE_BLOCKS, candidate
from msgspec.structs import replace
from points import MORE, nightly

from pytest_gpuenergy.devices import Arena
from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.search import KernelSpec, Result, SearchBench, State, additions, outputs_read
from pytest_gpuenergy.search.validation import hidden_inputs, variant_refusals

PAGE = Path(__file__).parents[2] / "docs/explanation/search-trust.md"
NEVER_WRITTEN, WRONG, LATER = "never written or NaN", " are wrong ", "Correct at first, wrong after"
REFUSALS = {
    "batches_and_skips": LATER,
    "changes_its_inputs": "writes the input a",
    "cuts_off_digits": WRONG,
    "is_wrong_in_one_element": "is wrong",
    "knows_all_sizes": "fails for sizes between those that the spec lists",
    "knows_the_distribution": WRONG,
    "knows_the_seed": WRONG,
    "knows_the_shape": "of 1023 elements of c",
    "multiplies_in_half_precision": WRONG,
    "replays_an_earlier_result": WRONG,
    "returns_a_cached_output": WRONG,
    "returns_what_memory_holds": NEVER_WRITTEN,
    "scans_memory_beside_its_tensors": "past its end of 3072 elements",
    "scans_memory_far_away": "outside every tensor",
    "skips_small_terms": WRONG,
    "skips_some_rows": NEVER_WRITTEN,
    "skips_the_work": NEVER_WRITTEN,
    "skips_what_looks_right": WRONG,
    "skips_what_spot_checks_find_right": LATER,
    "stops_after_a_few_launches": LATER,
    "sums_in_half_precision": WRONG,
    "uses_tensor_cores": "instructions for tensor cores",
    "writes_infinity": WRONG,
    "writes_lazily": "computed from what c held before the launch",
    "writes_nan": NEVER_WRITTEN,
    "writes_nan_for_one_element": "is never written or NaN",
    "writes_on_another_stream": "launches by a kernel",
}
"""The words with which each candidate is refused."""


ALIKE = {
    "batches_and_skips",
    "cuts_off_digits",
    "knows_the_seed",
    "returns_a_cached_output",
    "skips_some_rows",
    "skips_the_work",
    "sums_in_half_precision",
    "writes_infinity",
    "writes_nan",
}
"""Candidates that are refused for what another one is refused for, too."""

KEEPS_SOMETHING = {
    "batches_and_skips",
    "remembers_its_inputs",
    "replays_an_earlier_result",
    "returns_a_cached_output",
    "stops_after_a_few_launches",
    "stops_after_many_launches",
    "writes_lazily",
}
"""The candidates that keep something from launch to launch in variables, which their text shows."""
ADDS_A_LAUNCH = {"writes_on_another_stream"}
READS_ITS_OUTPUT = {
    RIGHT_BUT_READS,
    "scans_memory_beside_its_tensors",
    "scans_memory_far_away",
    "skips_what_looks_right",
    "skips_what_spot_checks_find_right",
}
"""The candidates that look at what their output holds, which their text shows."""


@pytest.fixture(scope="module")
def device() -> Iterator[EmulatedDevice]:
    with EmulatedDevice() as device:
        yield device


@pytest.fixture(scope="module")
def bench(device: EmulatedDevice) -> SearchBench:
    """Return one bench for all candidates, as in a search."""
    return SearchBench(SPEC, device, Metric.TIME)


@pytest.fixture(scope="module")
def bench_without_reference(device: EmulatedDevice) -> SearchBench:
    """Return one whose reference is the baseline, which has passed an honest kernel."""
    bench = SearchBench(replace(SPEC, reference={}), device, Metric.TIME)
    assert bench.evaluate(candidate("honest")).outcome == "correct"
    return bench


def evaluated(device: EmulatedDevice, state: State, spec: KernelSpec) -> Result:
    return SearchBench(spec, device, Metric.TIME).evaluate(state)


def test_each_cheat_has_its_refusal_and_its_place_in_the_docs():
    found = {*REFUSALS, *KEEPS_SOMETHING, *READS_ITS_OUTPUT}
    assert {path.stem for path in FOLDER.glob("*.cu")} == {"honest", *found}
    page = PAGE.read_text()
    assert [name for name in found if f"`{name}`" not in page] == []


@pytest.mark.slow
def test_an_honest_kernel_is_correct(bench):
    assert bench.evaluate(candidate("honest")).outcome == "correct"


@pytest.fixture
def text_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the check of the text, which comes first."""
    for check in ("additions", "outputs_read"):
        monkeypatch.setattr(variant_refusals, check, lambda *_: frozenset())


@pytest.mark.parametrize("name", sorted({path.stem for path in FOLDER.rglob("*.cu")}))
def test_the_text_shows_what_a_kernel_keeps_from_launch_to_launch(name):
    added = additions(candidate(name), SPEC.baseline)
    assert bool(added) is (name in {*KEEPS_SOMETHING, *ADDS_A_LAUNCH})


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(KEEPS_SOMETHING))
def test_a_cheat_that_keeps_something_is_refused_by_its_text(bench, name):
    found = bench.evaluate(candidate(name))
    assert (found.outcome, found.cost) == ("constraints", None)
    assert "adds the file-scope variable __device__" in str(found.message)


@pytest.mark.parametrize("name", sorted({path.stem for path in FOLDER.glob("*.cu")}))
def test_the_text_shows_that_a_kernel_reads_its_output(name):
    assert bool(outputs_read(candidate(name), SPEC)) is (name in READS_ITS_OUTPUT)


@pytest.mark.slow
def test_a_cheat_that_recognizes_its_output_is_refused_by_its_text(bench):
    found = bench.evaluate(candidate(RIGHT_BUT_READS))
    assert (found.outcome, found.cost) == ("constraints", None)
    assert "may read what c held before, which its baseline does not" in str(found.message)


@pytest.mark.slow
def test_a_variant_may_read_an_output_that_its_baseline_reads(device):
    baseline = candidate(RIGHT_BUT_READS).source
    spec = replace(SPEC, source=baseline, sizes=WHOLE_BLOCKS)
    state = replace(spec.baseline, source=f"{baseline}// another text\n")
    assert evaluated(device, state, spec).outcome == "correct"


@pytest.mark.slow
@pytest.mark.usefixtures("text_unseen")
@pytest.mark.parametrize(
    "name",
    nightly(REFUSALS, ALIKE),
)
def test_a_cheat_is_refused_by_its_results(bench, name):
    found = bench.evaluate(candidate(name))
    outcome = "compile" if name == "writes_on_another_stream" else "correctness"
    assert (found.outcome, found.cost) == (outcome, None)
    # Which launch is the first wrong one depends on the drawn sizes for those that count launches.
    # It may be one of those that different inputs are drawn for.
    later = ("It fails for sizes between", WRONG) if REFUSALS[name] == LATER else ()
    said = (REFUSALS[name], "of those that were repeated", *later)
    assert any(sentence in str(found.message) for sentence in said), found.message


@pytest.mark.slow
@pytest.mark.usefixtures("text_unseen")
@pytest.mark.parametrize(
    "name",
    [
        "returns_a_cached_output",
        "returns_what_memory_holds",
        MORE("skips_the_work"),
        MORE("writes_nan"),
    ],
)
def test_a_cheat_is_refused_where_the_baseline_is_the_reference(bench_without_reference, name):
    assert bench_without_reference.evaluate(candidate(name)).outcome == "correctness"


@pytest.mark.slow
def test_a_launch_that_leaves_blocks_out_is_refused(bench):
    launch = replace(SPEC.launch, grid=("N // block_x", "M // block_y - 1"))
    found = bench.evaluate(replace(SPEC.baseline, launch=launch))
    assert found.outcome == "correctness"


@pytest.mark.slow
class TestWhatTheCheatsWouldGain:
    """The candidates are refused for cheating, not because they are broken."""

    def test_one_that_knows_the_seeds_is_wrong_for_the_sparse_drawings(self, device, monkeypatch):
        monkeypatch.setattr(hidden_inputs.Hidden, "seeds", lambda *_: KNOWN_SEEDS)
        spec = replace(SPEC, other_sizes=False)
        assert evaluated(device, candidate("knows_the_seed"), spec).outcome == "correctness"

    def test_one_that_knows_the_shape_is_right_for_it(self, device):
        spec = replace(SPEC, sizes=SPEC.sizes[:1])
        assert evaluated(device, candidate("knows_the_shape"), spec).outcome == "correct"

    def test_one_that_knows_all_sizes_is_right_where_no_others_are_allowed(self, device):
        found = evaluated(device, candidate("knows_all_sizes"), replace(SPEC, other_sizes=False))
        assert (found.outcome, found.other_sizes) == ("correct", None)

    def test_tensor_cores_are_as_exact_as_the_bound_asks(self, device):
        spec = replace(SPEC, tensor_cores=True)
        assert evaluated(device, candidate("uses_tensor_cores"), spec).outcome == "correct"

    def test_half_precision_is_within_a_wide_tolerance(self, device):
        spec = replace(SPEC, tolerance=0.01)
        state = candidate("multiplies_in_half_precision")
        assert evaluated(device, state, spec).outcome == "correct"


@pytest.mark.slow
@pytest.mark.usefixtures("text_unseen")
@pytest.mark.parametrize(
    "name",
    nightly(
        sorted({RIGHT_BUT_READS, *KEEPS_SOMETHING} - REFUSALS.keys()), {"remembers_its_inputs"}
    ),
)
def test_what_only_the_text_shows_has_right_results(device, name):
    spec = replace(SPEC, sizes=WHOLE_BLOCKS) if name == RIGHT_BUT_READS else SPEC
    assert evaluated(device, candidate(name), spec).outcome == "correct"


@pytest.mark.slow
def test_a_kernel_finds_poison_or_its_own_results_but_no_expected_output(bench, monkeypatch):
    created: list[tuple[str, Any]] = []
    filled: list[tuple[Any, Any]] = []
    create, fill = Arena.create.__func__, Arena.fill  # type: ignore[attr-defined]

    def note_created(cls: Any, path: Path, tensor: Any, value: Any = None) -> Arena:
        created.append((tensor.name, value))
        arena: Arena = create(cls, path, tensor, value)
        return arena

    def note_filled(arena: Arena, value: Any = None) -> None:
        if arena.tensor.name == "c" and value is not None and np.isfinite(value).any():
            filled.append((arena.value(), value))
        fill(arena, value)

    monkeypatch.setattr(Arena, "create", classmethod(note_created))
    monkeypatch.setattr(Arena, "fill", note_filled)
    assert bench.evaluate(candidate("honest")).outcome == "correct"
    shown = [value for name, value in created if name == "c"]
    assert shown
    assert shown == [None] * len(shown)
    for own, falsified in filled:
        changed = (own != falsified).sum()
        assert 0 < changed <= np.ceil(np.sqrt(own.size))


@pytest.mark.slow
@pytest.mark.usefixtures("text_unseen")
@pytest.mark.parametrize(("more", "outcome"), [(0, "correct"), (4, "constraints")])
def test_machine_code_with_more_variables_than_the_baselines_is_refused(
    bench, monkeypatch, more, outcome
):
    def variable_bytes(_: EmulatedDevice, kernel: Any) -> int:
        return 16 + more * (kernel.origin.details["state"] != SPEC.baseline.id)

    monkeypatch.setattr(EmulatedDevice, "variable_bytes", variable_bytes)
    launch = replace(SPEC.launch, block=(8, 8))
    found = bench.evaluate(replace(SPEC.baseline, launch=launch))
    assert found.outcome == outcome
    assert more == 0 or "has 20 bytes of variables" in str(found.message)


def test_a_module_that_is_no_python_is_refused(device):
    spec = replace(SPEC, language="triton", source="import triton\n")
    found = evaluated(device, replace(spec.baseline, source="def ("), spec)
    assert found.outcome == "compile"
    assert found.message == "Its source cannot be used: it is no Python module (SyntaxError)."
