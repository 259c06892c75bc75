"""The time and the power of a kernel that nothing limits."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from outcomes import raises

from pytest_gpuenergy.devices import Work
from pytest_gpuenergy.emulator import (
    COEFFICIENTS,
    DEFAULT_PROFILE as H200,
    PROFILES,
    Demand,
    Traffic,
    kernel_demand,
    resident_blocks,
)
from pytest_gpuenergy.kernels import Kernel, Launch, RecordedFigures
from pytest_gpuenergy.workloads import Tensor

QUIET = Traffic()
BUSY = Traffic(
    global_read_bytes=20_000.0,
    global_write_bytes=4_000.0,
    shared_read_bytes=400_000.0,
    shared_write_bytes=20_000.0,
    barriers=16.0,
    load_intervals=8.0,
    static_shared_bytes=8_192.0,
    global_loads=160.0,
    branched_loads=40.0,
    global_stores=32.0,
    global_sectors=768.0,
    l2_sectors=512.0,
    shared_accesses=3_200.0,
    shared_wavefronts=3_300.0,
    private_words=16.0,
)
WORK = Work(flops=231_211_008, bytes_moved=1_753_088)


def kernel(blocks: int = 264, threads: int = 128, shared: int = 0, launches: int = 1) -> Kernel:
    launch = Launch("f", (blocks, 1, 1), (threads, 1, 1), ("x",), shared)
    return Kernel("source", (launch,) * launches)


def recorded(time_ms: float, power_w: float, gpu: str = H200.name, limit: float = 700) -> Kernel:
    figures = RecordedFigures(gpu, limit, time_ms, power_w, time_ms * power_w)
    return replace(kernel(), recorded=(figures,))


def test_recorded_figures_of_this_gpu_under_the_highest_limit_win():
    demand = kernel_demand(recorded(0.0194, 419.0), WORK, None, H200)
    assert (demand.time_s, demand.power_w) == (pytest.approx(19.4e-6), 419.0)
    assert 0 < demand.memory_time < 1
    low = recorded(0.03, 250.0, limit=300).recorded
    both = replace(kernel(), recorded=low + recorded(0.0194, 419.0).recorded)
    assert kernel_demand(both, WORK, None, H200).power_w == 419.0
    other = recorded(5.0, 419.0, gpu="NVIDIA A30")
    assert kernel_demand(other, WORK, [BUSY], H200) == kernel_demand(kernel(), WORK, [BUSY], H200)
    with pytest.raises(ValueError, match="needs its traffic"):
        kernel_demand(kernel(), WORK, None, H200)


def traffics() -> st.SearchStrategy[Traffic]:
    largest = {
        "barriers": 1e4,
        "load_intervals": 1e4,
        "static_shared_bytes": 48_000.0,
        "private_words": 5_000.0,
    }
    ranges = {f.name: st.floats(0, largest.get(f.name, 1e7)) for f in fields(Traffic)}
    return st.builds(Traffic, **ranges)


GPUS = st.sampled_from(list(PROFILES.values()))
BLOCKS, THREADS = st.integers(1, 100_000), st.integers(1, 1024)
WORKS = st.builds(Work, st.integers(0, 10**13), st.integers(0, 10**10))


@given(GPUS, BLOCKS, THREADS, traffics(), st.one_of(st.none(), WORKS))
def test_the_model_stays_physical(gpu, blocks, threads, traffic, work):
    demand = kernel_demand(kernel(blocks, threads), work, [traffic], gpu)
    flops = work.flops if work else 0
    assert demand.time_s >= flops / (gpu.fp32_tflops * 1e12)
    assert gpu.idle_w <= demand.power_w <= gpu.default_limit_w
    assert 0 <= demand.memory_time <= 1
    assert 0 <= demand.memory_power <= 1


@given(
    GPUS,
    BLOCKS,
    THREADS,
    traffics(),
    WORKS,
    # More active warps share the same accesses, which takes less time.
    st.sampled_from([f.name for f in fields(Traffic) if f.name != "active_warps"]),
    st.floats(1, 10),
)
def test_more_of_anything_takes_no_less_time_and_energy(
    gpu, blocks, threads, traffic, work, what, times
):
    limit = {"static_shared_bytes": 48_000.0}.get(what, math.inf)
    more = replace(traffic, **{what: min(limit, getattr(traffic, what) * times)})
    here = kernel(blocks, threads)
    before, after = (kernel_demand(here, work, [t], gpu) for t in (traffic, more))
    assert after.time_s >= before.time_s * (1 - 1e-9)
    assert after.time_s * after.power_w >= before.time_s * before.power_w * (1 - 1e-9)


@given(GPUS, BLOCKS, THREADS, traffics(), WORKS, st.integers(1, 100_000))
def test_more_blocks_of_the_same_work_are_not_faster(gpu, blocks, threads, traffic, work, added):
    each = work.flops // blocks
    few, many = (
        kernel_demand(kernel(n, threads), Work(each * n, work.bytes_moved), [traffic], gpu).time_s
        for n in (blocks, blocks + added)
    )
    assert many >= few * (1 - 1e-12)


def test_one_block_more_than_a_wave_takes_longer():
    # It has a multiprocessor for itself, so it takes as long as its share of the others' wave.
    full = kernel(blocks=2 * H200.sm_count, threads=256)
    over = kernel(blocks=2 * H200.sm_count + 1, threads=256)
    times = [kernel_demand(k, Work(10**11, 0), [QUIET], H200).time_s for k in (full, over)]
    assert 1.3 < times[1] / times[0] < 2.0


def test_few_resident_threads_and_parts_of_a_warp_are_slow():
    kernels = kernel(13200, 256), kernel(13200, 32, shared=200_000), kernel(13200, 33)
    times = [kernel_demand(k, Work(10**11, 0), [QUIET], H200).time_s for k in kernels]
    assert times[1] > 2 * times[0]
    assert times[2] > 1.5 * kernel_demand(kernel(13200, 64), Work(10**11, 0), [QUIET], H200).time_s


@pytest.mark.parametrize(
    "field", ["global_loads", "global_stores", "global_sectors", "l2_sectors", "shared_accesses"]
)
def test_traffic_takes_time_and_power(field):
    work = Work(10**6, 10**6)
    little = kernel_demand(kernel(), work, [QUIET], H200)
    much = kernel_demand(kernel(), work, [replace(QUIET, **{field: 5e5})], H200)
    assert much.time_s > 2 * little.time_s
    if field in ("global_loads", "l2_sectors", "shared_accesses"):
        assert much.power_w > little.power_w + 10


LOADS = replace(BUSY, global_loads=1600.0)


@pytest.mark.parametrize(
    ("before", "after", "times"),
    [
        (BUSY, replace(BUSY, shared_wavefronts=32 * BUSY.shared_accesses), 1.2),  # bank conflicts
        (LOADS, replace(LOADS, branched_loads=1600.0), 1.5),  # loads that wait for one another
        (BUSY, replace(BUSY, barriers=1000.0, global_loads=0.0), 1.5),
    ],
)
def test_what_a_warp_waits_for_takes_time(before, after, times):
    short_s, long_s = (kernel_demand(kernel(), WORK, [t], H200).time_s for t in (before, after))
    assert long_s > times * short_s


def test_sums_that_the_registers_do_not_hold_take_time_and_power():
    work = Work(10**10, 10**6)
    held, spilled = (
        kernel_demand(kernel(), work, [replace(BUSY, private_words=words)], H200)
        for words in (64.0, 1024.0)
    )
    assert spilled.time_s > 2 * held.time_s
    assert spilled.power_w > held.power_w


@pytest.mark.parametrize(("registers", "blocks"), [(0, 8), (128, 2), (81, 2), (80, 3)])
def test_registers_limit_the_blocks_of_a_multiprocessor(registers, blocks):
    launch = kernel(threads=256).launches[0]
    assert resident_blocks(launch, 0, H200, registers=registers) == blocks


def test_a_stream_larger_than_the_l2_is_bound_by_the_memory():
    size = 4_000_000_000
    blocks = 10_000
    vectors = size / 2 / blocks / 512  # a warp moves 512 bytes at a time
    copy = Traffic(
        global_loads=vectors,
        global_stores=vectors,
        global_sectors=32 * vectors,
        l2_sectors=32 * vectors,
    )
    demand = kernel_demand(kernel(blocks, 1024), Work(0, size), [copy], H200)
    assert demand.time_s == pytest.approx(size / 4.8e12 / 0.9, rel=0.05)
    assert demand.memory_power > 0.3


def test_several_launches_take_their_sum():
    one = kernel_demand(kernel(), WORK, [BUSY], H200)
    two = kernel_demand(
        kernel(launches=2), Work(2 * WORK.flops, 2 * WORK.bytes_moved), [BUSY, BUSY], H200
    )
    assert two.time_s == pytest.approx(2 * one.time_s)
    assert two.power_w == pytest.approx(one.power_w)


def test_workspaces_larger_than_the_l2_pass_through_the_memory():
    def run(size: int) -> Demand:
        parts = Tensor("parts", (size // 4,), "float32", "workspace")
        produce = Launch("f", (10_000, 1, 1), (256, 1, 1), ("x", "parts"))
        add_up = Launch("g", (10_000, 1, 1), (256, 1, 1), ("parts", "y"))
        split = Kernel("source", (produce, add_up), workspaces=(parts,))
        sectors = size / 32 / 10_000
        written = Traffic(global_stores=sectors / 4, global_sectors=sectors, l2_sectors=sectors)
        read = Traffic(global_loads=sectors / 4, global_sectors=sectors, l2_sectors=sectors)
        return kernel_demand(split, Work(10**6, 10**6), [written, read], H200)

    small, large = 10_000_000, 10_000_000_000
    assert run(small).memory_power == 0
    assert run(large).memory_power > 0
    assert run(large).time_s == pytest.approx(2 * large / 4.8e12 / 0.9, rel=0.05)


def test_without_a_workload_reads_stand_for_its_flops():
    demand = kernel_demand(kernel(), None, [replace(BUSY, shared_read_bytes=4e6)], H200)
    assert demand.time_s > kernel_demand(kernel(), None, [BUSY], H200).time_s


def test_a_block_that_fits_nowhere_is_a_fault():
    with raises("constraints", r"No block of 'f'.*fits"):
        resident_blocks(kernel(shared=200_000).launches[0], 100_000, H200)


def test_the_coefficients_are_those_of_the_documentation():
    root = Path(__file__).parents[3]
    page = (root / "docs/explanation/timing-model.md").read_text(encoding="utf-8")
    values = asdict(COEFFICIENTS).items()
    assert not [name for name, v in values if not re.search(rf"\b{v:g}\b", page)]


H100 = PROFILES["h100"]
VALUE = "unsigned v = i * 2654435761u; v = (v ^ v >> 15) * 0x85ebca6bu >> 26;"  # as if drawn
OWN_COPY = """
__shared__ int own[64];
if (t < 64) own[t] = 0;
__syncthreads();
atomicAdd(&own[v], 1);
__syncthreads();
if (t < 64) atomicAdd(&n[t], own[t]);
"""


@pytest.fixture
def traffic_of(check_races):
    """Make traffic_of(...): the traffic of an average block of a `small_kernel`."""
    return lambda *arguments, **named: check_races(*arguments, **named)[0].traffic


@pytest.mark.parametrize(
    ("body", "updates"),
    [
        ("atomicAdd(&n[0], 1);", 6400),
        ("atomicAdd(&n[t & 1 ? 0 : 8], 1);", 6400),  # two sectors of one kilobyte
        ("atomicMax(&n[77], i);", 6400),
        ("atomicCAS(&n[5], 0, i + 1);", 6400),
        ('asm volatile("red.global.add.s32 [%0], 1;" :: "l"(n) : "memory");', 6400),
        ("atomicAdd(&total, 1);", 6400),
        ("atomicAdd(&n[t], 1);", 800),  # 8 sectors, each by 100 blocks
        ("y[i % 16384] = x[0];", 0),
    ],
)
@pytest.mark.slow
def test_updates_are_contended_by_sector(traffic_of, body, updates, bodies):
    traffic = traffic_of(body, grid=100, before="__device__ int total;", among=bodies)
    assert traffic.contended_updates == pytest.approx(updates)


def test_places_of_their_own_are_not_contended(traffic_of):
    assert traffic_of("atomicAdd(&n[i], 1);", grid=256).contended_updates <= 32


def test_places_that_a_few_blocks_share_take_their_part(traffic_of):
    updates = traffic_of("atomicAdd(&n[b % 4 * 4096 + t], 1);", grid=1000).contended_updates
    assert 100 < updates < 8000  # 2000 in truth; 8000 if all shared one place


@pytest.mark.slow
def test_lanes_update_a_word_of_shared_memory_one_after_another(traffic_of):
    def wavefronts(place: str) -> float:
        body = f"__shared__ int s[64]; atomicAdd(&s[{place}], 1); if (!t) n[b] = 1;"
        return traffic_of(body).shared_wavefronts

    assert wavefronts("t") == pytest.approx(2)
    assert wavefronts("0") == pytest.approx(64)
    assert wavefronts("t & 1") == pytest.approx(32)


@pytest.mark.slow
def test_a_histogram_gains_most_by_a_copy_in_shared_memory(small_kernel, runner):
    def time_s(body: str) -> float:
        kernel, arenas = small_kernel(VALUE + body, block=1024, grid=256)
        profiles = runner.check_races(kernel, arenas, {}, timeout_s=20.0)
        traffic = [profile.traffic for profile in profiles]
        return kernel_demand(kernel, Work(0, 1 << 20), traffic, H100).time_s

    # bench/search/kernels/histogram took 77 us on an H100, 30 times as long as its best variant.
    shared = "atomicAdd(&n[v], 1);"
    assert time_s(shared) == pytest.approx(77e-6, rel=0.2)
    assert time_s(shared) > 10 * time_s(OWN_COPY)
