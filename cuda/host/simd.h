// CUDA's SIMD intrinsics: two or four parts of a 32-bit word, by the CUDA Math API's descriptions.
// The translator includes it for texts that name any of them.
#pragma once

#include <limits>
#include <type_traits>

#include "device_math.h"

namespace cuhost {

template <class Part>
inline unsigned placed(int value, int shift) {
  return (unsigned)(std::make_unsigned_t<Part>)value << shift;
}

template <class Part, class F>
inline unsigned each_part(unsigned a, unsigned b, F&& f) {
  unsigned result = 0;
  for (int k = 0; k < 32; k += (int)sizeof(Part) * 8)
    result |= placed<Part>(f((int)(Part)(a >> k), (int)(Part)(b >> k)), k);
  return result;
}

template <class Part, class F>
inline unsigned each_saturated(unsigned a, unsigned b, F&& f) {
  return each_part<Part>(a, b, [&](int one, int other) {
    int value = f(one, other), least = std::numeric_limits<Part>::min();
    int most = std::numeric_limits<Part>::max();
    return value < least ? least : value > most ? most : value;
  });
}

template <class Part, class F>
inline unsigned sum_of_parts(unsigned a, unsigned b, F&& f) {
  unsigned sum = 0;
  for (int k = 0; k < 32; k += (int)sizeof(Part) * 8)
    sum += (unsigned)f((int)(Part)(a >> k), (int)(Part)(b >> k));
  return sum;
}

}  // namespace cuhost

namespace cuda_device {

#define CUHOST_PARTS(name, each, sign, expression)                                       \
  inline unsigned name##2(unsigned one, unsigned other) {                                \
    return cuhost::each<sign short>(one, other, [](int a, int b) { return expression; });  \
  }                                                                                      \
  inline unsigned name##4(unsigned one, unsigned other) {                                \
    return cuhost::each<sign char>(one, other, [](int a, int b) { return expression; });   \
  }
#define CUHOST_PART(name, each, sign, expression)                                        \
  inline unsigned name##2(unsigned one) {                                                \
    return cuhost::each<sign short>(one, 0, [](int a, int) { return expression; });        \
  }                                                                                      \
  inline unsigned name##4(unsigned one) {                                                \
    return cuhost::each<sign char>(one, 0, [](int a, int) { return expression; });         \
  }
#define CUHOST_SATURATED(name, expression)                                               \
  CUHOST_PARTS(name##ss, each_saturated, signed, expression)                             \
  CUHOST_PARTS(name##us, each_saturated, unsigned, expression)
#define CUHOST_SIGNED_AND_NOT(name, each, expression)                                    \
  CUHOST_PARTS(name##s, each, signed, expression)                                        \
  CUHOST_PARTS(name##u, each, unsigned, expression)
#define CUHOST_COMPARED(name, sign, expression)                                          \
  CUHOST_PARTS(__vcmp##name, each_part, sign, (expression) ? -1 : 0)                     \
  CUHOST_PARTS(__vset##name, each_part, sign, (expression) ? 1 : 0)
#define CUHOST_ORDERED(name, expression)                                                 \
  CUHOST_COMPARED(name##s, signed, expression)                                           \
  CUHOST_COMPARED(name##u, unsigned, expression)

CUHOST_PART(__vabs, each_part, signed, a < 0 ? -a : a)
CUHOST_PART(__vabsss, each_saturated, signed, a < 0 ? -a : a)
CUHOST_PART(__vneg, each_part, signed, -a)
CUHOST_PART(__vnegss, each_saturated, signed, -a)
CUHOST_PARTS(__vadd, each_part, unsigned, a + b)
CUHOST_PARTS(__vsub, each_part, unsigned, a - b)
CUHOST_SATURATED(__vadd, a + b)
CUHOST_SATURATED(__vsub, a - b)
CUHOST_SIGNED_AND_NOT(__vmax, each_part, a < b ? b : a)
CUHOST_SIGNED_AND_NOT(__vmin, each_part, b < a ? b : a)
CUHOST_SIGNED_AND_NOT(__vabsdiff, each_part, a < b ? b - a : a - b)
CUHOST_SIGNED_AND_NOT(__vsad, sum_of_parts, a < b ? b - a : a - b)
// Halves are rounded away from zero (PTX ISA, "vavrg2").
CUHOST_SIGNED_AND_NOT(__vavg, each_part, (a + b + (a + b >= 0)) >> 1)
CUHOST_PARTS(__vhaddu, each_part, unsigned, (a + b) >> 1)
CUHOST_COMPARED(eq, unsigned, a == b)
CUHOST_COMPARED(ne, unsigned, a != b)
CUHOST_ORDERED(ge, a >= b)
CUHOST_ORDERED(gt, a > b)
CUHOST_ORDERED(le, a <= b)
CUHOST_ORDERED(lt, a < b)
#undef CUHOST_PARTS
#undef CUHOST_PART
#undef CUHOST_SATURATED
#undef CUHOST_SIGNED_AND_NOT
#undef CUHOST_COMPARED
#undef CUHOST_ORDERED

// For dynamic programming, "DPX". Sums wrap.
#define CUHOST_WORDS(name, T, expression) \
  inline T name(T a, T b, T c) { return expression; }
#define CUHOST_HALVES(name, sign, expression)                                            \
  inline unsigned name(unsigned one, unsigned other, unsigned third) {                   \
    unsigned result = 0;                                                                 \
    for (int k = 0; k < 32; k += 16) {                                                   \
      int a = (sign short)(one >> k), b = (sign short)(other >> k), c = (sign short)(third >> k);  \
      result |= cuhost::placed<sign short>(expression, k);                               \
    }                                                                                    \
    return result;                                                                       \
  }
#define CUHOST_DPX(name, word, half)                                                     \
  CUHOST_WORDS(name##_s32, int, word)                                                    \
  CUHOST_WORDS(name##_u32, unsigned, word)                                               \
  CUHOST_WORDS(name##_s32_relu, int, max(word, 0))                                       \
  CUHOST_HALVES(name##_s16x2, signed, half((signed short)))                              \
  CUHOST_HALVES(name##_u16x2, unsigned, half((unsigned short)))                          \
  CUHOST_HALVES(name##_s16x2_relu, signed, max(half((signed short)), 0))
#define CUHOST_MAX3(wrapped) max(max(a, b), c)
#define CUHOST_MIN3(wrapped) min(min(a, b), c)
#define CUHOST_ADD_MAX(wrapped) max((int)wrapped(a + b), c)
#define CUHOST_ADD_MIN(wrapped) min((int)wrapped(a + b), c)
CUHOST_DPX(__vimax3, max(max(a, b), c), CUHOST_MAX3)
CUHOST_DPX(__vimin3, min(min(a, b), c), CUHOST_MIN3)
CUHOST_DPX(__viaddmax, max(a + b, c), CUHOST_ADD_MAX)
CUHOST_DPX(__viaddmin, min(a + b, c), CUHOST_ADD_MIN)
#undef CUHOST_WORDS
#undef CUHOST_HALVES
#undef CUHOST_DPX
#undef CUHOST_MAX3
#undef CUHOST_MIN3
#undef CUHOST_ADD_MAX
#undef CUHOST_ADD_MIN

inline int __vimax_s32_relu(int a, int b) { return max(max(a, b), 0); }
inline int __vimin_s32_relu(int a, int b) { return max(min(a, b), 0); }
inline unsigned __vimax_s16x2_relu(unsigned a, unsigned b) { return __vmaxs2(__vmaxs2(a, b), 0); }
inline unsigned __vimin_s16x2_relu(unsigned a, unsigned b) { return __vmaxs2(__vmins2(a, b), 0); }

// These also tell whether the first one was chosen.
#define CUHOST_CHOSEN(name, chosen, compared)                                            \
  inline int name##_s32(int a, int b, bool* first) {                                     \
    *first = a compared b;                                                               \
    return chosen(a, b);                                                                 \
  }                                                                                      \
  inline unsigned name##_u32(unsigned a, unsigned b, bool* first) {                      \
    *first = a compared b;                                                               \
    return chosen(a, b);                                                                 \
  }                                                                                      \
  CUHOST_CHOSEN_HALVES(name##_s16x2, signed, chosen, compared)                           \
  CUHOST_CHOSEN_HALVES(name##_u16x2, unsigned, chosen, compared)
#define CUHOST_CHOSEN_HALVES(name, sign, chosen, compared)                               \
  inline unsigned name(unsigned a, unsigned b, bool* high, bool* low) {                  \
    *high = (sign short)(a >> 16) compared (sign short)(b >> 16);                        \
    *low = (sign short)a compared (sign short)b;                                         \
    return cuhost::each_part<sign short>(a, b, [](int x, int y) { return chosen(x, y); }); \
  }
CUHOST_CHOSEN(__vibmax, max, >=)
CUHOST_CHOSEN(__vibmin, min, <=)
#undef CUHOST_CHOSEN
#undef CUHOST_CHOSEN_HALVES

}  // namespace cuda_device
