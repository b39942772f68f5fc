// softmax(Q Kᵀ scale + mask) V on tensor cores, for half and bfloat16, without a matrix of scores in memory.
//
// A block takes some rows of Q of one head and passes over the keys, some at a time: it keeps for each row
// the highest score, the sum of the powers and the weighted sum of V, and rescales them when a higher one
// comes (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao,
// "FlashAttention-2", 2023). Scores and sums are float; the powers are rounded to T for the second product.
// While the one product runs, the operand of the other comes to shared memory.
#pragma once

#include <tcexport/heads.cuh>
#include <tcexport/tiles.cuh>

namespace tcexport {

// D, DV: sizes of a head. PARTS: of 16 rows that a warp takes. KEYS: that are taken at a time.
template <class T, int D, int DV, int PARTS, int KEYS, MaskKind MASK, bool CAUSAL>
struct Attention {
  static constexpr int WARPS = 4, THREADS = 32 * WARPS, ROWS = 16 * WARPS * PARTS;
  static constexpr int STEPS = (D + 15) / 16, CHUNKS = 2 * STEPS;        // of a row of Q and K
  static constexpr int STEPS_V = (DV + 15) / 16, CHUNKS_V = 2 * STEPS_V;  // of a row of V
  static constexpr int TILES = KEYS / 8, TILES_V = 2 * STEPS_V;           // fragments of C
  static_assert(KEYS % 16 == 0, "whole fragments");

  Head<Bits, MASK> head;
  int first_row;
  uint4* shared;

  __device__ __forceinline__ uint4* keys_at() const { return shared + ROWS * CHUNKS; }
  __device__ __forceinline__ uint4* values_at() const { return keys_at() + KEYS * CHUNKS; }

  __device__ __forceinline__ void fetch_keys(int first) const {
    fetch_tile<KEYS, CHUNKS, THREADS>(keys_at(), head.k + (long long)first * D, D,
                                      head.keys - first, D, D % 8 == 0);
    end_group();
  }
  __device__ __forceinline__ void fetch_values(int first) const {
    fetch_tile<KEYS, CHUNKS_V, THREADS>(values_at(), head.v + (long long)first * DV, DV,
                                        head.keys - first, DV, DV % 8 == 0);
    end_group();
  }

  // The scores of a row as the softmax takes them. `first` is the key of the first, which the lane's own
  // are 8 apart from.
  template <int HALF>
  __device__ __forceinline__ void mask_row(float (&scores)[TILES][4], int row, int first) const {
    MaskRow<Bits, MASK> seen(head, row, CAUSAL);
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
      for (int each = 0; each < 2; each++) {
        float& score = scores[j][2 * HALF + each];
        int key = first + 8 * j + each;
        bool shown = seen.shows(key);
        score = score * head.scale;
        if (MASK == FLOAT_MASK && shown) score += widen<T>(seen.added(key));
        if (!shown) score = -INFINITY;
      }
  }

  __device__ __forceinline__ void run() {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int own = warp * 16 * PARTS;  // the first row of the warp's, in the tile
    float sums[PARTS][TILES_V][4], highest[PARTS][2], total[PARTS][2];
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
#pragma unroll
      for (int j = 0; j < TILES_V; j++)
#pragma unroll
        for (int each = 0; each < 4; each++) sums[p][j][each] = 0.0f;
      highest[p][0] = highest[p][1] = -INFINITY;
      total[p][0] = total[p][1] = 0.0f;
    }
    int end = CAUSAL ? min(head.keys, first_row + ROWS) : head.keys;
    fetch_tile<ROWS, CHUNKS, THREADS>(shared, head.q + (long long)first_row * D, D,
                                      head.rows - first_row, D, D % 8 == 0);
    fetch_keys(0);
#pragma unroll 1
    for (int first = 0; first < end; first += KEYS) {
      fetch_values(first);
      arrived<1>();
      __syncthreads();
      float scores[PARTS][TILES][4];
      multiply_keys(scores, own);
      int row = first_row + own + lane / 4, key = first + lane % 4 * 2;
#pragma unroll
      for (int p = 0; p < PARTS; p++) {
        mask_row<0>(scores[p], row + 16 * p, key);
        mask_row<1>(scores[p], row + 16 * p + 8, key);
        weigh<0>(scores[p], highest[p], total[p], sums[p]);
        weigh<1>(scores[p], highest[p], total[p], sums[p]);
      }
      arrived<0>();
      __syncthreads();
      if (first + KEYS < end) fetch_keys(first + KEYS);
      multiply_values(scores, sums);
      __syncthreads();
    }
#pragma unroll
    for (int p = 0; p < PARTS; p++) write(sums[p], total[p], first_row + own + 16 * p);
  }

  __device__ __forceinline__ void multiply_keys(float (&scores)[PARTS][TILES][4], int own) const {
#pragma unroll
    for (int p = 0; p < PARTS; p++)
#pragma unroll
      for (int j = 0; j < TILES; j++)
#pragma unroll
        for (int each = 0; each < 4; each++) scores[p][j][each] = 0.0f;
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
      Pair rows[PARTS][4];
#pragma unroll
      for (int p = 0; p < PARTS; p++) load_left<CHUNKS>(rows[p], shared, own + 16 * p, step);
#pragma unroll
      for (int j = 0; j < TILES; j += 2) {
        Pair columns[4];
        load_right<CHUNKS>(columns, keys_at(), 8 * j, step);
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
          multiply<T>(scores[p][j], rows[p], columns[0], columns[1]);
          multiply<T>(scores[p][j + 1], rows[p], columns[2], columns[3]);
        }
      }
    }
  }

  // Scores of a row to powers; what was summed before is rescaled.
  template <int HALF>
  __device__ __forceinline__ void weigh(float (&scores)[TILES][4], float (&highest)[2],
                                        float (&total)[2], float (&sums)[TILES_V][4]) const {
    constexpr float LOG2E = 1.4426950408889634f;
    float top = highest[HALF];
#pragma unroll
    for (int j = 0; j < TILES; j++)
      top = fmaxf(top, fmaxf(scores[j][2 * HALF], scores[j][2 * HALF + 1]));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    float base = top == -INFINITY ? 0.0f : top;  // nothing is seen so far
    float shrink = exp2f((highest[HALF] - base) * LOG2E), sum = 0.0f;
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
      for (int each = 0; each < 2; each++) {
        float& score = scores[j][2 * HALF + each];
        score = exp2f((score - base) * LOG2E);
        sum += score;
      }
    highest[HALF] = top;
    total[HALF] = total[HALF] * shrink + sum;
#pragma unroll
    for (int j = 0; j < TILES_V; j++) {
      sums[j][2 * HALF] *= shrink;
      sums[j][2 * HALF + 1] *= shrink;
    }
  }

  __device__ __forceinline__ void multiply_values(const float (&powers)[PARTS][TILES][4],
                                                  float (&sums)[PARTS][TILES_V][4]) const {
#pragma unroll
    for (int step = 0; step < KEYS / 16; step++) {
      Pair rows[PARTS][4];
#pragma unroll
      for (int p = 0; p < PARTS; p++)
#pragma unroll
        for (int each = 0; each < 4; each++) {
          const float(&from)[4] = powers[p][2 * step + each / 2];
          rows[p][each] = narrow2<T>(from[each % 2 * 2], from[each % 2 * 2 + 1]);
        }
#pragma unroll
      for (int j = 0; j < TILES_V; j += 2) {
        Pair columns[4];
        load_right_transposed<CHUNKS_V>(columns, values_at(), 8 * j, step);
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
          multiply<T>(sums[p][j], rows[p], columns[0], columns[1]);
          multiply<T>(sums[p][j + 1], rows[p], columns[2], columns[3]);
        }
      }
    }
  }

  __device__ __forceinline__ void write(const float (&sums)[TILES_V][4], const float (&total)[2],
                                        int first) const {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float sum = total[half];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      // torch gives 0 for a row that may look at nothing.
      float scale = (MASK != NO_MASK || CAUSAL) && sum == 0.0f ? 0.0f : 1.0f / sum;
      int row = first + 8 * half + lane / 4;
      if (row >= head.rows) continue;
#pragma unroll
      for (int j = 0; j < TILES_V; j++) {
        int column = 8 * j + lane % 4 * 2;
        float low = sums[j][2 * half] * scale, high = sums[j][2 * half + 1] * scale;
        Bits* into = head.out + (long long)row * DV + column;
        if (DV % 2 == 0) {
          if (column < DV) *reinterpret_cast<Pair*>(into) = narrow2<T>(low, high);
        } else {
          if (column < DV) into[0] = narrow<T>(low);
          if (column + 1 < DV) into[1] = narrow<T>(high);
        }
      }
    }
  }
};

// One block of a grid of batch * heads * ceil(rows / ROWS).
template <class T, int D, int DV, int PARTS, int KEYS, MaskKind MASK, bool CAUSAL>
__device__ __forceinline__ void attention(void* shared, const void* q, const void* k, const void* v,
                                          const void* mask, void* out, long long heads,
                                          long long group, long long rows, long long keys,
                                          long long mask_batch, long long mask_head,
                                          long long mask_row, long long mask_key, float scale) {
  using Block = Attention<T, D, DV, PARTS, KEYS, MASK, CAUSAL>;
  long long tile;
  Head<Bits, MASK> head =
      head_of_block<Bits, D, DV, MASK>(q, k, v, mask, out, heads, group, rows, keys, mask_batch,
                                       mask_head, mask_row, mask_key, scale, Block::ROWS, CAUSAL,
                                       tile);
  Block block{head, int(tile) * Block::ROWS, static_cast<uint4*>(shared)};
  block.run();
}

}  // namespace tcexport
