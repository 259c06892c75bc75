"""DeepGEMM in the worker; stand-ins for it and for PyTorch compute on the host's memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from host_cupy import device_in_this_process, host_gpu

from pytest_gpuenergy.devices import CudaDevice
from pytest_gpuenergy.devices.cuda import cuda_device
from pytest_gpuenergy.devices.cuda.runner import CudaRunner
from pytest_gpuenergy.engine import check_again, seeded_arenas, seeded_check, verify_on_device
from pytest_gpuenergy.kernels import AnyKernel, Job
from pytest_gpuenergy.support import KernelFault, UnavailableError
from pytest_gpuenergy.tuners import CONTENDERS, deepgemm_call
from pytest_gpuenergy.workloads import Gemm, numbers, rounded_to, stored_as

pytestmark = pytest.mark.slow
GEMM = Gemm("product", 12, 136, 512, "tn", "e4m3", scaling="block")
"""Its scales are stored as DeepGEMM wants them."""
VERSION = "2.6.1"


class HostTensor:
    """A tensor of PyTorch's, as far as the worker uses one."""

    def __init__(self, host: HostDeepGemm, array: Any, kind: str) -> None:
        self.host, self.array, self.kind = host, array, kind

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple(stride // self.array.itemsize for stride in self.array.strides)

    @property
    def values(self) -> Any:
        return numbers(self.array.view(stored_as(self.kind)), self.kind).astype(np.float64)

    def view(self, kind: str) -> HostTensor:
        return HostTensor(self.host, self.array, kind)

    def t(self) -> HostTensor:
        return HostTensor(self.host, self.array.T, self.kind)

    def __getitem__(self, places: Any) -> HostTensor:
        return HostTensor(self.host, self.array[places], self.kind)

    def copy_(self, other: HostTensor) -> None:
        self.host.copies += 1
        self.host.run(lambda: np.copyto(self.array, other.array))


@dataclass
class HostDeepGemm:
    """What the process's DeepGEMM does.

    Attributes:
        run: does the work of a launch.
        copies: launches that copy scales.
        module: the stand-in for ``deep_gemm``.
    """

    run: Callable[[Callable[[], object]], None]
    copies: int = 0
    module: SimpleNamespace = field(init=False)

    def __post_init__(self) -> None:
        self.module = SimpleNamespace(__version__=VERSION, fp8_gemm_nt=self._multiply)

    def _multiply(self, a: Any, b: Any, d: HostTensor) -> None:
        """Do what ``fp8_gemm_nt`` does on sm_90, and refuse what it refuses there."""
        (a, a_scale), (b, b_scale) = a, b
        (m, k), (n, _) = a.shape, b.shape
        assert (b.shape[1], d.shape) == (k, (m, n))
        along_k, along_n = -(-k // 128), -(-n // 128)
        assert (a.kind, b.kind, d.kind) == ("float8_e4m3fn", "float8_e4m3fn", "bfloat16")
        assert a.strides[1] == b.strides[1] == d.strides[1] == 1
        assert [a.strides[0] % 16, b.strides[0] % 16, d.strides[0] % 8, n % 8] == [0] * 4
        assert (a_scale.shape, a_scale.strides) == ((m, along_k), (1, -(-m // 4) * 4))
        assert (b_scale.shape, b_scale.strides) == ((along_n, along_k), (along_k, 1))

        def multiply() -> None:
            wide_a = a.values * a_scale.values.repeat(128, 1)[:, :k]
            wide_b = b.values * b_scale.values.repeat(128, 0).repeat(128, 1)[:n, :k]
            d.array.view(stored_as(d.kind))[:] = rounded_to(wide_a @ wide_b.T, d.kind)

        self.run(multiply)


@contextmanager
def host() -> Iterator[HostDeepGemm]:
    """Within the context, replace DeepGEMM and PyTorch by stand-ins."""
    with host_gpu(lambda action: action()) as gpu, pytest.MonkeyPatch.context() as patch:
        library = HostDeepGemm(lambda action: gpu._launch(None, None, (action,)))

        def as_tensor(array: Any, device: str) -> HostTensor:
            assert device == "cuda"
            return HostTensor(library, np.asarray(array), array.dtype.name)

        cuda = SimpleNamespace(
            stream=lambda _: nullcontext(), ExternalStream=lambda pointer, _device: pointer
        )
        torch = SimpleNamespace(
            as_tensor=as_tensor, cuda=cuda, bfloat16="bfloat16", float8_e4m3fn="float8_e4m3fn"
        )
        patch.setitem(sys.modules, "torch", torch)
        patch.setitem(sys.modules, "deep_gemm", library.module)
        yield library


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> CudaDevice:
    return device_in_this_process(monkeypatch)


def made(gemm: Gemm, device: CudaDevice) -> AnyKernel:
    bench: Any = SimpleNamespace(gpu=device)
    return CONTENDERS["deepgemm"](gemm, bench)


@pytest.mark.parametrize(
    ("sizes", "between", "copied"),
    [
        ((12, 136, 512), (0, 0, 0), 0),
        ((8, 24, 496), (16, 32, 8), 0),
        ((5, 8, 512), (0, 0, 0), 1),
        ((4, 8, 272), (0, 0, 0), 1),
        ((1, 264, 100), (28, 12, 16), 2),
    ],
)
def test_it_multiplies_with_scales_by_block(device, sizes, between, copied):
    bare = Gemm("g", *sizes, "tn", "e4m3", scaling="block")
    lda, ldb, ldc = (sum(one) for one in zip((bare.lda, bare.ldb, bare.ldc), between, strict=True))
    gemm = replace(bare, lda=lda, ldb=ldb, ldc=ldc)
    with host() as library:
        kernel = made(gemm, device)
        verified = verify_on_device(device, kernel, gemm)
        assert bool(library.copies) == bool(copied)
    assert verified.max_relative_error <= gemm.error_bound.max_relative
    assert len(kernel.workspaces) == copied
    assert (kernel.origin.kind, kernel.origin.details) == ("deepgemm", {"version": VERSION})


def test_scales_are_copied_before_each_launch(device):
    gemm = replace(GEMM, M=5)
    with host() as library, seeded_arenas(gemm, seed=0) as arenas:
        kernel = made(gemm, device)
        check = seeded_check(device, gemm, arenas, seed=0)
        with device.repeat(Job.of(kernel, gemm), arenas) as repeater:
            before = library.copies
            assert before > 0
            repeater.start()
            repeater.stop()
            check_again(repeater, check)
        assert library.copies > before


def test_one_that_ignores_scales_is_wrong(device):
    with host() as library:
        multiply = library.module.fp8_gemm_nt

        def ignoring(a: Any, b: Any, d: Any) -> None:
            ones = (HostTensor(library, np.ones_like(a[1].array.T).T, "float32"), b[1])
            multiply((a[0], ones[0]), (b[0], ones[1]), d)

        library.module.fp8_gemm_nt = ignoring
        with pytest.raises(KernelFault) as fault:
            verify_on_device(device, made(GEMM, device), GEMM)
    assert fault.value.outcome == "correctness"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"scaling": "row"}, "it takes part in products in mode e4m3 with scaling=block only"),
        ({"mode": "e5m2"}, "it takes part in products in mode e4m3 with scaling=block only"),
        ({"layout": "nn"}, "it multiplies 8-bit matrices only in layout tn"),
        ({"quantize": True}, "it does not quantize A: compare with the product without quantize"),
        ({"residual": True}, "it has no bias, activation or residual there"),
        ({"N": 132, "ldc": 136}, "it needs N to be a multiple of 8"),
        ({"lda": 520}, "it needs lda to be a multiple of 16, that is, of 16 bytes"),
        ({"ldb": 513}, "it needs ldb to be a multiple of 16, that is, of 16 bytes"),
        ({"ldc": 140}, "it needs ldc to be a multiple of 8, that is, of 16 bytes"),
    ],
)
def test_products_that_it_lacks_are_told(options, why):
    with pytest.raises(
        UnavailableError, match=f"^DeepGEMM does not compute product, since {why}.$"
    ):
        deepgemm_call(replace(GEMM, **options), "sm_90")


def test_gpus_for_which_scales_are_powers_of_two_are_told():
    with pytest.raises(UnavailableError, match=r"takes a GPU of sm_90 .* this one is of sm_100\.$"):
        deepgemm_call(GEMM, "sm_100")


def test_where_it_is_not_installed_it_is_told_where_it_is_from(device, monkeypatch):
    monkeypatch.setattr(cuda_device, "find_spec", lambda name: name != "deep_gemm" or None)
    told = r"not installed: install DeepGEMM 2 or later from github\.com/deepseek-ai/DeepGEMM\.$"
    with pytest.raises(UnavailableError, match=told):
        made(GEMM, device)


def test_a_version_without_this_function_is_told(device):
    with host() as library:
        del library.module.fp8_gemm_nt
        library.module.__version__ = "1.0.0"
        with pytest.raises(UnavailableError, match=r"DeepGEMM 1\.0\.0 has no fp8_gemm_nt: install"):
            made(GEMM, device)


def test_one_that_cannot_be_imported_is_told(device, monkeypatch, tmp_path):
    (tmp_path / "deep_gemm.py").write_text("assert False, 'no nvcc'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with host():
        del sys.modules["deep_gemm"]
        CudaRunner(("torch", "deep_gemm"))  # as a worker is that will run it
        with pytest.raises(UnavailableError, match=r"cannot be imported \(AssertionError: no nvcc"):
            made(GEMM, device)


def test_another_version_than_that_of_the_call_is_refused(device):
    with host() as library:
        kernel = made(GEMM, device)
        library.module.__version__ = "2.7"
        with pytest.raises(KernelFault, match=r"is one of DeepGEMM 2\.6\.1, and this is 2\.7: let"):
            verify_on_device(device, kernel, GEMM)
