"""The object behind the fixture ``energy_benchmark``."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from enum import Enum
from numbers import Integral, Real
from typing import Any, NoReturn

import pytest
from msgspec.structs import replace

from pytest_gpuenergy import ab
from pytest_gpuenergy.control import CURRENT, Setpoint
from pytest_gpuenergy.engine import (
    Replayable,
    Specification,
    Subject,
    VerifiedCallable,
    describe_workload,
)
from pytest_gpuenergy.kernels import AnyKernel, Job
from pytest_gpuenergy.pytest_plugin.declared_options import FIGURES, POWERCAP_FIXTURE
from pytest_gpuenergy.pytest_plugin.gate import GatePlugin, set_properties
from pytest_gpuenergy.pytest_plugin.session import Session
from pytest_gpuenergy.record import VERIFIED, Measurement, WorkloadInfo
from pytest_gpuenergy.report import words
from pytest_gpuenergy.support import (
    DeviceError,
    GpuEnergyError,
    InputError,
    KernelFault,
    emulated_mark,
)
from pytest_gpuenergy.workloads import ErrorBound, Workload, whole_flops

_ENDED = pytest.StashKey[bool]()
_MAX_INTEGER = 1 << 63
"""Limit of integers that every reader of JSON understands; larger ones are stored as text."""


def end_verified(item: pytest.Item) -> NoReturn:
    """End an item whose kernel is correct, because the rest of its test may need figures."""
    item.stash[_ENDED] = True
    item.user_properties.append((FIGURES, VERIFIED))
    pytest.skip(VERIFIED)


class VerifyOnlyPlugin:
    """Lets items pass that `end_verified` has ended."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Report an ended item as passed, unless it ended in a fixture, before its test began."""
        report = yield
        ended = item.stash.get(_ENDED, False) and call.excinfo is not None
        if call.when == "call" and ended and report.skipped:
            report.outcome, report.longrepr = "passed", None
        return report


def kernel_label(subject: AnyKernel | Callable[..., Any]) -> str:
    """Return ``k01`` from a kernel's rank, or else the name of its function; a callable's own name.

    The hash is not used, because the next version of a kernel must have the same label.
    """
    if not isinstance(subject, AnyKernel):
        return str(getattr(subject, "__name__", "callable"))
    rank = subject.origin.rank
    return subject.label if rank is None else f"k{rank:02d}"


def item_label(item: pytest.Item, label: str, workload: str, setpoint: Setpoint) -> str:
    """Return ``label`` with the ids of the item's parameters, such as ``scale-64``.

    Ids that the measurement already contains are omitted: the power cap, the workload's name and
    ``label`` itself. With the label ``scale``, ``test_scale[64-450W]`` becomes ``scale-64``. The
    item ``test_conv2d[case1-k01-450W]`` of workload ``case1`` and kernel ``k01`` has the label
    ``k01``.
    """
    callspec = getattr(item, "callspec", None)
    if callspec is None:
        return label
    ids = callspec.id
    if {"powercap", POWERCAP_FIXTURE} & callspec.params.keys():
        # The cap is the last parameter, unless the test parametrizes it itself.
        ids = _without(ids, setpoint.label, last=True)
    for part in (workload, label):
        ids = _without(ids, part)
    return f"{label}-{ids}" if ids else label


def plain_parameters(item: pytest.Item) -> dict[str, str | int | float | bool]:
    """Return the parameters of an item that are text or finite numbers, by name.

    A member of an enumeration counts as text. The power cap is left out, because the measurement
    contains it.
    """
    callspec = getattr(item, "callspec", None)
    params = {} if callspec is None else callspec.params
    found: dict[str, str | int | float | bool] = {}
    for name, value in params.items():
        if isinstance(value, Enum):
            found[name] = value.name
        elif isinstance(value, str | bool):
            found[name] = value
        elif isinstance(value, Integral):
            whole = int(value)
            found[name] = whole if abs(whole) < _MAX_INTEGER else str(whole)
        elif isinstance(value, Real) and math.isfinite(value):
            found[name] = float(value)
    return {name: value for name, value in found.items() if name != POWERCAP_FIXTURE}


def _without(ids: str, part: str, *, last: bool = False) -> str:
    """Return ``ids`` without the first (or ``last``) ``part`` between dashes."""
    dashed = f"-{ids}-"
    at = dashed.rfind(f"-{part}-") if last else dashed.find(f"-{part}-")
    return ids if at < 0 else f"{dashed[:at]}{dashed[at + len(part) + 1 :]}"[1:-1]


def _check_arguments(subject: object, workload: object, reference: object, label: object) -> None:
    """Raise InputError for an argument of a wrong type, or that does not apply to the subject."""
    is_kernel, is_replay = isinstance(subject, AnyKernel), isinstance(subject, Replayable)
    if not (is_kernel or is_replay or callable(subject)):
        raise InputError(
            f"energy_benchmark does not measure {subject!r:.80}: give a kernel, as load_kernel "
            "returns, or something to call."
        )
    if not isinstance(workload, Workload | None):
        raise InputError(
            f"energy_benchmark does not accept workload={workload!r:.80}: give a workload, such as "
            "a Contract, or find_workload(name)."
        )
    if is_replay and reference is not None:
        raise InputError("energy_benchmark takes no reference= for what is replayed.")
    if is_kernel and reference is not None:
        raise InputError(
            "energy_benchmark takes no reference= for a kernel: give it to the workload, such as "
            "compute in Contract(name, contract, compute)."
        )
    if not isinstance(label, str | None):
        raise InputError(f"energy_benchmark does not accept label={label!r}: give a string.")


class EnergyBenchmark:
    """Measures one kernel or callable at the item's setpoint."""

    def __init__(
        self, item: pytest.Item, session: Session, setpoint: Setpoint | None, gate: GatePlugin
    ) -> None:
        self._item = item
        self._session = session
        self._gate = gate
        self._setpoint = setpoint or CURRENT
        self._used = False

    def __call__(
        self,
        subject: AnyKernel | Replayable | Callable[..., Any],
        *args: object,
        workload: Workload | None = None,
        reference: object = None,
        bound: float | ErrorBound | None = None,
        label: str | None = None,
        flops: int = 0,
    ) -> Measurement:
        """Verify, measure and record a kernel or a callable.

        Args:
            subject: a `Kernel`, `TritonKernel` or `LibraryCall`, a `Replayable`, which has its own
                label and workload and is not verified, or a callable that launches work on the
                current CUDA stream.
            args: the callable's arguments.
            workload: what is computed; required for a kernel. A callable's measurement is named
                after it, or else after the item.
            reference: the expected result of a callable: an array on any device, a tuple, list or
                dictionary of arrays, or a function that returns one of these when called with
                copies of ``args``. The result is unchecked when None. A kernel's reference belongs
                to its workload.
            bound: largest error of the callable's result, as a fraction of the reference's norm and
                of its largest element; default: those of the workload's outputs, or 1e-5 without a
                workload, plus the rounding of a result in half precision.
            label: the kernel's name in the report, by which runs are compared. The default is
                ``k01`` from its rank, or else the entry point of its first launch or the callable's
                name, followed by the ids of the item's parameters; see `item_label`.
            flops: floating-point operations per call of a callable without a workload, for GFLOP/s.

        Returns:
            The measurement, which is already on disk.

        Raises:
            InputError: a kernel without a workload or with a reference; an invalid label, bound or
                number of operations; another item of the run with the same workload, label, cap and
                cache state; or a second call, since an item makes one measurement.
        """
        if self._used:
            raise InputError(
                f"energy_benchmark was already used in {self._item.nodeid}: parametrize the test, "
                "so that each measurement is an item of its own."
            )
        self._used = True
        flops = whole_flops(flops, "energy_benchmark")
        _check_arguments(subject, workload, reference, label)
        limit = None if bound is None else ErrorBound.of(bound, "A call of energy_benchmark")
        session = self._session
        try:
            if self._setpoint == CURRENT:
                session.apply(CURRENT)
            if isinstance(subject, Replayable):
                label = label or subject.label
            elif not label:
                label = kernel_label(subject)
                if workload is not None:  # otherwise it is named after the item and its parameters
                    label = item_label(self._item, label, workload.name, self._setpoint)
            named = Subject(self._item.nodeid, label, self._setpoint, session.card.enforced())
            anchor: tuple[Any, ...] = ()
            if isinstance(subject, AnyKernel):
                found = self._kernel(subject, workload, named)
                anchor = (subject, workload)
            elif isinstance(subject, Replayable):
                found = self._measure_replay(subject, named)
            else:
                if workload is None:
                    info = WorkloadInfo(self._item.name, {}, flops, 0)
                else:
                    info = describe_workload(workload)
                checked = reference is not None
                specification = Specification(reference, limit, workload) if checked else None
                found = self._callable(subject, args, specification, info, named)
            measurement = self._keep(found, named)
            session.anchors.add(named, measurement, *anchor)
        except InputError:
            raise
        except GpuEnergyError as error:
            problem = str(error)
        else:
            if measurement.verified_only:
                end_verified(self._item)
            self._report_figures(measurement)
            self._judge(measurement)
            return measurement
        # Outside the handler, or the report would show the sentence twice.
        pytest.fail(problem, pytrace=False)

    def begin(self, workload: Workload) -> None:
        """Heat a card that has rested, and compute references, until the item is measured or ends.

        The caller times nothing on the card meanwhile; see `Harness.begin`.
        """
        if self._session.card.measures:
            self._session.harness.begin(workload)

    def _keep(self, measurement: Measurement, named: Subject) -> Measurement:
        """Add the item's parameters and the session's flags to a measurement; write it to disk."""
        measurement = replace(measurement, parameters=plain_parameters(self._item))
        if measurement.measured:
            flags = (*self._session.card.judge_setpoint(), *self._session.anchors.flags(named))
            measurement = measurement.flagged(*flags)
        self._session.keep(measurement)
        return measurement

    def _claim(self, named: Subject, workload: str) -> None:
        """Reject an item that could not be distinguished from another item of the run."""
        identity = named.identity(workload, self._session.options.cache)
        self._session.identities.assign(identity, named.node_id)

    def _kernel(self, kernel: AnyKernel, workload: Workload | None, named: Subject) -> Measurement:
        if workload is None:
            raise InputError("energy_benchmark needs workload=... to verify a kernel.")
        if reason := self._session.card.device.refusal(kernel):
            pytest.skip(reason)
        if (folder := self._session.options.export_folder) is not None:
            draft, fault = self._session.harness.verify_kernel(kernel, workload, named)
            if fault is not None:
                ab.export_failure(folder, draft)
                raise fault
            ab.export(folder, draft, Job.of(kernel, workload), workload)
            pytest.skip(f"written to {folder}, not measured")
        self._claim(named, workload.name)
        if earlier := self._session.resumption.already_measured(
            named, kernel.digest, describe_workload(workload)
        ):
            if earlier.measured:
                self._session.recall_anchor(named, earlier, kernel, workload)
            self._skip_measured(earlier)
        try:
            if self._session.options.verify_only:
                return self._session.harness.verify_kernel(kernel, workload, named)[0]
            self._session.check_card(named)
            return self._session.harness.measure_kernel(kernel, workload, named)
        except OSError as error:  # a full disk, too many open files, a folder removed
            raise DeviceError(
                f"The operating system denies a resource that measuring needs ({error}): free some "
                "space, or raise the limit."
            ) from None

    def _measure_replay(self, subject: Replayable, named: Subject) -> Measurement:
        session = self._session
        if session.options.cache != "hot":
            pytest.skip("what is replayed has buffers of its own: its cache cannot be cold")
        if session.options.export_folder is not None:
            pytest.skip("what is replayed cannot be exported")
        if session.options.verify_only:
            pytest.skip("what is replayed can be measured, but not verified")
        self._claim(named, subject.workload.name)
        if earlier := session.resumption.already_measured(named, "", subject.workload):
            self._skip_measured(earlier)
        session.check_card(named)
        try:
            return session.harness.measure_callable(
                subject.repeater, subject.workload, named, "replay"
            )
        except RuntimeError as error:  # CUDA's, too
            raise KernelFault("runtime", str(error).strip().partition("\n")[0]) from None

    def _callable(
        self,
        function: Callable[..., Any],
        args: tuple[object, ...],
        specification: Specification | None,
        info: WorkloadInfo,
        named: Subject,
    ) -> Measurement:
        device = self._session.card.device
        if device.emulated:
            pytest.skip("a callable needs a real GPU: the emulated one runs CUDA text only")
        if self._session.options.cache != "hot":
            pytest.skip("a callable has its own buffers, which cannot rotate: its cache is hot")
        if self._session.options.export_folder is not None:
            pytest.skip("a callable cannot be exported")
        if self._session.options.verify_only and specification is None:
            pytest.skip("a callable without a reference can be measured, but not verified")
        self._claim(named, info.name)
        _refuse_misplaced(device.misplaced(args))
        verified = VerifiedCallable.of(function, args, specification)
        _refuse_misplaced(device.misplaced(()))  # it may have made another GPU the current one
        if self._session.options.verify_only:
            draft = self._session.harness.draft_of_callable(info, named, "callable")
            return replace(draft, correctness=verified.correctness)
        self._session.check_card(named)
        return verified.measure(self._session.harness, info, named)

    def _skip_measured(self, earlier: Measurement) -> NoReturn:
        """Skip an item that the run being resumed has measured or verified."""
        if earlier.measured:
            self._judge(earlier)
        done = "measured" if earlier.measured else "verified"
        pytest.skip(f"already {done} in run {self._session.run_id}")

    def _judge(self, m: Measurement) -> None:
        assert self._session.run is not None
        if problem := self._gate.judge(self._item, m, self._session.run):
            pytest.fail(problem, pytrace=False)

    def _report_figures(self, m: Measurement) -> None:
        if not m.measured:
            what = "not measured" if m.outcome == "correct" else m.outcome
            pytest.fail(f"{what}: {m.error}", pytrace=False)
        emulated = self._session.card.device.emulated
        properties = {
            "time_ms": m.time_ms,
            "energy_mj": m.energy_mj,
            "edp_mj_ms": m.edp_mj_ms,
            "power_w": m.power_w,
            "enforced_power_limit_w": m.enforced_power_limit_w,
            "emulated": emulated,
            "validity": " ".join(m.validity),
            FIGURES: f"{words(m)}{emulated_mark(emulated)}",
        }
        set_properties(self._item, properties.items())


def _refuse_misplaced(reason: str | None) -> None:
    if reason is not None:
        raise InputError(reason)
