// Speculative decoding: drafts are kept as far as they agree, and one token more.
extern "C" __global__ void speculative(const int* draft, const int* wanted, int* out, int rows) {
    int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    bool differs = lane < 8 && draft[row * 8 + lane] != wanted[row * 9 + lane];
    unsigned votes = __ballot_sync(0xffffffffu, differs);
    int kept = votes ? __ffs(votes) - 1 : 8;
    if (lane < 9) out[row * 9 + lane] = lane <= kept ? wanted[row * 9 + lane] : -1;
}
