"""cuDNN in the worker, with a stand-in for the library that computes on the host's memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from host_cudnn import REDUCED, STRICT, TENSOR_CORE, Algorithm, HostCudnn, host_cudnn
from host_cupy import device_in_this_process, host_gpu
from hypothesis import given, strategies as st
from points import each_once

from pytest_gpuenergy.devices import CudaDevice
from pytest_gpuenergy.devices.cuda import cudnn
from pytest_gpuenergy.engine import check_again, seeded_arenas, seeded_check, verify_on_device
from pytest_gpuenergy.kernels import Job, LibraryCall
from pytest_gpuenergy.support import KernelFault, UnavailableError
from pytest_gpuenergy.tuners import CONTENDERS, cudnn_call
from pytest_gpuenergy.workloads import Contract, Conv2d, Tensor

pytestmark = pytest.mark.slow

ALONE = (
    Algorithm(67, ((2, 7), (13, 0)), (TENSOR_CORE,), workspace=131),
    Algorithm(67, ((2, 5), (13, 0)), (TENSOR_CORE,)),
    Algorithm(70, ((2, 12), (12, -1)), (), workspace=512, mode=1),
    Algorithm(0, (), (STRICT,), mode=2),
)
FUSED = (
    Algorithm(51, ((2, 1),), (TENSOR_CORE,), workspace=64),
    Algorithm(11),
)
CONV = Conv2d.of("layer", 1, 5, 6, 4, 3, 3, 3, 1, 1)
ODD = Conv2d.of("odd", 2, 9, 7, 6, 4, 3, 2, 2, 1, 2, 2)
MODES: Any = ["float32", "tf32", "float16", "bfloat16"]


@pytest.fixture(scope="module")
def device() -> Iterator[CudaDevice]:
    with pytest.MonkeyPatch.context() as patch:
        yield device_in_this_process(patch)


@contextmanager
def host(
    alone: tuple[Algorithm, ...] = ALONE, fused: tuple[Algorithm, ...] = FUSED
) -> Iterator[HostCudnn]:
    with host_gpu(lambda action: action()) as gpu, host_cudnn(alone, fused) as library:
        library.run = lambda action: gpu._launch(None, None, (action,))
        yield library


def offered(device: CudaDevice, conv: Conv2d) -> tuple[LibraryCall, ...]:
    return device.offered(cudnn_call(conv), conv.io)


def engines(calls: tuple[LibraryCall, ...]) -> list[str]:
    return [str(call.all_options["algorithm"]).partition("_")[0] for call in calls]


@pytest.mark.parametrize(
    ("layout", "mode", "shape", "options"),
    each_once(
        [(layout, mode) for layout in ("nchw", "nhwc") for mode in MODES],
        {
            "usual": (CONV, {}),
            "odd-bias-relu": (ODD, {"bias": True, "relu": True}),
            "usual-bias": (CONV, {"bias": True}),
            "odd": (ODD, {}),
            "usual-bias-relu": (CONV, {"bias": True, "relu": True}),
            "odd-bias": (ODD, {"bias": True}),
        },
    ),
)
def test_it_convolves_tensors_of_each_type_and_layout(device, layout, mode, shape, options):
    conv = shape.varied(layout=layout, mode=mode, **options)
    with host():
        verified = verify_on_device(device, offered(device, conv)[0], conv)
    assert verified.max_relative_error <= conv.error_bound.max_relative


@pytest.mark.slow
@given(st.data())
def test_any_shape_is_right(device, data):
    groups = data.draw(st.integers(1, 3), "groups")
    co, ci = (groups * data.draw(st.integers(1, 3)) for _ in range(2))
    kh, kw, stride, dilation = (data.draw(st.integers(1, 3)) for _ in range(4))
    padding = data.draw(st.integers(0, 2))
    h, w = (dilation * (k - 1) + 1 + data.draw(st.integers(0, 4)) for k in (kh, kw))
    n = data.draw(st.integers(1, 2))
    conv = Conv2d.of("any", n, h, w, co, ci, kh, kw, stride, padding, dilation, groups)
    conv = conv.varied(layout=data.draw(st.sampled_from(["nchw", "nhwc"])))
    with host():
        verify_on_device(device, offered(device, conv)[0], conv)


@pytest.mark.parametrize(("mode", "layout"), each_once(["float32", "float16"], ["nchw", "nhwc"]))
def test_what_cannot_be_fused_is_done_afterwards(device, mode, layout):
    conv = CONV.varied(mode=mode, layout=layout, relu=True)
    with host():
        first = offered(device, conv)[0]
        assert first.all_options["fused"] is False
        verify_on_device(device, first, conv)
    biased = CONV.varied(layout=layout, bias=True, relu=True)
    with host(fused=()):
        verify_on_device(device, offered(device, biased)[0], biased)


def test_a_bias_is_not_added_to_what_is_already_rounded_to_16_bits(device):
    with host():
        assert engines(offered(device, CONV.varied(bias=True))) == ["eng11", "eng70", "eng0"]
        half = CONV.varied(mode="float16", bias=True)
        assert engines(offered(device, half)) == ["eng51", "eng11"]
    with host(fused=()), pytest.raises(KernelFault, match="offers no algorithm for layer_float16_"):
        offered(device, half)


@pytest.mark.parametrize(
    ("mode", "numbers"),
    [("float32", ["eng70", "eng0"]), ("tf32", ["eng67", "eng67", "eng70", "eng0"])],
)
def test_float32_has_no_algorithm_on_tensor_cores(device, mode, numbers):
    with host():
        assert engines(offered(device, CONV.varied(mode=mode))) == numbers


def test_sums_in_16_bits_are_left_out(device):
    algorithms = (Algorithm(1, notes=(TENSOR_CORE, REDUCED)), Algorithm(2, notes=(TENSOR_CORE,)))
    with host(algorithms):
        assert engines(offered(device, CONV.varied(mode="float16"))) == ["eng2"]


def test_what_the_card_lacks_or_takes_too_much_memory_is_left_out(device):
    algorithms = (Algorithm(1, works=False), Algorithm(2, workspace=1 << 40), Algorithm(3))
    with host(algorithms):
        assert engines(offered(device, CONV)) == ["eng3"]
    with host(algorithms[:1]), pytest.raises(KernelFault) as fault:
        offered(device, CONV)
    assert str(fault.value).endswith(
        "no algorithm for layer: cuDNN reports CUDNN_STATUS_NOT_SUPPORTED: reason here."
    )


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["hot", "cold"])
def test_nothing_is_asked_while_it_is_measured(device, cache):
    conv = Conv2d.of("larger", 1, 20, 20, 24, 24, 3, 3, 2, 1).varied(layout="nhwc")
    with host() as library, seeded_arenas(conv, seed=0) as arenas:
        call = offered(device, conv)[0]
        library.queries = 0
        check = seeded_check(device, conv, arenas, seed=0)
        with device.repeat(Job.of(call, conv, cache=cache, apart=True), arenas) as repeater:
            repeater.start()
            assert repeater.stop().launches[-1] > 0
            check_again(repeater, check)
        assert (library.queries, library.launched) == (0, {70})


def test_an_algorithm_is_a_recipe_with_its_own_workspace(device):
    with host():
        first, *_, last = offered(device, CONV.varied(mode="tf32"))
    assert [one.workspaces[0].nbytes for one in (first, last)] == [131, 1]
    assert first.digest != last.digest
    assert first.origin.details == {
        "algorithm": "eng67_k2=7_k13=0",
        "workspace_bytes": 131,
        "notes": "tensor_core",
    }


def test_descriptors_are_destroyed_with_what_uses_them(device):
    with host() as library:
        offered(device, CONV)
        cudnn._plan.cache_clear()
        gc.collect()
        assert library.made == {}


def test_without_a_choice_it_takes_the_first(device):
    call = cudnn_call(CONV)
    (most,) = call.workspaces
    with host() as library:  # a workspace of a GiB would take seconds to be filled
        smaller = replace(call, workspaces=(replace(most, shape=(512,)),))
        verify_on_device(device, smaller, CONV)
        assert library.launched == {70}


def test_the_choice_of_another_version_is_refused(device):
    with host() as library:
        call = offered(device, CONV)[0]
        library.version = 92000
        with pytest.raises(KernelFault, match="is one of cuDNN 91900, and this is 92000"):
            verify_on_device(device, call, CONV)


@pytest.mark.parametrize(
    ("algorithm", "told"),
    [("eng9_k1=1", "cuDNN reports CUDNN_STATUS_BAD_PARAM"), ("mma", "'mma' is no algorithm of")],
)
def test_a_choice_that_does_not_suit_the_tensors_is_refused(device, algorithm, told):
    with host():
        call = offered(device, CONV)[0]
        other = replace(call, options={**call.options, "algorithm": algorithm})
        with pytest.raises(KernelFault, match=told) as fault:
            verify_on_device(device, other, CONV)
    assert fault.value.outcome == "constraints"


def test_a_workspace_that_is_too_small_is_refused(device):
    with host():
        call = offered(device, CONV)[0]
        small = replace(call, workspaces=(replace(call.workspaces[0], shape=(8,)),))
        with pytest.raises(KernelFault, match="takes a workspace of 512 bytes, and there are 8"):
            verify_on_device(device, small, CONV)


@pytest.mark.parametrize(("dtype", "shape"), [("float64", (1, 1, 2, 2)), ("float32", (2, 2))])
def test_what_it_does_not_compute_is_told(device, dtype, shape):
    names = ("data", "weight", "output")
    tensors = tuple(
        Tensor(name, shape, dtype, "output" if name == "output" else "input") for name in names
    )
    io = Contract("other", tensors, lambda given: {"output": given["data"]}).io
    with host(), pytest.raises(KernelFault, match="takes four-dimensional tensors of one type"):
        device.offered(cudnn_call(CONV), io)


def test_the_contender_is_the_best_of_those_that_are_right(device, monkeypatch, tmp_path):
    monkeypatch.setenv("GPUENERGY_CACHE", str(tmp_path))
    monkeypatch.setattr(CudaDevice, "describe", lambda _: {})
    setup: Any = SimpleNamespace(gpu=device)
    with host():
        kernel = CONTENDERS["cudnn"](CONV, setup)
    assert kernel.origin.details["candidates"] == 2
    assert kernel.origin.kind == "cudnn"


def test_without_the_library_it_is_not_here(device):
    setup: Any = SimpleNamespace(gpu=device)
    told = r"cuDNN cannot be used \(libcudnn.so.9: .*\): it comes with a PyTorch that is built"
    with host() as library:
        library.loads = False
        with pytest.raises(UnavailableError, match=told):
            CONTENDERS["cudnn"](CONV, setup)


def test_it_has_nothing_that_is_as_exact_as_float32_on_tensor_cores(device):
    setup: Any = SimpleNamespace(gpu=device)
    told = r"in mode 3xtf32, .*is cuDNN in mode float32 \(layer_nhwc_bias\)"
    with pytest.raises(UnavailableError, match=told):
        CONTENDERS["cudnn"](CONV.varied(mode="3xtf32", layout="nhwc", bias=True), setup)
