// Merges two ascending sequences of 60 and 41 keys stably, the first one's keys before equal ones of the second;
// the keys are running sums of steps. A thread finds its place by bisection along the diagonal.
#define A 60
#define B 41

__global__ void merge_keys(const unsigned char* steps, int* key, int* from) {
  __shared__ int a[A], b[B];
  const unsigned char* s = steps + (size_t)blockIdx.x * (A + B);
  const int t = threadIdx.x;
  if (t == 0)
    for (int i = 0, sum = 0; i < A; ++i) a[i] = sum += s[i];
  if (t == 32)
    for (int i = 0, sum = 0; i < B; ++i) b[i] = sum += s[A + i];
  __syncthreads();
  if (t >= A + B) return;
  int low = max(0, t - B), high = min(t, A);
  while (low < high) {
    const int middle = (low + high) / 2;
    if (a[middle] <= b[t - 1 - middle]) low = middle + 1;
    else high = middle;
  }
  const int i = low, j = t - low;
  const bool first = j >= B || (i < A && a[i] <= b[j]);
  key[blockIdx.x * (A + B) + t] = first ? a[i] : b[j];
  from[blockIdx.x * (A + B) + t] = first ? i : A + j;
}
