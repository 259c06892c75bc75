"""Whether a TVM that works is installed, and what to say when not."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from importlib import metadata
from types import ModuleType
from typing import Any

from pytest_gpuenergy.support.errors import InputError
from pytest_gpuenergy.support.worker import WITHOUT_GPU, Worker, WorkerDiedError, WorkerTimeoutError

INSTALL = "pip install 'pytest-gpuenergy[tvm]'"
_SERIES = "0.27"
_INTRINSICS = "tvm.s_tir.tensor_intrin"


def installed_tvm() -> str | None:
    """TVM's version by its metadata, without importing it; None when it is not installed."""
    return _version("apache-tvm")


def import_tvm() -> Any:
    """The module ``tvm``.

    Raises:
        InputError: it is missing, of another series than 0.27, or cannot be imported.
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
    """TVM's `TuneContext` imports all tensor intrinsics, which takes seconds; we use none."""
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
    """What to do when TVM killed its process: names the versions, and the known culprit."""
    ffi = _version("apache-tvm-ffi") or "none"
    return (
        f"apache-tvm {installed_tvm() or 'none'} with apache-tvm-ffi {ffi}; "
        f"apache-tvm-ffi 0.1.15 is known to crash, so {INSTALL}"
    )


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


class Probe:
    """The child process's side of `check_tvm`."""

    def survives(self) -> str:
        """Serialize an expression, which some pairs of TVM and its FFI do not survive.

        Returns:
            TVM's version.
        """
        tvm = import_tvm()
        tvm.ir.save_json(tvm.tirx.IntImm("int32", 1))
        return str(tvm.__version__)


def check_tvm(timeout_s: float = 120.0) -> str:
    """TVM's version, if it is installed and works; tried in a child process.

    Raises:
        InputError: it is missing, of another series, or it crashes.
    """
    worker = Worker(f"{__name__}:Probe", environment=WITHOUT_GPU)
    try:
        version: str = worker.call("survives", timeout_s=timeout_s)
    except (WorkerDiedError, WorkerTimeoutError) as error:
        raise InputError(
            f"TVM does not work here ({str(error).rstrip('.')}); there is {crash_hint()}"
        ) from None
    finally:
        worker.close()
    return version
