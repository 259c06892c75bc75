"""What is missing on this machine, as a sentence: packages, Nsight Compute and its permissions."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


def needs(what: str, package: str, advice: str, error: ImportError) -> str:
    """A sentence about a package that cannot be imported: it is missing, or fails to load.

    Args:
        what: needs it; the beginning of the sentence.
        package: its name as a module.
        advice: how to install it.
        error: that its import raised.
    """
    missing = isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0]
    if missing == package or not str(error):
        return f"{what} needs {package}: {advice}."
    reason = " ".join(str(error).split()).removesuffix(".")
    lacks = f"install {missing}" if missing else "install what it asks for"
    return f"{what} needs {package}, which is installed but cannot be loaded ({reason}): {lacks}."


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Import without looking for garbage, of which modules leave none."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


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
