"""The peaks of cards by their vendor's datasheets: the only table of such figures.

Tensor cores count without structured sparsity, of which datasheets give twice as much, and with
sums in float32. All are at the boost clock, whatever the clock and the power limit of a card.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Peaks:
    """The peaks of a card.

    Attributes:
        bandwidth_gb_s: the bandwidth of the device memory, in 1e9 bytes per second.
        l2_bytes: the size of the L2 cache, which may keep data from launch to launch.
        fp32_tflops: the peak of CUDA cores, in 1e12 operations per second.
        fp64_tflops: the peak of tensor cores where they have it; None: not on the datasheet.
        tf32_tflops, fp16_tflops, bf16_tflops: the peaks of tensor cores; None: the card has no
            tensor cores for this type.
        source: the document that gives the figures.
        fp8_tflops: the peak of tensor cores for 8-bit floating-point numbers; None: as above.
    """

    bandwidth_gb_s: float
    l2_bytes: int
    fp32_tflops: float
    fp64_tflops: float | None = None
    tf32_tflops: float | None = None
    fp16_tflops: float | None = None
    bf16_tflops: float | None = None
    source: str = ""
    fp8_tflops: float | None = None

    def tflops_of(self, arithmetic: str) -> float | None:
        """Return the peak of a data type or mode; None if the datasheet has none.

        ``3xtf32``, products as exact as float32's that take three products of TF32 numbers each,
        has a third of TF32's.
        """
        if arithmetic == "3xtf32":
            return None if self.tf32_tflops is None else self.tf32_tflops / 3
        return {
            "float64": self.fp64_tflops,
            "float32": self.fp32_tflops,
            "tf32": self.tf32_tflops,
            "float16": self.fp16_tflops,
            "bfloat16": self.bf16_tflops,
            "e4m3": self.fp8_tflops,
            "e5m2": self.fp8_tflops,
        }.get(arithmetic)

    def memory_ms(self, moved_bytes: float) -> float:
        """Return the least time in which so many bytes move to or from the device memory."""
        return moved_bytes / (self.bandwidth_gb_s * 1e6)

    def compute_ms(self, flops: float, arithmetic: str = "float32") -> float | None:
        """Return the least time of so many operations; None if `tflops_of` their type is."""
        if flops <= 0:
            return 0.0
        tflops = self.tflops_of(arithmetic)
        return None if tflops is None else flops / (tflops * 1e9)


# The digits have been checked against secondary tables; those of tensor cores in A30 and RTX 3090
# against the number of multiprocessors, the clock and the rate of other cards with the same cores.
_MIB = 1 << 20
_GA100 = "NVIDIA A100 Tensor Core GPU Architecture (whitepaper) and A100 datasheet"
_GA102 = "NVIDIA Ampere GA102 GPU Architecture (whitepaper), table 9"
_GH100 = "NVIDIA H100 Tensor Core GPU Architecture (whitepaper) and H100 datasheet"
_GV100 = "NVIDIA Tesla V100 GPU Architecture (whitepaper) and V100 datasheet"


def _a100(bandwidth_gb_s: float) -> Peaks:
    return Peaks(bandwidth_gb_s, 40 * _MIB, 19.5, 19.5, 156.0, 312.0, 312.0, _GA100)


def _v100(fp32: float, fp64: float, fp16: float) -> Peaks:
    return Peaks(900.0, 6 * _MIB, fp32, fp64, None, fp16, None, _GV100)


PEAKS: Mapping[str, Peaks] = {
    "NVIDIA H200": Peaks(
        *(4800.0, 50 * _MIB, 66.9, 66.9, 494.7, 989.4, 989.4),
        "NVIDIA H200 datasheet; digits of the same chip's H100 whitepaper",
        fp8_tflops=1978.9,
    ),
    "NVIDIA H100 80GB HBM3": Peaks(
        *(3350.0, 50 * _MIB, 66.9, 66.9, 494.7, 989.4, 989.4, _GH100), fp8_tflops=1978.9
    ),
    "NVIDIA H100 PCIe": Peaks(
        *(2000.0, 50 * _MIB, 51.2, 51.2, 378.0, 756.0, 756.0, _GH100), fp8_tflops=1513.0
    ),
    "NVIDIA A100-SXM4-80GB": _a100(2039.0),
    "NVIDIA A100 80GB PCIe": _a100(1935.0),
    "NVIDIA A100-SXM4-40GB": _a100(1555.0),
    "NVIDIA A100-PCIE-40GB": _a100(1555.0),
    "NVIDIA A30": Peaks(933.0, 24 * _MIB, 10.3, 10.3, 82.0, 165.0, 165.0, "NVIDIA A30 datasheet"),
    "NVIDIA GeForce RTX 3090": Peaks(936.0, 6 * _MIB, 35.6, None, 35.6, 71.0, 71.0, _GA102),
    "NVIDIA GeForce RTX 4090": Peaks(
        *(1008.0, 72 * _MIB, 82.6, None, 82.6, 165.2, 165.2),
        "NVIDIA Ada GPU Architecture (whitepaper), appendix A",
    ),
    "NVIDIA L4": Peaks(300.0, 48 * _MIB, 30.3, None, 60.0, 121.0, 121.0, "NVIDIA L4 datasheet"),
    "Tesla T4": Peaks(320.0, 4 * _MIB, 8.1, None, None, 65.0, None, "NVIDIA T4 datasheet"),
    "Tesla V100-SXM2-16GB": _v100(15.7, 7.8, 125.0),
    "Tesla V100-SXM2-32GB": _v100(15.7, 7.8, 125.0),
    "Tesla V100-PCIE-16GB": _v100(14.0, 7.0, 112.0),
    "Tesla V100-PCIE-32GB": _v100(14.0, 7.0, 112.0),
    "Tesla P100-SXM2-16GB": Peaks(
        *(732.0, 4 * _MIB, 10.6, 5.3, None, 21.2, None),
        "NVIDIA Tesla P100 (whitepaper); it has no tensor cores: float16 is of CUDA cores",
    ),
}
"""The peaks by the name that NVML reports. A slice of a card (MIG) has another name, no peaks."""


def peaks_of(gpu_name: str) -> Peaks | None:
    """Return the peaks of a model by its name, with or without the vendor; None if unknown."""
    return PEAKS.get(gpu_name) or PEAKS.get(f"NVIDIA {gpu_name}")
