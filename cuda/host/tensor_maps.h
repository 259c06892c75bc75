// Tensor maps: what a launch says of a tensor for copies of tiles of it. The layout is our own.
#pragma once

#include <cstdint>

namespace cuhost {

constexpr int most_dimensions = 5;
constexpr unsigned swizzled_chunk_bytes = 16;  // what swizzling moves as a whole

struct TensorMap {
  static constexpr uint64_t known = 0x7e4507a3a9b1f00d;
  uint64_t mark;                          // `known`
  char* base;
  uint64_t extents[most_dimensions];      // elements; the innermost dimension first
  uint64_t strides[most_dimensions];      // bytes; the first one is an element's size
  uint32_t box[most_dimensions];          // elements of a tile
  uint16_t rank;
  uint16_t swizzle;                       // bytes: 0, 32, 64 or 128
};
constexpr unsigned tensor_map_bytes = 128;  // of a card's
static_assert(sizeof(TensorMap) <= tensor_map_bytes, "fits what kernels take");

}  // namespace cuhost

namespace cuda_device {

struct __attribute__((__aligned__(64))) CUtensorMap {
  unsigned long long opaque[16];
};

}  // namespace cuda_device
