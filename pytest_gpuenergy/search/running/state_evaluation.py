"""Evaluates one state: compile, verify on all sizes, time, measure power, verify again.

What does not depend on the state is made once for a search: the hidden seeds with their inputs and
references, the outputs of a baseline that is the reference, and the unlisted sizes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter
from typing import Any

from pytest_gpuenergy.control import enforced_setpoint
from pytest_gpuenergy.devices import Device, KernelRepeater
from pytest_gpuenergy.energy import SW_POWER_CAP, EnergyMeter, LoadEndedError, check_responds
from pytest_gpuenergy.engine import (
    CASES_AT_ONCE,
    DURATION_S,
    QUICK,
    TIMEOUT_S,
    Drawing,
    check_again,
    drawings_of,
    median_time_ms,
    seeded_arenas,
    seeded_check,
    verify_on_device,
)
from pytest_gpuenergy.kernels import AnyKernel, Job
from pytest_gpuenergy.record import Correctness, Metric, peaks_of
from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec, State
from pytest_gpuenergy.search.spec.reference import BaselineOutputs
from pytest_gpuenergy.search.spec.spec_workload import (
    SpecWorkload,
    floor_ms,
    sized_name,
    workload_of,
)
from pytest_gpuenergy.search.spec.state_kernel import kernel_of
from pytest_gpuenergy.search.validation.hidden_inputs import (
    Hidden,
    Sizes,
    allows_other_sizes,
    draw_other_sizes,
)
from pytest_gpuenergy.search.validation.result import PowerCutoff, Result
from pytest_gpuenergy.search.validation.variant_refusals import (
    check_fits,
    check_plausible,
    check_text,
    check_variables,
    sizes_withheld,
)
from pytest_gpuenergy.support import DeviceError, InputError, KernelFault


@dataclass(frozen=True)
class SearchBench:
    """Evaluates the states of a spec on one device.

    Attributes:
        spec: the spec of the kernel.
        device: the device, which the caller has claimed and set to a power limit.
        objective: the metric that the search minimizes.
        seed: the seed of the search.
    """

    spec: KernelSpec
    device: Device
    objective: Metric
    seed: int = 0

    def prepare(self, states: Iterable[State]) -> None:
        """Start compiling states in the background; their evaluation reports any errors."""
        for state in states:
            with suppress(KernelFault):
                check_text(state, self.spec)  # first: compiling a Triton module executes it
                for sizes in self.spec.sizes:
                    self.device.prepare_job(self.job(state, sizes))

    def evaluate(
        self, state: State, limit: PowerCutoff | None = None, ahead: Sequence[State] = ()
    ) -> Result:
        """Evaluate a state; one that is wrong or fails has a result without figures.

        On an emulated GPU this takes place on a card of its own, so that figures do not depend on
        what was evaluated before.

        Args:
            state: the state to evaluate.
            limit: the time beyond which its power need not be measured.
            ahead: the states to compile meanwhile, because they may follow.

        Raises:
            DeviceError: the device does not respond.
            InputError: the reference cannot be computed.
        """
        if state.id == self.spec.baseline.id:
            self._begin_references()
        with self.device.twin() as device:
            return _StateEvaluation(self, device, state, ahead=ahead).run(limit)

    def _begin_references(self) -> None:
        """Begin to compute on a real GPU, in the background, what the baseline is verified by.

        It is timed only after that. Errors are raised where the references are needed.
        """
        arrays = self.device.arrays
        if arrays is None or not self.spec.reference:
            return
        pool = ThreadPoolExecutor(CASES_AT_ONCE, "references")
        for sizes in self.spec.sizes:
            workload = self.workload(sizes, self.device)
            for drawing in drawings_of(self.hidden.seeds(workload.name), workload):
                pool.submit(self.hidden.cases.case_of, workload, drawing, arrays)
        pool.shutdown(wait=False)

    def verify_afresh(self, state: State) -> str:
        """Verify a state once more, on inputs on which no variant was verified.

        Returns:
            The reason why it is wrong; empty if it is correct.

        Raises:
            DeviceError: the device does not respond.
            InputError: the reference cannot be computed.
        """
        with self.device.twin() as device:
            return _StateEvaluation(self, device, state, purpose=f"again {state.id} ").fault()

    def why_unproven(self, state: State) -> str:
        """Return the reason why the device's figures cannot prove a gain, as a sentence.

        The result is empty for a real card, and if the emulated GPU's model was compared with a
        real card for kernels of this kind.

        Raises:
            InputError: the inputs cannot be drawn.
        """
        if not self.device.emulated:
            return ""
        seed, *_ = self.hidden.seeds("time")
        sizes = self.spec.sizes[0]
        with self.device.twin() as device:
            workload = self.workload(sizes, device)
            job = Job.of(kernel_of(self.spec, state, sizes), workload, seed=seed)
            with seeded_arenas(workload, seed) as arenas:
                difference = device.beyond_model(job, arenas)
        if difference is None:
            return ""
        return (
            "the emulated GPU's model was not compared with kernels of this kind: no gain proven "
            f"({difference})"
        )

    @cached_property
    def meter(self) -> EnergyMeter:
        """The meter of the device, which learns about it from state to state."""
        return EnergyMeter(self.device)

    @cached_property
    def hidden(self) -> Hidden:
        """The seeds of inputs, and all else that no kernel can know.

        On an emulated GPU, the seeds are drawn from that of the search.
        """
        return Hidden(self.seed if self.device.emulated else None)

    @cached_property
    def other_sizes(self) -> Sizes | None:
        """A set of sizes that the spec does not list, see `draw_other_sizes`."""
        # S311 asks for a generator of secrets, which has no seed to draw the same sizes from again.
        draw = random.Random(self.hidden.seeds("other sizes")[0])  # noqa: S311
        with self.device.twin() as device:
            baseline = _StateEvaluation(self, device, self.spec.baseline)
            if not allows_other_sizes(self.spec) or not baseline.is_right(self.spec.sizes[-1]):
                return None
            return draw_other_sizes(self.spec, draw, baseline.is_right)

    def job(self, state: State, sizes: Sizes) -> Job:
        """Return what is compiled for a state with one set of sizes."""
        name = sized_name(self.spec, sizes)
        if name not in self.hidden.contracts:
            self.hidden.contracts[name] = workload_of(self.spec, sizes, dict).io
        return Job(kernel_of(self.spec, state, sizes), self.hidden.contracts[name])

    def workload(self, sizes: Mapping[str, int], device: Device) -> SpecWorkload:
        """Return the workload with one set of sizes; by default the baseline is its reference."""
        if self.spec.reference:
            return workload_of(self.spec, sizes)
        kernel = kernel_of(self.spec, self.spec.baseline, sizes)
        io = workload_of(self.spec, sizes, dict).io
        outputs = self.hidden.outputs[io.name]
        return workload_of(self.spec, sizes, BaselineOutputs(device, kernel, io, outputs))


@dataclass(frozen=True)
class _Case:
    """A state with one set of sizes, and the seeds of its verification.

    Attributes:
        step: the name of its verification among the steps.
    """

    step: str
    sizes: Sizes
    kernel: AnyKernel
    workload: SpecWorkload
    seeds: tuple[int, ...]


@dataclass
class _StateEvaluation:
    """The evaluation of one state.

    Attributes:
        device: the device, which is a card of its own if it is emulated.
        ahead: other states to compile meanwhile.
        purpose: distinguishes the hidden seeds of a second verification.
        floor_ms: the least time by the card's peaks.
        steps_s: the wall time of each step so far.
        correctness: the errors by workload so far.
    """

    bench: SearchBench
    device: Device
    state: State
    purpose: str = ""
    ahead: Sequence[State] = ()
    floor_ms: float = 0.0
    steps_s: dict[str, float] = field(default_factory=dict)
    correctness: dict[str, Correctness] = field(default_factory=dict)

    def run(self, limit: PowerCutoff | None) -> Result:
        figures: dict[str, Any] = {}
        fault: KernelFault | None = None
        try:
            cases = self._verify_sizes("time")
            figures = self._figures(cases[0], limit)
        except KernelFault as error:
            check_responds(self.device, error)
            fault = error
        others = None if fault else self.bench.other_sizes
        return Result(
            id=self.state.id,
            outcome="correct" if fault is None else fault.outcome,
            emulated=self.device.emulated,
            objective=self.bench.objective,
            gpu=self.device.uuid,
            **figures,
            floor_ms=self.floor_ms,
            message=None if fault is None else str(fault),
            correctness=self.correctness,
            other_sizes=None if others is None else dict(others),
            steps_s={name: round(seconds, 3) for name, seconds in self.steps_s.items()},
        )

    def fault(self) -> str:
        """Return the reason why the state is wrong, without timing it; empty if it is correct."""
        try:
            self._verify_sizes()
        except KernelFault as error:
            check_responds(self.device, error)
            return str(error)
        return ""

    def _verify_sizes(self, *purposes: str) -> list[_Case]:
        """Verify the state with all sizes, and return it with the listed ones.

        The first case will also run on hidden seeds for each of the ``purposes``.

        Raises:
            KernelFault: the state is refused, or wrong.
        """
        check_text(self.state, self.bench.spec)
        cases = [
            self._case(sizes, f"sizes[{number}]")
            for number, sizes in enumerate(self.bench.spec.sizes)
        ]
        unlisted = []
        if (others := self.bench.other_sizes) is not None:
            with sizes_withheld():
                unlisted = [self._case(others, "other sizes")]
        self._prepare([*cases, *unlisted], purposes)
        for case in cases:
            self._compile(case)
        for case in unlisted:
            with sizes_withheld():
                self._compile(case)
        for case in cases:
            self._verify(case, measured=case is cases[0])
        for case in unlisted:
            with sizes_withheld():
                self._verify(case)
        return cases

    def is_right(self, sizes: Sizes) -> bool:
        """Return whether the state is correct with these sizes; nothing is timed."""
        try:
            case = self._case(sizes, "other sizes")
            self._prepare([case])
            self._compile(case)
            self._verify(case)
        except KernelFault as error:
            check_responds(self.device, error)
            return False
        except InputError:  # for example, a reference that only works for the listed sizes
            return False
        return True

    def _case(self, sizes: Sizes, step: str) -> _Case:
        kernel = kernel_of(self.bench.spec, self.state, sizes)
        if refusal := self.device.refusal(kernel):
            raise KernelFault("constraints", refusal)
        workload = self.bench.workload(sizes, self.device)
        check_fits(workload)
        seeds = self.bench.hidden.seeds(f"{self.purpose}{workload.name}")
        return _Case(step, sizes, kernel, workload, seeds)

    def _compile(self, case: _Case) -> None:
        """Wait until a case is compiled, and check what it keeps from one launch to the next."""
        with self._time_step("compile"):
            self.device.compile_job(self.bench.job(self.state, case.sizes))
        if variable_bytes := self.device.variable_bytes(case.kernel):
            baseline = kernel_of(self.bench.spec, self.bench.spec.baseline, case.sizes)
            check_variables(variable_bytes, self.device.variable_bytes(baseline))

    def _prepare(self, cases: Sequence[_Case], purposes: Sequence[str] = ()) -> None:
        """Start a new worker process for the state, which begins to use the GPU meanwhile.

        The state is compiled at the same time, and then those that may follow.

        A baseline that is the reference runs before that on all inputs for which its outputs are
        missing, because it must not share a process with the state.
        """
        hidden, modules = self.bench.hidden, cases[0].kernel.modules
        if not self.bench.spec.reference:
            drawings = [
                (case.workload, drawing)
                for case in cases
                for drawing in drawings_of(case.seeds, case.workload)
            ]
            drawings += [
                (cases[0].workload, Drawing(hidden.seeds(purpose)[0])) for purpose in purposes
            ]
            with self._time_step("reference"):
                missing = [
                    (workload, drawing)
                    for workload, drawing in drawings
                    if (workload.name, drawing) not in hidden.ready
                ]
                if missing:
                    self.device.renew(modules)
                try:
                    for workload, drawing in missing:
                        hidden.cases.case_of(workload, drawing, self.device.arrays)
                        hidden.ready.add((workload.name, drawing))
                except KernelFault as fault:
                    if self.state.id == self.bench.spec.baseline.id:
                        raise
                    raise DeviceError(
                        f"The baseline of {self.bench.spec.name}, which is the reference, was "
                        f"correct and fails now: {fault}"
                    ) from None
        with self._time_step("start"):
            self.device.renew(modules)
            self.device.begin_context()
        with self._time_step("compile"):
            self.bench.prepare([self.state, *self.ahead])

    def _verify(self, case: _Case, *, measured: bool = False) -> None:
        with self._time_step(f"verify {case.step}"):
            self.correctness[case.workload.name] = verify_on_device(
                self.device,
                case.kernel,
                case.workload,
                seeds=case.seeds,
                kept=self.bench.hidden.cases,
                measured=measured,
                near_literals=bool(self.bench.spec.reference),  # else the baseline has run already
            )

    def _figures(self, case: _Case, limit: PowerCutoff | None) -> dict[str, Any]:
        """Measure a case back to back, verify it again, and return figures of `Result`."""
        device, cases = self.device, self.bench.hidden.cases
        self.floor_ms = floor_ms(case.workload, peaks_of(device.name))
        seed, *_ = self.bench.hidden.seeds("time")
        job = Job.of(case.kernel, case.workload, seed=seed, timeout_s=TIMEOUT_S)
        with ExitStack() as stack:
            with self._time_step("load"):
                arenas = stack.enter_context(seeded_arenas(case.workload, seed, device.arrays))
                check = seeded_check(device, case.workload, arenas, seed, cases)
                repeater = stack.enter_context(device.repeat(job, arenas))
            with self._time_step("time"):  # in the first moments, when no limit slows the card yet
                repeater.start()
                device.clock.sleep_s(DURATION_S)
                burst_ms = median_time_ms(repeater.stop())
            check_plausible(burst_ms, self.floor_ms, device.name)
            figures: dict[str, Any] = {"time_ms": burst_ms, "burst_time_ms": burst_ms}
            if self.bench.objective != Metric.TIME:
                if limit is not None and burst_ms > limit.time_ms:
                    figures["assumed_power_w"] = limit.power_w
                else:
                    # A device of its own, which an emulated state has, has nothing to learn from.
                    own = device is not self.bench.device
                    meter = EnergyMeter(device) if own else self.bench.meter
                    with self._time_step("power"):
                        figures |= self._measured(meter, repeater, burst_ms, limit)
            with self._time_step("verify again"):
                check_again(repeater, check)
        return figures

    def _measured(
        self,
        meter: EnergyMeter,
        repeater: KernelRepeater,
        burst_ms: float,
        cutoff: PowerCutoff | None,
    ) -> dict[str, Any]:
        """Measure power and energy, unless the first moments show that the state is not the best.

        Figures of these moments are a few per cent off. At its limit a card swings about that; so
        no more counts, and the time is left as it is before the limit slows the card.
        """
        limit_w = enforced_setpoint(self.device).power_limit_w or math.inf

        def is_worse(power_w: float) -> bool:
            assert cutoff is not None
            return cutoff.is_passed(burst_ms, min(power_w, limit_w), self.bench.objective)

        try:
            reading = meter.measure(repeater, QUICK, None if cutoff is None else is_worse)
        except LoadEndedError as ended:
            return {"assumed_power_w": min(ended.power_w, limit_w)}
        return {
            "time_ms": reading.time_ms.value,
            "power_w": reading.power_w,
            "energy_mj": reading.energy_mj.value,
            "cap_binding": bool(reading.event_reasons & SW_POWER_CAP),
        }

    @contextmanager
    def _time_step(self, step: str) -> Iterator[None]:
        began = perf_counter()
        try:
            yield
        finally:
            self.steps_s[step] = self.steps_s.get(step, 0.0) + perf_counter() - began
