"""What compilers made of the states of a search, written out while the states are evaluated."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Self

from pytest_gpuenergy.kernels import AnyKernel
from pytest_gpuenergy.search.spec.kernel_spec import State
from pytest_gpuenergy.search.spec.state_kernel import kernel_of
from pytest_gpuenergy.search.trust.state_evaluation import Bench
from pytest_gpuenergy.support import KernelFault

_Listed = tuple[AnyKernel | None, Mapping[str, str]]


class Listings:
    """The kernels of states with the first set of sizes, and their `Device.listings`.

    A context manager; afterwards nothing is made ahead any more.

    Args:
        bench: of the search.
    """

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._pending: dict[str, Future[_Listed]] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="listings")

    def begin(self, state: State) -> None:
        """Start making those of a state in the background."""
        self._pending[state.id] = self._thread.submit(self._make, state)

    def of(self, state: State) -> _Listed:
        """The kernel, None if there can be none, and its listings, empty if it does not compile."""
        pending = self._pending.pop(state.id, None)
        return self._make(state) if pending is None else pending.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _make(self, state: State) -> _Listed:
        kernel: AnyKernel | None = None
        listings: Mapping[str, str] = {}
        with suppress(KernelFault):  # the result says so
            kernel = kernel_of(self._bench.spec, state, self._bench.spec.sizes[0])
            listings = self._bench.device.listings(kernel)
        return kernel, listings
