// Called by -fsanitize=float-cast-overflow,shift-exponent, where arithmetic that the translator could
// not mark (see arithmetic.h) leaves the range in which a host computes what a GPU does.
#include "runtime.h"

namespace cuhost {
namespace {

struct Place {
  const char* file;
  uint32_t line, column;
};

[[noreturn]] void undefined(const Place* place, const char* what) {
  fault("runtime", "line %u: %s %s, which cannot run on the emulated GPU: write it as %s",
        place->line, here().c_str(), what,
        what[0] == 's' ? "a function of its own, without macros" : "a cast, (int)value");
}

}  // namespace

extern "C" {

void __ubsan_handle_float_cast_overflow(const Place* place, uintptr_t) {
  undefined(place, "converts a floating-point number to an integer that cannot hold it");
}
void __ubsan_handle_shift_out_of_bounds(const Place* place, uintptr_t, uintptr_t) {
  undefined(place, "shifts by as many bits as the number has, or more");
}
}

}  // namespace cuhost
