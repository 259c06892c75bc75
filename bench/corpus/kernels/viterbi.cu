// Best path scores and predecessors of 48 states over the steps; ties go to the lower state.
__global__ void viterbi(const int* moves, const int* emit, int* score, int* back, int steps) {
    __shared__ int row[2][48];
    int s = threadIdx.x;
    row[0][s] = emit[s];
    __syncthreads();
    for (int k = 1; k < steps; k++) {
        const int* from = row[(k - 1) & 1];
        int best = from[0] + moves[s], who = 0;
        for (int p = 1; p < 48; p++) {
            int v = from[p] + moves[p * 48 + s];
            if (v > best) { best = v; who = p; }
        }
        row[k & 1][s] = best + emit[k * 48 + s];
        back[(k - 1) * 48 + s] = who;
        __syncthreads();
    }
    score[s] = row[(steps - 1) & 1][s];
}
