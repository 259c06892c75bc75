"""The physics of one emulated card: virtual time, power, energy, temperature, progress.

Time passes in segments of constant power, so that energies are exact integers and do not depend on
the steps in which time was advanced. A segment ends at every multiple of 20 ms, when a fault begins
or ends, and when the card is changed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from pytest_gpuenergy.emulator.card import governor
from pytest_gpuenergy.emulator.card.faults import LEAST_LIMIT_W, ActiveFault, Fault, Owner
from pytest_gpuenergy.emulator.card.governor import (
    HIDDEN_STATES,
    MAX_CLOCK_MHZ,
    MAX_POWER_W,
    MAX_RUN_S,
    OperatingPoint,
    next_hidden_state,
    noise,
    point_in_state,
)
from pytest_gpuenergy.emulator.card.load import Load
from pytest_gpuenergy.emulator.card.profiles import GpuProfile, Warmth

TICK_NS = 20_000_000
"""The period of power samples, as in the ring buffer of `nvmlDeviceGetSamples`."""

_BLOCK_TICKS = 20  # the slow part of the noise changes every 0.4 s
_START_NS = 1_000_000_000_000

# Guesses, chosen to give a trial-to-trial deviation of 0.1-0.2 % in power and 0.02-0.05 % in time.
_POWER_NOISE = 0.0012
_POWER_JITTER = 0.003
_TIME_NOISE = 0.0004
_EDGE_JITTER = 0.0005  # of the period of the energy counter
# Guesses: the share of the top clock that remains under thermal and power-brake protection.
_THERMAL_CLOCK = 0.7
_BRAKE_CLOCK = 0.5

# Streams of the noise.
_SLOW_POWER, _FAST_POWER, _TIME, _EDGE = range(4)
CALL_NOISE = 4
"""The stream of the noise in the duration of NVML calls."""

_HISTORY_NS = 3_500_000_000  # how far back the energy is known exactly
_MOST_SEGMENTS = 256  # that are kept in any case, also those older than `_HISTORY_NS`


@dataclass
class EnergyTrace:
    """The energy at the ends of segments of constant power, in exact integers (mW x ns = pJ).

    Attributes:
        times_ns: the end of each segment, oldest first.
        energies_pj: the energy drawn until each of these times.
        power_mw: the power of the present segment.
    """

    times_ns: list[int]
    energies_pj: list[int]
    power_mw: int = 0

    def close(self, at_ns: int) -> None:
        """End the present segment; the next one has the same power until it is changed."""
        if at_ns > self.times_ns[-1]:
            self.energies_pj.append(self.at_pj(at_ns))
            self.times_ns.append(at_ns)
            if len(self.times_ns) > _MOST_SEGMENTS:
                keep = bisect_right(self.times_ns, at_ns - _HISTORY_NS) - 1
                del self.times_ns[: max(0, keep)], self.energies_pj[: max(0, keep)]

    def at_pj(self, at_ns: int) -> int:
        """Return the energy drawn until ``at_ns``, or until the oldest time if that is later."""
        times, energies = self.times_ns, self.energies_pj
        if at_ns >= times[-1]:
            return energies[-1] + self.power_mw * (at_ns - times[-1])
        after = bisect_right(times, at_ns)
        if after == 0:
            return energies[0]
        start_ns, start_pj = times[after - 1], energies[after - 1]
        rise_pj = energies[after] - start_pj
        return start_pj + rise_pj * (at_ns - start_ns) // (times[after] - start_ns)


class EmulatedCard:
    """The state of one emulated card and how it evolves. Changes go through its methods.

    Attributes:
        now_ns: the virtual time.
        limit_mw: the requested power limit; `enforced_mw` may be lower.
        lock_mhz: the lowest and the highest clock to which the SMs are locked, or None.
        warmth: the warmth of the GPU and its heat sink.
        load: the kernel that runs, if any.
        context: the process that ran a kernel last. As long as it lives, its context keeps the
            card from idling: the card waits at its highest clock, and takes more power.
        faults: the injected faults, whether in force or not.
        energy: the energy drawn until any moment of the last 3.5 s.
        point: the operating point that the governor allows, in the present hidden state.
        hidden_state: see `next_hidden_state`; 0 unless the fault ``clock_states`` is in force.
        edge_ns: the end of the present segment.
    """

    def __init__(self, profile: GpuProfile, seed: int) -> None:
        self.profile = profile
        self.seed = seed
        self.now_ns = _START_NS
        self.limit_mw = round(profile.default_limit_w * 1000)
        self.lock_mhz: tuple[int, int] | None = None
        idle = profile.idle_w / profile.default_limit_w
        self.warmth = Warmth(idle, idle)
        self.hidden_state = 0
        self.load: Load | None = None
        self.context: Owner | None = None
        self.faults: list[ActiveFault] = []
        self.counter_base_pj = 0
        self.counter_stuck_mj: int | None = None
        self.energy = EnergyTrace([_START_NS], [0])
        self.tick_pj = 0
        self.edge_ns = _START_NS
        self.point = OperatingPoint(0.0, 0.0, 0, 0)
        self._open()
        self.advance(_START_NS + _HISTORY_NS)

    # -- time ------------------------------------------------------------------------------

    def advance(self, target_ns: int) -> None:
        """Let time pass until ``target_ns``."""
        while target_ns >= self.edge_ns:
            self._close(self.edge_ns)
            if self.edge_ns % TICK_NS == 0:
                self._tick()
            self._fire()
            self._open()
        self.now_ns = max(self.now_ns, target_ns)

    def settle(self) -> None:
        """Begin a new segment now, after a change that affects power or speed."""
        self._close(self.now_ns)
        self._fire()
        self._open()

    def _close(self, at_ns: int) -> None:
        self.now_ns = at_ns
        self.energy.close(at_ns)

    def _open(self) -> None:
        now_ns = self.now_ns
        tick = now_ns // TICK_NS
        self.point = self._operating_point()
        # Whatever runs, it cannot be cooled at more than its top limit.
        top_w = min(self.enforced_mw / 1000, self.profile.max_limit_w)
        most_w = max(top_w, self.profile.waiting_w)
        power_w = min(self.point.power_w + self._foreign_w(), most_w)
        # A card that is not as warm as it will become at this power has less leakage.
        cooling, load = self.profile.cooling, power_w / self.profile.default_limit_w
        settled_c = cooling.temperature_c(Warmth(load, load))
        power_w *= 1 + cooling.leakage_per_k * (self.temperature_c - settled_c)
        power_w *= (
            1
            + _POWER_NOISE * noise(self.seed, _SLOW_POWER, tick // _BLOCK_TICKS)
            + _POWER_JITTER * noise(self.seed, _FAST_POWER, tick)
        )
        self.energy.power_mw = round(min(power_w, most_w) * 1000)
        if self.load is not None:
            slow = 1 + _TIME_NOISE * noise(self.seed, _TIME, tick // _BLOCK_TICKS)
            for fault in self.active_faults("slower"):
                slow *= 1 + (fault.percent or 0.0) / 100
            run_s = min(self.point.time_s * slow, MAX_RUN_S)
            self.load.pace(now_ns, run_s, self.point.effective_clock_mhz)
        self.edge_ns = (tick + 1) * TICK_NS
        for active in self.faults:
            for moment in (active.begins_ns, active.ends_ns):
                if moment is not None and now_ns < moment < self.edge_ns:
                    self.edge_ns = moment

    def _tick(self) -> None:
        """Update the warmth and the hidden state, at the end of a period of 20 ms."""
        energy_pj, cooling = self.energy_pj(self.now_ns), self.profile.cooling
        power_w = (energy_pj - self.tick_pj) / TICK_NS / 1000
        self.tick_pj = energy_pj
        load = power_w / self.profile.default_limit_w
        self.warmth = cooling.after(self.warmth, load, TICK_NS / 1e9)
        if any(self.active_faults("clock_states")):
            block, within = divmod(self.now_ns // TICK_NS, _BLOCK_TICKS)
            self.hidden_state = next_hidden_state(
                self.hidden_state, self.temperature_c, self.seed, None if within else block
            )
        else:
            self.hidden_state = 0

    @property
    def temperature_c(self) -> float:
        """The temperature of the GPU in degrees Celsius."""
        return self.profile.cooling.temperature_c(self.warmth)

    # -- what limits the card --------------------------------------------------------------

    @property
    def enforced_mw(self) -> int:
        """The power limit in force."""
        limits = [f.power_w for f in self.active_faults("enforced_limit")]
        return min([self.limit_mw, *(round(w * 1000) for w in limits if w is not None)])

    def active_faults(self, kind: str) -> Iterator[Fault]:
        """Yield the faults of this kind that are in force."""
        for active in self.faults:
            if active.fault.kind == kind and active.active(self.now_ns):
                yield active.fault

    def _foreign_w(self) -> float:
        return sum(fault.power_w or 0.0 for fault in self.active_faults("foreign_process"))

    def _operating_point(self) -> OperatingPoint:
        profile = self.profile
        lock_mhz = None if any(self.active_faults("lock_ignored")) else self.lock_mhz
        least_mhz, clock_mhz = lock_mhz or (profile.min_clock_mhz, profile.max_clock_mhz)
        reasons = 0
        if self.faults:
            if any(self.active_faults("thermal_throttle")):
                reasons |= governor.SW_THERMAL_SLOWDOWN
                clock_mhz = min(clock_mhz, int(profile.max_clock_mhz * _THERMAL_CLOCK))
            if any(self.active_faults("power_brake")):
                reasons |= governor.HW_POWER_BRAKE | governor.HW_SLOWDOWN
                clock_mhz = min(clock_mhz, int(profile.max_clock_mhz * _BRAKE_CLOCK))
        if self.load is None:
            idle = reasons or governor.GPU_IDLE
            if self.context is not None:
                return OperatingPoint(0.0, profile.waiting_w, clock_mhz, idle)
            return OperatingPoint(0.0, profile.idle_w, min(least_mhz, clock_mhz), idle)
        room_w = self.enforced_mw / 1000 - self._foreign_w()
        demand = self.load.demand
        point = governor.operating_point(demand, profile, room_w, clock_mhz)
        if reasons:
            point = replace(point, event_reasons=point.event_reasons | reasons)
        point = point_in_state(point, demand, self.hidden_state, self.seed)
        for fault in self.active_faults("below_lock") if lock_mhz is not None else ():
            point = governor.slowed_point(point, demand, fault.percent or 0.0)
        return point if point.time_s <= MAX_RUN_S else replace(point, time_s=MAX_RUN_S)

    # -- changes ---------------------------------------------------------------------------

    def set_limit(self, limit_mw: int) -> None:
        """Set the requested power limit."""
        self.limit_mw = limit_mw
        self.settle()

    def lock_clocks(self, lock_mhz: tuple[int, int] | None) -> None:
        """Lock the SMs to a range of clocks; None unlocks them."""
        self.lock_mhz = lock_mhz
        self.settle()

    def start(self, load: Load) -> None:
        """Put a load on the card."""
        self.load, self.context = load, load.owner
        self.settle()

    def stop(self) -> None:
        """Take the load off the card."""
        self.load = None
        self.settle()

    def reap(self) -> bool:
        """End what processes that are gone have left on the card; return whether there was any."""
        owners = {active.owner for active in self.faults}
        if self.context is not None:
            owners.add(self.context)
        me = Owner.me()
        dead = {owner for owner in owners if owner != me and not owner.alive()}
        if not dead:
            return False
        if self.context in dead:  # whose load is the present one, if there is one
            self.load = self.context = None
        self.withdraw(*(f.identity for f in self.faults if f.owner in dead))
        return True

    def withdraw(self, *identities: str) -> None:
        """Remove faults."""
        self.faults = [f for f in self.faults if f.identity not in identities]
        if not any(f.fault.kind == "counter_stuck" for f in self.faults):
            self.counter_stuck_mj = None
        self.settle()

    def _fire(self) -> None:
        for active in self.faults:
            if active.active(self.now_ns) and not active.fired:
                active.fired = True
                fault = active.fault
                if fault.kind == "counter_reset":
                    self.counter_base_pj = self.energy_pj(self.now_ns)
                elif fault.kind == "counter_stuck":
                    self.counter_stuck_mj = self.counter_mj()
                elif fault.kind == "limit_changed" and fault.power_w is not None:
                    self.limit_mw = round(fault.power_w * 1000)
                elif fault.kind == "lock_lost":
                    self.lock_mhz = None
                elif fault.kind == "clock_locked" and fault.clock_mhz is not None:
                    self.lock_mhz = (fault.clock_mhz, fault.clock_mhz)

    # -- sensors ---------------------------------------------------------------------------

    def energy_pj(self, at_ns: int) -> int:
        """Return the energy drawn until ``at_ns``; see `EnergyTrace.at_pj`."""
        return self.energy.at_pj(at_ns)

    def sensor_edge_ns(self) -> int:
        """Return when counter and power readings last changed; their period jitters a little."""
        period_ns = round(self.profile.sensor.period_ms * 1e6)
        phase_ns = self.seed % period_ns
        index = (self.now_ns - phase_ns) // period_ns + 1
        while True:
            jitter_ns = int(period_ns * _EDGE_JITTER * noise(self.seed, _EDGE, index))
            edge_ns = phase_ns + index * period_ns + jitter_ns
            if edge_ns <= self.now_ns:
                return edge_ns
            index -= 1

    def counter_mj(self) -> int:
        """Return the energy counter in mJ."""
        if self.counter_stuck_mj is not None and any(self.active_faults("counter_stuck")):
            return self.counter_stuck_mj
        return max(0, self.energy_pj(self.sensor_edge_ns()) - self.counter_base_pj) // 10**9

    def mean_power_mw(self, end_ns: int, window_ns: int) -> int:
        """Return the mean power over the window that ends at ``end_ns``."""
        return (self.energy_pj(end_ns) - self.energy_pj(end_ns - window_ns)) // window_ns

    # -- as data ---------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Return the card as plain data."""
        names = [name for name in CardFile.__struct_fields__ if hasattr(self, name)]
        data = {name: getattr(self, name) for name in names}
        data |= {"version": 2, **vars(self.energy)}
        # A demand may hold NumPy's numbers.
        plain: dict[str, Any] = msgspec.to_builtins(data, enc_hook=float)
        return plain

    @classmethod
    def from_json(cls, profile: GpuProfile, seed: int, data: dict[str, Any]) -> EmulatedCard:
        """Return the card that `to_json` wrote.

        Raises:
            ValueError: the data is not a card.
        """
        saved = msgspec.convert(data, CardFile)
        saved.check_relations()
        card = cls.__new__(cls)
        card.profile, card.seed = profile, seed
        card.energy = EnergyTrace(saved.times_ns, saved.energies_pj, saved.power_mw)
        for name in set(CardFile.__struct_fields__) - {"version", *vars(card.energy)}:
            setattr(card, name, getattr(saved, name))
        return card


# The file may be damaged or come from somebody else. A number out of range would stop virtual time,
# let it pass forever, or end in a division by zero elsewhere.
_Whole = Annotated[int, Meta(ge=0, le=1 << 62)]  # eight bytes hold the clock
_Energy = Annotated[int, Meta(ge=0)]
_Milliwatts = Annotated[int, Meta(ge=0, le=MAX_POWER_W * 1000)]
_Clock = Annotated[int, Meta(ge=1, le=MAX_CLOCK_MHZ)]
_MAX_ENTRIES = 100_000


class CardFile(msgspec.Struct):
    """The file of a card: each number is within its range; see `check_relations` for the others."""

    version: Literal[2]
    now_ns: _Whole
    limit_mw: Annotated[int, Meta(ge=round(LEAST_LIMIT_W * 1000), le=MAX_POWER_W * 1000)]
    warmth: Warmth
    hidden_state: Annotated[int, Meta(ge=0, lt=HIDDEN_STATES)]
    load: Load | None
    faults: Annotated[list[ActiveFault], Meta(max_length=_MAX_ENTRIES)]
    counter_base_pj: _Energy
    counter_stuck_mj: _Energy | None
    times_ns: Annotated[list[_Whole], Meta(min_length=1, max_length=_MAX_ENTRIES)]
    energies_pj: list[_Energy]
    power_mw: _Milliwatts
    tick_pj: _Energy
    edge_ns: _Whole
    point: OperatingPoint
    lock_mhz: tuple[_Clock, _Clock] | None = None  # missing in files of earlier versions
    context: Owner | None = None  # likewise

    def check_relations(self) -> None:
        """Raise a `ValueError` unless the numbers fit each other as they do when a card evolves."""
        if self.lock_mhz is not None and self.lock_mhz[0] > self.lock_mhz[1]:
            raise ValueError("lock_mhz")
        max_mw = MAX_POWER_W * 1000
        spans_ns = [end - begin for begin, end in pairwise(self.times_ns)]
        rises_pj = [after - before for before, after in pairwise(self.energies_pj)]
        if len(self.times_ns) != len(self.energies_pj) or not all(
            span_ns > 0 and 0 <= rise_pj <= max_mw * span_ns
            for span_ns, rise_pj in zip(spans_ns, rises_pj, strict=True)
        ):
            raise ValueError("the history of the energy")
        begin_ns, drawn_pj = self.times_ns[-1], self.energies_pj[-1]
        if not begin_ns <= self.now_ns < self.edge_ns <= begin_ns + TICK_NS:
            raise ValueError("time")
        counted_pj = max(self.counter_base_pj, self.counter_stuck_mj or 0, self.tick_pj)
        if counted_pj > drawn_pj or drawn_pj - self.tick_pj > max_mw * TICK_NS:
            raise ValueError("the energy that was counted")
        if drawn_pj > max_mw * begin_ns:
            raise ValueError("energies_pj")
        if self.load is not None:
            self.load.check(self.now_ns)
        for active in self.faults:
            active.fault.check()
