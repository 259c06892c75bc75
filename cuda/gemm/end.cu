// The end of a product: C = activation(a_scale b_scale A B + bias) + residual.
//
// It is applied in float32 to whole sums, before they are rounded to Result: where a template stores them,
// and in gemm_sum if blocks have shared a tile. Besides those of tiles.cu, the constants of this text are:
//   WITH_BIAS, WITH_RESIDUAL   whether there is a bias of N elements for each product, and a residual that
//                              is stored as C is
//   ACTIVATION                 0: none; otherwise see activation.cu, which then precedes this text
//   SCALES                     0: none, 1: one of A and one of B, 2: one of each row of A and column of B,
//                              3: of blocks of A and B, with which a template multiplies parts of sums
//   Result                     type of the elements of C, bias and residual

#if WITH_BIAS
#define BIAS bias  // a parameter of the kernel
#else
#define BIAS nullptr
#endif
#if WITH_RESIDUAL
#define RESIDUAL residual
#else
#define RESIDUAL nullptr
#endif

#if SCALES
#define A_SCALE a_scale
#define B_SCALE b_scale
#else
#define A_SCALE nullptr
#define B_SCALE nullptr
#endif
#define SCALED_END (SCALES == 1 || SCALES == 2)

// The scales of all elements of A and of B. They are read before the end of a product, which would otherwise wait for
// them, and multiplied there: at the beginning, the copies of the first steps would wait.
struct CommonScales {
  float of_a = 1.0f, of_b = 1.0f;
};

__device__ __forceinline__ CommonScales common_scales([[maybe_unused]] const float* a_scale,
                                                      [[maybe_unused]] const float* b_scale) {
#if SCALES == 1
  return {*a_scale, *b_scale};
#else
  return {};
#endif
}

// Read neighbouring elements, of which `there` exist, or ALL.
template <bool ALIGNED, bool ALL, int COUNT>
__device__ __forceinline__ void read_elements(float (&to)[COUNT], const Result* from, int there) {
  using Type = typename Piece<COUNT * sizeof(Result)>::Type;
  if (ALIGNED && (ALL || there >= COUNT)) {
    alignas(sizeof(Type)) Result piece[COUNT];
    *reinterpret_cast<Type*>(piece) = *reinterpret_cast<const Type*>(from);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) to[i] = static_cast<float>(piece[i]);
  } else {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) to[i] = i < there ? static_cast<float>(from[i]) : 0.0f;
  }
}

// Of a product without an end, and of sums that are only parts: their end comes when they are added.
struct NoEnd {
  template <bool ALL, int COUNT>
  __device__ __forceinline__ void apply(float (&)[COUNT], int, int) const {}
};

#if WITH_BIAS || WITH_RESIDUAL || ACTIVATION || SCALED_END
// Applies the end to elements of a part of C.
struct End {
  const Result *bias, *residual;   // of its first column, and of its first element
  const float *a_scale, *b_scale;  // of its first row, and of its first column
  float factor;                    // of all elements
  int rows, columns;               // of C, from there on

  // Replace the sums of neighbouring columns, of which the first is a multiple of COUNT.
  template <bool ALL, int COUNT>
  __device__ __forceinline__ void apply(float (&sums)[COUNT], int row, int column) const {
    [[maybe_unused]] int there = ALL || row < rows ? columns - column : 0;
#if SCALES == 1
#pragma unroll
    for (int i = 0; i < COUNT; ++i) sums[i] *= factor;
#elif SCALES == 2
    float of_row = ALL || there > 0 ? a_scale[row] : 0.0f;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) sums[i] *= of_row * (ALL || i < there ? b_scale[column + i] : 0.0f);
#endif
#if WITH_BIAS
    float biases[COUNT];
    read_elements<PRODUCTS == 1 || C_COLUMNS % COUNT == 0, ALL>(biases, bias + column, there);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) sums[i] += biases[i];
#endif
#if ACTIVATION
#pragma unroll
    for (int i = 0; i < COUNT; ++i) sums[i] = activated(sums[i]);
#endif
#if WITH_RESIDUAL
    float addends[COUNT];
    read_elements<LDC % COUNT == 0, ALL>(addends, residual + row * LDC + column, there);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) sums[i] += addends[i];
#endif
  }
};

// At a place in C.
__device__ __forceinline__ End end_at(Place place, const Result* bias, const Result* residual,
                                      CommonScales scales = {}, const float* a_scale = nullptr,
                                      const float* b_scale = nullptr) {
#if WITH_BIAS
  bias += place.product * C_COLUMNS + place.column;
#endif
#if WITH_RESIDUAL
  residual += place_in_c(place);
#endif
#if SCALES == 2
  a_scale += place.row;
  b_scale += place.column;
#endif
  return {bias, residual, a_scale, b_scale, scales.of_a * scales.of_b, place.end - place.row, C_COLUMNS - place.column};
}
#else
using End = NoEnd;

__device__ __forceinline__ End end_at(Place, const Result*, const Result*, CommonScales = {},
                                      const float* = nullptr, const float* = nullptr) {
  return {};
}
#endif
