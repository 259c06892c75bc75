"""Evaluates one state: compile, verify on all sizes, time, measure power, verify again."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter

from pytest_gpuenergy.devices.device import Device, Repeater
from pytest_gpuenergy.energy.meter import EnergyMeter
from pytest_gpuenergy.energy.sensors import answers
from pytest_gpuenergy.engine.arena_check import check_again
from pytest_gpuenergy.engine.quick import DURATION_S, QUICK, TIMEOUT_S, median_time_ms
from pytest_gpuenergy.engine.references import Drawing, case_of
from pytest_gpuenergy.engine.seeds import LARGEST_SEED, SEEDS, drawings_of
from pytest_gpuenergy.engine.verification import arenas_for, check_of, verify
from pytest_gpuenergy.kernels.job import Job
from pytest_gpuenergy.kernels.kernel import AnyKernel
from pytest_gpuenergy.record.correctness import Correctness
from pytest_gpuenergy.record.metrics import Metric
from pytest_gpuenergy.record.peaks import peaks_of
from pytest_gpuenergy.search.additions import additions
from pytest_gpuenergy.search.kernel import kernel_of
from pytest_gpuenergy.search.memory import check_fits
from pytest_gpuenergy.search.other_sizes import Sizes, has_others, other_sizes
from pytest_gpuenergy.search.reference import BaselineOutputs
from pytest_gpuenergy.search.result import Result
from pytest_gpuenergy.search.roofline import floor_ms
from pytest_gpuenergy.search.spec import KernelSpec
from pytest_gpuenergy.search.state import State
from pytest_gpuenergy.search.triton_checks import ModuleError
from pytest_gpuenergy.search.workload import SpecWorkload, workload_of
from pytest_gpuenergy.support.errors import DeviceError, InputError, KernelFault

_TURNS = 3
"""Seeds of a verification: ordinary inputs, and inputs with edges of either sign."""


@dataclass(frozen=True)
class Bench:
    """Where the states of a spec are evaluated, and for what.

    Attributes:
        spec: what they compute.
        device: claimed by the caller, under its power limit.
        objective: what is minimized.
        seed: of the search.
    """

    spec: KernelSpec
    device: Device
    objective: Metric
    seed: int = 0

    def prepare(self, states: Iterable[State]) -> None:
        """Start compiling states in the background; what is wrong with them is told later."""
        for state in states:
            for sizes in self.spec.sizes:
                with suppress(KernelFault):
                    self.device.prepare([kernel_of(self.spec, state, sizes)])

    def evaluate(self, state: State) -> Result:
        """Evaluate a state; one that is wrong or fails has a result without figures.

        On an emulated GPU this takes place on a card of its own, so that figures do not depend on
        what was evaluated before.

        Raises:
            DeviceError: the device does not respond.
            InputError: the reference cannot be computed.
        """
        with self.device.twin() as device:
            return _Evaluation(self, device, state).run()

    def hidden_seeds(self, purpose: str) -> tuple[int, ...]:
        """Seeds of inputs that no kernel can know; on an emulated GPU, the same in every run."""
        if self.device.emulated:
            drawn = random.Random(f"{self.seed} {purpose}")  # noqa: S311 -- to be repeated
            return tuple(drawn.randrange(len(SEEDS), LARGEST_SEED) for _ in range(_TURNS))
        many = LARGEST_SEED - len(SEEDS)
        return tuple(len(SEEDS) + secrets.randbelow(many) for _ in range(_TURNS))

    @cached_property
    def other_sizes(self) -> Sizes | None:
        """Sizes that the spec does not list, see `other_sizes.other_sizes`."""
        draw = random.Random(self.hidden_seeds("other sizes")[0])  # noqa: S311 -- a hidden seed
        with self.device.twin() as device:
            baseline = _Evaluation(self, device, self.spec.baseline)
            if not has_others(self.spec) or not baseline.is_right(self.spec.sizes[-1]):
                return None
            return other_sizes(self.spec, draw, baseline.is_right)

    def workload(self, sizes: Mapping[str, int], device: Device) -> SpecWorkload:
        """The workload with one set of sizes; the baseline is its reference if need be."""
        if self.spec.reference:
            return workload_of(self.spec, sizes)
        kernel = kernel_of(self.spec, self.spec.baseline, sizes)
        io = workload_of(self.spec, sizes, dict).io
        return workload_of(self.spec, sizes, BaselineOutputs(device, kernel, io))


@dataclass(frozen=True)
class _Case:
    """A state with one set of sizes, and the seeds of its verification."""

    kernel: AnyKernel
    workload: SpecWorkload
    seeds: tuple[int, ...]


@dataclass
class _Evaluation:
    bench: Bench
    device: Device
    state: State
    steps_s: dict[str, float] = field(default_factory=dict)
    correctness: dict[str, Correctness] = field(default_factory=dict)

    def run(self) -> Result:
        floor = 0.0
        time_ms = power_w = None
        fault: KernelFault | None = None
        others = None
        try:
            _check_text(self.state, self.bench.spec.baseline)
            cases = [self._case(sizes) for sizes in self.bench.spec.sizes]
            others = self.bench.other_sizes
            unlisted = [] if others is None else [self._unlisted(others)]
            seed = self.bench.hidden_seeds(f"{self.state.id} time")[0]
            self._prepare([*cases, *unlisted], seed)
            for case in cases:
                self._verify(case)
            for case in unlisted:
                with _untold():
                    self._verify(case)
            floor = floor_ms(cases[0].workload, peaks_of(self.device.name))
            time_ms, power_w = self._figures(cases[0], seed)
            _check_plausible(time_ms, floor, self.device)
        except KernelFault as error:
            self._check_answers(error)
            fault, time_ms, power_w = error, None, None
        return Result(
            id=self.state.id,
            outcome="correct" if fault is None else fault.outcome,
            emulated=self.device.emulated,
            objective=self.bench.objective,
            gpu=self.device.uuid,
            time_ms=time_ms,
            power_w=power_w,
            energy_mj=None if time_ms is None or power_w is None else time_ms * power_w,
            floor_ms=floor,
            message=None if fault is None else str(fault),
            correctness=self.correctness,
            other_sizes=None if fault or others is None else dict(others),
            steps_s={name: round(seconds, 3) for name, seconds in self.steps_s.items()},
        )

    def is_right(self, sizes: Sizes) -> bool:
        """Whether the state is correct with these sizes; nothing is timed."""
        try:
            case = self._case(sizes)
            self._prepare([case], case.seeds[0])
            self._verify(case)
        except KernelFault as error:
            self._check_answers(error)
            return False
        except InputError:  # such as a reference that is made for the listed sizes
            return False
        return True

    def _unlisted(self, sizes: Sizes) -> _Case:
        with _untold():
            return self._case(sizes)

    def _case(self, sizes: Sizes) -> _Case:
        kernel = kernel_of(self.bench.spec, self.state, sizes)
        if refusal := self.device.refusal(kernel):
            raise KernelFault("constraints", refusal)
        with self._timed("compile"):
            self.device.compile(kernel)
        self._check_variables(kernel, sizes)
        workload = self.bench.workload(sizes, self.device)
        check_fits(workload)
        seeds = self.bench.hidden_seeds(f"{self.state.id} {workload.name}")
        return _Case(kernel, workload, seeds)

    def _check_variables(self, kernel: AnyKernel, sizes: Sizes) -> None:
        """The text says the same (`additions`), but it is not parsed as C++."""
        if not (found := self.device.variable_bytes(kernel)):
            return
        baseline = kernel_of(self.bench.spec, self.bench.spec.baseline, sizes)
        if found > (allowed := self.device.variable_bytes(baseline)):
            raise KernelFault(
                "constraints",
                f"Its machine code has {found} bytes of variables that outlive a launch, and that "
                f"of the baseline {allowed}: a variant may have no more.",
            )

    def _check_answers(self, error: KernelFault) -> None:
        if not answers(self.device):
            raise DeviceError(
                f"{self.device.name} does not respond any more ({error}): check it with "
                "nvidia-smi, then continue with --resume."
            ) from None

    def _prepare(self, cases: Sequence[_Case], seed: int) -> None:
        """Give the candidate a process of its own, after the baseline if that is the reference.

        The baseline does not run later: it would have to share the candidate's process.
        """
        self.device.renew()
        if self.bench.spec.reference:
            return
        with self._timed("reference"):
            self._run_baseline(cases[0].workload, [Drawing(seed)])
            for case in cases:
                self._run_baseline(case.workload, drawings_of(case.seeds))
        self.device.renew()

    def _run_baseline(self, workload: SpecWorkload, drawings: Sequence[Drawing]) -> None:
        try:
            for drawing in drawings:
                case_of(workload, drawing, self.device.arrays)
        except KernelFault as fault:
            if self.state.id == self.bench.spec.baseline.id:
                raise
            raise DeviceError(
                f"The baseline of {self.bench.spec.name}, which is the reference, was correct and "
                f"fails now: {fault}"
            ) from None

    def _verify(self, case: _Case) -> None:
        with self._timed("verify"):
            found = verify(self.device, case.kernel, case.workload, seeds=case.seeds)
        self.correctness[case.workload.name] = found

    def _figures(self, case: _Case, seed: int) -> tuple[float, float | None]:
        job = Job.of(case.kernel, case.workload, seed=seed, timeout_s=TIMEOUT_S)
        with self._timed("time"):
            time_ms = self._while_repeating(job, case.workload, self._time_ms)
        if self.bench.objective == Metric.TIME:
            return time_ms, None
        with self._timed("power"):
            return time_ms, self._while_repeating(job, case.workload, self._power_w)

    def _while_repeating(
        self, job: Job, workload: SpecWorkload, measure: Callable[..., float]
    ) -> float:
        """What is measured of a job that runs back to back; it is verified afterwards."""
        with arenas_for(workload, job.seed, self.device.arrays) as arenas:
            check = check_of(self.device, workload, arenas, job.seed)
            with self.device.repeat(job, arenas) as repeater:
                found = measure(repeater)
                check_again(repeater, check)
        return found

    def _time_ms(self, repeater: Repeater) -> float:
        repeater.start()
        self.device.clock.sleep_s(DURATION_S)
        return median_time_ms(repeater.stop())

    def _power_w(self, repeater: Repeater) -> float:
        return EnergyMeter(self.device, QUICK).measure(repeater).power_w

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        began = perf_counter()
        try:
            yield
        finally:
            self.steps_s[step] = self.steps_s.get(step, 0.0) + perf_counter() - began


def _check_text(state: State, baseline: State) -> None:
    try:
        added = additions(state, baseline)
    except ModuleError as error:
        raise KernelFault("compile", f"Its source cannot be used: {error}.") from None
    if added:
        raise KernelFault(
            "constraints",
            f"Its source adds {', '.join(sorted(added))}: a variant may have nothing that outlives "
            "a launch or reads a clock, and no Python that Triton does not compile.",
        )


@contextmanager
def _untold() -> Iterator[None]:
    """Keep the sizes secret: whoever writes the next variant may read what is said of this one."""
    try:
        yield
    except KernelFault as fault:
        raise KernelFault(
            fault.outcome,
            "It fails for sizes between those that the spec lists, which are drawn and not told: "
            'it must be right for all of them, or the spec must say "other_sizes": false.',
        ) from None


def _check_plausible(time_ms: float, floor: float, device: Device) -> None:
    if time_ms < floor:
        raise KernelFault(
            "correctness",
            f"A launch takes {time_ms:.4g} ms, but its memory traffic or arithmetic takes "
            f"{floor:.4g} ms at the peaks of {device.name}: it leaves work out, or the spec "
            "overstates flops or bytes_moved.",
        )
