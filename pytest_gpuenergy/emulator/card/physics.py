"""The physics of one emulated card: virtual time, power, energy, temperature, progress.

Time passes in segments of constant power, so that energies are exact integers and do not depend on
the steps in which time was advanced. A segment ends at every multiple of 20 ms, when a fault begins
or ends, and when the card is changed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from pytest_gpuenergy.emulator.card import governor
from pytest_gpuenergy.emulator.card.faults import ActiveFault, Fault, Owner
from pytest_gpuenergy.emulator.card.governor import (
    HIDDEN_STATES,
    OperatingPoint,
    in_state,
    next_state,
    noise,
)
from pytest_gpuenergy.emulator.card.load import Load
from pytest_gpuenergy.emulator.card.profiles import GpuProfile, Warmth

TICK_NS = 20_000_000
"""The period of power samples, as in the ring buffer of `nvmlDeviceGetSamples`."""

MOST_RUN_S = 1e6
"""The longest time that one run of a kernel takes, however little power there is for it."""

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

    def to_json(self) -> dict[str, Any]:
        """Return the trace as plain data."""
        return {
            "times_ns": self.times_ns,
            "energies_pj": self.energies_pj,
            "power_mw": self.power_mw,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EnergyTrace:
        """Return the trace that `to_json` wrote, possibly among other keys.

        Raises:
            ValueError, KeyError, TypeError: the data is not a trace.
        """
        times_ns, energies_pj = ([int(n) for n in data[k]] for k in ("times_ns", "energies_pj"))
        if not times_ns or len(times_ns) != len(energies_pj):
            raise ValueError("history")
        return cls(times_ns, energies_pj, int(data["power_mw"]))


class EmulatedCard:
    """The state of one emulated card and how it evolves. Changes go through its methods.

    Attributes:
        now_ns: the virtual time.
        limit_mw: the requested power limit; `enforced_mw` may be lower.
        lock_mhz: the lowest and the highest clock to which the SMs are locked, or None.
        warmth: the warmth of the GPU and its heat sink.
        load: the kernel that runs, if any.
        faults: the injected faults, whether in force or not.
        energy: the energy drawn until any moment of the last 3.5 s.
        point: the operating point that the governor allows, in the present hidden state.
        hidden_state: see `next_state`; 0 unless the fault ``clock_states`` is in force.
        edge_ns: the end of the present segment.
    """

    def __init__(self, profile: GpuProfile, seed: int) -> None:
        self.profile = profile
        self.seed = seed
        self.now_ns = _START_NS
        self.limit_mw = round(profile.default_limit_w * 1000)
        self.lock_mhz: tuple[int, int] | None = None
        self.warmth = profile.cooling.at_rest(profile.idle_w / profile.default_limit_w)
        self.hidden_state = 0
        self.load: Load | None = None
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
                self._warm()
                self._change_state()
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
        most_w = max(top_w, self.profile.idle_w)
        power_w = min(self.point.power_w + self._foreign_w(), most_w)
        power_w *= self._leakage(power_w)
        power_w *= (
            1
            + _POWER_NOISE * noise(self.seed, _SLOW_POWER, tick // _BLOCK_TICKS)
            + _POWER_JITTER * noise(self.seed, _FAST_POWER, tick)
        )
        self.energy.power_mw = round(min(power_w, most_w) * 1000)
        if self.load is not None:
            self._pace(self.load, tick // _BLOCK_TICKS)
        self.edge_ns = (tick + 1) * TICK_NS
        for active in self.faults:
            for moment in (active.begins_ns, active.ends_ns):
                if moment is not None and now_ns < moment < self.edge_ns:
                    self.edge_ns = moment

    def _pace(self, load: Load, block: int) -> None:
        slow = 1 + _TIME_NOISE * noise(self.seed, _TIME, block)
        for fault in self.active_faults("slower"):
            slow *= 1 + (fault.percent or 0.0) / 100
        run_s = min(self.point.time_s * slow, MOST_RUN_S)
        load.pace(self.now_ns, run_s, self.point.effective_clock_mhz)

    def _warm(self) -> None:
        energy_pj = self.energy_pj(self.now_ns)
        power_w = (energy_pj - self.tick_pj) / TICK_NS / 1000
        self.tick_pj = energy_pj
        load = power_w / self.profile.default_limit_w
        self.warmth = self.profile.cooling.after(self.warmth, load, TICK_NS / 1e9)

    def _leakage(self, power_w: float) -> float:
        """Return the ratio of the power at the present temperature to that of a settled card."""
        cooling = self.profile.cooling
        settled_c = cooling.temperature_c(cooling.at_rest(power_w / self.profile.default_limit_w))
        return 1 + cooling.leakage_per_k * (self.temperature_c - settled_c)

    @property
    def temperature_c(self) -> float:
        """The temperature of the GPU in degrees Celsius."""
        return self.profile.cooling.temperature_c(self.warmth)

    def _change_state(self) -> None:
        if not any(self.active_faults("clock_states")):
            self.hidden_state = 0
            return
        block, within = divmod(self.now_ns // TICK_NS, _BLOCK_TICKS)
        self.hidden_state = next_state(
            self.hidden_state, self.temperature_c, self.seed, None if within else block
        )

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
            return OperatingPoint(0.0, profile.idle_w, min(least_mhz, clock_mhz), idle)
        room_w = self.enforced_mw / 1000 - self._foreign_w()
        demand = self.load.demand
        point = governor.operating_point(demand, profile, room_w, clock_mhz)
        if reasons:
            point = replace(point, event_reasons=point.event_reasons | reasons)
        point = in_state(point, demand, self.hidden_state, self.seed)
        for fault in self.active_faults("below_lock") if lock_mhz is not None else ():
            point = governor.slowed(point, demand, fault.percent or 0.0)
        return point if point.time_s <= MOST_RUN_S else replace(point, time_s=MOST_RUN_S)

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
        self.load = load
        self.settle()

    def stop(self) -> None:
        """Take the load off the card."""
        self.load = None
        self.settle()

    def reap(self) -> bool:
        """End the load and the faults of processes that are gone; return whether there were any."""
        if self.load is None and not self.faults:
            return False
        me = Owner.me()
        if not self.faults and self.load is not None and self.load.owner == me:
            return False
        dead = {
            owner
            for owner in {
                *([self.load.owner] if self.load else []),
                *(active.owner for active in self.faults),
            }
            if owner != me and not owner.alive()
        }
        if not dead:
            return False
        if self.load is not None and self.load.owner in dead:
            self.load = None
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
        while (edge := self._edge(index, period_ns, phase_ns)) > self.now_ns:
            index -= 1
        return edge

    def _edge(self, index: int, period_ns: int, phase_ns: int) -> int:
        jitter_ns = int(period_ns * _EDGE_JITTER * noise(self.seed, _EDGE, index))
        return phase_ns + index * period_ns + jitter_ns

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
        return {
            "version": 2,
            "now_ns": self.now_ns,
            "limit_mw": self.limit_mw,
            "lock_mhz": self.lock_mhz,
            "warmth": asdict(self.warmth),
            "hidden_state": self.hidden_state,
            "load": self.load and self.load.to_json(),
            "faults": [active.to_json() for active in self.faults],
            "counter_base_pj": self.counter_base_pj,
            "counter_stuck_mj": self.counter_stuck_mj,
            **self.energy.to_json(),
            "tick_pj": self.tick_pj,
            "edge_ns": self.edge_ns,
            "point": asdict(self.point),
        }

    @classmethod
    def from_json(cls, profile: GpuProfile, seed: int, data: dict[str, Any]) -> EmulatedCard:
        """Return the card that `to_json` wrote.

        Raises:
            ValueError, KeyError, TypeError: the data is not a card.
        """
        if data["version"] != 2:
            raise ValueError(f"version {data['version']}")
        card = cls.__new__(cls)
        card.profile, card.seed = profile, seed
        for name in ("now_ns", "limit_mw", "counter_base_pj", "tick_pj", "edge_ns"):
            setattr(card, name, int(data[name]))
        lock_mhz = data.get("lock_mhz")  # missing in files of earlier versions
        card.lock_mhz = None if lock_mhz is None else (int(lock_mhz[0]), int(lock_mhz[1]))
        stuck = data["counter_stuck_mj"]
        card.counter_stuck_mj = None if stuck is None else int(stuck)
        card.warmth = Warmth(**data["warmth"])
        card.hidden_state = int(data["hidden_state"])
        if not 0 <= card.hidden_state < HIDDEN_STATES:
            raise ValueError("state")
        card.load = Load.from_json(data["load"]) if data["load"] else None
        card.faults = [ActiveFault.from_json(entry) for entry in data["faults"]]
        card.energy = EnergyTrace.from_json(data)
        begin_ns = card.energy.times_ns[-1]
        if not begin_ns <= card.now_ns < card.edge_ns <= begin_ns + TICK_NS:
            raise ValueError("time")
        card.point = OperatingPoint(**data["point"])
        return card
