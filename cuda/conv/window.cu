// What a thread of a convolution reads and writes: the part of all templates.
//
// A kernel consists of its constants, this text and that of its template. Constants are:
//   Element            type of the tensors' elements; all is computed in float
//   NHWC               whether channels are the inner dimension of tensors, instead of columns
//   CI, CO             channels of the input and of the output
//   H, W, OH, OW       size of the planes of the input and of the output
//   KH, KW             taps of the convolution in a plane, DILATION apart
//   STRIDE, PADDING    of the convolution
//   ROWS, COLUMNS      size of the tile of an output plane that a thread computes
//   ROWS_APART, COLUMNS_APART   how far apart they are in the output: with the distance of a dilated window's taps,
//                      outputs share what they depend on
//   ROW_STEP, COLUMN_STEP   how far apart the rows and columns of the window of a tile are in the input
//   ROW_STRIDE, COLUMN_STRIDE, ROW_DILATION, COLUMN_DILATION   stride and dilation in that window
//   THREADS_X, THREADS_Y, THREADS_Z   threads of a block: along columns, along rows, and along channels
//   WITH_BIAS, WITH_RELU   whether a bias is added to each channel, and whether negative results become 0
//   IN_WIDTH, OUT_WIDTH   elements of a row that can be read and written at once: rows begin at
//                      multiples of them, and so do the tiles in these rows
//
// A thread keeps the part of the input that its tile depends on, its window, in registers, because
// most of it is used by several outputs. All of it is read before the first product, so that a thread
// waits for memory once. Neighbouring threads have neighbouring tiles: what their windows have in
// common comes from the L1. In NHWC, they have neighbouring channels, so that a warp reads and writes
// whole lines, an element a thread.

constexpr int THREADS = THREADS_X * THREADS_Y * THREADS_Z;
constexpr int TAPS = KH * KW;
constexpr int WINDOW_ROWS = (ROWS - 1) * ROW_STRIDE + (KH - 1) * ROW_DILATION + 1;
constexpr int WINDOW_COLUMNS = (COLUMNS - 1) * COLUMN_STRIDE + (KW - 1) * COLUMN_DILATION + 1;
// What is read of a row begins LEAD columns before the window, at a multiple of IN_WIDTH.
constexpr int LEAD = (IN_WIDTH - PADDING % IN_WIDTH) % IN_WIDTH;
constexpr int PIECES = (LEAD + WINDOW_COLUMNS + IN_WIDTH - 1) / IN_WIDTH;
constexpr int TILES_Y = (OH + ROWS * ROWS_APART - 1) / (ROWS * ROWS_APART) * ROWS_APART;
constexpr int TILES_X = (OW + COLUMNS * COLUMNS_APART - 1) / (COLUMNS * COLUMNS_APART) * COLUMNS_APART;

// Where a tile begins, in the output: so many as are between its rows, or its columns, follow each other.
__device__ constexpr int row_of_tile(int number) {
  return number / ROWS_APART * (ROWS * ROWS_APART) + number % ROWS_APART;
}
__device__ constexpr int column_of_tile(int number) {
  return number / COLUMNS_APART * (COLUMNS * COLUMNS_APART) + number % COLUMNS_APART;
}

// Where the last one begins, and the last that exists.
constexpr int ROW_OF_LAST = row_of_tile(TILES_Y - 1), LAST_ROW = ROW_OF_LAST < OH ? ROW_OF_LAST : OH - 1;
constexpr int COLUMN_OF_LAST = column_of_tile(TILES_X - 1), LAST_COLUMN = COLUMN_OF_LAST < OW ? COLUMN_OF_LAST : OW - 1;
// The distance of neighbouring pixels.
constexpr int IN_PITCH = NHWC ? CI : 1, OUT_PITCH = NHWC ? CO : 1;
static_assert(!NHWC || (IN_WIDTH == 1 && OUT_WIDTH == 1), "neighbouring elements are of other channels");
static_assert(IN_WIDTH == 1 || COLUMN_STEP == 1, "neighbours must be neighbours in the input");
static_assert(OUT_WIDTH == 1 || COLUMNS_APART == 1, "neighbours must be neighbours in the output");
static_assert(W % IN_WIDTH == 0 && COLUMNS * STRIDE % IN_WIDTH == 0, "pieces must be aligned");
static_assert(OW % OUT_WIDTH == 0 && COLUMNS % OUT_WIDTH == 0, "pieces must be aligned");

// So many neighbouring elements, at a multiple of their bytes.
template <int WIDTH, class Type>
struct alignas(WIDTH * sizeof(Type)) Piece {
  Type of[WIDTH];
};

// Copy WIDTH neighbouring elements at once, in another type if need be; both places must be aligned to as many.
template <int WIDTH, class To, class From>
__device__ __forceinline__ void copy(To* to, const From* from) {
  auto read = *reinterpret_cast<const Piece<WIDTH, From>*>(from);
  Piece<WIDTH, To> written;
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) written.of[i] = static_cast<To>(read.of[i]);
  *reinterpret_cast<Piece<WIDTH, To>*>(to) = written;
}

// The number of a thread along columns, and along channels.
__device__ __forceinline__ int thread_of_column() { return NHWC ? threadIdx.z : threadIdx.x; }
__device__ __forceinline__ int thread_of_channel() { return NHWC ? threadIdx.x : threadIdx.z; }

// Where a plane begins: that of a channel of an image.
__device__ __forceinline__ int input_plane(int image, int channel) {
  return NHWC ? image * (H * W * CI) + channel : (image * CI + channel) * (H * W);
}
__device__ __forceinline__ int output_plane(int image, int channel) {
  return NHWC ? image * (OH * OW * CO) + channel : (image * CO + channel) * (OH * OW);
}

// The tile of a thread: its first row and column in the output, and whether it exists.
struct Tile {
  int row = row_of_tile(blockIdx.y * THREADS_Y + threadIdx.y);
  int column = column_of_tile(blockIdx.z * THREADS_X + thread_of_column());
  bool exists = ((TILES_Y % THREADS_Y == 0 && ROW_OF_LAST < OH) || row <= LAST_ROW) &&
                ((TILES_X % THREADS_X == 0 && COLUMN_OF_LAST < OW) || column <= LAST_COLUMN);
};

struct Window {
  alignas(16) float of[WINDOW_ROWS][PIECES * IN_WIDTH];

  __device__ __forceinline__ float at(int row, int column) const { return of[row][LEAD + column]; }

  // Read what is in the plane; what is outside is 0. The tile must exist. Conditions that all tiles
  // meet are constants once the loops are unrolled.
  __device__ __forceinline__ void read(const Element* __restrict__ plane, const Tile& tile) {
    int top = tile.row * STRIDE - PADDING, left = tile.column * STRIDE - PADDING - LEAD;
    const Element* first = plane + (top * W + left) * IN_PITCH;
#pragma unroll
    for (int row = 0; row < WINDOW_ROWS; ++row) {
      int y = row * ROW_STEP;
      bool has_row = (y >= PADDING || top + y >= 0) && (LAST_ROW * STRIDE - PADDING + y < H || top + y < H);
#pragma unroll
      for (int piece = 0; piece < PIECES; ++piece) {
        int column = piece * IN_WIDTH, x = column * COLUMN_STEP;
        // A piece is in the plane or outside, never both.
        bool has = has_row && (x >= PADDING + LEAD || left + x >= 0) &&
                   (LAST_COLUMN * STRIDE - PADDING - LEAD + x < W || left + x < W);
        const Element* from = first + (y * W + x) * IN_PITCH;
        int begin = max(LEAD - column, 0), end = min(LEAD + WINDOW_COLUMNS - column, IN_WIDTH);
        if (end - begin > 1) {
#pragma unroll
          for (int i = 0; i < IN_WIDTH; ++i) of[row][column + i] = 0.0f;
          if (has) copy<IN_WIDTH>(&of[row][column], from);
        } else {
          of[row][column + begin] = has ? static_cast<float>(from[begin * IN_PITCH]) : 0.0f;
        }
      }
    }
  }
};

// A result of a channel whose bias is at `bias`, if it has one.
__device__ __forceinline__ float finished(float sum, const Element* bias) {
  float result = WITH_BIAS ? sum + static_cast<float>(*bias) : sum;
  return WITH_RELU && result < 0.0f ? 0.0f : result;
}

// Whether a row or column of a tile is in the output.
__device__ __forceinline__ bool has_row(const Tile& tile, int row) {
  return LAST_ROW + row * ROWS_APART < OH || tile.row + row * ROWS_APART < OH;
}
__device__ __forceinline__ bool has_column(const Tile& tile, int column) {
  return LAST_COLUMN + column * COLUMNS_APART < OW || tile.column + column * COLUMNS_APART < OW;
}

// Where a row and a column of a tile are, from its first pixel on.
__device__ constexpr int pixel_of_tile(int row, int column) {
  return row * ROWS_APART * OW + column * COLUMNS_APART;
}

struct Sums {
  alignas(16) float of[ROWS][COLUMNS];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
#pragma unroll
      for (int column = 0; column < COLUMNS; ++column) of[row][column] = 0.0f;
    }
  }

  // Add the products of one tap, whose place in the kernel is (y, x).
  __device__ __forceinline__ void add(const Window& window, int y, int x, float weight) {
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
#pragma unroll
      for (int column = 0; column < COLUMNS; ++column) {
        float factor = window.at(row * ROW_STRIDE + y * ROW_DILATION, column * COLUMN_STRIDE + x * COLUMN_DILATION);
        of[row][column] = fmaf(factor, weight, of[row][column]);
      }
    }
  }

  // Write what is in the plane of the output, a channel whose bias is at `bias`. The tile must exist.
  __device__ __forceinline__ void write(Element* __restrict__ plane, const Tile& tile,
                                        const Element* bias) const {
    Element* first = plane + (tile.row * OW + tile.column) * OUT_PITCH;
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
      if (!has_row(tile, row)) continue;
#pragma unroll
      for (int column = 0; column < COLUMNS; column += OUT_WIDTH) {
        if (!has_column(tile, column)) continue;
        alignas(16) float results[OUT_WIDTH];
#pragma unroll
        for (int i = 0; i < OUT_WIDTH; ++i) results[i] = finished(of[row][column + i], bias);
        copy<OUT_WIDTH>(first + pixel_of_tile(row, column) * OUT_PITCH, results);
      }
    }
  }
};
