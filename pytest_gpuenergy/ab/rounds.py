"""Both versions of a kernel, measured by turns."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from pytest_gpuenergy.ab.exhibit import SEED, Exhibit
from pytest_gpuenergy.devices.device import GUARD_BYTES, Arena, Device, Work
from pytest_gpuenergy.energy.meter import EnergyMeter, MeterSettings, Reading
from pytest_gpuenergy.engine.arena_check import ArenaCheck, check_again
from pytest_gpuenergy.gate.ratio import paired_log_ratio
from pytest_gpuenergy.gate.settings import GateSettings
from pytest_gpuenergy.gate.verdict import Judgement, Verdict, decide, tail_of
from pytest_gpuenergy.kernels.kernel import Kernel
from pytest_gpuenergy.record.metrics import Metric
from pytest_gpuenergy.support.errors import DeviceError, KernelFault
from pytest_gpuenergy.support.scratch import scratch_folder

SHORT = MeterSettings(min_trials=3, relative_half_width=math.inf)
"""Of one turn: the scatter between rounds tells how precise it is, so few trials do."""


@dataclass(frozen=True)
class Turns:
    """The readings of both versions, one of each a round, or what went wrong with either."""

    base: tuple[Reading, ...] = ()
    head: tuple[Reading, ...] = ()
    base_fault: str = ""
    problem: str = ""

    def judge(
        self,
        exhibit: Exhibit,
        settings: GateSettings,
        comparisons: int,
        flags: Sequence[str] = (),
    ) -> list[Judgement]:
        """A judgement for each metric of the settings, by paired statistics over the rounds.

        All are AMBIGUOUS when a reading is flagged, or ``flags`` names something.
        """
        found = {flag for reading in (*self.base, *self.head) for flag in reading.flags}
        named = ", ".join(sorted({*found, *flags}))
        reasons = (f"flagged: {named}",) if named else ()
        return [
            self._judge(exhibit, metric, limit, comparisons, reasons)
            for metric, limit in settings.limits.items()
        ]

    def _judge(
        self,
        exhibit: Exhibit,
        metric: Metric,
        limit: float,
        comparisons: int,
        reasons: tuple[str, ...],
    ) -> Judgement:
        base, head = (
            [math.log(r.estimate(metric).value) for r in side] for side in (self.base, self.head)
        )
        ratios = [later - earlier for earlier, later in zip(base, head, strict=True)]
        change = paired_log_ratio(ratios, tail=tail_of(comparisons))
        return Judgement(
            exhibit.draft.identity,
            metric,
            Verdict.AMBIGUOUS if reasons else decide(change, limit),
            limit,
            change,
            math.exp(fmean(base)),
            math.exp(fmean(head)),
            reasons,
        )


@dataclass(frozen=True)
class _Side:
    exhibit: Exhibit
    kernel: Kernel
    arenas: dict[str, Arena]
    check: ArenaCheck


def take_turns(
    device: Device,
    base: Exhibit,
    head: Exhibit,
    *,
    rounds: int,
    timeout_s: float,
    settings: MeterSettings = SHORT,
) -> Turns:
    """Measure both ``rounds`` times; every other round the other one goes first.

    After each measurement the kernel is checked again. The caller has set the card.
    """
    readings: tuple[list[Reading], list[Reading]] = ([], [])
    with contextlib.ExitStack() as stack:
        sides = [stack.enter_context(_loaded(exhibit)) for exhibit in (base, head)]
        try:
            meter = EnergyMeter(device, settings)  # one, which keeps what it learns of the card
            for number in range(rounds):
                # A drift that is linear in time cancels between a round and the next.
                for index in (0, 1) if number % 2 == 0 else (1, 0):
                    readings[index].append(_measure(device, sides[index], meter, timeout_s))
        except KernelFault as fault:
            return Turns(problem=str(fault)) if index else Turns(base_fault=str(fault))
        except DeviceError as error:
            return Turns(problem=str(error))
    return Turns(tuple(readings[0]), tuple(readings[1]))


@contextlib.contextmanager
def _loaded(exhibit: Exhibit) -> Iterator[_Side]:
    inputs = exhibit.inputs()
    size = sum(tensor.nbytes + 3 * GUARD_BYTES for tensor in exhibit.tensors)
    with scratch_folder(size) as folder:
        arenas = {
            tensor.name: Arena.create(folder / str(number), tensor, inputs.get(tensor.name))
            for number, tensor in enumerate(exhibit.tensors)
        }
        check = ArenaCheck(arenas, functools.cache(exhibit.reference), exhibit.bounds, SEED)
        yield _Side(exhibit, exhibit.kernel(), arenas, check)


def _measure(device: Device, side: _Side, meter: EnergyMeter, timeout_s: float) -> Reading:
    info = side.exhibit.draft.workload
    side.check.poison()
    with device.repeat(
        side.kernel,
        side.arenas,
        {scalar.name: scalar for scalar in side.exhibit.scalars},
        work=Work(info.flops, info.bytes_moved),
        timeout_s=timeout_s,
        apart=True,
    ) as repeater:
        reading = meter.measure(repeater)
        check_again(repeater, side.check)
        return reading
