"""The raw results of a search: written trial by trial, and read again whatever happened."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path

import pytest
from tuning_fakes import WORDS, FakeDevice, FakeNvml, recipe_of, time_by_digest

from pytest_gpuenergy.control import LeaseRecord
from pytest_gpuenergy.support import InputError, OutputError
from pytest_gpuenergy.tuning import RawLog, Trial
from pytest_gpuenergy.workloads import Conv2d

WORKLOAD = Conv2d.of("tiny", 1, 4, 4, 1, 1, 1, 1, 1, 0)
TIMED = Trial(index=0, outcome="timed", time_ms=0.5, digest="abc", elapsed_s=1.0)
FAILED = Trial(index=0, outcome="timeout", message="It hangs.", digest="def", elapsed_s=2.0)


def open_raw(
    folder: Path,
    gpu: str = "NVIDIA H200",
    workload: Conv2d = WORKLOAD,
    limit_w: float | None = 700.0,
) -> RawLog:
    device = FakeDevice(time_by_digest)
    device.name, device.nvml = gpu, FakeNvml(limit_w)
    return RawLog(folder, workload, device, WORDS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a trial that ran and one that failed."""
    with open_raw(tmp_path / "raw") as raw:
        raw.add(recipe_of("a"), TIMED)
        raw.add(recipe_of("b"), FAILED)
    return tmp_path / "raw"


def test_trials_are_numbered_and_read_again(folder):
    with open_raw(folder) as raw:
        first, second = raw.trials
    assert first == TIMED
    assert (second.index, second.outcome, second.message) == (1, "timeout", "It hangs.")
    assert not second.good


def test_a_trial_is_on_disk_before_the_next_one_begins(tmp_path):
    with open_raw(tmp_path) as raw:
        raw.add(recipe_of("a"), TIMED)
        lines = (tmp_path / "trials.jsonl").read_text().splitlines()
        assert json.loads(lines[0])["time_ms"] == 0.5
        assert len((tmp_path / "words.txt").read_text().splitlines()) == 1


def test_what_becomes_known_later_is_kept(folder):
    with open_raw(folder) as raw:
        raw.amend(Trial(index=0, outcome="correctness", time_ms=0.5, message="1 element is wrong."))
    with open_raw(folder) as raw:
        assert [trial.outcome for trial in raw.trials] == ["correctness", "timeout"]
        assert not raw.trials[0].good


@pytest.mark.parametrize("name", ["words.txt", "trials.jsonl"])
def test_half_a_line_is_dropped(folder, name):
    with (folder / name).open("a") as stream:
        stream.write('[0, [[["GetSBlock"')
    with open_raw(folder) as raw:
        assert len(raw.trials) == 2
        raw.add(recipe_of("c"), TIMED)
    assert len(WORDS.read(folder / "words.txt")) == 3


def test_the_trial_in_flight_is_all_that_a_kill_loses(folder):
    lines = (folder / "trials.jsonl").read_text().splitlines(keepends=True)
    (folder / "trials.jsonl").write_text(lines[0])
    with open_raw(folder) as raw:
        assert len(raw.trials) == len(raw.recipes) == 1
        raw.add(recipe_of("c"), FAILED)
    kept = [json.loads(line)["ms"] for line in WORDS.read(folder / "words.txt")]
    assert kept == [0.5, None]


def test_lost_records_are_told(folder):
    (folder / "words.txt").unlink()
    with pytest.raises(InputError, match=r"has 0 trials and trials\.jsonl 2: restore them"):
        open_raw(folder)


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        "[]",
        "nonsense",
        '{"index": 7, "outcome": "timeout"}',
        '{"index": true, "outcome": "timeout"}',
        '{"index": 2, "outcome": "timeout", "colour": 1}',
        '{"index": 2, "outcome": "fine", "time_ms": 0.5}',
        '{"index": 2, "outcome": ["timed"], "time_ms": 0.5}',
        '{"index": 2, "outcome": "timed"}',
        '{"index": 2, "outcome": "timed", "time_ms": "fast"}',
        '{"index": 2, "outcome": "timed", "time_ms": -0.5}',
        '{"index": 2, "outcome": "timed", "time_ms": NaN}',
        '{"index": 2, "outcome": "timed", "time_ms": 0.5, "power_w": -1}',
        '{"index": 2, "outcome": "timed", "time_ms": 0.5, "energy_mj": false}',
        '{"index": 2, "outcome": "timed", "time_ms": 0.5, "digest": 7}',
        '{"index": 2, "outcome": null}',
    ],
)
def test_a_damaged_list_of_trials_is_told(folder, line):
    with (folder / "trials.jsonl").open("a") as stream:
        stream.write(line + "\n")
    with pytest.raises(InputError, match=r"Line 3 of .*trials\.jsonl cannot be used"):
        open_raw(folder)


def test_a_trial_that_drew_no_power_is_read_again(folder):
    with open_raw(folder) as raw:
        raw.amend(
            Trial(index=0, outcome="timed", time_ms=0.5, power_w=0.0, energy_mj=0.0, elapsed_s=0.0)
        )
    with open_raw(folder) as raw:
        assert raw.trials[0] == Trial(
            index=0, outcome="timed", time_ms=0.5, power_w=0.0, energy_mj=0.0, elapsed_s=0.0
        )


def test_a_search_on_another_gpu_is_refused(folder):
    with pytest.raises(InputError, match=r"contains another search .* name another folder"):
        open_raw(folder, gpu="NVIDIA A100")


def test_a_search_under_another_power_limit_is_refused(folder):
    with pytest.raises(InputError, match=r"tiny on NVIDIA H200 \(emulated\) under 300 W"):
        open_raw(folder, limit_w=300.0)


def test_a_search_at_another_clock_is_refused(folder):
    LeaseRecord(FakeDevice.uuid, 1, 1, sm_clock_mhz=1500).save()
    with pytest.raises(InputError, match=r"\(emulated\) under 700 W at 1500 MHz: name another"):
        open_raw(folder)


def test_a_search_of_another_shape_is_refused(folder):
    other = Conv2d.of("tiny", 1, 4, 4, 1, 1, 1, 1, 1, 1)
    with pytest.raises(InputError, match="contains another search"):
        open_raw(folder, workload=other)


def test_a_search_from_before_there_were_kinds_goes_on(folder):
    path = folder / "search.json"
    description = json.loads(path.read_text())
    for key in ("kind", "layout", "dtype"):
        del description["workload"][key]
    path.write_text(json.dumps(description))
    with open_raw(folder) as raw:
        assert len(raw.trials) == 2


def test_a_damaged_description_is_refused(folder):
    (folder / "search.json").write_text("{")
    with pytest.raises(InputError, match="name another folder"):
        open_raw(folder)


def test_a_trial_that_is_a_program_is_refused_with_its_line(folder):
    path = folder / "words.txt"
    ran, failed = path.read_text().splitlines(keepends=True)
    path.write_text(ran.replace('"a"', '"a();"') + failed)
    with pytest.raises(InputError, match=r"Line 1 of .* the word is a program"):
        open_raw(folder)
    path.write_text(ran + failed.replace('"b"', '"b();"'))  # which TVM is never given
    with open_raw(folder) as raw:
        assert len(raw.recipes) == 2
    with (folder / "trials.jsonl").open("a") as stream:
        stream.write('{"index": 1, "outcome": "timed", "time_ms": 1.0}\n')  # as if it had run
    with pytest.raises(InputError, match=r"Line 2 of .* the word is a program"):
        open_raw(folder)


def test_a_list_of_trials_that_is_huge_is_refused_unread(folder):
    with (folder / "trials.jsonl").open("r+b") as stream:
        stream.truncate(1 << 40)  # sparse: it takes no room
    with pytest.raises(InputError, match="larger than"):
        open_raw(folder)


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "raw").write_text("a file")
    with pytest.raises(InputError, match="cannot be written"):
        open_raw(tmp_path / "raw")


def test_a_disk_that_fills_up_is_told_and_the_search_goes_on_later(folder):
    prior = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (folder / "words.txt").stat().st_size
    with open_raw(folder) as raw:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, prior[1]))  # no file may grow beyond this
        try:
            with pytest.raises(OutputError, match=r"words\.txt cannot be written .* --resume"):
                raw.add(recipe_of("c"), TIMED)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, prior)
    with open_raw(folder) as raw:
        assert len(raw.trials) == 2
        raw.add(recipe_of("c"), TIMED)
    assert len(WORDS.read(folder / "words.txt")) == 3


def test_one_search_at_a_time_writes_to_a_folder(folder):
    refused = pytest.raises(InputError, match=r"Another process is searching in .*raw: wait for")
    with open_raw(folder), refused:
        open_raw(folder)
    with open_raw(folder) as raw:
        assert len(raw.trials) == 2


@pytest.mark.parametrize("kind", ["pipe", "link"])
@pytest.mark.parametrize("name", ["trials.jsonl", "words.txt"])
def test_results_go_into_files_of_the_folder_alone(tmp_path, name, kind):
    folder, elsewhere = tmp_path / "raw", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.write_text("")
    if kind == "pipe":
        os.mkfifo(folder / name)  # nobody reads: opening it would wait for ever
    else:
        (folder / name).symlink_to(elsewhere)
    with pytest.raises(InputError, match="cannot be"):
        open_raw(folder)
    assert elsewhere.read_text() == ""


def test_an_empty_description_is_written_again(folder):
    (folder / "search.json").write_text("")
    with open_raw(folder) as raw:
        assert len(raw.trials) == 2
    assert json.loads((folder / "search.json").read_text())["gpu"].startswith("NVIDIA H200")
