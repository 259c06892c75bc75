"""Traces as PyTorch's profiler writes them, made event by event."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from pytest_gpuenergy.replay import Event

GEMM = "sm90_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1"
ADDMM = {
    "Input Dims": [[64], [8, 32], [32, 64], [], []],
    "Input type": ["c10::Half", "c10::Half", "c10::Half", "Scalar", "Scalar"],
    "Input Strides": [[1], [32, 1], [1, 32], [], []],
    "Concrete Inputs": ["", "", "", "1", "1"],
}


STRANGE_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
"""Any value that JSON can hold."""


def lasting(cat: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    """An event on the host's only thread, or on the GPU."""
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args} | {
        "pid": 1,
        "tid": 1,
    }


def operator(name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return lasting("cpu_op", name, ts, dur, **args)


def launch(
    name: str, call_ts: float, ts: float, correlation: int, dur: float = 5.0, **more: Any
) -> list[dict[str, Any]]:
    """A call of the driver, and the kernel that it launches."""
    plan: dict[str, Any] = {
        "grid": [4, 2, 1],
        "block": [128, 1, 1],
        "shared memory": 49152,
        "registers per thread": 96,
        "device": 0,
        "stream": 7,
    }
    return [
        lasting("cuda_runtime", "cudaLaunchKernel", call_ts, 2.0, correlation=correlation),
        lasting("kernel", name, ts, dur, correlation=correlation, **(plan | more)),
    ]


def layer(ts: float = 0.0, correlation: int = 1, **more: Any) -> list[dict[str, Any]]:
    """``aten::linear``, which calls ``aten::addmm``, which launches one kernel."""
    return [
        operator("aten::linear", ts, 30.0),
        operator("aten::addmm", ts + 5, 20.0, **ADDMM),
        *launch(GEMM, ts + 10, ts + 40, correlation, **more),
    ]


def events(written: list[dict[str, Any]]) -> list[Event]:
    """As `read_trace` gives them."""
    found = [
        Event(**{name: one[name] for name in Event.__struct_fields__ if name in one})
        for one in written
    ]
    return sorted(found, key=lambda one: (one.ts, -one.dur))


def write(path: Path, written: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": written}))
    return path
