// CUDA's built-in vector types and make_ functions.
//
// Names that kernel text uses unqualified are in namespace cuda_device, which encloses that text,
// so that they hide functions of the same name in host libraries.
#pragma once

namespace cuda_device {

#define CUHOST_VECTORS(T, name, align2, align4)                                       \
  struct name##1 { T x; };                                                            \
  struct __attribute__((aligned(align2))) name##2 { T x, y; };                        \
  struct name##3 { T x, y, z; };                                                      \
  struct __attribute__((aligned(align4))) name##4 { T x, y, z, w; };                  \
  inline name##1 make_##name##1(T x) { return {x}; }                                  \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }                          \
  inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                  \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }

// Alignments of the CUDA C++ Programming Guide, "Built-in Vector Types".
CUHOST_VECTORS(signed char, char, 2, 4)
CUHOST_VECTORS(unsigned char, uchar, 2, 4)
CUHOST_VECTORS(short, short, 4, 8)
CUHOST_VECTORS(unsigned short, ushort, 4, 8)
CUHOST_VECTORS(int, int, 8, 16)
CUHOST_VECTORS(unsigned int, uint, 8, 16)
CUHOST_VECTORS(long, long, 16, 16)
CUHOST_VECTORS(unsigned long, ulong, 16, 16)
CUHOST_VECTORS(long long, longlong, 16, 16)
CUHOST_VECTORS(unsigned long long, ulonglong, 16, 16)
CUHOST_VECTORS(float, float, 8, 16)
CUHOST_VECTORS(double, double, 16, 16)
#undef CUHOST_VECTORS

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  constexpr operator uint3() const { return uint3{x, y, z}; }
};

}  // namespace cuda_device
