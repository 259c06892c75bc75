// The activation of a product's end, for products that have one: verification draws inputs near the numbers in
// a kernel's text, so those of a text without these share their inputs and references.
//   ACTIVATION   1: relu, 2: gelu, 3: gelu_tanh, 4: silu

// x / (1 + exp(-2 y)) is x (1 + tanh(y)) / 2, and stays exact to the last digits where that is small. So would
// x erfc(-x / sqrt(2)) / 2, but erfcf takes so many registers that kernels with large tiles spill theirs.
__device__ __forceinline__ float activated(float x) {
#if ACTIVATION == 1
  return x < 0.0f ? 0.0f : x;
#else
  // What is smaller becomes -0 all the same, except that infinity times 0 would not be a number. An exact
  // division would take a slow path where its divisor exceeds 2^126, which many large elements have.
  constexpr float LEAST = -200.0f;
  x = x < LEAST ? LEAST : x;
#if ACTIVATION == 2
  return 0.5f * x * (1.0f + erff(0.70710678f * x));
#elif ACTIVATION == 3
  return __fdividef(x, 1.0f + expf(-1.5957691f * (x + 0.044715f * x * x * x)));  // 2 sqrt(2 / pi)
#else
  return __fdividef(x, 1.0f + expf(-x));
#endif
#endif
}
