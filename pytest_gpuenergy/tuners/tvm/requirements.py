"""The requirements of TVM: checks that a working version is installed, or says what to install."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from importlib import metadata
from types import ModuleType
from typing import Any

from pytest_gpuenergy.support import (
    WITHOUT_GPU,
    InputError,
    Worker,
    WorkerDiedError,
    WorkerTimeoutError,
)

INSTALL = "pip install 'pytest-gpuenergy[tvm]'"
_SERIES = "0.27"
_INTRINSICS = "tvm.s_tir.tensor_intrin"


def installed_tvm() -> str | None:
    """Return TVM's version without importing it; None if it is not installed."""
    return _version("apache-tvm")


def import_tvm() -> Any:
    """Import and return the module ``tvm``.

    Raises:
        InputError: it is missing, not of the series 0.27, or cannot be imported.
    """
    if "tvm" in sys.modules:
        return sys.modules["tvm"]
    version = installed_tvm()
    if version is None:
        raise InputError(f"This needs Apache TVM, which is not installed: {INSTALL}")
    if not version.startswith(f"{_SERIES}."):
        raise InputError(f"This needs Apache TVM {_SERIES}, and {version} is installed: {INSTALL}")
    hook = sys.excepthook
    try:
        import tvm
        import tvm.s_tir
    except Exception as error:
        raise InputError(
            f"Apache TVM {version} cannot be imported ({type(error).__name__}: {error}): {INSTALL}"
        ) from None
    finally:
        sys.excepthook = hook  # TVM replaces it
    return tvm


@contextlib.contextmanager
def without_tensor_intrinsics() -> Iterator[None]:
    """Prevent TVM's `TuneContext` from importing tensor intrinsics, which takes seconds.

    No search of ours uses them.
    """
    if _INTRINSICS in sys.modules:
        yield
        return
    parent = sys.modules["tvm.s_tir"]
    sys.modules[_INTRINSICS] = ModuleType(_INTRINSICS)
    try:
        yield
    finally:
        del sys.modules[_INTRINSICS]
        vars(parent).pop("tensor_intrin", None)


def crash_hint() -> str:
    """Return the installed versions, and what to do about the one that is known to crash."""
    ffi = _version("apache-tvm-ffi") or "none"
    return (
        f"apache-tvm {installed_tvm() or 'none'} and apache-tvm-ffi {ffi} are installed, and "
        f"apache-tvm-ffi 0.1.15 is known to crash: {INSTALL}"
    )


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


class Probe:
    """Tests TVM for `check_tvm`, in a child process."""

    def survives(self) -> str:
        """Serialize an expression, which crashes some combinations of TVM and its FFI.

        Returns:
            TVM's version.
        """
        tvm = import_tvm()
        tvm.ir.save_json(tvm.tirx.IntImm("int32", 1))
        return str(tvm.__version__)


def check_tvm(timeout_s: float = 120.0) -> str:
    """Test in a child process that TVM works, and return its version.

    Raises:
        InputError: TVM is missing, of another series, or crashes.
    """
    worker = Worker(f"{__name__}:Probe", environment=WITHOUT_GPU)
    try:
        version: str = worker.call("survives", timeout_s=timeout_s)
    except (WorkerDiedError, WorkerTimeoutError) as error:
        raise InputError(
            f"TVM does not work here ({str(error).rstrip('.')}); {crash_hint()}"
        ) from None
    finally:
        worker.close()
    return version
