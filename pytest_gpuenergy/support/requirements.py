"""Sentences about what is missing here: Python packages, and permission for Nsight Compute."""

from __future__ import annotations

FORBIDDEN = "ERR_NVGPUCTRPERM"
"""The error that ncu prints if this user may not read performance counters."""

INSTALL = "install Nsight Compute, which is part of the CUDA toolkit, and put ncu on the PATH"

AS_MEASURED: dict[str, object] = {"--clock-control": "none", "--cache-control": "none"}
"""Options that leave clocks and caches as they are in a measurement."""


def needs(what: str, package: str, advice: str, error: ImportError) -> str:
    """Return a sentence about a package that is missing or fails to load.

    Args:
        what: the part of this package that needs it; the beginning of the sentence.
        package: the name of its module.
        advice: how to install it.
        error: the error from its import.
    """
    missing = isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0]
    if missing == package or not str(error):
        return f"{what} needs {package}: {advice}."
    reason = " ".join(str(error).split()).removesuffix(".")
    lacks = f"install {missing}" if missing else "install what it asks for"
    return f"{what} needs {package}, which is installed but cannot be loaded ({reason}): {lacks}."


def forbidden(gpu: str) -> str:
    """Return a sentence about a GPU whose performance counters this user may not read."""
    return (
        f"This user may not read the performance counters of {gpu} ({FORBIDDEN}): run as "
        "root or in a container with SYS_ADMIN, or have an administrator load the module "
        "nvidia with NVreg_RestrictProfilingToAdminUsers=0 (in /etc/modprobe.d)."
    )
