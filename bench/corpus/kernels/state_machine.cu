// Runs an automaton of four states over rows of 256 bytes: maps of states are composed in a tree.
__device__ unsigned composed(unsigned first, unsigned second) {
    unsigned both = 0;
    for (int s = 0; s < 4; s++) both |= (second >> 2 * (first >> 2 * s & 3) & 3) << 2 * s;
    return both;
}

extern "C" __global__ void state_machine(const unsigned char* text, const unsigned char* table, int* state, int rows) {
    int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    unsigned map = 0xe4;  // each state to itself
    for (int k = 0; k < 8; k++) {
        unsigned letter = text[row * 256 + lane * 8 + k], step = 0;
        for (int s = 0; s < 4; s++) step |= (unsigned)table[letter * 4 + s] << 2 * s;
        map = composed(map, step);
    }
    for (int o = 1; o < 32; o *= 2) map = composed(map, __shfl_down_sync(0xffffffffu, map, o));
    if (lane == 0) state[row] = map & 3;
}
