"""From records to kernels: identical text each time, from the disk without TVM, clear errors."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from pytest_gpuenergy.support import InputError, KernelFault, cache_dir
from pytest_gpuenergy.tuners import KernelStore
from pytest_gpuenergy.tuners.tvm import kernel_store
from pytest_gpuenergy.tuning import Measured, Record, RecordFile
from pytest_gpuenergy.workloads import CASES

pytestmark = pytest.mark.tvm


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUENERGY_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def no_tvm(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)


@pytest.fixture
def one_process(store: KernelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """New stores lower in the process of the session's."""
    lent = SimpleNamespace(call=store._workers.call, close=lambda: None)
    monkeypatch.setattr(kernel_store, "WorkerPool", lambda *_, **__: lent)


def with_text(file: RecordFile, text: str) -> RecordFile:
    return replace(file, records=(Record(1, "fastest", text), *file.records[1:]))


def changed(file: RecordFile, part: int, value: object) -> RecordFile:
    content = json.loads(file.records[0].recipe)
    content[part] = value
    return with_text(file, json.dumps(content))


def test_tvm_compiles_nothing_where_it_could(child, store, record_file):
    record = record_file.records[0].recipe
    kernel = child.call("lower_beside_a_cuda_runtime", record_file.workload, record, timeout_s=60)
    assert kernel.source == store.kernel(record_file, 1).source


def test_a_record_becomes_a_kernel_of_the_workloads_tensors(store, record_file):
    kernel = store.kernel(record_file, 1)
    (launch,) = kernel.launches
    assert launch.entry == "main_kernel"
    assert sorted(launch.arguments) == ["data", "output", "weight"]
    # The order is that of the entry's parameters, which TVM sorts by its own buffer names.
    declaration = kernel.source[kernel.source.index("__launch_bounds__") :].split(";")[0]
    assert f"({launch.threads})" in declaration
    parameters = {"conv2d_nchw": "output", "data": "data", "weight": "weight"}
    places = {given: declaration.index(f"{name}_ptr") for name, given in parameters.items()}
    assert sorted(places, key=places.__getitem__) == list(launch.arguments)


def test_the_same_record_gives_the_same_text_in_another_process(store, record_file):
    first, before = store.kernels(record_file, [1, 3]), set(sys.modules)
    with KernelStore() as another:
        second = another.kernels(record_file, [3, 1])
    assert "tvm" not in set(sys.modules) - before
    assert [k.digest for k in first] == [k.digest for k in reversed(second)]
    assert first[0].digest != first[1].digest


def test_the_origin_tells_rank_band_and_tuning(store, record_file):
    origin = store.kernel(record_file, 2).origin
    assert (origin.kind, origin.rank) == ("tvm-metaschedule", 2)
    assert origin.details["band"] == "p10"
    assert origin.details["trials"] == record_file.trials_total
    assert origin.details["gpu"] == "Test GPU"


def test_measured_figures_reach_the_kernel(store, record_file):
    file = record_file.with_measured({1: Measured(0.02, 410.0, 8.2, 700.0)})
    (figures,) = store.kernel(file, 1).recorded
    assert store.kernel(record_file, 1).recorded == ()
    assert (figures.gpu, figures.energy_mj) == ("Test GPU", 8.2)


@pytest.mark.usefixtures("one_process")
def test_a_kernel_from_the_disk_needs_neither_tvm_nor_a_process(record_file, request, monkeypatch):
    with KernelStore() as store:
        made = store.kernel(record_file, 1)
    request.getfixturevalue("no_tvm")
    monkeypatch.setattr(kernel_store, "WorkerPool", Mock())
    with KernelStore() as store:
        assert store.kernel(record_file, 1) == made


@pytest.mark.usefixtures("one_process")
def test_a_damaged_entry_is_made_again(record_file):
    with KernelStore() as store:
        made = store.kernel(record_file, 1)
        (path,) = cache_dir("lowered").iterdir()
        content = json.loads(path.read_text())
        for damage in ("", "{}", "[]", json.dumps({**content, "source": "changed"})):
            path.write_text(damage)
            assert store.kernel(record_file, 1) == made
    assert json.loads(path.read_text()) == content


@pytest.mark.usefixtures("one_process")
def test_an_entry_of_another_tvm_is_not_used(record_file, monkeypatch):
    with KernelStore() as store:
        store.kernel(record_file, 1)
    true_version = metadata.version

    def newer(name: str) -> str:
        return "0.27.99" if name == "apache-tvm" else true_version(name)

    monkeypatch.setattr(metadata, "version", newer)
    with KernelStore() as store:
        store.kernel(record_file, 1)
    assert len(list(cache_dir("lowered").iterdir())) == 2


@pytest.mark.usefixtures("no_tvm")
def test_missing_tvm_is_told_with_what_to_install(record_file):
    with (
        KernelStore() as store,
        pytest.raises(InputError, match=r"pip install 'pytest-gpuenergy\[tvm\]'"),
    ):
        store.kernel(record_file, 1)


def test_a_record_of_other_tensors_is_refused(store, record_file):
    file = replace(record_file, workload=CASES["case1"])
    with pytest.raises(KernelFault, match=r"for other tensors than case1's") as fault:
        store.kernel(file, 1)
    assert fault.value.outcome == "compile"


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        (
            0,
            [[["Nonsense", [], [], []]], []],
            "instruction 0 of the trace is of the kind",
        ),
        (0, [[["GetSBlock", [], ["absent", "main"], ["b0"]]], []], "does not apply"),
        (0, [[], []], "does not give a CUDA kernel"),
        (2, "llvm", "the target is 'llvm'"),
        (2, {"kind": "llvm"}, "the target has 'llvm' as 'kind'"),
        (2, {}, "TVM has no such target"),
    ],
)
def test_a_record_that_cannot_be_lowered_is_told(store, record_file, part, value, message):
    with pytest.raises(KernelFault, match=message) as fault:
        store.kernel(changed(record_file, part, value), 1)
    assert fault.value.outcome == "compile"
    assert "case7 kernel 1" in str(fault.value)
    assert "\n" not in str(fault.value)


def test_a_tvm_that_crashes_is_told_with_its_versions(record_file, monkeypatch, tmp_path):
    crashing = tmp_path / "tvm" / "__init__.py"
    crashing.parent.mkdir()
    crashing.write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with KernelStore() as store, pytest.raises(InputError) as error:
        store.kernel(record_file, 1)
    assert "SIGSEGV" in str(error.value)
    assert "apache-tvm-ffi 0.1.15 is known to crash" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_database_record_takes_the_names_of_the_workload(store, database):
    record = database.valid[0]
    named = store.database_kernel(database, record, CASES["case7"])
    assert store.database_kernel(database, record, CASES["case7"]) == named
    assert set(named.launches[0].arguments) == {"data", "weight", "output"}
    assert named.origin.details["line"] == record.line


def test_a_database_record_without_a_workload_keeps_its_names(store, database):
    kernel = store.database_kernel(database, database.valid[0])
    assert set(kernel.launches[0].arguments) == {"data", "weight", "conv2d_nchw"}


def test_the_stored_workload_gives_the_same_kernel_as_ours(store, database, record_file):
    record = next(r for r in database.valid if r.text == record_file.records[0].recipe)
    from_database = store.database_kernel(database, record, CASES["case7"])
    assert from_database == store.kernel(record_file, 1)


def test_a_database_record_of_another_workload_is_refused(store, database):
    record = database.valid[0]
    store.database_kernel(database, record, CASES["case7"])
    with pytest.raises(KernelFault, match="other shapes"):
        store.database_kernel(database, record, CASES["case6"])


def test_a_failed_trial_has_no_kernel(database):
    failed = next(record for record in database.records if record.failed)
    with KernelStore() as store, pytest.raises(InputError, match="failed and has no kernel"):
        store.database_kernel(database, failed)


def test_a_database_without_workloads_has_no_kernels(database):
    bare = replace(database, workloads=())
    with KernelStore() as store, pytest.raises(InputError, match=r"put database_workload\.json"):
        store.database_kernel(bare, bare.valid[0])


def test_a_stored_workload_that_cannot_be_read_is_told(store, database):
    damaged = replace(database, workloads=('["1","AAAA"]',))
    with pytest.raises(KernelFault, match="its module is not complete"):
        store.database_kernel(damaged, damaged.valid[0])


def test_two_launches_share_a_workspace(child):
    kernel = child.call("lower_two_stages", timeout_s=60)
    (space,) = kernel.workspaces
    assert (space.shape, space.dtype, space.role) == ((1024,), "float32", "workspace")
    first, second = kernel.launches
    assert set(first.arguments) == {space.name, "input"}
    assert set(second.arguments) == {space.name, "result"}
    assert first.entry != second.entry
    assert (first.grid, first.block) == ((8, 1, 1), (128, 1, 1))


def test_dynamic_shared_memory_reaches_the_launch(child):
    (launch,) = child.call("lower_shared", timeout_s=60).launches
    assert launch.shared_bytes == 128 * 4
    assert sorted(launch.arguments) == ["input", "result"]
