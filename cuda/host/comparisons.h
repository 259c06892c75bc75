// What comparisons have met, see comparisons.cpp. Linked only into the checked program.
#pragma once

namespace cuhost {

void record_comparisons(bool on);
void print_comparisons();  // one line of the answer

}  // namespace cuhost
