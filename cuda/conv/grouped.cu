// A direct convolution in groups: each plane of the output depends on the planes of its group.
//
// Besides those of window.cu, the constants of this text are:
//   GROUPS             of channels
//   GROUP_IN, GROUP_OUT   channels of the input and of the output in a group
//   CHANNELS           of the output that a thread computes, all of one group: a part
//   DEPTH              channels of the input whose weights are in shared memory at a time
//   WEIGHT_WIDTH       elements of these that can be read at once, a divisor of CHANNELS
//   OUT_CHANNELS       channels that are written at once in NHWC, a divisor of CHANNELS and of GROUP_OUT: the
//                      parts of a group have such channels in turn, so that neighbouring threads write neighbours
//
// A thread multiplies its window in a plane of the input with the weights of all its channels. The
// window of the next plane is read meanwhile.

constexpr int GROUP_PARTS = (GROUP_OUT + CHANNELS - 1) / CHANNELS;
constexpr int PARTS = GROUPS * GROUP_PARTS, PART_BLOCKS = (PARTS + THREADS_Z - 1) / THREADS_Z;
// Weights are kept by taps, each with those of the block's channels; rows of a multiple of 8 elements
// would begin at few of the 32 banks.
constexpr int BLOCK_CHANNELS = THREADS_Z * CHANNELS;
constexpr int WEIGHT_ROW = BLOCK_CHANNELS + (BLOCK_CHANNELS % 8 ? 0 : 4);
static_assert(WEIGHT_ROW % WEIGHT_WIDTH == 0 && CHANNELS % WEIGHT_WIDTH == 0,
              "pieces must be aligned");

// The channels of a thread: part `number` of all those of the output.
struct Part {
  int number;
  __device__ bool exists() const { return PARTS % THREADS_Z == 0 || number < PARTS; }
  __device__ int group() const { return number / GROUP_PARTS; }
  // Where the channel with this number in the part is in the group.
  __device__ int place(int channel) const {
    int own = number % GROUP_PARTS;
    return NHWC ? (channel / OUT_CHANNELS * GROUP_PARTS + own) * OUT_CHANNELS + channel % OUT_CHANNELS
                : own * CHANNELS + channel;
  }
  __device__ bool has(int channel) const {
    return GROUP_OUT % CHANNELS == 0 || place(channel) < GROUP_OUT;
  }
};

// Copy the weights of the block's channels for DEPTH channels of the input, from `first` on.
__device__ void copy_weights(float* to, const Element* __restrict__ weight, int first_part, int first) {
  constexpr int LENGTH = DEPTH * TAPS;
  int thread = (threadIdx.z * THREADS_Y + threadIdx.y) * blockDim.x + threadIdx.x;
  for (int i = thread; i < BLOCK_CHANNELS * LENGTH; i += THREADS) {
    int along = i % LENGTH, channel = i / LENGTH;
    Part part{first_part + channel / CHANNELS};
    bool has = part.exists() && part.has(channel % CHANNELS) &&
               (GROUP_IN % DEPTH == 0 || first + along / TAPS < GROUP_IN);
    int of_output = part.group() * GROUP_OUT + part.place(channel % CHANNELS);
    int place = NHWC ? (of_output * TAPS + along % TAPS) * GROUP_IN + first + along / TAPS
                     : (of_output * GROUP_IN + first) * TAPS + along;
    to[along * WEIGHT_ROW + channel] = has ? static_cast<float>(weight[place]) : 0.0f;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
grouped(const Element* __restrict__ data, const Element* __restrict__ weight,
#if WITH_BIAS
        const Element* __restrict__ bias,
#endif
        Element* __restrict__ output) {
#if !WITH_BIAS
  const Element* bias = nullptr;
#endif
  __shared__ alignas(16) float weights[DEPTH * TAPS * WEIGHT_ROW];
  int image = blockIdx.x / PART_BLOCKS, first_part = blockIdx.x % PART_BLOCKS * THREADS_Z;
  Part part{first_part + thread_of_channel()};
  Tile tile;
  bool exists = tile.exists && part.exists();
  // All threads copy weights, those without a tile too. They read another's window.
  if (!tile.exists) tile.row = tile.column = 0;
  int group = part.exists() ? part.group() : 0;
  const Element* plane = data + input_plane(image, group * GROUP_IN);
  constexpr int NEXT_PLANE = NHWC ? 1 : H * W;

  Sums sums[CHANNELS];
#pragma unroll
  for (int channel = 0; channel < CHANNELS; ++channel) sums[channel].clear();
  Window window;
  window.read(plane, tile);
  for (int first = 0; first < GROUP_IN; first += DEPTH) {
    if (first > 0) __syncthreads();  // the weights before were read
    copy_weights(weights, weight, first_part, first);
    __syncthreads();
    int depth = min(DEPTH, GROUP_IN - first);
#pragma unroll 2
    for (int of_input = 0; of_input < depth; ++of_input) {
      Window next = window;
      if (first + of_input + 1 < GROUP_IN) {
        next.read(plane + (first + of_input + 1) * NEXT_PLANE, tile);
      }
#pragma unroll
      for (int tap = 0; tap < TAPS; ++tap) {
        alignas(16) float of_tap[CHANNELS];
        const float* from =
            &weights[(of_input * TAPS + tap) * WEIGHT_ROW + thread_of_channel() * CHANNELS];
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
  if (!exists) return;
  int first = part.group() * GROUP_OUT;
#if NHWC
  output += output_plane(image, first) + (tile.row * OW + tile.column) * CO;
#pragma unroll
  for (int row = 0; row < ROWS; ++row) {
#pragma unroll
    for (int column = 0; column < COLUMNS; ++column) {
      if (!has_row(tile, row) || !has_column(tile, column)) continue;
      alignas(16) float results[CHANNELS];
#pragma unroll
      for (int channel = 0; channel < CHANNELS; channel += OUT_CHANNELS) {
        if (!part.has(channel)) continue;
#pragma unroll
        for (int i = channel; i < channel + OUT_CHANNELS; ++i) {
          results[i] = finished(sums[i].of[row][column], bias + first + part.place(i));
        }
        copy<OUT_CHANNELS>(output + pixel_of_tile(row, column) * CO + part.place(channel), results + channel);
      }
    }
  }
#else
#pragma unroll
  for (int channel = 0; channel < CHANNELS; ++channel) {
    if (part.has(channel)) {
      int place = first + part.place(channel);
      sums[channel].write(output + output_plane(image, place), tile, bias + place);
    }
  }
#endif
}
