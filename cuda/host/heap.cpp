// The memory that kernels take with malloc and new.
#include <cstdlib>
#include <map>
#include <sys/mman.h>

#include "runtime.h"

namespace cuhost {
namespace {

constexpr size_t heap_bytes = 8 << 20;       // CUDA's default, cudaLimitMallocHeapSize
constexpr size_t reach_bytes = 256ull << 20;  // of the checked heap, which reuses nothing before that
constexpr size_t header_bytes = 16;          // holds the size; keeps the alignment

size_t taken;
char* region;                                // of the checked heap
size_t used;
std::map<uintptr_t, size_t> pieces;          // in it

void* take_checked(size_t bytes) {
  if (!region) {
    void* mapped = mmap(nullptr, reach_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) fault("runtime", "no memory for the heap of the kernel");
    region = (char*)mapped;
  }
  if (used + bytes + 2 * header_bytes > reach_bytes) used = 0;
  char* memory = region + used + header_bytes;
  used += header_bytes + (bytes + header_bytes - 1) / header_bytes * header_bytes;
  pieces[(uintptr_t)memory] = bytes;
  return memory;
}

}  // namespace

bool in_heap(uintptr_t at) { return region && at - (uintptr_t)region < reach_bytes; }

bool heap_holds(uintptr_t at, size_t bytes) {
  auto after = pieces.upper_bound(at);
  if (after == pieces.begin()) return false;
  const auto& [begin, length] = *--after;
  return at - begin + bytes <= length;
}

extern "C" {

void* cuhost_malloc(size_t bytes) {
  if (bytes > heap_bytes - taken) return nullptr;
  char* memory = (char*)(runs_checked() ? take_checked(bytes) : malloc(bytes + header_bytes));
  if (!memory) return nullptr;
  if (!runs_checked()) {
    *(size_t*)memory = bytes;
    memory += header_bytes;
  }
  taken += bytes;
  poison(memory, bytes);
  return memory;
}

void cuhost_free(void* memory) {
  if (!memory) return;
  auto piece = pieces.find((uintptr_t)memory);
  if (piece != pieces.end()) {
    taken -= piece->second;
    pieces.erase(piece);
  } else if (runs_checked()) {
    fault("runtime", "%s frees memory that is not its heap's, or is free", here().c_str());
  } else {
    char* begin = (char*)memory - header_bytes;
    taken -= *(size_t*)begin;
    free(begin);
  }
}

// What a text's `new` and `delete` call, see toolchain.py.
void* __wrap__Znwm(size_t bytes) { return cuhost_malloc(bytes); }
void* __wrap__Znam(size_t bytes) { return cuhost_malloc(bytes); }
void __wrap__ZdlPv(void* memory) { cuhost_free(memory); }
void __wrap__ZdaPv(void* memory) { cuhost_free(memory); }
void __wrap__ZdlPvm(void* memory, size_t) { cuhost_free(memory); }
void __wrap__ZdaPvm(void* memory, size_t) { cuhost_free(memory); }
}

}  // namespace cuhost
