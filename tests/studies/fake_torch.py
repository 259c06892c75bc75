"""As much of PyTorch as a convolution takes, on NumPy: settings of cuDNN, tensors, conv2d.

TF32 rounds the factors as the hardware does: it cuts their fraction to ten bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from pytest_gpuenergy.workloads import Conv2d

TF32_BITS = np.uint32(0xFFFFE000)


@dataclass
class Tensor:
    value: Any
    memory_format: str = "contiguous"
    on_gpu: bool = False

    def cuda(self) -> Tensor:
        return Tensor(self.value, self.memory_format, on_gpu=True)

    def to(self, *, memory_format: str) -> Tensor:
        return Tensor(self.value, memory_format, self.on_gpu)

    def detach(self) -> Tensor:
        return self

    def is_inference(self) -> bool:
        return False

    def new_tensor(self, value: Any) -> Tensor:
        return Tensor(value.astype(self.value.dtype), self.memory_format, self.on_gpu)

    def copy_(self, other: Tensor) -> None:
        self.value[...] = other.value

    def cpu(self) -> Tensor:
        return Tensor(self.value, self.memory_format)

    def numpy(self) -> Any:
        assert not self.on_gpu
        return self.value


@dataclass
class Torch:
    """What was seen of the convolutions, and how they go wrong.

    Attributes:
        module: to be ``sys.modules["torch"]``.
        calls: memory format of the data, and settings, of each convolution.
        error: added to every output.
    """

    error: float = 0.0
    calls: list[tuple[str, bool, int, bool]] = field(default_factory=list)
    module: ModuleType = field(init=False)

    def __post_init__(self) -> None:
        self.module = module = ModuleType("torch")
        self.cudnn = cudnn = SimpleNamespace(
            is_available=lambda: True,
            benchmark=False,
            benchmark_limit=10,
            conv=SimpleNamespace(fp32_precision="tf32"),
        )
        contents: dict[str, Any] = {
            "__version__": "2.11.0",
            "contiguous_format": "contiguous",
            "channels_last": "channels_last",
            "from_numpy": Tensor,
            "cuda": SimpleNamespace(is_available=lambda: True),
            "backends": SimpleNamespace(cudnn=cudnn),
            "nn": SimpleNamespace(functional=SimpleNamespace(conv2d=self.conv2d)),
        }
        for name, content in contents.items():
            setattr(module, name, content)

    @property
    def tf32(self) -> bool:
        return bool(self.cudnn.conv.fp32_precision == "tf32")

    def conv2d(
        self, data: Tensor, weight: Tensor, bias: None, stride: int, padding: int, *rest: int
    ) -> Tensor:
        assert bias is None
        assert data.on_gpu
        assert weight.on_gpu
        assert data.memory_format == weight.memory_format
        cudnn = self.cudnn
        self.calls.append((data.memory_format, cudnn.benchmark, cudnn.benchmark_limit, self.tf32))
        n, ci, h, w = data.value.shape
        co, _, kh, kw = weight.value.shape
        workload = Conv2d.of("x", n, h, w, co, ci, kh, kw, stride, padding, *rest)
        inputs = {"data": self._factor(data), "weight": self._factor(weight)}
        output = workload.reference(inputs)["output"].astype(np.float32) + np.float32(self.error)
        return Tensor(output, data.memory_format, on_gpu=True)

    def _factor(self, tensor: Tensor) -> Any:
        if not self.tf32:
            return tensor.value
        return (tensor.value.view(np.uint32) & TF32_BITS).view(np.float32)
