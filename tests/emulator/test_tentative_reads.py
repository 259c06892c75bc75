"""Reads that an update of the same place follows: it corrects a guess, or is lost."""

import pytest

pytestmark = pytest.mark.slow

BEFORE = """
__device__ double add(double* at, double v) {
  unsigned long long *bits = (unsigned long long*)at, old = *bits, assumed;
  do {
    assumed = old;
    old = atomicCAS(bits, assumed, __double_as_longlong(v + __longlong_as_double(assumed)));
  } while (assumed != old);
  return __longlong_as_double(old);
}
__device__ void raise(float* at, float v) {
  int* bits = (int*)at;
  int old = *bits, assumed;
  do {
    assumed = old;
    if (__int_as_float(assumed) >= v) return;
    old = atomicCAS(bits, assumed, __float_as_int(v));
  } while (assumed != old);
}"""
SHARED = """
  __shared__ double sum; __shared__ float largest; __shared__ int first, seen[4], kinds;
  __shared__ volatile int turn;
  if (t < 4) seen[t] = 0;
  if (!t) { sum = 0; largest = -1; first = 1000; kinds = turn = 0; }
  __syncthreads();"""
GUESSES = """
  add(&sum, t + 0.5);
  raise(&largest, t * 37 % 64);
  if (63 - t < first) atomicMin(&first, 63 - t);
  if (!seen[t % 4] && !atomicExch(&seen[t % 4], 1)) atomicAdd(&kinds, 1);
  __syncthreads();
  if (!t) { y[4 * b] = sum; y[4 * b + 1] = largest; y[4 * b + 2] = first; y[4 * b + 3] = kinds; }"""
# One text for all, so that it is built once: the number of blocks chooses.
LOST = """
  switch (gridDim.x) {
    case 1: if (t % 32 == 0) turn = turn + 1; break;
    case 2: { int old = turn; __threadfence_block(); atomicCAS((int*)&turn, old, old + 1); break; }
    case 3: { int old = turn; atomicExch((int*)&turn, old + 2); break; }
    case 4: { int mine = turn; atomicAdd((int*)&turn, 1); n[64 * b + mine] = 1; break; }
    case 5: { int old = first; atomicCAS(&first, old, old + 1); break; }
  }
  __syncthreads();
  if (!t) n[1000 + b] = turn + first;"""
NEVER_CORRECTED = """
  add(&sum, t);
  if (gridDim.x == 2) __syncthreads();
  if (t == 40) y[b] = sum;"""


def test_an_atomic_may_correct_a_guess(check_races, run_orders):
    assert check_races(SHARED + GUESSES, grid=3, before=BEFORE).launches[0].blocks_run == 3
    for result in run_orders(SHARED + GUESSES, grid=3, before=BEFORE):
        assert result["y"][:12].tolist() == 3 * [2048, 63, 0, 4]


@pytest.mark.parametrize("grid", [1, 2, 3, 4, 5])
def test_an_update_of_what_others_have_changed_is_lost(fault_of, grid):
    fault = fault_of(SHARED + LOST, grid=grid)
    assert fault.outcome == "correctness"
    assert "depends on the order of threads" in str(fault)


def test_reading_a_sum_before_it_is_complete_is_a_race(fault_of, check_races):
    fault = fault_of(SHARED + NEVER_CORRECTED, before=BEFORE)
    assert "the first atomically updates and the second reads" in str(fault)
    check_races(SHARED + NEVER_CORRECTED, grid=2, before=BEFORE)
