"""Jobs that are written to a folder and read from nothing but that folder."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.engine import StoredJob, read_job, write_job
from pytest_gpuenergy.kernels import Job, Kernel, Launch
from pytest_gpuenergy.support import InputError, KernelFault
from pytest_gpuenergy.workloads import Contract, Scalar, Tensor

SIZE = 64
SOURCE = """
extern "C" __global__ void scale(const float* x, float* y, float a) {
  y[threadIdx.x] = a * x[threadIdx.x];
}
"""
KERNEL = Kernel(SOURCE, (Launch("scale", (1, 1, 1), (SIZE, 1, 1), ("x", "y", "a")),))
SCALE = Contract(
    "scale",
    (Tensor("x", (SIZE,), "float32", "input"), Tensor("y", (SIZE,), "float32", "output")),
    lambda inputs: {"y": 3 * inputs["x"]},
    values=(Scalar("a", "float32", 3.0),),
    flops=SIZE,
)
JOB = Job.of(KERNEL, SCALE, seed=7, cache="cold", timeout_s=9.0, apart=True)


def stored(folder: Path, job: Job = JOB) -> StoredJob:
    return read_job(folder, write_job(folder, job, SCALE))


def test_a_job_comes_back_with_its_inputs_and_its_reference(tmp_path):
    found = stored(tmp_path)
    assert found.job == JOB
    assert found.job.io.bounds == SCALE.io.bounds
    np.testing.assert_array_equal(found.inputs()["x"], SCALE.make_inputs(7)["x"])
    np.testing.assert_array_equal(
        found.reference()["y"], 3 * found.inputs()["x"].astype(np.float64)
    )


def test_a_job_survives_pickling():
    assert pickle.loads(pickle.dumps(JOB)) == JOB


def test_a_stored_job_runs_and_is_checked_without_its_workload(tmp_path):
    with EmulatedDevice() as device, stored(tmp_path).opened() as (arenas, check):
        device.run_once(JOB, arenas)
        check()
        x, y = (arenas[name].value() for name in ("x", "y"))
        np.testing.assert_array_equal(y, 3 * x)


def test_a_wrong_kernel_of_a_stored_job_is_found(tmp_path):
    wrong = Kernel(SOURCE.replace("a *", "2 *"), KERNEL.launches)
    found = stored(tmp_path, Job.of(wrong, SCALE))
    with EmulatedDevice() as device, found.opened() as (arenas, check):
        device.run_once(found.job, arenas)
        with pytest.raises(KernelFault, match=r"y .* wrong"):
            check()


def test_jobs_share_what_is_the_same(tmp_path):
    for cache in ("hot", "cold", "hot"):
        write_job(tmp_path, Job.of(KERNEL, SCALE, cache=cache), SCALE)
    assert len(list((tmp_path / "jobs").iterdir())) == 2
    assert len(list((tmp_path / "kernels").iterdir())) == 1
    assert len(list((tmp_path / "arrays").iterdir())) == 2


def changed(**values: Any) -> Callable[[dict[str, Any]], object]:
    return lambda content: content.update(values)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (changed(schema_version=2), "schema_version is 2"),
        (changed(cache="lukewarm"), "cache is 'lukewarm'"),
        (changed(timeout_s=-1), "timeout_s"),
        (lambda job: job.pop("io"), "io"),
        (lambda job: job["io"]["tensors"][0].update(dtype="O"), "has type 'O'"),
        (lambda job: job["io"]["tensors"][0].update(shape=[0]), "shape"),
        (lambda job: job["io"]["tensors"][0].update(name="y"), "share a name"),
        (lambda job: job["io"].update(bounds={}), "its outputs and bounds"),
    ],
)
def test_a_job_that_makes_no_sense_is_refused(tmp_path, change, words):
    name = write_job(tmp_path, JOB, SCALE)
    path = tmp_path / "jobs" / f"{name}.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=words):
        read_job(tmp_path, name)


def archive(**arrays: Any) -> bytes:
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    return content.getvalue()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"no archive", "cannot be used"),
        (archive(z=np.zeros(SIZE, np.float32)), "cannot be used"),
        (archive(x=np.zeros(SIZE, np.float16)), "does not have the shape and dtype"),
        (archive(x=np.zeros(1 << 20, np.float32)), "its tensors take at most"),
    ],
)
def test_arrays_that_are_not_the_tensors_are_refused(tmp_path, content, words):
    found = stored(tmp_path)
    found.inputs_path.write_bytes(content)
    with pytest.raises(InputError, match=words):
        found.inputs()


def test_names_in_a_job_do_not_lead_out_of_its_folder(tmp_path):
    folder = tmp_path / "in"
    name = write_job(folder, JOB, SCALE)
    path = folder / "jobs" / f"{name}.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "inputs": f"../../{content['inputs']}"}))
    assert read_job(folder, name).inputs_path == folder / "arrays" / content["inputs"]
