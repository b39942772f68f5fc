// A product of fragments of bfloat16 without tensor cores for them: compute capability 7.5.
#pragma once

#include <tcexport/halves.cuh>

namespace tcexport {

// sum + A B for the fragments of warp.cuh; in float, two products at a time. A function that is called: many
// copies of it would be more than the compiler gets done.
__device__ __noinline__ inline float4 multiply_by_hand(float4 sum, uint4 a, Pair b0, Pair b1) {
  int lane = threadIdx.x % 32, group = lane / 4 * 4, column = lane % 4 * 2;
  auto add = [](float& into, Pair left, Pair right) {
    into += __uint_as_float(left << 16) * __uint_as_float(right << 16);
    into += __uint_as_float(left & 0xffff0000u) * __uint_as_float(right & 0xffff0000u);
  };
#pragma unroll
  for (int step = 0; step < 8; step++) {
    bool second = step >= 4;
    int from = step % 4;
    Pair upper = __shfl_sync(0xffffffffu, second ? a.z : a.x, group + from);
    Pair lower = __shfl_sync(0xffffffffu, second ? a.w : a.y, group + from);
    Pair left = __shfl_sync(0xffffffffu, second ? b1 : b0, column * 4 + from);
    Pair right = __shfl_sync(0xffffffffu, second ? b1 : b0, column * 4 + 4 + from);
    add(sum.x, upper, left);
    add(sum.y, upper, right);
    add(sum.z, lower, left);
    add(sum.w, lower, right);
  }
  return sum;
}

}  // namespace tcexport
