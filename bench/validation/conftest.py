"""The validation bench's kernels, options and result file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import kernels
import pytest
from record import Validated, Validation

from pytest_gpuenergy.control import enforced_setpoint
from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.energy import EnergySource, MeterSettings, choose_source
from pytest_gpuenergy.kernels import Kernel
from pytest_gpuenergy.support import GpuEnergyError
from pytest_gpuenergy.tuners import KernelStore
from pytest_gpuenergy.workloads import Workload

REPEATED = frozenset({"case4-slowest", "case5-fastest", "axpy", "case1-slowest"})
"""Their intervals are tested: the slowest, a fast one, the shortest, one whose power varies."""

DEFAULT_JSON = ".gpuenergy/validation.json"


@dataclass(frozen=True)
class Subject:
    """A kernel to validate, and how often to repeat its measurement."""

    name: str
    kernel: Kernel
    workload: Workload
    repeats: int


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("bench")
    group.addoption(
        "--validation-json",
        metavar="PATH",
        default=DEFAULT_JSON,
        help=f"Write results here, kernel by kernel (default: {DEFAULT_JSON})",
    )
    group.addoption(
        "--validation-repeats",
        type=int,
        metavar="N",
        default=20,
        help="How often to repeat the kernels whose intervals are tested (default: 20)",
    )
    group.addoption(
        "--validation-budget-s",
        type=float,
        metavar="S",
        default=None,
        help="Skip kernels that would start more than this many seconds after the first",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "subject" in metafunc.fixturenames:
        metafunc.parametrize("subject", kernels.NAMES, indirect=True)


@pytest.fixture(scope="session")
def ready(
    request: pytest.FixtureRequest, gpu: Device, kernel_store: KernelStore
) -> Callable[[str], tuple[Kernel, Workload]]:
    """Gives kernels by name; compilation of all kernels of this run starts before the first."""
    config = request.config
    given = config.getoption("--records")
    folder = config.invocation_params.dir / given if given else kernels.RECORDS
    made: dict[str, tuple[Kernel, Workload] | GpuEnergyError] = {}
    for item in request.session.items:
        name = item.callspec.params.get("subject") if hasattr(item, "callspec") else None
        if name is not None and name not in made:
            try:
                made[name] = kernels.named(name, folder, kernel_store, emulated=gpu.emulated)
                gpu.prepare([made[name][0]])
            except GpuEnergyError as error:
                made[name] = error

    def find(name: str) -> tuple[Kernel, Workload]:
        found = made[name]
        if isinstance(found, GpuEnergyError):
            pytest.fail(str(found), pytrace=False)
        return found

    return find


@pytest.fixture(scope="session")
def started_s() -> list[float]:
    """The device's clock when the first kernel started; empty before that."""
    return []


@pytest.fixture
def subject(
    request: pytest.FixtureRequest,
    gpu: Device,
    ready: Callable[[str], tuple[Kernel, Workload]],
    started_s: list[float],
) -> Subject:
    config = request.config
    budget_s = config.getoption("--validation-budget-s")
    started_s.append(gpu.clock.now_s())
    spent_s = started_s[-1] - started_s[0]
    if budget_s is not None and spent_s > budget_s:
        pytest.skip(f"{spent_s:.0f} s of {budget_s:g} s have passed")
    kernel, workload = ready(request.param)
    repeats = config.getoption("--validation-repeats") if request.param in REPEATED else 0
    return Subject(request.param, kernel, workload, repeats)


@pytest.fixture(scope="session")
def source(gpu: Device) -> EnergySource:
    """The energy source of the references; shared, because it learns the counter's schedule."""
    return choose_source(gpu)


class Notebook:
    """The run's file, rewritten after every kernel."""

    def __init__(self, path: Path, gpu: Device) -> None:
        self.path = path
        self.validation = Validation({})
        self._gpu = gpu

    def add(self, validated: Validated) -> None:
        if not self.validation.run:
            self.validation = Validation(_described(self._gpu))
        self.validation = self.validation.with_kernel(validated)
        self.validation.write(self.path)


@pytest.fixture(scope="session")
def notebook(request: pytest.FixtureRequest, gpu: Device) -> Iterator[Notebook]:
    config = request.config
    path = config.invocation_params.dir / config.getoption("--validation-json")
    made = Notebook(path, gpu)
    yield made
    if made.validation.kernels:
        print(f"\nvalidation: python bench/validation/table.py {path}")


def _described(gpu: Device) -> dict[str, Any]:
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpu_name": gpu.name,
        "gpu_uuid": gpu.uuid,
        "emulated": gpu.emulated,
        "power_limit_w": enforced_setpoint(gpu).power_limit_w,
        "software": gpu.describe(),
        "settings": asdict(MeterSettings()),
    }
