// What is computed over whole arrays to make references and to compare outputs with them; see
// ArrayMath. One text without headers compiles in a fraction of the time of as many of CuPy's.
//
// Elements are of a kind: 0 float64, 1 float32, 2 float16, 3 bfloat16, 4 a byte in a table of
// float32. Threads stride over the grid, and blocks have 256 threads. A reduction leaves a row of
// results for each block. What a flag says is absent is not read.

typedef unsigned long long Word;
typedef long long Count;

#define THREADS 256
#define INFINITE __longlong_as_double(0x7FF0000000000000LL)
#define FOR_EACH(i, n)                                                            \
  for (Count i = blockIdx.x * (Count)THREADS + threadIdx.x; i < (n);              \
       i += gridDim.x * (Count)THREADS)

__device__ double of_half(unsigned short bits) {
  Word sign = (Word)(bits >> 15) << 63, exponent = bits >> 10 & 31, fraction = bits & 1023;
  if (exponent == 0) return (sign ? -1.0 : 1.0) * (double)fraction * 5.9604644775390625e-8;
  Word wide = exponent == 31 ? 2047 : exponent + 1008;
  return __longlong_as_double((Count)(sign | wide << 52 | fraction << 42));
}

__device__ double value_at(const void* values, Count i, int kind, const float* table) {
  switch (kind) {
    case 0: return ((const double*)values)[i];
    case 1: return ((const float*)values)[i];
    case 2: return of_half(((const unsigned short*)values)[i]);
    case 3: return __int_as_float((int)((unsigned)((const unsigned short*)values)[i] << 16));
    default: return table[((const unsigned char*)values)[i]];
  }
}

// The larger one, or NaN if either is.
__device__ double larger(double a, double b) { return a != a || a > b ? a : b; }
__device__ double smaller(double a, double b) { return a < b ? a : b; }
__device__ double plus(double a, double b) { return a + b; }

template <double (*combine)(double, double)>
__device__ void reduce(double value, double* result) {
  __shared__ double parts[THREADS];
  parts[threadIdx.x] = value;
  __syncthreads();
  for (int half = THREADS / 2; half > 0; half /= 2) {
    if (threadIdx.x < half)
      parts[threadIdx.x] = combine(parts[threadIdx.x], parts[threadIdx.x + half]);
    __syncthreads();
  }
  if (threadIdx.x == 0) *result = parts[0];
  __syncthreads();
}

extern "C" __global__ void widen(
    const void* values, int kind, const float* table, Count n, double* wide) {
  FOR_EACH(i, n) wide[i] = value_at(values, i, kind, table);
}

extern "C" __global__ void to_single(
    const void* values, int kind, const float* table, Count n, float* single) {
  FOR_EACH(i, n) single[i] = (float)value_at(values, i, kind, table);
}

// The least and the largest finite element, the largest absolute value and the sum of the squares.
extern "C" __global__ void survey(
    const void* values, int kind, const float* table, Count n, double* results) {
  double low = INFINITE, high = -INFINITE, peak = 0.0, squares = 0.0;
  FOR_EACH(i, n) {
    double value = value_at(values, i, kind, table), size = fabs(value);
    if (size < INFINITE) {
      low = smaller(value, low);
      high = larger(value, high);
    }
    peak = larger(size, peak);
    squares += value * value;
  }
  double* row = results + 4 * blockIdx.x;
  reduce<smaller>(low, row);
  reduce<larger>(high, row + 1);
  reduce<larger>(peak, row + 2);
  reduce<plus>(squares, row + 3);
}

// The largest absolute value of each row; a block for each.
extern "C" __global__ void row_maxima(const double* values, Count rows, Count columns, double* maxima) {
  for (Count row = blockIdx.x; row < rows; row += gridDim.x) {
    double most = 0.0;
    for (Count column = threadIdx.x; column < columns; column += THREADS)
      most = larger(fabs(values[row * columns + column]), most);
    reduce<larger>(most, maxima + row);
  }
}

// The largest absolute value of each column, which is 0 before, by rows of blocks. Bits of numbers
// without a sign are ordered as the numbers are, with NaN last.
extern "C" __global__ void column_maxima(const double* values, Count rows, Count columns, Word* maxima) {
  Count column = blockIdx.x * (Count)THREADS + threadIdx.x;
  if (column >= columns) return;
  double most = 0.0;
  for (Count row = blockIdx.y; row < rows; row += gridDim.y)
    most = larger(fabs(values[row * columns + column]), most);
  atomicMax(maxima + column, (Word)__double_as_longlong(fabs(most)));
}

extern "C" __global__ void change(
    const double* values, Count n, double least, double fraction, const unsigned char* bits,
    double* changed) {
  FOR_EACH(i, n) {
    double value = values[i], step = fraction * larger(fabs(value), least);
    double direction = bits[i >> 3] >> (7 - (i & 7)) & 1 ? 1.0 : -1.0;
    changed[i] = step > 0.0 ? value + step * direction : value;
  }
}

extern "C" __global__ void add(const double* one, const double* other, Count n, double* sums) {
  FOR_EACH(i, n) sums[i] = one[i] + other[i];
}

// With a reaction before, also counts where this one differs from it by more than the tolerances.
extern "C" __global__ void react(
    const double* result, const double* right, Count n, double fraction, const double* before,
    int has_before, double relative, double absolute, double* reactions, Word* differing) {
  Word others = 0;
  FOR_EACH(i, n) {
    double now = fabs(result[i] - right[i]) / fraction;
    if (!(now < INFINITE)) now = INFINITE;
    if (has_before) {
      double then = before[i];
      others += now != then && !(fabs(now - then) <= absolute + relative * fabs(then));
      now = larger(now, then);
    }
    reactions[i] = now;
  }
  if (others) atomicAdd(differing, others);
}

// The largest error and the sum of the squares of all errors, then of what is expected.
extern "C" __global__ void distance(
    const void* output, int kind, const float* table, const double* expected, Count n, double steps,
    double* results) {
  double error_most = 0.0, error_squares = 0.0, most = 0.0, squares = 0.0;
  FOR_EACH(i, n) {
    double right = expected[i], error = fabs(value_at(output, i, kind, table) - right);
    if (steps > 0.0) error = larger(error - steps, 0.0);
    error_most = larger(error, error_most);
    error_squares += error * error;
    most = larger(fabs(right), most);
    squares += right * right;
  }
  double* row = results + 4 * blockIdx.x;
  reduce<larger>(error_most, row);
  reduce<plus>(error_squares, row + 1);
  reduce<larger>(most, row + 2);
  reduce<plus>(squares, row + 3);
}

// How many errors are no larger than Allowance allows.
extern "C" __global__ void count_within(
    const void* output, int kind, const float* table, const double* expected, Count n, double sums,
    double rounding, double least, double scale, const double* own, int has_own,
    const double* terms, int has_terms, Word* count) {
  Word within = 0;
  FOR_EACH(i, n) {
    double right = expected[i], size = fabs(right), term = scale;
    if (has_own && size > 0.0) term = -larger(-(size + own[i]), -scale);
    if (has_terms) term = larger(term, terms[i]);
    within += fabs(value_at(output, i, kind, table) - right) <= sums * term + rounding * size + least;
  }
  if (within) atomicAdd(count, within);
}

template <class Element>
__device__ void find_difference(const Element* one, const Element* other, Count n, int* found) {
  FOR_EACH(i, n) if (one[i] != other[i]) *found = 1;
}

// Whether elements of 8 bytes, or else of one, differ.
extern "C" __global__ void differ(
    const void* one, const void* other, int size, Count n, int place, int* found) {
  if (size == 8)
    find_difference((const Word*)one, (const Word*)other, n, found + place);
  else
    find_difference((const unsigned char*)one, (const unsigned char*)other, n, found + place);
}

// Whether an element is as it was before a launch although the first launch has changed it.
template <class Element>
__device__ void find_skipped(
    const Element* before, const Element* now, const Element* first, Count n, int* found) {
  FOR_EACH(i, n) if (now[i] == before[i] && first[i] != before[i]) *found = 1;
}

extern "C" __global__ void skipped(
    const void* before, const void* now, const void* first, int size, Count n, int* found) {
  switch (size) {
    case 1:
      return find_skipped((const unsigned char*)before, (const unsigned char*)now,
                          (const unsigned char*)first, n, found);
    case 2:
      return find_skipped((const unsigned short*)before, (const unsigned short*)now,
                          (const unsigned short*)first, n, found);
    case 4:
      return find_skipped(
          (const unsigned*)before, (const unsigned*)now, (const unsigned*)first, n, found);
    default:
      return find_skipped((const Word*)before, (const Word*)now, (const Word*)first, n, found);
  }
}

// Elements of `size` bytes, at multiples of a step or, if that is 0, at places.
extern "C" __global__ void take(
    const char* values, int size, const Count* places, Count step, Count n, char* taken) {
  FOR_EACH(i, n) {
    Count from = (step ? i * step : places[i]) * size;
    for (int k = 0; k < size; ++k) taken[i * size + k] = values[from + k];
  }
}

extern "C" __global__ void put(
    char* values, int size, const Count* places, const char* given, Count n) {
  FOR_EACH(i, n)
    for (int k = 0; k < size; ++k) values[places[i] * size + k] = given[i * size + k];
}
