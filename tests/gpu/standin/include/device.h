// CUDA's device language for a C++ compiler of the CPU: what generated kernels use of it. Values are
// rounded as a device rounds them; matrix fragments and warp operations have their reference meaning.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "../kernels.h"

static Runner* standin;  // set when the library is loaded

#define threadIdx (standin->thread)
#define blockIdx (standin->block)
#define gridDim (standin->blocks)
#define blockDim (standin->threads)
#define warpSize 32

#define __CUDA_ARCH__ 800
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#define __global__
#define __device__
#define __host__
#define __constant__ const
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __grid_constant__
// `__shared__` becomes a static variable (blocks run one after the other): see standin.py.
#define __align__(n) __attribute__((aligned(n)))
#define alignas(n) __attribute__((aligned(n)))

static inline void __syncthreads() { standin->barrier(); }
static inline void __syncwarp(unsigned = ~0u) { standin->exchange(0, standin->lane); }
static int standin_or = 0;
static inline int __syncthreads_or(int predicate) {  // each barrier parts what all do from what all read
  standin->barrier();
  standin_or |= predicate != 0;
  standin->barrier();
  int result = standin_or;
  standin->barrier();
  standin_or = 0;
  return result;
}
static inline void __threadfence() {}
static inline void __threadfence_block() {}

// --- vectors ------------------------------------------------------------------------------------

#define STANDIN_VECTORS(T, name)                                                               \
  struct alignas(sizeof(T)) name##1 { T x; };                                                  \
  struct alignas(2 * sizeof(T)) name##2 { T x, y; };                                           \
  struct name##3 { T x, y, z; };                                                               \
  struct alignas(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) name##4 { T x, y, z, w; };           \
  static inline name##1 make_##name##1(T x) { return {x}; }                                    \
  static inline name##2 make_##name##2(T x, T y) { return {x, y}; }                            \
  static inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                    \
  static inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
STANDIN_VECTORS(signed char, char)
STANDIN_VECTORS(unsigned char, uchar)
STANDIN_VECTORS(short, short)
STANDIN_VECTORS(unsigned short, ushort)
STANDIN_VECTORS(int, int)
STANDIN_VECTORS(unsigned, uint)
STANDIN_VECTORS(long long, longlong)
STANDIN_VECTORS(unsigned long long, ulonglong)
STANDIN_VECTORS(float, float)
STANDIN_VECTORS(double, double)

// --- half types ---------------------------------------------------------------------------------

template <class To, class From>
static inline To standin_bits(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  memcpy(&result, &value, sizeof result);
  return result;
}

static inline float standin_half_to_float(uint16_t bits) {
  uint32_t sign = uint32_t(bits >> 15) << 31, exponent = bits >> 10 & 31, rest = bits & 1023;
  if (exponent == 31) return standin_bits<float>(sign | 0x7f800000u | rest << 13);
  if (exponent) return standin_bits<float>(sign | (exponent + 112) << 23 | rest << 13);
  float tiny = float(rest) * 0x1p-24f;
  return sign ? -tiny : tiny;
}

static inline uint16_t standin_float_to_half(float value) {  // to nearest, ties to even
  uint32_t bits = standin_bits<uint32_t>(value), sign = bits >> 16 & 0x8000;
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return 0x7fff;  // the NaN of a device
  if (bits >= 0x477ff000) return sign | 0x7c00;
  if (bits < 0x38800000)  // below the normal numbers: let the float unit round
    return sign | uint16_t(standin_bits<uint32_t>(standin_bits<float>(bits) + 0.5f) - 0x3f000000);
  return sign | uint16_t((bits - 0x38000000 + 0xfff + (bits >> 13 & 1)) >> 13);
}

static inline float standin_bfloat_to_float(uint16_t bits) {
  return standin_bits<float>(uint32_t(bits) << 16);
}

static inline uint16_t standin_float_to_bfloat(float value) {
  uint32_t bits = standin_bits<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// A 16-bit float; each operation is done in float, which has digits enough, and rounded once.
template <float (*wide)(uint16_t), uint16_t (*narrow)(float)>
struct Narrow {
  uint16_t bits;
  Narrow() = default;
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  Narrow(T value) : bits(narrow(round_to_odd(value))) {}
  operator float() const { return wide(bits); }
  Narrow operator-() const { return from_bits(bits ^ 0x8000); }
  Narrow& operator+=(Narrow other) { return *this = *this + other; }
  Narrow& operator-=(Narrow other) { return *this = *this - other; }
  Narrow& operator*=(Narrow other) { return *this = *this * other; }
  Narrow& operator/=(Narrow other) { return *this = *this / other; }
  friend Narrow operator+(Narrow a, Narrow b) { return float(a) + float(b); }
  friend Narrow operator-(Narrow a, Narrow b) { return float(a) - float(b); }
  friend Narrow operator*(Narrow a, Narrow b) { return float(a) * float(b); }
  friend Narrow operator/(Narrow a, Narrow b) { return float(a) / float(b); }
  friend bool operator<(Narrow a, Narrow b) { return float(a) < float(b); }
  friend bool operator>(Narrow a, Narrow b) { return float(a) > float(b); }
  friend bool operator<=(Narrow a, Narrow b) { return float(a) <= float(b); }
  friend bool operator>=(Narrow a, Narrow b) { return float(a) >= float(b); }
  friend bool operator==(Narrow a, Narrow b) { return float(a) == float(b); }
  friend bool operator!=(Narrow a, Narrow b) { return float(a) != float(b); }
  static Narrow from_bits(uint16_t bits) {
    Narrow value;
    value.bits = bits;
    return value;
  }

 private:
  static float round_to_odd(float value) { return value; }
  template <class T>
  static float round_to_odd(T value) {  // so that it is not rounded twice, by way of float
    float near = float(value);
    if (std::isnan(double(value)) || double(near) == double(value) || std::isinf(near)) return near;
    uint32_t bits = standin_bits<uint32_t>(near);
    if (std::fabs(double(near)) > std::fabs(double(value))) bits--;
    return standin_bits<float>(bits | 1);
  }
};

using __half = Narrow<standin_half_to_float, standin_float_to_half>;
using __nv_bfloat16 = Narrow<standin_bfloat_to_float, standin_float_to_bfloat>;
using half = __half;
using nv_bfloat16 = __nv_bfloat16;
struct alignas(4) __half2 { __half x, y; };
struct alignas(4) __nv_bfloat162 { __nv_bfloat16 x, y; };
using half2 = __half2;
using nv_bfloat162 = __nv_bfloat162;
static inline __half2 make_half2(__half x, __half y) { return {x, y}; }
static inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
static inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
static inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }

static inline float __half2float(__half value) { return value; }
static inline __half __float2half(float value) { return value; }
static inline __half __float2half_rn(float value) { return value; }
static inline __half __double2half(double value) { return value; }
static inline float __bfloat162float(__nv_bfloat16 value) { return value; }
static inline __nv_bfloat16 __float2bfloat16(float value) { return value; }
static inline __nv_bfloat16 __float2bfloat16_rn(float value) { return value; }
static inline __nv_bfloat16 __double2bfloat16(double value) { return value; }
static inline unsigned short __half_as_ushort(__half value) { return value.bits; }
static inline __half __ushort_as_half(unsigned short bits) { return __half::from_bits(bits); }
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 value) { return value.bits; }
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) {
  return __nv_bfloat16::from_bits(bits);
}

#define STANDIN_HALF_UNARY(name, function) \
  static inline __half name(__half x) { return function(float(x)); } \
  static inline __nv_bfloat16 name(__nv_bfloat16 x) { return function(float(x)); }
#define STANDIN_HALF_BINARY(name, expression) \
  static inline __half name(__half a, __half b) { return expression; } \
  static inline __nv_bfloat16 name(__nv_bfloat16 a, __nv_bfloat16 b) { return expression; }
#define STANDIN_HALF_TEST(name, operation) \
  static inline bool name(__half a, __half b) { return a operation b; } \
  static inline bool name(__nv_bfloat16 a, __nv_bfloat16 b) { return a operation b; }
STANDIN_HALF_UNARY(hexp, expf)
STANDIN_HALF_UNARY(hexp2, exp2f)
STANDIN_HALF_UNARY(hexp10, exp10f)
STANDIN_HALF_UNARY(hlog, logf)
STANDIN_HALF_UNARY(hlog2, log2f)
STANDIN_HALF_UNARY(hlog10, log10f)
STANDIN_HALF_UNARY(hsqrt, sqrtf)
STANDIN_HALF_UNARY(hrsqrt, 1.0f / sqrtf)
STANDIN_HALF_UNARY(hrcp, 1.0f /)
STANDIN_HALF_UNARY(hsin, sinf)
STANDIN_HALF_UNARY(hcos, cosf)
STANDIN_HALF_UNARY(htanh, tanhf)
STANDIN_HALF_UNARY(hfloor, floorf)
STANDIN_HALF_UNARY(hceil, ceilf)
STANDIN_HALF_UNARY(htrunc, truncf)
STANDIN_HALF_UNARY(hrint, rintf)
STANDIN_HALF_UNARY(__habs, fabsf)
STANDIN_HALF_BINARY(__hadd, a + b)
STANDIN_HALF_BINARY(__hsub, a - b)
STANDIN_HALF_BINARY(__hmul, a * b)
STANDIN_HALF_BINARY(__hdiv, a / b)
STANDIN_HALF_BINARY(__hmax, fmaxf(a, b))
STANDIN_HALF_BINARY(__hmin, fminf(a, b))
STANDIN_HALF_TEST(__hgt, >)
STANDIN_HALF_TEST(__hge, >=)
STANDIN_HALF_TEST(__hlt, <)
STANDIN_HALF_TEST(__hle, <=)
STANDIN_HALF_TEST(__heq, ==)
STANDIN_HALF_TEST(__hne, !=)
static inline bool __hisnan(__half x) { return std::isnan(float(x)); }
static inline bool __hisnan(__nv_bfloat16 x) { return std::isnan(float(x)); }
static inline __half __hneg(__half x) { return -x; }
static inline __nv_bfloat16 __hneg(__nv_bfloat16 x) { return -x; }
static inline __half __hfma(__half a, __half b, __half c) { return double(a) * double(b) + double(c); }
static inline __nv_bfloat16 __hfma(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c) {
  return double(a) * double(b) + double(c);
}

// --- arithmetic ---------------------------------------------------------------------------------

template <class A, class B>
using StandinCommon = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>,
                                       std::common_type_t<A, B>>;
template <class A, class B>
static inline StandinCommon<A, B> max(A a, B b) {
  using T = StandinCommon<A, B>;
  if constexpr (std::is_floating_point_v<T>) return std::fmax(T(a), T(b));
  return T(a) < T(b) ? T(b) : T(a);
}
template <class A, class B>
static inline StandinCommon<A, B> min(A a, B b) {
  using T = StandinCommon<A, B>;
  if constexpr (std::is_floating_point_v<T>) return std::fmin(T(a), T(b));
  return T(b) < T(a) ? T(b) : T(a);
}

static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
// The C library declares functions of these names.
#define __expf expf
#define __exp10f exp10f
#define __logf logf
#define __log2f log2f
#define __log10f log10f
#define __powf powf
#define __sinf sinf
#define __cosf cosf
#define __tanf tanf
static inline float __fdividef(float x, float y) { return x / y; }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __saturatef(float x) { return fminf(fmaxf(x, 0.0f), 1.0f); }
static inline int __float_as_int(float x) { return standin_bits<int>(x); }
static inline unsigned __float_as_uint(float x) { return standin_bits<unsigned>(x); }
static inline float __int_as_float(int x) { return standin_bits<float>(x); }
static inline float __uint_as_float(unsigned x) { return standin_bits<float>(x); }
static inline long long __double_as_longlong(double x) { return standin_bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return standin_bits<double>(x); }
static inline double __hiloint2double(int high, int low) {
  return standin_bits<double>(uint64_t(uint32_t(high)) << 32 | uint32_t(low));
}
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
template <class T>
static inline T __ldg(const T* from) { return *from; }
#define CUDART_INF_F INFINITY
#define CUDART_INF ((double)INFINITY)
#define CUDART_NAN_F NAN
#define CUDART_NAN ((double)NAN)

// --- warps --------------------------------------------------------------------------------------

static inline unsigned __activemask() { return ~0u; }
template <class T>
static inline T standin_from(T value, int lane) {
  static_assert(sizeof(T) <= 8);
  unsigned long long bits = 0;
  memcpy(&bits, &value, sizeof value);
  bits = standin->exchange(bits, lane);
  memcpy(&value, &bits, sizeof value);
  return value;
}
template <class T>
static inline T __shfl_sync(unsigned, T value, int lane, int width = 32) {
  int self = standin->lane;
  return standin_from(value, self / width * width + (lane & (width - 1)));
}
template <class T>
static inline T __shfl_down_sync(unsigned, T value, unsigned distance, int width = 32) {
  int self = standin->lane;
  return standin_from(value, self % width + int(distance) < width ? self + distance : self);
}
template <class T>
static inline T __shfl_up_sync(unsigned, T value, unsigned distance, int width = 32) {
  int self = standin->lane;
  return standin_from(value, self % width >= int(distance) ? self - distance : self);
}
template <class T>
static inline T __shfl_xor_sync(unsigned, T value, int mask, int width = 32) {
  int self = standin->lane, other = self ^ mask;
  return standin_from(value, other / width <= self / width ? other : self);
}
static inline unsigned __ballot_sync(unsigned mask, int predicate) {
  unsigned found = 0;
  for (int lane = 0; lane < 32; lane++)
    found |= unsigned(standin_from(predicate != 0, lane)) << lane;
  return found & mask;
}
static inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
static inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == mask; }

// --- atomics: threads take turns, so that plain code is atomic ----------------------------------

template <class T, class U>
static inline T atomicAdd(T* at, U value) { T old = *at; *at = old + T(value); return old; }
template <class T, class U>
static inline T atomicMax(T* at, U value) { T old = *at; *at = old < T(value) ? T(value) : old; return old; }
template <class T, class U>
static inline T atomicMin(T* at, U value) { T old = *at; *at = T(value) < old ? T(value) : old; return old; }
template <class T, class U>
static inline T atomicExch(T* at, U value) { T old = *at; *at = T(value); return old; }
template <class T, class U>
static inline T atomicOr(T* at, U value) { T old = *at; *at = old | T(value); return old; }
template <class T, class U, class V>
static inline T atomicCAS(T* at, U compare, V value) { T old = *at; if (old == T(compare)) *at = T(value); return old; }

// --- tensor cores: the first lane of a warp holds whole matrices --------------------------------

namespace nvcuda {
namespace wmma {
struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };
namespace precision {
struct tf32;
}

template <class Use, int M, int N, int K>
struct Extent {
  static constexpr int rows = std::is_same_v<Use, matrix_b> ? K : M;
  static constexpr int columns = std::is_same_v<Use, matrix_a> ? K : N;
};

template <class Use, int M, int N, int K, class T, class Layout = void>
struct fragment {
  using Value = std::conditional_t<std::is_same_v<T, precision::tf32>, float, T>;
  static constexpr int rows = Extent<Use, M, N, K>::rows, columns = Extent<Use, M, N, K>::columns;
  static constexpr int num_elements = rows * columns;
  Value x[num_elements];
};

static inline float __float_to_tf32(float value) {
  uint32_t bits = standin_bits<uint32_t>(value);
  if ((bits & 0x7fffffff) >= 0x7f800000) return value;
  return standin_bits<float>((bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu);
}

template <class F, class V>
static inline void fill_fragment(F& into, V value) {
  if (standin->lane) return;
  for (auto& each : into.x) each = typename F::Value(value);
}

template <class F, class P>
static inline void standin_load(F& into, const P* from, unsigned stride, bool row_major) {
  __syncwarp();
  if (standin->lane) return;
  for (int row = 0; row < F::rows; row++)
    for (int column = 0; column < F::columns; column++)
      into.x[row * F::columns + column] =
          row_major ? from[row * stride + column] : from[column * stride + row];
}
template <class Use, int M, int N, int K, class T, class Layout, class P>
static inline void load_matrix_sync(fragment<Use, M, N, K, T, Layout>& into, const P* from, unsigned stride) {
  standin_load(into, from, stride, std::is_same_v<Layout, row_major>);
}
template <int M, int N, int K, class T, class P>
static inline void load_matrix_sync(fragment<accumulator, M, N, K, T>& into, const P* from, unsigned stride,
                                    layout_t layout) {
  standin_load(into, from, stride, layout == mem_row_major);
}

template <int M, int N, int K, class A, class LA, class B, class LB, class C, class D>
static inline void mma_sync(fragment<accumulator, M, N, K, D>& into,
                            const fragment<matrix_a, M, N, K, A, LA>& a,
                            const fragment<matrix_b, M, N, K, B, LB>& b,
                            const fragment<accumulator, M, N, K, C>& c) {
  if (standin->lane) return;
  for (int row = 0; row < M; row++) {
    float sums[N];
    for (int column = 0; column < N; column++) sums[column] = float(c.x[row * N + column]);
    for (int k = 0; k < K; k++) {
      float left = float(a.x[row * K + k]);
      for (int column = 0; column < N; column++) sums[column] += left * float(b.x[k * N + column]);
    }
    for (int column = 0; column < N; column++) into.x[row * N + column] = D(sums[column]);
  }
}

template <int M, int N, int K, class T, class P>
static inline void store_matrix_sync(P* to, const fragment<accumulator, M, N, K, T>& from, unsigned stride,
                                     layout_t layout) {
  if (!standin->lane)
    for (int row = 0; row < M; row++)
      for (int column = 0; column < N; column++)
        to[layout == mem_row_major ? row * stride + column : column * stride + row] =
            from.x[row * N + column];
  __syncwarp();
}
}  // namespace wmma
}  // namespace nvcuda
