// Rotates the first elements of each head, halves as pairs, by tables of angles; the rest is copied.
__global__ void partial_rope(const float* x, const int* position, const float* cosines, const float* sines, float* y, int tokens, int heads, int head, int rotated) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= tokens * heads * head) return;
  const int d = i % head, token = i / (head * heads), half = rotated / 2;
  if (d >= rotated) {
    y[i] = x[i];
    return;
  }
  const int at = position[token] * half + (d < half ? d : d - half);
  const float c = cosines[at], s = sines[at];
  y[i] = d < half ? x[i] * c - x[i + half] * s : x[i] * c + x[i - half] * s;
}
