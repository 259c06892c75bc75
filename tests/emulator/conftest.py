"""What the tests of kernels on the host CPU share."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forked_python import ForkedPython, open_forked_python
from outcomes import in_blocks, raises

from pytest_gpuenergy.devices import Arena
from pytest_gpuenergy.emulator import HostRunner, LaunchProfile
from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Tensor

ELEMENTS = 1 << 14


@pytest.fixture
def built(tmp_path: Path) -> Callable[..., tuple[Kernel, dict[str, Arena]]]:
    """Make built(source, inputs, outputs={name: (shape, dtype)}, ...): a kernel and its arenas.

    The kernel is ``k`` with one block of one thread unless another launch is described.
    """

    def make(
        source,
        inputs=None,
        outputs=None,
        *,
        grid=1,
        block=1,
        arguments=None,
        shared_bytes=0,
        scalars=(),
        entry="k",
        **more,
    ):
        arenas = {}
        for name, value in (inputs or {}).items():
            tensor = Tensor(name, value.shape, str(value.dtype), "input")
            arenas[name] = Arena.create(tmp_path / name, tensor, value)
        for name, (size, dtype) in (outputs or {}).items():
            shape = size if isinstance(size, tuple) else (size,)
            arenas[name] = Arena.create(tmp_path / name, Tensor(name, shape, dtype, "output"))
        names = arguments or (*arenas, *(scalar.name for scalar in scalars))
        dims = [size if isinstance(size, tuple) else (size, 1, 1) for size in (grid, block)]
        return Kernel(source, (Launch(entry, *dims, tuple(names), shared_bytes),), **more), arenas

    return make


@pytest.fixture
def small_kernel(built: Callable[..., Any]) -> Callable[..., tuple[Kernel, dict[str, Arena]]]:
    """Make small_kernel(body, block, grid, before): k(const float* x, float* y, int* n), arenas.

    In the body, ``t`` is the thread of its block, ``b`` the block and ``i`` the thread of the grid.
    Each tensor has `ELEMENTS` elements: x is full of ones, y and n of zeros. With ``among``, bodies
    of which this is one, the kernel has all of them, and runs this one: it is compiled once.
    """

    def make(body, block=64, grid=1, before="", shared_bytes=0, among=()):
        among = list(among) or [body]
        head = "int t = threadIdx.x, b = blockIdx.x, i = b * blockDim.x + t;"
        chosen = in_blocks(among, "*body") if len(among) > 1 else body
        source = f"""{before}
__global__ void k(const float* x, float* y, int* n, const int* body) {{ {head}\n{chosen}\n}}"""
        kernel, arenas = built(
            source,
            {"x": np.ones(ELEMENTS, np.float32), "body": np.array([among.index(body)], np.int32)},
            {"y": (ELEMENTS, "float32"), "n": (ELEMENTS, "int32")},
            grid=grid,
            block=block,
            arguments=("x", "y", "n", "body"),
            shared_bytes=shared_bytes,
        )
        for name in ("y", "n"):
            arenas[name].fill(np.zeros(ELEMENTS, arenas[name].tensor.dtype))
        return kernel, arenas

    return make


@pytest.fixture
def bodies(request: pytest.FixtureRequest) -> list[str]:
    """All values of the test's parameter ``body``."""
    for marker in request.node.iter_markers("parametrize"):
        names = marker.args[0].split(",") if isinstance(marker.args[0], str) else marker.args[0]
        if "body" in names:
            rows = [getattr(row, "values", row) for row in marker.args[1]]
            at = list(names).index("body")
            return list(dict.fromkeys(row if isinstance(row, str) else row[at] for row in rows))
    raise LookupError("The test has no parameter body.")


@pytest.fixture
def check_races(
    runner: HostRunner, small_kernel: Callable[..., tuple[Kernel, dict[str, Arena]]]
) -> Callable[..., tuple[LaunchProfile, ...]]:
    """Make check_races(...), which returns the profile of a `small_kernel` that does not race."""

    def check(*arguments: Any, **named: Any) -> tuple[LaunchProfile, ...]:
        kernel, arenas = small_kernel(*arguments, **named)
        return runner.check_races(kernel, arenas, {}, timeout_s=20.0)

    return check


@pytest.fixture
def run_orders(
    runner: HostRunner, small_kernel: Callable[..., tuple[Kernel, dict[str, Arena]]]
) -> Callable[..., list[dict[str, Any]]]:
    """Make run_orders(...), which returns y and n of a `small_kernel` in each of three orders."""

    def run(
        *arguments: Any, orders: Iterable[int] = range(3), **named: Any
    ) -> list[dict[str, Any]]:
        kernel, arenas = small_kernel(*arguments, **named)
        results = []
        with runner.open(kernel, arenas, {}, timeout_s=20.0) as program:
            for order_seed in orders:
                for name in ("y", "n"):
                    arenas[name].fill(np.zeros_like(arenas[name].value()))
                program.run(order_seed=order_seed)
                results.append({name: arenas[name].value() for name in ("y", "n")})
        return results

    return run


@pytest.fixture
def fault_of(check_races: Callable[..., Any]) -> Callable[..., KernelFault]:
    """Make fault_of(...), which returns the fault that the check finds in a `small_kernel`."""

    def find(*arguments: Any, **named: Any) -> KernelFault:
        with pytest.raises(KernelFault) as caught:
            check_races(*arguments, **named)
        return caught.value

    return find


@pytest.fixture
def wrong(check_races: Callable[..., Any]) -> Callable[..., None]:
    """Make wrong(match, ...): the check finds that a `small_kernel` is wrong, in these words."""

    def find(match: str | None, *arguments: Any, **named: Any) -> None:
        with raises("correctness", match):
            check_races(*arguments, **named)

    return find


@pytest.fixture
def right(runner: HostRunner) -> Callable[..., int]:
    """Make right(kernel, arenas, name, expected): no race, and this output in every order.

    What follows after as many elements as are expected is not compared. It returns how many blocks
    were checked.
    """

    def check(kernel: Kernel, arenas: dict[str, Arena], name: str, expected: Any) -> int:
        profiles = runner.check_races(kernel, arenas, {}, timeout_s=20.0)
        outputs = [arena for arena in arenas.values() if arena.tensor.role == "output"]
        with runner.open(kernel, arenas, {}, timeout_s=20.0) as program:
            for order_seed in range(3):
                for arena in outputs:
                    arena.fill(np.zeros_like(arena.value()))
                program.run(order_seed=order_seed)
                got = arenas[name].value()[: len(expected)]
                np.testing.assert_array_equal(got, expected)
        return profiles[0].blocks_run

    return check


@pytest.fixture(scope="module")
def python() -> Iterator[ForkedPython]:
    """A Python that has imported what programs of other processes need."""
    with open_forked_python(
        "from pytest_gpuenergy.emulator import "
        "DEFAULT_PROFILE, CardState, Demand, EmulatedNvml, Fault, Load, Owner"
    ) as opened:
        yield opened


@pytest.fixture(scope="module")
def runner(host_cache: Path) -> Iterator[HostRunner]:
    host = HostRunner(host_cache, jobs=2)
    yield host
    host.close()


@pytest.fixture
def run(runner: HostRunner, built: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """Make run(source, inputs, outputs, ...), which returns the outputs, or checks the kernel."""

    def go(*arguments, order_seed=0, timeout_s=20.0, checked=False, scalars=(), **described):
        kernel, arenas = built(*arguments, scalars=scalars, **described)
        values = {scalar.name: scalar for scalar in scalars}
        if checked:
            return runner.check_races(kernel, arenas, values, timeout_s=timeout_s)
        runner.run(kernel, arenas, values, timeout_s=timeout_s, order_seed=order_seed)
        outputs = {name for name, arena in arenas.items() if arena.tensor.role == "output"}
        return {name: arenas[name].value() for name in outputs}

    return go


@pytest.fixture(scope="module", params=["g++", "clang++"])
def each_compiler(request: pytest.FixtureRequest, host_cache: Path) -> Iterator[HostRunner]:
    """A runner with each compiler that is installed."""
    compiler = shutil.which(request.param)
    if compiler is None:
        pytest.skip(f"{request.param} is not installed")
    host = HostRunner(host_cache, compiler=compiler, jobs=2)
    yield host
    host.close()


@pytest.fixture(scope="module")
def computed(
    each_compiler: HostRunner, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., np.ndarray]:
    """Make computed(source, *inputs, size=..., dtype=...): y from one thread of k(inputs..., y).

    It is computed with each compiler.
    """

    def go(source: str, *inputs: np.ndarray, size: int, dtype: str) -> np.ndarray:
        folder = tmp_path_factory.mktemp("arenas")
        arenas = {}
        for k, value in enumerate(inputs):
            tensor = Tensor(f"x{k}", value.shape, str(value.dtype), "input")
            arenas[tensor.name] = Arena.create(folder / tensor.name, tensor, value)
        arenas["y"] = Arena.create(folder / "y", Tensor("y", (size,), dtype, "output"))
        launch = Launch("k", (1, 1, 1), (1, 1, 1), tuple(arenas))
        each_compiler.run(Kernel(source, (launch,)), arenas, {}, timeout_s=20.0)
        return arenas["y"].value()

    return go
