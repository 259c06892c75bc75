// C = A B of float32 matrices on the tensor cores of Hopper (sm_90a), in TF32 or split into two.
//
// Besides those of tiles.cu and hopper.cu, the constants of this text are:
//   IN_TURN            whether consumers begin to multiply one after another
//   DOUBLED            whether a thread has registers for two steps: one is then multiplied while the sums of
//                      the step before are added, and what the next one takes is read
//   SPLIT              whether elements are split (3xtf32), as in mma.cu
//   COPIED             whether threads copy A and B, with LDA and LDB elements from row to row: tensor maps
//                      can only describe rows that are a multiple of 16 bytes apart
//   TOGETHER           blocks that a multiprocessor holds at once, which share its registers
//   MULTIPLY_ADD       the instruction, up to its operands: "wgmma ... .m64n128k8.f32.tf32.tf32"
//   SUMS_PLACES        its TILE_M / 2 sums in PTX, SUMS_OPERANDS in C++
//   FIRST_PLACES, SECOND_PLACE, ADD_PLACE   its other operands
//
// The instruction takes its second operand from shared memory only, with consecutive k in a line, and
// TF32 cannot be transposed there. C^T = B^T A^T is computed: B^T comes from registers, which can be
// read in any order, and A has its elements in the right order if it is not stored transposed. Where B is
// stored transposed, lines have consecutive k, and ldmatrix distributes them as the instruction takes
// them: a thread gets one of four neighbouring elements of a line.
//
// The last warpgroup prepares what the others multiply. One thread lets the tensor memory accelerator
// copy boxes of A and B; three warps write what instructions cannot take as it is: the transpose of
// A, and the smaller parts of its elements. The larger part of an element needs no writing, since
// instructions ignore the bits that TF32 does not have. If rows are not aligned, its four warps copy A and B
// themselves, as they are stored and shifted as copies.cu says; from there, they write A to where instructions
// take it, and consumers read B.
//
// Tensor cores cut off what exceeds their precision. Where elements are split, they therefore add the
// products of one step only, and the sums of steps are added in float32. In turn, one consumer does
// that while another one multiplies. In TF32, what is cut off from sums is less than from elements.

constexpr int DEPTH = 8;  // rows of B^T and A^T in one instruction
constexpr int PREPARERS = COPIED ? 128 : 96;  // threads
constexpr bool PREPARED = SPLIT || A_TRANSPOSED || COPIED;
constexpr bool TURNED_HERE = A_TRANSPOSED && !COPIED;  // in shared memory, where there are two copies then
static_assert(TILE_N == 64 * CONSUMERS, "each consumer has 64 columns of the tile");
static_assert(TILE_M % (A_TRANSPOSED ? LINE : 8) == 0 && TILE_K == LINE, "boxes must fill the tile");

// Transposed: a thread's part of 64 columns and TILE_M rows of C.
struct Sums {
  float of[TILE_M / 2];
};

// What is in shared memory for one step. Without need for them, the last three are empty.
struct Stage {
  Element *a, *b, *turned_a, *rest_of_a, *stored_a;
};

// Rows that are copied as they are stored, with a piece more each: their distances, and all together.
constexpr int STORED_A_ROW = (A_TRANSPOSED ? TILE_M : TILE_K) + 4, STORED_B_ROW = (B_TRANSPOSED ? TILE_K : TILE_N) + 4;
constexpr int STORED_A = COPIED * STORED_A_ROW * (A_TRANSPOSED ? TILE_K : TILE_M);
constexpr int KEPT_B = COPIED ? STORED_B_ROW * (B_TRANSPOSED ? TILE_N : TILE_K) : B_STAGE;
constexpr int PATTERN = 1024 / sizeof(Element);  // where swizzled lines may begin
constexpr int STAGE_ELEMENTS =
    (A_STAGE * (1 + TURNED_HERE + SPLIT) + KEPT_B + STORED_A + PATTERN - 1) / PATTERN * PATTERN;

__device__ __forceinline__ Stage stage_at(Element* stages, int number) {
  Element* a = stages + number * STAGE_ELEMENTS;
  Element* turned_a = a + A_STAGE;
  Element* rest_of_a = turned_a + TURNED_HERE * A_STAGE;
  Element* b = rest_of_a + SPLIT * A_STAGE;
  return {a, b, turned_a, rest_of_a, b + KEPT_B};
}

// An element in swizzled lines.
__device__ __forceinline__ unsigned place_in(unsigned line, unsigned column) {
  return line * LINE + ((column / 4 ^ line % 8) * 4 | column % 4);
}

// What is lost when the bits are ignored that TF32 does not have.
__device__ __forceinline__ float rest_of(float x) {
  return x - __uint_as_float(__float_as_uint(x) & 0xFFFFE000);
}

// How the stored rows are shifted of which a thread reads elements, which are a multiple of four apart.
struct Shifts {
  int of[4];
};

// ---- The preparers

__device__ __forceinline__ float4 rest_of(float4 x) {
  return {rest_of(x.x), rest_of(x.y), rest_of(x.z), rest_of(x.w)};
}

// Read pieces of A, which are those from the `first` of COUNT on, `apart` from one another, and write what is made
// of them: several at once, of which the compiler does not know that none is read after it was written.
template <int COUNT, class Read, class Write>
__device__ __forceinline__ void in_batches(int first, int apart, const Read& read, const Write& write) {
  constexpr int BATCH = 4;
  for (; first < COUNT; first += BATCH * apart) {
    float4 pieces[BATCH];
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
      if (first + i * apart < COUNT) pieces[i] = read(first + i * apart);
    }
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
      if (first + i * apart < COUNT) write(first + i * apart, pieces[i]);
    }
  }
}

#if COPIED
// Steps whose copies are on the way while those of the next one begin. One that is ready is multiplied
// meanwhile.
constexpr int AHEAD = STAGES > 2 ? STAGES - 2 : 1;

// Begin to copy HEIGHT rows of LENGTH elements, of which the matrix has `rows` and `columns` from the element on that
// `from` points to; what it does not have becomes 0.
template <int HEIGHT, int LENGTH, int DISTANCE, int TO_ROW>
__device__ __forceinline__ void copy_operand(Element* to, const Element* from, int rows, int columns) {
  SharedPlace there = {to, shared_address(to)};
  if (rows >= HEIGHT && columns >= LENGTH) {
    copy_shifted<PREPARERS, HEIGHT, LENGTH, DISTANCE, TO_ROW, true>(there, from, rows, columns);
  } else {
    copy_shifted<PREPARERS, HEIGHT, LENGTH, DISTANCE, TO_ROW, false>(there, from, rows, columns);
  }
}

__device__ __forceinline__ const Element* first_of_a(const Element* A, const Place& place) {
  return A + matrix_of(place) * (A_TRANSPOSED ? K : M) * LDA + place.row * (A_TRANSPOSED ? 1 : LDA);
}

__device__ __forceinline__ const Element* first_of_b(const Element* B, const Place& place) {
  return B + place.product * (B_TRANSPOSED ? N : K) * LDB + place.column * (B_TRANSPOSED ? LDB : 1);
}

__device__ __forceinline__ void copy_step(const Stage& stage, const Element* A, const Element* B,
                                          const Place& place, int k) {
  const Element* a = first_of_a(A, place) + k * (A_TRANSPOSED ? LDA : 1);
  const Element* b = first_of_b(B, place) + k * (B_TRANSPOSED ? 1 : LDB);
  int rows = place.end - place.row, columns = N - place.column, depth = K - k;  // of C, and of the sums
  copy_operand<A_TRANSPOSED ? TILE_K : TILE_M, A_TRANSPOSED ? TILE_M : TILE_K, LDA, STORED_A_ROW>(
      stage.stored_a, a, A_TRANSPOSED ? depth : rows, A_TRANSPOSED ? rows : depth);
  copy_operand<B_TRANSPOSED ? TILE_N : TILE_K, B_TRANSPOSED ? TILE_K : TILE_N, LDB, STORED_B_ROW>(
      stage.b, b, B_TRANSPOSED ? columns : depth, B_TRANSPOSED ? depth : columns);
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Where A is stored transposed, of the rows of four neighbouring k; otherwise all of this thread's rows alike.
__device__ __forceinline__ Shifts shifts_of_a(const Element* A, const Place& place) {
  Shifts shifts;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    int row = A_TRANSPOSED ? i : threadIdx.x % 32 / 8;
    shifts.of[i] = shift_of(first_of_a(A, place) + row * LDA);
  }
  return shifts;
}

// Wait for all but the latest AHEAD steps, or for the last ones, of which `stage` is the first; write its A to where
// instructions take it, and say that it is there. This is done by four elements of a line at once, of which a warp has eight in each of four lines, or
// one in each of 32 where A is stored transposed, so that there are no bank conflicts.
__device__ __forceinline__ void prepare(const Stage& stage, const Shifts& shifts, Barrier& ready, bool last) {
  if (last) {
    asm volatile("cp.async.wait_group 0;" ::: "memory");
  } else {
    asm volatile("cp.async.wait_group %0;" :: "n"(AHEAD) : "memory");
  }
  asm volatile("bar.sync 8, %0;" :: "n"(PREPARERS) : "memory");
  int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  in_batches<TILE_M / 4>(warp, 4, [&](int i) {
    int line = A_TRANSPOSED ? i / 8 * 32 + lane : i * 4 + lane / 8, piece = A_TRANSPOSED ? i % 8 : lane % 8;
    float parts[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      int k = 4 * piece + j;
      parts[j] = stage.stored_a[(A_TRANSPOSED ? k * STORED_A_ROW + line : line * STORED_A_ROW + k) + shifts.of[j]];
    }
    return float4{parts[0], parts[1], parts[2], parts[3]};
  }, [&](int i, float4 piece) {
    int line = A_TRANSPOSED ? i / 8 * 32 + lane : i * 4 + lane / 8;
    unsigned there = place_in(line, 4 * (A_TRANSPOSED ? i % 8 : lane % 8));
    *reinterpret_cast<float4*>(stage.a + there) = piece;
#if SPLIT
    *reinterpret_cast<float4*>(stage.rest_of_a + there) = rest_of(piece);
#endif
  });
  written_for_async();
  arrive_as_warp(ready);
}
#elif A_TRANSPOSED
// Each warp turns strips of eight columns and LINE rows of A: eight lines of a box become eight
// elements in each of LINE lines. Places differ by single bits, (first + lane) ^ 4 i for
// first + place_in(i, lane), because instructions that find places would take longer than copying.
__device__ __forceinline__ void prepare(const Stage& stage, unsigned thread) {
  constexpr int BOX = LINE * TILE_K, STRIP = 8 * LINE;
  unsigned lane = thread % 32;
#pragma unroll 1
  for (unsigned first = thread / 32 * STRIP; first < A_STAGE; first += PREPARERS / 32 * STRIP) {
    float parts[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) parts[i] = stage.a[((first + lane) ^ 4 * i) + i * LINE];
    unsigned there = first / BOX * BOX + place_in(lane, first % BOX / LINE);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float* four = parts + 4 * half;
      float4 piece = {four[0], four[1], four[2], four[3]};
      *reinterpret_cast<float4*>(stage.turned_a + (there ^ 4 * half)) = piece;
#if SPLIT
      *reinterpret_cast<float4*>(stage.rest_of_a + (there ^ 4 * half)) = rest_of(piece);
#endif
    }
  }
}
#elif SPLIT
__device__ __forceinline__ void prepare(const Stage& stage, int thread) {
  in_batches<A_STAGE / 4>(
      thread, PREPARERS, [&](int i) { return reinterpret_cast<const float4*>(stage.a)[i]; },
      [&](int i, float4 piece) { reinterpret_cast<float4*>(stage.rest_of_a)[i] = rest_of(piece); });
}
#else
__device__ __forceinline__ void prepare(const Stage&, int) {}
#endif

// ---- The consumers

// By numbered barriers, one for each consumer: number 0 is that of __syncthreads.
__device__ __forceinline__ void wait_for_turn(int consumer) {
  asm volatile("bar.sync %0, 256;" :: "r"(1 + consumer) : "memory");
}

__device__ __forceinline__ void give_turn_after(int consumer) {
  asm volatile("bar.arrive %0, 256;" :: "r"(1 + (consumer + 1) % CONSUMERS) : "memory");
}

// The first of two neighbouring columns of C that a thread has of its consumer's 64. Instructions may
// have them in any order; in this one, reading B has no bank conflicts.
__device__ __forceinline__ int first_column(int thread) {
  int warp = thread / 32 % 4, group = thread % 32 / 4;
  if (B_TRANSPOSED) return warp * 16 + group * 2;
  int piece = group / 2 % 2 * 4 + group / 4 * 2 + warp % 2;
  return warp / 2 * LINE + piece * 4 + group % 2 * 2;
}

// Whether a thread has the second of these columns first. Eight lines that are read at once then begin
// in different banks.
__device__ __forceinline__ bool has_second_first(int thread) {
  return B_TRANSPOSED && thread % 32 / 16;
}

// Rows of B^T, as an instruction takes them from the registers of a thread.
struct Rows {
  unsigned of[4];
};

#if COPIED
// Of the first and second column of this thread, or of its rows.
__device__ __forceinline__ Shifts shifts_of_b(const Element* B, const Place& place, int n) {
  Shifts shifts;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    int column = n + first_column(threadIdx.x) + (i ^ has_second_first(threadIdx.x));
    shifts.of[i] = shift_of(first_of_b(B, place) + (B_TRANSPOSED ? column : threadIdx.x % 4) * LDB);
  }
  return shifts;
}

__device__ __forceinline__ Rows rows_of_b(const Element* b, int n, int k, const Shifts& shifts) {
  Rows rows;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    int column = n + first_column(threadIdx.x) + (i % 2 ^ has_second_first(threadIdx.x));
    int row = k + i / 2 * 4 + threadIdx.x % 4;
    int there = B_TRANSPOSED ? column * STORED_B_ROW + row : row * STORED_B_ROW + column;
    rows.of[i] = __float_as_uint(b[there + shifts.of[i % 2]]);
  }
  return rows;
}
#elif B_TRANSPOSED
__device__ __forceinline__ Rows rows_of_b(const Element* b, int n, int k, const Shifts&) {
  int lane = threadIdx.x % 32, reader = threadIdx.x / 32 * 32 + lane % 8 * 4;  // whose column is read
  int column = n + first_column(reader) + (lane / 8 % 2 ^ has_second_first(reader));
  Rows rows;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(rows.of[0]), "=r"(rows.of[1]), "=r"(rows.of[2]), "=r"(rows.of[3])
               : "r"(shared_address(b + place_in(column, k + lane / 16 * 4)))
               : "memory");
  return rows;
}
#else
__device__ __forceinline__ Rows rows_of_b(const Element* b, int n, int k, const Shifts&) {
  int column = n + first_column(threadIdx.x);
  Rows rows;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    int row = k + i * 4 + threadIdx.x % 4;
    uint2 both = *reinterpret_cast<const uint2*>(
        b + column / LINE * LINE * TILE_K + place_in(row, column % LINE));
    rows.of[2 * i] = both.x;
    rows.of[2 * i + 1] = both.y;
  }
  return rows;
}
#endif

__device__ __forceinline__ Rows rest_of(const Rows& rows) {
  Rows rest;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    rest.of[i] = __float_as_uint(rest_of(__uint_as_float(rows.of[i])));
  }
  return rest;
}

// Lines of A, of which instructions take DEPTH elements.
__device__ __forceinline__ unsigned long long columns_of_a(const Element* a) {
  return described(a, 0, 1024);
}

#define PRODUCT                                                                    \
  "{\n"                                                                            \
  ".reg .pred add;\n"                                                              \
  "setp.ne.b32 add, " ADD_PLACE ", 0;\n"                                           \
  MULTIPLY_ADD " {" SUMS_PLACES "}, {" FIRST_PLACES "}, " SECOND_PLACE ", add, 1, 1;\n" \
  "}"

// Begin to add a product.
__device__ __forceinline__ void multiply_add(float (&sums)[TILE_M / 2], const Rows& rows,
                                             unsigned long long columns) {
  asm volatile(PRODUCT
               : SUMS_OPERANDS
               : "r"(rows.of[0]), "r"(rows.of[1]), "r"(rows.of[2]), "r"(rows.of[3]), "l"(columns), "r"(1));
}

// Begin to set the sums to a product. They are no inputs: with a step under way, the compiler would otherwise
// wait for its sums, from whose registers it takes what these are before.
__device__ __forceinline__ void multiply(float (&sums)[TILE_M / 2], const Rows& rows,
                                         unsigned long long columns) {
  asm volatile(PRODUCT
               : SUMS_RESULTS
               : "r"(rows.of[0]), "r"(rows.of[1]), "r"(rows.of[2]), "r"(rows.of[3]), "l"(columns), "r"(0));
}

// Wait for all products but those of the latest `OTHERS` steps, and use their sums only after this.
template <int OTHERS>
__device__ __forceinline__ void finish(float (&sums)[TILE_M / 2]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(OTHERS) : "memory");
#pragma unroll
  for (int j = 0; j < TILE_M / 2; ++j) asm volatile("" : "+f"(sums[j]) :: "memory");
}

constexpr int COUNT = TILE_K / DEPTH;

// What a thread keeps of a step until its products are finished.
struct Step {
  Rows rows[COUNT], rest[COUNT];
#if SPLIT
  float part[TILE_M / 2];
#endif
};

// Begin to multiply a step: the products of smaller parts come first.
__device__ __forceinline__ void multiply(Step& step, Sums& sums, const Stage& stage, const Shifts& shifts,
                                         int consumer) {
  constexpr unsigned NEXT = DEPTH * sizeof(Element) / DESCRIBED_BYTES;
  unsigned long long a = columns_of_a(TURNED_HERE ? stage.turned_a : stage.a);
  unsigned long long rest_of_a = columns_of_a(stage.rest_of_a);
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    step.rows[i] = rows_of_b(stage.b, 64 * consumer, i * DEPTH, shifts);
    if (SPLIT) step.rest[i] = rest_of(step.rows[i]);
  }
  if (IN_TURN) wait_for_turn(consumer);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#if SPLIT
  float(&part)[TILE_M / 2] = step.part;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    if (i == 0) {
      multiply(part, step.rest[i], a);
    } else {
      multiply_add(part, step.rest[i], a + i * NEXT);
    }
    multiply_add(part, step.rows[i], rest_of_a + i * NEXT);
  }
#else
  float(&part)[TILE_M / 2] = sums.of;
#endif
#pragma unroll
  for (int i = 0; i < COUNT; ++i) multiply_add(part, step.rows[i], a + i * NEXT);
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  if (IN_TURN) give_turn_after(consumer);
}

// Finish a step whose products are the latest ones, or those before these.
template <int OTHERS>
__device__ __forceinline__ void add(Sums& sums, Step& step) {
#if SPLIT
  finish<OTHERS>(step.part);
#pragma unroll
  for (int j = 0; j < TILE_M / 2; ++j) sums.of[j] += step.part[j];
#else
  finish<OTHERS>(sums.of);
#endif
}

// ---- What consumers do with their sums. Of every eight rows of C, a thread has two neighbouring
// columns in two.

// Whether this block stores the j-th eight rows: blocks that divide a tile's steps store parts of it.
__device__ __forceinline__ bool stored_here(int j) { return j % TILE_BLOCKS == own_part(); }

#if TILE_BLOCKS > 1
static_assert(STAGES * STAGE_ELEMENTS >= TILE_M * TILE_N, "sums must fit where stages were");

// Add the sums of the other blocks to those that this one stores, all of which are left where stages were.
__device__ __forceinline__ void add_parts(Sums& sums, float4* memory) {
  constexpr int ALL = 128 * CONSUMERS;
  asm volatile("bar.sync 9, %0;" :: "n"(ALL) : "memory");  // all have read the last stages
  memory += threadIdx.x;
#pragma unroll
  for (int j = 0; j < TILE_M / 8; ++j) {
    const float* four = &sums.of[4 * j];
    if (!stored_here(j)) memory[j * ALL] = make_float4(four[0], four[1], four[2], four[3]);
  }
  meet();
#pragma unroll
  for (int other = 1; other < TILE_BLOCKS; ++other) {
    int from = (own_part() + other) % TILE_BLOCKS;
    float4 parts[TILE_M / 8];
#pragma unroll
    for (int j = 0; j < TILE_M / 8; ++j) {
      if (stored_here(j)) parts[j] = read_from(memory + j * ALL, from);
    }
#pragma unroll
    for (int j = 0; j < TILE_M / 8; ++j) {
      if (!stored_here(j)) continue;
      sums.of[4 * j] += parts[j].x;
      sums.of[4 * j + 1] += parts[j].y;
      sums.of[4 * j + 2] += parts[j].z;
      sums.of[4 * j + 3] += parts[j].w;
    }
  }
}
#endif

#if SWAPPED
// Write them, with their end, to rows of `distance` elements of C, of which `rows` and `columns` exist, or ALL: a
// thread then has neighbouring columns of two rows.
template <bool ALL>
__device__ __forceinline__ void store(float* to, int distance, int rows, int columns, int n,
                                      const Sums& sums, const End& end) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    int row = n + first_column(threadIdx.x) + (i ^ has_second_first(threadIdx.x));
    if (!ALL && row >= rows) continue;
#pragma unroll
    for (int j = 0; j < TILE_M / 8; ++j) {
      if (!stored_here(j)) continue;
      int column = j * 8 + 2 * (threadIdx.x % 4);
      float pair[2] = {sums.of[4 * j + 2 * i], sums.of[4 * j + 2 * i + 1]};
      end.apply<ALL>(pair, row, column);
      store_pair<ALL>(to + row * distance + column, distance, columns - column, pair[0], pair[1]);
    }
  }
}
#else
// Write them, with their end, to rows of `distance` elements, of which `rows` and `columns` exist, or ALL.
template <bool ALL>
__device__ __forceinline__ void store(float* to, int distance, int rows, int columns, int n,
                                      const Sums& sums, const End& end) {
  int column = n + first_column(threadIdx.x);
  bool swapped = has_second_first(threadIdx.x);
#pragma unroll
  for (int j = 0; j < TILE_M / 4; ++j) {
    int row = j / 2 * 8 + 2 * (threadIdx.x % 4) + j % 2;
    if (!stored_here(j / 2) || (!ALL && row >= rows)) continue;
    float first = sums.of[j / 2 * 4 + j % 2], second = sums.of[j / 2 * 4 + j % 2 + 2];
    float pair[2] = {swapped ? second : first, swapped ? first : second};
    end.apply<ALL>(pair, row, column);
    store_pair<ALL>(to + row * distance + column, distance, columns - column, pair[0], pair[1]);
  }
}
#endif

#if SHARED_TILES
constexpr int SUM_THREADS = 128 * CONSUMERS;

// Write them as a part of a tile's sum, in an order in which a warp's accesses are neighbours.
__device__ __forceinline__ void store_part(float* part, const Sums& sums) {
#pragma unroll
  for (int j = 0; j < TILE_M / 8; ++j) {
    const float* four = &sums.of[4 * j];
    reinterpret_cast<float4*>(part)[j * SUM_THREADS + threadIdx.x] =
        make_float4(four[0], four[1], four[2], four[3]);
  }
}

__device__ Place place_of_part(int i) {
  int thread = i / 4 % SUM_THREADS, eight = i / 4 / SUM_THREADS;
  return {eight * 8 + 2 * (thread % 4) + i % 2,
          thread / 128 * 64 + first_column(thread) + (i % 4 / 2 ^ has_second_first(thread)), 0, 0};
}
#endif

// With so many blocks to a multiprocessor, the compiler knows how many registers there are at launch.
extern "C" __global__ void __launch_bounds__(THREADS, TOGETHER)
#if CLUSTERED
    __cluster_dims__(CLUSTER * TILE_BLOCKS, 1, 1)
#endif
    gemm(
#if COPIED
        const Element* __restrict__ A, const Element* __restrict__ B,
#else
        const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
#endif
#if WITH_BIAS
         const Element* __restrict__ bias,
#endif
#if WITH_RESIDUAL
         const Element* __restrict__ residual,
#endif
         Element* __restrict__ C
#if SHARED_TILES
         , float* __restrict__ parts
#endif
    ) {
  extern __shared__ uint4 memory[];
  __shared__ Barrier full[STAGES], ready[STAGES], empty[STAGES];
  Element* stages = aligned<Element>(memory);
#if !COPIED
  if (threadIdx.x == 128 * CONSUMERS) {
    prefetch_map(&a_map);
    prefetch_map(&b_map);
  }
#endif
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; ++stage) {
      initialize(full[stage], 1);
      initialize(ready[stage], PREPARERS / 32);
      initialize(empty[stage], 4 * CONSUMERS * SHARERS);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  begin_together();

  int block = blockIdx.x / (CLUSTER * TILE_BLOCKS), rank = own_rank(), warpgroup = own_warpgroup();
  Ring ring;
  if (warpgroup == CONSUMERS) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(OTHER_REGISTERS));
#if COPIED
    Ring copied;
    int open = 0;
    Work prepared = first_work(block);
    int step_prepared = prepared.begin;
    Shifts shifts = shifts_of_a(A, place_of(prepared.tile, rank));
    auto prepare_next = [&](bool last) {
      if (step_prepared == prepared.end) {
        prepared = next_work(prepared, block);
        step_prepared = prepared.begin;
        shifts = shifts_of_a(A, place_of(prepared.tile, rank));
      }
      prepare(stage_at(stages, ring.stage), shifts, ready[ring.stage], last);
      ++step_prepared;
      ring.advance();
    };
    for (Work work = first_work(block); work.any(); work = next_work(work, block)) {
      Place place = place_of(work.tile, rank);
      for (int step = work.begin; step < work.end; ++step) {
        wait(empty[copied.stage], copied.parity ^ 1);
        copy_step(stage_at(stages, copied.stage), A, B, place, step * TILE_K);
        copied.advance();
        if (++open > AHEAD) prepare_next(false);
      }
    }
    for (open = min(open, AHEAD); open > 0; --open) prepare_next(true);
#else
    int thread = threadIdx.x % 128 - 32;  // of the preparers
    if (thread == -32) {
      for (Work work = first_work(block); work.any(); work = next_work(work, block)) {
        Place place = place_of(work.tile, rank);
        for (int step = work.begin; step < work.end; ++step) {
          wait(empty[ring.stage], ring.parity ^ 1);
          Stage stage = stage_at(stages, ring.stage);
          copy_step(stage.a, stage.b, a_map, b_map, place, step * TILE_K, rank, full[ring.stage]);
          ring.advance();
        }
      }
    } else if (PREPARED && thread >= 0) {
      for (Work work = first_work(block); work.any(); work = next_work(work, block)) {
        for (int step = work.begin; step < work.end; ++step) {
          wait(full[ring.stage], ring.parity);
          prepare(stage_at(stages, ring.stage), thread);
          written_for_async();
          arrive_as_warp(ready[ring.stage]);
          ring.advance();
        }
      }
    }
#endif
    return;
  }

  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(CONSUMER_REGISTERS));
  int lane = threadIdx.x % 32;
  if (IN_TURN && warpgroup == CONSUMERS - 1) give_turn_after(warpgroup);
  for (Work work = first_work(block); work.any(); work = next_work(work, block)) {
    Sums sums = {};
    Ring ended = ring;
    Shifts shifts = {};
#if COPIED
    shifts = shifts_of_b(B, place_of(work.tile, rank), warpgroup * 64);
#endif
    auto begin = [&](Step& step, int) {
      if (!COPIED) wait(full[ring.stage], ring.parity);
      if (PREPARED) wait(ready[ring.stage], ring.parity);
      multiply(step, sums, stage_at(stages, ring.stage), shifts, warpgroup);
      ring.advance();
    };
    auto end = [&](Step& step, bool last) {
      if (last) {
        add<0>(sums, step);
      } else {
        add<1>(sums, step);
      }
      __syncwarp();  // each thread has read rows itself
      if (lane < SHARERS) empty_for(empty[ended.stage], rank, lane);
      ended.advance();
    };
#if DOUBLED
    overlap_steps<Step>(work, begin, end);
#else
    for (int number = work.begin; number < work.end; ++number) {
      Step step;
      begin(step, number);
      end(step, true);
    }
#endif
#if SHARED_TILES
    // A block has at most one tile that others have begun, and one that others finish.
    if (!work.whole()) {
      store_part(parts + part_of(block, rank, work.begin == 0), sums);
      continue;
    }
#endif
#if TILE_BLOCKS > 1
    add_parts(sums, reinterpret_cast<float4*>(stages));
    arrive_in_cluster();  // before sums are stored, for which it would wait
#endif
    Place place = place_of_c(place_of(work.tile, rank));
    store<ALL_M && ALL_N>(C + place_in_c(place), LDC, place.end - place.row, C_COLUMNS - place.column,
                          warpgroup * 64, sums, end_at(place, BIAS, RESIDUAL));
  }
  if (IN_TURN && warpgroup == 0) wait_for_turn(warpgroup);  // no barrier keeps an arrival
#if TILE_BLOCKS > 1
  wait_for_cluster();  // others have read the sums of this block
#elif CLUSTERED
  meet();  // others have arrived at barriers of this block
#endif
}
