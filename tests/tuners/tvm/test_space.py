"""A whole search with TVM on a device without hardware."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event

import pytest
from tuning_fakes import FakeDevice, time_by_digest

from pytest_gpuenergy.kernels import Kernel
from pytest_gpuenergy.support import InputError, KernelFault
from pytest_gpuenergy.tuners import (
    KernelStore,
    SearchSettings,
    TvmSpace,
    load_database,
    load_records,
    search_ms,
)
from pytest_gpuenergy.tuning import Trial, Tuner, TuneResult, TuneSettings, TuningGpus, read_trials
from pytest_gpuenergy.workloads import Workload, parse_shape

pytestmark = pytest.mark.tvm

TINY = parse_shape("tiny=1,4,4,4,4,1,1,1,0")
Tune = Callable[..., TuneResult]


@pytest.fixture(scope="module")
def tune(store: KernelStore) -> Tune:
    """tune(folder, trials): search at random; the timings in ``failing`` fail."""

    def go(
        folder: Path,
        trials: int,
        *,
        failing: Sequence[int] = (),
        workload: Workload = TINY,
    ) -> TuneResult:
        def time_ms(kernel: Kernel) -> float:
            if len(device.timed) - 1 in failing:
                raise KernelFault("timeout", "The kernel did not finish within 20 s.")
            return time_by_digest(kernel)

        device = FakeDevice(time_ms)
        settings = SearchSettings(0, 1, "replay-trace", "gemm", batch=2)
        tuner = Tuner(
            gpus=TuningGpus((device,), (lambda *_, **__: None,)),
            make_space=lambda one: TvmSpace(one, device, store, settings),
            folder=folder,
            settings=TuneSettings(trials, keep=2, energy=False, resume=True),
            tell=lambda _: None,
            live=None,
            stop=Event(),
        )
        (result,) = tuner.tune([workload])
        return result

    return go


@pytest.fixture(scope="module")
def searched(tune: Tune, tmp_path_factory: pytest.TempPathFactory) -> TuneResult:
    """Four trials, of which the third failed; two kernels kept."""
    return tune(tmp_path_factory.mktemp("searched"), 4, failing=[2])


def raw(result: TuneResult) -> Path:
    return result.path.parent / "tiny" / "raw"


def trials(result: TuneResult) -> list[Trial]:
    return read_trials(raw(result) / "trials.jsonl")


def test_the_raw_results_are_metaschedules_own_database(searched):
    database = load_database(raw(searched))
    assert [record.failed for record in database.records] == [i == 2 for i in range(4)]
    times = [record.time_ms for record in database.valid]
    assert times == pytest.approx([trial.time_ms for trial in trials(searched) if trial.good])
    assert len(database.workloads) == 1


def test_a_trial_found_wrong_later_has_failed_for_who_reads_the_database(searched, tmp_path):
    for path in raw(searched).iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    with (tmp_path / "trials.jsonl").open("a") as stream:
        stream.write('{"index": 0, "outcome": "correctness", "time_ms": 0.5}\n')
    assert [record.failed for record in load_database(tmp_path).records][:2] == [True, False]


def test_a_record_gives_the_very_kernel_that_was_timed(searched, store):
    timed = {trial.digest: trial.time_ms for trial in trials(searched)}
    file = load_records(searched.path)
    assert len(file.records) == 2
    for rank in file.ranks:
        digest = store.kernel(file, rank).digest
        assert timed[digest] == pytest.approx(search_ms(file, rank))


def test_the_record_file_names_tvm_and_its_target(searched):
    toolchain = load_records(searched.path).toolchain
    assert toolchain["tvm"].startswith("0.27.")
    assert toolchain["target"]["arch"] == "sm_90"
    assert json.loads(searched.path.read_text())["tuner"] == "tvm-metaschedule"


def test_the_same_seed_finds_the_same(tune, tmp_path, searched):
    again = tune(tmp_path, 4, failing=[2])
    assert [one.digest for one in trials(again)] == [one.digest for one in trials(searched)]
    assert load_records(again.path).records == load_records(searched.path).records


def test_a_search_that_goes_on_repeats_no_schedule(tune, tmp_path, searched):
    folder = tmp_path / "tiny" / "raw"
    folder.mkdir(parents=True)
    for path in raw(searched).iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    result = tune(tmp_path, 6)
    assert result.tried == 6
    assert len({record.trace_text for record in load_database(folder).records}) == 6


@pytest.mark.parametrize(
    "shape", ["fc=1,1,1,16,8,1,1,1,0", "grouped=1,8,8,8,8,3,3,1,1,1,2"], ids=["fc", "grouped"]
)
def test_a_space_without_schedules_is_an_error(tune, tmp_path, shape):
    workload = parse_shape(shape)
    with pytest.raises(InputError, match=f"{workload.name} has no schedules as a matrix product"):
        tune(tmp_path, 2, workload=workload)
    assert list(tmp_path.iterdir()) == []
