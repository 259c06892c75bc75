// What is known of other blocks' accesses: immutable maps, which share their common parts.
#pragma once

#include <cstdint>
#include <vector>

namespace cuhost {

// Everything that a block did before a barrier interval, and of each thread the first epochs in it.
struct Epochs {
  uint32_t interval = 0;  // 0: nothing
  std::vector<uint32_t> of;

  bool contain(uint64_t stamp) const {  // see thread_stamp
    uint32_t at = (uint32_t)(stamp >> 32), thread = stamp & 1023;
    if (at != interval) return at < interval;
    return thread < of.size() && of[thread] > (stamp >> 10 & 0x3fffff);
  }
  bool covers(const Epochs& other) const;
  void add(const Epochs& other);
};

// From the number of a block, in the order in which they ran, to its epochs. Adding a block copies
// one node a level; joining two views visits only where they differ.
class View {
 public:
  static constexpr unsigned most_blocks = 1u << 20;
  const Epochs* of(unsigned block) const;
  View with(unsigned block, const Epochs& epochs) const;
  View joined(View other) const;
  bool empty() const { return !root; }
  static void forget_all();  // all views become invalid

 private:
  const void* root = nullptr;
};

}  // namespace cuhost
