"""What atomic updates of the same places cost in the model."""

from __future__ import annotations

import pytest

from pytest_gpuenergy.devices import Work
from pytest_gpuenergy.emulator import PROFILES, demand_of

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
    """traffic_of(arguments of small_kernel): of the average block of the only launch."""
    return lambda *arguments, **named: check_races(*arguments, **named).traffic[0]


@pytest.mark.parametrize(
    "body",
    [
        "atomicAdd(&n[0], 1);",
        "atomicAdd(&n[t & 1 ? 0 : 8], 1);",  # two sectors of one kilobyte
        "atomicMax(&n[77], i);",
        "atomicCAS(&n[5], 0, i + 1);",
        'asm volatile("red.global.add.s32 [%0], 1;" :: "l"(n) : "memory");',
    ],
)
def test_updates_of_one_place_by_all_threads_follow_one_another(traffic_of, body):
    assert traffic_of(body, grid=100).contended_updates == pytest.approx(6400)


def test_a_device_variable_is_updated_as_a_tensor_is(traffic_of):
    traffic = traffic_of("atomicAdd(&total, 1);", grid=100, before="__device__ int total;")
    assert traffic.contended_updates == pytest.approx(6400)


def test_lanes_that_update_neighbouring_words_are_served_together(traffic_of):
    traffic = traffic_of("atomicAdd(&n[t], 1);", grid=100)  # 8 sectors, each by 100 blocks
    assert traffic.contended_updates == pytest.approx(800)


def test_places_of_their_own_are_not_contended(traffic_of):
    assert traffic_of("atomicAdd(&n[i], 1);", grid=256).contended_updates <= 32


def test_places_that_a_few_blocks_share_take_their_part(traffic_of):
    updates = traffic_of("atomicAdd(&n[b % 4 * 4096 + t], 1);", grid=1000).contended_updates
    assert 100 < updates < 8000  # 2000 in truth; 8000 if all shared one place


def test_plain_accesses_are_not_contended(traffic_of):
    traffic = traffic_of("y[i % 16384] = x[0];", grid=100)
    assert traffic.contended_updates == 0


def test_lanes_update_a_word_of_shared_memory_one_after_another(traffic_of):
    def wavefronts(place: str) -> float:
        body = f"__shared__ int s[64]; atomicAdd(&s[{place}], 1); if (!t) n[b] = 1;"
        return traffic_of(body).shared_wavefronts

    assert wavefronts("t") == pytest.approx(2)
    assert wavefronts("0") == pytest.approx(64)
    assert wavefronts("t & 1") == pytest.approx(32)


def test_a_histogram_gains_most_by_a_copy_in_shared_memory(small_kernel, runner):
    def time_s(body: str) -> float:
        kernel, arenas = small_kernel(VALUE + body, block=1024, grid=256)
        traffic = runner.check_races(kernel, arenas, {}, timeout_s=20.0).traffic
        return demand_of(kernel, Work(0, 1 << 20), traffic, H100).time_s

    # bench/search/kernels/histogram took 77 us on an H100, 30 times as long as its best variant.
    shared = "atomicAdd(&n[v], 1);"
    assert time_s(shared) == pytest.approx(77e-6, rel=0.2)
    assert time_s(shared) > 10 * time_s(OWN_COPY)
