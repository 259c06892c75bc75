"""The object behind the fixture ``energy_benchmark``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pytest_gpuenergy.devices.device import Repeater
from pytest_gpuenergy.energy.lease import enforced_limit_w
from pytest_gpuenergy.energy.powercap import CURRENT, PowerCap
from pytest_gpuenergy.errors import GpuEnergyError, InputError
from pytest_gpuenergy.harness import Subject
from pytest_gpuenergy.kernels.kernel import Kernel
from pytest_gpuenergy.report.measurement import Measurement, WorkloadInfo
from pytest_gpuenergy.report.tables import words
from pytest_gpuenergy.session import Session
from pytest_gpuenergy.verification import compare
from pytest_gpuenergy.workloads.workload import ErrorBound, Workload


class EnergyBenchmark:
    """Measures what one item gives it, under the item's power cap."""

    def __init__(self, item: pytest.Item, session: Session, cap: PowerCap | None) -> None:
        self._item = item
        self._session = session
        self._cap = cap or CURRENT

    def __call__(
        self,
        subject: Kernel | Callable[..., Any],
        *args: object,
        workload: Workload | None = None,
        reference: object = None,
        bound: float = 1e-5,
        label: str | None = None,
        flops: int = 0,
    ) -> Measurement:
        """Verify, measure, record.

        Args:
            subject: a `Kernel`, or a callable that launches work on the current CUDA stream.
            args: the callable's arguments.
            workload: what the kernel computes; needed for a kernel.
            reference: what the callable must return (array-like), within ``bound`` of its norm
                and largest element; unchecked when None.
            bound: see ``reference``.
            label: the kernel's name in the report; default ``k01`` from its rank, or its hash.
            flops: floating-point operations of one call of a callable, for GFLOP/s.

        Returns:
            The measurement, which is on disk by then.

        Raises:
            InputError: a kernel without a workload.
        """
        session = self._session
        try:
            if self._cap == CURRENT:
                session.apply(CURRENT)
            enforced_w = enforced_limit_w(session.device)
            named = Subject(self._item.nodeid, label or _label(subject), self._cap, enforced_w)
            if isinstance(subject, Kernel):
                measurement = self._kernel(subject, workload, named)
            else:
                measurement = self._callable(subject, args, reference, bound, flops, named)
            session.keep(measurement)
        except InputError:
            raise
        except GpuEnergyError as error:
            problem = str(error)
        else:
            self._tell(measurement)
            return measurement
        # Out of the handler, or the report would show the sentence twice.
        pytest.fail(problem, pytrace=False)

    def _kernel(self, kernel: Kernel, workload: Workload | None, named: Subject) -> Measurement:
        if workload is None:
            raise InputError("energy_benchmark needs workload=... to prove a kernel right.")
        if self._session.already_measured(named, kernel.digest):
            pytest.skip(f"measured already in run {self._session.run_id}")
        return self._session.harness.measure_kernel(kernel, workload, named)

    def _callable(
        self,
        function: Callable[..., Any],
        args: tuple[object, ...],
        reference: object,
        bound: float,
        flops: int,
        named: Subject,
    ) -> Measurement:
        device = self._session.device
        if device.emulated:
            pytest.skip("a callable needs a real GPU: the emulated one runs CUDA text only")
        from pytest_gpuenergy.devices.replay import GraphRepeater

        if reference is not None:
            result = {"result": _to_numpy(function(*args))}
            expected = {"result": np.asarray(reference, dtype=np.float64)}
            compare(result, expected, ErrorBound(bound, bound), seed=0)
        captured = []

        @contextmanager
        def repeater() -> Iterator[Repeater]:
            replayed = GraphRepeater(lambda: function(*args), must_capture=False)
            captured.append(replayed.captured)
            yield replayed

        info = WorkloadInfo(self._item.name, {}, flops, 0)
        measurement = self._session.harness.measure_callable(repeater, info, named, "callable")
        return measurement if all(captured) else _flagged(measurement, "host_gaps")

    def _tell(self, m: Measurement) -> None:
        if not m.measured:
            what = "not measured" if m.outcome == "correct" else m.outcome
            pytest.fail(f"{what}: {m.error}", pytrace=False)
        self._item.user_properties += [
            ("time_ms", m.time_ms),
            ("energy_mj", m.energy_mj),
            ("edp_mj_ms", m.edp_mj_ms),
            ("power_w", m.power_w),
            ("enforced_power_limit_w", m.enforced_power_limit_w),
            ("emulated", self._session.device.emulated),
            ("validity", " ".join(m.validity)),
            ("gpuenergy", words(m)),
        ]


def _label(subject: Kernel | Callable[..., Any]) -> str:
    if not isinstance(subject, Kernel):
        return str(getattr(subject, "__name__", "callable"))
    rank = subject.origin.rank
    return subject.short_digest if rank is None else f"k{rank:02d}"


def _flagged(measurement: Measurement, flag: str) -> Measurement:
    return replace(measurement, validity=tuple({*measurement.validity, flag}))


def _to_numpy(value: Any) -> Any:
    if hasattr(value, "get"):  # CuPy
        return value.get()
    if hasattr(value, "detach"):  # PyTorch
        return value.detach().cpu().numpy()
    return np.asarray(value)
