// Steps of a linear congruential generator. Multiplier and increment are arguments, so that the
// compiler cannot make one step of several.
extern "C" __global__ void lcg(const unsigned* seeds, unsigned* out, unsigned multiplier,
                               unsigned increment, int steps) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned state = seeds[i];
#pragma unroll 8
  for (int step = 0; step < steps; ++step) state = multiplier * state + increment;
  out[i] = state;
}
