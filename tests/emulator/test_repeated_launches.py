"""Launches that differ from the others, of a kernel that counts them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pytest

from pytest_gpuenergy.devices import Arena
from pytest_gpuenergy.emulator import HostKernel, HostRunner, is_divisible
from pytest_gpuenergy.kernels import Kernel
from pytest_gpuenergy.support import KernelFault

pytestmark = pytest.mark.slow

COUNTS = "__shared__ int s; if (!t) s = launches[b]++; __syncthreads();"
DECLARED = "__device__ int launches[128];"
SLOW = "float v = 0; for (int k = 0; k < 1000; ++k) v += x[i] * k;"

Make = Callable[..., tuple[Kernel, dict[str, Arena]]]


def relaunch(runner: HostRunner, kernel: Kernel, arenas: dict[str, Arena]) -> list[int]:
    outputs = [arena for arena in arenas.values() if arena.tensor.role == "output"]
    with ExitStack() as stack:
        host = HostKernel(
            lambda: None,
            lambda: runner.open(kernel, arenas, {}, timeout_s=20.0),
            stack,
            outputs,
            divisible=is_divisible(kernel),
        )
        for turn in range(3):
            host.run(order_seed=turn)
        for arena in outputs:
            arena.fill()
        return list(host.relaunch(once=False))


@pytest.mark.parametrize("skips", ["s % {0} == {1}", "b == 3 && s % {0} == {1}"])
@pytest.mark.parametrize("period", [7, 32])
def test_a_launch_that_is_skipped_now_and_then(
    runner: HostRunner, small_kernel: Make, period: int, skips: str
) -> None:
    skip = skips.format(period, period - 1)
    body = f"{COUNTS} if ({skip}) return; y[i] = 2 * x[i];"
    with pytest.raises(KernelFault, match=r"wrong in launch \d+ of those that were repeated: y\["):
        relaunch(runner, *small_kernel(body, 128, 16, before=DECLARED))


def test_a_slow_kernel_that_skips_a_launch(runner: HostRunner, small_kernel: Make) -> None:
    body = f"{COUNTS} {SLOW} if (s % 31 == 30) return; y[i] = v;"
    with pytest.raises(KernelFault, match="wrong in launch"):
        relaunch(runner, *small_kernel(body, 128, 128, before=DECLARED))


@pytest.mark.parametrize(
    "body",
    [
        "y[i] = 2 * x[i];",
        SLOW + "y[i] = v;",
        "y[i] = (launches + 64 * (s & 1))[b % 64] >= 0 ? x[i] : 0;",
    ],
)
def test_launches_that_leave_the_same(runner: HostRunner, small_kernel: Make, body: str) -> None:
    assert relaunch(runner, *small_kernel(f"{COUNTS} {body}", 128, 64, before=DECLARED))
