// The sequences of a beam search: follows parents from the last step back to the first, a thread a
// beam.
__global__ void gather_tree(const int* token, const int* parent, int* y, int steps, int batches,
                            int beams) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= batches * beams) return;
  int batch = i / beams, beam = i % beams;
  for (int t = steps - 1; t >= 0; t--) {
    int at = (t * batches + batch) * beams;
    y[at + i % beams] = token[at + beam];
    beam = parent[at + beam];
  }
}
