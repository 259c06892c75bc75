// Asynchronous products of warpgroups, by PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions".
//
// They happen as late as a kernel can rely on: operands in shared memory are read, and accumulators
// written, when a wait needs them. Until then accumulators hold a signaling NaN.
#include "warpgroups.h"

#include <array>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "copies.h"
#include "elements.h"
#include "products.h"

namespace cuhost {
namespace {

constexpr int group_threads = 128, group_rows = 64, most_columns = 256, deepest = 32;
constexpr unsigned in_flight_bits = 0x7fa5a5a5;  // arithmetic would make it quiet
constexpr unsigned chunk_bytes = 16;       // what swizzling moves
constexpr unsigned long long address_field = 0x3fff;

// Where the chunks of a matrix in shared memory lie, from its descriptor.
struct Operand {
  uintptr_t start;
  unsigned leading, stride;    // bytes
  unsigned width;              // chunks of a row of the swizzling pattern; 1 without one
  uintptr_t pattern;           // where the pattern begins, modulo its size
  bool transposed;

  // Of the chunk with element k of row (of A, or column of B) `row`; elements of `bytes`.
  uintptr_t chunk(unsigned row, unsigned k, unsigned bytes) const {
    unsigned in_chunk = chunk_bytes / bytes, offset;
    if (transposed) {
      unsigned across = row / in_chunk;
      offset = width == 1 ? across * stride + k % 8 * chunk_bytes + k / 8 * leading
                          : across % width * chunk_bytes + across / width * leading +
                                k % 8 * width * chunk_bytes + k / 8 * stride;
    } else {
      unsigned along = k / in_chunk;
      offset = row % 8 * width * chunk_bytes + row / 8 * stride +
               along * (width == 1 ? leading : chunk_bytes);
    }
    uintptr_t at = start + offset;
    return at ^ ((at - pattern) >> 3 & (width - 1) * chunk_bytes);
  }
};

struct Accumulators {
  int columns;
  int pending = 0;                         // products that have not happened
  std::vector<uint32_t*> registers;        // of thread 0, of thread 1 ...
  std::vector<float> sums;                 // by rows
};

struct Product {
  cuhost_Kind a_kind, b_kind;
  bool accumulates, a_in_registers;
  int a_scale, b_scale, depth;
  Operand a, b;
  std::vector<double> a_registers;         // group_rows x depth
  std::shared_ptr<Accumulators> d;
};

struct Warpgroup {
  uint64_t block = 0;                      // see running_block
  bool fenced = false;
  std::vector<Product> open;               // not committed yet
  std::deque<std::vector<Product>> groups;
  std::vector<std::shared_ptr<Accumulators>> in_flight;
};

std::deque<std::array<Warpgroup, max_threads / group_threads>> warpgroups;  // by the slots of blocks

Warpgroup& own_group() {
  if (warpgroups.size() <= running_slot()) warpgroups.resize(running_slot() + 1);
  Warpgroup& mine = warpgroups[running_slot()][(thread_stamp & 1023) / group_threads];
  if (mine.block != running_block()) {
    mine = {};
    mine.block = running_block();
  }
  return mine;
}

bool is_small(cuhost_Kind kind) { return kind == cuhost_matrix_e4m3 || kind == cuhost_matrix_e5m2; }
unsigned bytes_of(cuhost_Kind kind) { return kind == cuhost_matrix_tf32 ? 4 : is_small(kind) ? 1 : 2; }
int depth_of(cuhost_Kind kind) { return 32 / (int)bytes_of(kind); }

// PTX ISA, "Shared Memory Matrix Layout": fields of 16 bytes; bits 62 and 63 choose the swizzling.
Operand operand_of(unsigned long long descriptor, bool transposed, const char* which) {
  static const unsigned widths[] = {1, 8, 4, 2};
  unsigned low = (unsigned)(descriptor & address_field) * chunk_bytes;
  uintptr_t start = shared_address(low);
  if (!start)
    fault("correctness", "%s gives wgmma.mma_async a descriptor of %s that begins outside shared memory",
          here().c_str(), which);
  return {start,
          (unsigned)(descriptor >> 16 & address_field) * chunk_bytes,
          (unsigned)(descriptor >> 32 & address_field) * chunk_bytes,
          widths[descriptor >> 62],
          (uintptr_t)(descriptor >> 49 & 7) << 7,
          transposed};
}

// Row and column of register k of a thread: PTX ISA, "Register Fragments for wgmma.mma_async".
int row_of(int thread, int k) { return thread / 32 * 16 + thread % 32 / 4 + k / 2 % 2 * 8; }
int column_of(int thread, int k) { return k / 4 * 8 + thread % 4 * 2 + k % 2; }

std::shared_ptr<Accumulators> accumulators_of(Warpgroup& group, cuhost_Meeting* const* threads) {
  auto part = [&](int thread) { return (const cuhost_GroupProduct*)threads[thread]; };
  int columns = part(0)->columns, count = columns / 2;
  for (auto& known : group.in_flight) {
    if (known->registers[0] != part(0)->d[0]) continue;
    if (known->columns == columns) return known;
    fault("correctness",
          "%s uses accumulators for %d columns in wgmma.mma_async that are in use for %d until "
          "wgmma.wait_group",
          here().c_str(), columns, known->columns);
  }
  auto made = std::make_shared<Accumulators>();
  made->columns = columns;
  made->sums.resize((size_t)(group_rows * columns));
  for (int thread = 0; thread < group_threads; ++thread) {
    for (int k = 0; k < count; ++k) {
      auto* place = (uint32_t*)part(thread)->d[k];
      made->registers.push_back(place);
      memcpy(&made->sums[(size_t)(row_of(thread, k) * columns + column_of(thread, k))], place, 4);
      *place = in_flight_bits;
    }
  }
  group.in_flight.push_back(made);
  return made;
}

void check_alike(const cuhost_GroupProduct& one, const cuhost_GroupProduct& other) {
  if (one.accumulates == other.accumulates && one.b_descriptor == other.b_descriptor &&
      (one.a_in_registers || one.a_descriptor == other.a_descriptor))
    return;
  fault("runtime",
        "divergence: the threads of a warpgroup of %s call wgmma.mma_async in line %d with different "
        "descriptors or scale-d",
        running_kernel, one.line);
}

std::vector<double> a_of_registers(cuhost_Meeting* const* threads, cuhost_Kind kind, int depth) {
  std::vector<double> a((size_t)(group_rows * depth));
  int packed = depth / 8;  // elements of a register
  for (int thread = 0; thread < group_threads; ++thread) {
    const auto* part = (const cuhost_GroupProduct*)threads[thread];
    for (int k = 0; k < 4 * packed; ++k) {
      int word = k / packed, row = thread / 32 * 16 + thread % 32 / 4 + word % 2 * 8;
      int column = thread % 4 * packed + word / 2 * 4 * packed + k % packed;
      a[(size_t)(row * depth + column)] = element(part->a, k, kind);
    }
  }
  return a;
}

template <class F>
void each_chunk(const Operand& operand, unsigned rows, unsigned depth, unsigned bytes, F&& f) {
  unsigned in_chunk = chunk_bytes / bytes;
  unsigned row_step = operand.transposed ? in_chunk : 1, k_step = operand.transposed ? 1 : in_chunk;
  for (unsigned row = 0; row < rows; row += row_step)
    for (unsigned k = 0; k < depth; k += k_step) f(row, k, operand.chunk(row, k, bytes));
}

void report_reads(const Product& product) {
  auto report = [](unsigned, unsigned, uintptr_t at) {
    if (!in_shared(at) || !in_shared(at + chunk_bytes - 1)) {
      std::string what = describe_address((const void*)at, "reads");
      fault("correctness", "%s %s with wgmma.mma_async", here().c_str(),
            what.empty() ? "reads beside shared memory" : what.c_str());
    }
    if (runs_checked()) cuhost_hooks.async_access(at, chunk_bytes, false, nullptr);
  };
  unsigned bytes = bytes_of(product.a_kind), depth = (unsigned)product.depth;
  if (!product.a_in_registers) each_chunk(product.a, group_rows, depth, bytes, report);
  each_chunk(product.b, (unsigned)product.d->columns, depth, bytes, report);
}

// Elements by rows of A, or by columns of B.
void gather(const Operand& operand, cuhost_Kind kind, unsigned rows, unsigned depth, double* values) {
  unsigned bytes = bytes_of(kind), in_chunk = chunk_bytes / bytes;
  each_chunk(operand, rows, depth, bytes, [&](unsigned row, unsigned k, uintptr_t at) {
    for (unsigned i = 0; i < in_chunk; ++i) {
      unsigned to = operand.transposed ? (row + i) * depth + k : row * depth + k + i;
      values[to] = element((const uint32_t*)at, (int)i, kind);
    }
  });
}

void compute(const Product& product) {
  static double a[group_rows * deepest], b[most_columns * deepest];
  static Operands all;
  static Sums sums;
  Accumulators& d = *product.d;
  int depth = product.depth;
  if (product.a_in_registers) memcpy(a, product.a_registers.data(), product.a_registers.size() * 8);
  else gather(product.a, product.a_kind, group_rows, (unsigned)depth, a);
  gather(product.b, product.b_kind, (unsigned)d.columns, (unsigned)depth, b);
  double sign = product.a_scale * product.b_scale;
  for (int top = 0; top < group_rows; top += most_rows) {
    for (int row = 0; row < most_rows; ++row)
      for (int k = 0; k < depth; ++k) all.a[row][k] = sign * a[(top + row) * depth + k];
    for (int left = 0; left < d.columns; left += columns) {
      for (int column = 0; column < columns; ++column)
        for (int k = 0; k < depth; ++k) all.b[k][column] = b[(left + column) * depth + k];
      for (int row = 0; row < most_rows; ++row)
        for (int column = 0; column < columns; ++column)
          all.c[row][column] =
              product.accumulates ? d.sums[(size_t)((top + row) * d.columns + left + column)] : 0;
      add_products(all, most_rows, depth, is_small(product.a_kind), sums);
      for (int row = 0; row < most_rows; ++row)
        memcpy(&d.sums[(size_t)((top + row) * d.columns + left)], sums.floats[row], 4 * columns);
    }
  }
}

void finish(const Accumulators& d) {
  size_t k = 0;
  for (int thread = 0; thread < group_threads; ++thread) {
    for (int j = 0; j < d.columns / 2; ++j) {
      uint32_t* place = d.registers[k++];
      if (*place != in_flight_bits)
        fault("correctness",
              "a thread of block (%u,%u,%u) of %s changes an accumulator of wgmma.mma_async before "
              "wgmma.wait_group",
              cuhost_where.block.x, cuhost_where.block.y, cuhost_where.block.z, running_kernel);
      memcpy(place, &d.sums[(size_t)(row_of(thread, j) * d.columns + column_of(thread, j))], 4);
    }
  }
}

}  // namespace

extern "C" {

void cuhost_group_fence(cuhost_Meeting* const*) { own_group().fenced = true; }

void cuhost_group_product(cuhost_Meeting* const* threads) {
  const auto& one = *(const cuhost_GroupProduct*)threads[0];
  for (int k = 1; k < group_threads; ++k) check_alike(one, *(const cuhost_GroupProduct*)threads[k]);
  Warpgroup& group = own_group();
  if (!group.fenced)
    fault("correctness", "%s calls wgmma.mma_async in line %d without a wgmma.fence before it",
          here().c_str(), one.line);
  Product product = {one.a_kind, one.b_kind, one.accumulates, one.a_in_registers, one.a_scale,
                     one.b_scale, depth_of(one.a_kind), {}, {}, {}, nullptr};
  if (one.a_in_registers) product.a_registers = a_of_registers(threads, one.a_kind, product.depth);
  else product.a = operand_of(one.a_descriptor, one.a_transposed, "A");
  product.b = operand_of(one.b_descriptor, one.b_transposed, "B");
  product.d = accumulators_of(group, threads);
  ++product.d->pending;
  report_reads(product);
  if (runs_checked()) cuhost_hooks.passes_on(&group.open);
  group.open.push_back(std::move(product));
}

void cuhost_group_commit(cuhost_Meeting* const*) {
  Warpgroup& group = own_group();
  group.groups.push_back(std::move(group.open));
  group.open.clear();
}

void cuhost_group_wait(cuhost_Meeting* const* threads) {
  Warpgroup& group = own_group();
  unsigned but_latest = ((const cuhost_GroupWait*)threads[0])->but_latest;
  if (runs_checked()) cuhost_hooks.learns(&group.open);
  for (; group.groups.size() > but_latest; group.groups.pop_front()) {
    for (const Product& product : group.groups.front()) {
      report_reads(product);
      compute(product);
      --product.d->pending;
    }
  }
  for (size_t k = group.in_flight.size(); k--;) {
    if (group.in_flight[k]->pending) continue;
    finish(*group.in_flight[k]);
    group.in_flight.erase(group.in_flight.begin() + (long)k);
  }
  if (runs_checked()) cuhost_hooks.passes_on(&group);
}

void cuhost_learn_of_group() {
  if (runs_checked()) cuhost_hooks.learns(&own_group());
}
}

}  // namespace cuhost
