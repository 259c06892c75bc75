// CUDA's integer intrinsics, by the CUDA Math API's descriptions.
#pragma once

namespace cuda_device {

inline int __mul24(int a, int b) { return ((a << 8) >> 8) * ((b << 8) >> 8); }
inline unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffffu) * (b & 0xffffffu); }
inline int __mulhi(int a, int b) { return (int)(((long long)a * b) >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return (unsigned)(((unsigned long long)a * b) >> 32);
}
inline long long __mul64hi(long long a, long long b) { return (long long)(((__int128)a * b) >> 64); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)(((unsigned __int128)a * b) >> 64);
}
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
inline int __clzll(long long v) { return v ? __builtin_clzll((unsigned long long)v) : 64; }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __ffsll(long long v) { return __builtin_ffsll(v); }
inline unsigned __brev(unsigned v) {
  unsigned result = 0;
  for (int bit = 0; bit < 32; ++bit) result |= ((v >> bit) & 1u) << (31 - bit);
  return result;
}
inline unsigned long long __brevll(unsigned long long v) {
  return (unsigned long long)__brev((unsigned)v) << 32 | __brev((unsigned)(v >> 32));
}
inline int __hadd(int a, int b) { return (int)(((long long)a + b) >> 1); }
inline int __rhadd(int a, int b) { return (int)(((long long)a + b + 1) >> 1); }
inline unsigned __uhadd(unsigned a, unsigned b) { return (unsigned)(((unsigned long long)a + b) >> 1); }
inline unsigned __urhadd(unsigned a, unsigned b) {
  return (unsigned)(((unsigned long long)a + b + 1) >> 1);
}
inline unsigned __sad(int a, int b, unsigned c) {
  return (a < b ? (unsigned)b - (unsigned)a : (unsigned)a - (unsigned)b) + c;
}
inline unsigned __usad(unsigned a, unsigned b, unsigned c) { return (a < b ? b - a : a - b) + c; }

// Each result byte is chosen by a selector: bits 0 to 2 name one of eight bytes, bit 3 repeats its sign.
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selectors) {
  unsigned long long both = (unsigned long long)b << 32 | a;
  unsigned result = 0;
  for (int k = 0; k < 4; ++k) {
    unsigned selector = selectors >> 4 * k & 15;
    unsigned byte = (unsigned)(both >> 8 * (selector & 7)) & 0xff;
    if (selector & 8) byte = byte & 0x80 ? 0xff : 0;
    result |= byte << 8 * k;
  }
  return result;
}

inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
  return (unsigned)(((unsigned long long)high << 32 | low) << (by & 31) >> 32);
}
inline unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned by) {
  return (unsigned)(((unsigned long long)high << 32 | low) << (by < 32 ? by : 32) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
  return (unsigned)(((unsigned long long)high << 32 | low) >> (by & 31));
}
inline unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned by) {
  return (unsigned)(((unsigned long long)high << 32 | low) >> (by < 32 ? by : 32));
}

#define CUHOST_DP4A(T, A, B)                                                             \
  inline T __dp4a(A a, A b, T c) {                                                       \
    for (int k = 0; k < 32; k += 8) c += (T)(B)((unsigned)a >> k) * (T)(B)((unsigned)b >> k); \
    return c;                                                                            \
  }
CUHOST_DP4A(int, int, signed char)
CUHOST_DP4A(unsigned, unsigned, unsigned char)
#undef CUHOST_DP4A
#define CUHOST_DP2A(T, A, half, byte)                                                    \
  inline T __dp2a_lo(A a, A b, T c) {                                                    \
    for (int k = 0; k < 2; ++k)                                                          \
      c += (T)(half)((unsigned)a >> 16 * k) * (T)(byte)((unsigned)b >> 8 * k);           \
    return c;                                                                            \
  }                                                                                      \
  inline T __dp2a_hi(A a, A b, T c) { return __dp2a_lo(a, (A)((unsigned)b >> 16), c); }
CUHOST_DP2A(int, int, short, signed char)
CUHOST_DP2A(unsigned, unsigned, unsigned short, unsigned char)
#undef CUHOST_DP2A

}  // namespace cuda_device
