// Persistent radix trees (Okasaki, "Purely Functional Data Structures", 1998, chapter 10).
#include "views.h"

#include <cstddef>
#include <deque>

namespace cuhost {
namespace {

constexpr int bits = 4, levels = 5;
constexpr unsigned fan_out = 1u << bits;
static_assert(View::most_blocks == 1u << bits * levels);

struct Node {
  const void* below[fan_out];  // nodes, or Epochs in the lowest level
};

std::deque<Node> nodes;
std::deque<Epochs> leaves;

unsigned slot(unsigned block, int level) { return block >> bits * level & (fan_out - 1); }

const void* joined_at(const void* one, const void* other, int level) {
  if (!one || one == other) return other;
  if (!other) return one;
  if (level < 0) {
    if (((const Epochs*)one)->covers(*(const Epochs*)other)) return one;
    if (((const Epochs*)other)->covers(*(const Epochs*)one)) return other;
    Epochs sum = *(const Epochs*)one;
    sum.add(*(const Epochs*)other);
    leaves.push_back(std::move(sum));
    return &leaves.back();
  }
  const Node &a = *(const Node*)one, &b = *(const Node*)other;
  Node both;
  bool as_a = true, as_b = true;
  for (unsigned k = 0; k < fan_out; ++k) {
    both.below[k] = joined_at(a.below[k], b.below[k], level - 1);
    as_a &= both.below[k] == a.below[k];
    as_b &= both.below[k] == b.below[k];
  }
  if (as_a) return one;
  if (as_b) return other;
  nodes.push_back(both);
  return &nodes.back();
}

}  // namespace

bool Epochs::covers(const Epochs& other) const {
  if (interval != other.interval) return interval > other.interval;
  for (std::size_t k = 0; k < other.of.size(); ++k)
    if (other.of[k] > (k < of.size() ? of[k] : 0)) return false;
  return true;
}

void Epochs::add(const Epochs& other) {
  if (other.interval < interval) return;
  if (other.interval > interval) {
    *this = other;
    return;
  }
  if (of.size() < other.of.size()) of.resize(other.of.size());
  for (std::size_t k = 0; k < other.of.size(); ++k)
    if (of[k] < other.of[k]) of[k] = other.of[k];
}

const Epochs* View::of(unsigned block) const {
  const void* at = root;
  for (int level = levels - 1; at && level >= 0; --level)
    at = ((const Node*)at)->below[slot(block, level)];
  return (const Epochs*)at;
}

View View::with(unsigned block, const Epochs& epochs) const {
  const Epochs* known = of(block);
  if (known && known->covers(epochs)) return *this;
  View result;
  const void** place = &result.root;
  *place = root;
  for (int level = levels - 1; level >= 0; --level) {
    nodes.push_back(*place ? *(const Node*)*place : Node{});
    *place = &nodes.back();
    place = &nodes.back().below[slot(block, level)];
  }
  leaves.push_back(epochs);
  if (*place) leaves.back().add(*(const Epochs*)*place);
  *place = &leaves.back();
  return result;
}

View View::joined(View other) const {
  View both;
  both.root = joined_at(root, other.root, levels - 1);
  return both;
}

void View::forget_all() {
  nodes.clear();
  leaves.clear();
}

}  // namespace cuhost
