"""Folders of record files: by GPU, by workload, of any tuner."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from tuning_fakes import WORDS, recipe_of

from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuners import load_records
from pytest_gpuenergy.tuning import (
    Record,
    RecordFile,
    choose_ranks,
    dump_records,
    file_name,
    find_records,
    gpu_folder,
)
from pytest_gpuenergy.workloads import Conv2d

TINY, SAME = (Conv2d.of(name, 1, 4, 4, 1, 1, 1, 1, 1, 0) for name in ("tiny", "same"))
FILE = RecordFile(
    workload=TINY,
    tuner="words",
    gpu="NVIDIA H200",
    driver="580.0",
    toolchain={"language": "English"},
    date="2026-11-21",
    trials_total=9,
    trials_valid=5,
    records=tuple(
        Record(rank, "fastest", WORDS.with_time(recipe_of(f"word{rank}"), 0.5)) for rank in (1, 2)
    ),
)


def give(folder: Path, file: RecordFile = FILE) -> Path:
    path = folder / file_name(file.workload)
    dump_records(file, path)
    return path


def test_a_file_of_a_tuner_that_is_not_known_here_is_refused(tmp_path):
    with pytest.raises(InputError, match="tuner is 'words' instead of tvm-metaschedule"):
        load_records(give(tmp_path))


def test_what_a_tuner_finds_wrong_is_told_with_its_place(tmp_path):
    file = replace(FILE, tuner="template", toolchain={"gpuenergy": "0.1"})
    with pytest.raises(InputError, match=r"in records\[0\] the recipe"):
        load_records(give(tmp_path, file))


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("NVIDIA H200", "nvidia-h200"),
        ("NVIDIA A100-SXM4-80GB", "nvidia-a100-sxm4-80gb"),
        ("NVIDIA GeForce RTX 4090", "nvidia-geforce-rtx-4090"),
        ("../x (emulated)", "x-emulated"),
    ],
)
def test_a_gpu_model_has_a_folder(name, folder):
    assert gpu_folder(name) == folder


@pytest.mark.parametrize(
    ("gpu", "folder"),
    [("NVIDIA L4", "nvidia-l4"), ("NVIDIA H200", "nvidia-h200"), ("NVIDIA A30", "nvidia-h200")],
)
def test_the_records_for_the_gpu_come_before_others(tmp_path, gpu, folder):
    for name in ("nvidia-h200", "nvidia-l4"):
        give(tmp_path / name)
    assert find_records(tmp_path, TINY, gpu).parent.name == folder


def test_those_of_its_shape_for_the_gpu_come_before_its_own_for_another(tmp_path):
    give(tmp_path / "nvidia-h200")
    path = give(tmp_path / "nvidia-l4", replace(FILE, workload=SAME))
    assert find_records(tmp_path, TINY, "NVIDIA L4") == path


def test_a_folder_without_others_serves_every_gpu(tmp_path):
    path = give(tmp_path)
    assert find_records(tmp_path, TINY, "NVIDIA L4") == path


def test_missing_records_name_the_folder_of_the_gpu(tmp_path):
    give(tmp_path / "nvidia-h200")
    other = Conv2d.of("other", 1, 5, 5, 1, 1, 1, 1, 1, 0)
    option = '--shape "other=conv2d:1,5,5,1,1,1,1,1,0"'
    with pytest.raises(InputError, match=f"{option} --out {tmp_path}/nvidia-l4'"):
        find_records(tmp_path, other, "NVIDIA L4")


@given(st.lists(st.integers(1, 25), min_size=1, unique=True))
def test_ranks_are_chosen_in_their_own_order(wanted):
    assert choose_ranks(",".join(map(str, wanted)), range(1, 26)) == sorted(wanted)


@pytest.mark.parametrize("words", ["bad", "top0", "top", "1,,2", "-1", "1-3", ""])
def test_words_that_name_no_ranks_are_told(words):
    with pytest.raises(InputError, match=f"--kernels '{words}' is not understood: give all, top1"):
        choose_ranks(words, range(1, 5))


@pytest.mark.parametrize("words", ["0", "99", "2,99"])
def test_a_rank_that_there_is_not_is_told(words):
    with pytest.raises(InputError, match=r"there is no kernel \d+; there are 1 to 4\."):
        choose_ranks(words, range(1, 5))


@pytest.mark.parametrize(
    "content",
    ["", "{", '{"format": "something else"}', "[]", "\0\1\2", '{"schema_version": 1}'],
    ids=["empty", "truncated", "foreign", "list", "binary", "report"],
)
def test_a_file_that_is_no_record_file_is_refused(tmp_path, content):
    path = give(tmp_path)
    path.write_text(content)
    with pytest.raises(InputError, match=f"The record file {path} cannot be used, because"):
        load_records(path)
