"""The GPUs that can be emulated, as their datasheets and NVML describe them."""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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

    After a long time at a constant power both are equal to it.
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
        average_window_ms: the time over which `nvmlDeviceGetPowerUsage` averages.
        has_counter: whether the card has an energy counter.
    """

    period_ms: float
    instant_window_ms: float
    average_window_ms: float
    has_counter: bool = True


@dataclass(frozen=True)
class GpuProfile:
    """One model of GPU; its peaks are in `record.PEAKS`.

    Attributes:
        key: the name in ``--gpu-device emulated:KEY``.
        name: the name that NVML reports.
        shared_per_sm: the shared memory of a multiprocessor in bytes.
        shared_per_block: the part of it that one block may use, in bytes.
        idle_w: the power while no process has a context; a guess unless a comment below says
            otherwise.
        waiting_w: the power between kernels, while a process has a context; a guess likewise.
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
    waiting_w: float
    min_limit_w: float
    max_limit_w: float
    default_limit_w: float
    sensor: Sensor
    has_mig: bool
    cooling: Cooling

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
# mean over about 25 ms, updated every 100 ms; Volta updates its reading every 20 ms. NVML has an
# energy counter from Volta on. Pascal's windows are a guess: those of Volta.
_SENSORS = {
    "hopper": Sensor(period_ms=100, instant_window_ms=25, average_window_ms=1000),
    "ga100": Sensor(period_ms=100, instant_window_ms=25, average_window_ms=25),
    "volta": Sensor(period_ms=20, instant_window_ms=10, average_window_ms=10),
    "pascal": Sensor(20, 10, 10, has_counter=False),
    "geforce": Sensor(period_ms=100, instant_window_ms=100, average_window_ms=1000),
}
# The first two are fitted to one card each (docs/notes/temperature.md); the usual one is a guess.
_COOLINGS = {
    "h200": Cooling(air_c=33, die_k=24, sink_k=3.5, sink_s=20, leakage_per_k=0.003),
    "h100": Cooling(air_c=39, die_k=22.5, sink_k=15.5, sink_s=12, leakage_per_k=0.0044),
    "usual": Cooling(air_c=30, die_k=22, sink_k=12, sink_s=15, leakage_per_k=0.004),
}
_NAMES = {
    "h200": "NVIDIA H200",
    "rtx3090": "NVIDIA GeForce RTX 3090",
    "rtx4090": "NVIDIA GeForce RTX 4090",
    "v100": "Tesla V100-SXM2-16GB",
    "p100": "Tesla P100-SXM2-16GB",
    "a30": "NVIDIA A30",
    "a100": "NVIDIA A100-SXM4-80GB",
    "h100": "NVIDIA H100 80GB HBM3",
}
# H200, A30, A100 and H100: datasheets (SXM, the A100 with 80 GB) and whitepapers; the limits and
# the idle power (80-115 W) of the H200 were read from a card. RTX 3090: GA102 whitepaper, but its
# limits are those of a board of 420 W with a maximum of 450 W, for which this model's table of caps
# is made (reference: 350 W). RTX 4090: Ada whitepaper, limits of the Founders Edition. V100 and
# P100: whitepapers (SXM2, 16 GB). The idle power of the H100 is that at 48 C in settled-2-trace.csv
# of 2026-11-24. After a load, 41 replays on H200s waited at 120 to 133 W, the median of which is
# 124 W (`idle_w` in bench/results/*/replay-*.json), and H100s at 118 W (34 C), 123 to 130 W, and
# 134 to 142 W (46 to 54 C). Other GPUs have not been measured: they wait as if idle. Shared memory
# is in KiB; the vendor completes the PCI device ID.
_TABLE = """
key                h200    rtx3090  rtx4090  v100    p100    a30     a100    h100
architecture       sm_90   sm_86    sm_89    sm_70   sm_60   sm_80   sm_80   sm_90
pci_device_id      0x2335  0x2204   0x2684   0x1db1  0x15f9  0x20b7  0x20b2  0x2330
sm_count           132     82       128      80      56      56      108     132
max_clock_mhz      1980    1695     2520     1530    1480    1440    1410    1980
min_clock_mhz      345     210      210      135     544     210     210     345
memory_clock_mhz   3201    9751     10501    877     715     1215    1593    2619
memory_mib         143771  24576    24564    16384   16384   24576   81920   81559
shared_per_sm      228     100      100      96      64      164     164     228
shared_per_block   227     99       99       96      48      163     163     227
threads_per_sm     2048    1536     1536     2048    2048    2048    2048    2048
blocks_per_sm      32      16       24       32      32      32      32      32
idle_w             98      25       25       40      35      30      60      75
waiting_w          124     25       25       40      35      30      60      130
min_limit_w        200     100      150      150     150     100     100     200
max_limit_w        700     450      600      300     300     165     400     700
default_limit_w    700     420      450      300     300     165     400     700
has_mig            1       0        0        0       0       1       1       1
sensor             hopper  geforce  geforce  volta   pascal  ga100   ga100   hopper
cooling            h200    usual    usual    usual   usual   usual   usual   h100
"""
_VENDOR = 0x10DE


def _profile(column: Mapping[str, str]) -> GpuProfile:
    values: dict[str, Any] = {
        name: int(text, 0)
        for name, text in column.items()
        if name not in ("key", "architecture", "sensor", "cooling")
    }
    values["pci_device_id"] = values["pci_device_id"] << 16 | _VENDOR
    for name in ("shared_per_sm", "shared_per_block"):
        values[name] *= 1024
    values["has_mig"] = bool(values["has_mig"])
    return GpuProfile(
        key=column["key"],
        name=_NAMES[column["key"]],
        architecture=column["architecture"],
        sensor=_SENSORS[column["sensor"]],
        cooling=_COOLINGS[column["cooling"]],
        **values,
    )


_ROWS = [line.split() for line in _TABLE.strip().splitlines()]
PROFILES: dict[str, GpuProfile] = {
    key: _profile({row[0]: row[number] for row in _ROWS})
    for number, key in enumerate(_ROWS[0][1:], start=1)
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
