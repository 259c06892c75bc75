"""The bench of matrix products: which items there are, and a run of some."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from pathlib import Path
from typing import Any, cast

import pytest
from bench_folder import ROOT, bench_folder, ids as ids_of

from pytest_gpuenergy.kernels import AnyKernel
from pytest_gpuenergy.report import load_report
from pytest_gpuenergy.support import InputError, UnavailableError
from pytest_gpuenergy.tuners import CONTENDERS as KNOWN, FORMS, ContenderSetup, KernelStore
from pytest_gpuenergy.tuning import Record, RecordFile, dump_records, file_name
from pytest_gpuenergy.workloads import Gemm

NAMED = "bench/test_gemm.py"
CONTENDERS = ("template", "tvm", "triton", "cublas", "cutlass")
OTHERS = len(CONTENDERS) - 1
TEMPLATE = ["-k", "template", "--powercap", "1"]
TVM = ["-k", "tvm", "--powercap", "1"]
SMALL = Gemm("small", 8, 6, 5)


@pytest.fixture
def folder(pytester: pytest.Pytester) -> pytest.Pytester:
    return bench_folder(pytester, NAMED)


def ids(folder: pytest.Pytester, *arguments: str) -> list[str]:
    return ids_of(folder, "--powercap", "1", *arguments)


def test_both_layouts_run_unless_one_is_chosen(folder):
    found = ids(folder, NAMED, "--gemm", "MNK=64; M=1 N=2 K=3 layout=nt")
    assert found == [
        f"{name}-{contender}-200W"
        for name in ("gemm_64x64x64_nn", "gemm_64x64x64_nt", "gemm_1x2x3_nt")
        for contender in CONTENDERS
    ]


def test_a_layout_and_a_contender_are_words_of_the_id(folder):
    found = ids(folder, NAMED, "--gemm", "MNK=64", "-k", "nn and template")
    assert found == ["gemm_64x64x64_nn-template-200W"]


def test_a_contender_with_one_kind_of_products_has_items_there_and_where_it_is_named(folder):
    products = ["--gemm", "MNK=64 layout=tn; MNK=64 layout=tn mode=e4m3 scaling=block"]
    plain, blocks = (f"gemm_64x64x64_tn{end}" for end in ("", "_e4m3_block"))
    assert ids(folder, NAMED, *products) == [
        *(f"{plain}-{contender}-200W" for contender in CONTENDERS),
        *(f"{blocks}-{contender}-200W" for contender in (*CONTENDERS, "deepgemm")),
    ]
    named = ids(folder, NAMED, *products, "--contenders", "deepgemm,cublas")
    assert named == [
        f"{product}-{contender}-200W"
        for product in (plain, blocks)
        for contender in ("deepgemm", "cublas")
    ]


@pytest.mark.parametrize(
    "product",
    [
        "40x24x16_nn",
        "40x24x16_nt_bfloat16",
        "8x8x8_nn_lda16_ldb16",
        "8x8x8_tn_tf32_ldc9_sparse0.25",
        "b32_40x24x16_nn_bfloat16",
        "g6.0.3_9x24x16_tn_bias",
    ],
)
def test_an_id_in_a_report_can_be_run_without_its_sizes(folder, product):
    name = f"gemm_{product}-template-200W"
    assert ids(folder, f"{NAMED}::test_gemm[{name}]") == [name]
    assert ids(folder, NAMED, "-k", name) == [name]


@pytest.mark.parametrize("product", ["0x1x1_nn", "1x2x3_nn_lda1", "1x2x3_tx", "8x8x8_nn_nonsense"])
def test_an_id_that_no_product_has_is_none(folder, product):
    assert ids(folder, NAMED, "-k", f"gemm_{product}-template") == []


@pytest.mark.parametrize("arguments", [[NAMED], ["bench", "--network", "gemm"]])
def test_without_sizes_the_default_set_runs(folder, arguments):
    assert len(ids(folder, *arguments)) == 26 * len(CONTENDERS)


def test_quick_takes_the_ends_of_the_default_set(folder):
    found = ids(folder, NAMED, "--quick", "-k", "template")
    assert found == ["gemm_512x256x640_nn-template-200W", "gemm_8192x8192x8192_nt-template-200W"]


@pytest.mark.parametrize("error", [UnavailableError, InputError])
def test_a_contender_is_asked_once_for_all_power_caps(folder, monkeypatch, error):
    asked = []

    def fake(gemm: Gemm, _: ContenderSetup) -> AnyKernel:
        asked.append(gemm.layout)
        raise error("It takes half an hour to say no.")

    monkeypatch.setitem(cast("dict[str, Any]", KNOWN), "template", fake)
    result = folder.runpytest_inprocess(
        NAMED, "--gemm", "MNK=8", "-k", "template", "--powercap", "1,2,3", "-rsf"
    )
    assert sorted(asked) == ["nn", "nt"]
    without = {"skipped" if error is UnavailableError else "failed": 6}
    result.assert_outcomes(**without, deselected=6 * OTHERS)


@pytest.mark.slow
def test_kernels_are_made_while_the_gpu_is_claimed_and_while_an_item_runs(folder, monkeypatch):
    asked: dict[str, str] = {}
    template = KNOWN["template"]

    def fake(gemm: Gemm, setup: ContenderSetup) -> AnyKernel:
        assert gemm.layout not in asked
        asked[gemm.layout] = threading.current_thread().name
        if gemm.layout == "nt":
            raise UnavailableError("There is none.")
        return template(gemm, setup)

    monkeypatch.setitem(cast("dict[str, Any]", KNOWN), "template", fake)
    result = folder.runpytest_inprocess(NAMED, "--gemm", "MNK=8", *TEMPLATE)
    assert asked.keys() == {"nn", "nt"}
    assert all(thread.startswith("kernels-ahead") for thread in asked.values())
    result.assert_outcomes(passed=1, skipped=1, deselected=2 * OTHERS)


def test_trials_have_no_effect(folder):
    arguments = ["--collect-only", "--powercap", "1", "--gemm", "MNK=64 t=2398"]
    result = folder.runpytest_inprocess(NAMED, *arguments)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["bench: t and O of the sizes have no effect here: they are for *"])


def test_a_product_that_is_named_runs_without_its_path(folder):
    name = "gemm_7x5x3_nt"
    found = ids(folder, "bench", "-k", f"{name} and not tvm and template")
    assert found == [f"{name}-template-200W"]


def test_records_that_do_not_fit_a_gpu_are_not_said_to_be_used(folder):
    here = folder.path / "bench" / "records"
    shutil.copytree(
        ROOT / "bench" / "records",
        here,
        ignore=lambda _, names: [one for one in names if "." in one and "_1024x1024x" not in one],
    )
    sizes = "MNK=1024 layout=nn mode=bfloat16; MNK=1024 layout=nn mode=float16"
    arguments = ["--collect-only", "--gpu-device", "emulated:a100", "--gemm", sizes, *TEMPLATE]
    said = folder.runpytest_inprocess(NAMED, *arguments).stdout.str()
    assert "bench: kernels from" not in said
    assert (
        "bench: no record for gemm_1024x1024x1024_nn_bfloat16 and 1 more fits "
        "NVIDIA A100-SXM4-80GB: parameters are chosen as without records"
    ) in said


@pytest.mark.parametrize(
    "arguments", [[], ["--network", "resnet"], ["-k", "gemm"], ["-k", "not gemm_64x64x64_nn"]]
)
def test_nobody_runs_them_who_does_not_name_them(folder, arguments):
    assert ids(folder, "bench", *arguments) == []


@pytest.mark.slow
def test_of_all_benches_only_that_of_convolutions_need_not_be_named(folder):
    for path in (ROOT / "bench").glob("test_*.py"):
        if path.name != "test_conv2d.py":
            shutil.copyfile(path, folder.path / "bench" / path.name)
    assert ids(folder, "bench") == []
    assert len(ids(folder, "bench/test_values.py")) == 10


def test_sizes_that_have_no_effect_are_told(folder):
    folder.makepyfile(test_other="def test_other(): pass")
    result = folder.runpytest_inprocess("test_other.py", "--gemm", "MNK=8")
    result.stdout.fnmatch_lines(["*--gemm has no effect, since no item of bench/test_gemm.py is*"])


def test_products_are_in_the_modes_of_the_option(folder):
    words = (NAMED, "--gemm", "MNK=64 layout=nn", "-k", "template")
    assert ids(folder, *words, "--mode", "3xtf32,tf32,tf32") == [
        f"gemm_64x64x64_nn_{mode}-template-200W" for mode in ("3xtf32", "tf32")
    ]


def test_a_product_in_another_mode_than_the_option_names_is_refused(folder):
    result = folder.runpytest_inprocess(
        NAMED, "--gemm", "MNK=8 layout=nn mode=tf32", "--mode", "float16"
    )
    result.stderr.fnmatch_lines(
        ["ERROR: gemm_8x8x8_nn_tf32 has the mode tf32, and --mode names float16: leave out one *"]
    )
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_a_layout_of_convolutions_has_no_effect_on_products(folder):
    result = folder.runpytest_inprocess(NAMED, "--gemm", "MNK=8", "--layout", "nhwc", "--co")
    result.stdout.fnmatch_lines(["bench: --layout has no effect, since it is of convolutions: *"])


def test_a_missing_folder_of_records_is_told(folder):
    result = folder.runpytest_inprocess(NAMED, "--gemm", "MNK=8", "--records", "none")
    result.stderr.fnmatch_lines(["ERROR: *none: there is no such folder; name one that has *"])
    assert result.ret == pytest.ExitCode.USAGE_ERROR


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ("MNK", "*which is not understood: give sizes such as 'M=1024 N=2048 K=3072'*"),
        ("M=0 N=1 K=1", "*gemm needs M to be an integer of at least 1, not 0*"),
        ("MNK=1e9", "*MNK=1e9 is not understood*"),
    ],
)
def test_bad_sizes_are_told_in_one_sentence(folder, sizes, told):
    result = folder.runpytest_inprocess(NAMED, "--gemm", sizes)
    result.stderr.fnmatch_lines([f"ERROR: {told}"])
    assert "Traceback" not in result.stdout.str()
    assert result.ret == pytest.ExitCode.USAGE_ERROR


@pytest.mark.slow
def test_a_product_is_verified_and_measured(folder):
    sizes = "M=33 N=17 K=50 layout=nt lda=65"
    arguments = ["--gemm", sizes, *TEMPLATE, "--gpuenergy-json", "r.json"]
    result = folder.runpytest_inprocess(NAMED, *arguments)
    result.assert_outcomes(passed=1, deselected=OTHERS)
    (measured,) = load_report(folder.path / "r.json").measurements
    assert (measured.kernel.label, measured.kernel.origin) == ("template", "template")
    assert measured.workload.parameters["lda"] == 65


@pytest.mark.slow
@pytest.mark.parametrize(
    ("card", "mode", "told"),
    [
        ("v100", "tf32", "in mode tf32 takes a GPU of sm_80 or later"),
        ("p100", "float32", "do not know the resources of"),
    ],
)
def test_a_card_on_which_the_template_cannot_run_is_skipped(folder, card, mode, told):
    old = ("--gpu-device", f"emulated:{card}", "--powercap", "current")
    arguments = ["--gemm", f"MNK=64 layout=nn mode={mode}", *TEMPLATE, "-rs", *old]
    result = folder.runpytest_inprocess(NAMED, *arguments)
    result.assert_outcomes(skipped=1, deselected=OTHERS)
    result.stdout.fnmatch_lines([f"SKIPPED*{told}*"])


def give_record(folder: Path, gpu: str) -> Path:
    """A record of `SMALL` whose schedule is the simplest there is, tuned for ``gpu``."""
    trace = [
        ["GetSBlock", [], ["C", "main"], ["b0"]],
        ["GetLoops", ["b0"], [], ["l0", "l1", "l2"]],
        ["Bind", ["l0"], ["blockIdx.x"], []],
        ["Bind", ["l1"], ["threadIdx.x"], []],
    ]
    target = {"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024}
    arguments = [["TENSOR", tensor.dtype, list(tensor.shape)] for tensor in SMALL.tensors]
    records = (Record(1, "fastest", json.dumps([[trace, []], [1e-5], target, arguments])),)
    toolchain = {"tvm": "0.27", "target": target}
    file = RecordFile(
        SMALL, FORMS["tvm"].tuner, gpu, "580.0", toolchain, "2026-11-23", 1, 1, records
    )
    dump_records(file, path := folder / file_name(SMALL))
    return path


@pytest.mark.tvm
@pytest.mark.slow
def test_tvm_has_the_best_record_of_the_shape(folder):
    give_record(folder.path / "bench" / "records" / "nvidia-a30", "NVIDIA A30")
    sizes = "M=8 N=6 K=5 layout=nn"
    arguments = ["--gemm", sizes, *TVM, "--gpuenergy-json", "r.json"]
    result = folder.runpytest_inprocess(NAMED, *arguments)
    result.assert_outcomes(passed=1, deselected=OTHERS)
    result.stdout.fnmatch_lines(
        ["bench: kernels from *nvidia-a30, tuned for NVIDIA A30, as there are none for NVIDIA H200"]
    )
    (measured,) = load_report(folder.path / "r.json").measurements
    assert (measured.kernel.label, measured.kernel.origin) == ("tvm", "tvm-metaschedule")


@pytest.mark.slow
def test_a_product_without_records_is_skipped_with_what_to_do(folder):
    sizes = "M=8 N=6 K=5 layout=nn mode=bfloat16 lda=7; M=512 N=256 K=640 layout=nt"
    result = folder.runpytest_inprocess(NAMED, "--gemm", sizes, *TVM, "-rs")
    result.assert_outcomes(skipped=2, deselected=2 * OTHERS)
    shape = "gemm:M=8 N=6 K=5 layout=nn mode=bfloat16 lda=7"
    for option in (f'--shape "{shape}"', "--case gemm_512x256x640_nt"):
        result.stdout.fnmatch_lines(
            [f"SKIPPED*make them with 'gpuenergy tune {option} --tuner tvm --out*"]
        )


@pytest.mark.slow
def test_a_record_of_tvm_is_skipped_where_tvm_is_not_installed(
    folder, tmp_path, monkeypatch, give_toolchain
):
    monkeypatch.setenv("GPUENERGY_CACHE", str(tmp_path))  # without kernels
    give_toolchain(tmp_path / "emulated" / "host")
    monkeypatch.setattr(sys.modules[KernelStore.__module__], "installed_tvm", lambda: None)
    give_record(folder.path / "bench" / "records" / "nvidia-h200", "NVIDIA H200")
    sizes = "M=8 N=6 K=5 layout=nn"
    result = folder.runpytest_inprocess(NAMED, "--gemm", sizes, *TVM, "-rs")
    result.assert_outcomes(skipped=1, deselected=OTHERS)
    result.stdout.fnmatch_lines(["SKIPPED*needs Apache TVM, which is not installed: pip install*"])


@pytest.mark.slow
def test_tf32_is_skipped_since_tvm_has_none(folder):
    sizes = "MNK=64 layout=nn mode=tf32"
    result = folder.runpytest_inprocess(NAMED, "--gemm", sizes, *TVM, "-rs")
    result.assert_outcomes(skipped=1, deselected=OTHERS)
    result.stdout.fnmatch_lines(["SKIPPED*which has no schedules in mode tf32*"])


@pytest.mark.slow
def test_kernels_that_are_no_text_are_skipped_on_the_emulated_gpu(folder):
    arguments = ["--gemm", "MNK=8 layout=nn", "-k", "triton or cublas", "--powercap", "1", "-rs"]
    result = folder.runpytest_inprocess(NAMED, *arguments)
    result.assert_outcomes(skipped=2, deselected=3)
    for kernel in ("matmul", "cublasLt.matmul"):
        result.stdout.fnmatch_lines([f"SKIPPED* {kernel} needs a real GPU: the emulated one runs*"])


@pytest.mark.slow
def test_what_cutlass_needs_is_checked_before_anything_is_measured(folder):
    version = folder.path / "cutlass" / "include" / "cutlass" / "version.h"
    version.parent.mkdir(parents=True)
    arguments = ["--gemm", "MNK=8 layout=nn", "-k", "cutlass", "--powercap", "1"]
    given = ["--cutlass", "cutlass", "--cutlass-profiler", "profiler"]
    for told in (
        "*cutlass has no headers of CUTLASS*: give --cutlass*",
        "*is no program that can*",
    ):
        result = folder.runpytest_inprocess(NAMED, *arguments, *given)
        result.stderr.fnmatch_lines([f"ERROR: {told}"])
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        version.write_text("#define CUTLASS_MAJOR 4\n")
    (folder.path / "profiler").touch(0o755)
    result = folder.runpytest_inprocess(NAMED, *arguments, *given)
    result.assert_outcomes(skipped=2, deselected=4)
    result.stdout.fnmatch_lines(
        [
            "*= contenders left out =*",
            "cutlass: cutlass_simt_sgemm_256x128_8x5_nn_align1 needs a real GPU: *",
            "cutlass_profiler: The CUTLASS profiler needs a real GPU, and --cutlass-profiler.",
        ]
    )


@pytest.mark.slow
def test_a_contender_that_cannot_be_made_fails_in_one_sentence(folder):
    path = give_record(folder.path / "records", "NVIDIA H200")
    path.write_text(path.read_text().replace("threadIdx.x", "threadIdx.w"))
    sizes = "M=8 N=6 K=5 layout=nn"
    result = folder.runpytest_inprocess(NAMED, "--gemm", sizes, *TVM, "--records", "records")
    result.assert_outcomes(failed=1, deselected=OTHERS)
    result.stdout.fnmatch_lines(["The record file *cannot be used*threadIdx.w*"])
    assert "Traceback" not in result.stdout.str()
    assert "def test_gemm" not in result.stdout.str()
