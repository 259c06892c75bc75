// What barriers of cuda/barrier and copies are made of.
#pragma once

#include "interface.h"

namespace cuhost {

// A barrier is a word, of which only these functions know the form.
extern "C" {
void cuhost_phase_begin(uint64_t* word, long long expected);
void cuhost_show_barriers();  // that the thread has initialized, to bulk copies
struct cuhost_Arrival {
  unsigned phase;
  bool last;  // cuhost_phase_end must be called
};
cuhost_Arrival cuhost_phase_arrive(uint64_t* word, long long count, bool drop);
// Once all copies of the thread that began with cp.async have taken effect; unless `counted`, the phase
// expects one arrival more.
void cuhost_phase_arrive_with_copies(uint64_t* word, bool counted);
// Around what is called when all have arrived: it sees what they did, and those that wait see it.
void cuhost_completion_begins(uint64_t* word);
void cuhost_completion_ends(const uint64_t* word);
void cuhost_phase_end(uint64_t* word);
void cuhost_phase_forget(uint64_t* word);  // it is no barrier any more
// Bytes of asynchronous copies for which the phase waits too, more or, if negative, fewer.
void cuhost_phase_expect(uint64_t* word, long long bytes);
// The rest of an arrival, or of bytes that have come: ends the phase if nothing is missing.
void cuhost_phase_settle(uint64_t* word);
bool cuhost_phase_over(const uint64_t* word, unsigned phase);
void cuhost_phase_wait(const uint64_t* word, unsigned phase);
// Whether the phase is over, possibly after others have run. The first try of a phase that is not over
// fails.
bool cuhost_phase_tried(const uint64_t* word, unsigned phase);
// The phase of that parity which is current or the last one.
unsigned cuhost_phase_of_parity(const uint64_t* word, bool parity);
// Copies of any size, which arrive at the end of the phase, or like cuhost_copy_later's.
void cuhost_phase_copy(uint64_t* word, void* to, const void* from, size_t bytes, size_t alignment);
void cuhost_copy_any(void* to, const void* from, size_t bytes, size_t alignment);
}

}  // namespace cuhost
