// Asynchronous products of warpgroups, by PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions".
//
// They happen as late as a kernel can rely on: operands in shared memory are read, and accumulators
// written, when a wait needs them. Until then accumulators hold a signaling NaN. A thread does not wait
// for others at a product, but where they meet next, unless accesses are checked: who is ahead of whom
// then decides what a product is ordered after.
#include "warpgroups.h"

#include <algorithm>
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

constexpr int group_threads = 128, group_rows = 64, most_columns = 256;
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
  std::vector<uint32_t*> registers;        // of thread 0, of thread 1 ...; null until a thread has come
  std::vector<float> sums;                 // by columns
};

struct Product {
  cuhost_GroupProduct given;               // by the first thread that has come
  int threads;                             // that have come
  int depth;
  Operand a, b;
  std::vector<float> a_registers;          // depth x group_rows
  std::shared_ptr<Accumulators> d;
};

struct Warpgroup {
  uint64_t block = 0;                      // see running_block
  bool fenced = false;
  std::vector<Product> coming;             // to which not all threads have come
  size_t begun[group_threads] = {};        // to how many of these a thread has come
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

constexpr bool is_small(cuhost_Kind kind) { return kind == cuhost_matrix_e4m3 || kind == cuhost_matrix_e5m2; }
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
size_t place_of_sum(int thread, int k) { return (size_t)(column_of(thread, k) * group_rows + row_of(thread, k)); }

std::shared_ptr<Accumulators> accumulators_of(Warpgroup& group, int thread, const cuhost_GroupProduct& part) {
  int count = part.columns / 2;
  for (auto& known : group.in_flight) {
    if (known->registers[(size_t)(thread * known->columns / 2)] != part.d[0]) continue;
    if (known->columns == part.columns) return known;
    fault("correctness",
          "%s uses accumulators for %d columns in wgmma.mma_async that are in use for %d until "
          "wgmma.wait_group",
          here().c_str(), part.columns, known->columns);
  }
  // std::make_shared shares a tag with the other objects, which ld.gold takes for two.
  std::shared_ptr<Accumulators> made(new Accumulators);
  made->columns = part.columns;
  made->sums.resize((size_t)(group_rows * part.columns));
  made->registers.resize((size_t)(group_threads * count));
  group.in_flight.push_back(made);
  return made;
}

void take_accumulators(Accumulators& all, int thread, const cuhost_GroupProduct& part) {
  int count = all.columns / 2;
  uint32_t** own = &all.registers[(size_t)(thread * count)];
  if (*own) return;
  for (int k = 0; k < count; ++k) {
    auto* place = (uint32_t*)part.d[k];
    own[k] = place;
    memcpy(&all.sums[place_of_sum(thread, k)], place, 4);
    *place = in_flight_bits;
  }
}

void check_alike(const cuhost_GroupProduct& one, const cuhost_GroupProduct& other) {
  if (one.line != other.line)
    fault("runtime", "divergence: the threads of a warpgroup of %s call wgmma.mma_async in lines %d and %d",
          running_kernel, one.line, other.line);
  if (one.accumulates == other.accumulates && one.b_descriptor == other.b_descriptor &&
      (one.a_in_registers || one.a_descriptor == other.a_descriptor))
    return;
  fault("runtime",
        "divergence: the threads of a warpgroup of %s call wgmma.mma_async in line %d with different "
        "descriptors or scale-d",
        running_kernel, one.line);
}

// The elements of A that a thread gives.
template <cuhost_Kind kind>
void take_a(Product& product, int thread, const cuhost_GroupProduct& part) {
  constexpr int packed = kind == cuhost_matrix_tf32 ? 1 : is_small(kind) ? 4 : 2;  // elements of a register
  for (int k = 0; k < 4 * packed; ++k) {
    int word = k / packed, row = thread / 32 * 16 + thread % 32 / 4 + word % 2 * 8;
    int column = thread % 4 * packed + word / 2 * 4 * packed + k % packed;
    product.a_registers[(size_t)(column * group_rows + row)] = (float)element(part.a, k, kind);
  }
}

template <class F>
void with_group_kind(cuhost_Kind kind, F&& f) {
#define CASE(known) \
    case known: return f(std::integral_constant<cuhost_Kind, known>{});
  switch (kind) {
    CASE(cuhost_matrix_f16)
    CASE(cuhost_matrix_bf16)
    CASE(cuhost_matrix_tf32)
    CASE(cuhost_matrix_e4m3)
    default: CASE(cuhost_matrix_e5m2)
  }
#undef CASE
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
  unsigned bytes = bytes_of(product.given.a_kind), depth = (unsigned)product.depth;
  if (!product.given.a_in_registers) each_chunk(product.a, group_rows, depth, bytes, report);
  each_chunk(product.b, (unsigned)product.d->columns, depth, bytes, report);
}

// Stores the element k of row (of A, or column of B) `row` at row * row_step + k * k_step.
template <cuhost_Kind kind>
void gather(const Operand& operand, unsigned rows, unsigned depth, unsigned row_step, unsigned k_step, float* values) {
  constexpr unsigned bytes = kind == cuhost_matrix_tf32 ? 4 : is_small(kind) ? 1 : 2, in_chunk = chunk_bytes / bytes;
  unsigned step = operand.transposed ? row_step : k_step;
  each_chunk(operand, rows, depth, bytes, [&](unsigned row, unsigned k, uintptr_t at) {
    float* to = values + row * row_step + k * k_step;
    for (unsigned i = 0; i < in_chunk; ++i) to[i * step] = (float)element((const uint32_t*)at, (int)i, kind);
  });
}

void compute(const Product& product) {
  static float a[most_depth * group_rows], b[most_columns * most_depth];
  Accumulators& d = *product.d;
  const cuhost_GroupProduct& given = product.given;
  auto depth = (unsigned)product.depth;
  if (given.a_in_registers) {
    memcpy(a, product.a_registers.data(), product.a_registers.size() * sizeof *a);
  } else {
    with_group_kind(given.a_kind, [&](auto kind) { gather<kind>(product.a, group_rows, depth, 1, group_rows, a); });
  }
  with_group_kind(given.b_kind,
                  [&](auto kind) { gather<kind>(product.b, (unsigned)d.columns, depth, depth, 1, b); });
  if (given.a_scale * given.b_scale < 0)
    for (unsigned k = 0; k < depth * group_rows; ++k) a[k] = -a[k];
  if (!given.accumulates) std::fill(d.sums.begin(), d.sums.end(), 0.0f);
  for (int top = 0; top < group_rows; top += rows_at_once)
    add_products({a + top, group_rows, b, product.depth, d.columns, is_small(given.a_kind), &d.sums[(size_t)top],
                  group_rows, nullptr});
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
      memcpy(place, &d.sums[place_of_sum(thread, j)], 4);
    }
  }
}

// All threads have come to what follows their products.
void meet_at_products(Warpgroup& group) {
  for (Product& product : group.coming) {
    if (product.threads != group_threads)
      fault("runtime",
            "divergence: %d of the %d threads of a warpgroup of %s call wgmma.mma_async in line %d before they call "
            "something else",
            product.threads, group_threads, running_kernel, product.given.line);
    ++product.d->pending;
    if (runs_checked()) report_reads(product);
    if (runs_checked()) cuhost_hooks.passes_on(&group.open);
    group.open.push_back(std::move(product));
  }
  group.coming.clear();
  for (size_t& count : group.begun) count = 0;
}

}  // namespace

extern "C" {

void cuhost_group_multiply(cuhost_GroupProduct* mine) {
  Warpgroup& group = own_group();
  int thread = (int)(thread_stamp & 1023) % group_threads;
  size_t number = group.begun[thread]++;
  if (number == group.coming.size()) {
    if (!group.fenced)
      fault("correctness", "%s calls wgmma.mma_async in line %d without a wgmma.fence before it",
            here().c_str(), mine->line);
    Product product = {*mine, 0, depth_of(mine->a_kind), {}, {}, {}, accumulators_of(group, thread, *mine)};
    if (mine->a_in_registers) product.a_registers.resize((size_t)(group_rows * product.depth));
    else product.a = operand_of(mine->a_descriptor, mine->a_transposed, "A");
    product.b = operand_of(mine->b_descriptor, mine->b_transposed, "B");
    if (!runs_checked()) report_reads(product);
    group.coming.push_back(std::move(product));
  }
  Product& product = group.coming[number];
  check_alike(product.given, *mine);
  ++product.threads;
  take_accumulators(*product.d, thread, *mine);
  if (mine->a_in_registers)
    with_group_kind(mine->a_kind, [&](auto kind) { take_a<kind>(product, thread, *mine); });
  if (runs_checked()) cuhost_meet_warpgroup(mine);
}

void cuhost_group_product(cuhost_Meeting* const*) { meet_at_products(own_group()); }

void cuhost_group_fence(cuhost_Meeting* const*) {
  Warpgroup& group = own_group();
  meet_at_products(group);
  group.fenced = true;
}

void cuhost_group_commit(cuhost_Meeting* const*) {
  Warpgroup& group = own_group();
  meet_at_products(group);
  group.groups.push_back(std::move(group.open));
  group.open.clear();
}

void cuhost_group_wait(cuhost_Meeting* const* threads) {
  Warpgroup& group = own_group();
  unsigned but_latest = ((const cuhost_GroupWait*)threads[0])->but_latest;
  meet_at_products(group);
  if (runs_checked()) cuhost_hooks.learns(&group.open);
  for (; group.groups.size() > but_latest; group.groups.pop_front()) {
    for (const Product& product : group.groups.front()) {
      if (runs_checked()) report_reads(product);  // once more: only now do they happen
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
