// Everything CUDA C++ text may use on the emulated GPU. Precompiled: a kernel must include it first.
#pragma once

#include <cstddef>
// libstdc++ would instantiate the special functions of C++17, which device code lacks, for each kernel.
#undef _GLIBCXX_USE_STD_SPEC_FUNCS
#include <cfloat>
#include <climits>
#include <cstdint>
#include <limits>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <type_traits>
#include <utility>
// std::memory_order for atomic.h, which comes after macros that <atomic> cannot stand. All of <atomic>
// would be instantiated for each kernel.
#if __has_include(<bits/atomic_base.h>)
#include <bits/atomic_base.h>
#else
#include <atomic>
#endif

#include "arithmetic.h"
#include "device_math.h"
#include "integers.h"
#include "interface.h"
#include "refused.h"
#include "rounding.h"
#include "scopes.h"
#include "tensor_maps.h"
#include "threads.h"
#include "vectors.h"

namespace cuda {
namespace std = ::std;
}

namespace cuhost {

// What a parameter takes that is no pointer or map: floating-point numbers, those of bfloat16, integers, or
// the members of a structure.
template <class T>
constexpr char parameter_kind = std::is_floating_point_v<T>                     ? 'f'
                                : std::is_class_v<T> || std::is_union_v<T> ? 's'
                                                                           : 'i';
template <int mantissa, int exponent>
constexpr char parameter_kind<Small<mantissa, exponent>> = mantissa == 7 ? 'b' : 'f';
template <class T>
constexpr bool is_small = false;
template <int mantissa, int exponent>
constexpr bool is_small<Small<mantissa, exponent>> = true;

// CUtensorMap, and what a text that does without its header declares instead.
template <class T>
constexpr bool is_tensor_map = std::is_class_v<T> && sizeof(T) == tensor_map_bytes && alignof(T) >= 64;

// A structure, which may lack a constructor without arguments.
template <class T>
union Bytes {
  T value;
  Bytes() {}
  ~Bytes() {}
};

template <class T>
inline T convert(const Argument& argument) {
  if constexpr (std::is_pointer_v<T>) {
    return (T)argument.address;
  } else if constexpr (is_tensor_map<T>) {
    T result{};
    bool map = argument.kind == Argument::tensor_map;  // or another structure of this size
    __builtin_memcpy((void*)&result, argument.address, map ? sizeof(TensorMap) : sizeof(T));
    return result;
  } else if constexpr (is_small<T>) {
    return T(argument.fraction);
  } else if constexpr (std::is_class_v<T> || std::is_union_v<T>) {
    static_assert(std::is_trivially_copyable_v<T>,
                  "cannot run on the emulated GPU: a kernel parameter whose type has a copy constructor or "
                  "destructor of its own; take a structure without them");
    Bytes<T> bytes;
    __builtin_memcpy((void*)&bytes.value, argument.address, sizeof(T));
    return bytes.value;
  } else {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>,
                  "cannot run on the emulated GPU: a kernel parameter that is no pointer, number, structure or "
                  "tensor map");
    return argument.kind == Argument::real ? (T)argument.fraction : (T)argument.whole;
  }
}

template <class... P>
struct Parameters {
  static constexpr char kinds[] = {
      (std::is_pointer_v<P> ? 'p' : is_tensor_map<P> ? 'm' : parameter_kind<P>)..., '\0'};
  static constexpr unsigned sizes[] = {(unsigned)sizeof(P)..., 0};
};

template <class T>
constexpr std::size_t cuhost_alignment() {
  return alignof(T);
}
template <std::size_t bytes>
constexpr std::size_t cuhost_alignment() {
  return bytes;
}

template <class... Rest>
constexpr int cuhost_first(int value, Rest...) {
  return value;
}

// The blocks of a cluster, see Entry. There cannot be as many as 255.
constexpr int cuhost_packed(unsigned x, unsigned y = 1, unsigned z = 1) {
  auto byte = [](unsigned size) { return (int)(size < 255 ? size : 255); };
  return byte(x) | byte(y) << 8 | byte(z) << 16;
}

// The parameter types are taken from the kernel's own type, not parsed from its text.
template <auto kernel, class Function = decltype(kernel)>
struct cuhost_caller;
template <auto kernel, class... P>
struct cuhost_caller<kernel, void (*)(P...)> {
  template <std::size_t... I>
  static void spread(const Argument* arguments, std::index_sequence<I...>) {
    kernel(convert<std::remove_cv_t<P>>(arguments[I])...);
  }
  static void call(const Argument* arguments) {
    (void)arguments;
    spread(arguments, std::index_sequence_for<P...>{});
  }
  static constexpr Entry cuhost_entry(const char* name, int most_threads, int cluster, int shared_alignment) {
    using All = Parameters<P...>;
    return {name, (int)sizeof...(P), All::kinds, All::sizes, call, most_threads, cluster, shared_alignment};
  }
};

#if defined(CUHOST_CHECKED)
constexpr Build cuhost_build = checked_build;
#elif defined(CUHOST_ZEROED)
constexpr Build cuhost_build = zeroed_build;
#else
constexpr Build cuhost_build = plain_build;
#endif

template <class T>
constexpr Content cuhost_content() {
  return std::is_floating_point_v<T> ? floating : std::is_integral_v<T> ? integral : mixed;
}

// The value of a local flag that was declared without one, see unset_flags.py.
constexpr bool cuhost_unset = cuhost_build != zeroed_build;

constexpr std::size_t shared_alignment = 128;

// A __shared__ or device variable. `Tag` has internal linkage and is distinct in each instance of a
// template, and so is the variable. The constructor passes its address to the runtime, which also
// keeps the optimizer from assuming that a barrier does not change the variable.
template <class T, class Tag, std::size_t alignment>
struct cuhost_guarded {
  struct cuhost_Storage {
    char before[zone_bytes];
    union {
      alignas(alignment > shared_alignment ? alignment : shared_alignment) T cuhost_value;
    };
    char after[zone_bytes];
    cuhost_Storage() {
      using Element = std::remove_all_extents_t<T>;
      cuhost_variable(cuhost_build, Tag::cuhost_number, Tag::cuhost_kernel(), Tag::cuhost_name(),
                      (char*)&cuhost_value, sizeof(T),
                      sizeof(Element), cuhost_content<Element>(), Tag::cuhost_initial());
    }
  };
  static cuhost_Storage cuhost_storage;
};
template <class T, class Tag, std::size_t alignment>
typename cuhost_guarded<T, Tag, alignment>::cuhost_Storage
    cuhost_guarded<T, Tag, alignment>::cuhost_storage;

// The same variable, as one whose size the compiler does not know, and that barriers may change.
template <class T>
inline T& cuhost_unsized(T& variable) {
  void* at = cuhost_same_place((void*)&variable);
  __asm__ volatile("" : : "r"(at) : "memory");
  return *(T*)__builtin_assume_aligned(at, shared_alignment);
}

inline void* cuhost_copy(void* to, const void* from, std::size_t bytes) {
#if defined(CUHOST_CHECKED)
  cuhost_range(from, bytes, false);
  cuhost_range(to, bytes, true);
#endif
  return __builtin_memcpy(to, from, bytes);
}
inline void* cuhost_fill(void* to, int value, std::size_t bytes) {
#if defined(CUHOST_CHECKED)
  cuhost_range(to, bytes, true);
#endif
  return __builtin_memset(to, value, bytes);
}

}  // namespace cuhost

// Macros that the text defines come later: what ours expand to must not contain other names.
#define __CUDACC__ 1
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#define __CUDA_ARCH__ 900
#define CUDA_VERSION 13000
#define CUDART_VERSION 13000
#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __grid_constant__
#define __forceinline__ inline __attribute__((__always_inline__))
#define __noinline__ __attribute__((__noinline__))
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(n) __attribute__((__aligned__(n)))
// A type or a number may be given.
#define alignas(...) __attribute__((__aligned__(::cuhost::cuhost_alignment<__VA_ARGS__>())))

#if defined(CUHOST_CHECKED)
#define CUHOST_TABLE cuhost_checked_table
#elif defined(CUHOST_ZEROED)
#define CUHOST_TABLE cuhost_zeroed_table
#else
#define CUHOST_TABLE cuhost_table
#endif
// The sanitizer's check of references is unnecessary here and would keep loads inside loops.
#if defined(CUHOST_CHECKED)
#define CUHOST_ANYWHERE __attribute__((__aligned__(1)))
#else
#define CUHOST_ANYWHERE
#endif
// The translator renames the text's own variable, which provides type, alignment and initial value.
#define CUHOST_TAG(n, of_kernel, variable, first)                                     \
  struct cuhost_tag_##n {                                                             \
    enum { cuhost_number = n };                                                       \
    static const char* cuhost_kernel() { return of_kernel; }                          \
    static const char* cuhost_name() { return #variable; }                            \
    static const void* cuhost_initial() { return first; }                             \
  };
#define CUHOST_PLACE(n)                                                               \
  ::cuhost::cuhost_guarded<decltype(cuhost_value_##n), cuhost_tag_##n,                \
                           __alignof__(cuhost_value_##n)>::cuhost_storage.cuhost_value
#define CUHOST_VARIABLE(n, of_kernel, variable, first)                                \
  CUHOST_TAG(n, of_kernel, variable, first)                                           \
  typedef decltype(cuhost_value_##n) cuhost_type_##n CUHOST_ANYWHERE;                 \
  static cuhost_type_##n& variable = CUHOST_PLACE(n);
#define CUHOST_SHARED(n, kernel, variable) CUHOST_VARIABLE(n, kernel, variable, nullptr)
// A shared variable that a kernel's body declares. -fsanitize=object-size takes half the time of compiling a
// checked build if it knows the size of such variables, and finds nothing there that accesses.cpp does not.
#if defined(CUHOST_CHECKED) && defined(__GNUC__) && !defined(__clang__)
#define CUHOST_OWN_SHARED(n, kernel, variable)                                        \
  CUHOST_TAG(n, kernel, variable, nullptr)                                            \
  decltype(cuhost_value_##n)& variable = ::cuhost::cuhost_unsized(CUHOST_PLACE(n));
#else
#define CUHOST_OWN_SHARED CUHOST_SHARED
#endif
// The translator adds this to the variable that gives a shared one its type. It is a local that nothing
// uses, and GCC would fill it in each thread.
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
#define CUHOST_UNFILLED [[gnu::uninitialized]]
#else
#define CUHOST_UNFILLED
#endif
// The translator adds this after each constant variable.
#define CUHOST_CONSTANT(n, variable) \
  static const bool cuhost_constant_##n = ::cuhost::cuhost_constant(::cuhost::cuhost_build, sizeof(variable));
#define CUHOST_DEVICE(n, variable) \
  CUHOST_VARIABLE(n, nullptr, variable, (const void*)&cuhost_value_##n)

#undef assert
#define assert(condition) \
  ((condition) ? (void)0 : ::cuhost::cuhost_assert(#condition, __LINE__))
#define __trap() ::cuhost::cuhost_trap("__trap()")
#define printf ::cuhost::cuhost_printf
#define malloc(bytes) ::cuhost::cuhost_malloc(bytes)
#define free(memory) ::cuhost::cuhost_free(memory)
#define memcpy ::cuhost::cuhost_copy
#define memset ::cuhost::cuhost_fill
// The translator removes what it can emulate; other inline PTX, such as a macro's, ends up here.
#define asm inline_ptx_cannot_run_on_the_emulated_gpu
#define __asm__ inline_ptx_cannot_run_on_the_emulated_gpu
#define __asm inline_ptx_cannot_run_on_the_emulated_gpu
