#include "outcomes.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "elements.h"

namespace cuhost {
namespace {

constexpr double rounding = 1.0 / 64;

// The elements of a tensor of floating-point numbers; nothing of any other.
std::vector<double> numbers(const Tensor& tensor, const char* begin) {
  std::vector<double> result;
  cuhost_Kind kind = tensor.type == "float16" ? cuhost_matrix_f16 : cuhost_matrix_bf16;
  for (size_t k = 0; k < tensor.bytes / tensor.element_bytes; ++k) {
    if (tensor.type == "float64") result.push_back(((const double*)begin)[k]);
    else if (tensor.type == "float32") result.push_back(((const float*)begin)[k]);
    else if (tensor.type == "float16" || tensor.type == "bfloat16")
      result.push_back(element((const uint32_t*)begin + k / 2, k % 2, kind));
  }
  return result;
}

bool differ(double one, double other, double tolerance) {
  if (std::isnan(one) || std::isnan(other)) return std::isnan(one) != std::isnan(other);
  return one != other && !(std::fabs(one - other) <= tolerance);
}

// The first element that differs; their number if none does.
size_t first_difference(const Tensor& tensor, const char* one, const char* other) {
  size_t count = tensor.bytes / tensor.element_bytes, k = 0;
  std::vector<double> ones = numbers(tensor, one), others = numbers(tensor, other);
  double largest = 0;
  for (double value : ones)
    if (std::isfinite(value)) largest = std::max(largest, std::fabs(value));
  if (!ones.empty()) {
    while (k < count && !differ(ones[k], others[k], rounding * largest)) ++k;
    return k;
  }
  size_t bytes = tensor.element_bytes;
  while (k < count && !memcmp(one + k * bytes, other + k * bytes, bytes)) ++k;
  return k;
}

bool is_output(const Tensor& tensor) { return tensor.writable && !tensor.workspace; }

}  // namespace

Outcome::Outcome() {
  for (const Tensor& tensor : plan.tensors) {
    contents.emplace_back();
    if (is_output(tensor)) contents.back().assign(tensor.payload, tensor.payload + tensor.bytes);
  }
}

bool Outcome::is_same() const {
  for (size_t k = 0; k < contents.size(); ++k)
    if (!contents[k].empty() && memcmp(contents[k].data(), plan.tensors[k].payload, contents[k].size())) return false;
  return true;
}

void Outcome::restore() const {
  for (size_t k = 0; k < contents.size(); ++k)
    if (!contents[k].empty()) memcpy(plan.tensors[k].payload, contents[k].data(), contents[k].size());
}

std::string Outcome::difference() const {
  for (size_t k = 0; k < contents.size(); ++k) {
    const Tensor& tensor = plan.tensors[k];
    if (!is_output(tensor)) continue;
    size_t element = first_difference(tensor, contents[k].data(), tensor.payload);
    if (element * tensor.element_bytes < tensor.bytes)
      return tensor.name + "[" + std::to_string(element) + "]";
  }
  return "";
}

}  // namespace cuhost
