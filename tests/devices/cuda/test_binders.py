"""Kernels of each kind in the worker, with the host's memory and a fake Triton and PyTorch."""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from host_cupy import HostGpu, device_in_this_process, host_gpu
from test_machine_code import CODE

from pytest_gpuenergy.devices import Binary, CudaDevice, encoded_map
from pytest_gpuenergy.devices.cuda import binders, cuda_device as cuda, driver
from pytest_gpuenergy.engine import check_again, seeded_arenas, seeded_check, verify_on_device
from pytest_gpuenergy.kernels import (
    LIBRARY_ENTRIES,
    Im2col,
    Job,
    Kernel,
    Launch,
    LibraryCall,
    TensorMap,
    TritonKernel,
)
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Contract, Scalar, Tensor

N = 32
SCALE = Contract(
    "scale",
    (Tensor("x", (N,), "float32", "input"), Tensor("y", (N,), "float32", "output")),
    lambda inputs: {"y": 6 * inputs["x"]},
    values=(Scalar("a", "float32", 3.0),),
)
MATMUL = Contract(
    "matmul",
    (
        Tensor("a", (4, 8), "float32", "input"),
        Tensor("b", (8, 3), "float32", "input"),
        Tensor("c", (4, 3), "float32", "output"),
    ),
    lambda inputs: {"c": inputs["a"] @ inputs["b"]},
    reduction_length=8,
)
SOURCE = """
import triton

@triton.jit
def scale(x, y, a, TWICE):
    y[:] = a * x * (2 if TWICE else 1)
"""
TRITON = TritonKernel(SOURCE, "scale", (1, 1, 1), ("x", "y", "a"), {"TWICE": True})
CALL = LibraryCall("torch.matmul", {"input": "a", "other": "b", "out": "c"})


class Jit:
    """A Triton function that runs as a Python function in this process."""

    gpu: HostGpu

    def __init__(self, function: Any) -> None:
        self._function = function

    def __getitem__(self, grid: tuple[int, int, int]) -> Any:
        assert grid == (1, 1, 1)

        def launch(*arguments: Any, num_warps: int, num_stages: int, **constants: Any) -> None:
            assert (num_warps, num_stages) == (4, 3)
            launch_on(self.gpu, lambda: self._function(*arguments, **constants))

        return launch


def launch_on(gpu: HostGpu, action: Any) -> None:
    gpu._launch(None, None, (action,))


@contextmanager
def fakes(monkeypatch: pytest.MonkeyPatch, matmul: Any = np.matmul) -> Iterator[None]:
    with host_gpu(lambda action: action()) as gpu:

        def run(a: Any, b: Any, out: Any) -> None:
            launch_on(gpu, lambda: matmul(a, b, out=out))

        torch = SimpleNamespace(
            as_tensor=lambda array, device: array,  # noqa: ARG005
            matmul=run,
            float32="a float32",
            backends=SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace())),
            cuda=SimpleNamespace(
                stream=lambda _: nullcontext(), ExternalStream=lambda pointer, _device: pointer
            ),
        )
        monkeypatch.setattr(Jit, "gpu", gpu, raising=False)
        monkeypatch.setitem(sys.modules, "torch", torch)
        monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(jit=Jit))
        binders._triton_function.cache_clear()
        yield
        binders._triton_function.cache_clear()


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> CudaDevice:
    return device_in_this_process(monkeypatch)


def test_each_library_entry_has_what_calls_it():
    assert binders.LIBRARY.keys() == LIBRARY_ENTRIES.keys()


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "workload"), [(TRITON, SCALE), (CALL, MATMUL)])
@pytest.mark.parametrize("apart", [False, True])
def test_a_kernel_is_verified_repeated_and_verified_again(
    device, monkeypatch, kernel, workload, apart
):
    with fakes(monkeypatch), seeded_arenas(workload, seed=0) as arenas:
        verify_on_device(device, kernel, workload)
        check = seeded_check(device, workload, arenas, seed=0)
        with device.repeat(Job.of(kernel, workload, apart=apart), arenas) as repeater:
            repeater.start()
            assert repeater.stop().launches[-1] > 0
            check_again(repeater, check)


@pytest.mark.parametrize(
    ("source", "outcome", "words"),
    [
        ("def scale(", "compile", "fails to load: SyntaxError"),
        ("def scale(): pass", "compile", "no function 'scale' with triton.jit"),
        (SOURCE.replace("a * x", "b * x"), "runtime", "NameError: name 'b'"),
        (
            f"class OutOfResources(Exception): pass\n{SOURCE}    raise OutOfResources('shared')",
            "constraints",
            "OutOfResources: shared",
        ),
        (SOURCE.replace("a * x", "x"), "correctness", "wrong"),
    ],
)
def test_what_goes_wrong_in_a_triton_kernel_is_a_fault(device, monkeypatch, source, outcome, words):
    kernel = TritonKernel(source, "scale", (1, 1, 1), TRITON.arguments, TRITON.constants)
    with fakes(monkeypatch), pytest.raises(KernelFault, match=words) as fault:
        verify_on_device(device, kernel, SCALE)
    assert fault.value.outcome == outcome


@pytest.mark.parametrize(("symbol", "found"), [("products", {"HMMA.F32.TF32"}), ("sums", set())])
@pytest.mark.parametrize("autotuned", [False, True])
def test_the_machine_code_of_a_triton_kernel_shows_whether_it_uses_tensor_cores(
    device, monkeypatch, symbol, found, autotuned
):
    code = SimpleNamespace(asm={"cubin": CODE["sm_90a"]}, metadata=SimpleNamespace(name=symbol))
    compiled: list[Any] = []

    def warmup(_: Jit, *arguments: Any, grid: Any, **options: Any) -> Any:
        compiled.append((arguments, grid, options))
        return [code] if autotuned else code

    monkeypatch.setattr(Jit, "warmup", warmup, raising=False)
    with fakes(monkeypatch):
        assert device.tensor_core_instructions(Job.of(TRITON, SCALE)) == found
        assert device.tensor_core_instructions(Job.of(CALL, MATMUL)) == set()
    options = {"TWICE": True, "num_warps": 4, "num_stages": 3}
    assert compiled == [(("a float32", "a float32", 3.0), (1, 1, 1), options)]


def test_a_library_call_that_stops_working_is_found(device, monkeypatch):
    calls, verified = 0, None

    def matmul(a: Any, b: Any, out: Any) -> None:
        nonlocal calls
        calls += 1
        if verified is None or calls < verified + 6:
            np.matmul(a, b, out=out)

    with fakes(monkeypatch, matmul), seeded_arenas(MATMUL, seed=0) as arenas:
        verify_on_device(device, CALL, MATMUL)
        verified = calls
        check = seeded_check(device, MATMUL, arenas, seed=0)
        with device.repeat(Job.of(CALL, MATMUL), arenas) as repeater:
            repeater.start()
            repeater.stop()
            with pytest.raises(KernelFault, match="Correct at first, wrong after"):
                check_again(repeater, check)


def test_without_its_modules_a_kernel_is_refused(device, monkeypatch):
    monkeypatch.setattr(cuda, "find_spec", lambda name: None if name == "triton" else object())
    assert device.refusal(CALL) is None
    with pytest.raises(KernelFault, match="scale needs triton, which is not installed") as fault:
        device.compile(TRITON)
    assert fault.value.outcome == "constraints"


@pytest.mark.parametrize(
    ("dtype", "passed"),
    [
        ("float16", np.float16(0.1)),
        ("bfloat16", np.uint16(0x3DCD)),
        ("float32", np.float32(0.1)),
    ],
)
def test_a_number_is_passed_by_value_as_its_bits(dtype, passed):
    calls: list[Any] = []
    workload = Contract("w", SCALE.tensors, SCALE.compute, values=(Scalar("a", dtype, 0.1),))
    kernel = Kernel("text", (Launch("k", (1, 1, 1), (1, 1, 1), ("x", "a")),))
    binary = Binary(Path("k.cubin"), {"k": "k"})
    with host_gpu(lambda *arguments: calls.append(arguments)) as gpu:
        binders.bind(gpu.module, Job.of(kernel, workload), binary, [{"x": "the tensor"}])[0]()
    assert calls == [("the tensor", passed)]
    assert type(calls[0][1]) is type(passed)


@pytest.mark.parametrize("nbytes", [1 << 10, 48 << 10, 96 << 10])
def test_dynamic_shared_memory_and_a_barrier_of_the_grid_are_asked_for(nbytes):
    asked: list[Any] = []

    class Function:
        ptr = 7

        def __call__(self, _grid: Any, _block: Any, _arguments: Any, **options: Any) -> None:
            asked.append(options)

    module = SimpleNamespace(load_file=asked.append, get_function=lambda _: Function())
    driver = SimpleNamespace(
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8,
        funcSetAttribute=lambda *what: asked.append(what),
    )
    function = SimpleNamespace(Module=lambda: module)
    cupy = SimpleNamespace(cuda=SimpleNamespace(function=function, driver=driver))
    text = "__global__ void k(float* x) { cooperative_groups::this_grid().sync(); }"
    kernel = Kernel(text, (Launch("k", (2, 1, 1), (1, 1, 1), ("x",), nbytes),))
    binary = Binary(Path("k.cubin"), {"k": "k"})
    for launch in binders.bind(cupy, Job.of(kernel, SCALE), binary, [{"x": "1"}, {"x": "2"}]):
        launch()
    launched = {"shared_mem": nbytes, "enable_cooperative_groups": True}
    assert asked == ["k.cubin", (7, 8, nbytes), launched, launched]


PARAMS = ("a", ("x", "x"))


def struct_launch(monkeypatch: pytest.MonkeyPatch, info: dict[str, Any]) -> tuple[Any, ...]:
    """Launch a kernel with a struct, by a driver with these functions; return its arguments."""
    given: list[tuple[Any, ...]] = []

    class Function:
        ptr = 7

        def __call__(self, _grid: Any, _block: Any, arguments: Any, **_options: Any) -> None:
            given.append(arguments)

    module = SimpleNamespace(load_file=lambda _: None, get_function=lambda _: Function())
    cupy = SimpleNamespace(cuda=SimpleNamespace(function=SimpleNamespace(Module=lambda: module)))
    monkeypatch.setattr(driver, "_driver", lambda: SimpleNamespace(**info))
    kernel = Kernel("text", (Launch("k", (1, 1, 1), (1, 1, 1), ("x", PARAMS, "a")),))
    binary = Binary(Path("k.cubin"), {"k": "k"})
    tensor = SimpleNamespace(data=SimpleNamespace(ptr=1 << 40))
    (launch,) = binders.bind(cupy, Job.of(kernel, SCALE), binary, [{"x": tensor}])
    launch()
    assert given[0][0] is tensor
    return given[0]


def parameter_info(nbytes: int, status: int = 0) -> dict[str, Any]:
    def info(function: Any, number: Any, offset: Any, size: Any) -> int:
        assert (function.value, number.value) == (7, 1)
        offset._obj.value, size._obj.value = 8, nbytes
        return status

    return {"cuFuncGetParamInfo": info}


@pytest.mark.parametrize("info", [parameter_info(24), parameter_info(8, status=1), {}])
def test_a_struct_is_passed_as_its_bytes(monkeypatch, info):
    _, struct, scalar = struct_launch(monkeypatch, info)
    members = np.zeros((), np.dtype([("a", "f4"), ("x", "u8", 2)], align=True))
    members["a"], members["x"] = 3.0, 1 << 40
    assert struct.tobytes() == members.tobytes()
    assert isinstance(struct, np.generic)  # which CuPy passes by value
    assert scalar == np.float32(3.0)


def test_a_struct_of_another_size_is_refused(monkeypatch):
    why = r"parameter 2 of k has 32 bytes, but the struct {a, {x, x}} of the launch has 24"
    with pytest.raises(KernelFault, match=why) as caught:
        struct_launch(monkeypatch, parameter_info(32))
    assert caught.value.outcome == "constraints"


class LoadedModule:
    """A module that is unloaded with the last of its functions, as CuPy's are."""

    loaded: ClassVar[weakref.WeakSet[LoadedModule]] = weakref.WeakSet()

    def load_file(self, _path: str) -> None:
        self.loaded.add(self)

    def get_function(self, _name: str) -> SimpleNamespace:
        return SimpleNamespace(ptr=7, module=self)


def early_launch(monkeypatch: pytest.MonkeyPatch, status: int) -> list[Any]:
    """Launch a kernel early with a driver of this status; return what the driver was given."""
    given: list[Any] = []

    def launch(configuration: Any, function: Any, parameters: Any, _extra: None) -> int:
        if not LoadedModule.loaded:
            return 400  # CUDA_ERROR_INVALID_HANDLE
        told = configuration._obj
        attribute = told.attributes[0]
        values = [
            kind.from_address(address).value
            for kind, address in zip((ctypes.c_uint64, ctypes.c_float), parameters, strict=True)
        ]
        given.append(
            (
                *(list(told.grid), list(told.block), told.shared_bytes, told.stream),
                *(attribute.id, attribute.value[1], told.attribute_count, function.value, values),
            )
        )
        return status

    library = SimpleNamespace(cuLaunchKernelEx=launch)
    monkeypatch.setattr(driver, "_driver", lambda: library)
    stream = SimpleNamespace(ptr=11)
    cuda = SimpleNamespace(
        function=SimpleNamespace(Module=LoadedModule), get_current_stream=lambda: stream
    )
    arguments = ("x", "a")
    kernel = Kernel("text", (Launch("k", (2, 3, 1), (4, 1, 1), arguments, early=True),))
    binary = Binary(Path("k.cubin"), {"k": "k"})
    tensor = SimpleNamespace(data=SimpleNamespace(ptr=1 << 40))
    bound = binders.bind(SimpleNamespace(cuda=cuda), Job.of(kernel, SCALE), binary, [{"x": tensor}])
    bound[0]()
    stream.ptr = 12
    bound[0]()
    return given


def test_an_early_launch_is_the_drivers(monkeypatch):
    given, again = early_launch(monkeypatch, 0)
    assert again == (*given[:3], 12, *given[4:])
    assert given == ([2, 3, 1], [4, 1, 1], 0, 11, 6, 1, 1, 7, [1 << 40, 3.0])


def test_a_kernel_whose_launches_are_all_early_stays_loaded(monkeypatch):
    assert early_launch(monkeypatch, 0)
    gc.collect()
    assert not LoadedModule.loaded  # but no longer than its launches


def test_an_early_launch_that_the_driver_refuses_is_a_fault(monkeypatch):
    with pytest.raises(KernelFault, match=r"refuses an early launch \(error 1\)"):
        early_launch(monkeypatch, 1)


def test_an_old_driver_launches_nothing_early(monkeypatch):
    monkeypatch.setattr(driver, "_driver", lambda: None)
    with pytest.raises(KernelFault, match="driver of CUDA 12 or later"):
        driver.EarlyLaunch(SimpleNamespace(ptr=7), (1, 1, 1), (1, 1, 1), 0, ())


MAP = TensorMap("a_map", "A", "bfloat16", (640, 512), (1280,), (64, 128), 128)


IMAGES = TensorMap(
    *("i_map", "A", "bfloat16", (64, 9, 14, 2), (128, 1152, 16128), (64, 1000), 128),
    Im2col((-1, -2), (-3, 4), (2, 3)),
)


def given_to_driver(tensor_map: TensorMap) -> list[Any]:
    """Return what the driver's function is given after the place of the map, as numbers."""
    given: list[Any] = []

    def encode(to: ctypes.c_void_p, *rest: Any) -> int:
        assert to.value is not None
        assert to.value % 64 == 0
        ctypes.memset(to.value, 0xA5, 128)
        given.extend(one.value if hasattr(one, "value") else list(one) for one in rest)
        return 0

    argument = encoded_map(tensor_map, 0x7F0000010000, encode)
    assert argument.tobytes() == b"\xa5" * 128
    assert isinstance(argument, np.generic)  # which CuPy passes by value
    return given


def test_every_argument_of_the_driver_function_is_given():
    bfloat16, zeros, swizzle_128, promoted_to_256 = 9, 0, 3, 3
    assert given_to_driver(MAP) == [
        *(bfloat16, 2, 0x7F0000010000, [640, 512], [1280], [64, 128], [1, 1]),
        *(0, swizzle_128, promoted_to_256, zeros),
    ]
    assert given_to_driver(IMAGES) == [
        *(bfloat16, 4, 0x7F0000010000, [64, 9, 14, 2], [128, 1152, 16128]),
        *([-1, -2], [-3, 4], 64, 1000, [1, 2, 3, 1]),
        *(0, swizzle_128, promoted_to_256, zeros),
    ]


@pytest.mark.parametrize(
    ("tensor_map", "name"),
    [(MAP, "cuTensorMapEncodeTiled"), (IMAGES, "cuTensorMapEncodeIm2col")],
)
def test_each_kind_of_map_has_its_function_in_the_driver(monkeypatch, tensor_map, name):
    binders._driver_function.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(**{name: lambda *_: 0}))
    assert encoded_map(tensor_map, 0) is not None
    binders._driver_function.cache_clear()


def test_a_map_that_the_driver_refuses_is_a_fault():
    with pytest.raises(KernelFault, match=r"refuses the tensor map 'a_map' \(error 1\)") as fault:
        encoded_map(MAP, 0, lambda *_: 1)
    assert fault.value.outcome == "constraints"


def test_without_a_driver_it_says_so(monkeypatch):
    def missing(_: str) -> Any:
        raise OSError

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(KernelFault, match="need a driver of CUDA 12 or later"):
        encoded_map(MAP, 0)
