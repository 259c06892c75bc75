"""What the contender ``cublas`` asks cuBLASLt for."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_gpuenergy.kernels import LibraryCall, Origin
from pytest_gpuenergy.support import UnavailableError
from pytest_gpuenergy.workloads import Gemm, Mode, Tensor

_WORKSPACE_BYTES = 32 << 20
"""What cuBLAS takes by default on Hopper (cuBLAS documentation, ``cublasSetWorkspace``)."""
_COMPUTE: Mapping[Mode, str] = {
    "float32": "32F",
    "tf32": "32F_FAST_TF32",
    "float16": "32F",
    "bfloat16": "32F",
}
"""``cublasComputeType_t`` without its prefix."""


def cublas_call(gemm: Gemm) -> LibraryCall:
    """The call of cuBLASLt for a product, with any algorithm and up to 32 MiB of workspace.

    Raises:
        UnavailableError: cuBLASLt does not have the product's mode.
    """
    if gemm.mode not in _COMPUTE:
        raise UnavailableError(
            f"cuBLASLt does not compute {gemm.name} in mode {gemm.mode}: it can replace float32 "
            "products by those of three bfloat16 parts (CUBLAS_COMPUTE_32F_EMULATED_16BFX9), but "
            "not of TF32 ones."
        )
    return LibraryCall(
        "cublasLt.matmul",
        {"a": "A", "b": "B", "c": "C", "workspace": "workspace"},
        {"compute": _COMPUTE[gemm.mode], "a_transposed": gemm.layout == "nt"},
        workspaces=(Tensor("workspace", (_WORKSPACE_BYTES,), "uint8", "workspace"),),
        origin=Origin("cublas"),
    )
