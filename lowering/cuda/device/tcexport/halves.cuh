// Half-precision floats as bits, and how rows of them lie in shared memory.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace tcexport {

using Bits = unsigned short;  // a half or a bfloat16
using Pair = unsigned;        // two of them

template <class T>
__device__ __forceinline__ float widen(Bits bits);
template <>
__device__ __forceinline__ float widen<__half>(Bits bits) {
  return __half2float(__ushort_as_half(bits));
}
template <>
__device__ __forceinline__ float widen<__nv_bfloat16>(Bits bits) {
  return __uint_as_float(unsigned(bits) << 16);
}

template <class T>
__device__ __forceinline__ Bits narrow(float value);
template <>
__device__ __forceinline__ Bits narrow<__half>(float value) {
  return __half_as_ushort(__float2half_rn(value));
}
template <>
__device__ __forceinline__ Bits narrow<__nv_bfloat16>(float value) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

template <class T>
__device__ __forceinline__ Pair narrow2(float low, float high) {
  return Pair(narrow<T>(low)) | Pair(narrow<T>(high)) << 16;
}

// Where the 16 bytes number `chunk` of a row lie in shared memory, in units of 16 bytes: eight rows at
// one chunk, which is what a warp reads at once, lie in different banks.
template <int CHUNKS>
__device__ __forceinline__ int place(int row, int chunk) {
  static_assert(CHUNKS % 2 == 0, "rows of 32 bytes at least");
  constexpr int TURN = CHUNKS % 8 == 0 ? 8 : CHUNKS % 4 == 0 ? 4 : 2;
  constexpr int STEP = 8 / TURN;
  return row * CHUNKS + (chunk ^ (row / STEP % TURN));
}

}  // namespace tcexport
