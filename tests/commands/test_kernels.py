"""`gpuenergy kernels`: records listed, shown and exported."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from command_outcomes import ended
from gemm_products import template_records
from hypothesis import given, strategies as st

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.kernels import Kernel, Launch, Origin, load_kernel
from pytest_gpuenergy.support import InputError, KernelFault
from pytest_gpuenergy.tuners import FORMS, TEMPLATE_FORM, SimtParameters
from pytest_gpuenergy.tuning import (
    Measured,
    Record,
    RecordFile,
    choose_ranks,
    dump_records,
    file_name,
    write_performance,
)
from pytest_gpuenergy.workloads import Conv2d, Gemm, find_workload

SIZES = (1, 6, 6, 4, 3, 3, 3, 1, 1)
TINY = Conv2d.of("tiny", *SIZES)
OTHER = Conv2d.of("other", 1, 8, 8, 4, 3, 3, 3, 1, 1)


def refused(*words: object) -> str:
    return ended(2, "kernels", *words).err


def printed(*words: object) -> str:
    return ended(0, "kernels", *words).out


def listed(*words: object) -> Any:
    return json.loads(printed("list", *words, "--json"))


def write_records(folder: Path, workload: Conv2d, *, gpu: str = "NVIDIA H200") -> Path:
    tensors = [["TENSOR", tensor.dtype, list(tensor.shape)] for tensor in workload.tensors]
    text = json.dumps([[[], []], [2e-5, 4e-5], {"kind": "cuda"}, tensors], separators=(",", ":"))
    records = (
        Record(1, "fastest", text, Measured(0.025, 400.0, 10.0, 700.0)),
        Record(2, "p50", text),
    )
    toolchain = {"tvm": "0.27.0", "target": {}}
    file = RecordFile(
        workload, FORMS["tvm"].tuner, gpu, "580.1", toolchain, "2026-01-01", 64, 32, records
    )
    path = folder / file_name(workload)
    dump_records(file, path)
    return path


class Store:
    """Lowers without TVM: the text of a kernel tells its rank."""

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def kernels(self, file: RecordFile, ranks: Sequence[int]) -> list[Kernel]:
        launch = Launch("conv", (4, 1, 1), (36, 1, 1), ("data", "weight", "output"))
        return [
            Kernel(
                f'extern "C" __global__ void conv(float* a, float* b, float* c) {{}} // {rank}',
                (launch,),
                origin=Origin("tvm-metaschedule", rank),
                recorded=file.recorded(rank),
            )
            for rank in ranks
        ]


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with records of two workloads, seen from a folder inside it."""
    monkeypatch.setattr("pytest_gpuenergy.tuners.tvm.kernel_store.KernelStore", Store)
    for workload in (TINY, OTHER):
        write_records(tmp_path / "bench" / "records" / "nvidia-h200", workload)
    inside = tmp_path / "docs"
    inside.mkdir()
    monkeypatch.chdir(inside)
    return tmp_path


def test_list_finds_the_records_of_the_project_around():
    header, *rows = printed("list").splitlines()
    assert header.split()[:3] == ["workload", "rank", "band"]
    assert len(rows) == 4
    assert (
        " ".join(rows[2].split())
        == "tiny 1 fastest tvm-metaschedule NVIDIA H200 25.0 µs 400 W 10.0 mJ 30.0 µs"
    )


def test_list_of_one_case_as_json():
    first, second = listed("--case", "tiny")
    assert (first["workload"], first["rank"], first["tuned_for"]) == ("tiny", 1, "NVIDIA H200")
    assert first["measured"]["energy_mj"] == 10.0
    assert second["measured"] is None
    assert second["search_time_ms"] == pytest.approx(0.03)


def test_a_workload_takes_the_records_of_its_shape(project):
    sizes = "[tool.gpuenergy.workloads]\ntwin = [1, 6, 6, 4, 3, 3, 3, 1, 1]\n"
    (project / "pyproject.toml").write_text(sizes)
    entries = listed("--case", "other,twin")
    assert [entry["workload"] for entry in entries] == ["other", "other", "twin", "twin"]
    assert entries[2]["parameters"]["H"] == 6
    assert printed("show", "twin", "2").startswith("// twin kernel 2, tuned for NVIDIA H200")


def test_records_can_be_one_file(tmp_path):
    path = write_records(tmp_path, TINY, gpu="NVIDIA L4")
    assert {entry["tuned_for"] for entry in listed("--records", path)} == {"NVIDIA L4"}


def test_records_can_be_a_folder_that_a_search_has_written(tmp_path):
    path = write_records(tmp_path / "tuned", TINY)
    write_performance(tmp_path / "tuned" / "performance" / path.name, [1200.0, 900.0])
    (tmp_path / "tuned" / TINY.name / "raw").mkdir(parents=True)
    assert [entry["rank"] for entry in listed("--records", tmp_path / "tuned")] == [1, 2]
    path.unlink()  # rates and raw results are no record files
    assert "There are no record files in" in refused("list", "--records", tmp_path / "tuned")


def test_a_folder_in_the_place_of_a_record_file_is_named(tmp_path):
    (tmp_path / file_name(TINY)).mkdir()
    said = refused("list", "--records", str(tmp_path))
    assert f"{file_name(TINY)}' is not a file: move it away, or name another.\n" in said


def test_show_prints_source_and_launch():
    shown = printed("show", "tiny", "2")
    assert "// conv<<<(4, 1, 1), (36, 1, 1), 0>>>(data, weight, output)" in shown
    assert shown.rstrip().endswith("{} // 2")


@pytest.mark.parametrize(
    "words",
    [
        ["tiny", "k02"],
        ["tiny", "kernel02"],
        ["tiny-k02"],
        ["tiny-k02-300W"],
        ["test_conv2d[tiny-k02-current]"],
        ["bench/test_conv2d.py::test_conv2d[tiny-k02-300W]"],
    ],
)
def test_show_takes_every_id_that_a_report_shows(words):
    assert printed("show", *words).startswith("// tiny kernel 2, tuned for NVIDIA H200\n")


def test_an_id_chooses_its_kernel_among_those_of_a_workload():
    both = listed("--case", "tiny-k02", "--case", "tiny-k01")
    assert [entry["rank"] for entry in both] == [1, 2]
    assert [entry["rank"] for entry in listed("--case", "tiny-k02-300W")] == [2]


def test_a_name_with_dashes_is_told_from_a_rank(project):
    write_records(project / "bench" / "records", Conv2d.of("my-k9-net", *SIZES))
    assert printed("show", "my-k9-net-k02-300W").startswith("// my-k9-net kernel 2,")


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--case", "5"], ["case5"]),
        (["--case", "all"], ["case1", "case5"]),
        (["--case", "all", "--case", "tiny"], ["case1", "case5", "tiny"]),
        (["--network", "cases"], ["case1", "case5"]),
        (["--network", "cases,resnet"], ["case1", "case5", "resnet01"]),
        ([], ["tiny", "case1", "case5", "resnet01"]),
    ],
)
def test_cases_and_networks_mean_what_they_mean_in_tune(tmp_path, words, names):
    found = [TINY, find_workload("case1"), find_workload("case5"), find_workload("resnet01")]
    for workload in found:
        assert isinstance(workload, Conv2d)
        write_records(tmp_path / "records", workload)
    entries = listed(*words, "--records", tmp_path / "records")
    shown = {entry["workload"] for entry in entries}
    twins = {name for name in shown if name.startswith("resnet") and "--network" in words}
    assert shown - twins == {*names} - twins


def test_show_as_json_has_the_plan():
    plan = json.loads(printed("show", "tiny", "1", "--json"))
    assert plan["launches"][0]["block"] == [36, 1, 1]
    assert plan["source_text"].endswith("// 1")
    assert plan["recorded"][0]["time_ms"] == 0.025


def test_export_writes_the_chosen_kernels(tmp_path):
    words = ["kernels", "export", "--case", "tiny", "--kernels", "2", "--out", str(tmp_path / "o")]
    assert main(words) == 0
    assert [path.name for path in (tmp_path / "o" / "kernels").rglob("kernel??.cu")] == [
        "kernel02.cu"
    ]
    kernel = load_kernel(tmp_path / "o" / "kernels" / "tiny" / "kernel02.json")
    assert kernel.source.endswith("// 2")


def test_export_as_json_lists_the_files(tmp_path):
    words = ["kernels", "export", "--kernels", "top1", "--out", str(tmp_path / "o"), "--json"]
    written = json.loads(ended(0, *words).out)
    assert len(written) == 2 * 4 + 6
    assert all(Path(path).is_file() for path in written)


def test_a_full_folder_is_refused_before_anything_is_lowered(tmp_path, monkeypatch):
    def never(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(Store, "kernels", never)
    (tmp_path / "mine.txt").write_text("mine")
    assert "is not empty" in refused("export", "--out", str(tmp_path))


def test_a_record_that_cannot_be_lowered_ends_with_1(monkeypatch):
    def fault(*_: object) -> None:
        raise KernelFault("compile", "tiny kernel 1: the trace does not apply.")

    monkeypatch.setattr(Store, "kernels", fault)
    assert "does not apply" in ended(1, "kernels", "show", "tiny", "1").err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["list", "--case", "case99"], "There are no records for 'case99', only for other, tiny."),
        (["list", "--case", "resnet03"], "no records for 'resnet03', only for other, tiny."),
        (["list", "--records", "/no/such/folder"], "No such file"),
        (["list", "--records", "."], "There are no record files in ."),
        (["show", "tiny", "3"], "has no kernel of rank 3"),
        (["show", "tiny", "first"], "'first' is not a rank"),
        (["export", "--kernels", "best", "--out", "o"], "--kernels 'best' is not understood"),
        (["export", "--kernels", "", "--out", "o"], "--kernels '' is not understood"),
        (["export", "--kernels", "1,9", "--out", "o"], "there is no kernel 9; there are 1 to 2"),
        *(
            (["export", "--kernels", ranks, "--out", "o"], "name fewer ranks, or all")
            for ranks in ("9" * 5000, "top" + "9" * 5000)
        ),
    ],
)
def test_what_cannot_be_is_refused(words, said):
    assert said in refused(*words)


def test_outside_a_project_the_records_must_be_named(monkeypatch):
    monkeypatch.chdir("/")
    assert "name record files with --records" in refused("list")


@pytest.mark.parametrize("words", [["show", "tiny", "1"], ["export", "--out", "o"]])
def test_records_for_several_gpus_must_be_told_apart(words, project):
    write_records(project / "bench" / "records" / "nvidia-l4", TINY, gpu="NVIDIA L4")
    assert (
        "several sets of records for tiny (tuned by tvm-metaschedule for NVIDIA H200, by "
        in refused(*words)
    )


@given(
    ranks=st.lists(st.integers(1, 25), min_size=1, unique=True).map(sorted),
    count=st.integers(1, 30),
)
def test_top_gives_the_first_ones(ranks, count):
    assert choose_ranks(f"top{count}", ranks) == ranks[:count]


@given(ranks=st.lists(st.integers(1, 25), min_size=1, unique=True).map(sorted), data=st.data())
def test_a_list_gives_exactly_those(ranks, data):
    wanted = data.draw(st.lists(st.sampled_from(ranks), min_size=1))
    assert choose_ranks(",".join(map(str, wanted)), ranks) == sorted(set(wanted))


@given(st.text(max_size=12))
def test_any_other_words_are_refused_or_name_ranks(words):
    try:
        chosen = choose_ranks(words, [1, 2, 3])
    except InputError:
        return
    assert set(chosen) <= {1, 2, 3}


def test_two_workloads_of_one_name_are_not_exported_over_each_other(project, tmp_path):
    namesake = Conv2d.of("tiny", 1, 10, 10, 4, 3, 3, 3, 1, 1)
    write_records(project / "bench" / "records" / "nvidia-h200", namesake)
    words = ["kernels", "export", "--case", "tiny", "--out", str(tmp_path / "o")]
    assert "several workloads called tiny: remove the outdated file" in ended(2, *words).err


def test_kernels_of_one_tuner_are_chosen(project):
    workload = Gemm("product", 8, 8, 8)
    file = template_records(workload, SimtParameters())
    folder = project / "bench" / "records" / "nvidia-h200"
    dump_records(file, folder / file_name(workload, TEMPLATE_FORM.variant))
    for tuner, known in (("template", {"product"}), ("tvm", {"tiny", "other"})):
        assert {entry["workload"] for entry in listed("--tuner", tuner)} == known
    assert "gemm<<<" in printed("show", "product", "1")


@pytest.fixture
def modes(project: Path) -> Path:
    """Records of workloads in several modes and layouts."""
    folder = project / "bench" / "records" / "nvidia-h200"
    yolo08 = find_workload("yolo08_tf32")
    assert isinstance(yolo08, Conv2d)
    for workload in (TINY.varied(mode="3xtf32"), TINY.varied(mode="tf32", layout="nhwc"), yolo08):
        write_records(folder, workload)
    return project


@pytest.mark.usefixtures("modes")
def test_a_kernel_is_shown_in_one_mode():
    words = ["show", "tiny", "1", "--mode", "float32,3xtf32"]
    several = "kernels of tiny in several modes or layouts: name one of tiny, tiny_3x"
    assert several in refused(*words)


@pytest.mark.usefixtures("modes")
@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--mode", "3xtf32"], {"tiny_3xtf32"}),
        (["--layout", "nhwc"], {"tiny_tf32_nhwc"}),
        (["--mode", "float32,3xtf32"], {"tiny", "other", "tiny_3xtf32"}),
        (["--case", "tiny"], {"tiny"}),
        (["--case", "tiny_3xtf32"], {"tiny_3xtf32"}),
        (["--case", "tiny", "--mode", "3xtf32"], {"tiny_3xtf32"}),
        (["--case", "tiny", "--mode", "tf32", "--layout", "nhwc"], {"tiny_tf32_nhwc"}),
        (["--case", "2", "--mode", "tf32"], {"case2_tf32"}),
        (["--network", "yolo", "--mode", "tf32"], {"yolo08_tf32"}),
    ],
)
def test_kernels_are_chosen_by_mode_and_layout(words, names):
    assert {entry["workload"] for entry in listed(*words)} == names


@pytest.mark.usefixtures("modes")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--mode", "float16"], "no records of these modes and layouts"),
        (["--case", "tiny", "--mode", "float16"], "no records for 'tiny' as float16, only for"),
        (["--case", "tiny", "--relu"], "no records for 'tiny' as relu, only for"),
        (["--network", "cases", "--mode", "int8"], "--mode 'int8' is not known: choose from"),
    ],
)
def test_modes_without_kernels_are_refused(words, said):
    assert said in refused("list", *words)


@pytest.mark.usefixtures("modes")
def test_a_kernel_in_another_mode_is_shown_and_exported(tmp_path):
    assert printed("show", "tiny_3xtf32", 2) == printed("show", "tiny", "2", "--mode", "3xtf32")
    out = tmp_path / "out"
    printed("export", "--case", "tiny", "--mode", "tf32", "--layout", "nhwc", "--out", out)
    plan = json.loads((out / "kernels" / "tiny_tf32_nhwc" / "kernel01.json").read_text())
    assert plan["workload"]["parameters"]["layout"] == "NHWC"
    assert plan["workload"]["tensors"][0]["shape"] == [1, 6, 6, 3]
