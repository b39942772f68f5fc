// Tiles of matrices in shared memory, as rows of chunks of 16 bytes that lie where `place` says.
#pragma once

#include <tcexport/warp.cuh>

namespace tcexport {

// Eight elements to shared memory, of which the first `valid` are read, and the rest are zeros. `even`
// says that `from` is a multiple of 16 bytes; else they are copied one by one, at once.
__device__ __forceinline__ void fetch(uint4* into, const Bits* from, int valid, bool even) {
  if (even) {
    fetch16(into, from, 2 * valid);
    return;
  }
  Pair parts[4];
#pragma unroll
  for (int each = 0; each < 4; each++) {
    Pair low = 2 * each < valid ? from[2 * each] : Bits(0);
    Pair high = 2 * each + 1 < valid ? from[2 * each + 1] : Bits(0);
    parts[each] = low | high << 16;
  }
  *into = make_uint4(parts[0], parts[1], parts[2], parts[3]);
}

// A tile [ROWS][8 * CHUNKS] of a matrix whose rows are `step` elements apart, of which there are `rows`
// and `columns` from here on; beyond them are zeros.
template <int ROWS, int CHUNKS, int THREADS>
__device__ __forceinline__ void fetch_tile(uint4* into, const Bits* from, long long step, int rows,
                                           int columns, bool even) {
#pragma unroll
  for (int first = 0; first < ROWS * CHUNKS; first += THREADS) {
    int at = first + int(threadIdx.x), row = at / CHUNKS, chunk = at % CHUNKS;
    if (THREADS % CHUNKS == 0) {  // said so that addresses differ by constants
      row = int(threadIdx.x) / CHUNKS + first / CHUNKS;
      chunk = int(threadIdx.x) % CHUNKS;
    }
    if (ROWS * CHUNKS % THREADS && at >= ROWS * CHUNKS) break;
    int valid = row < rows ? min(8, max(0, columns - 8 * chunk)) : 0;
    fetch(into + place<CHUNKS>(row, chunk), from + row * step + 8 * chunk, valid, even);
  }
}

// A fragment of A: rows `row`… of a tile, and its elements 16 * `step`….
template <int CHUNKS>
__device__ __forceinline__ void load_left(Pair (&into)[4], const uint4* tile, int row, int step) {
  int lane = threadIdx.x % 32;
  load4(into, tile + place<CHUNKS>(row + lane % 16, 2 * step + lane / 16));
}

// Two fragments of B, for columns `column`… and the eight behind: of a tile whose rows are B's columns.
template <int CHUNKS>
__device__ __forceinline__ void load_right(Pair (&into)[4], const uint4* tile, int column,
                                           int step) {
  int lane = threadIdx.x % 32;
  int row = column + lane / 16 * 8 + lane % 8;
  load4(into, tile + place<CHUNKS>(row, 2 * step + lane / 8 % 2));
}

// The same of a tile whose rows are B's rows.
template <int CHUNKS>
__device__ __forceinline__ void load_right_transposed(Pair (&into)[4], const uint4* tile,
                                                      int column, int step) {
  int lane = threadIdx.x % 32;
  load4_transposed(into, tile + place<CHUNKS>(16 * step + lane % 16, column / 8 + lane / 16));
}

}  // namespace tcexport
