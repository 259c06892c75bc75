// A libcupti that holds a buffer of its client's until it is told to give it back, at the latest when it ends.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
static void (*complete)(uint8_t *);
static uint8_t *held;
static int enabled = 1;
void stub_begin(uint8_t *buffer, void (*done)(uint8_t *)) { held = buffer; complete = done; }
int cuptiActivityDisable(int kind) { enabled &= kind != 10; return kind > 60; }
int cuptiActivityFlushAll(unsigned flag) { if (held && flag && !enabled) complete(held), held = 0; return 0; }
__attribute__((destructor)) static void end(void) { if (held) complete(held); }
