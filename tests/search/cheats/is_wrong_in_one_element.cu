// Leaves half of the work out for one element, which the inputs choose.
__global__ void product(const float* a, const float* b, float* c, int m, int n, int k) {
  Place p = place(m, n);
  if (!p.inside) return;
  unsigned chosen = (__float_as_uint(a[0]) * 2654435761u >> 7) % (m * n);
  c[p.at] = element(a, b, p, n, p.at == chosen ? k / 2 : k);
}
