"""Which items the repository's own bench has, and what is said when it cannot have them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from bench_folder import ROOT
from small_project import LEAN

from pytest_gpuenergy.tuning import file_name
from pytest_gpuenergy.workloads import CASES

pytestmark = pytest.mark.slow

CASE1, CASE7 = CASES["case1"], CASES["case7"]


def test_every_kernel_of_every_case_runs_under_every_cap(bench):
    bench.give_records(25)
    ids = bench.ids()
    assert len(ids) == len(set(ids)) == 7 * 25 * 5
    assert {"case1-k01-200W", "case1-k25-450W", "case7-k10-700W"} <= set(ids)


def test_the_id_says_current_where_no_cap_is_set(bench):
    bench.give_records(1)
    assert bench.ids("--powercap", "current") == [f"{case}-k01-current" for case in CASES]


@pytest.mark.parametrize(
    ("expression", "selected"),
    [
        ("case1", [f"case1-k{rank:02d}-450W" for rank in range(1, 13)]),
        ("case1-k01", ["case1-k01-450W"]),
        ("k01-450W and (case2 or case3)", ["case2-k01-450W", "case3-k01-450W"]),
    ],
)
def test_a_name_selects_no_neighbour(bench, expression, selected):
    bench.give_records(12)
    assert bench.ids("--powercap", "450W", "-k", expression) == selected


@pytest.mark.parametrize(
    ("words", "ranks"),
    [
        ("top2", [1, 2]),
        ("4, 2", [2, 4]),
    ],
)
def test_kernels_are_chosen_by_rank(bench, words, ranks):
    bench.give_records(4)
    assert bench.ids("--powercap", "1", "--kernels", words, "-k", "case1") == [
        f"case1-k{rank:02d}-200W" for rank in ranks
    ]


def test_quick_takes_the_ends(bench):
    bench.give_records(4)
    kernels = ["case1-k01", "case1-k02", "case7-k01", "case7-k02"]
    assert bench.ids("--powercap", "1", "--quick") == [f"{name}-200W" for name in kernels]


def test_quick_leaves_the_kernels_to_who_names_them(bench):
    bench.give_records(4)
    assert bench.ids("--powercap", "1", "--quick", "--kernels", "3") == [
        "case1-k03-200W",
        "case7-k03-200W",
    ]


@pytest.mark.parametrize(
    ("arguments", "layers"),
    [
        (["-k", "k01"], list(CASES)),
        (["--network", "yolo, cases", "-k", "02 or case7"], ["yolo02", "case7"]),
        (["-k", "ResNet03-k01"], ["resnet03"]),
        (["-k", "yolo02 or case1"], ["case1", "yolo02"]),
        (["-k", "not resnet"], list(CASES)),
        (["--network", "cases", "-k", "case2 or resnet03"], ["case2"]),
        (["--case", "5,yolo02", "--case", "case1"], ["case5", "yolo02", "case1"]),
        (["--case", "2", "--network", "resnet"], ["case2", "resnet03", "resnet06", "resnet09"]),
    ],
)
def test_layers_of_a_network_run_with_the_records_of_their_shape(bench, arguments, layers):
    bench.give_records(2)
    ids = bench.ids("--powercap", "1", "--kernels", "1", *arguments)
    assert ids == [f"{layer}-k01-200W" for layer in layers]


@pytest.mark.parametrize(
    ("arguments", "layers"),
    [
        ([], list(CASES)),
        (["-k", "case2_3xtf32 or case7"], ["case2_3xtf32", "case7"]),
        (["-k", "case2 and TF32 or case3"], ["case3"]),
        (["-k", "case2 and tf32 and nhwc"], ["case2_tf32_nhwc"]),
        (["-k", "case2 and not (3xtf32 or nhwc)"], ["case2"]),
        (["--mode", "float32,3xtf32", "-k", "case2"], ["case2", "case2_3xtf32"]),
        (["--mode", "tf32", "--layout", "nhwc"], ["case2_tf32_nhwc"]),
        (["--case", "2", "--mode", "3xtf32"], ["case2_3xtf32"]),
        (["--case", "case2_tf32_nhwc,case3"], ["case2_tf32_nhwc", "case3"]),
        (["--network", "yolo", "--mode", "3xtf32"], ["yolo08_3xtf32"]),
        (["--case", "2", "--mode", "tf32", "--bias", "--relu"], ["case2_tf32_bias_relu"]),
    ],
)
def test_other_modes_are_collected_where_they_are_named(bench, arguments, layers):
    bench.give_records(1)
    ends = {"mode": "tf32", "bias": True, "relu": True}
    for options in ({"mode": "3xtf32"}, {"mode": "tf32", "layout": "nhwc"}, ends):
        bench.give_record(CASES["case2"].varied(**options))
    assert bench.ids("--powercap", "1", *arguments) == [f"{layer}-k01-200W" for layer in layers]


def test_an_item_in_another_mode_runs_by_its_id(bench):
    bench.give_record(CASES["case2"].varied(mode="3xtf32"))
    bench.give_records(1)
    item = "bench/test_conv2d.py::test_conv2d[case2_3xtf32-k01-200W]"
    result = bench.pytester.runpytest_inprocess("--collect-only", "-q", item)
    assert [line for line in result.stdout.lines if "::" in line] == [item]


def test_modes_without_records_are_told(bench):
    bench.give_records(1)
    sentence = "There are no records for case1_tf32 in * 'gpuenergy tune --case case1_tf32 *"
    bench.refuses("--mode", "tf32", said=sentence)
    bench.give_record(CASES["case2"].varied(mode="3xtf32"))
    result = bench.run("--collect-only", "--network", "yolo", "--mode", "3xtf32")
    result.stdout.fnmatch_lines(["bench: left out, without records: yolo00_3xtf32, yolo02_3x*"])
    result = bench.run("--collect-only", "-k", "case2 and 3xtf32")
    assert "left out" not in result.stdout.str()
    result = bench.run("--collect-only", "-k", "case2_3xtf32_relu")
    result.stdout.fnmatch_lines(["bench: left out, without records: case2_3xtf32_relu"])
    result = bench.run("--collect-only", "-k", "case2 and bfloat16")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.stdout.fnmatch_lines(["bench: left out, without records: case1_bfloat16, case2_bf*"])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--layout", "nchw,nt"], "--layout 'nt' is not known: choose from nchw, nhwc."),
        (
            ["--case", "case2_tf32", "--mode", "3xtf32"],
            "case2_tf32 has the mode tf32, and --mode *",
        ),
    ],
)
def test_a_mode_or_layout_that_cannot_be_is_refused(bench, words, sentence):
    bench.give_records(1)
    bench.refuses(*words, said=sentence)


@pytest.mark.parametrize("words", ["case2 and tf64", "case2 and not case1 and (tf64)"])
def test_an_expression_that_selects_nothing_is_told(bench, words):
    bench.give_records(1)
    result = bench.run("--collect-only", "--powercap", "1", "-k", words)
    result.stdout.fnmatch_lines(
        ["gpuenergy: -k selects nothing: no item's name contains tf64"], consecutive=False
    )
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_a_card_without_a_templates_instructions_is_skipped(bench):
    arguments = ["--mode", "tf32", "--case", "case2", "--kernels", "top1", "--powercap", "current"]
    arguments.append(f"--records={ROOT / 'bench' / 'records'}")
    result = bench.run("--gpu-device", "emulated:v100", "-rs", *arguments)
    result.assert_outcomes(skipped=1)
    told = "Kernel 1 of case2_tf32 is of the template implicit, * sm_70."
    result.stdout.fnmatch_lines([f"SKIPPED*{told}"])


def test_an_item_of_a_network_runs_by_its_id(bench):
    bench.give_records(1)
    item = "bench/test_conv2d.py::test_conv2d[resnet03-k01-200W]"
    result = bench.pytester.runpytest_inprocess("--collect-only", "-q", item)
    assert [line for line in result.stdout.lines if "::" in line] == [item]


def test_layers_without_records_are_told(bench):
    bench.give_records(1)
    result = bench.run("--collect-only", "--network", "yolo")
    result.stdout.fnmatch_lines(
        ["bench: left out, without records: yolo00, yolo04, yolo05, yolo09, yolo13, yolo19"]
    )
    assert "left out" not in bench.run("--collect-only").stdout.str()


def test_a_network_without_any_records_is_refused(bench):
    bench.give_case7("mine", good=1)
    sentence = "There are no records for yolo00 in */mine *"
    bench.refuses("--records", "mine", "--network", "yolo", said=sentence)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--network", "cases,vgg"], "There is no network 'vgg': choose one of cases, *, project."),
        (["--case", "case9"], "There is no workload 'case9': choose one of case1, *"),
        (["--case", ","], "No workload is named: *"),
    ],
)
def test_an_unknown_network_or_case_is_refused(bench, words, sentence):
    bench.give_records(1)
    bench.refuses(*words, said=sentence)


def test_quick_takes_the_ends_of_each_network(bench):
    bench.give_records(1)
    layers = ["case1", "case7", "yolo02", "yolo18"]
    assert bench.ids("--powercap", "1", "--quick", "--network", "cases,yolo") == [
        f"{layer}-k01-200W" for layer in layers
    ]


def test_a_projects_own_workloads_run(bench):
    bench.give_records(1)
    with (bench.path / "pyproject.toml").open("a") as stream:
        stream.write("[tool.gpuenergy.workloads]\nblock = [1, 14, 14, 256, 256, 3, 3, 1, 1]\n")
    assert bench.ids("--powercap", "1", "--network", "project") == ["block-k01-200W"]
    assert bench.ids("--powercap", "1", "-k", "block") == ["block-k01-200W"]


def test_a_malformed_workload_of_the_project_is_refused(bench):
    bench.give_records(1)
    with (bench.path / "pyproject.toml").open("a") as stream:
        stream.write("[tool.gpuenergy.workloads]\nblock = 3\n")
    bench.refuses(said="*pyproject.toml: the workload 'block' must be a list *")


def test_records_may_lie_elsewhere(bench):
    bench.give_records(1, bench.path / "mine")
    assert len(bench.ids("--powercap", "1", "--records", "mine")) == 7
    bench.run("--collect-only", "--records", "mine").stdout.fnmatch_lines(
        [f"bench: kernels from {bench.path / 'mine'}, tuned for Test GPU*"]
    )


def test_records_for_the_gpu_itself_come_first(bench):
    bench.give_records(1, gpu="NVIDIA H200")
    bench.give_records(2, bench.records.with_name("nvidia-a30"), gpu="NVIDIA A30")
    for device, kernels, name in (("h200", 1, "H200"), ("a30", 2, "A30")):
        arguments = ["--powercap", "1", "--gpu-device", f"emulated:{device}"]
        assert len(bench.ids(*arguments)) == 7 * kernels
        bench.run("--collect-only", *arguments).stdout.fnmatch_lines(
            [f"bench: kernels from */nvidia-{device}, tuned for NVIDIA {name}"]
        )


def test_records_for_another_gpu_serve_and_are_named(bench):
    bench.give_records(1, gpu="NVIDIA H200")
    arguments = ["--powercap", "1", "--gpu-device", "emulated:a30"]
    assert len(bench.ids(*arguments)) == 7
    bench.run("--collect-only", *arguments).stdout.fnmatch_lines(
        [
            "bench: kernels from */nvidia-h200, tuned for NVIDIA H200, "
            "as there are none for NVIDIA A30"
        ]
    )


def test_a_workload_without_records_for_the_gpu_has_those_for_another(bench):
    bench.give_records(1, gpu="NVIDIA H200")
    own = bench.records.with_name("nvidia-a30")
    bench.give_records(2, own, gpu="NVIDIA A30")
    (own / file_name(CASE1)).unlink()
    ids = bench.ids("--powercap", "1", "--gpu-device", "emulated:a30")
    assert [item for item in ids if item.startswith("case1")] == ["case1-k01-100W"]
    assert len(ids) == 1 + 6 * 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "1-3",
            "--kernels '1-3' is not understood: give all, top1, top2, ..., or ranks "
            "such as 1,5,25 or k01.",
        ),
        ("99", "--kernels 99: there is no kernel 99; *"),
    ],
)
def test_kernels_that_there_are_not_are_refused(bench, words, sentence):
    bench.give_records(4)
    bench.refuses(f"--kernels={words}", said=sentence)


def test_missing_records_are_told_with_what_to_do(bench):
    (bench.path / "nowhere").mkdir()
    bench.refuses(
        *("--records", "nowhere"),
        said="There are no records for case1 in */nowhere (no file case1_*.json): "
        "make them with 'gpuenergy tune --case case1 --out */nowhere'.",
    )


def test_no_search_is_proposed_of_what_no_template_computes(bench):
    bench.give_records(1)
    bench.refuses(
        *("--layout", "nhwc"),
        said="There are no records for case1_nhwc in */bench/records, and none can be made: "
        "*layout=nhwc, which no template computes: choose mode 3xtf32, which is as exact.",
    )


def test_bundled_records_must_be_complete(bench):
    bench.give_records(1)
    (bench.records / file_name(CASES["case4"])).unlink()
    bench.refuses(said="There are no records for case4 in */bench/records (*")


def test_a_record_file_cut_short_is_refused(bench):
    bench.give_records(3)
    path = bench.records / file_name(CASE7)
    path.write_text(path.read_text()[:-200])
    bench.refuses(said="The record file */case7_*.json cannot be used, because *")


def test_the_records_of_another_case_are_refused(bench):
    bench.give_records(1)
    path = bench.records / file_name(CASE1)
    path.write_text((bench.records / file_name(CASE7)).read_text())
    sentence = "The record file */case1_*.json contains kernels of case7 instead of case1: *"
    bench.refuses(said=sentence)


def test_collecting_it_all_imports_nothing_heavy(bench):
    bench.give_records(2)
    settings = bench.path / "pyproject.toml"
    settings.write_text(settings.read_text().replace(LEAN, '"-p", "no:benchmark"'))
    code = (
        "import sys, pytest; code = pytest.main(['--collect-only', '-q', 'bench']);"
        "heavy = {'tvm', 'tvm_ffi', 'cupy', 'torch', 'triton', 'matplotlib'};"
        "print(int(code), sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=bench.path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "0 []"
    assert "70 tests collected" in done.stdout
