// Bulk copies, by PTX ISA, "cp.async.bulk" and "Tensors".
//
// They happen as late as a kernel can rely on: what is loaded is there when a thread waits for its
// barrier, and what is stored is read and written when its thread waits for its group.
#include "bulk_copies.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <vector>

#include "teams.h"
#include "tensor_maps.h"

namespace cuhost {
namespace {

constexpr unsigned sector_bytes = 32, bulk_alignment = 16, tile_alignment = 128;
constexpr unsigned widest_swizzle = 128, pattern_bytes = 1024;  // whose pattern repeats after so many bytes

// Without an address in global memory it is outside of the tensor.
struct Piece {
  char *shared, *global;
  unsigned bytes;
};
using Pieces = std::vector<Piece>;

struct Stores {
  uint64_t block = 0;                      // see running_block
  Pieces open;                             // not committed yet
  std::deque<Pieces> groups;
};

std::deque<std::vector<Stores>> stores;    // of each thread of the blocks that have not ended

Stores& own_stores() {
  if (stores.size() <= running_slot()) stores.resize(running_slot() + 1);
  std::vector<Stores>& all = stores[running_slot()];
  if (all.empty()) all.resize(max_threads);
  Stores& mine = all[thread_stamp & 1023];
  if (mine.block != running_block()) mine = Stores{running_block(), {}, {}};
  return mine;
}

void check_shared_place(const char* shared, size_t bytes, unsigned alignment) {
  if ((uintptr_t)shared % alignment)
    fault("runtime", "misaligned address: %s copies in bulk to or from shared memory at one that is not a "
          "multiple of %u bytes", here().c_str(), alignment);
  if (!in_shared((uintptr_t)shared) || !in_shared((uintptr_t)shared + bytes - 1))
    fault("correctness", "%s copies %zu bytes in bulk to or from a place that is not all in shared memory",
          here().c_str(), bytes);
}

Pieces piece_of_bytes(char* shared, char* global, unsigned bytes) {
  if (bytes % bulk_alignment || (uintptr_t)global % bulk_alignment)
    fault("runtime", "misaligned address: %s copies %u bytes in bulk: address and size must be multiples "
          "of %u bytes", here().c_str(), bytes, bulk_alignment);
  if (bytes) check_shared_place(shared, bytes, bulk_alignment);
  return {{shared, global, bytes}};
}

TensorMap known_map(const void* at, int rank, bool im2col) {
  TensorMap map;
  memcpy(&map, at, sizeof map);
  if (map.mark != TensorMap::known)
    fault("runtime", "%s copies with a tensor map that the launch did not give", here().c_str());
  if (map.rank != rank)
    fault("runtime", "%s copies tiles of %d dimensions with a tensor map of %d", here().c_str(), rank,
          (int)map.rank);
  if (map.im2col != im2col)
    fault("runtime", "%s copies %s with a tensor map that is %sof im2col", here().c_str(),
          im2col ? "pixels" : "tiles", map.im2col ? "" : "not ");
  return map;
}

char* swizzled(char* at, unsigned width) {
  uintptr_t mask = width ? width - swizzled_chunk_bytes : 0;
  return (char*)((uintptr_t)at ^ ((uintptr_t)at >> 3 & mask));
}

// A row of a tile, of which `inside` says whether it is in the tensor but for its ends. The last bytes of the
// tensor's rows are stored in whole `unit`s.
void add_row(Pieces& pieces, const TensorMap& map, char* shared, char* global, long long first, bool inside,
             long long unit = 1) {
  auto item = (long long)map.strides[0], extent = (long long)map.extents[0];
  long long row_bytes = (long long)map.box[0] * item;
  long long low = std::min(std::max(-first, 0ll) * item, row_bytes);
  long long left = (std::max(extent - first, 0ll) * item + unit - 1) / unit * unit;
  long long high = inside ? std::min(left, row_bytes) : low;
  for (long long at = 0; at < row_bytes;) {
    long long end = std::min(row_bytes, (at / swizzled_chunk_bytes + 1) * swizzled_chunk_bytes);
    bool within = at >= low && at < high;
    if (at < low) end = std::min(end, low);
    else if (within) end = std::min(end, high);
    pieces.push_back({swizzled(shared + at, map.swizzle), within ? global + first * item + at : nullptr,
                      (unsigned)(end - at)});
    at = end;
  }
}

// Of the first element of a row: an H200 refuses tiles and pixels alike.
void check_first(const TensorMap& map, int first) {
  long long bytes = first * (long long)map.strides[0];
  if (bytes % swizzled_chunk_bytes)
    fault("runtime", "%s copies a box that begins %lld bytes into a row, which is no multiple of 16: cards "
          "call this an illegal instruction", here().c_str(), bytes);
}

void check_box_place(const TensorMap& map, const char* shared, size_t rows) {
  check_shared_place(shared, rows * map.box[0] * map.strides[0],
                     map.swizzle == widest_swizzle ? pattern_bytes : tile_alignment);
}

Pieces pieces_of_tile(const TensorMap& map, const int* corner, char* shared, long long unit = 1) {
  size_t row_bytes = map.box[0] * map.strides[0], rows = 1;
  for (int k = 1; k < map.rank; ++k) rows *= map.box[k];
  check_box_place(map, shared, rows);
  check_first(map, corner[0]);
  Pieces pieces;
  for (size_t row = 0; row < rows; ++row) {
    char* global = map.base;
    bool inside = true;
    size_t left = row;
    for (int k = 1; k < map.rank; ++k) {
      long long at = corner[k] + (long long)(left % map.box[k]);
      left /= map.box[k];
      inside &= at >= 0 && (uint64_t)at < map.extents[k];
      global += at * (long long)map.strides[k];
    }
    add_row(pieces, map, shared + row * row_bytes, global, corner[0], inside, unit);
  }
  return pieces;
}

// By PTX ISA, "im2col mode": a row of channels for each pixel, W fastest.
Pieces pieces_of_pixels(const TensorMap& map, const int* first, const int* offsets, char* shared) {
  static const int offset_bits[] = {16, 8, 5};  // in one, two and three dimensions of an image
  const int images = map.rank - 1;              // the dimension N
  long long at[most_dimensions], ends[most_dimensions];
  for (int k = 0; k < map.rank; ++k) at[k] = first[k];
  for (int k = 1; k < images; ++k) {
    const Walk& walk = map.walks[k - 1];
    ends[k] = (long long)map.extents[k] + walk.upper;
    if (at[k] < walk.lower || at[k] >= ends[k])
      fault("runtime", "%s copies pixels from %d on in dimension %d, where the bounding box of its tensor map goes "
            "from %d to %lld", here().c_str(), first[k], k, (int)walk.lower, ends[k] - 1);
    const int most = (1 << offset_bits[images - 2]) - 1, offset = offsets[k - 1];
    if (offset < 0 || offset > most)
      fault("runtime", "%s copies pixels with an offset of %d in dimension %d: 0 to %d are possible", here().c_str(),
            offset, k, most);
  }
  check_box_place(map, shared, map.box[1]);
  check_first(map, first[0]);
  Pieces pieces;
  for (int pixel = 0; pixel < map.box[1]; ++pixel) {
    char* global = map.base;
    bool inside = true;
    for (int k = 1; k < map.rank; ++k) {
      long long place = at[k] + (k < images ? offsets[k - 1] : 0);
      inside &= place >= 0 && (uint64_t)place < map.extents[k];
      global += place * (long long)map.strides[k];
    }
    add_row(pieces, map, shared + pixel * map.box[0] * map.strides[0], global, first[0], inside);
    int k = 1;
    for (; k < images; ++k) {
      if ((at[k] += map.walks[k - 1].step) < ends[k]) break;
      at[k] = map.walks[k - 1].lower;
    }
    if (k == images) ++at[images];
  }
  return pieces;
}

void report(const void* at, unsigned bytes, bool write, const void* site) {
  if (bytes && runs_checked()) cuhost_hooks.async_access((uintptr_t)at, bytes, write, site);
}

// By sectors, as the memory system serves them.
void report_global(const Piece& piece, bool write) {
  static const char sites[2] = {};
  for (unsigned done = 0, next; done < piece.bytes && piece.global; done = next) {
    const char* at = piece.global + done;
    next = std::min(piece.bytes, done + sector_bytes - (unsigned)((uintptr_t)at % sector_bytes));
    report(at, next - done, write, &sites[write]);
  }
}

template <class All, class F>
void in_background(const All& pieces, F&& f) {
  if (runs_checked()) cuhost_hooks.async_begins();
  for (const auto& piece : pieces) f(piece);
  if (runs_checked()) cuhost_hooks.async_ends();
}

// To the running block, or to the blocks of its cluster whose ranks are set in `ranks`.
void load(const Pieces& pieces, uint64_t* word, unsigned ranks) {
  long long bytes = 0;
  std::vector<Copy> copies;
  in_background(pieces, [&](const Piece& piece) {
    report_global(piece, false);
    copies.push_back({piece.shared, piece.global, piece.bytes, piece.global ? 0 : piece.bytes});
    bytes += piece.bytes;
  });
  for (unsigned rank = 0; ranks >> rank; ++rank)
    if (ranks >> rank & 1 && rank != now->rank) send(rank, {word, 0, copies, bytes});
  if (!ranks || ranks >> now->rank & 1) arrive_with_loads(word, copies, bytes);
}

void store(Pieces pieces) {
  in_background(pieces, [](const Piece& piece) {
    report(piece.shared, piece.bytes, false, nullptr);
  });
  Stores& mine = own_stores();
  mine.open.insert(mine.open.end(), pieces.begin(), pieces.end());
}

}  // namespace

void arrive_with_loads(uint64_t* word, const std::vector<Copy>& copies, long long bytes) {
  in_background(copies, [&](const Copy& copy) {
    report(copy.to, (unsigned)copy.bytes, true, nullptr);
    poison(copy.to, copy.bytes);
  });
  arrive_with_copies(word, copies, bytes);
}

extern "C" {

void cuhost_bulk_load(void* to, const void* from, unsigned bytes, uint64_t* word, unsigned blocks) {
  load(piece_of_bytes((char*)to, (char*)from, bytes), word, blocks);
}

void cuhost_tile_load(void* to, const void* map, int rank, const int* at, uint64_t* word, unsigned blocks) {
  load(pieces_of_tile(known_map(map, rank, false), at, (char*)to), word, blocks);
}

void cuhost_im2col_load(void* to, const void* map, int rank, const int* at, const int* offsets, uint64_t* word,
                        unsigned blocks) {
  load(pieces_of_pixels(known_map(map, rank, true), at, offsets, (char*)to), word, blocks);
}

void cuhost_bulk_store(void* to, const void* from, unsigned bytes) {
  store(piece_of_bytes((char*)from, (char*)to, bytes));
}

// An H200 writes the last 16 bytes of a row as a whole, also where the tensor ends among them.
void cuhost_tile_store(const void* map, int rank, const int* at, const void* from) {
  store(pieces_of_tile(known_map(map, rank, false), at, (char*)from, swizzled_chunk_bytes));
}

void cuhost_bulk_commit() {
  Stores& mine = own_stores();
  mine.groups.push_back(std::move(mine.open));
  mine.open.clear();
}

void cuhost_bulk_wait(unsigned long long but_latest) {
  Stores& mine = own_stores();
  for (; mine.groups.size() > but_latest; mine.groups.pop_front()) {
    in_background(mine.groups.front(), [](const Piece& piece) {
      report(piece.shared, piece.bytes, false, nullptr);
      report_global(piece, true);
      if (piece.global) memcpy(piece.global, piece.shared, piece.bytes);
    });
  }
}
}

}  // namespace cuhost
