struct Problem {
  void const* a;
  void const* b;
  void* c;
  int m, n, k, lda, ldb, ldc, split;
};

