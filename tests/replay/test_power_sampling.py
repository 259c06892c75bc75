"""A card's power samples beside a trace, and what may go wrong with them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_gpuenergy.emulator import Demand, EmulatedDevice
from pytest_gpuenergy.replay import (
    ClockError,
    ClockRead,
    PowerAlignment,
    PowerCurve,
    PowerSampler,
    Span,
)

OFFSET_US = 1_000_000.0
"""By so much the profiler's clock is behind the host's."""


@pytest.fixture
def device() -> Iterator[EmulatedDevice]:
    with EmulatedDevice() as found:
        found.clock.sleep_s(5.0)
        yield found


class Profile:
    """A profiled run of a program that draws 400 W, with the virtual time as the host's clock."""

    def __init__(self, device: EmulatedDevice) -> None:
        self.device = device
        self.reads: list[ClockRead] = []
        self.spans: list[Span] = []

    def host_ns(self) -> int:
        return round(self.device.clock.now_s() * 1e9)

    def read_clock(self) -> None:
        """Within an annotation of 20 µs."""
        self.device.clock.sleep_s(1e-5)
        now_ns = self.host_ns()
        self.reads.append(ClockRead(now_ns, now_ns))
        self.spans.append((now_ns / 1e3 - OFFSET_US - 10.0, now_ns / 1e3 - OFFSET_US + 10.0))

    def run(self, sampler: PowerSampler, seconds: int = 1) -> None:
        for _ in range(4):
            self.read_clock()
        with self.device.play(Demand(1e-4, 400.0)) as repeater:
            repeater.start()
            for _ in range(seconds):
                self.device.clock.sleep_s(1.0)
                sampler.collect()
            repeater.stop()
        for _ in range(4):
            self.read_clock()
        sampler.finish(self.reads[-1].host_ns)


def profiled(device: EmulatedDevice, seconds: int = 1) -> tuple[PowerAlignment, PowerCurve]:
    profile = Profile(device)
    with PowerSampler(device, profile.host_ns) as sampler:
        profile.run(sampler, seconds)
    return sampler.placed(profile.reads, profile.spans)


def refusal(device: EmulatedDevice, fault: str) -> str:
    """What is said where the samples fail in the course of a profile."""
    profile = Profile(device)
    with PowerSampler(device, profile.host_ns) as sampler:
        device.inject("samples", fault)
        profile.run(sampler)
    with pytest.raises(ClockError) as refused:
        sampler.placed(profile.reads, profile.spans)
    return str(refused.value)


def test_all_samples_of_a_long_run_are_on_the_profilers_clock(device):
    found, curve = profiled(device, 5)
    assert len(curve.times_us) == found.samples == pytest.approx(250, abs=2)
    assert found.brackets == 8
    assert found.offset_us == pytest.approx(OFFSET_US, abs=found.error_us)
    assert found.error_us < 11.0
    middle = len(curve.powers_w) // 2
    assert curve.powers_w[middle] == pytest.approx(400.0, rel=0.1)


def test_samples_lie_between_the_first_and_the_last_read(device):
    profile = Profile(device)
    with PowerSampler(device, profile.host_ns) as sampler:
        profile.run(sampler)
    _, curve = sampler.placed(profile.reads, profile.spans)
    assert curve.times_us[0] >= profile.spans[0][0]
    assert curve.times_us[-1] <= profile.spans[-1][1]


def test_how_far_the_stamps_lag_is_bounded_by_the_time_of_a_read(device):
    found, _ = profiled(device)
    assert 0.0 <= found.stamp_lag_us <= 20_000.0


@pytest.mark.parametrize(
    ("fault", "said"),
    [("not_supported", "has taken no more samples"), ("unknown", "cannot be read")],
)
def test_samples_that_fail_on_the_way_are_told_in_one_sentence(device, fault, said):
    assert said in refusal(device, fault)


def test_a_card_without_samples_is_told_in_one_sentence(device):
    device.inject("samples", "not_supported")
    with pytest.raises(ClockError, match="H200 keeps no samples of its power"):
        profiled(device)


def test_stamps_of_another_clock_are_refused(device):
    profile = Profile(device)
    with PowerSampler(device, lambda: profile.host_ns() - 10**9) as sampler:
        profile.run(sampler)
    with pytest.raises(ClockError, match="are not stamped by the host's clock: their stamps diff"):
        sampler.placed(profile.reads, profile.spans)


def test_a_trace_without_some_of_the_reads_is_refused(device):
    profile = Profile(device)
    with PowerSampler(device, profile.host_ns) as sampler:
        profile.run(sampler)
    with pytest.raises(ClockError, match="has 7 of the 8 reads"):
        sampler.placed(profile.reads, profile.spans[1:])


def test_a_run_between_two_samples_has_none(device):
    profile = Profile(device)
    with PowerSampler(device, profile.host_ns) as sampler:
        profile.run(sampler)
    with pytest.raises(ClockError, match="took no sample of its power meanwhile"):
        sampler.placed(profile.reads[:2], profile.spans[:2])
