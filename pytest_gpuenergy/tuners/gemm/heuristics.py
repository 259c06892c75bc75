"""The tiles that NVIDIA's heuristics advise, with which a search can begin.

The package nvidia-matmul-heuristics is optional, because its licence is not free. It needs no GPU,
identifies cards by product name, and describes kernels of CUTLASS. Its library is called in a child
process, because it may end the process that calls it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from pytest_gpuenergy.support import WITHOUT_GPU, DeviceError, Worker
from pytest_gpuenergy.workloads import Gemm, Mode

PACKAGE = "nvidia-matmul-heuristics"
_MODULE = "nvMatmulHeuristics"
_ASKED = 16
"""The number of kernels that are asked for; those of one tile differ in stages, warps or
clusters."""
_TIMEOUT_S = 60.0
_HOPPER = 90
# The words in a card's name; more specific names come first.
_GPUS: Mapping[tuple[str, ...], str] = {
    ("A100", "PCIE"): "A100_PCIE_80GB",
    ("A100",): "A100_SXM_80GB",
    ("A30",): "A30_PCIE",
    ("A10",): "A10_PCIE",
    ("A40",): "A40_PCIE",
    ("RTX", "3090"): "RTX_3090",
    ("RTX", "A6000"): "RTX_A6000",
    ("L40",): "L40",
    ("L40S",): "L40S",
    ("L4",): "L4",
    ("RTX", "4090"): "RTX_4090",
    ("H100", "PCIE"): "H100_PCIE",
    ("H100", "NVL"): "H100_NVL",
    ("H100",): "H100_SXM",
    ("H200",): "H200_SXM",
    ("H20",): "H20_SXM",
    ("B200",): "B200",
    ("RTX", "5080"): "RTX_5080",
    ("RTX", "5090"): "RTX_5090",
}
_PRECISIONS: Mapping[Mode, str] = {
    "float32": "SSS",
    "3xtf32": "TSS",
    "tf32": "TSS",
    "float16": "HSH",
    "bfloat16": "BSB",
}
"""The types of the operands, of the sum and of C, in the letters of that package."""

Tile = tuple[int, int]


def advise_tiles(gemm: Gemm, gpu_name: str, capability: int) -> tuple[tuple[Tile, ...], str]:
    """Return the rows and columns of promising tiles, if the package is installed.

    Args:
        gemm: the product.
        gpu_name: the card's name in NVML.
        capability: the card's compute capability, such as 90.

    Returns:
        The tiles, the most promising first, and why the package gave none although it is installed;
        empty otherwise.
    """
    if find_spec(_MODULE) is None or gemm.mode not in _PRECISIONS:
        return (), ""
    words = set(re.split(r"[\s-]+", gpu_name.upper()))
    gpu = next((gpu for known, gpu in _GPUS.items() if words.issuperset(known)), None)
    if gpu is None:
        return (), f"{PACKAGE} does not know {gpu_name}"
    wgmma = gemm.mode != "float32" and capability >= _HOPPER
    question = (
        gpu,
        "CUTLASS3" if wgmma else "CUTLASS",
        _PRECISIONS[gemm.mode],
        f"{gemm.layout[::-1].upper()}_ROW_MAJOR",  # its first letter is for A
        (gemm.M, gemm.N, gemm.K),
    )
    worker = Worker(f"{__name__}:MatmulHeuristics", environment=WITHOUT_GPU)
    try:
        tiles = worker.call("tiles", *question, timeout_s=_TIMEOUT_S)
    except DeviceError as error:
        return (), f"{PACKAGE} failed: {error}"
    finally:
        worker.close()
    return tuple(dict.fromkeys(tiles)), ""


class MatmulHeuristics:
    """Calls the package's library, in the child process."""

    def tiles(
        self, gpu: str, target: str, precision: str, layout: str, sizes: tuple[int, int, int]
    ) -> list[Tile]:
        """Return the rows and columns of the kernels' tiles, the most promising first.

        Args:
            gpu: the GPU's name in the package's enumeration.
            target: the name of the kernels' library.
            precision: the precision, in three letters.
            layout: the layout's name in the package's enumeration.
            sizes: M, N and K.

        Raises:
            DeviceError: the package has no answer.
        """
        try:
            package = import_module(_MODULE)
            library = package.NvMatmulHeuristicsInterfaceEx(
                backend=package.NvMatmulHeuristicsTarget[target],
                gpu=package.NvMatmulHeuristicsNvidiaGpu[gpu],
            )
            problem = library.makeNvMatmulHeuristicsProblem(
                *sizes, package.NvMatmulHeuristicsMatmulLayout[layout]
            )
            answers: list[dict[str, Any]] = library.get(problem, _ASKED, precision=precision)
            answers.sort(key=lambda answer: float(answer["runtime"]))
            kernels = [answer["kernel"] for answer in answers]
            return [(kernel.cta_tile_m, kernel.cta_tile_n) for kernel in kernels]
        except Exception as error:
            # Another version of the package may do anything; the search does not need its advice.
            raise DeviceError(f"{type(error).__name__}: {error}") from error
