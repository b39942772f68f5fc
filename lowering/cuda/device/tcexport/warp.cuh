// What a warp of a GPU has beyond C++: tensor cores, loads of fragments, copies in the background.
// The kernels of this folder use these functions alone, so that tests can give them another meaning.
//
// Fragments are those of mma.m16n8k16 (PTX ISA, "Matrix Fragments for mma.m16n8k16"): with
// g = lane / 4 and t = lane % 4, a lane holds pairs of neighbours along k
//   of A [16][16]: (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8)
//   of B [16][8]:  (2t, g), (2t + 8, g)
//   of C [16][8]:  (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1), in float
//
// Compute capability 7.5 lacks copies in the background, and tensor cores for bfloat16: the former are
// plain copies there, the latter are replaced by shuffles and multiply-adds of the same numbers.
#pragma once

#include <tcexport/by_hand.cuh>
#include <tcexport/halves.cuh>

namespace tcexport {

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return unsigned(__cvta_generic_to_shared(pointer));
}

// 16 bytes to shared memory, both addresses multiples of 16; beyond `valid` bytes they are zeros.
// They are there after `arrived`, for the other threads after a barrier behind that.
__device__ __forceinline__ void fetch16(void* shared, const void* global, int valid) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
               "l"(global), "r"(valid));
#else
  uint4 value = make_uint4(0, 0, 0, 0);
  if (valid == 16) {
    value = *static_cast<const uint4*>(global);
  } else if (valid > 0) {
    Bits parts[8];
    for (int each = 0; each < 8; each++)
      parts[each] = each * 2 < valid ? static_cast<const Bits*>(global)[each] : Bits(0);
    value = make_uint4(parts[0] | unsigned(parts[1]) << 16, parts[2] | unsigned(parts[3]) << 16,
                       parts[4] | unsigned(parts[5]) << 16, parts[6] | unsigned(parts[7]) << 16);
  }
  *static_cast<uint4*>(shared) = value;
#endif
}

// What was fetched since the last call is one group.
__device__ __forceinline__ void end_group() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Wait until at most `N` groups of this thread are under way.
template <int N>
__device__ __forceinline__ void arrived() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

// Four matrices [8][8]; lane 8 i + r gives the address of row r of the i-th, and gets of each the
// elements (g, 2t) and (g, 2t + 1).
__device__ __forceinline__ void load4(Pair (&into)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(into[0]), "=r"(into[1]), "=r"(into[2]), "=r"(into[3])
               : "r"(shared_address(row)));
}

// The same of their transposes.
__device__ __forceinline__ void load4_transposed(Pair (&into)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(into[0]), "=r"(into[1]), "=r"(into[2]), "=r"(into[3])
               : "r"(shared_address(row)));
}

// sum += A B, of [16][16] by [16][8].
template <class T>
__device__ __forceinline__ void multiply(float (&sum)[4], const Pair (&a)[4], Pair b0, Pair b1);

template <>
__device__ __forceinline__ void multiply<__half>(float (&sum)[4], const Pair (&a)[4], Pair b0,
                                                 Pair b1) {
#if __CUDA_ARCH__ >= 800
  asm(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  asm(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(b0));
  asm(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}

template <>
__device__ __forceinline__ void multiply<__nv_bfloat16>(float (&sum)[4], const Pair (&a)[4],
                                                        Pair b0, Pair b1) {
#if __CUDA_ARCH__ >= 800
  asm(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  float4 made = multiply_by_hand(make_float4(sum[0], sum[1], sum[2], sum[3]),
                                 make_uint4(a[0], a[1], a[2], a[3]), b0, b1);
  sum[0] = made.x;
  sum[1] = made.y;
  sum[2] = made.z;
  sum[3] = made.w;
#endif
}

}  // namespace tcexport
