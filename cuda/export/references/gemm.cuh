// The reference for driver.cu of C (M,N) = A B with A (M,K), which in the layout nt is stored as
// (K,M), and B (K,N): each thread computes its share of the rows, in double precision.
#pragma once

#ifndef PARAMETER_lda  // launch headers omit it if rows follow one another
#ifdef PARAMETER_layout_nt
#define PARAMETER_lda PARAMETER_M
#else
#define PARAMETER_lda PARAMETER_K
#endif
#endif
#ifndef PARAMETER_ldb
#define PARAMETER_ldb PARAMETER_N
#endif

static void reference(Values& values, int worker, int workers) {
  constexpr size_t rows = PARAMETER_M, columns = PARAMETER_N, depth = PARAMETER_K;
  constexpr size_t lda = PARAMETER_lda, ldb = PARAMETER_ldb;
#ifdef PARAMETER_layout_nt
  constexpr size_t next_row = 1, next_product = lda;
#else
  constexpr size_t next_row = lda, next_product = 1;
#endif
  const double *a = values[0].data(), *b = values[1].data();
  for (size_t row = worker; row < rows; row += workers) {
    double* c = values[2].data() + row * columns;
    for (size_t k = 0; k < depth; ++k) {
      const double factor = a[row * next_row + k * next_product];
      for (size_t column = 0; column < columns; ++column) c[column] += factor * b[k * ldb + column];
    }
  }
}
