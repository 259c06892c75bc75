"""The bench that puts faults into kernels: its faults, its verdicts, and a small sample of both."""

from __future__ import annotations

import json
import sys

import mutation_judge
import mutations
import pytest
from hypothesis import given, strategies as st
from mutation_judge import Judge, Verdict
from mutation_operators import OPERATORS, Mutant, mutants, visible
from mutation_subjects import OWN, own_subject

from pytest_gpuenergy.emulator import EmulatedDevice, HostRunner

# The others are judged in the nightly run, which puts faults into all of them.
JUDGED = ("histogram", "scan", "total")
TEXT = """\
// x[0] += 1;
__global__ void k(float* y, int n) {
  /* y[1] = 2; */ const char* s = "y[2] = 3;";
  for (int i = threadIdx.x; i < n; i += 32) y[i] = 2.0f * y[i] + 1;
}
"""


def verdict(ending: mutation_judge.Ending, operator: str = "loop") -> Verdict:
    return Verdict("k", operator, 7, "a  b", "c", ending, "so it is", 0.5)


@pytest.mark.parametrize("operator", OPERATORS)
def test_each_kind_of_fault_has_places_in_our_kernels(operator):
    texts = [visible(own_subject(name).kernel.source) for name in OWN]
    assert any(list(OPERATORS[operator](text)) for text in texts)


@given(st.sampled_from(OWN), st.integers(0, 60), st.integers(0, 2**32))
def test_mutants_are_distinct_and_the_same_for_one_seed(name, number, seed):
    source = own_subject(name).kernel.source
    drawn = mutants(source, number, seed)
    assert drawn == mutants(source, number, seed)
    assert len(drawn) <= number
    faults = {(mutant.operator, mutant.source) for mutant in drawn}
    assert len(faults) == len(drawn)
    assert source not in {mutant.source for mutant in drawn}


@given(st.sampled_from(OWN), st.integers(0, 2**32))
def test_a_mutant_differs_in_its_line(name, seed):
    source = own_subject(name).kernel.source
    for mutant in mutants(source, 20, seed):
        before = source.splitlines()[: mutant.line - 1]
        assert mutant.source.splitlines()[: mutant.line - 1] == before
        assert mutant.before in source
        assert mutant.after in mutant.source


def test_comments_and_strings_are_left_alone():
    for mutant in mutants(TEXT, 1000, 0):
        assert mutant.line in {2, 4}, mutant


def test_the_heads_of_loops_hold_no_statements():
    removed = [m.before for m in mutants(TEXT, 1000, 0) if m.operator == "statement removed"]
    assert removed == ["y[i] = 2.0f * y[i] + 1;"]


def test_all_mutants_are_drawn_where_no_number_is_given():
    subjects = [own_subject("axpy"), own_subject("scan")]
    everything = mutations.sample(subjects, 0, 0)
    assert len(everything) > 100
    assert len(mutations.sample(subjects, 25, 0)) == 25


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in JUDGED else pytest.mark.thorough) for name in OWN],
)
def test_our_kernels_are_right_on_all_inputs(host_cache, name):
    subject = own_subject(name)
    same = Mutant("no fault", 1, "", "", subject.kernel.source + "\n")
    with EmulatedDevice(runner=HostRunner(host_cache, jobs=1)) as device:
        assert Judge(device, 20.0).verdict(subject, same).ending == "equivalent"


@pytest.mark.slow
def test_a_sample_of_faults_is_found(host_cache):
    subjects = [own_subject(name) for name in ("axpy", "row_sums", "transpose", "histogram")]
    drawn = mutations.sample(subjects, 8, 1)
    verdicts = list(mutations.judged(drawn, host_cache, jobs=0, timeout_s=20.0))
    assert [one for one in verdicts if one.ending == "survived"] == []
    assert sum(one.ending == "found" for one in verdicts) >= 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statement", "ending"),
    [
        ("y[i] = a * x[i] + z[i];", "equivalent"),
        ("y[i] = a * x[i] + z[i] + 0;", "equivalent"),
        ("y[i] = z[i] + x[i] + 0.5f * x[i];", "rounding"),
        ("y[i] = a * x[i] + 1.001f * z[i];", "survived"),
        ("y[i] = a * x[i] + z[i] + NAN;", "survived"),
        ("y[i] = a * x[i] + z[i]; if (x[i] > 0) __trap();", "survived"),
    ],
)
def test_what_verification_passes_is_judged_by_its_outputs(
    host_cache, monkeypatch, statement, ending
):
    monkeypatch.setattr(mutation_judge, "verify_on_device", lambda *_, **__: None)
    subject = own_subject("axpy")
    source = subject.kernel.source.replace("y[i] = a * x[i] + z[i];", statement)
    with EmulatedDevice(runner=HostRunner(host_cache, jobs=1)) as device:
        told = Judge(device, 20.0).verdict(subject, Mutant("a fault", 3, "", "", source))
    assert told.ending == ending


@pytest.mark.slow
def test_text_that_does_not_compile_is_no_mutant(host_cache):
    subject = own_subject("axpy")
    with EmulatedDevice(runner=HostRunner(host_cache, jobs=1)) as device:
        told = Judge(device, 20.0).verdict(subject, Mutant("a fault", 1, "", "", "?"))
    assert told.ending == "invalid"


def test_the_rate_leaves_out_what_makes_no_difference():
    endings: tuple[mutation_judge.Ending, ...] = (
        "found", "found", "found", "survived", "rounding", "equivalent", "invalid",
    )  # fmt: skip
    assert mutations.rate(map(verdict, endings)) == 0.75
    assert mutations.rate([]) == 1.0


@pytest.mark.parametrize(("least", "code"), [("50", 0), ("51", 1)])
def test_the_verdicts_are_printed_and_written(monkeypatch, capsys, tmp_path, least, code):
    given_verdicts = [verdict("found"), verdict("survived", "condition")]
    for variable in ("GPUENERGY_CACHE", "GPUENERGY_STATE"):  # which the command sets for itself
        monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setattr(mutations, "judged", lambda *_, **__: given_verdicts)
    words = ["--kernels", "axpy", "--at-least", least, "--json", str(tmp_path / "out.json")]
    monkeypatch.setattr(sys, "argv", ["mutations.py", *words])
    assert mutations.main() == code
    printed = capsys.readouterr().out
    assert "50.0 % of the mutants that differ were found." in printed
    assert "survived:\nk:7: condition: `a b` -> `c`: so it is\n" in printed
    told = json.loads((tmp_path / "out.json").read_text())
    assert told["rate"] == 0.5
    assert [mutant["ending"] for mutant in told["mutants"]] == ["found", "survived"]


@pytest.mark.parametrize(
    "words", [["--kernels", "nonsense"], ["--kernels", "case7", "--ranks", "99"]]
)
def test_a_kernel_that_there_is_not_is_one_sentence(monkeypatch, capsys, words):
    monkeypatch.setattr(sys, "argv", ["mutations.py", *words])
    assert mutations.main() == 2
    assert capsys.readouterr().err.startswith("error: ")
