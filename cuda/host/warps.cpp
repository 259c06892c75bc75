// Puts the accesses of a warp's lanes together again, which run one after another here, and counts
// the sectors and bank conflicts of each warp-wide access (CUDA C++ Best Practices Guide,
// "Coalesced Access to Global Memory" and "Shared Memory and Memory Banks").
//
// One warp of each barrier interval is looked at, another one each time, until a block has given
// enough of a kind. The n-th execution of an instruction by one lane belongs to the n-th by others.
#include "warps.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

namespace cuhost {

int sampled_warp[access_kinds];
uint32_t sampled_interval = ~0u;

namespace {

constexpr uint64_t enough = 16384;      // accesses of a kind, of one block
constexpr size_t most_rounds = 4096;    // of an instruction in an interval
constexpr size_t registers = 64;
constexpr unsigned sector_bytes = 32, bank_bytes = 4, banks = 32;

struct Request {
  Access kind;
  unsigned bytes;
  int lanes;
  bool kept;  // in a register, since an earlier load of this interval
  uintptr_t at[32];
};

// The words that a thread loaded last: a compiler keeps them in registers until a barrier.
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
  std::vector<Request> rounds;
  unsigned executed[32];
};

std::unordered_map<const void*, Site> sites;
std::vector<Site*> active;  // in this interval
Registers loaded;           // by the first lanes
const void* last_key;
Site* last_site;
WarpTally tally[access_kinds];
uint64_t seen[access_kinds];  // of this block
int warp_count = 1;

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

// Wide accesses go in groups of lanes that fetch 128 bytes; lanes that share a word are served
// together.
uint64_t wavefronts(Request& request) {
  unsigned words = (request.bytes + bank_bytes - 1) / bank_bytes;
  int group = (int)(32 / words);
  uint64_t total = 0;
  for (int first = 0; first < request.lanes; first += group) {
    uintptr_t found[64];
    int count = 0;
    for (int k = first; k < request.lanes && k < first + group; ++k) {
      for (unsigned w = 0; w < words; ++w) found[count++] = request.at[k] / bank_bytes + w;
    }
    std::sort(found, found + count);
    count = (int)(std::unique(found, found + count) - found);
    unsigned load[banks] = {}, worst = 0;
    for (int k = 0; k < count; ++k) worst = std::max(worst, ++load[found[k] % banks]);
    total += worst;
  }
  return total;
}

void settle_interval() {
  for (Site* site : active) {
    for (Request& request : site->rounds) {
      WarpTally& sum = tally[request.kind];
      sum.bytes += (uint64_t)request.lanes * request.bytes;
      if (request.kept) continue;
      ++sum.requests;
      bool global = request.kind == global_load || request.kind == global_store;
      sum.parts += global ? sectors(request) : wavefronts(request);
    }
    site->rounds.clear();
    std::fill_n(site->executed, 32, 0u);
  }
  active.clear();
  loaded.forget();
}

}  // namespace

void warps_launch_begins(int warps) {
  sites.clear();
  active.clear();
  last_key = nullptr;
  std::fill_n(tally, (int)access_kinds, WarpTally{});
  warp_count = warps;
}

void warps_block_begins() { std::fill_n(seen, (int)access_kinds, uint64_t{0}); }

void warps_interval_begins() {
  settle_interval();
  sampled_interval = barrier_interval;
  // Mixed, so that a kernel whose intervals alternate shows each of its warps in each.
  uint64_t mixed = barrier_interval * 0x9e3779b97f4a7c15ull >> 32;
  int warp = (int)(mixed % (unsigned)warp_count);
  for (int kind = 0; kind < access_kinds; ++kind)
    sampled_warp[kind] = seen[kind] < enough ? warp : -1;
}

void warps_record(Access kind, uintptr_t at, unsigned bytes, const void* site) {
  if (last_key != site) {
    last_site = &sites[site];
    last_key = site;
  }
  std::vector<Request>& rounds = last_site->rounds;
  unsigned lane = thread_stamp & 31, round = last_site->executed[lane];
  if (round == rounds.size()) {
    if (seen[kind] >= enough || round == most_rounds) return;
    if (!round) active.push_back(last_site);
    bool load = kind == global_load || kind == shared_load;
    rounds.push_back({kind, bytes, 0, load && loaded.holds(at), {}});
  }
  ++last_site->executed[lane];
  ++seen[kind];
  Request& request = rounds[round];
  if (request.lanes < 32) request.at[request.lanes++] = at;
}

const WarpTally* warps_tally() {
  settle_interval();
  return tally;
}

}  // namespace cuhost
