// curand_kernel.h: the generator Philox 4x32-10 (J. K. Salmon et al., "Parallel Random Numbers: As Easy as
// 1, 2, 3", SC 2011), with the order of numbers that cuRAND's device functions have.
#pragma once

#include <cmath>

#include "kernel.h"

namespace cuda_device {

struct curandStatePhilox4_32_10 {
  uint4 ctr, output;
  uint2 key;
  unsigned STATE;
  int boxmuller_flag;
  float boxmuller_extra;
};
using curandStatePhilox4_32_10_t = curandStatePhilox4_32_10;

#define CUHOST_OTHER_GENERATORS                                                                                    \
  "cannot run on the emulated GPU: a generator of cuRAND other than Philox; use curandStatePhilox4_32_10_t"
#define CUHOST_OTHER_GENERATOR(name)                                                                               \
  struct name {                                                                                                    \
    unsigned cuhost_words[12];                                                                                     \
  };                                                                                                               \
  inline void curand_init(unsigned long long, unsigned long long, unsigned long long, name*)                       \
      __attribute__((error(CUHOST_OTHER_GENERATORS)));                                                             \
  unsigned curand(name*) __attribute__((error(CUHOST_OTHER_GENERATORS)));                                          \
  float curand_uniform(name*) __attribute__((error(CUHOST_OTHER_GENERATORS)));                                     \
  float curand_normal(name*) __attribute__((error(CUHOST_OTHER_GENERATORS)));                                      \
  double curand_uniform_double(name*) __attribute__((error(CUHOST_OTHER_GENERATORS)));                             \
  double curand_normal_double(name*) __attribute__((error(CUHOST_OTHER_GENERATORS)));                              \
  float2 curand_normal2(name*) __attribute__((error(CUHOST_OTHER_GENERATORS)));
CUHOST_OTHER_GENERATOR(curandStateXORWOW)
CUHOST_OTHER_GENERATOR(curandStateMRG32k3a)
#undef CUHOST_OTHER_GENERATOR
using curandState = curandStateXORWOW;
using curandState_t = curandStateXORWOW;
using curandStateXORWOW_t = curandStateXORWOW;
using curandStateMRG32k3a_t = curandStateMRG32k3a;

inline uint4 curand_Philox4x32_10(uint4 c, uint2 k) {
  for (int round = 0; round < 10; ++round) {
    unsigned long long one = 0xD2511F53ull * c.x, other = 0xCD9E8D57ull * c.z;
    c = {(unsigned)(other >> 32) ^ c.y ^ k.x, (unsigned)other, (unsigned)(one >> 32) ^ c.w ^ k.y, (unsigned)one};
    k = {k.x + 0x9E3779B9u, k.y + 0xBB67AE85u};
  }
  return c;
}

}  // namespace cuda_device

namespace cuhost {

using Philox = cuda_device::curandStatePhilox4_32_10;

inline void philox_advance(Philox* s, unsigned long long groups) {
  unsigned long long low = s->ctr.x | (unsigned long long)s->ctr.y << 32;
  unsigned long long high = s->ctr.z | (unsigned long long)s->ctr.w << 32;
  high += low + groups < low;
  low += groups;
  s->ctr = {(unsigned)low, (unsigned)(low >> 32), (unsigned)high, (unsigned)(high >> 32)};
  s->output = cuda_device::curand_Philox4x32_10(s->ctr, s->key);
}
inline unsigned philox_word(const cuda_device::uint4& v, unsigned number) {
  return number == 0 ? v.x : number == 1 ? v.y : number == 2 ? v.z : v.w;
}
inline float uniform(unsigned x) { return (float)x * 0x1p-32f + 0x1p-33f; }
inline cuda_device::float2 box_muller(unsigned x, unsigned y) {
  constexpr float turn = 0x1p-32f * 6.2831855f;
  float size = __builtin_sqrtf(-2.0f * __builtin_logf(uniform(x))), angle = (float)y * turn + turn / 2;
  return {__builtin_sinf(angle) * size, __builtin_cosf(angle) * size};
}

}  // namespace cuhost

namespace cuda_device {

inline void skipahead(unsigned long long n, curandStatePhilox4_32_10_t* s) {
  unsigned place = s->STATE + (unsigned)(n & 3);
  s->STATE = place & 3;
  cuhost::philox_advance(s, n / 4 + place / 4);
}
inline void skipahead_sequence(unsigned long long n, curandStatePhilox4_32_10_t* s) {
  unsigned long long high = (s->ctr.z | (unsigned long long)s->ctr.w << 32) + n;
  s->ctr.z = (unsigned)high;
  s->ctr.w = (unsigned)(high >> 32);
  cuhost::philox_advance(s, 0);
}
inline void curand_init(unsigned long long seed, unsigned long long subsequence, unsigned long long offset,
                        curandStatePhilox4_32_10_t* s) {
  s->ctr = {0, 0, 0, 0};
  s->key = {(unsigned)seed, (unsigned)(seed >> 32)};
  s->STATE = 0;
  s->boxmuller_flag = 0;
  s->boxmuller_extra = 0.0f;
  skipahead_sequence(subsequence, s);
  skipahead(offset, s);
}
inline unsigned curand(curandStatePhilox4_32_10_t* s) {
  unsigned result = cuhost::philox_word(s->output, s->STATE++);
  if (s->STATE == 4) {
    s->STATE = 0;
    cuhost::philox_advance(s, 1);
  }
  return result;
}
inline uint4 curand4(curandStatePhilox4_32_10_t* s) {
  uint4 before = s->output;
  cuhost::philox_advance(s, 1);
  auto word = [&](unsigned k) {
    k += s->STATE;
    return cuhost::philox_word(k < 4 ? before : s->output, k & 3);
  };
  return {word(0), word(1), word(2), word(3)};
}
inline float curand_uniform(curandStatePhilox4_32_10_t* s) { return cuhost::uniform(curand(s)); }
inline float4 curand_uniform4(curandStatePhilox4_32_10_t* s) {
  uint4 v = curand4(s);
  return {cuhost::uniform(v.x), cuhost::uniform(v.y), cuhost::uniform(v.z), cuhost::uniform(v.w)};
}
inline double curand_uniform_double(curandStatePhilox4_32_10_t* s) { return curand(s) * 0x1p-32 + 0x1p-33; }
inline float2 curand_normal2(curandStatePhilox4_32_10_t* s) {
  unsigned x = curand(s), y = curand(s);
  return cuhost::box_muller(x, y);
}
inline float4 curand_normal4(curandStatePhilox4_32_10_t* s) {
  uint4 v = curand4(s);
  float2 a = cuhost::box_muller(v.x, v.y), b = cuhost::box_muller(v.z, v.w);
  return {a.x, a.y, b.x, b.y};
}
inline float curand_normal(curandStatePhilox4_32_10_t* s) {
  constexpr int there = 1;
  if (s->boxmuller_flag == there) {
    s->boxmuller_flag = 0;
    return s->boxmuller_extra;
  }
  float2 both = curand_normal2(s);
  s->boxmuller_flag = there;
  s->boxmuller_extra = both.y;
  return both.x;
}
inline float curand_log_normal(curandStatePhilox4_32_10_t* s, float mean, float deviation) {
  return __builtin_expf(mean + deviation * curand_normal(s));
}

}  // namespace cuda_device
