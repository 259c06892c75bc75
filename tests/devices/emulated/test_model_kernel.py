"""Time and power of a kernel that nothing limits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuenergy.devices.device import Work
from pytest_gpuenergy.devices.emulated.model import Traffic, demand_of, resident_blocks
from pytest_gpuenergy.devices.emulated.noise import noise
from pytest_gpuenergy.devices.emulated.profiles import DEFAULT_PROFILE as H200
from pytest_gpuenergy.devices.emulated.profiles import PROFILES
from pytest_gpuenergy.errors import KernelFault
from pytest_gpuenergy.kernels.kernel import Kernel, Launch, RecordedFigures

QUIET = Traffic(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
BUSY = Traffic(20_000.0, 4_000.0, 400_000.0, 20_000.0, 16.0, 8_192.0)
WORK = Work(flops=231_211_008, bytes_moved=1_753_088)


def kernel(blocks: int = 264, threads: int = 128, shared: int = 0, launches: int = 1) -> Kernel:
    launch = Launch("f", (blocks, 1, 1), (threads, 1, 1), ("x",), shared)
    return Kernel("source", (launch,) * launches)


def recorded(time_ms: float, power_w: float, gpu: str = H200.name, limit: float = 700) -> Kernel:
    figures = RecordedFigures(gpu, limit, time_ms, power_w, time_ms * power_w)
    return replace(kernel(), recorded=(figures,))


def test_recorded_figures_win() -> None:
    demand = demand_of(recorded(0.0194, 419.0), WORK, None, H200)
    assert (demand.time_s, demand.power_w) == (pytest.approx(19.4e-6), 419.0)
    assert 0 < demand.memory_time < 1


def test_of_several_recorded_figures_the_highest_limit_counts() -> None:
    low = recorded(0.03, 250.0, limit=300).recorded
    both = replace(kernel(), recorded=low + recorded(0.0194, 419.0).recorded)
    assert demand_of(both, WORK, None, H200).power_w == 419.0


def test_figures_of_another_gpu_do_not_count() -> None:
    other = recorded(5.0, 419.0, gpu="NVIDIA A30")
    assert demand_of(other, WORK, [BUSY], H200) == demand_of(kernel(), WORK, [BUSY], H200)


def test_without_figures_traffic_is_needed() -> None:
    with pytest.raises(ValueError, match="needs its traffic"):
        demand_of(kernel(), WORK, None, H200)


@given(
    st.sampled_from(list(PROFILES.values())),
    st.integers(1, 100_000),
    st.integers(1, 1024),
    st.builds(Traffic, *[st.floats(0, 1e7)] * 4, st.floats(0, 1e4), st.floats(0, 48_000)),
    st.one_of(st.none(), st.builds(Work, st.integers(0, 10**13), st.integers(0, 10**10))),
)
def test_the_model_stays_physical(
    profile: object, blocks: int, threads: int, traffic: Traffic, work: Work | None
) -> None:
    gpu = profile
    demand = demand_of(kernel(blocks, threads), work, [traffic], gpu)  # type: ignore[arg-type]
    flops = work.flops if work else 0
    assert demand.time_s >= flops / (gpu.fp32_tflops * 1e12)  # type: ignore[attr-defined]
    assert gpu.idle_w <= demand.power_w <= gpu.default_limit_w  # type: ignore[attr-defined]
    assert 0 <= demand.memory_time <= 1
    assert 0 <= demand.memory_power <= 1


def test_one_block_more_than_a_wave_costs_a_second_wave() -> None:
    per_sm = resident_blocks(kernel(threads=1024).launches[0], 0, H200)
    full = kernel(blocks=per_sm * H200.sm_count, threads=1024)
    over = kernel(blocks=per_sm * H200.sm_count + 1, threads=1024)
    work = Work(10**11, 0)
    times = [demand_of(k, work, [QUIET], H200).time_s for k in (full, over)]
    assert 1.8 < times[1] / times[0] < 2.0


def test_few_resident_threads_are_slow() -> None:
    work = Work(10**11, 0)
    crowded = demand_of(kernel(13200, 256), work, [QUIET], H200)
    lonely = demand_of(kernel(13200, 32, shared=200_000), work, [QUIET], H200)
    assert lonely.time_s > 2 * crowded.time_s


def test_a_part_of_a_warp_wastes_the_rest() -> None:
    work = Work(10**11, 0)
    times = [demand_of(kernel(13200, n), work, [QUIET], H200).time_s for n in (33, 64)]
    assert times[0] > 1.5 * times[1]


@pytest.mark.parametrize(
    "field",
    ["global_read_bytes", "global_write_bytes", "shared_read_bytes", "shared_write_bytes"],
)
def test_traffic_takes_time_and_power(field: str) -> None:
    work = Work(10**6, 10**6)
    little = demand_of(kernel(), work, [QUIET], H200)
    much = demand_of(kernel(), work, [replace(QUIET, **{field: 5e6})], H200)
    assert much.time_s > 2 * little.time_s
    assert much.power_w > little.power_w + 10


def test_barriers_take_time() -> None:
    waiting = replace(BUSY, barriers=1000.0)
    before, after = (demand_of(kernel(), WORK, [t], H200).time_s for t in (BUSY, waiting))
    assert after > before * 1.5


def test_a_stream_larger_than_the_l2_is_bound_by_the_memory() -> None:
    size = 4_000_000_000
    blocks = 10_000
    copy = replace(QUIET, global_read_bytes=size / 2 / blocks, global_write_bytes=size / 2 / blocks)
    demand = demand_of(kernel(blocks, 1024), Work(0, size), [copy], H200)
    assert demand.time_s == pytest.approx(size / 4.8e12 / 0.9, rel=0.05)
    assert demand.memory_power > 0.3


def test_several_launches_take_their_sum() -> None:
    one = demand_of(kernel(), WORK, [BUSY], H200)
    two = demand_of(
        kernel(launches=2), Work(2 * WORK.flops, 2 * WORK.bytes_moved), [BUSY, BUSY], H200
    )
    assert two.time_s == pytest.approx(2 * one.time_s)
    assert two.power_w == pytest.approx(one.power_w)


def test_without_a_workload_reads_stand_for_its_flops() -> None:
    demand = demand_of(kernel(), None, [replace(BUSY, shared_read_bytes=4e6)], H200)
    assert demand.time_s > demand_of(kernel(), None, [BUSY], H200).time_s


def test_a_block_that_fits_nowhere_is_a_fault() -> None:
    with pytest.raises(KernelFault, match=r"No block of 'f'.*fits") as fault:
        resident_blocks(kernel(shared=200_000).launches[0], 100_000, H200)
    assert fault.value.outcome == "constraints"


def test_noise_is_standard_and_repeats() -> None:
    values = [noise(12345, 2, index) for index in range(20_000)]
    mean = sum(values) / len(values)
    deviation = (sum(value**2 for value in values) / len(values)) ** 0.5
    assert abs(mean) < 0.03
    assert deviation == pytest.approx(1, rel=0.03)
    assert max(map(abs, values)) < 3.47
    assert values[7] == noise(12345, 2, 7) != noise(12345, 1, 7)
