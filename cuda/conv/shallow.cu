// Convolutions with few products in a sum, on CUDA cores: all that a tile needs is in shared memory at once.
//
// Besides those of windows.cu, the constants of this text are:
//   ALONG, ACROSS      outputs of a thread: ALONG along the inner dimension of the output, which are pixels in NCHW and
//                      channels in NHWC, 32 apart, of each of ACROSS neighbours along the other one
//
// The lanes of a warp compute neighbours along the inner dimension, so that a warp stores 32 of them at a time.

constexpr int THREADS = 32 * WARPS, INNER = 32 * ALONG, OUTER = ACROSS * WARPS;
// Lanes read neighbours of the inner dimension, and all the same four of the outer one. Threads that write products of
// the same pixel or channel to shared memory then use different banks.
constexpr int INNER_ROW = INNER + 1, OUTER_ROW = OUTER + 4;
constexpr int PIXELS_ROW = OUT_NHWC ? OUTER_ROW : INNER_ROW, CHANNELS_ROW = OUT_NHWC ? INNER_ROW : OUTER_ROW;
static_assert(TILE_P == (OUT_NHWC ? OUTER : INNER) && TILE_C == (OUT_NHWC ? INNER : OUTER), "a block has one tile");
static_assert(THREADS % TILE_P == 0 && ACROSS % 4 == 0, "threads share pixels evenly, and read four at once");

// Copy the windows of a tile's pixels, whose products follow each other as in the weights. What is outside is 0.
__device__ __forceinline__ void copy_windows(float (&to)[K][PIXELS_ROW], const Element* __restrict__ data,
                                             const Tile& tile) {
  constexpr int APART = THREADS / TILE_P;
  int place = threadIdx.x % TILE_P, pixel = tile.pixel + place;
  bool exists = ALL_P || pixel < tile.end;
  Origin at = origin_of(exists ? pixel : tile.pixel);
  int corner = OUT_NHWC ? ((at.image * H + at.y) * W + at.x) * CI + tile.group * GROUP_IN
                        : ((at.image * CI + tile.group * GROUP_IN) * H + at.y) * W + at.x;
#pragma unroll
  for (int first = 0; first < K; first += APART) {
    int k = first + threadIdx.x / TILE_P;
    int channel = OUT_NHWC ? k % GROUP_IN : k / TAPS, tap = OUT_NHWC ? k / GROUP_IN : k % TAPS;
    int y = tap / KW * DILATION, x = tap % KW * DILATION;
    bool inside = exists && static_cast<unsigned>(at.y + y) < H && static_cast<unsigned>(at.x + x) < W;
    int element = corner + (OUT_NHWC ? (y * W + x) * CI + channel : (channel * H + y) * W + x);
    if (K % APART == 0 || k < K) to[k][place] = inside ? static_cast<float>(data[element]) : 0.0f;
  }
}

__device__ __forceinline__ void copy_weights(float (&to)[K][CHANNELS_ROW], const Element* __restrict__ weight,
                                             const Tile& tile) {
  const Element* from = weight + (tile.group * GROUP_OUT + tile.channel) * K;
  int left = (GROUP_OUT - tile.channel) * K;  // weights that exist
#pragma unroll 8
  for (int i = threadIdx.x; i < TILE_C * K; i += THREADS) {
    to[i % K][i / K] = ALL_C || i < left ? static_cast<float>(from[i]) : 0.0f;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    shallow(const Element* __restrict__ data, const Element* __restrict__ weight,
#if WITH_BIAS
            const Element* __restrict__ bias,
#endif
            Element* __restrict__ output) {
  __shared__ alignas(16) float pixels[K][PIXELS_ROW], channels[K][CHANNELS_ROW];
  Tile tile = tile_at(blockIdx.x);
  copy_windows(pixels, data, tile);
  copy_weights(channels, weight, tile);
  __syncthreads();

  int lane = threadIdx.x % 32, own = threadIdx.x / 32 * ACROSS;  // the first one of the outer dimension
  float sums[ACROSS][ALONG] = {};
#pragma unroll 8
  for (int k = 0; k < K; ++k) {
    const float *inner = OUT_NHWC ? channels[k] : pixels[k], *outer = OUT_NHWC ? pixels[k] : channels[k];
    float along[ALONG];
    alignas(16) float across[ACROSS];
#pragma unroll
    for (int i = 0; i < ALONG; ++i) along[i] = inner[lane + 32 * i];
#pragma unroll
    for (int j = 0; j < ACROSS; j += 4) {
      *reinterpret_cast<float4*>(&across[j]) = *reinterpret_cast<const float4*>(&outer[own + j]);
    }
#pragma unroll
    for (int j = 0; j < ACROSS; ++j) {
#pragma unroll
      for (int i = 0; i < ALONG; ++i) sums[j][i] = fmaf(along[i], across[j], sums[j][i]);
    }
  }

#pragma unroll
  for (int i = 0; i < ALONG; ++i) {
#pragma unroll
    for (int j = 0; j < ACROSS; ++j) {
      int place = OUT_NHWC ? own + j : lane + 32 * i, pixel = tile.pixel + place;
      int channel = tile.channel + (OUT_NHWC ? lane + 32 * i : own + j);
      if ((!ALL_P && pixel >= tile.end) || (!ALL_C && channel >= GROUP_OUT)) continue;
      channel += tile.group * GROUP_OUT;
#if WITH_BIAS
      float result = finished(sums[j][i], static_cast<float>(bias[channel]));
#else
      float result = finished(sums[j][i], 0.0f);
#endif
      output[OUT_NHWC ? pixel * CO + channel : (pixel / PLANE * CO + channel) * PLANE + pixel % PLANE] = Element(result);
    }
  }
}
