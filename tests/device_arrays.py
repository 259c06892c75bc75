"""Arrays of other libraries, as little of them as is needed to read them; their data is NumPy's."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

try:
    from numpy.lib.array_utils import byte_bounds
except ImportError:  # NumPy 1
    from numpy import byte_bounds


def _interface(data: Any) -> dict[str, Any]:
    return {**data.__array_interface__, "version": 3}


@dataclass(frozen=True)
class Tensor:
    """One of PyTorch: NumPy reads neither the GPU's memory nor bfloat16."""

    data: Any
    on_gpu: bool = True
    bfloat16: bool = False

    def detach(self) -> Tensor:
        return self

    def clone(self) -> Tensor:
        return Tensor(self.data.copy(), self.on_gpu, self.bfloat16)

    def cpu(self) -> Tensor:
        return Tensor(self.data, False, self.bfloat16)

    def is_inference(self) -> bool:
        return False

    def new_tensor(self, data: Any) -> Tensor:
        return Tensor(data.astype(self.data.dtype), self.on_gpu, self.bfloat16)

    def copy_(self, other: Tensor) -> None:
        self.data[...] = other.data

    def untyped_storage(self) -> Any:
        begin, end = byte_bounds(self.data)
        return SimpleNamespace(data_ptr=lambda: begin, nbytes=lambda: end - begin)

    def float(self) -> Tensor:
        return Tensor(self.data, self.on_gpu)

    def numpy(self) -> Any:
        if self.on_gpu:
            raise TypeError("can't convert cuda:0 device type tensor to numpy.")
        if self.bfloat16:
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self.data

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self.numpy()


@dataclass(frozen=True)
class CupyArray:
    """One of CuPy, which NumPy must not convert by itself."""

    data: Any

    def get(self) -> Any:
        return self.data

    def copy(self) -> CupyArray:
        return CupyArray(self.data.copy())

    def __setitem__(self, key: Any, value: CupyArray) -> None:
        self.data[key] = value.data

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return _interface(self.data)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")


@dataclass(frozen=True)
class CudaInterface:
    """What has nothing but the CUDA array interface; CuPy reads it."""

    data: Any

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return _interface(self.data)


@dataclass(frozen=True)
class DlpackArray:
    """What has nothing but DLPack's protocol, in host memory or on a GPU."""

    data: Any
    device: tuple[int, int] = (1, 0)

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.data.__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


class Cupy:
    """As much of the module ``cupy`` as reads foreign arrays."""

    @staticmethod
    def asarray(value: CupyArray | CudaInterface | npt.NDArray[Any]) -> CupyArray:
        return CupyArray(value if isinstance(value, np.ndarray) else value.data)

    @staticmethod
    def from_dlpack(value: DlpackArray) -> CupyArray:
        return CupyArray(np.asarray(value.data))
