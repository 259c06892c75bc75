"""What the gate says of unchanged kernels, and of planted changes, in pairs of reports."""

from __future__ import annotations

import aa_rate
import numpy as np
import pytest
from gate_shift_simulation import multiplied
from gate_simulation import Session, drawn_measurement
from msgspec.structs import replace
from report_fixtures import a_run

from pytest_gpuenergy.report import Report, write_json

KERNELS = 8
MINUTES = {"a": 0, "b": 2, "c": 60, "d": 60}
BOARDS = {"a": "GPU-1", "b": "GPU-1", "c": "GPU-1", "d": "GPU-2"}


@pytest.fixture
def reports() -> dict[str, Report]:
    """Two runs of one session, one of another, and one of another board; all kernels alike."""
    measure = drawn_measurement(np.random.default_rng(1))

    def report(name: str) -> Report:
        run = a_run(
            run_id=name,
            started=f"2026-01-02T{3 + MINUTES[name] // 60:02d}:{MINUTES[name] % 60:02d}:00+00:00",
            gpu_uuid=BOARDS[name],
        )
        labels = [f"k{rank:02d}" for rank in range(1, KERNELS + 1)]
        made = [measure(label, Session(0.0, 0.0), 1.0) for label in labels]
        return Report(
            run, tuple(replace(m, kernel=replace(m.kernel, digest=m.kernel.label)) for m in made)
        )

    return {name: report(name) for name in BOARDS}


def test_pairs_are_told_apart_by_session_and_board(reports):
    runs = aa_rate.runs_of(reports)
    found = {(one.name, other.name): aa_rate.class_of(one, other) for one, other in pairs(runs)}
    assert len(found) == 12
    assert found["a", "b"] == found["b", "a"] == "same session"
    assert found["b", "c"] == found["c", "a"] == "other session"
    assert found["a", "d"] == found["d", "c"] == "other board"


def pairs(runs: list[aa_rate.Run]) -> list[tuple[aa_rate.Run, aa_rate.Run]]:
    return list(aa_rate.pairs_of(runs))


def test_only_kernels_of_one_text_under_one_limit_are_compared(reports):
    first, *others = reports["b"].measurements
    another = replace(first, kernel=replace(first.kernel, digest="another"))
    reports["b"] = aa_rate.with_only(reports["b"], (another, *others))
    one, other = aa_rate.runs_of({name: reports[name] for name in ("a", "b")})
    base, new = aa_rate.common(one, other)
    assert [m.identity for m in base.measurements] == [m.identity for m in others]
    assert len(new.measurements) == KERNELS - 1


def test_other_models_and_too_few_kernels_are_no_pairs(reports):
    reports["a"] = replace(reports["a"], run=replace(reports["a"].run, gpu_name="NVIDIA H100"))
    reports["d"] = aa_rate.with_only(reports["d"], reports["d"].measurements[:3])
    names = {run.name for pair in pairs(aa_rate.runs_of(reports)) for run in pair}
    assert names == {"b", "c"}


def test_what_is_planted_is_found_and_nothing_else(reports):
    one, other, *_ = aa_rate.runs_of(reports)
    found = list(aa_rate.judged(one, other, [0.05], [0.2]))
    assert {judged.kind for judged in found} == set(aa_rate.KINDS)
    assert not any(judged.alarm for judged in found)
    for judged in found:
        hits, total = aa_rate.found(judged)
        assert hits == (total if judged.change else 0)


def test_a_kernel_that_became_worse_is_a_false_alarm(reports):
    first, *others = reports["b"].measurements
    reports["b"] = aa_rate.with_only(reports["b"], (multiplied(first, 1.2), *others))
    one, other = aa_rate.runs_of({name: reports[name] for name in ("a", "b")})
    assert all(judged.alarm for judged in aa_rate.judged(one, other, [0.05], []))


def test_rates_have_intervals_even_where_nothing_happened():
    quiet = [((f"run {k}", f"run {k + 1}"), 0, 1) for k in range(0, 40, 2)]
    never = aa_rate.rate(quiet)
    assert (never.hits, never.total, never.low) == (0, 20, 0.0)
    assert 0.1 < never.high < 0.2  # Clopper-Pearson for 20 trials: 16.8 %
    some = aa_rate.rate([(units, k % 4 == 0, 1) for k, (units, *_) in enumerate(quiet)])
    assert some.low < 0.25 < some.high


def test_tables_are_printed(reports, tmp_path, monkeypatch, capsys):
    paths = []
    for name in ("a", "b"):
        paths.append(str(tmp_path / f"{name}.json"))
        write_json(reports[name], tmp_path / f"{name}.json")
    monkeypatch.setattr("sys.argv", ["aa_rate.py", *paths, "--limits", "5", "--processes", "1"])
    aa_rate.main()
    out = capsys.readouterr().out
    assert "| NVIDIA H200 (emulated) | same session | unchanged | nothing | 2 | 16" in out
    assert "| NVIDIA H200 (emulated) | same session | one changed | +2% |" in out
