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

void allow_interruptions(bool allowed);
const char* first_interruption();  // the first in which the place changed; null if there was none

}  // namespace cuhost
