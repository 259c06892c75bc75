// The plan, tensors and shared memory of a run.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime.h"

namespace cuhost {

Plan plan;

static std::string word() {
  static char text[512];
  if (scanf("%511s", text) != 1) fault("runtime", "the plan of the run is cut short");
  return text;
}
static long long number() { return strtoll(word().c_str(), nullptr, 10); }

static Index dimensions() {
  Index result;
  result.x = (unsigned)number();
  result.y = (unsigned)number();
  result.z = (unsigned)number();
  return result;
}

static bool read_token() { return scanf("%31s", plan.token) == 1; }

// rank swizzle im2col; of each dimension extent stride; box; of each dimension of an image lower upper step
static void read_map(TensorMap& map) {
  map = {};
  map.mark = TensorMap::known;
  map.rank = (uint8_t)number();
  map.swizzle = (uint8_t)number();
  map.im2col = number() != 0;
  for (int k = 0; k < map.rank && k < most_dimensions; ++k) {
    map.extents[k] = (uint64_t)number();
    map.strides[k] = (uint64_t)number();
  }
  for (int k = 0; k < (map.im2col ? 2 : (int)map.rank); ++k) map.box[k] = (uint16_t)number();
  for (int k = 0; map.im2col && k < map.rank - 2; ++k) {
    map.walks[k].lower = (int16_t)number();
    map.walks[k].upper = (int16_t)number();
    map.walks[k].step = (uint16_t)number();
  }
}

// members as text, how many; of each the offset, and the tensor's number or the number's bytes
static void read_structure(Structure& structure) {
  structure.members = word();
  for (long long left = number(); left > 0; --left) {
    size_t offset = (size_t)number();
    std::string text = word();
    if (text[0] == 't') {
      structure.pointers.emplace_back(offset, (size_t)atoi(text.c_str() + 1));
      continue;
    }
    for (size_t k = 0; k + 1 < text.size(); k += 2)
      structure.bytes.at(offset + k / 2) = (char)strtol(text.substr(k, 2).c_str(), nullptr, 16);
  }
}

// token; check, deferral, sampling and limits; tensors; launches: see plan.py, which writes it.
void read_plan() {
  if (!read_token()) fault("runtime", "there is no plan");
  long long kind = number();  // 0: runs, 1: a check, 2: checks on request
  plan.check = kind != 0;
  plan.inspect = kind == 2;
  plan.defers = number() != 0;
  plan.profiled_blocks = (uint64_t)number();
  plan.profiled_accesses = (uint64_t)number();
  plan.access_budget = (uint64_t)number();
  plan.shared_limit = (size_t)number();
  plan.shared_of_card = (size_t)number();
  plan.fibers = (size_t)number();
  plan.multiprocessors = (unsigned)number();
  plan.warps = (unsigned)number();
  plan.tensors.resize((size_t)number());
  for (Tensor& tensor : plan.tensors) {
    tensor.name = word();
    tensor.type = word();
    tensor.file = (int)number();
    tensor.workspace = tensor.file < 0;
    long long use = number();  // 0: read, 1: written, 2: both, and restored
    tensor.writable = use != 0;
    tensor.restored = use == 2;
    tensor.bytes = (size_t)number();
    tensor.element_bytes = (size_t)number();
  }
  plan.launches.resize((size_t)number());
  for (Launch& launch : plan.launches) {
    launch.entry = (int)number();
    launch.grid = dimensions();
    launch.block = dimensions();
    launch.shared_bytes = (size_t)number();
    launch.resident = (unsigned)number();
    launch.arguments.resize((size_t)number());
    launch.scalars.resize(launch.arguments.size());
    launch.maps.resize(launch.arguments.size());
    launch.structures.resize(launch.arguments.size());
    for (size_t k = 0; k < launch.arguments.size(); ++k) {
      Argument& argument = launch.arguments[k];
      std::string text = word();
      const char* value = text.c_str() + 1;
      argument = {};
      if (text[0] == 's') {
        argument.kind = Argument::structure;
        launch.structures[k].bytes.resize((size_t)atoi(value));
        read_structure(launch.structures[k]);
      } else if (text[0] == 'm') {
        argument.kind = Argument::tensor_map;
        launch.maps[k].tensor = (size_t)atoi(value);
        read_map(launch.maps[k].form);
      } else if (text[0] == 't') {
        argument.kind = Argument::pointer;
        argument.whole = atoi(value);  // the tensor's number until it is mapped
      } else if (text[0] == 'i') {
        argument.kind = Argument::integer;
        argument.whole = (long long)(value[0] == '-' ? strtoll(value, nullptr, 10)
                                                     : (long long)strtoull(value, nullptr, 10));
      } else {
        argument.kind = Argument::real;
        argument.fraction = strtod(value, nullptr);
      }
      if (argument.kind != Argument::integer && argument.kind != Argument::real) continue;
      Scalar& scalar = launch.scalars[k];
      scalar.name = word();
      scalar.type = word();
      scalar.bytes = (size_t)number();
    }
  }
}

// token seed fresh most budget stride
bool read_runs(Runs& runs) {
  unsigned long long seed, most, stride;
  int fresh;
  if (!read_token()) return false;
  if (scanf("%llu %d %llu %lf %llu", &seed, &fresh, &most, &runs.budget_seconds, &stride) != 5)
    return false;
  runs.seed = seed;
  runs.fresh = fresh != 0;
  runs.most = most;
  runs.stride = stride;
  return true;
}

// Fills unwritten memory: with NaN for the first seed. A maximum ignores NaN, so for the second
// seed words alternate between +inf and -inf, which are very large and very small as integers, and
// for the third one between -inf and +inf. The order is reversed from one block to the next.
void poison(void* memory, size_t bytes) {
  char* at = (char*)memory;
  unsigned kind = plan.order_seed % poisons;
  if (!kind) {
    memset(at, 0xff, bytes);
    return;
  }
  static const uint32_t infinities[] = {0x7f800000, 0xff800000, 0x7f800000};
  Index block = cuhost_where.block;
  size_t done = bytes < 8 ? bytes : 8;
  memcpy(at, infinities + (block.x + block.y + block.z + kind + 1) % 2, done);
  for (size_t more; done < bytes; done += more) {
    more = done < bytes - done ? done : bytes - done;
    memcpy(at + done, at, more);
  }
}

void* must_map(void* at, size_t bytes, int protection, int flags, int file, size_t offset) {
  void* result = mmap(at, bytes, protection, flags, file, (off_t)offset);
  if (result == MAP_FAILED)
    fault("runtime", "%zu bytes cannot be mapped: %s", bytes, strerror(errno));
  return result;
}

// Of vectors, and of what compilers for the host take a structure's to be.
constexpr size_t most_alignment = 64;

// Whole pages, and at least one.
static size_t pages_of(size_t bytes) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  return std::max<size_t>(1, (bytes + page - 1) / page) * page;
}

static void address_tensors() {
  for (Launch& launch : plan.launches) {
    for (size_t k = 0; k < launch.arguments.size(); ++k) {
      Argument& argument = launch.arguments[k];
      Map& map = launch.maps[k];
      if (argument.kind == Argument::pointer)
        argument.address = plan.tensors.at((size_t)argument.whole).payload;
      if (argument.kind == Argument::structure) {
        Structure& structure = launch.structures[k];
        for (auto [offset, tensor] : structure.pointers) {
          char* address = plan.tensors.at(tensor).payload;
          memcpy(&structure.bytes.at(offset), &address, sizeof address);
        }
        argument.address = structure.bytes.data();
      }
      if (argument.kind != Argument::tensor_map) continue;
      map.form.base = plan.tensors.at(map.tensor).payload;
      argument.address = &map.form;
    }
  }
}

// Only the pages of payloads can be accessed.
void map_tensors() {
  for (Tensor& tensor : plan.tensors) {
    size_t length = 2 * guard_bytes + (tensor.bytes + 255) / 256 * 256;
    struct stat status;
    if (!tensor.workspace && (fstat(tensor.file, &status) || (size_t)status.st_size < length))
      fault("runtime", "the file of %s is shorter than its tensor", tensor.name.c_str());
    tensor.region_bytes = pages_of(tensor.bytes) + 2 * gap_bytes;
    tensor.region = (char*)must_map(nullptr, tensor.region_bytes, PROT_NONE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
    tensor.payload = tensor.region + gap_bytes;
    size_t pages = pages_of(tensor.bytes);
    if (tensor.workspace) {
      must_map(tensor.payload, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1);
      fill_guard(tensor.payload + tensor.bytes, pages - tensor.bytes);
    } else {
      // A private mapping copies pages on write.
      must_map(tensor.payload, pages, tensor.writable ? PROT_READ | PROT_WRITE : PROT_READ,
               (plan.check ? MAP_PRIVATE : MAP_SHARED) | MAP_FIXED, tensor.file, guard_bytes);
      close(tensor.file);
    }
  }
  address_tensors();
}

void move_tensors() {
  for (Tensor& tensor : plan.tensors) {
    size_t pages = pages_of(tensor.bytes), slack = (most_alignment - 1) & -tensor.bytes;
    if (slack == pages - tensor.bytes) continue;
    if (!tensor.other) {
      tensor.other = (char*)must_map(nullptr, tensor.region_bytes, PROT_NONE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
      char* begin = tensor.other + gap_bytes;
      must_map(begin, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1);
      fill_guard(begin, pages);
      tensor.other_payload = begin + pages - slack - tensor.bytes;
    }
    std::swap(tensor.region, tensor.other);
    std::swap(tensor.payload, tensor.other_payload);
    // Inputs are never written, and have to be copied in one direction only.
    char* begin = tensor.region + gap_bytes;
    if (!tensor.writable && tensor.payload == begin) continue;
    if (!tensor.writable) mprotect(begin, pages, PROT_READ | PROT_WRITE);
    memcpy(tensor.payload, tensor.other_payload, tensor.bytes);
    if (!tensor.writable) mprotect(begin, pages, PROT_READ);
  }
  address_tensors();
}

// What tensors that are read and written hold at present is what each run finds.
void keep_contents() {
  for (Tensor& tensor : plan.tensors) {
    if (tensor.restored) tensor.contents.assign(tensor.payload, tensor.payload + tensor.bytes);
  }
}

void restore_contents() {
  for (const Tensor& tensor : plan.tensors) {
    if (tensor.restored) memcpy(tensor.payload, tensor.contents.data(), tensor.bytes);
  }
}

// The pages of a private mapping are copies; without them, it has those of the file.
void forget_stores() {
  for (const Tensor& tensor : plan.tensors) {
    if (tensor.writable && !tensor.workspace)
      madvise(tensor.payload, pages_of(tensor.bytes), MADV_DONTNEED);
  }
}

void poison_workspaces() {
  cuhost_where = {};
  for (const Tensor& tensor : plan.tensors) {
    if (tensor.workspace) poison(tensor.payload, tensor.bytes);
  }
}

// The first bytes written by an overrun of a variable; checked after each block.
constexpr size_t edge_bytes = 256;

std::vector<Variable>& variables_of(Build build) {
  static std::vector<Variable> variables[builds];  // local, because they are filled before main
  return variables[build];
}

size_t constant_bytes[builds];

extern "C" bool cuhost_constant(Build build, size_t bytes) {
  constant_bytes[build] += bytes;
  return true;
}

extern "C" void cuhost_variable(Build build, int number, const char* kernel, const char* name,
                                char* begin, size_t bytes, size_t element_bytes, Content content,
                                const void* initial) {
  variables_of(build).push_back({number, kernel, name, begin, bytes, element_bytes, content});
  fill_guard(begin - edge_bytes, edge_bytes);
  fill_guard(begin + bytes, edge_bytes);
  if (initial) memcpy(begin, initial, bytes);
}

const Variable* beside_variable(uintptr_t at) {
  for (Build build : {plain_build, checked_build, zeroed_build}) {
    for (const Variable& variable : variables_of(build)) {
      if (at - (uintptr_t)variable.begin + zone_bytes < variable.bytes + 2 * zone_bytes)
        return &variable;
    }
  }
  return nullptr;
}

const char* touched_edge(const std::vector<Variable>& variables) {
  for (const Variable& variable : variables) {
    for (const char* edge : {variable.begin - edge_bytes, variable.begin + variable.bytes}) {
      if (const char* written = written_in_guard(edge, edge_bytes)) return written;
    }
  }
  return nullptr;
}

// Of workspaces and device variables; the caller checks those of its own arenas.
void check_guards() {
  for (const Tensor& tensor : plan.tensors) {
    const char *begin = tensor.region + gap_bytes, *end = tensor.payload + tensor.bytes;
    if (!tensor.writable || (!tensor.workspace && tensor.payload == begin)) continue;
    const char* written = written_in_guard(begin, (size_t)(tensor.payload - begin));
    if (!written) written = written_in_guard(end, (size_t)(begin + pages_of(tensor.bytes) - end));
    if (written)
      fault("correctness", "%s %s", running_kernel, describe_address(written, "wrote").c_str());
  }
  for (Build build : {plain_build, zeroed_build}) {
    if (const char* edge = touched_edge(variables_of(build)))
      fault("correctness", "%s %s", running_kernel, describe_address(edge, "wrote").c_str());
  }
}

bool in_guard(const void* address) {
  const char* at = (const char*)address;
  return std::any_of(plan.tensors.begin(), plan.tensors.end(), [&](const Tensor& tensor) {
    return at >= tensor.payload - guard_bytes && at < tensor.payload + tensor.bytes + guard_bytes;
  });
}

static std::string beside(const char* verb, const std::string& name, long long offset, size_t bytes,
                          size_t element_bytes, const char* unit) {
  long long index = offset >= 0 ? offset / (long long)element_bytes
                                : -((-offset + (long long)element_bytes - 1) / (long long)element_bytes);
  long long size = (long long)(bytes / element_bytes);
  char text[400];
  if (index < 0)
    snprintf(text, sizeof text, "%s %s[%lld], %lld %s before its start", verb, name.c_str(), index,
             -index, unit);
  else if (index >= size)
    snprintf(text, sizeof text, "%s %s[%lld], past its end of %lld %s", verb, name.c_str(), index,
             size, unit);
  else
    snprintf(text, sizeof text, "%s %s[%lld]", verb, name.c_str(), index);
  return text;
}

std::string describe_address(const void* address, const char* verb) {
  const char* at = (const char*)address;
  for (const Tensor& tensor : plan.tensors) {
    if (at < tensor.region || at >= tensor.region + tensor.region_bytes) continue;
    bool inside = at >= tensor.payload && at < tensor.payload + tensor.bytes;
    std::string name = (inside && !tensor.writable ? "the input " : "") + tensor.name;
    return beside(verb, name, at - tensor.payload, tensor.bytes, tensor.element_bytes, "elements");
  }
  if (dynamic_shared && at >= dynamic_shared - gap_bytes &&
      at < dynamic_shared + dynamic_shared_bytes + gap_bytes)
    return beside(verb, "the dynamic shared memory", at - dynamic_shared, dynamic_shared_bytes, 1,
                  "bytes");
  if (const Variable* variable = beside_variable((uintptr_t)at))
    return beside(verb, variable->name, at - variable->begin, variable->bytes,
                  variable->element_bytes, "elements");
  return "";
}

}  // namespace cuhost
