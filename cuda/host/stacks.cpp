// Fibers, each with a stack of its own. Those whose threads have ended are taken again.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sys/mman.h>

#include "block.h"
#include "fiber.h"

namespace cuhost {

uintptr_t fiber_low = 0, fiber_bytes = 0;
int current_fiber;

namespace {

constexpr size_t page = 65536;         // the largest page of the supported hosts
constexpr size_t stack_bytes = 8 * page;  // as much as the local memory of a CUDA thread
// Stacks start at different cache sets: otherwise, equal offsets in 1024 stacks would share one.
constexpr size_t stack_stride = page + stack_bytes + page;  // as STACK_BYTES of residency.py
// Each stack with pages around it that cannot be accessed needs two of the 65530 mappings that
// Linux gives a process: further ones do without.
constexpr int guarded = 16384, at_once = 1024;

Context* fibers;  // as many as the plan allows; memory that nothing has touched takes no room
int fibers_begun;
std::vector<int> idle;
Context scheduler_context;

void reserve() {
  fiber_bytes = stack_stride * plan.fibers;
  void* pool = mmap(nullptr, fiber_bytes, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pool == MAP_FAILED) fault("runtime", "no memory for stacks: %s", strerror(errno));
  fiber_low = (uintptr_t)pool;
  fibers = (Context*)must_map(nullptr, plan.fibers * sizeof(Context), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
}

void open_memory(char* begin, size_t bytes) {
  if (mprotect(begin, bytes, PROT_READ | PROT_WRITE))
    fault("runtime", "no memory for stacks: %s", strerror(errno));
}

}  // namespace

int take_fiber() {
  if (!idle.empty()) {
    int index = idle.back();
    idle.pop_back();
    return index;
  }
  if (!fiber_low) reserve();
  int index = fibers_begun;
  if ((size_t)index == plan.fibers) fault("runtime", "no memory for more than %d stacks", index);
  char* begin = (char*)fiber_low + stack_stride * (size_t)index;
  if (index < guarded) open_memory(begin + page, stack_bytes);
  else if (index % at_once == 0)
    open_memory(begin, stack_stride * std::min((size_t)at_once, plan.fibers - (size_t)index));
  ++fibers_begun;
  size_t colour = (size_t)index * 832 % 61440;
  start_at(fibers[index], begin + page, stack_bytes - colour, fiber_body);
  return index;
}

void give_fiber(int fiber) { idle.push_back(fiber); }

void resume(int fiber) {
  current_fiber = fiber;
  switch_to(scheduler_context, fibers[fiber]);
}

void leave_for(int fiber) {
  Context& mine = fibers[current_fiber];
  current_fiber = fiber;
  switch_to(mine, fibers[fiber]);
}

void leave_for_scheduler() { switch_to(fibers[current_fiber], scheduler_context); }

bool on_fiber_stack(const void* address) { return (uintptr_t)address - fiber_low < fiber_bytes; }

bool beyond_fiber_stack(const void* address) {
  if (!on_fiber_stack(address)) return false;
  size_t offset = ((uintptr_t)address - fiber_low) % stack_stride;
  return offset < page || offset >= page + stack_bytes;
}

}  // namespace cuhost
