// Computes what it should: the suite is about the others.
__global__ void product(const float* a, const float* b, float* c, int m, int n, int k) {
  Place p = place(m, n);
  if (!p.inside) return;
  c[p.at] = element(a, b, p, n, k);
}
