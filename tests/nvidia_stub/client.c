// What PyTorch's profiler does with its buffers: it frees them when CUPTI returns them, and all others when it ends.
// Freeing one twice is told here: what the C library notices of it, and in which words, depends on its heap.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
void stub_begin(uint8_t *buffer, void (*done)(uint8_t *));
static uint8_t *given, *freed;
static void release(uint8_t *buffer) {
    if (buffer == freed) fputs("a buffer is freed twice\n", stderr), abort();
    free(freed = buffer);
}
static void done(uint8_t *buffer) { release(buffer); given = 0; }
void client_profile(void) { given = malloc(4096); stub_begin(given, done); }
__attribute__((destructor)) static void end(void) { if (given) release(given); }
