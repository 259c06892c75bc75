"""The best kernel of a CUTLASS profiler, which a script stands for."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.kernels import CudaProgram
from pytest_gpuenergy.support import InputError, UnavailableError
from pytest_gpuenergy.tuners import (
    CONTENDERS,
    CUTLASS_PROFILER,
    ContenderSetup,
    fastest_verified,
    profiled_kernel,
    profiler_options,
)
from pytest_gpuenergy.tuners.gemm import cutlass_profiler as profiler_module
from pytest_gpuenergy.workloads import Gemm

PROFILER = """#!{python}
import os, sys
from pathlib import Path
Path("{folder}/calls").open("a").write(os.environ["CUDA_VISIBLE_DEVICES"] + "\\n")
(output,) = [word for word in sys.argv if word.startswith("--output=")]
Path(output.removeprefix("--output=").removesuffix(".csv") + ".gemm.csv").write_text(
    "Problem,Provider,OperationKind,Operation,Disposition,Status,m,Runtime,GFLOPs\\n"
    "1,CUTLASS,gemm,slow,passed,success,8,0.5,1\\n"
    "1,CUTLASS,gemm,wrong,incorrect,success,8,0.1,1\\n"
    "1,CUTLASS,gemm,unchecked,not_verified,success,8,0.1,1\\n"
    "1,CUTLASS,gemm,best,passed,success,8,0.25,1\\n"
)
"""
GEMM = Gemm("g", 512, 256, 640, "nt", "tf32")
COLUMNS = ("Operation", "Disposition", "Runtime")


@pytest.fixture
def profiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUENERGY_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "cutlass_profiler"
    put(path, PROFILER)
    return path


def put(path: Path, text: str) -> None:
    path.write_text(text.replace("{python}", sys.executable).replace("{folder}", str(path.parent)))
    path.chmod(0o755)


def test_the_fastest_that_it_verified_is_remembered(profiler):
    assert [profiled_kernel(profiler, GEMM, "GPU-1") for _ in range(2)] == ["best", "best"]
    assert (profiler.parent / "calls").read_text() == "GPU-1\n"
    profiled_kernel(profiler, GEMM, "GPU-2")
    assert (profiler.parent / "calls").read_text() == "GPU-1\nGPU-2\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be used: No such file"),
        ("", "cannot be run: Exec format error"),
        (
            "#!/bin/sh\necho 'no device'; exit 3\n",
            "writes no table; it exits with 3 and says 'no d",
        ),
    ],
)
def test_a_profiler_that_does_not_work_is_told(profiler, text, words):
    if text is None:
        profiler.unlink()
    else:
        put(profiler, text)
    with pytest.raises(InputError, match=words):
        profiled_kernel(profiler, GEMM, "GPU-1")


def test_a_profiler_that_does_not_end_is_ended(profiler, monkeypatch):
    put(profiler, "#!/bin/sh\nexec sleep 1000\n")
    monkeypatch.setattr(profiler_module, "_TIMEOUT_S", 0.1)
    with pytest.raises(InputError, match="did not end within 0 s: build it with fewer"):
        profiled_kernel(profiler, GEMM, "GPU-1")


def test_a_table_without_a_verified_kernel_is_not_remembered(profiler):
    put(profiler, PROFILER.replace("passed", "not_run"))
    for _ in range(2):
        with pytest.raises(UnavailableError, match="has no kernel for g that it could verify"):
            profiled_kernel(profiler, GEMM, "GPU-1")
    assert (profiler.parent / "calls").read_text() == "GPU-1\n" * 2


def bench_of(profiler: Path, **more: Any) -> ContenderSetup:
    """As much of a bench on an H200 as is asked; its headers are those of 4.2."""
    gpu: Any = SimpleNamespace(
        **{"emulated": False, "uuid": "GPU-1", "architecture": "sm_90", "handle": None, **more},
        nvml=SimpleNamespace(nvmlDeviceGetNumGpuCores=lambda _: 132 * 128),
    )
    headers = profiler.parent / "include" / "cutlass"
    headers.mkdir(parents=True, exist_ok=True)
    (headers / "version.h").write_text("#define CUTLASS_MAJOR 4\n#define CUTLASS_MINOR 2\n")
    store = cast("Any", None)
    return ContenderSetup(
        gpu, Path("none"), store, cutlass=headers.parent, cutlass_profiler=profiler
    )


def test_its_best_kernel_is_built_from_its_name(profiler):
    name = "cutlass_tensorop_s1688tf32gemm_256x64_16x4_nt_align4"
    put(profiler, PROFILER.replace("best", name))
    kernel = CONTENDERS[CUTLASS_PROFILER](GEMM, bench_of(profiler, refusal=lambda _: None))
    assert kernel.label == name
    assert kernel.origin.details == {"configuration": name, "split": 1, "library": "CUTLASS 4.2.0"}
    assert isinstance(kernel, CudaProgram)
    assert kernel.numbers == (512, 256, 640, 512, 256, 256, 1)


@pytest.mark.parametrize(
    ("name", "more", "words"),
    [
        ("cutlass_wmma_sgemm", {}, "cutlass_wmma_sgemm cannot be built here for g"),
        ("\\33[1mgemm", {}, r"^ \[1mgemm cannot be built here for g"),
        (None, {"refusal": lambda _: "There is no nvcc."}, "There is no nvcc"),
        (None, {"emulated": True}, "needs a real GPU, and --cutlass-profiler"),
    ],
)
def test_a_kernel_that_cannot_be_built_is_told(profiler, name, more, words):
    known = "cutlass_tensorop_s1688tf32gemm_256x64_16x4_nt_align4"
    put(profiler, PROFILER.replace("best", name or known))
    with pytest.raises(UnavailableError, match=words):
        CONTENDERS[CUTLASS_PROFILER](GEMM, bench_of(profiler, **more))


def test_it_is_asked_for_the_transposed_product():
    options = profiler_options(GEMM)
    expected = [
        "--m=256",
        "--n=512",
        "--k=640",
        "--A=f32:column,tf32:column",
        "--B=f32:row,tf32:row",
    ]
    assert options[1:6] == expected
    assert "--B=bf16:column" in profiler_options(Gemm("g", 8, 8, 8, "nn", "bfloat16"))
    linear = profiler_options(Gemm("g", 8, 8, 8, "tn", "bfloat16"))
    assert {"--A=bf16:row", "--B=bf16:column"} <= {*linear}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "c"]),
            st.sampled_from(["passed", "incorrect", "not_run"]),
            st.one_of(st.floats(), st.text()),
        )
    )
)
def test_no_table_is_misunderstood(rows):
    table = io.StringIO()
    csv.writer(table).writerows([COLUMNS, *rows])
    times = {}
    for name, disposition, runtime in rows:
        try:
            time_ms = float(str(runtime))
        except ValueError:
            continue
        if disposition == "passed" and 0 < time_ms < times.get(name, float("inf")):
            times[name] = time_ms
    if not times:
        with pytest.raises(UnavailableError, match="no kernel for g that it could verify"):
            fastest_verified(table.getvalue(), GEMM)
    else:
        assert times[fastest_verified(table.getvalue(), GEMM)] == min(times.values())


@given(st.text())
def test_other_text_has_no_kernel(text):
    with pytest.raises(UnavailableError):
        fastest_verified(text, GEMM)
