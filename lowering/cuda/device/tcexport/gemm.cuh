// C = act(A B + bias) + residual on tensor cores, for half and bfloat16: sums in float, rounded to T after
// each of the three, as torch rounds the result of each op.
//
// A block computes a tile of C. What it multiplies comes to shared memory some steps of k ahead
// (`cp.async`), and from there as fragments (`ldmatrix`) to the tensor cores (`mma.sync`): the way of
// CUTLASS for compute capability 8 ("Efficient GEMM in CUDA", its documentation). Tiles of C are taken in
// an order in which neighbours share what they read. Few rows are computed by warps that share k; where a
// weight has too few columns to keep all multiprocessors busy, by blocks that share k as well, whose sums
// another kernel adds, in their order.
#pragma once

#include <tcexport/tiles.cuh>

namespace tcexport {

enum Activation { NO_ACTIVATION, RELU, SILU, GELU, GELU_TANH };

template <Activation ACTIVATION>
__device__ __forceinline__ float activated(float x) {
  if (ACTIVATION == RELU) return x < 0.0f ? 0.0f : x;  // NaN is not less
  if (ACTIVATION == SILU) return x / (1.0f + expf(-x));
  if (ACTIVATION == GELU) return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
  if (ACTIVATION == GELU_TANH)
    return 0.5f * x *
           (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
  return x;
}

// How B lies: PANELS [ceil(n / 32)][k][32], zeros beyond n; ROWS [k][n]; COLUMNS [n][k].
enum Layout { PANELS, ROWS, COLUMNS };

// A block's tile [M][N] of C and its steps of k; the warps that share it, along m, n and k; how many steps
// are held.
template <int M_, int N_, int K_, int WARPS_M_, int WARPS_N_, int WARPS_K_, int STAGES_>
struct Tile {
  static constexpr int M = M_, N = N_, K = K_, STAGES = STAGES_;
  static constexpr int WARPS_M = WARPS_M_, WARPS_N = WARPS_N_, WARPS_K = WARPS_K_;
  static constexpr int THREADS = 32 * WARPS_M * WARPS_N * WARPS_K;
  static constexpr int ROWS = M / WARPS_M / 16, COLUMNS = N / WARPS_N / 8;  // fragments of a warp
  static constexpr int LEFT = M * K / 8, RIGHT = N * K / 8;                 // of a step, in 16 bytes
  static constexpr int WIDE = N + 8;  // of a row of the finished tile
  static constexpr int BYTES_IN = 16 * STAGES * (LEFT + RIGHT), BYTES_OUT = 2 * M * WIDE;
  static constexpr int BYTES_SUMS = 4 * (WARPS_K - 1) * M * N;
  static_assert(BYTES_OUT <= BYTES_IN && BYTES_SUMS <= BYTES_IN, "the same memory serves all three");
  static_assert(K / 16 % WARPS_K == 0 && COLUMNS % 2 == 0, "whole fragments");
};

// The tile of C that a block computes: tiles of eight rows of tiles, column by column.
__device__ __forceinline__ void tile_of_block(long long at, int rows, int columns, int& row,
                                              int& column) {
  constexpr int BAND = 8;
  long long band = at / (BAND * columns);
  int first = int(band) * BAND, height = min(BAND, rows - first);
  int within = int(at - band * BAND * columns);
  row = first + within % height;
  column = within / height;
}

// PART: of k, this block takes from `first_k` to before `end_k`, and its sums go to `work` [m][n].
template <class T, class Tile, Layout LAYOUT, Activation ACTIVATION, bool BIAS, bool RESIDUAL,
          bool EVEN_K, bool EVEN_N, bool PART = false>
struct Gemm {
  static constexpr int CHUNKS_K = Tile::K / 8, CHUNKS_N = Tile::N / 8;

  const Bits *a, *b, *bias, *residual;
  Bits* c;
  long long m, n, k;
  long long row, column;  // where the tile lies
  uint4* shared;
  long long first_k, end_k;
  float* work;

  __device__ __forceinline__ bool even_k() const { return EVEN_K || k % 8 == 0; }
  __device__ __forceinline__ bool even_n() const { return EVEN_N || n % 8 == 0; }

  __device__ __forceinline__ long long begin() const { return PART ? first_k : 0; }
  __device__ __forceinline__ long long end() const { return PART ? end_k : k; }

  __device__ __forceinline__ uint4* left(int stage) const {
    return shared + stage * (Tile::LEFT + Tile::RIGHT);
  }
  __device__ __forceinline__ uint4* right(int stage) const { return left(stage) + Tile::LEFT; }

  __device__ __forceinline__ void fetch_step(int step, int stage) const {
    long long from = begin() + (long long)step * Tile::K;
    int depth = int(end() - from < Tile::K ? end() - from : Tile::K);  // 0 or less beyond the end
    int rows = int(m - row < Tile::M ? m - row : Tile::M);
    int columns = int(n - column < Tile::N ? n - column : Tile::N);
    if (depth > 0) {
      fetch_tile<Tile::M, CHUNKS_K, Tile::THREADS>(left(stage), a + row * k + from, k, rows, depth,
                                                   even_k());
      if (LAYOUT == COLUMNS)
        fetch_tile<Tile::N, CHUNKS_K, Tile::THREADS>(right(stage), b + column * k + from, k,
                                                     columns, depth, even_k());
      if (LAYOUT == ROWS)
        fetch_tile<Tile::K, CHUNKS_N, Tile::THREADS>(right(stage), b + from * n + column, n, depth,
                                                     columns, even_n());
      if (LAYOUT == PANELS) fetch_panels(right(stage), from, depth, columns);
    }
    end_group();
  }

  __device__ __forceinline__ void fetch_panels(uint4* into, long long from, int depth,
                                               int columns) const {
    static_assert(Tile::THREADS % CHUNKS_N == 0 && Tile::K * CHUNKS_N % Tile::THREADS == 0,
                  "threads take whole rows");
#pragma unroll
    for (int first = 0; first < Tile::K * CHUNKS_N; first += Tile::THREADS) {
      int step = int(threadIdx.x) / CHUNKS_N + first / CHUNKS_N;
      int chunk = int(threadIdx.x) % CHUNKS_N;
      bool there = step < depth && 32 * (chunk / 4) < columns;
      const Bits* source = b + ((column / 32 + chunk / 4) * k + from) * 32 + chunk % 4 * 8;
      fetch16(into + place<CHUNKS_N>(step, chunk), source + step * 32, there ? 16 : 0);
    }
  }

  __device__ __forceinline__ void run() {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int share = warp / (Tile::WARPS_M * Tile::WARPS_N);  // of k
    int place_in = warp % (Tile::WARPS_M * Tile::WARPS_N);
    int first_row = place_in / Tile::WARPS_N * (Tile::ROWS * 16);
    int first_column = place_in % Tile::WARPS_N * (Tile::COLUMNS * 8);
    float sums[Tile::ROWS][Tile::COLUMNS][4];
#pragma unroll
    for (int i = 0; i < Tile::ROWS; i++)
#pragma unroll
      for (int j = 0; j < Tile::COLUMNS; j++)
#pragma unroll
        for (int each = 0; each < 4; each++) sums[i][j][each] = 0.0f;

    int steps = int((end() - begin() + Tile::K - 1) / Tile::K);
#pragma unroll
    for (int step = 0; step < Tile::STAGES - 1; step++) fetch_step(step, step);
    int stage = 0;
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
      arrived<Tile::STAGES - 2>();
      __syncthreads();  // for all threads it is there, and none reads the stage that comes next
      fetch_step(step + Tile::STAGES - 1, stage == 0 ? Tile::STAGES - 1 : stage - 1);
#pragma unroll
      for (int part = 0; part < Tile::K / 16 / Tile::WARPS_K; part++)
        multiply_part(sums, stage, part * Tile::WARPS_K + share, first_row, first_column);
      stage = stage == Tile::STAGES - 1 ? 0 : stage + 1;
    }
    arrived<0>();
    __syncthreads();
    if (Tile::WARPS_K > 1) add_shares(sums, share, place_in * 32 + lane);
    if (PART) {
      if (share == 0) keep(sums, first_row, first_column);
      return;
    }
    if (share == 0) finish(sums, first_row, first_column);
    __syncthreads();
    write();
  }

  __device__ __forceinline__ void multiply_part(float (&sums)[Tile::ROWS][Tile::COLUMNS][4],
                                                int stage, int part, int first_row,
                                                int first_column) const {
    Pair rows[Tile::ROWS][4];
#pragma unroll
    for (int i = 0; i < Tile::ROWS; i++)
      load_left<CHUNKS_K>(rows[i], left(stage), first_row + 16 * i, part);
#pragma unroll
    for (int j = 0; j < Tile::COLUMNS; j += 2) {
      Pair columns[4];
      if (LAYOUT == COLUMNS)
        load_right<CHUNKS_K>(columns, right(stage), first_column + 8 * j, part);
      else
        load_right_transposed<CHUNKS_N>(columns, right(stage), first_column + 8 * j, part);
#pragma unroll
      for (int i = 0; i < Tile::ROWS; i++) {
        multiply<T>(sums[i][j], rows[i], columns[0], columns[1]);
        multiply<T>(sums[i][j + 1], rows[i], columns[2], columns[3]);
      }
    }
  }

  // The sums of the warps that share a tile, in the first of them.
  __device__ __forceinline__ void add_shares(float (&sums)[Tile::ROWS][Tile::COLUMNS][4], int share,
                                             int thread) const {
    constexpr int THREADS = Tile::THREADS / Tile::WARPS_K;
    constexpr int EACH = Tile::ROWS * Tile::COLUMNS * 4;
    float* kept = reinterpret_cast<float*>(shared);
    if (share > 0) {
#pragma unroll
      for (int at = 0; at < EACH; at++)
        kept[((share - 1) * EACH + at) * THREADS + thread] = (&sums[0][0][0])[at];
    }
    __syncthreads();
    if (share == 0) {
#pragma unroll
      for (int other = 0; other < Tile::WARPS_K - 1; other++)
#pragma unroll
        for (int at = 0; at < EACH; at++)
          (&sums[0][0][0])[at] += kept[(other * EACH + at) * THREADS + thread];
    }
    __syncthreads();
  }

  // The sums of a part, as they are.
  __device__ __forceinline__ void keep(const float (&sums)[Tile::ROWS][Tile::COLUMNS][4],
                                       int first_row, int first_column) const {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < Tile::ROWS; i++)
#pragma unroll
      for (int j = 0; j < Tile::COLUMNS; j++)
#pragma unroll
        for (int each = 0; each < 4; each++) {
          long long to_row = row + first_row + 16 * i + each / 2 * 8 + lane / 4;
          long long to_column = column + first_column + 8 * j + lane % 4 * 2 + each % 2;
          if (to_row < m && to_column < n) work[to_row * n + to_column] = sums[i][j][each];
        }
  }

  // Bias; the tile as T to shared memory.
  __device__ __forceinline__ void finish(const float (&sums)[Tile::ROWS][Tile::COLUMNS][4],
                                         int first_row, int first_column) const {
    Bits* tile = reinterpret_cast<Bits*>(shared);
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < Tile::COLUMNS; j++) {
      int at = first_column + 8 * j + lane % 4 * 2;
      float offset[2] = {0.0f, 0.0f};
      if (BIAS) {
#pragma unroll
        for (int each = 0; each < 2; each++)
          if (column + at + each < n) offset[each] = widen<T>(bias[column + at + each]);
      }
#pragma unroll
      for (int i = 0; i < Tile::ROWS; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
          float value[2];
#pragma unroll
          for (int each = 0; each < 2; each++) {
            value[each] = sums[i][j][2 * half + each];
            if (BIAS) value[each] += offset[each];
          }
          int row_in = first_row + 16 * i + 8 * half + lane / 4;
          *reinterpret_cast<Pair*>(tile + row_in * Tile::WIDE + at) =
              narrow2<T>(value[0], value[1]);
        }
      }
    }
  }

  // Activation and residual; the tile to C.
  __device__ __forceinline__ void write() const {
    const Bits* tile = reinterpret_cast<const Bits*>(shared);
#pragma unroll 2
    for (int at = threadIdx.x; at < Tile::M * CHUNKS_N; at += Tile::THREADS) {
      int row_in = at / CHUNKS_N, first = at % CHUNKS_N * 8;
      long long where = (row + row_in) * n + column + first;
      if (row + row_in >= m || column + first >= n) continue;
      const Bits* made = tile + row_in * Tile::WIDE + first;
      if (even_n()) {
        uint4 value = *reinterpret_cast<const uint4*>(made), more = make_uint4(0, 0, 0, 0);
        if (RESIDUAL) more = *reinterpret_cast<const uint4*>(residual + where);
        *reinterpret_cast<uint4*>(c + where) =
            make_uint4(finished2(value.x, more.x), finished2(value.y, more.y),
                       finished2(value.z, more.z), finished2(value.w, more.w));
      } else {
#pragma unroll 1
        for (int each = 0; each < 8 && column + first + each < n; each++)
          c[where + each] = finished(made[each], RESIDUAL ? residual[where + each] : Bits(0));
      }
    }
  }

  static __device__ __forceinline__ Bits finished(Bits value, Bits more) {
    if (ACTIVATION != NO_ACTIVATION) value = narrow<T>(activated<ACTIVATION>(widen<T>(value)));
    return RESIDUAL ? narrow<T>(widen<T>(value) + widen<T>(more)) : value;
  }
  static __device__ __forceinline__ Pair finished2(Pair value, Pair more) {
    return finished(Bits(value), Bits(more)) |
           Pair(finished(Bits(value >> 16), Bits(more >> 16))) << 16;
  }
};

// One block of a grid of batch * ceil(m / Tile::M) * ceil(n / Tile::N); an operand whose matrix is the
// same for all of the batch has a step of 0, another one of its size. `bias` and `residual` are read where
// they are asked for.
template <class T, class Tile, Layout LAYOUT, Activation ACTIVATION, bool BIAS, bool RESIDUAL,
          bool EVEN_K, bool EVEN_N>
__device__ __forceinline__ void gemm(void* shared, const void* a, const void* b, const void* bias,
                                     const void* residual, void* c, long long a_step,
                                     long long b_step, long long m, long long n, long long k) {
  int rows = int((m + Tile::M - 1) / Tile::M), columns = int((n + Tile::N - 1) / Tile::N);
  long long tiles = (long long)rows * columns, item = blockIdx.x / tiles;
  int row, column;
  tile_of_block(blockIdx.x - item * tiles, rows, columns, row, column);
  Gemm<T, Tile, LAYOUT, ACTIVATION, BIAS, RESIDUAL, EVEN_K, EVEN_N> block{
      static_cast<const Bits*>(a) + item * a_step,
      static_cast<const Bits*>(b) + item * b_step,
      static_cast<const Bits*>(bias),
      static_cast<const Bits*>(residual) + (RESIDUAL ? item * m * n : 0),
      static_cast<Bits*>(c) + item * m * n,
      m,
      n,
      k,
      (long long)row * Tile::M,
      (long long)column * Tile::N,
      static_cast<uint4*>(shared),
      0,
      k,
      nullptr};
  block.run();
}

// One block of a grid of parts * ceil(m / Tile::M) * ceil(n / Tile::N), for `work` [parts][m][n]: each part
// has as many steps of k, the last ones perhaps fewer.
template <class T, class Tile, Layout LAYOUT, bool EVEN_K, bool EVEN_N>
__device__ __forceinline__ void gemm_part(void* shared, const void* a, const void* b, void* work,
                                          long long m, long long n, long long k, long long parts) {
  int rows = int((m + Tile::M - 1) / Tile::M), columns = int((n + Tile::N - 1) / Tile::N);
  long long tiles = (long long)rows * columns, part = blockIdx.x / tiles;
  int row, column;
  tile_of_block(blockIdx.x - part * tiles, rows, columns, row, column);
  long long steps = (k + Tile::K - 1) / Tile::K, each = (steps + parts - 1) / parts * Tile::K;
  long long first = part * each < k ? part * each : k;
  Gemm<T, Tile, LAYOUT, NO_ACTIVATION, false, false, EVEN_K, EVEN_N, true> block{
      static_cast<const Bits*>(a),
      static_cast<const Bits*>(b),
      nullptr,
      nullptr,
      nullptr,
      m,
      n,
      k,
      (long long)row * Tile::M,
      (long long)column * Tile::N,
      static_cast<uint4*>(shared),
      first,
      first + each < k ? first + each : k,
      static_cast<float*>(work) + part * m * n};
  block.run();
}

// What the parts come to, a thread for each element of C; rounded as `gemm` rounds.
template <class T, Activation ACTIVATION, bool BIAS, bool RESIDUAL>
__device__ __forceinline__ void gemm_sum(void*, const void* work, const void* bias, const void* residual,
                                         void* c, long long m, long long n, long long parts) {
  long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x, count = m * n;
  if (at >= count) return;
  float sum = 0.0f;
#pragma unroll 4
  for (long long part = 0; part < parts; part++) sum += static_cast<const float*>(work)[part * count + at];
  if (BIAS) sum += widen<T>(static_cast<const Bits*>(bias)[at % n]);
  Bits made = narrow<T>(sum);
  if (ACTIVATION != NO_ACTIVATION) made = narrow<T>(activated<ACTIVATION>(widen<T>(made)));
  if (RESIDUAL) made = narrow<T>(widen<T>(made) + widen<T>(static_cast<const Bits*>(residual)[at]));
  static_cast<Bits*>(c)[at] = made;
}

}  // namespace tcexport
