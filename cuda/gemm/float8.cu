// Makes the operands of products of 8-bit numbers: launches of their own, before that of the product.
//
// Instructions take 8-bit operands only along K: an operand that is stored otherwise is turned, so that
// rows of the copy are along K and a multiple of 16 bytes apart. An operand A of 16 bits is quantized.
//
// Besides those of tiles.cu and end.cu, the constants of this text are:
//   A_ROWS, B_COLUMNS        of the operands; M and N are those of what is computed, which may be C's transpose
//   A_TURNED, B_TURNED       the distance in elements between rows of a turned copy, or 0 without one
//   A_QUANTIZED              the same distance in the quantized A, or 0
//   STORED_LDA, STORED_LDB   distances in elements between the stored rows of A and B
//   QUANTIZE                 makes two numbers of 8 bits of two in float32: "cvt.rn.satfinite.e4m3x2.f32"
//   LARGEST_EXPONENT         the largest number of 8 bits is 1.75 times two to this power
//   LARGEST_PARTS            blocks that find the largest element, if all have a scale in common

constexpr int MAKERS = 256;  // threads of a block
constexpr int FOUR = 4;      // elements that a thread makes at a time

// Copy K rows of SIDE elements to SIDE rows of K elements, and zeros up to the end of these rows. A block
// turns TURNED_SQUARE rows and columns, of which a thread reads and writes four at a time.
#if A_TURNED || B_TURNED
constexpr int TURNED_SQUARE = 64;

template <int SIDE, int DISTANCE, int TO_ROW>
__device__ void turn(const Element* __restrict__ from, Element* __restrict__ to) {
  __shared__ alignas(FOUR) Element square[TURNED_SQUARE][TURNED_SQUARE + FOUR];
  constexpr int ALONG_K = (TO_ROW + TURNED_SQUARE - 1) / TURNED_SQUARE;
  int first_k = blockIdx.x % ALONG_K * TURNED_SQUARE, first_side = blockIdx.x / ALONG_K * TURNED_SQUARE;
  int line = threadIdx.x / (TURNED_SQUARE / FOUR), within = threadIdx.x % (TURNED_SQUARE / FOUR) * FOUR;
  constexpr int LINES = MAKERS / (TURNED_SQUARE / FOUR);
  for (int i = line; i < TURNED_SQUARE; i += LINES) {
    int k = first_k + i, side = first_side + within;
    alignas(FOUR) Element four[FOUR] = {};
    if (k < K && DISTANCE % FOUR == 0 && side + FOUR <= SIDE) {
      *reinterpret_cast<unsigned*>(four) =
          *reinterpret_cast<const unsigned*>(from + 1LL * k * DISTANCE + side);
    } else if (k < K) {
      for (int j = 0; j < FOUR && side + j < SIDE; ++j) four[j] = from[1LL * k * DISTANCE + side + j];
    }
    *reinterpret_cast<unsigned*>(&square[i][within]) = *reinterpret_cast<const unsigned*>(four);
  }
  __syncthreads();
  for (int i = line; i < TURNED_SQUARE; i += LINES) {
    int side = first_side + i, k = first_k + within;
    if (side >= SIDE || k >= TO_ROW) continue;
    alignas(FOUR) Element four[FOUR];
    for (int j = 0; j < FOUR; ++j) four[j] = square[within + j][i];
    *reinterpret_cast<unsigned*>(to + 1LL * side * TO_ROW + k) =
        *reinterpret_cast<const unsigned*>(four);
  }
}
#endif

#if A_TURNED
extern "C" __global__ void __launch_bounds__(MAKERS)
    gemm_turn_a(const Element* __restrict__ A, Element* __restrict__ a_turned) {
  turn<A_ROWS, STORED_LDA, A_TURNED>(A, a_turned);
}
#endif

#if B_TURNED
extern "C" __global__ void __launch_bounds__(MAKERS)
    gemm_turn_b(const Element* __restrict__ B, Element* __restrict__ b_turned) {
  turn<B_COLUMNS, STORED_LDB, B_TURNED>(B, b_turned);
}
#endif

#if A_QUANTIZED
__device__ __forceinline__ float largest_of_warp(float size) {
#pragma unroll
  for (int distance = 16; distance; distance /= 2) {
    size = fmaxf(size, __shfl_xor_sync(~0u, size, distance));
  }
  return size;
}

__device__ __forceinline__ float largest_of_block(float size) {
  __shared__ float of_warps[MAKERS / 32];
  size = largest_of_warp(size);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = size;
  __syncthreads();
  return largest_of_warp(of_warps[threadIdx.x % (MAKERS / 32)]);
}

// Read neighbours in a row of A; what is behind its end is 0.
__device__ __forceinline__ void read_four(float (&four)[FOUR], const Result* A, int row, int k) {
  read_elements<STORED_LDA % FOUR == 0, false>(four, A + 1LL * row * STORED_LDA + k, K - k);
}

__device__ __forceinline__ float largest_of(const float (&four)[FOUR]) {
  return fmaxf(fmaxf(fabsf(four[0]), fabsf(four[1])), fmaxf(fabsf(four[2]), fabsf(four[3])));
}

// A scale, as a power of two: the least with which no element exceeds the largest number of 8 bits.
__device__ __forceinline__ int power_for(float largest) {
  unsigned bits = __float_as_uint(largest);
  int power = static_cast<int>(bits >> 23) - 127 - LARGEST_EXPONENT + ((bits & 0x7fffff) > 0x600000);
  return largest > 0.0f ? max(power, -126) : 0;
}

__device__ __forceinline__ float power_of_two(int power) {
  return __uint_as_float(static_cast<unsigned>(power + 127) << 23);
}

__device__ __forceinline__ void write_four(Element* a_quantized, int row, int k,
                                           const float (&four)[FOUR], int power) {
  float factor = power_of_two(-power);
  unsigned short low, high;
  asm(QUANTIZE " %0, %1, %2;" : "=h"(low) : "f"(four[1] * factor), "f"(four[0] * factor));
  asm(QUANTIZE " %0, %1, %2;" : "=h"(high) : "f"(four[3] * factor), "f"(four[2] * factor));
  *reinterpret_cast<unsigned*>(a_quantized + 1LL * row * A_QUANTIZED + k) =
      low | static_cast<unsigned>(high) << 16;
}

#if SCALES == 1
extern "C" __global__ void __launch_bounds__(MAKERS)
    gemm_largest(const Result* __restrict__ A, float* __restrict__ largest_parts) {
  float size = 0.0f;
  for (int row = blockIdx.x; row < A_ROWS; row += LARGEST_PARTS) {
    for (int k = threadIdx.x * FOUR; k < K; k += MAKERS * FOUR) {
      float four[FOUR];
      read_four(four, A, row, k);
      size = fmaxf(size, largest_of(four));
    }
  }
  size = largest_of_block(size);
  if (threadIdx.x == 0) largest_parts[blockIdx.x] = size;
}
#endif

#if SCALES == 3
// A warp quantizes 128 elements of a row, which have a scale in common.
extern "C" __global__ void __launch_bounds__(MAKERS)
    gemm_quantize(const Result* __restrict__ A, Element* __restrict__ a_quantized,
                  float* __restrict__ a_scale) {
  constexpr int BLOCKS_OF_ROW = (K + 127) / 128;
  long long number = 1LL * blockIdx.x * (MAKERS / 32) + threadIdx.x / 32;
  int row = static_cast<int>(number / BLOCKS_OF_ROW), along = static_cast<int>(number % BLOCKS_OF_ROW);
  if (row >= A_ROWS) return;
  int lane = threadIdx.x % 32, k = along * 128 + lane * FOUR;
  float four[FOUR];
  read_four(four, A, row, k);
  int power = power_for(largest_of_warp(largest_of(four)));
  if (k < A_QUANTIZED) write_four(a_quantized, row, k, four, power);
  if (lane == 0) a_scale[along * A_ROWS + row] = power_of_two(power);
}
#else
// A block quantizes a row.
extern "C" __global__ void __launch_bounds__(MAKERS)
    gemm_quantize(const Result* __restrict__ A,
#if SCALES == 1
                  const float* __restrict__ largest_parts,
#endif
                  Element* __restrict__ a_quantized, float* __restrict__ a_scale) {
  int row = blockIdx.x;
  float size = 0.0f, four[FOUR];
#if SCALES == 1
  for (int i = threadIdx.x; i < LARGEST_PARTS; i += MAKERS) size = fmaxf(size, largest_parts[i]);
  bool writes_scale = row == 0;
  int place = 0;
#else
  for (int k = threadIdx.x * FOUR; k < K; k += MAKERS * FOUR) {
    read_four(four, A, row, k);
    size = fmaxf(size, largest_of(four));
  }
  bool writes_scale = true;
  int place = row;
#endif
  int power = power_for(largest_of_block(size));
  for (int k = threadIdx.x * FOUR; k < A_QUANTIZED; k += MAKERS * FOUR) {
    read_four(four, A, row, k);
    write_four(a_quantized, row, k, four, power);
  }
  if (writes_scale && threadIdx.x == 0) a_scale[place] = power_of_two(power);
}
#endif
#endif
