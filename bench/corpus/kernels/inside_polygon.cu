// Which points lie within a polygon: those with an odd number of edges to the right of them.
__global__ void inside_polygon(const int* points, const int* corners, int* inside, int n, int sides) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  long long x = points[2 * i], y = points[2 * i + 1];
  int odd = 0;
  for (int k = 0; k < sides; k++) {
    int next = k + 1 < sides ? k + 1 : 0;
    long long ax = corners[2 * k], ay = corners[2 * k + 1], bx = corners[2 * next], by = corners[2 * next + 1];
    if ((ay > y) == (by > y)) continue;
    long long side = (bx - ax) * (y - ay) - (x - ax) * (by - ay);
    if (by > ay ? side > 0 : side < 0) odd ^= 1;
  }
  inside[i] = odd;
}
