"""On the emulated GPU, no gain is claimed for kernels with which its model was not compared."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kernel_specs import optimize, state_of, write

from pytest_gpuenergy.devices import Work
from pytest_gpuenergy.emulator import Traffic, beyond_comparison
from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.search import read_searches, search_values

WORDS = "the emulated GPU's model was not compared with kernels of this kind: no gain proven"
H200 = "NVIDIA H200"
TILED = """
// C = A B, by expf( in a comment
#define TILE 16
__device__ float at(const float* a, int i) { return a[i]; }
extern "C" __global__ void __launch_bounds__(256) k(const float* __restrict__ a, float* c) {
  __shared__ float tile[TILE];
  tile[threadIdx.x % TILE] = at(a, threadIdx.x);
  __syncthreads();
  for (int i = 0; i < TILE; ++i) { c[threadIdx.x] += tile[i] * a[i]; }
}
"""
TRAFFIC = Traffic(
    global_read_bytes=40_000.0,
    global_loads=320.0,
    global_stores=32.0,
    global_sectors=1700.0,
    shared_accesses=500.0,
    shared_wavefronts=600.0,
)
WORK = Work(100_000_000, 4_000_000)


def difference(source: str = TILED, **changes: Any) -> str | None:
    kernel = Kernel(source, (Launch("k", (400, 1, 1), (256, 1, 1), ("a", "c")),))
    told: dict[str, Any] = {
        "kernel": kernel,
        "dtypes": ["float32", "float32"],
        "work": WORK,
        "traffic": [TRAFFIC],
        "gpu": H200,
    }
    return beyond_comparison(**(told | changes))


def test_a_product_by_tiles_is_of_a_kind_that_was_compared():
    assert difference() is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gpu": "NVIDIA H100 80GB HBM3"}, "this is a NVIDIA H100 80GB HBM3"),
        ({"dtypes": ["float32", "float16"]}, "it has tensors of float16"),
        ({"dtypes": ["int32"]}, "it has tensors of int32"),
        ({"cache": "cold"}, "its inputs come from the device memory"),
        ({"work": None}, "its workload tells no number of operations and bytes"),
        ({"work": Work(0, 100)}, "its workload tells no number of operations and bytes"),
        ({"work": Work(4_000_000, 4_000_000)}, "it has 1 operations for each byte of its tensors"),
        ({"work": Work(100_000_000_000, 4_000_000)}, "operations for each byte of its tensors"),
        ({"source": TILED.replace("tile[i] * a[i]", "expf(a[i])")}, "it calls expf"),
        ({"source": TILED.replace("c[threadIdx.x] +=", "atomicAdd(c,")}, "it calls atomicAdd"),
        ({"source": TILED.replace("__syncthreads", "__syncwarp")}, "it calls __syncwarp"),
        ({"source": TILED.replace("tile[i] * a[i]", "(double)a[i]")}, "it uses double"),
        ({"source": TILED.replace("__syncthreads()", 'asm volatile("")')}, "it uses asm"),
        ({"source": "#define F(x) __expf(x)\n" + TILED.replace("at(a, th", "F(a[th")}, "calls F"),
        (
            {"traffic": [Traffic(**{**vars(TRAFFIC), "global_sectors": 700.0})]},
            "it has 1.99 sectors",
        ),
        ({"traffic": [Traffic(**{**vars(TRAFFIC), "shared_wavefronts": 16_000.0})]}, "wavefronts"),
    ],
)
def test_what_was_not_compared_is_told(changes, words):
    assert words in str(difference(**changes))


@pytest.mark.slow
@pytest.mark.usefixtures("without_proof")
def test_every_output_says_that_no_gain_is_claimed(tmp_path, capsys):
    spec, modelled = write(tmp_path), tmp_path / "out"
    assert optimize(spec, modelled, "--objective", "edp", "--budget-builds", "2") == 0
    printed = capsys.readouterr().out
    assert WORDS in printed
    assert "the baseline is kept" in printed
    assert "EDP x" not in printed
    state = state_of(modelled)
    assert state["incumbent"] == state["nodes"][0]["id"]
    [gain] = state["gains"]
    assert (gain["unclaimed"], gain["accepted"], gain["ratios"]) == (True, False, {})
    folder = modelled / "kernels/_scale"
    assert (folder / "best").resolve() == folder / "baseline"
    assert WORDS in (folder / "trace.md").read_text()
    summary = json.loads((modelled / "summary.json").read_text())
    assert summary["improved"] == 0
    assert WORDS in summary["kernels"][0]["unclaimed"]
    assert "no gain proven" in (modelled / "summary.md").read_text()
    [page] = map(search_values, read_searches(modelled))
    assert page["gains"][0]["unclaimed"]
    assert optimize(spec, modelled, "--objective", "edp", "--resume", "--budget-builds", "2") == 0
    assert WORDS in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("without_proof")
def test_what_an_earlier_version_has_claimed_is_not_told_again(finished, tmp_path, capsys):
    assert optimize(write(tmp_path), finished, "--objective", "edp", "--resume") == 0
    assert WORDS in capsys.readouterr().out
    assert not any(gain["accepted"] for gain in state_of(finished)["gains"])
