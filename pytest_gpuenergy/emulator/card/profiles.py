"""The GPUs that can be emulated, as their datasheets and NVML describe them."""

from __future__ import annotations

import math
import uuid
from dataclasses import dataclass

from pytest_gpuenergy.record import PEAKS
from pytest_gpuenergy.support import InputError, emulated_host

_DIE_S = 0.35  # time constant of the die, in seconds


@dataclass(frozen=True)
class Cooling:
    """The cooling of a model of card: a die on a heat sink in the air.

    Attributes:
        air_c: the temperature of the air, in degrees Celsius.
        die_k: the rise of the die above its heat sink at the default power limit, in kelvin.
        sink_k: the rise of the heat sink above the air at the default power limit, in kelvin.
        sink_s: the time constant of the heat sink, in seconds.
        leakage_per_k: the relative growth of the power per kelvin.
    """

    air_c: float
    die_k: float
    sink_k: float
    sink_s: float
    leakage_per_k: float

    def at_rest(self, load: float) -> Warmth:
        """Return the warmth after a long time at ``load``, a fraction of the default limit."""
        return Warmth(load, load)

    def temperature_c(self, warmth: Warmth) -> float:
        """Return the temperature of the die in degrees Celsius."""
        return self.air_c + self.die_k * warmth.die + self.sink_k * warmth.sink

    def after(self, warmth: Warmth, load: float, seconds: float) -> Warmth:
        """Return the warmth after some seconds at a constant ``load``."""
        die, sink = (-math.expm1(-seconds / constant_s) for constant_s in (_DIE_S, self.sink_s))
        return Warmth(
            warmth.die + (load - warmth.die) * die, warmth.sink + (load - warmth.sink) * sink
        )


@dataclass(frozen=True)
class Warmth:
    """The power as smoothed by die and heat sink, in fractions of the default limit.

    Raises:
        ValueError: a fraction is negative, absurdly large or not finite.
    """

    die: float
    sink: float

    def __post_init__(self) -> None:
        if not (0 <= self.die <= 100 and 0 <= self.sink <= 100):
            raise ValueError("warmth")


CLOCK_STEP_MHZ = 15
"""NVIDIA GPUs set their graphics clock in steps of 15 MHz."""

_VOLTA = 70
_NAMESPACE = uuid.UUID("6f0b6a0e-6c1d-5d3b-9f7e-0d0f5e9a2c11")


@dataclass(frozen=True)
class Sensor:
    """The behaviour of a card's power sensor.

    Attributes:
        period_ms: the time between two updates of the energy counter and the power readings.
        instant_window_ms: the time before an update over which the instant power is averaged.
        average_window_ms: the same for `nvmlDeviceGetPowerUsage`.
        has_counter: whether the card has an energy counter.
    """

    period_ms: float
    instant_window_ms: float
    average_window_ms: float
    has_counter: bool = True


# The first two are fitted to one card each (docs/notes/temperature.md); the usual one is a guess.
_H200_COOLING = Cooling(air_c=33, die_k=24, sink_k=3.5, sink_s=20, leakage_per_k=0.003)
_H100_COOLING = Cooling(air_c=39, die_k=22.5, sink_k=15.5, sink_s=12, leakage_per_k=0.0044)
_USUAL_COOLING = Cooling(air_c=30, die_k=22, sink_k=12, sink_s=15, leakage_per_k=0.004)


@dataclass(frozen=True)
class GpuProfile:
    """One model of GPU; its peaks are in `record.PEAKS`.

    Attributes:
        key: the name in ``--gpu-device emulated:KEY``.
        name: the name that NVML reports.
        shared_per_sm: the shared memory of a multiprocessor in bytes.
        shared_per_block: the part of it that one block may use, in bytes.
        idle_w: the power between kernels; a guess unless a comment below says otherwise.
    """

    key: str
    name: str
    architecture: str
    pci_device_id: int
    sm_count: int
    max_clock_mhz: int
    min_clock_mhz: int
    memory_clock_mhz: int
    memory_mib: int
    shared_per_sm: int
    shared_per_block: int
    threads_per_sm: int
    blocks_per_sm: int
    idle_w: float
    min_limit_w: float
    max_limit_w: float
    default_limit_w: float
    sensor: Sensor
    has_mig: bool
    cooling: Cooling = _USUAL_COOLING

    @property
    def sm_clocks_mhz(self) -> range:
        """The clocks to which the SMs can be locked, highest first; none before Volta."""
        top = self.max_clock_mhz
        lockable = int(self.architecture.removeprefix("sm_")) >= _VOLTA
        return range(top, self.min_clock_mhz - 1 if lockable else top, -CLOCK_STEP_MHZ)

    @property
    def bandwidth_gb_s(self) -> float:
        """The bandwidth of the device memory, in 1e9 bytes per second."""
        return PEAKS[self.name].bandwidth_gb_s

    @property
    def fp32_tflops(self) -> float:
        """The float32 peak without tensor cores, at `max_clock_mhz`."""
        return PEAKS[self.name].fp32_tflops

    @property
    def l2_bytes(self) -> int:
        """The size of the L2 cache."""
        return PEAKS[self.name].l2_bytes

    @property
    def compute_capability(self) -> tuple[int, int]:
        """The major and minor number, such as (9, 0)."""
        digits = self.architecture.removeprefix("sm_")
        return int(digits[:-1]), int(digits[-1])

    @property
    def cores_per_sm(self) -> int:
        """The float32 cores of a multiprocessor: 64 up to Turing and in GA100, otherwise 128."""
        return 64 if self.architecture in ("sm_60", "sm_70", "sm_75", "sm_80") else 128

    def uuid(self, index: int) -> str:
        """Return the UUID of the emulated card ``index``; it differs between emulated hosts."""
        host = emulated_host()
        name = f"{self.key}:{index}" + (f"@{host}" if host else "")
        return f"GPU-{uuid.uuid5(_NAMESPACE, name)}"


# The windows are those of Yang, Adamek and Armour, "Accurate and Convenient Energy Measurements
# for GPUs" (SC24): PowerUsage is a mean over 1 s from Ampere on, except on GA100; `instant` is a
# mean over about 25 ms, updated every 100 ms; Volta updates its reading every 20 ms.
_HOPPER_SENSOR = Sensor(period_ms=100, instant_window_ms=25, average_window_ms=1000)
_GA100_SENSOR = Sensor(period_ms=100, instant_window_ms=25, average_window_ms=25)
_VOLTA_SENSOR = Sensor(period_ms=20, instant_window_ms=10, average_window_ms=10)
# NVML has an energy counter from Volta on. Pascal's windows are a guess: those of Volta.
_PASCAL_SENSOR = Sensor(20, 10, 10, has_counter=False)
_GEFORCE_SENSOR = Sensor(period_ms=100, instant_window_ms=100, average_window_ms=1000)

_KIB = 1024

PROFILES: dict[str, GpuProfile] = {
    profile.key: profile
    for profile in (
        # NVIDIA H200 datasheet (SXM5); power limits and idle power (80-115 W) read from a card.
        GpuProfile(
            key="h200",
            name="NVIDIA H200",
            architecture="sm_90",
            pci_device_id=0x233510DE,
            sm_count=132,
            max_clock_mhz=1980,
            min_clock_mhz=345,
            memory_clock_mhz=3201,
            memory_mib=143771,
            shared_per_sm=228 * _KIB,
            shared_per_block=227 * _KIB,
            threads_per_sm=2048,
            blocks_per_sm=32,
            idle_w=98,
            min_limit_w=200,
            max_limit_w=700,
            default_limit_w=700,
            sensor=_HOPPER_SENSOR,
            has_mig=True,
            cooling=_H200_COOLING,
        ),
        # NVIDIA Ampere GA102 whitepaper, except for the limits: this model's table of caps is
        # made for a board of 420 W with a maximum of 450 W (reference: 350 W).
        GpuProfile(
            key="rtx3090",
            name="NVIDIA GeForce RTX 3090",
            architecture="sm_86",
            pci_device_id=0x220410DE,
            sm_count=82,
            max_clock_mhz=1695,
            min_clock_mhz=210,
            memory_clock_mhz=9751,
            memory_mib=24576,
            shared_per_sm=100 * _KIB,
            shared_per_block=99 * _KIB,
            threads_per_sm=1536,
            blocks_per_sm=16,
            idle_w=25,
            min_limit_w=100,
            max_limit_w=450,
            default_limit_w=420,
            sensor=_GEFORCE_SENSOR,
            has_mig=False,
        ),
        # NVIDIA Ada GPU architecture whitepaper; limits of the Founders Edition.
        GpuProfile(
            key="rtx4090",
            name="NVIDIA GeForce RTX 4090",
            architecture="sm_89",
            pci_device_id=0x268410DE,
            sm_count=128,
            max_clock_mhz=2520,
            min_clock_mhz=210,
            memory_clock_mhz=10501,
            memory_mib=24564,
            shared_per_sm=100 * _KIB,
            shared_per_block=99 * _KIB,
            threads_per_sm=1536,
            blocks_per_sm=24,
            idle_w=25,
            min_limit_w=150,
            max_limit_w=600,
            default_limit_w=450,
            sensor=_GEFORCE_SENSOR,
            has_mig=False,
        ),
        # NVIDIA Tesla V100 architecture whitepaper (SXM2, 16 GB).
        GpuProfile(
            key="v100",
            name="Tesla V100-SXM2-16GB",
            architecture="sm_70",
            pci_device_id=0x1DB110DE,
            sm_count=80,
            max_clock_mhz=1530,
            min_clock_mhz=135,
            memory_clock_mhz=877,
            memory_mib=16384,
            shared_per_sm=96 * _KIB,
            shared_per_block=96 * _KIB,
            threads_per_sm=2048,
            blocks_per_sm=32,
            idle_w=40,
            min_limit_w=150,
            max_limit_w=300,
            default_limit_w=300,
            sensor=_VOLTA_SENSOR,
            has_mig=False,
        ),
        # NVIDIA Tesla P100 architecture whitepaper (SXM2, 16 GB).
        GpuProfile(
            key="p100",
            name="Tesla P100-SXM2-16GB",
            architecture="sm_60",
            pci_device_id=0x15F910DE,
            sm_count=56,
            max_clock_mhz=1480,
            min_clock_mhz=544,
            memory_clock_mhz=715,
            memory_mib=16384,
            shared_per_sm=64 * _KIB,
            shared_per_block=48 * _KIB,
            threads_per_sm=2048,
            blocks_per_sm=32,
            idle_w=35,
            min_limit_w=150,
            max_limit_w=300,
            default_limit_w=300,
            sensor=_PASCAL_SENSOR,
            has_mig=False,
        ),
        # NVIDIA A30 datasheet.
        GpuProfile(
            key="a30",
            name="NVIDIA A30",
            architecture="sm_80",
            pci_device_id=0x20B710DE,
            sm_count=56,
            max_clock_mhz=1440,
            min_clock_mhz=210,
            memory_clock_mhz=1215,
            memory_mib=24576,
            shared_per_sm=164 * _KIB,
            shared_per_block=163 * _KIB,
            threads_per_sm=2048,
            blocks_per_sm=32,
            idle_w=30,
            min_limit_w=100,
            max_limit_w=165,
            default_limit_w=165,
            sensor=_GA100_SENSOR,
            has_mig=True,
        ),
        # NVIDIA A100 datasheet (SXM4, 80 GB) and GA100 whitepaper.
        GpuProfile(
            key="a100",
            name="NVIDIA A100-SXM4-80GB",
            architecture="sm_80",
            pci_device_id=0x20B210DE,
            sm_count=108,
            max_clock_mhz=1410,
            min_clock_mhz=210,
            memory_clock_mhz=1593,
            memory_mib=81920,
            shared_per_sm=164 * _KIB,
            shared_per_block=163 * _KIB,
            threads_per_sm=2048,
            blocks_per_sm=32,
            idle_w=60,
            min_limit_w=100,
            max_limit_w=400,
            default_limit_w=400,
            sensor=_GA100_SENSOR,
            has_mig=True,
        ),
        # NVIDIA H100 datasheet (SXM5) and Hopper whitepaper.
        GpuProfile(
            key="h100",
            name="NVIDIA H100 80GB HBM3",
            architecture="sm_90",
            pci_device_id=0x233010DE,
            sm_count=132,
            max_clock_mhz=1980,
            min_clock_mhz=345,
            memory_clock_mhz=2619,
            memory_mib=81559,
            shared_per_sm=228 * _KIB,
            shared_per_block=227 * _KIB,
            threads_per_sm=2048,
            blocks_per_sm=32,
            idle_w=75,
            min_limit_w=200,
            max_limit_w=700,
            default_limit_w=700,
            sensor=_HOPPER_SENSOR,
            has_mig=True,
            cooling=_H100_COOLING,
        ),
    )
}

DEFAULT_PROFILE = PROFILES["h200"]


def find_profile(name: str) -> GpuProfile:
    """Return the profile called ``name``, in upper or lower case.

    Raises:
        InputError: there is no profile of that name.
    """
    try:
        return PROFILES[name.lower()]
    except KeyError:
        keys = ", ".join(PROFILES)
        raise InputError(f"There is no emulated GPU {name!r}: choose one of {keys}.") from None
