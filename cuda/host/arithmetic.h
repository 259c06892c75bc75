// CUDA's integer arithmetic where C++ leaves the result undefined or x86 has another.
//
// PTX ISA, "shl", "shr" and "cvt": a shift takes the low 32 bits of its count and clamps it, a
// conversion from floating point saturates. Division by zero and the conversion of NaN were measured
// on an H200 with CUDA 13. The translator marks the operators and casts that need these functions:
//   a << b  as  a << cuhost_op << b        a / b  as  a * !cuhost_op / b        a % b  likewise
//   a <<= b as  a <<= cuhost_op = b        (int)b as  cuhost_to<int>(b)
// so that precedence stays as it is, and a marked expression in #if keeps its value, because an
// unknown name counts as 0 there. Where a floating-point number becomes an integer implicitly, the
// compiler says so, and  i = f  is marked as  i = cuhost_real = f.
#pragma once

#include <limits>
#include <type_traits>

#define CUHOST_INLINE \
  __attribute__((always_inline, no_sanitize("float-cast-overflow", "shift-exponent"))) constexpr

namespace cuhost {

template <class T>
constexpr bool is_integer = std::is_integral_v<T> || (std::is_enum_v<T> && std::is_convertible_v<T, int>);
template <class T>
constexpr bool is_number = is_integer<T> || std::is_floating_point_v<T>;

// What it promotes to; narrow floating-point formats convert as float.
template <class To, class From>
CUHOST_INLINE auto saturated(From v) {
  using Limits = std::numeric_limits<To>;
  constexpr From above = (From)(Limits::max() / 2 + 1) * 2;  // exact, unlike the maximum
  if (v != v) return sizeof(To) == 8 || sizeof(From) == 8 ? (To)(1ull << (sizeof(To) * 8 - 1)) : To(0);
  if (v >= above) return Limits::max();
  if (v <= (From)Limits::min()) return Limits::min();
  return (To)v;
}

template <class To, class From>
CUHOST_INLINE auto converted(From v) {
  using Value = std::remove_cv_t<To>;
  if constexpr (std::is_floating_point_v<From> && std::is_integral_v<Value> &&
                !std::is_same_v<Value, bool>) {
    using Wide = std::conditional_t<(sizeof(Value) < 4),
                                    std::conditional_t<std::is_signed_v<Value>, int, unsigned>, Value>;
    return (To)saturated<Wide>(v);
  } else {
    return (To)v;
  }
}

template <class A, class B>
CUHOST_INLINE auto shift_left(A a, B b) {
  if constexpr (is_integer<A> && is_integer<B>) {
    using R = decltype(+a);
    using U = std::make_unsigned_t<R>;
    unsigned count = (unsigned)b;
    return (R)(count < sizeof(R) * 8 ? (U)((U)a << count) : (U)0);
  } else {
    return a << b;
  }
}

template <class A, class B>
CUHOST_INLINE auto shift_right(A a, B b) {
  if constexpr (is_integer<A> && is_integer<B>) {
    using R = decltype(+a);
    unsigned count = (unsigned)b;
    if constexpr (std::is_signed_v<R>) {
      return (R)a >> (count < sizeof(R) * 8 ? count : sizeof(R) * 8 - 1);
    } else {
      return count < sizeof(R) * 8 ? (R)a >> count : (R)0;
    }
  } else {
    return a >> b;
  }
}

template <class A, class B>
CUHOST_INLINE auto quotient(A a, B b) {
  if constexpr (is_integer<A> && is_integer<B>) {
    using R = decltype(a / b);
    using U = std::make_unsigned_t<R>;
    if (!b) return (R)(sizeof(R) == 8 && !((unsigned long long)(R)a >> 32) ? (U)0xffffffffu : (U)-1);
    if (std::is_signed_v<R> && (R)b == (R)-1) return (R)((U)0 - (U)a);
    return (R)((R)a / (R)b);
  } else {
    return a / b;
  }
}

template <class A, class B>
CUHOST_INLINE auto remainder(A a, B b) {
  if constexpr (is_integer<A> && is_integer<B>) {
    using R = decltype(a % b);
    if (!b) return (R)a;
    if (std::is_signed_v<R> && (R)b == (R)-1) return (R)0;
    return (R)((R)a % (R)b);
  } else {
    return a % b;
  }
}

// The left operand of a marked operator; an operand of a class is passed on to its own operator.
template <class A>
struct Number {
  A a;
};
template <class A>
struct Object {
  const A& a;
};
// The right operand of a marked assignment.
template <class B>
struct By {
  B b;
};
struct Operator {
  CUHOST_INLINE Operator operator!() const { return {}; }
  template <class B>
  CUHOST_INLINE By<B> operator=(B b) const {
    return {b};
  }
};

#define CUHOST_OPERATOR(op, mark, function)                                              \
  template <class A, std::enable_if_t<is_number<A>, int> = 0, class B>                   \
  CUHOST_INLINE auto operator op(Number<A> left, const B& b) {                           \
    if constexpr (is_number<B>) return function(left.a, b);                              \
    else return left.a op b;                                                             \
  }                                                                                      \
  template <class A, class B>                                                            \
  CUHOST_INLINE decltype(auto) operator op(Object<A> left, const B& b) {                 \
    return left.a op b;                                                                  \
  }                                                                                      \
  template <class A, class B>                                                            \
  CUHOST_INLINE A& operator op##=(A& a, By<B> by) {                                      \
    if constexpr (is_number<A> && is_number<B>) a = converted<A>(function((std::remove_cv_t<A>)a, by.b)); \
    else a op##= by.b;                                                                   \
    return a;                                                                            \
  }
CUHOST_OPERATOR(<<, <<, shift_left)
CUHOST_OPERATOR(>>, >>, shift_right)
CUHOST_OPERATOR(/, *, quotient)
CUHOST_OPERATOR(%, *, remainder)
#undef CUHOST_OPERATOR
#define CUHOST_MARK(mark)                                                                \
  template <class A, std::enable_if_t<is_number<A>, int> = 0>                            \
  CUHOST_INLINE Number<A> operator mark(A a, Operator) {                                 \
    return {a};                                                                          \
  }                                                                                      \
  template <class A, std::enable_if_t<!is_number<A>, int> = 0>                           \
  CUHOST_INLINE Object<A> operator mark(const A& a, Operator) {                          \
    return {a};                                                                          \
  }
CUHOST_MARK(<<)
CUHOST_MARK(>>)
CUHOST_MARK(*)
#undef CUHOST_MARK

// A floating-point number that is about to become an integer.
template <class F>
struct Real {
  F value;
  template <class T, std::enable_if_t<is_number<T>, int> = 0>
  CUHOST_INLINE operator T() const {
    return converted<T>(value);
  }
};
struct Mark {
  template <class V>
  CUHOST_INLINE decltype(auto) operator=(V&& v) const {
    using F = std::remove_cv_t<std::remove_reference_t<V>>;
    if constexpr (std::is_floating_point_v<F>) return Real<F>{v};
    else return static_cast<V&&>(v);
  }
};
#define CUHOST_ASSIGNMENT(op)                                                            \
  template <class A, class F>                                                            \
  CUHOST_INLINE A& operator op##=(A& a, Real<F> by) {                                    \
    a = converted<A>((std::remove_cv_t<A>)a op by.value);                                \
    return a;                                                                            \
  }
CUHOST_ASSIGNMENT(+)
CUHOST_ASSIGNMENT(-)
CUHOST_ASSIGNMENT(*)
CUHOST_ASSIGNMENT(/)
#undef CUHOST_ASSIGNMENT

// What is not converted to a number is passed on as it is: a class may keep a reference to it.
template <class To>
struct Cast {
  template <class From, std::enable_if_t<is_number<From> && std::is_scalar_v<To>, int> = 0>
  CUHOST_INLINE To operator()(From v) const {
    return converted<To>(v);
  }
  template <class From,
            std::enable_if_t<!is_number<std::remove_reference_t<From>> || !std::is_scalar_v<To>, int> = 0>
  CUHOST_INLINE To operator()(From&& v) const {
    return (To) static_cast<From&&>(v);
  }
  template <class A, class B, class... More>
  CUHOST_INLINE To operator()(A&& a, B&& b, More&&... more) const {
    return To(static_cast<A&&>(a), static_cast<B&&>(b), static_cast<More&&>(more)...);
  }
};

}  // namespace cuhost

// Without a namespace, because they may be part of a macro that is used in #if.
inline constexpr cuhost::Operator cuhost_op{};
inline constexpr cuhost::Mark cuhost_real{};
template <class To>
inline constexpr cuhost::Cast<To> cuhost_to{};
