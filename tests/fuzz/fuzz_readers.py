"""What reads the files that others may have written or damaged, each with good files of its own."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import shutil
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from kernel_specs import SCALE, SOURCE
from profiler_traces import layer as trace_of_a_layer, write as write_trace
from recorded_profile import BLOOM

from pytest_gpuenergy.control import Change, LeaseRecord, kept_record, leftover
from pytest_gpuenergy.emulator import EmulatedDevice, EmulatedStateWarning, parse_faults
from pytest_gpuenergy.engine import read_job, write_job
from pytest_gpuenergy.kernels import (
    CudaProgram,
    Headers,
    Job,
    Kernel,
    Launch,
    LibraryCall,
    Origin,
    TritonKernel,
    load_kernel,
    read_kernel,
    write_kernel,
)
from pytest_gpuenergy.record import AnchorCheck
from pytest_gpuenergy.replay import (
    Batching,
    PowerCurve,
    argument_bytes,
    extract_kernels,
    rank_folders,
    read_calls,
    read_profile,
    read_schedule,
    step_workload,
    terminal,
    write_extraction,
    write_power,
)
from pytest_gpuenergy.report import (
    Report,
    RunFolder,
    json_document,
    load_legacy,
    load_report,
    markdown,
    tidy_csv,
    write_classic_csv,
)
from pytest_gpuenergy.search import RecordedSpace, read_spec, read_t4, spec_paths, workload_of
from pytest_gpuenergy.support import encode, read_unpacked
from pytest_gpuenergy.tuners import load_database, load_records
from pytest_gpuenergy.tuning import RecordFile, Trial, dump_records, read_trials
from pytest_gpuenergy.workloads import Contract, Scalar, Tensor

RAW = Path(__file__).parents[1] / "data/case7_raw"
SPACE = Tensor("w", (4,), "float32", "workspace")
CUDA = Kernel(
    "__global__ void f(float* y, int n) {}",
    (Launch("f", (2, 1, 1), (32, 1, 1), ("y", "n"), 16),),
    origin=Origin("search", 3, {"trials": 9}),
    workspaces=(SPACE,),
)
TRITON = TritonKernel(
    "import triton\n", "add", (4, 1, 1), ("x", "y", "n"), {"BLOCK": 64, "EVEN": True}, num_warps=8,
    workspaces=(SPACE,),
)  # fmt: skip
CALL = LibraryCall("torch.matmul", {"input": "a", "other": "b", "out": "c"}, {"allow_tf32": True})
PROGRAM = CudaProgram(
    "int x;", "f", ("x", "w"), (4, -3), Headers("L 1", "0" * 64, "/l"), workspaces=(SPACE,)
)
JOB_WORKLOAD = Contract(
    "scale",
    (Tensor("x", (8,), "float32", "input"), Tensor("y", (8,), "float32", "output")),
    lambda inputs: {"y": inputs["x"]},
    values=(Scalar("n", "int32", 8),),
)


@dataclass(frozen=True)
class Reader:
    """What is read from a folder that ``write`` has filled with good files."""

    write: Callable[[Path], object]
    read: Callable[[Path], object]


def seen(report: Report, folder: Path) -> None:
    """Look at a report in all ways that need no other program."""
    json_document(report)
    markdown(report)
    tidy_csv(report)
    write_classic_csv(report, folder / "csv")
    shutil.rmtree(folder / "csv", ignore_errors=True)


@contextlib.contextmanager
def states_in(folder: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setenv("GPUENERGY_STATE", str(folder))
        warnings.simplefilter("ignore", EmulatedStateWarning)
        yield


def card(folder: Path) -> None:
    """Use an emulated card whose state is in ``folder``, for a second."""
    with states_in(folder), EmulatedDevice() as device:
        nvml, handle = device.nvml, device.handle
        with contextlib.suppress(nvml.NVMLError):  # what a card may say
            nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
            device.clock.sleep_s(1.0)
            nvml.nvmlDeviceGetPowerUsage(handle)
            nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
            limit_mw = nvml.nvmlDeviceGetEnforcedPowerLimit(handle)
            nvml.nvmlDeviceSetPowerManagementLimit(handle, limit_mw)


def lease(folder: Path) -> None:
    with states_in(folder):
        for record in (leftover("GPU-1"), kept_record("GPU-1")):
            if record is not None and record.power_limit_mw is not None:
                record.power_limit_mw.ours  # noqa: B018 -- it is computed


def write_lease(folder: Path) -> None:
    with states_in(folder):
        LeaseRecord("GPU-1", 2**22 + 1, 5, Change(700_000, 700_000, 300_000), 1500).save()


def write_job_of(kernel: Kernel) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        write_job(folder, Job.of(kernel, JOB_WORKLOAD, seed=0, timeout_s=5.0), JOB_WORKLOAD)

    return write


def job(folder: Path) -> None:
    for path in sorted((folder / "jobs").glob("*.json")):
        stored = read_job(folder, path.stem)
        stored.inputs()
        stored.reference()


def write_database(folder: Path) -> None:
    for name in ("database_tuning_record.json", "database_workload.json"):
        content = read_unpacked(RAW / f"{name}.xz", "file", 1 << 30)
        (folder / name).write_bytes(b"".join(content.splitlines(keepends=True)[:3]))


def write_trials(folder: Path) -> None:
    trial = Trial(outcome="timed", time_ms=0.5, index=0, digest="0" * 64, elapsed_s=1.0)
    (folder / "trials.jsonl").write_bytes(encode(trial) + b"\n")


def write_kernel_list(folder: Path) -> None:
    line = {
        "kernel_name": "void gemm<float>(float*)",
        "operator": "aten::mm",
        "phase": "decode",
        "input_shapes": [[8, 16], [16, 8]],
        "dtypes": ["float", "float"],
        "grid": "[4, 2, 1]",
        "strides": "((16, 1), (8, 1))",
        "scalars": ["", ""],
        "block": [128, 1, 1],
        "calls": 24,
        "shared_memory": 4096,
        "registers": 96,
        "total_time_us": 12.5,
        "layer": 3,
    }
    copy = {"name": "Memcpy HtoD", "duration_ms": "0.5", "bytes": 64}
    text = "".join(json.dumps(one) + "\n" for one in (line, copy))
    (folder / "bloom_unique_kernels_compute.jsonl").write_text(text)


def write_power_curve(folder: Path) -> None:
    write_trace(folder / "trace.json", trace_of_a_layer(dur=300_000.0))
    write_power(PowerCurve([40.0 + 20_000 * n for n in range(15)], [300.0] * 15), folder)


def write_profile(folder: Path) -> None:
    shutil.copy(BLOOM / "profile.json", folder)
    lines = (BLOOM / "operator_calls.jsonl").read_text().splitlines(keepends=True)
    (folder / "operator_calls.jsonl").write_text("".join(lines[:2]))


def profile(folder: Path) -> None:
    """Read a profile, and what a replay computes from it before it measures anything."""
    found = read_profile(folder)
    rank_folders(folder)
    for step in found.steps(1):
        step_workload(found, step)
    for call in read_calls(folder):
        assert call.call_us >= 0
        assert float(argument_bytes(call.arguments)) >= 0


def write_schedules(folder: Path) -> None:
    (folder / "steps.csv").write_text("step,batch,tokens,count\nprefill,1,64,2\ndecode,2,64,9\n")
    requests = [{"arrival_s": 0.5, "prompt_tokens": 9, "new_tokens": 3}] * 3
    (folder / "trace.jsonl").write_text("".join(json.dumps(one) + "\n" for one in requests))


def schedules(folder: Path) -> None:
    """Read a list of steps and a trace of requests."""
    batching = Batching(max_batch=2, step_ms=1.0)
    for name, how in (("steps.csv", Batching()), ("trace.jsonl", batching)):
        assert read_schedule(folder / name, how).served


def extracted(folder: Path) -> None:
    found = extract_kernels(folder)
    list(terminal(found))
    write_extraction(found, folder / "out")
    shutil.rmtree(folder / "out")


def spec(folder: Path) -> None:
    """Read the kernel specs of a folder, and make their workloads as a search does."""
    for path in spec_paths(folder):
        found = read_spec(path)
        for sizes in found.sizes:
            workload_of(found, sizes, dict)


def write_spec_with_data(folder: Path) -> None:
    """A spec with a source beside it, and with everything that has a form of its own."""
    packed = base64.b64encode(zlib.compress(np.arange(6, dtype=np.float32).tobytes())).decode()
    tensors = [
        {"name": "x", "shape": ["N", 3], "strides": ["1", "N"]},
        {"name": "w", "shape": [2, 3], "data": packed},
        {"name": "c", "shape": [3], "dtype": "int32", "data": [0, 1, 2]},
        {"name": "i", "shape": ["N"], "dtype": "int64", "init": "randint", "low": 0, "high": 9},
        {"name": "f", "shape": ["ceil_div(N, 2)"], "init": "full", "value": 0.5},
        {"name": "y", "shape": ["N"], "role": "output", "init": "zeros"},
    ]
    arguments = ["x", "w", "c", "i", "f", "y", "by", "n"]
    launch = {**SCALE["launch"], "shared_bytes": "block_x * 4"}
    document = {**SCALE, "tensors": tensors, "arguments": arguments, "launch": launch}
    del document["source"]
    document |= {"file": "scale.cu", "tolerance": 1e-3, "bytes_moved": "8 * N"}
    (folder / "scale.json").write_text(json.dumps(document))
    (folder / "scale.cu").write_text(SOURCE)


def write_t4(folder: Path) -> None:
    results = [
        {
            "configuration": {"block": block, "unroll": unroll, "tiled": block > 32, "kind": "a"},
            "times": {"runtimes": [0.5, 0.25 * block], "compilation": 1.0},
            "invalidity": "correct" if block < 128 else "runtime",
            "correctness": 1,
            "measurements": [{"name": "time", "value": 0.5 * block, "unit": "ms"}],
            "objectives": ["time"],
        }
        for block in (32, 64, 128)
        for unroll in (1, 2.5)
    ]
    text = json.dumps({"schema_version": "1.0.0", "results": results})
    (folder / "space.json").write_text(text)
    (folder / "packed.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def t4(folder: Path) -> None:
    """Read recorded spaces, and walk around in them as a simulated search does."""
    for path in sorted(folder.iterdir()):
        space = RecordedSpace(read_t4(path))
        assert space.optimum > 0
        for state in space.states:
            space.actions(state)


def readers(report: Report, record_file: RecordFile, check: AnchorCheck) -> dict[str, Reader]:
    """All of them, by name."""

    def write_report(folder: Path) -> None:
        (folder / "report.json").write_text(json_document(report))

    def write_run(folder: Path) -> None:
        run = RunFolder.create(folder, report.run)
        for measurement in report.measurements:
            run.append(measurement)
        run.append(check, "check")

    def run(folder: Path) -> None:
        for path in sorted((folder / ".gpuenergy/runs").glob("*")):
            seen(load_report(path), folder)

    def plan(folder: Path) -> None:
        load_kernel(folder / "kernel.json").check_arguments({"y": 0}, {"n": 0})

    def write_legacy(folder: Path) -> None:
        outputs = folder / "case1" / "powercap3" / "output_kernel1.txt"
        outputs.parent.mkdir(parents=True)
        outputs.write_text(
            "Mean time per iteration: 0.5 ms\n"
            "GFLOP/s: 2000.250\n"
            "Mean energy per iteration: 100.000000000 mJ (0.100000000000 J)\n"
        )

    def write_faults(folder: Path) -> None:
        told = {"power_limit": "no_permission", "slower": [{"percent": 5, "after_s": 2}]}
        (folder / "faults").write_text(json.dumps(told))

    return {
        "report": Reader(
            write_report, lambda folder: seen(load_report(folder / "report.json"), folder)
        ),
        "run": Reader(write_run, run),
        "records": Reader(
            lambda folder: dump_records(record_file, folder / "records.json"),
            lambda folder: load_records(folder / "records.json"),
        ),
        "database": Reader(write_database, load_database),
        "trials": Reader(write_trials, lambda folder: read_trials(folder / "trials.jsonl")),
        "trace": Reader(
            lambda folder: write_trace(folder / "trace.json", trace_of_a_layer()), extract_kernels
        ),
        "profile": Reader(write_profile, profile),
        "schedule": Reader(write_schedules, schedules),
        "kernels": Reader(write_kernel_list, extracted),
        "power": Reader(write_power_curve, extracted),
        "plan": Reader(lambda folder: write_kernel(folder, CUDA), plan),
        "triton": Reader(lambda folder: write_kernel(folder, TRITON), read_kernel),
        "library": Reader(lambda folder: write_kernel(folder, CALL), read_kernel),
        "program": Reader(lambda folder: write_kernel(folder, PROGRAM), read_kernel),
        "job": Reader(write_job_of(CUDA), job),
        "spec": Reader(lambda folder: (folder / "scale.json").write_text(json.dumps(SCALE)), spec),
        "spec with data": Reader(write_spec_with_data, spec),
        "t4": Reader(write_t4, t4),
        "state": Reader(card, card),
        "lease": Reader(write_lease, lease),
        "faults": Reader(
            write_faults,
            lambda folder: [
                parse_faults(path.read_text(errors="replace")) for path in folder.glob("faults")
            ],
        ),
        "outputs": Reader(write_legacy, lambda folder: seen(load_legacy(folder), folder)),
    }
