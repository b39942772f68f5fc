// Elements of any type as what they are computed with, and as bits in the order that sorting has.
#pragma once

#include <tcexport/halves.cuh>

namespace tcexport {

template <class T>
struct Element {
  using Wide = T;
  static __device__ __forceinline__ T load(const T* from) { return *from; }
  static __device__ __forceinline__ void store(T* to, T value) { *to = value; }
};
template <class T>
struct HalfElement {
  using Wide = float;
  static __device__ __forceinline__ float load(const T* from) {
    return widen<T>(*reinterpret_cast<const Bits*>(from));
  }
  static __device__ __forceinline__ void store(T* to, float value) {
    *reinterpret_cast<Bits*>(to) = narrow<T>(value);
  }
};
template <>
struct Element<__half> : HalfElement<__half> {};
template <>
struct Element<__nv_bfloat16> : HalfElement<__nv_bfloat16> {};

// What orders elements as eager does: NaN above all numbers, all NaN alike, -0 and 0 alike.
__device__ __forceinline__ unsigned ordered(float value) {
  if (value != value) return ~0u;
  unsigned bits = __float_as_uint(value + 0.0f);
  return bits >> 31 ? ~bits : bits | 1u << 31;
}
__device__ __forceinline__ unsigned long long ordered(double value) {
  if (value != value) return ~0ull;
  unsigned long long bits = (unsigned long long)__double_as_longlong(value + 0.0);
  return bits >> 63 ? ~bits : bits | 1ull << 63;
}
__device__ __forceinline__ unsigned ordered(bool value) { return value; }
__device__ __forceinline__ unsigned ordered(unsigned char value) { return value; }
__device__ __forceinline__ unsigned ordered(signed char value) { return unsigned(value) ^ 1u << 31; }
__device__ __forceinline__ unsigned ordered(short value) { return unsigned(value) ^ 1u << 31; }
__device__ __forceinline__ unsigned ordered(int value) { return unsigned(value) ^ 1u << 31; }
__device__ __forceinline__ unsigned long long ordered(long long value) {
  return (unsigned long long)value ^ 1ull << 63;
}

}  // namespace tcexport
