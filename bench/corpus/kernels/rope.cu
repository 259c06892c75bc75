// Rotary embedding: turns pairs (d, d + 32) of each head by an angle of the position.
__global__ void rope(const float* x, const float* cosines, const float* sines, float* y, int heads) {
  int position = blockIdx.x, head = blockIdx.y, d = threadIdx.x;
  int at = (position * heads + head) * 64 + d;
  float a = x[at], b = x[at + 32];
  float c = cosines[position * 32 + d], s = sines[position * 32 + d];
  y[at] = a * c - b * s;
  y[at + 32] = b * c + a * s;
}
