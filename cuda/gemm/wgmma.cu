// C = A B on the tensor cores of Hopper (sm_90a): elements of 16 bits, or of 8 bits or TF32 where the rows of
// both matrices lie along K; added in float32.
//
// Besides those of tiles.cu and hopper.cu, the constants of this text are:
//   MULTIPLY_ADD       the instruction, up to its operands: "wgmma ... .m64n256k16.f32.bf16.bf16"
//   SUMS_PLACES        its TILE_N / 2 sums in PTX, SUMS_OPERANDS in C++
//   A_PLACE, B_PLACE, ADD_PLACE   its other operands
//   ALONG              what follows them: for 16 bits, ", 1" if rows of C are along lines of A, otherwise
//                      ", 0"; and the same for its columns and B
//   BOXED_C            whether the tensor memory accelerator stores C, in boxes
//   C_WIDTH            elements of C that are written at once, unless BOXED_C: rows are a multiple of
//                      them apart
//   PROMOTED           whether sums are added to totals in float32 after every step. Those of 8-bit elements
//                      have about 14 bits (DeepSeek-V3 Technical Report, arXiv:2412.19437, section 3.3.2)
//   DOUBLED            whether a thread has registers for the sums of two steps: those of one are then
//                      promoted while those of the next one are computed
//   B_SCALE_ROW        scales of B's blocks for the same columns, if SCALES is 3
//   PACK               makes two sums one register: "cvt.rn.bf16x2.f32"; if HALVES only
//   HALVES             whether elements of C have 16 bits
//   ROWS_STORED        whether threads store tiles that end with a group, where BOXED_C
//
// The producer lets the tensor memory accelerator copy boxes of A and B to shared memory, described
// by tensor maps: what lies outside the matrices becomes 0. The consumers multiply directly from
// there, each its own rows of the tile. Barriers in shared memory tell when a stage is full, that is,
// when all of its bytes have arrived, and when it is empty again. The producer goes on with the next
// tile while consumers store this one.

constexpr int DEPTH = 32 / sizeof(Element);  // columns of A and rows of B in one instruction
constexpr int OWN_M = TILE_M / CONSUMERS, PIECES = OWN_M / 64;
constexpr int C_LINE = SWAPPED ? 16 : HALVES && TILE_N % 64 ? 32 : 128 / sizeof(Result);  // elements of a line of C
constexpr int C_LINE_BYTES = SWAPPED ? 128 : C_LINE * sizeof(Result);
constexpr int C_PIECE = 16 / sizeof(Result);  // elements of C of what is swizzled as a whole
constexpr int C_BOXES = 2, C_BOX = 16 * (SWAPPED ? 64 : C_LINE);  // of a warp: one is filled while the other is stored
static_assert(TILE_M == OWN_M * CONSUMERS && OWN_M == 64 * PIECES, "rows must be divided evenly");
static_assert((B_TRANSPOSED || TILE_N % LINE == 0) && TILE_N % C_LINE == 0 && TILE_K % LINE == 0,
              "boxes must fill the tile");

struct Sums {
  float of[PIECES][TILE_N / 2];
};

// ---- The consumers

// Where in a stage an operand begins, in elements.
constexpr int __host__ __device__ place_in_a(int m, int k) {
  return A_TRANSPOSED ? m * TILE_K + k * LINE : k / LINE * LINE * TILE_M + m * LINE + k % LINE;
}

constexpr int __host__ __device__ place_in_b(int k) {
  return B_TRANSPOSED ? k / LINE * LINE * TILE_N + k % LINE : k * LINE;
}

__device__ __forceinline__ unsigned long long described_part(const Element* start) {
  return described(start, TILE_K * 128, 1024);
}

// How much further on a description is.
constexpr unsigned __host__ __device__ further(int elements) {
  return elements * static_cast<int>(sizeof(Element)) / DESCRIBED_BYTES;
}

// Begin to add a product, or to set the sums to it.
__device__ __forceinline__ void multiply_add(float (&sums)[TILE_N / 2], unsigned long long a,
                                             unsigned long long b, int add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, " ADD_PLACE ", 0;\n"
      MULTIPLY_ADD " {" SUMS_PLACES "}, " A_PLACE ", " B_PLACE ", add, 1, 1" ALONG ";\n"
      "}"
      : SUMS_OPERANDS
      : "l"(a), "l"(b), "r"(add));
}

// Begin to multiply a stage, given the descriptions of its A and B.
__device__ __forceinline__ void multiply(Sums& sums, unsigned long long a, unsigned long long b,
                                         bool first) {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int k = 0; k < TILE_K; k += DEPTH) {
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
      multiply_add(sums.of[i], a + further(place_in_a(64 * i, k)), b + further(place_in_b(k)),
                   k > 0 || !first);
    }
  }
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Wait for all products but those of the latest `others` steps.
template <int OTHERS>
__device__ __forceinline__ void finish(Sums& sums) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(OTHERS) : "memory");
#pragma unroll
  for (int i = 0; i < PIECES; ++i) {
#pragma unroll
    for (int j = 0; j < TILE_N / 2; ++j) asm volatile("" : "+f"(sums.of[i][j]) :: "memory");
  }
}

#if PROMOTED
// Totals in float32, of which an instruction's sums are parts.
constexpr int BLOCK = 128;  // elements with a scale in common, along K and along columns of B
constexpr int GROUP_COLUMNS = TILE_N % 64 ? 32 : TILE_N % BLOCK ? 64 : BLOCK;  // all in the same block
[[maybe_unused]] constexpr int COLUMN_GROUPS = TILE_N / GROUP_COLUMNS;
static_assert(TILE_K == BLOCK, "a step must be as long as a block");

// What the sums of a step are multiplied with: of a thread's rows of A, and of groups of columns of B.
struct Factors {
#if SCALES == 3
  float of_rows[2 * PIECES], of_columns[COLUMN_GROUPS];
#endif
};

// What a thread keeps of a step until its sums are promoted.
struct Part {
  Sums sums;
  Factors factors;
};

__device__ __forceinline__ Factors factors_of(const float* a_scale, const float* b_scale,
                                              Place place, int m, int step) {
  Factors factors;
#if SCALES == 3
  int row = place.row + m + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
  for (int i = 0; i < 2 * PIECES; ++i) {
    int own = row + i / 2 * 64 + i % 2 * 8;
    factors.of_rows[i] = ALL_M || own < M ? a_scale[step * M + own] : 0.0f;
  }
#pragma unroll
  for (int i = 0; i < COLUMN_GROUPS; ++i) {
    int column = place.column + i * GROUP_COLUMNS;
    factors.of_columns[i] = ALL_N || column < N ? b_scale[column / BLOCK * B_SCALE_ROW + step] : 0.0f;
  }
#endif
  return factors;
}

// Add the sums of a step to the totals.
__device__ __forceinline__ void promote(Sums& totals, const Sums& sums, const Factors& factors) {
#pragma unroll
  for (int i = 0; i < PIECES; ++i) {
#pragma unroll
    for (int j = 0; j < TILE_N / 2; ++j) {
#if SCALES == 3
      float factor = factors.of_rows[2 * i + j / 2 % 2] * factors.of_columns[2 * j / GROUP_COLUMNS];
      totals.of[i][j] = fmaf(factor, sums.of[i][j], totals.of[i][j]);
#else
      totals.of[i][j] += sums.of[i][j];
#endif
    }
  }
}
#endif

// ---- What consumers do with their sums. A thread has pairs of neighbouring columns, in eight rows
// of a warp's 16 (PTX ISA, "Register Fragments for wgmma.mma_async").

#if HALVES
__device__ __forceinline__ unsigned packed(float first, float second) {
  unsigned both;
  asm(PACK " %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  return both;
}
#endif

// Where an element of C is in a box of lines, whose pieces are swizzled.
__device__ __forceinline__ int place_in_box(int line, int column) {
  int piece = column / C_PIECE ^ line / (128 / C_LINE_BYTES) % (C_LINE_BYTES / 16);
  return line * (C_LINE_BYTES / static_cast<int>(sizeof(Result))) + piece * C_PIECE + column % C_PIECE;
}

#if !SWAPPED
// Put the sums of 16 lines from `m` and C_LINE columns from `n`, with their end, into a box.
__device__ __forceinline__ void fill_box(Result* box, int m, int n, const float (&sums)[TILE_N / 2],
                                         const End& end) {
  int lane = threadIdx.x % 32;
#if !HALVES
#pragma unroll
  for (int i = 0; i < C_LINE / 4; ++i) {
    const float* both = &sums[n / 2 + 2 * i];
    float pair[2] = {both[0], both[1]};
    int line = i % 2 * 8 + lane / 4, column = i / 2 * 8 + lane % 4 * 2;
    end.apply<ALL_M && ALL_N>(pair, m + line, n + column);
    *reinterpret_cast<float2*>(box + place_in_box(line, column)) = make_float2(pair[0], pair[1]);
  }
#else
#pragma unroll
  for (int j = 0; j < C_LINE; j += 16) {
    unsigned pieces[4];  // of both halves of the rows, and then of eight further columns
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float* both = &sums[(n + j) / 2 + 2 * k];
      float pair[2] = {both[0], both[1]};
      end.apply<ALL_M && ALL_N>(pair, m + k % 2 * 8 + lane / 4,
                                n + j + k / 2 * 8 + lane % 4 * 2);
      pieces[k] = packed(pair[0], pair[1]);
    }
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 :: "r"(shared_address(box + place_in_box(lane % 16, j + lane / 16 * 8))),
                    "r"(pieces[0]), "r"(pieces[1]), "r"(pieces[2]), "r"(pieces[3])
                 : "memory");
  }
#endif
}
#endif

// Whether this block stores what a thread has in a box: blocks that divide a tile's steps store parts of it.
__device__ __forceinline__ bool stored_here(int piece, int n) {
  return (piece * (TILE_N / C_LINE) + n / C_LINE) % TILE_BLOCKS == own_part();
}

#if SWAPPED && BOXED_C
static_assert(HALVES, "stmatrix transposes elements of 16 bits");

// Write them, with their end: 64 rows of C at once, of which a warp has 16 of each 64 columns. It transposes them on
// their way to four boxes of 16 rows in shared memory, which the four warps of a consumer fill together, and of which
// each then stores one. Others are filled meanwhile; `stored` counts them.
__device__ __forceinline__ void store_swapped(const CUtensorMap& c_map, Place place, int first_column, const Sums& sums,
                                              const End& end, Result* boxes, int& stored) {
  constexpr int ROWS = 64, OF_CONSUMER = ROWS / 16;
  int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < PIECES; ++i) {
#pragma unroll
    for (int n = 0; n < TILE_N; n += ROWS) {
      Result* four = boxes + stored++ % C_BOXES * OF_CONSUMER * C_BOX;
#pragma unroll
      for (int part = 0; part < ROWS && n + part < TILE_N; part += 16) {
        if (!stored_here(i, n + part)) continue;
        unsigned pieces[4];  // of both halves of the columns, and then of eight further rows
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          float pair[2];
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            float one[1] = {sums.of[i][(n + part) / 2 + 2 * k + j]};
            end.apply<ALL_M && ALL_N>(one, n + part + k / 2 * 8 + lane % 4 * 2 + j,
                                      first_column + i * 64 + warp * 16 + k % 2 * 8 + lane / 4);
            pair[j] = one[0];
          }
          pieces[k] = packed(pair[0], pair[1]);
        }
        Result* there = four + part * 64 + place_in_box(lane / 16 * 8 + lane % 8, warp * 16 + lane / 8 % 2 * 8);
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                     :: "r"(shared_address(there)), "r"(pieces[0]), "r"(pieces[1]), "r"(pieces[2]), "r"(pieces[3])
                     : "memory");
      }
      written_for_async();
      if (lane == 0) wait_for_boxes<0>();  // those that are filled next have been stored
      asm volatile("bar.sync %0, 128;" :: "r"(3 + static_cast<int>(threadIdx.x) / 128) : "memory");
      if (lane == 0 && n + 16 * warp < TILE_N && stored_here(i, n + 16 * warp)) {
        store_box(c_map, place.column + first_column + i * 64, place.row + n + 16 * warp, matrix_of(place),
                  four + warp * C_BOX);
      }
    }
  }
}
#elif SWAPPED
// Write them, with their end, to C, of which `rows` and `columns` exist, or ALL: a warp transposes AT_ONCE x 16 in a
// box of its own, where rows of C are so far apart that there are few bank conflicts. Neighbouring lanes then write
// neighbouring elements, C_WIDTH at once.
template <bool ALL>
__device__ __forceinline__ void store_swapped(Result* to, int rows, int columns, int first_column,
                                              const Sums& sums, const End& end, float* box) {
  constexpr int AT_ONCE = TILE_N % 32 ? 16 : 32, ROW = 20, READ = C_WIDTH < 4 ? C_WIDTH : 4;
  constexpr int ACROSS = 16 / C_WIDTH, DOWN = 32 / ACROSS;
  using Type = typename Piece<C_WIDTH * sizeof(Result)>::Type;
  using Read = typename Piece<READ * sizeof(float)>::Type;
  int lane = threadIdx.x % 32, own_row = lane / ACROSS, own_column = lane % ACROSS * C_WIDTH;
#pragma unroll
  for (int i = 0; i < PIECES; ++i) {
    int column = first_column + i * 64 + threadIdx.x / 32 % 4 * 16 + own_column;
#pragma unroll
    for (int n = 0; n < TILE_N; n += AT_ONCE) {
      __syncwarp();
#pragma unroll
      for (int j = 0; j < AT_ONCE / 2; ++j) {
        int there = j / 4 * 8 + lane % 4 * 2 + j % 2;
        box[there * ROW + j / 2 % 2 * 8 + lane / 4] = sums.of[i][n / 2 + j];
      }
      __syncwarp();
#pragma unroll
      for (int part = 0; part < AT_ONCE; part += DOWN) {
        int row = n + part + own_row;
        if (!stored_here(i, n + part) || (!ALL && row >= rows)) continue;
        alignas(sizeof(Type)) Result results[C_WIDTH];
#pragma unroll
        for (int first = 0; first < C_WIDTH; first += READ) {
          alignas(sizeof(Read)) float parts[READ];
          const float* from = box + (part + own_row) * ROW + own_column + first;
          *reinterpret_cast<Read*>(parts) = *reinterpret_cast<const Read*>(from);
          end.apply<ALL>(parts, row, column + first);
#pragma unroll
          for (int j = 0; j < READ; ++j) results[first + j] = Result(parts[j]);
        }
        Result* there = to + row * LDC + column;
        if (ALL || column + C_WIDTH <= columns) {
          *reinterpret_cast<Type*>(there) = *reinterpret_cast<const Type*>(results);
        } else {
#pragma unroll
          for (int j = 0; j < C_WIDTH; ++j) {
            if (column + j < columns) there[j] = results[j];
          }
        }
      }
    }
  }
}
#else
#if !BOXED_C || ROWS_STORED
// Write a box to C, of which `rows` and `columns` exist, or ALL: neighbouring lanes write
// neighbouring elements.
template <bool ALL>
__device__ __forceinline__ void store_lines(Result* to, int rows, int columns, int m, int n,
                                            const Result* box) {
  constexpr int PARTS = C_LINE / C_WIDTH;  // of a line
  using Type = typename Piece<C_WIDTH * sizeof(Result)>::Type;
#pragma unroll
  for (int i = 0; i < 16 * PARTS; i += 32) {
    int line = (i + threadIdx.x % 32) / PARTS, column = (i + threadIdx.x % 32) % PARTS * C_WIDTH;
    const Result* from = box + place_in_box(line, column);
    int row = m + line;
    column += n;
    if (!ALL && row >= rows) continue;
    Result* there = to + row * LDC + column;
    if (ALL || column + C_WIDTH <= columns) {
      *reinterpret_cast<Type*>(there) = *reinterpret_cast<const Type*>(from);
    } else {
#pragma unroll
      for (int j = 0; j < C_WIDTH; ++j) {
        if (column + j < columns) there[j] = from[j];
      }
    }
  }
}
#endif

// Write them, with their end, through boxes of 16 lines in shared memory, which belong to this warp and
// are used in turn; `stored` counts them. A box of a tile that ends with a group would overwrite rows of
// the next one.
__device__ __forceinline__ void store(
#if BOXED_C
    const CUtensorMap& c_map,
#endif
#if !BOXED_C || ROWS_STORED
    Result* C,
#endif
    Place place, int m, const Sums& sums, const End& end, Result* boxes, int& stored) {
#if ROWS_STORED
  bool boxed = place.end - place.row >= TILE_M;
#else
  constexpr bool boxed = BOXED_C;
#endif
#pragma unroll
  for (int i = 0; i < PIECES; ++i) {
    int line = m + i * 64 + threadIdx.x / 32 % 4 * 16;
#pragma unroll
    for (int n = 0; n < TILE_N; n += C_LINE) {
      if (!stored_here(i, n)) continue;
      Result* box = boxes + stored++ % C_BOXES * C_BOX;
#if BOXED_C
      if (threadIdx.x % 32 == 0) {
        if (boxed) {
          wait_for_boxes<C_BOXES - 1>();
        } else {
          wait_for_boxes<0>();  // the latest one to be read may be of this box
        }
      }
      __syncwarp();
#endif
      fill_box(box, line, n, sums.of[i], end);
#if BOXED_C
      if (boxed) {
        written_for_async();
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
          store_box(c_map, place.column + n, place.row + line, matrix_of(place), box);
        }
      }
#endif
#if !BOXED_C || ROWS_STORED
      if (!boxed) {
        __syncwarp();
        store_lines<!ROWS_STORED && ALL_M && ALL_N>(C + place_in_c(place), place.end - place.row,
                                                    N - place.column, line, n, box);
      }
#endif
    }
  }
}

#endif

#if TILE_BLOCKS > 1
static_assert(STAGES * (A_STAGE + B_STAGE) * sizeof(Element) >= TILE_M * TILE_N * sizeof(float),
              "sums must fit where stages were");

// Add the sums of the other blocks to those that this one stores, all of which are left where stages were.
__device__ __forceinline__ void add_parts(Sums& sums, float4* memory) {
  constexpr int ALL = 128 * CONSUMERS;
  auto place = [](int i, int j) { return (i * (TILE_N / 8) + j) * ALL + static_cast<int>(threadIdx.x); };
  asm volatile("bar.sync 2, %0;" :: "n"(ALL) : "memory");  // all have read the last stages
#pragma unroll
  for (int i = 0; i < PIECES; ++i) {
#pragma unroll
    for (int j = 0; j < TILE_N / 8; ++j) {
      const float* four = &sums.of[i][4 * j];
      if (!stored_here(i, 8 * j)) memory[place(i, j)] = make_float4(four[0], four[1], four[2], four[3]);
    }
  }
  meet();
  constexpr int OF_BOX = C_LINE / 8;  // loads that are on the way at once
#pragma unroll
  for (int i = 0; i < PIECES; ++i) {
#pragma unroll
    for (int first = 0; first < TILE_N / 8; first += OF_BOX) {
      if (!stored_here(i, 8 * first)) continue;
#pragma unroll
      for (int other = 1; other < TILE_BLOCKS; ++other) {
        int from = (own_part() + other) % TILE_BLOCKS;
        float4 parts[OF_BOX];
#pragma unroll
        for (int j = 0; j < OF_BOX; ++j) parts[j] = read_from(memory + place(i, first + j), from);
#pragma unroll
        for (int j = 0; j < OF_BOX; ++j) {
          float* four = &sums.of[i][4 * (first + j)];
          four[0] += parts[j].x;
          four[1] += parts[j].y;
          four[2] += parts[j].z;
          four[3] += parts[j].w;
        }
      }
    }
  }
}
#endif

#if SHARED_TILES
constexpr int SUM_THREADS = 128 * CONSUMERS;

// Write them as a part of a tile's sum, in an order in which a warp's accesses are neighbours.
__device__ __forceinline__ void store_part(float* part, const Sums& sums) {
#pragma unroll
  for (int i = 0; i < PIECES; ++i) {
#pragma unroll
    for (int j = 0; j < TILE_N / 8; ++j) {
      const float* four = &sums.of[i][4 * j];
      reinterpret_cast<float4*>(part)[(i * (TILE_N / 8) + j) * SUM_THREADS + threadIdx.x] =
          make_float4(four[0], four[1], four[2], four[3]);
    }
  }
}

__device__ Place place_of_part(int i) {
  int thread = i / 4 % SUM_THREADS, four = i / 4 / SUM_THREADS, lane = thread % 32;
  int row = thread / 128 * OWN_M + four / (TILE_N / 8) * 64 + thread % 128 / 32 * 16;
  return {row + i % 4 / 2 * 8 + lane / 4, four % (TILE_N / 8) * 8 + 2 * (lane % 4) + i % 2, 0, 0};
}
#endif

// With one block to a multiprocessor, the compiler knows how many registers there are at launch.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
#if CLUSTERED
    __cluster_dims__(CLUSTER * TILE_BLOCKS, 1, 1)
#endif
    gemm(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
#if SCALES
         const float* __restrict__ a_scale, const float* __restrict__ b_scale,
#endif
#if WITH_BIAS
         const Result* __restrict__ bias,
#endif
#if WITH_RESIDUAL
         const Result* __restrict__ residual,
#endif
#if BOXED_C
         const __grid_constant__ CUtensorMap c_map
#if ROWS_STORED
         , Result* __restrict__ C
#endif
#else
         Result* __restrict__ C
#endif
#if SHARED_TILES
         , float* __restrict__ parts
#endif
    ) {
  extern __shared__ uint4 memory[];
  __shared__ Barrier full[STAGES], empty[STAGES];
  Element* a_stages = aligned<Element>(memory);
  Element* b_stages = a_stages + STAGES * A_STAGE;
  if (threadIdx.x == 128 * CONSUMERS) {
    prefetch_map(&a_map);
    prefetch_map(&b_map);
  }
  if (threadIdx.x == 0) {
#if BOXED_C
    prefetch_map(&c_map);
#endif
    for (int stage = 0; stage < STAGES; ++stage) {
      initialize(full[stage], 1);
      initialize(empty[stage], CONSUMERS * SHARERS);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  begin_together();
  follow();

  int block = blockIdx.x / (CLUSTER * TILE_BLOCKS), rank = own_rank(), warpgroup = own_warpgroup();
  Ring ring;
  if (warpgroup == CONSUMERS) {
#if CONSUMERS > 1
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(OTHER_REGISTERS));
#endif
    if (threadIdx.x % 128 == 0) {
      for (Work work = first_work(block); work.any(); work = next_work(work, block)) {
        Place place = place_of(work.tile, rank);
        for (int step = work.begin; step < work.end; ++step) {
          wait(empty[ring.stage], ring.parity ^ 1);
          copy_step(a_stages + ring.stage * A_STAGE, b_stages + ring.stage * B_STAGE, a_map, b_map,
                    place, step * TILE_K, rank, full[ring.stage]);
          ring.advance();
        }
      }
      let_next_begin();
    }
    return;
  }

#if CONSUMERS > 1
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(CONSUMER_REGISTERS));
#endif
  int m = warpgroup * OWN_M;
  int thread = threadIdx.x % 128;
  unsigned long long a = described_part(a_stages + place_in_a(m, 0)), b = described_part(b_stages);
  [[maybe_unused]] CommonScales scales = common_scales(A_SCALE, B_SCALE);
  constexpr int FILLED_BY = SWAPPED && BOXED_C ? 128 : 32;  // the threads that fill a box
  Result* boxes = reinterpret_cast<Result*>(b_stages + STAGES * B_STAGE) +
                  threadIdx.x / FILLED_BY * (FILLED_BY / 32 * C_BOXES * C_BOX);
  [[maybe_unused]] int stored = 0;
  for (Work work = first_work(block); work.any(); work = next_work(work, block)) {
#if PROMOTED
    Place scaled = place_of(work.tile, rank);
    Sums sums = {};
    Ring ended = ring;
    auto begin = [&](Part& part, int step) {
      wait(full[ring.stage], ring.parity);
      multiply(part.sums, a + ring.stage * further(A_STAGE), b + ring.stage * further(B_STAGE), true);
      part.factors = factors_of(A_SCALE, B_SCALE, scaled, m, step);
      ring.advance();
    };
    auto end = [&](Part& part, bool last) {
      if (last) {
        finish<0>(part.sums);
      } else {
        finish<1>(part.sums);
      }
      if (thread < SHARERS) empty_for(empty[ended.stage], rank, thread);
      ended.advance();
      promote(sums, part.sums, part.factors);
    };
#if DOUBLED
    overlap_steps<Part>(work, begin, end);
#else
    for (int step = work.begin; step < work.end; ++step) {
      Part part;
      begin(part, step);
      end(part, true);
    }
#endif
#else
    Sums sums;
    int before = 0;  // the stage of the step before
    for (int step = work.begin; step < work.end; ++step) {
      wait(full[ring.stage], ring.parity);
      multiply(sums, a + ring.stage * further(A_STAGE), b + ring.stage * further(B_STAGE),
               step == work.begin);
      finish<1>(sums);
      if (thread < SHARERS && step > work.begin) empty_for(empty[before], rank, thread);
      before = ring.stage;
      ring.advance();
    }
    finish<0>(sums);
    if (thread < SHARERS) empty_for(empty[before], rank, thread);
#endif
#if SHARED_TILES
    // A block has at most one tile that others have begun, and one that others finish.
    if (!work.whole()) {
      store_part(parts + part_of(block, rank, work.begin == 0), sums);
      continue;
    }
#endif
#if TILE_BLOCKS > 1
    add_parts(sums, reinterpret_cast<float4*>(a_stages));
    arrive_in_cluster();  // before sums are stored, for which it would wait
#endif
    Place place = place_of_c(place_of(work.tile, rank));
    End ending = end_at(place, BIAS, RESIDUAL, scales, A_SCALE, B_SCALE);
#if SWAPPED && BOXED_C
    store_swapped(c_map, place, m, sums, ending, boxes, stored);
#elif SWAPPED
    store_swapped<ALL_M && ALL_N>(C + place_in_c(place), place.end - place.row, C_COLUMNS - place.column, m, sums, ending,
                                  reinterpret_cast<float*>(boxes));
#elif ROWS_STORED
    store(c_map, C, place, m, sums, ending, boxes, stored);
#elif BOXED_C
    store(c_map, place, m, sums, ending, boxes, stored);
#else
    store(C, place, m, sums, ending, boxes, stored);
#endif
  }
#if BOXED_C
  if (threadIdx.x % 32 == 0) wait_for_boxes<0>();  // shared memory ends with the block
#endif
#if TILE_BLOCKS > 1
  wait_for_cluster();  // others have read the sums of this block
#elif CLUSTERED
  meet();  // others have arrived at barriers of this block
#endif
}
