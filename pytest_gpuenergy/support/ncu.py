"""Nsight Compute, the profiler of kernels, as programs of ours run it."""

from __future__ import annotations

FORBIDDEN = "ERR_NVGPUCTRPERM"
"""What ncu prints if this user may not read performance counters."""
INSTALL = "install Nsight Compute, which is part of the CUDA toolkit, and put ncu on the PATH"
AS_MEASURED: dict[str, object] = {"--clock-control": "none", "--cache-control": "none"}
"""Options with which clocks and caches are as in a measurement."""


def forbidden(gpu: str) -> str:
    """The sentence that says so, and what to do."""
    return (
        f"This user may not read the performance counters of {gpu} ({FORBIDDEN}): run as "
        "root or in a container with SYS_ADMIN, or have an administrator load the module "
        "nvidia with NVreg_RestrictProfilingToAdminUsers=0 (in /etc/modprobe.d)."
    )
