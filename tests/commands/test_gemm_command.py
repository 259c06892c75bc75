"""`gpuenergy gemm tune`: products by their sizes, the templates, their records."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
from command_outcomes import ended

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuners import load_records
from pytest_gpuenergy.tuners.tvm import tvm_requirements as requirements
from pytest_gpuenergy.tuning import Tuner, TuneResult, find_records
from pytest_gpuenergy.workloads import Workload, parse_shape

EMULATED = ("--gpu-device", "emulated")
GEMM = parse_shape("gemm:M=40 N=24 K=16 layout=nn")
NAME = "gemm_40x24x16_nn"


@dataclass(frozen=True)
class Tuned:
    """A workload that a command tunes, and how."""

    name: str
    tuner: str
    trials: int


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch) -> list[Tuned]:
    """What commands tune, instead of tuning it."""
    seen: list[Tuned] = []

    def note(self: Tuner, workloads: Sequence[Workload]) -> Iterator[TuneResult]:
        for workload in workloads:
            tuner = self.make_space(workload).form.tuner
            seen.append(Tuned(workload.name, tuner, self.settings.trials))
        return iter(())

    monkeypatch.setattr(Tuner, "tune", note)
    monkeypatch.setattr(requirements, "check_tvm", lambda: "0.27.0")
    return seen


@pytest.mark.slow
def test_a_product_is_tuned_kept_and_listed(tmp_path, capsys):
    command = ["gemm", "tune", "M=40 N=24 K=16 layout=nn t=2", *EMULATED, "--keep", "1", "--json"]
    (outcome,) = json.loads(ended(0, *command, "--out", str(tmp_path)).out)
    assert (outcome["workload"], outcome["tried"], outcome["kept"]) == (NAME, 2, 1)
    file = load_records(find_records(tmp_path, GEMM, variant="template"))
    assert file.gpu == "NVIDIA H200 (emulated)"
    (figures,) = file.recorded(1)
    assert figures.energy_mj == pytest.approx(figures.time_ms * figures.power_w, rel=0.05)

    assert "gemm<<<" in ended(0, "kernels", "show", NAME, "1", "--records", str(tmp_path)).out
    more = [word.replace("t=2", "t=4") for word in command]
    assert main([*more, "--out", str(tmp_path)]) == 2  # it needs --resume
    assert "already contains 2 trials" in capsys.readouterr().err
    for words in ([], ["--resume"]):
        assert (
            "already complete, with 2 trials"
            in ended(0, *command, "--out", str(tmp_path), *words).err
        )


@pytest.mark.slow
def test_each_product_is_tuned_in_both_layouts(tuned, tmp_path):
    sizes = "MNK=64; M=32 N=64 K=16 layout=nt t=7"
    assert main(["gemm", "tune", sizes, *EMULATED, "--out", str(tmp_path)]) == 0
    assert tuned == [
        Tuned("gemm_64x64x64_nn", "template", 1000),
        Tuned("gemm_64x64x64_nt", "template", 1000),
        Tuned("gemm_32x64x16_nt", "template", 7),
    ]


@pytest.mark.slow
def test_modes_of_all_products_can_be_given_at_once(tuned, tmp_path):
    words = ["MNK=64 layout=tn t=7", "--mode", "3xtf32,float16"]
    assert main(["gemm", "tune", *words, *EMULATED, "--out", str(tmp_path)]) == 0
    assert tuned == [
        Tuned("gemm_64x64x64_tn_3xtf32", "template", 7),
        Tuned("gemm_64x64x64_tn_float16", "template", 7),
    ]


@pytest.mark.slow
def test_sizes_need_no_quotes(tuned, tmp_path):
    words = ["M=8", "N=16", "K=32", "layout=nn"]
    assert main(["gemm", "tune", *words, *EMULATED, "--out", str(tmp_path)]) == 0
    assert [one.name for one in tuned] == ["gemm_8x16x32_nn"]


@pytest.mark.slow
def test_products_of_other_commands_are_tuned_by_the_template_too(tuned, tmp_path):
    shapes = ["--shape", "gemm:MNK=64", "--shape", "a=1,7,9,8,6,3,3,1,1"]
    assert main(["tune", *shapes, *EMULATED, "--out", str(tmp_path), "--trials", "9"]) == 0
    assert tuned == [Tuned("gemm_64x64x64_nn", "template", 9), Tuned("a", "tvm-metaschedule", 9)]


@pytest.mark.parametrize(
    ("words", "tuner"), [([], "template"), (["--tuner", "tvm"], "tvm-metaschedule")]
)
def test_convolutions_in_groups_are_tuned_by_the_template_unless_told_otherwise(
    words, tuner, tuned, tmp_path
):
    shapes = ["--shape", "dw=1,9,9,8,8,3,3,1,1,1,8", "--shape", "gr=1,9,9,8,8,3,3,1,1,1,2"]
    arguments = [*EMULATED, "--out", str(tmp_path), "--trials", "9"]
    assert main(["tune", *shapes, *words, *arguments]) == 0
    assert tuned == [Tuned("dw", tuner, 9), Tuned("gr", tuner, 9)]


@pytest.mark.slow
def test_the_background_is_the_shells_business(tuned, tmp_path, capsys):
    sizes = "MNK=64 layout=nn O=65536"
    assert main(["gemm", "tune", sizes, *EMULATED, "--out", str(tmp_path)]) == 0
    assert [one.tuner for one in tuned] == ["template"]
    assert "O=65536 is ignored: to tune in the background" in capsys.readouterr().err


@pytest.mark.usefixtures("tuned")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["MNK=64 t=5", "--trials", "6"], "t of gemm_64x64x64_nn asks for 5, but --trials for 6"),
        (["MNK=64", "--trials", "0"], "0 asks for no trials: give at least 1; with --resume"),
        (["MNK=64 t=0"], "'MNK=64 t=0' asks for no trials: give t a number of at least 1."),
        (["MNK=64 t=30001"], "t of gemm_64x64x64_nn asks for 30001 trials: give at most 30000"),
        (["MNK=64 t=3; MNK=64 layout=nt t=4"], "gemm_64x64x64_nt is named twice, with another t"),
        (["MNK=64 O=0", "--tuner", "tvm"], "O of gemm_64x64x64_nn asks for template, but --tuner"),
        (["MNK"], "'MNK' has 'MNK', which is not understood"),
        (["M=0 N=8 K=8"], "needs M to be an integer of at least 1, not 0"),
        (["MNK=1000000000"], "is not understood"),
        (["MNK=64 mode=int8"], "gemm has no mode 'int8'"),
        (["MNK=64 mode=tf32", "--gpu-device", "emulated:v100"], "takes a GPU of sm_80 or later"),
    ],
)
def test_bad_sizes_are_told(arguments, message, tmp_path):
    assert message in ended(2, "gemm", "tune", *EMULATED, *arguments, "--out", str(tmp_path)).err


def test_an_unknown_objective_is_told_in_words():
    told = ended(2, "gemm", "tune", "MNK=64", "--objective", "joules").err
    assert "invalid choice: 'joules' (choose from" in told
    assert "Metric" not in told


@pytest.mark.slow
def test_a_convolution_without_groups_may_have_a_template(tuned, tmp_path):
    arguments = ["--case", "case7", "--tuner", "template", *EMULATED, "--out", str(tmp_path)]
    assert main(["tune", *arguments]) == 0
    assert tuned == [Tuned("case7", "template", 1000)]


def test_missing_records_of_a_template_are_told(tmp_path):
    with pytest.raises(InputError, match=r"gemm:M=40 .* --tuner template --out"):
        find_records(tmp_path, GEMM, variant="template")
