"""cuBLASLt in the worker, with a stand-in for nvmath that computes on the host's memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from host_cublas import ON_TENSOR_CORES, HostCublas, host_cublas
from host_cupy import device_in_this_process, host_gpu
from points import each_once

from pytest_gpuenergy.devices import CudaDevice
from pytest_gpuenergy.engine import check_again, seeded_arenas, seeded_check, verify_on_device
from pytest_gpuenergy.kernels import Job, LibraryCall, read_kernel, write_kernel
from pytest_gpuenergy.support import KernelFault, UnavailableError
from pytest_gpuenergy.tuners import CONTENDERS, cublas_call, grouped_call
from pytest_gpuenergy.workloads import Gemm

pytestmark = pytest.mark.slow

OFFERED = ((7, 0), (9, 512), (ON_TENSOR_CORES, 1 << 20))
GEMM = Gemm("product", 5, 6, 7)


@pytest.fixture(scope="module")
def device() -> Iterator[CudaDevice]:
    with pytest.MonkeyPatch.context() as patch:
        yield device_in_this_process(patch)


@contextmanager
def host(*offered: tuple[int, int]) -> Iterator[HostCublas]:
    with host_gpu(lambda action: action()) as gpu, host_cublas(*offered or OFFERED) as library:
        library.run = lambda action: gpu._launch(None, None, (action,))
        yield library


def offered(device: CudaDevice, gemm: Gemm) -> tuple[LibraryCall, ...]:
    return device.offered(cublas_call(gemm), gemm.io)


@pytest.mark.parametrize(
    ("layout", "between", "mode"),
    each_once(
        {
            "nn": ("nn", (3, 0, 0)),
            "nt": ("nt", (0, 4, 2)),
            "tn": ("tn", (1, 5, 3)),
            "tt": ("tt", (0,) * 3),
        },
        ["float32", "tf32", "float16", "bfloat16"],
    ),
)
def test_it_multiplies_matrices_in_each_layout(device, layout, between, mode):
    bare = Gemm("g", 19, 13, 33, layout, mode)
    lda, ldb, ldc = (sum(one) for one in zip((bare.lda, bare.ldb, bare.ldc), between, strict=True))
    gemm = replace(bare, lda=lda, ldb=ldb, ldc=ldc)
    with host():
        verified = verify_on_device(device, offered(device, gemm)[-1], gemm)
    assert verified.max_relative_error <= gemm.error_bound.max_relative


@pytest.mark.parametrize(
    ("mode", "end"),
    [
        ("float32", {"bias": True}),
        ("float16", {"bias": True, "activation": "gelu_tanh"}),
        ("bfloat16", {"activation": "relu"}),
        ("tf32", {"residual": True}),
        ("bfloat16", {"bias": True, "residual": True}),
    ],
)
def test_it_has_the_ends_that_are_epilogues(device, mode, end):
    gemm = Gemm("g", 19, 13, 33, "tn", mode, ldc=17, **end)
    with host():
        verified = verify_on_device(device, offered(device, gemm)[-1], gemm)
    assert verified.max_relative_error <= gemm.error_bound.max_relative


@pytest.mark.parametrize(
    ("scaling", "accumulation", "n", "k", "end"),
    each_once(
        [
            ("tensor", "float32", 24, 48),
            ("tensor", "fast", 24, 48),
            ("row", "float32", 24, 48),
            ("block", "float32", 140, 272),
        ],
        {"plain": ({},), "end": ({"bias": True, "residual": True},)},
    ),
)
def test_it_multiplies_8_bit_numbers_with_scales(device, scaling, accumulation, n, k, end):
    gemm = Gemm("g", 12, n, k, "tn", "e4m3", scaling=scaling, accumulation=accumulation, **end)
    with host() as library:
        verified = verify_on_device(device, offered(device, gemm)[-1], gemm)
        flags = {one["FAST_ACCUM"] for one in library.objects if "FAST_ACCUM" in one}
    assert verified.max_relative_error <= gemm.error_bound.max_relative
    assert flags == {accumulation == "fast"}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"mode": "e5m2"}, "one of its operands has to be e4m3"),
        ({"layout": "nn"}, "only in layout tn"),
        ({"quantize": True}, "does not quantize A: compare with the product without quantize"),
    ],
)
def test_8_bit_products_that_it_lacks_are_not_here(options, why):
    gemm = Gemm("g", 16, 16, 16, "tn", "e4m3")
    with pytest.raises(UnavailableError, match=why):
        cublas_call(gemm.varied(**options))


@pytest.mark.parametrize(
    ("layout", "several", "end"),
    each_once(
        {
            "batch": ("nn", {"B": 3}),
            "padded-batch": ("tt", {"B": 2, "ldc": 17}),
            "group": ("tn", {"groups": (19,)}),
            "groups": ("nt", {"groups": (0, 7, 11, 0, 1)}),
            "padded-groups": ("tn", {"groups": (4, 4, 11), "ldc": 17}),
        },
        {"plain": ({},), "bias": ({"bias": True},), "residual": ({"residual": True},)},
    ),
)
def test_it_multiplies_batches_and_groups(device, layout, several, end):
    gemm = Gemm("g", 19, 13, 33, layout, "bfloat16", **several, **end)
    with host():
        verified = verify_on_device(device, offered(device, gemm)[-1], gemm)
    assert verified.max_relative_error <= gemm.error_bound.max_relative


@pytest.mark.parametrize("end", [{"bias": True}, {"activation": "gelu_tanh"}])
def test_sums_that_would_be_rounded_before_their_end_are_not_split(device, end):
    with host():
        rounded, wide = (
            offered(device, Gemm("g", 19, 13, 33, "tn", mode, **end))
            for mode in ("float16", "tf32")
        )
    assert [one.origin.details["algorithm"] for one in rounded] == [7]
    assert [one.origin.details["algorithm"] for one in wide] == [7, 9, ON_TENSOR_CORES]


def test_each_group_with_rows_is_a_call_with_an_algorithm(device):
    gemm = Gemm("g", 19, 13, 33, groups=(4, 0, 4, 11))
    with host():
        first, second = offered(device, gemm)
    assert first.options["algorithm"].count(",") == 2
    assert second.origin.details.items() >= {"calls": 3, "algorithm": 9}.items()
    assert second.workspaces[0].nbytes == 512


@pytest.mark.parametrize(
    ("layout", "groups", "mode"),
    [
        ("nn", (19,), "float32"),
        ("nt", (0, 7, 11, 0, 1), "bfloat16"),
        ("tn", (4, 4, 11), "tf32"),
        ("tt", (18, 1), "float16"),
    ],
)
def test_cublas_multiplies_all_groups_by_one_call(device, layout, groups, mode):
    gemm = Gemm("g", 19, 13, 33, layout, mode, ldc=17, groups=groups)
    call = grouped_call(gemm)
    assert call is not None
    with host() as library:
        verified = verify_on_device(device, call, gemm)
    assert verified.max_relative_error <= gemm.error_bound.max_relative
    assert [name for name, _ in library.calls[:2]] == ["stream", "workspace"]  # in this order


def test_groups_that_cublas_refuses_are_told(device):
    gemm = Gemm("g", 19, 13, 33, groups=(4, 15))
    call = grouped_call(gemm)
    assert call is not None
    with host() as library:
        library.refused = (7,)
        with pytest.raises(KernelFault, match=r"cuBLAS refuses the product: NOT_SUPPORTED"):
            verify_on_device(device, call, gemm)


@pytest.mark.parametrize(
    "more", [{}, {"B": 2}, {"groups": (5,), "bias": True}, {"groups": (5,), "mode": "3xtf32"}]
)
def test_other_products_are_no_groups_of_cublas(more):
    assert grouped_call(replace(GEMM, **more)) is None


def test_cublas_is_told_where_groups_begin(device):
    gemm = Gemm("g", 19, 16, 32, "nt", "bfloat16", groups=(4, 15))
    with host() as library:
        offered(device, gemm)
    told = [one for one in library.objects if "MIN_ALIGNMENT_B_BYTES" in one]
    assert [one["MIN_ALIGNMENT_B_BYTES"] for one in told] == [8]  # of our A, which has rows of M


@pytest.mark.parametrize(
    ("end", "why"),
    [
        ({"activation": "gelu"}, "its epilogues have no gelu: they have relu and gelu_tanh"),
        ({"activation": "silu", "bias": True}, "its epilogues have no silu"),
        ({"activation": "relu", "residual": True}, "adds a residual before the activation"),
    ],
)
def test_other_ends_are_not_here(end, why):
    with pytest.raises(UnavailableError, match=why):
        cublas_call(replace(GEMM, **end))


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["hot", "cold"])
def test_nothing_is_asked_while_it_is_measured(device, cache):
    gemm = Gemm("g", 64, 96, 33)
    with host() as library, seeded_arenas(gemm, seed=0) as arenas:
        (_, call) = offered(device, gemm)
        library.queries = 0
        check = seeded_check(device, gemm, arenas, seed=0)
        with device.repeat(Job.of(call, gemm, cache=cache, apart=True), arenas) as repeater:
            repeater.start()
            assert repeater.stop().launches[-1] > 0
            check_again(repeater, check)
        assert (library.queries, library.launched) == (0, {9})


def test_an_algorithm_is_a_recipe_with_its_own_workspace(device):
    with host():
        first, second = offered(device, GEMM)
    assert [one.workspaces[0].nbytes for one in (first, second)] == [1, 512]
    assert first.digest != second.digest
    details = {"algorithm": 9, "tile": "128x64", "split_k": 0, "cluster": "auto"}
    assert second.origin.details.items() >= details.items()
    assert "custom" not in second.origin.details  # which it does not tell


def test_an_algorithm_is_the_same_whenever_it_is_offered(device, tmp_path):
    with host() as library:
        one, again = (offered(device, GEMM)[1] for _ in range(2))
        assert one.opaque != again.opaque
        assert (one, one.digest) == (again, again.digest)
        write_kernel(tmp_path, again)
        verify_on_device(device, read_kernel(tmp_path), GEMM)
        assert library.launched == {9}


@pytest.mark.parametrize(("mode", "numbers"), [("float32", [7, 9]), ("tf32", [7, 9, 100])])
def test_float32_has_no_algorithm_that_says_it_uses_tensor_cores(device, mode, numbers):
    with host():
        found = offered(device, replace(GEMM, mode=mode))
    assert [one.origin.details["algorithm"] for one in found] == numbers


def test_without_a_choice_it_takes_the_first(device):
    with host() as library:
        verify_on_device(device, cublas_call(GEMM), GEMM)
        assert library.launched == {7}


def test_the_choice_of_another_version_is_refused(device):
    with host() as library:
        call = offered(device, GEMM)[0]
        library.version = 140000
        with pytest.raises(KernelFault, match="is one of cuBLASLt 130100, and this is 140000"):
            verify_on_device(device, call, GEMM)


def test_a_choice_without_its_bytes_is_refused(device):
    with host():
        call = replace(offered(device, GEMM)[0], opaque="")
        with pytest.raises(KernelFault, match=r"without the bytes .*: let it be chosen again"):
            verify_on_device(device, call, GEMM)


def test_a_choice_that_does_not_suit_the_matrices_is_refused(device):
    with host() as library:
        library.refused = (7,)
        with pytest.raises(KernelFault, match=r"refuses the product: NOT_SUPPORTED") as fault:
            verify_on_device(device, offered(device, GEMM)[0], GEMM)
    assert fault.value.outcome == "constraints"


@pytest.mark.parametrize(
    ("options", "told"),
    [({"compute": "64F"}, "does not multiply float32 by float32 in COMPUTE_64F")],
)
def test_what_it_does_not_compute_is_told(device, options, told):
    with host(), pytest.raises(KernelFault, match=told):
        device.offered(replace(cublas_call(GEMM), options=options), GEMM.io)


def test_other_libraries_leave_no_choice(device):
    call = LibraryCall("torch.matmul", {"input": "A", "other": "B", "out": "C"})
    with host(), pytest.raises(KernelFault, match=r"torch\.matmul has no choices"):
        device.offered(call, GEMM.io)


def test_the_contender_is_the_best_of_those_that_are_right(device, monkeypatch, tmp_path):
    monkeypatch.setenv("GPUENERGY_CACHE", str(tmp_path))
    monkeypatch.setattr(CudaDevice, "describe", lambda _: {})
    bench: Any = SimpleNamespace(gpu=device)
    with host() as library:
        library.refused = (7,)
        kernel = CONTENDERS["cublas"](GEMM, bench)
    details = {"algorithm": 9, "candidates": 2}
    assert kernel.origin.details.items() >= details.items()
    assert kernel.origin.kind == "cublas"


@pytest.mark.parametrize("offers", [[(7, 64 << 20)], [(ON_TENSOR_CORES, 0)]])
def test_a_contender_without_algorithms_is_not_here(device, offers):
    bench: Any = SimpleNamespace(gpu=device)
    with host(*offers), pytest.raises(UnavailableError, match=r"refuses|offers no algorithm"):
        CONTENDERS["cublas"](GEMM, bench)


def test_without_its_library_it_is_not_here(device):
    bench: Any = SimpleNamespace(gpu=device)
    told = r"\(RuntimeError: Failure finding libcublasLt\.so\): its library comes with pip"
    with host() as library:
        library.loads = False
        with pytest.raises(UnavailableError, match=told):
            CONTENDERS["cublas"](GEMM, bench)


def test_it_has_no_products_of_three_tf32_ones(device):
    bench: Any = SimpleNamespace(gpu=device)
    with pytest.raises(UnavailableError, match="does not compute product in mode 3xtf32: it can"):
        CONTENDERS["cublas"](replace(GEMM, mode="3xtf32"), bench)
