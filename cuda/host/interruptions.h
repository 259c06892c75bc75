// Interruptions of threads between their read of a place and their update of it.
// Linked only into the checked program.
#pragma once

#include "shadow.h"

namespace cuhost {

void interruptions_begin();  // of a launch
// Now and then lets others run before the running thread updates what it has read: what they store in
// between may be lost. One thread at a time is interrupted, so that the others see one another's results, or
// two where the other is between a test of a lock and taking it.
void interrupt(const Shadow& shadow, uintptr_t at, unsigned bytes, bool atomically);

// The running block has read, as volatile or by an atomic, what another block may have stored to tell of its work, or
// has told others of its own.
void block_signals();
extern bool has_signalled;
// Lets others run once before the block's next plain access to global memory, so that it comes too late if a signal
// was given too early, or meets the work of others if a wait has ended too early. Without that, later atomics of the
// blocks would order the accesses.
void pause_after_signal();

void allow_interruptions(bool allowed);
const char* first_interruption();  // the first in which the place changed; null if there was none

}  // namespace cuhost
