// Reassembles the accesses of a warp's lanes, which run one after another here, and counts the
// sectors and bank conflicts of each warp-wide access (CUDA C++ Best Practices Guide, "Coalesced
// Access to Global Memory" and "Shared Memory and Memory Banks").
//
// In each barrier interval a different warp is sampled among those that have been seen to access, so
// that idle warps do not hide the others, until a block has yielded enough accesses of a kind. The
// n-th execution of an instruction by one lane belongs to the n-th by the others.
//
// A compiler knows the alignment of shared arrays, and joins loads of neighbouring words into one
// of up to 16 bytes if every lane's address is a multiple of its size. It does not know the
// alignment of tensors, and conditions keep stores apart: these are as wide as the text makes them.
//
// Atomic updates of one word follow one another, those by the lanes of a warp too. A slice of the L2
// takes those of a kilobyte.
#include "warps.h"

#include "order.h"
#include "shadow.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

namespace cuhost {

int sampled_warp[access_kinds];
uint32_t accessing[access_kinds];
uint64_t accesses_of[32];
uint32_t sampled_interval = ~0u;
bool profiling;

namespace {

constexpr uint64_t enough = 16384;      // accesses of a kind, of one block
constexpr size_t most_rounds = 4096;    // of an instruction in an interval
constexpr size_t registers = 64;
constexpr unsigned sector_bytes = 32, bank_bytes = 4, banks = 32;
constexpr unsigned widest_bytes = 16;   // load of a lane
constexpr unsigned pair_bytes = 8;
constexpr size_t reach = 256;           // how many accesses apart loads may be joined
constexpr uintptr_t slice_bytes = 1024;

struct Request {
  Access kind;
  unsigned bytes;
  int lanes;
  uint32_t block;
  bool kept;          // in a register since an earlier load in this interval
  unsigned chunk;     // aligned bytes of each lane within which loads are joined; 0: not at all
  uint32_t covered;   // of the chunk, by this and the loads joined to it
  uintptr_t at[32];   // in the order of lanes
  unsigned char lane[32];

  // A lane that was the last to come to a warp function goes on before the others.
  void add(unsigned char new_lane, uintptr_t address) {
    int k = lanes++;
    for (; k && lane[k - 1] > new_lane; --k) {
      lane[k] = lane[k - 1];
      at[k] = at[k - 1];
    }
    lane[k] = new_lane;
    at[k] = address;
  }
};

// The words that a thread loaded last, which a compiler keeps in registers until a barrier.
struct Registers {
  uintptr_t word[registers];
  size_t next;
  void forget() {
    std::fill_n(word, registers, uintptr_t{0});
    next = 0;
  }
  bool holds(uintptr_t at) {
    if (std::find(word, word + registers, at) != word + registers) return true;
    word[next++ % registers] = at;
    return false;
  }
};

struct Site {
  std::vector<size_t> rounds;  // numbers of its requests
  unsigned executed[32];
};

std::unordered_map<const void*, Site> sites;
std::vector<Site*> active;       // in this interval
std::vector<Request> requests;   // of this interval, in the order of the first lanes
Registers loaded;                // by the first lanes
const void* last_key;
Site* last_site;
WarpTally tally[access_kinds];

// A kilobyte that atomics update: how often a sector of it, and in which blocks.
struct Slice {
  uint64_t updates = 0;
  std::vector<uint32_t> blocks;
};
std::unordered_map<uintptr_t, Slice> slices;  // by address / slice_bytes
uint64_t seen_accesses[access_kinds];  // of this block

uint64_t sectors(Request& request) {
  uintptr_t found[64];
  int count = 0;
  for (int k = 0; k < request.lanes; ++k) {
    found[count++] = request.at[k] / sector_bytes;
    uintptr_t last = (request.at[k] + request.bytes - 1) / sector_bytes;
    if (last != found[count - 1]) found[count++] = last;
  }
  std::sort(found, found + count);
  return (uint64_t)(std::unique(found, found + count) - found);
}

// Each sector is updated as often as its busiest word.
void count_updates(const Request& request) {
  uintptr_t words[32];
  std::copy_n(request.at, request.lanes, words);
  std::sort(words, words + request.lanes);
  for (int k = 0; k < request.lanes;) {
    uintptr_t sector = words[k] / sector_bytes;
    uint64_t busiest = 0;
    while (k < request.lanes && words[k] / sector_bytes == sector) {
      int first = k;
      while (k < request.lanes && words[k] / bank_bytes == words[first] / bank_bytes) ++k;
      busiest = std::max(busiest, (uint64_t)(k - first));
    }
    Slice& slice = slices[sector * sector_bytes / slice_bytes];
    slice.updates += busiest;
    if (std::find(slice.blocks.begin(), slice.blocks.end(), request.block) == slice.blocks.end())
      slice.blocks.push_back(request.block);
  }
}

// Wide accesses are split into groups of lanes that fetch 128 bytes; lanes that share a word are
// served together.
uint64_t wavefronts(const Request& request, uintptr_t offset, unsigned bytes) {
  unsigned words = (bytes + bank_bytes - 1) / bank_bytes;
  int group = (int)(32 / words);
  uint64_t total = 0;
  for (int first = 0; first < request.lanes; first += group) {
    uintptr_t found[64];
    int count = 0;
    for (int k = first; k < request.lanes && k < first + group; ++k) {
      for (unsigned w = 0; w < words; ++w)
        found[count++] = (request.at[k] + offset) / bank_bytes + w;
    }
    std::sort(found, found + count);
    if (request.kind != shared_update) count = (int)(std::unique(found, found + count) - found);
    unsigned load[banks] = {}, worst = 0;
    for (int k = 0; k < count; ++k) worst = std::max(worst, ++load[found[k] % banks]);
    total += worst;
  }
  return total;
}

// The widest chunks that all lanes access at the same offset.
unsigned chunk_of(const Request& request) {
  for (unsigned chunk : {widest_bytes, pair_bytes}) {
    uintptr_t place = request.at[0] % chunk;
    int alike = 1;
    while (alike < request.lanes && request.at[alike] % chunk == place) ++alike;
    if (alike == request.lanes && place + request.bytes <= chunk) return chunk;
  }
  return 0;
}

bool same_chunks(const Request& one, const Request& other) {
  if (one.lanes != other.lanes || one.chunk != other.chunk) return false;
  for (int k = 0; k < one.lanes; ++k)
    if (one.at[k] / one.chunk != other.at[k] / one.chunk) return false;
  return true;
}

void join_loads() {
  constexpr size_t slots = 1024;
  static size_t latest[slots];  // by the first lane's chunk: the number of a request, plus 1
  std::fill_n(latest, slots, size_t{0});
  for (size_t k = 0; k < requests.size(); ++k) {
    Request& request = requests[k];
    if (request.kind != shared_load || request.kept) continue;
    request.chunk = chunk_of(request);
    if (!request.chunk) continue;
    uint32_t bytes = ((1u << request.bytes) - 1) << request.at[0] % request.chunk;
    size_t& before = latest[request.at[0] / request.chunk % slots];
    if (before && k + 1 - before <= reach && same_chunks(requests[before - 1], request) &&
        !(requests[before - 1].covered & bytes)) {
      requests[before - 1].covered |= bytes;
      request.kept = true;
    } else {
      request.covered = bytes;
      before = k + 1;
    }
  }
}

// The fewest loads that cover the bytes, each with a power-of-two size that divides its offset.
void count_joined(const Request& request, WarpTally& sum) {
  uint32_t left = request.covered;
  for (unsigned bytes = request.chunk; left; bytes /= 2) {
    for (unsigned place = 0; place < request.chunk; place += bytes) {
      uint32_t part = ((1u << bytes) - 1) << place;
      if ((left & part) != part) continue;
      left &= ~part;
      ++sum.requests;
      sum.parts += wavefronts(request, place - request.at[0] % request.chunk, bytes);
    }
  }
}

void settle_interval() {
  join_loads();
  for (Request& request : requests) {
    WarpTally& sum = tally[request.kind];
    sum.bytes += (uint64_t)request.lanes * request.bytes;
    if (request.kept) continue;
    if (request.chunk) {
      count_joined(request, sum);
      continue;
    }
    ++sum.requests;
    bool shared = request.kind == shared_load || request.kind == shared_store || request.kind == shared_update;
    if (request.kind == global_update) count_updates(request);
    sum.parts += shared ? wavefronts(request, 0, request.bytes) : sectors(request);
  }
  requests.clear();
  for (Site* site : active) {
    site->rounds.clear();
    std::fill_n(site->executed, 32, 0u);
  }
  active.clear();
  loaded.forget();
}

}  // namespace

void warps_launch_begins() {
  sites.clear();
  slices.clear();
  active.clear();
  requests.clear();
  last_key = nullptr;
  std::fill_n(accessing, (int)access_kinds, 0u);
  std::fill_n(accesses_of, 32, uint64_t{0});
  std::fill_n(tally, (int)access_kinds, WarpTally{});
  profiling = true;
}

void warps_profiled() { profiling = false; }

void warps_block_begins() { std::fill_n(seen_accesses, (int)access_kinds, uint64_t{0}); }

void warps_interval_begins() {
  settle_interval();
  sampled_interval = barrier_interval;
  // Hashed, so that if a kernel's intervals alternate, every warp is sampled in each kind of them.
  uint64_t mixed = barrier_interval * 0x9e3779b97f4a7c15ull >> 32;
  for (int kind = 0; kind < access_kinds; ++kind) {
    uint32_t left = accessing[kind];
    if (seen_accesses[kind] >= enough) {
      sampled_warp[kind] = no_warp;
    } else if (!left) {
      sampled_warp[kind] = first_warp;
    } else {
      for (unsigned k = mixed % (unsigned)__builtin_popcount(left); k; --k) left &= left - 1;
      sampled_warp[kind] = __builtin_ctz(left);
    }
  }
}

int warps_active() {
  uint64_t total = 0, busiest = 1;
  for (uint64_t own : accesses_of) {
    total += own;
    busiest = std::max(busiest, own);
  }
  return (int)((total + busiest - 1) / busiest);
}

void warps_record(Access kind, uintptr_t at, unsigned bytes, const void* site) {
  if (last_key != site) {
    last_site = &sites[site];
    last_key = site;
  }
  std::vector<size_t>& rounds = last_site->rounds;
  unsigned lane = thread_stamp & 31, round = last_site->executed[lane];
  if (round == rounds.size()) {
    if (seen_accesses[kind] >= enough || round == most_rounds) return;
    if (!round) active.push_back(last_site);
    bool load = kind == global_load || kind == shared_load;
    rounds.push_back(requests.size());
    requests.push_back({kind, bytes, 0, block_first, load && loaded.holds(at), 0, 0, {}, {}});
  }
  ++last_site->executed[lane];
  ++seen_accesses[kind];
  Request& request = requests[rounds[round]];
  if (request.lanes < 32) request.add((unsigned char)lane, at);
}

// What most of the sampled blocks update is updated by all; what fewer do, by these. The updates of a
// tensor are spread over its slices at best.
uint64_t warps_contention(uint64_t run, uint64_t blocks) {
  settle_interval();
  double share = (double)blocks / (double)run, most = 0;
  for (const auto& [number, slice] : slices)
    most = std::max(most, (double)slice.updates * (2 * slice.blocks.size() > run ? share : 1));
  for (const Shadow& tensor : tensor_shadows) {
    uintptr_t first = tensor.low / slice_bytes, last = (tensor.low + tensor.bytes - 1) / slice_bytes;
    double sum = 0;
    for (const auto& [number, slice] : slices)
      if (number >= first && number <= last) sum += (double)slice.updates;
    most = std::max(most, sum * share / (double)(last - first + 1));
  }
  return (uint64_t)most;
}

const WarpTally* warps_tally() {
  settle_interval();
  return tally;
}

}  // namespace cuhost
