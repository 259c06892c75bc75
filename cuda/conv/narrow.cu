// A direct convolution with few channels of the output in a group: threads share the channels of the input.
//
// Besides those of window.cu, the constants of this text are:
//   GROUPS             of channels
//   GROUP_IN, GROUP_OUT   channels of the input and of the output in a group
//   CHANNELS           of the output that a thread computes, all of one group: a part
//   DEPTH              channels of the input whose weights are in shared memory at a time, a multiple of THREADS_Z
//   WEIGHT_WIDTH       elements of these that can be read at once, a divisor of CHANNELS
//   WEIGHT_ROW         elements of a channel of the input, of which threads of a warp read different ones
//   ADDED              channels of the output whose sums are in shared memory at a time
//   SHARED             elements of shared memory
//
// The THREADS_Z threads of a tile multiply its windows in every THREADS_Z-th plane of the input with the weights of
// all channels of the part. In NHWC, they are neighbours, and read neighbouring channels. At the end, their sums are
// added through shared memory.

constexpr int PARTS = (GROUP_OUT + CHANNELS - 1) / CHANNELS;
constexpr int TILES = THREADS_X * THREADS_Y, OUTPUTS = ROWS * COLUMNS;
// In NCHW, loads of two planes are then under way at once, which took up to a third less time on an H200. In NHWC, more
// registers cost more.
constexpr int PLANES_UNROLLED = NHWC ? 1 : 2;
constexpr int SLOTS = ADDED * OUTPUTS, PITCH = SLOTS | 1;  // odd: threads then write to different banks
static_assert(WEIGHT_ROW % WEIGHT_WIDTH == 0 && CHANNELS % WEIGHT_WIDTH == 0, "pieces must be aligned");
static_assert(DEPTH * WEIGHT_ROW <= SHARED && (THREADS_Z == 1 || THREADS * PITCH <= SHARED), "all must fit");

__device__ __forceinline__ int thread_of_block() {
  return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
}

// The channel and the place in a tile of a sum in shared memory: neighbours in NHWC are of the same pixel.
__device__ __forceinline__ constexpr int channel_of(int slot) { return NHWC ? slot % ADDED : slot / OUTPUTS; }
__device__ __forceinline__ constexpr int place_of(int slot) { return NHWC ? slot / ADDED : slot % OUTPUTS; }

// Copy the weights of a part for DEPTH channels of the input, from `first` on.
__device__ void copy_weights(float* to, const Element* __restrict__ weight, int group, int part, int first) {
#pragma unroll 4
  for (int i = thread_of_block(); i < DEPTH * TAPS * CHANNELS; i += THREADS) {
    int channel = i / (DEPTH * TAPS), along = i % (DEPTH * TAPS);
    int plane = NHWC ? along % DEPTH : along / TAPS, tap = NHWC ? along / DEPTH : along % TAPS;
    int of_group = part * CHANNELS + channel;
    bool has = (GROUP_OUT % CHANNELS == 0 || of_group < GROUP_OUT) &&
               (GROUP_IN % DEPTH == 0 || first + plane < GROUP_IN);
    int of_output = group * GROUP_OUT + of_group;
    int place = NHWC ? (of_output * TAPS + tap) * GROUP_IN + first + plane
                     : (of_output * GROUP_IN + first) * TAPS + along;
    to[plane * WEIGHT_ROW + tap * CHANNELS + channel] = has ? static_cast<float>(weight[place]) : 0.0f;
  }
}

// Store a result of the tile with this number in the block, if it exists.
__device__ __forceinline__ void store(Element* output, const Element* bias, int image, int channel, int tile,
                                      int place, float sum) {
  int tile_y = blockIdx.y * THREADS_Y + (NHWC ? tile % THREADS_Y : tile / THREADS_X);
  int tile_x = blockIdx.z * THREADS_X + (NHWC ? tile / THREADS_Y : tile % THREADS_X);
  int row = row_of_tile(tile_y) + place / COLUMNS * ROWS_APART;
  int column = column_of_tile(tile_x) + place % COLUMNS * COLUMNS_APART;
  if (row >= OH || column >= OW) return;
  output[output_plane(image, channel) + (row * OW + column) * OUT_PITCH] =
      static_cast<Element>(finished(sum, bias + channel));
}

extern "C" __global__ void __launch_bounds__(THREADS)
narrow(const Element* __restrict__ data, const Element* __restrict__ weight,
#if WITH_BIAS
       const Element* __restrict__ bias,
#endif
       Element* __restrict__ output) {
#if !WITH_BIAS
  const Element* bias = nullptr;
#endif
  __shared__ alignas(16) float memory[SHARED];
  int part = blockIdx.x % PARTS, group = blockIdx.x / PARTS % GROUPS, image = blockIdx.x / (PARTS * GROUPS);
  Tile tile;
  // All threads copy weights and add sums, those without a tile too. They read another's window.
  if (!tile.exists) tile.row = tile.column = 0;
  constexpr int NEXT_PLANE = NHWC ? 1 : H * W;
  const Element* plane = data + input_plane(image, group * GROUP_IN);

  Sums sums[CHANNELS];
#pragma unroll
  for (int channel = 0; channel < CHANNELS; ++channel) sums[channel].clear();
  Window window;
  if (thread_of_channel() < GROUP_IN) window.read(plane + thread_of_channel() * NEXT_PLANE, tile);
  for (int first = 0; first < GROUP_IN; first += DEPTH) {
    if (first > 0) __syncthreads();  // the weights before were read
    copy_weights(memory, weight, group, part, first);
    __syncthreads();
    int depth = min(DEPTH, GROUP_IN - first);
#pragma unroll PLANES_UNROLLED
    for (int own = thread_of_channel(); own < depth; own += THREADS_Z) {
      Window next = window;
      if (first + own + THREADS_Z < GROUP_IN) {
        next.read(plane + (first + own + THREADS_Z) * NEXT_PLANE, tile);
      }
#pragma unroll
      for (int tap = 0; tap < TAPS; ++tap) {
        alignas(16) float of_tap[CHANNELS];
        const float* from = &memory[own * WEIGHT_ROW + tap * CHANNELS];
#pragma unroll
        for (int i = 0; i < CHANNELS; i += WEIGHT_WIDTH) copy<WEIGHT_WIDTH>(&of_tap[i], &from[i]);
#pragma unroll
        for (int channel = 0; channel < CHANNELS; ++channel) {
          sums[channel].add(window, tap / KW, tap % KW, of_tap[channel]);
        }
      }
      window = next;
    }
  }

  int channels = min(CHANNELS, GROUP_OUT - part * CHANNELS), first = group * GROUP_OUT + part * CHANNELS;
  if (THREADS_Z == 1) {
#pragma unroll
    for (int channel = 0; channel < CHANNELS; ++channel) {
      if (!tile.exists || channel >= channels) continue;
      sums[channel].write(output + output_plane(image, first + channel), tile, bias + first + channel);
    }
    return;
  }
#pragma unroll
  for (int begin = 0; begin < CHANNELS; begin += ADDED) {
    __syncthreads();  // what is in shared memory was read
#pragma unroll
    for (int slot = 0; slot < SLOTS; ++slot) {
      int channel = begin + channel_of(slot), place = place_of(slot);
      if (channel >= CHANNELS) continue;
      memory[thread_of_block() * PITCH + slot] = sums[channel].of[place / COLUMNS][place % COLUMNS];
    }
    __syncthreads();
    for (int i = thread_of_block(); i < TILES * SLOTS; i += THREADS) {
      int other = NHWC ? i / SLOTS : i % TILES, slot = NHWC ? i % SLOTS : i / TILES;
      int channel = begin + channel_of(slot);
      if (channel >= channels) continue;
      float sum = 0.0f;
#pragma unroll
      for (int z = 0; z < THREADS_Z; ++z) {
        sum += memory[(NHWC ? other * THREADS_Z + z : z * TILES + other) * PITCH + slot];
      }
      store(output, bias, image, first + channel, other, place_of(slot), sum);
    }
  }
}
