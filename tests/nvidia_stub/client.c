// What PyTorch's profiler does with its buffers: it frees them when CUPTI returns them, and all others when it ends.
#include <stdint.h>
#include <stdlib.h>
void stub_begin(uint8_t *buffer, void (*done)(uint8_t *));
static uint8_t *given;
static void done(uint8_t *buffer) { free(buffer); given = 0; }
void client_profile(void) { given = malloc(4096); stub_begin(given, done); }
__attribute__((destructor)) static void end(void) { if (given) free(given); }
