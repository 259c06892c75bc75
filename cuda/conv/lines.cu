// Operands of tensor cores in lines: pixels and weights with consecutive products in a line.
//
// The constants of this text are:
//   LINE_BYTES         length of a line, 128, 64 or 32 bytes, in which pieces of 16 bytes are swizzled
//   BOXES              boxes of a step; each has a line of every pixel or every channel of a tile

constexpr int LINE = LINE_BYTES / sizeof(Element), PIECE = 16 / sizeof(Element);
constexpr int INSTRUCTIONS = LINE_BYTES / 32;  // that multiply what is in a line
constexpr int COUNT = BOXES * INSTRUCTIONS;    // and what is in a step
constexpr int CHUNK = COUNT < 4 ? COUNT : 4;    // of which so many are begun at a time
constexpr int P_STAGE = BOXES * TILE_P * LINE, C_STAGE = BOXES * TILE_C * LINE;

__device__ __forceinline__ int place_in(int line, int column) {
  constexpr int LINES = 128 / LINE_BYTES;  // after so many, pieces are swizzled in another way
  return line * LINE +
         ((column / PIECE ^ line / LINES % (LINE_BYTES / 16)) * PIECE | column % PIECE);
}

// Read four matrices of 8 rows of 16 bytes. Each thread gives the address of a row, those of the first matrix
// first, and gets four bytes of each matrix.
__device__ __forceinline__ void read_matrices(unsigned (&four)[4], const Element* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(four[0]), "=r"(four[1]), "=r"(four[2]), "=r"(four[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row)))
               : "memory");
}

// The same of matrices of 8 x 8 elements of 16 bits, each of which is transposed.
__device__ __forceinline__ void read_transposed(unsigned (&four)[4], const Element* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(four[0]), "=r"(four[1]), "=r"(four[2]), "=r"(four[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row)))
               : "memory");
}
