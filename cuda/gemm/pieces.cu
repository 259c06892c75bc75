// Pieces of 16 bytes of rows that need not begin at a multiple of 16 bytes: two aligned pieces are read, and
// what begins within the first one is taken from both.

constexpr int PIECE_ELEMENTS = 16 / sizeof(Element);

// Read the aligned piece of this number among COUNT elements; what lies beyond becomes 0. What is read
// ONCE may leave the caches first.
template <int COUNT, bool ONCE = false>
__device__ __forceinline__ uint4 read_piece(const Element* from, int number) {
  if (COUNT % PIECE_ELEMENTS == 0 || number < COUNT / PIECE_ELEMENTS) {
    const uint4* there = reinterpret_cast<const uint4*>(from) + number;
    return ONCE ? __ldcs(there) : *there;
  }
  alignas(16) Element piece[PIECE_ELEMENTS];
#pragma unroll
  for (int i = 0; i < PIECE_ELEMENTS; ++i) {
    int place = number * PIECE_ELEMENTS + i;
    piece[i] = place < COUNT ? from[place] : Element(0.0f);
  }
  return *reinterpret_cast<const uint4*>(piece);
}

// The 16 bytes that begin so many bytes into two pieces, a multiple of UNIT.
template <int UNIT>
__device__ __forceinline__ uint4 shifted(const uint4& low, const uint4& high, int bytes) {
  unsigned words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int i = 0; i < 6; ++i) words[i] = bytes & 8 ? words[i + 2] : words[i];
#pragma unroll
  for (int i = 0; i < 5; ++i) words[i] = bytes & 4 ? words[i + 1] : words[i];
  if (UNIT % 4 != 0) {
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = __funnelshift_r(words[i], words[i + 1], bytes % 4 * 8);
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// The first bytes of a piece; the others become 0.
__device__ __forceinline__ uint4 beginning(const uint4& piece, int bytes) {
  unsigned words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    int kept = bytes - 4 * i;
    words[i] &= kept >= 4 ? ~0u : kept > 0 ? (1u << 8 * kept) - 1 : 0u;
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}
