// The attention of attention.cuh for float32, by multiply-adds of float32: nothing is rounded on the way.
//
// Four neighbouring threads share a row: each has every fourth key for the scores, and every fourth chunk
// of 16 bytes of V for the result. K and V come to the same shared memory, one after the other.
#pragma once

#include <tcexport/heads.cuh>
#include <tcexport/warp.cuh>

namespace tcexport {

// D, DV: sizes of a head. OWN: rows of a thread. KEYS: that are taken at a time.
template <int D, int DV, int OWN, int KEYS, MaskKind MASK, bool CAUSAL>
struct AttentionFloat {
  static constexpr int THREADS = 128, QUADS = THREADS / 4, ROWS = QUADS * OWN;
  static constexpr int CHUNKS = (D + 3) / 4, CHUNKS_V = (DV + 3) / 4;
  // A chunk more, so that rows lie in different banks.
  static constexpr int STEP = CHUNKS + 1, STEP_V = CHUNKS_V + 1;
  static constexpr int WIDEST = STEP > STEP_V ? STEP : STEP_V, STEP_P = KEYS + 4;
  static constexpr int MINE = KEYS / 4, MINE_V = (CHUNKS_V + 3) / 4;

  Head<float, MASK> head;
  int first_row;
  float4* shared;

  __device__ __forceinline__ float4* pairs() const { return shared + ROWS * STEP; }  // K or V
  __device__ __forceinline__ float* powers() const {
    return reinterpret_cast<float*>(pairs() + KEYS * WIDEST);
  }

  // [COUNT][WIDTH] to rows of STRIDE chunks; zeros beyond `rows` and behind each row.
  template <int COUNT, int WIDTH, int STRIDE>
  __device__ __forceinline__ void fetch(float4* into, const float* from, int rows) const {
    constexpr int PER_ROW = (WIDTH + 3) / 4;
    for (int at = threadIdx.x; at < COUNT * PER_ROW; at += THREADS) {
      int row = at / PER_ROW, chunk = at % PER_ROW;
      int valid = row < rows ? min(4, WIDTH - 4 * chunk) : 0;
      const float* source = from + (long long)row * WIDTH + 4 * chunk;
      float4* target = into + row * STRIDE + chunk;
      if (WIDTH % 4 == 0) {
        fetch16(target, source, 4 * valid);
      } else {
        *target = make_float4(valid > 0 ? source[0] : 0.0f, valid > 1 ? source[1] : 0.0f,
                              valid > 2 ? source[2] : 0.0f, valid > 3 ? source[3] : 0.0f);
      }
    }
    end_group();
  }

  __device__ __forceinline__ void run() {
    int quad = threadIdx.x / 4, lane = threadIdx.x % 4;
    float4 sums[OWN][MINE_V];
    float highest[OWN], total[OWN];
#pragma unroll
    for (int i = 0; i < OWN; i++) {
#pragma unroll
      for (int j = 0; j < MINE_V; j++) sums[i][j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      highest[i] = -INFINITY;
      total[i] = 0.0f;
    }
    int end = CAUSAL ? min(head.keys, first_row + ROWS) : head.keys;
    fetch<ROWS, D, STEP>(shared, head.q + (long long)first_row * D, head.rows - first_row);
#pragma unroll 1
    for (int first = 0; first < end; first += KEYS) {
      fetch<KEYS, D, STEP>(pairs(), head.k + (long long)first * D, head.keys - first);
      arrived<0>();
      __syncthreads();
      float scores[OWN][MINE];
      multiply_keys(scores, quad, lane);
      __syncthreads();
      fetch<KEYS, DV, STEP_V>(pairs(), head.v + (long long)first * DV, head.keys - first);
#pragma unroll
      for (int i = 0; i < OWN; i++)
        weigh(scores[i], highest[i], total[i], sums[i], quad + QUADS * i, first + lane);
      arrived<0>();
      __syncthreads();
      multiply_values(sums, quad, lane);
      __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < OWN; i++) write(sums[i], total[i], first_row + quad + QUADS * i, lane);
  }

  __device__ __forceinline__ void multiply_keys(float (&scores)[OWN][MINE], int quad,
                                                int lane) const {
#pragma unroll
    for (int i = 0; i < OWN; i++)
#pragma unroll
      for (int j = 0; j < MINE; j++) scores[i][j] = 0.0f;
#pragma unroll 2
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
      float4 row[OWN];
#pragma unroll
      for (int i = 0; i < OWN; i++) row[i] = shared[(quad + QUADS * i) * STEP + chunk];
#pragma unroll
      for (int j = 0; j < MINE; j++) {
        float4 key = pairs()[(lane + 4 * j) * STEP + chunk];
#pragma unroll
        for (int i = 0; i < OWN; i++) {
          float& into = scores[i][j];
          into += row[i].x * key.x;
          into += row[i].y * key.y;
          into += row[i].z * key.z;
          into += row[i].w * key.w;
        }
      }
    }
  }

  // Scores to powers, in shared memory; what was summed before is rescaled.
  __device__ __forceinline__ void weigh(float (&scores)[MINE], float& highest, float& total,
                                        float4 (&sums)[MINE_V], int row_in, int first) const {
    MaskRow<float, MASK> seen(head, first_row + row_in, CAUSAL);
    float top = highest;
#pragma unroll
    for (int j = 0; j < MINE; j++) {
      bool shown = seen.shows(first + 4 * j);
      float score = scores[j] * head.scale;
      if (MASK == FLOAT_MASK && shown) score += seen.added(first + 4 * j);
      scores[j] = shown ? score : -INFINITY;
      top = fmaxf(top, scores[j]);
    }
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    float base = top == -INFINITY ? 0.0f : top;  // nothing is seen so far
    float shrink = expf(highest - base), sum = 0.0f;
#pragma unroll
    for (int j = 0; j < MINE; j++) {
      float power = expf(scores[j] - base);
      sum += power;
      powers()[row_in * STEP_P + int(threadIdx.x) % 4 + 4 * j] = power;
    }
    highest = top;
    total = total * shrink + sum;
#pragma unroll
    for (int j = 0; j < MINE_V; j++) {
      sums[j].x *= shrink;
      sums[j].y *= shrink;
      sums[j].z *= shrink;
      sums[j].w *= shrink;
    }
  }

  __device__ __forceinline__ void multiply_values(float4 (&sums)[OWN][MINE_V], int quad,
                                                  int lane) const {
#pragma unroll 2
    for (int key = 0; key < KEYS; key++) {
      float power[OWN];
#pragma unroll
      for (int i = 0; i < OWN; i++) power[i] = powers()[(quad + QUADS * i) * STEP_P + key];
#pragma unroll
      for (int j = 0; j < MINE_V; j++) {
        if (CHUNKS_V % 4 && lane + 4 * j >= CHUNKS_V) break;
        float4 value = pairs()[key * STEP_V + lane + 4 * j];
#pragma unroll
        for (int i = 0; i < OWN; i++) {
          sums[i][j].x += power[i] * value.x;
          sums[i][j].y += power[i] * value.y;
          sums[i][j].z += power[i] * value.z;
          sums[i][j].w += power[i] * value.w;
        }
      }
    }
  }

  __device__ __forceinline__ void write(const float4 (&sums)[MINE_V], float total, int row,
                                        int lane) const {
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    // torch gives 0 for a row that may look at nothing.
    bool nothing = (MASK != NO_MASK || CAUSAL) && total == 0.0f;
    float scale = nothing ? 0.0f : 1.0f / total;
    if (row >= head.rows) return;
#pragma unroll
    for (int j = 0; j < MINE_V; j++) {
      int column = 4 * (lane + 4 * j);
      float value[4] = {sums[j].x * scale, sums[j].y * scale, sums[j].z * scale, sums[j].w * scale};
      float* into = head.out + (long long)row * DV + column;
      if (DV % 4 == 0) {
        if (column < DV)
          *reinterpret_cast<float4*>(into) = make_float4(value[0], value[1], value[2], value[3]);
      } else {
#pragma unroll
        for (int each = 0; each < 4; each++)
          if (column + each < DV) into[each] = value[each];
      }
    }
  }
};

// One block of a grid of batch * heads * ceil(rows / ROWS).
template <int D, int DV, int OWN, int KEYS, MaskKind MASK, bool CAUSAL>
__device__ __forceinline__ void attention_float(
    void* shared, const void* q, const void* k, const void* v, const void* mask, void* out,
    long long heads, long long group, long long rows, long long keys, long long mask_batch,
    long long mask_head, long long mask_row, long long mask_key, float scale) {
  using Block = AttentionFloat<D, DV, OWN, KEYS, MASK, CAUSAL>;
  long long tile;
  Head<float, MASK> head =
      head_of_block<float, D, DV, MASK>(q, k, v, mask, out, heads, group, rows, keys, mask_batch,
                                        mask_head, mask_row, mask_key, scale, Block::ROWS, CAUSAL,
                                        tile);
  Block block{head, int(tile) * Block::ROWS, static_cast<float4*>(shared)};
  block.run();
}

}  // namespace tcexport
