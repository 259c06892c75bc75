// Tensor maps: what a launch says of a tensor for copies of tiles of it. The layout is our own.
#pragma once

#include <cstdint>

namespace cuhost {

constexpr int most_dimensions = 5;
constexpr unsigned swizzled_chunk_bytes = 16;  // what swizzling moves as a whole

// How im2col visits pixels in one dimension of an image.
struct Walk {
  int16_t lower, upper;                   // relative to the first pixel and to the last one
  uint16_t step;
};

struct TensorMap {
  static constexpr uint64_t known = 0x7e4507a3a9b1f00d;
  uint64_t mark;                          // `known`
  char* base;
  uint64_t extents[most_dimensions];      // elements; the innermost dimension first
  uint64_t strides[most_dimensions];      // bytes; the first one is an element's size
  uint16_t box[most_dimensions];          // elements of a tile; for im2col, channels and pixels
  Walk walks[most_dimensions - 2];        // for im2col: in W, H and D
  uint8_t rank;
  uint8_t swizzle;                        // bytes: 0, 32, 64 or 128
  bool im2col;
};
constexpr unsigned tensor_map_bytes = 128;  // of a card's
static_assert(sizeof(TensorMap) <= tensor_map_bytes, "fits what kernels take");

}  // namespace cuhost

namespace cuda_device {

struct __attribute__((__aligned__(64))) CUtensorMap {
  unsigned long long opaque[16];
};

}  // namespace cuda_device
