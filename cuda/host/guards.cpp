// What lies beside workspaces and shared memory; compare devices/arena.py.
#include <algorithm>
#include <cstring>

#include "runtime.h"

namespace cuhost {
namespace {

constexpr size_t period = 65536;

// Each two bytes are 0x7ff1 to 0x7ffe: NaN as a floating-point number of any size, and never 0xff.
const char* pattern_at(const char* address) {
  static char pattern[2 * period];
  if (!pattern[0]) {
    uint64_t random = 1;
    for (size_t k = 0; k < period; k += 2) {
      random = random * 6364136223846793005ull + 1442695040888963407ull;  // Knuth's MMIX
      pattern[k] = (char)(0xf1 + (random >> 40) % 14);
      pattern[k + 1] = 0x7f;
    }
    memcpy(pattern + period, pattern, period);
  }
  return pattern + (uintptr_t)address % period;
}

}  // namespace

void fill_guard(char* begin, size_t bytes) {
  for (size_t part; bytes; begin += part, bytes -= part)
    memcpy(begin, pattern_at(begin), part = std::min(bytes, period));
}

const char* written_in_guard(const char* begin, size_t bytes) {
  for (size_t part; bytes; begin += part, bytes -= part) {
    part = std::min(bytes, period);
    const char* expected = pattern_at(begin);
    if (!memcmp(begin, expected, part)) continue;
    return std::mismatch(begin, begin + part, expected).first;
  }
  return nullptr;
}

}  // namespace cuhost
