"""A whole search with TVM on a device without hardware, failures and interruptions included."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tuning_child import Log, Plan

from pytest_gpuenergy.errors import DeviceError, InputError
from pytest_gpuenergy.kernels.database import load_database
from pytest_gpuenergy.kernels.records import RecordFile, load_records
from pytest_gpuenergy.tuning.lowering import KernelStore
from pytest_gpuenergy.tuning.tuner import TuneResult
from pytest_gpuenergy.worker import Worker

Tune = Callable[..., "Search"]


@pytest.fixture(scope="module")
def child() -> Iterator[Worker]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        worker = Worker("tuning_child:Child")
        yield worker
        worker.close()


@dataclass(frozen=True)
class Search:
    folder: Path
    log: Log

    @property
    def result(self) -> TuneResult:
        assert self.log.result is not None
        return self.log.result

    @property
    def raw(self) -> Path:
        return self.folder / "case7" / "raw"

    @property
    def journal(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in (self.raw / "trials.jsonl").read_text().splitlines()]

    @property
    def records(self) -> RecordFile:
        return load_records(self.result.path)


@pytest.fixture(scope="module")
def tune(child: Worker) -> Tune:
    def call(folder: Path, trials: int, **changes: object) -> Search:
        plan = Plan(folder, trials, **changes)  # type: ignore[arg-type]
        return Search(folder, child.call("tune", plan, timeout_s=240))

    return call


@pytest.fixture(scope="module")
def searched(tune: Tune, tmp_path_factory: pytest.TempPathFactory) -> Search:
    """Six trials, of which the third failed; four kernels kept."""
    return tune(tmp_path_factory.mktemp("searched"), 6, failing=[2])


@pytest.fixture
def copy(searched: Search, tmp_path: Path) -> Path:
    """A folder with that search, to continue it."""
    shutil.copytree(searched.folder, tmp_path / "copy")
    return tmp_path / "copy"


def test_every_trial_is_kept_with_its_outcome(searched: Search) -> None:
    assert (searched.result.tried, searched.result.valid) == (6, 5)
    assert [line["outcome"] for line in searched.journal].count("timed") == 5
    third = searched.journal[2]
    assert (third["outcome"], third["time_ms"]) == ("timeout", None)
    assert third["message"] == "The kernel did not finish within 20 s."
    failed = [record.failed for record in load_database(searched.raw).records]
    assert failed == [False, False, True, False, False, False]


def test_the_records_are_ranked_by_time(searched: Search) -> None:
    file = searched.records
    times = [record.run_secs[0] for record in file.records]
    assert times == sorted(times)
    assert (len(times), file.trials_total, file.trials_valid) == (4, 6, 5)
    assert 1e3 * times[0] == pytest.approx(searched.result.best_ms)


def test_a_record_gives_the_very_kernel_that_was_timed(searched: Search) -> None:
    timed = {line["digest"]: line["time_ms"] for line in searched.journal}
    file = searched.records
    with KernelStore() as store:
        for record in file.records:
            digest = store.kernel(file, record.rank).digest
            assert timed[digest] == pytest.approx(1e3 * record.run_secs[0])


def test_progress_is_told_in_plain_lines(searched: Search) -> None:
    told = searched.log.told
    assert any(line.startswith("case7: 6 of 6 trials, best 0.") for line in told)
    assert any("failed: 1 timeout" in line for line in told)
    assert all("\r" not in line and "\n" not in line for line in told)


@pytest.mark.usefixtures("searched")
def test_tensor_intrinsics_are_not_imported(child: Worker) -> None:
    assert child.call("imported_intrinsics", timeout_s=60) == []


def test_representatives_can_be_chosen_again_without_a_trial(
    tune: Tune, copy: Path, searched: Search
) -> None:
    again = tune(copy, 0)
    assert again.log.timed == []
    assert again.records == searched.records


def test_a_wrong_kernel_is_replaced(tune: Tune, copy: Path) -> None:
    search = tune(copy, 0, keep=2, wrong=[0])
    assert len(search.log.verified) == 3
    assert search.result.kept == 2
    (rejected,) = search.result.rejected
    assert rejected.startswith(search.log.verified[0][:12])
    assert "correctness: 1 of 100 elements" in rejected
    file = search.records
    with KernelStore() as store:
        kept = {store.kernel(file, rank).digest for rank in file.ranks}
    assert kept == set(search.log.verified[1:])


def test_too_few_kernels_are_told(tune: Tune, copy: Path) -> None:
    search = tune(copy, 0, keep=25)
    assert search.result.kept == 5
    assert "case7: only 5 of 25 kernels to keep" in search.log.told


def test_no_right_kernel_is_an_error(tune: Tune, copy: Path) -> None:
    with pytest.raises(InputError, match=r"No kernel of case7 is right \(5 checked\)"):
        tune(copy, 0, wrong=range(5))


def test_figures_are_written_with_the_records(tune: Tune, copy: Path) -> None:
    (figures,) = tune(copy, 0, keep=1, figures=True).records.recorded(1)
    assert figures.energy_mj == pytest.approx(300.0 * figures.time_ms)
    assert figures.gpu == "NVIDIA H200 (emulated)"


def test_a_folder_of_another_gpu_is_refused(tune: Tune, copy: Path) -> None:
    with pytest.raises(InputError, match="holds another search"):
        tune(copy, 0, gpu="NVIDIA A100")


def test_a_damaged_description_of_the_search_is_refused(tune: Tune, copy: Path) -> None:
    (copy / "case7" / "raw" / "search.json").write_text("{")
    with pytest.raises(InputError, match="name another folder"):
        tune(copy, 0)


def test_a_killed_search_goes_on_after_the_last_whole_line(tune: Tune, copy: Path) -> None:
    with (copy / "case7" / "raw" / "database_tuning_record.json").open("a") as stream:
        stream.write("[0, [[[")
    search = tune(copy, 2)
    assert search.result.tried == 8
    assert [line["index"] for line in search.journal] == list(range(8))


def test_nothing_that_runs_is_an_error(tune: Tune, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="None of the 2 trials of case7 ran"):
        tune(tmp_path, 2, failing=range(2))


def test_a_stopped_search_keeps_what_it_tried(tune: Tune, tmp_path: Path) -> None:
    search = tune(tmp_path, 4, stop_at=1)
    assert search.log.interrupted
    assert len(search.log.timed) == 2
    assert len(search.journal) == 2
    assert len(load_database(search.raw).records) == 2
    assert any("what was tried is kept" in line for line in search.log.told)


def test_a_lost_device_is_not_taken_for_a_bad_kernel(tune: Tune, tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"The GPU is lost\."):
        tune(tmp_path, 2, lost_at=1)


def test_two_launches_share_a_workspace(child: Worker) -> None:
    kernel = child.call("lower_two_stages", timeout_s=60)
    (space,) = kernel.workspaces
    assert (space.shape, space.dtype, space.role) == ((1024,), "float32", "workspace")
    first, second = kernel.launches
    assert set(first.arguments) == {space.name, "input"}
    assert set(second.arguments) == {space.name, "result"}
    assert first.entry != second.entry
    assert (first.grid, first.block) == ((8, 1, 1), (128, 1, 1))


def test_dynamic_shared_memory_reaches_the_launch(child: Worker) -> None:
    (launch,) = child.call("lower_shared", timeout_s=60).launches
    assert launch.shared_bytes == 128 * 4
    assert sorted(launch.arguments) == ["input", "result"]
