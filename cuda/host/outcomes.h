// What a run of all launches leaves in the outputs, to be compared with what another one does.
#pragma once

#include <string>
#include <vector>

#include "runtime.h"

namespace cuhost {

class Outcome {
 public:
  Outcome();  // what the outputs hold now
  // The first element that differs from what the outputs hold now, such as "y[3]"; "" if there is none.
  // Floating-point numbers may differ by rounding, which is far less than a 64th of the largest.
  std::string difference() const;
  bool is_same() const;     // in each bit
  void restore() const;

 private:
  std::vector<std::vector<char>> contents;  // of each tensor; nothing of an input or workspace
};

}  // namespace cuhost
