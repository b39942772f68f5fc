// What lowering/cuda/device/tcexport/warp.cuh has for a device, in its reference meaning: fragments are put
// together to whole matrices, and copies in the background are made when they are waited for.
#pragma once

#include <vector>

#include <tcexport/halves.cuh>

namespace tcexport {

struct StandinCopy {
  void* to;
  const void* from;
  int valid;
};
struct StandinCopies {
  std::vector<std::vector<StandinCopy>> groups;  // that are under way, the oldest first
  std::vector<StandinCopy> open;
};
struct StandinWarp {  // two of each: a lane may be one exchange ahead
  float a[2][16][16], b[2][8][16];
  const Bits* rows[2][32];
};
static StandinCopies standin_copies[1024];
static StandinWarp standin_warps[32];
static unsigned char standin_turns[1024];

static inline int standin_thread() {
  return int((threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x);
}
static inline int standin_turn() { return (standin_turns[standin_thread()] ^= 1) & 1; }

static inline void standin_aligned(const void* pointer) {
  if (reinterpret_cast<uintptr_t>(pointer) % 16) __builtin_trap();
}

static inline void fetch16(void* shared, const void* global, int valid) {
  standin_aligned(shared);
  standin_aligned(global);
  standin_copies[standin_thread()].open.push_back({shared, global, valid});
}

static inline void end_group() {
  StandinCopies& own = standin_copies[standin_thread()];
  own.groups.push_back(std::move(own.open));
  own.open.clear();
}

template <int N>
static inline void arrived() {
  StandinCopies& own = standin_copies[standin_thread()];
  while (own.groups.size() > size_t(N)) {
    for (const StandinCopy& copy : own.groups.front()) {
      unsigned char value[16] = {};
      memcpy(value, copy.from, copy.valid);
      memcpy(copy.to, value, sizeof value);
    }
    own.groups.erase(own.groups.begin());
  }
}

template <bool TRANSPOSED>
static inline void standin_load4(Pair (&into)[4], const void* row) {
  standin_aligned(row);
  StandinWarp& warp = standin_warps[standin_thread() / 32];
  int turn = standin_turn(), lane = standin->lane, g = lane / 4, t = lane % 4;
  warp.rows[turn][lane] = static_cast<const Bits*>(row);
  __syncwarp();
  for (int each = 0; each < 4; each++) {
    const Bits** rows = warp.rows[turn] + 8 * each;
    Bits low = TRANSPOSED ? rows[2 * t][g] : rows[g][2 * t];
    Bits high = TRANSPOSED ? rows[2 * t + 1][g] : rows[g][2 * t + 1];
    into[each] = low | Pair(high) << 16;
  }
}
static inline void load4(Pair (&into)[4], const void* row) { standin_load4<false>(into, row); }
static inline void load4_transposed(Pair (&into)[4], const void* row) {
  standin_load4<true>(into, row);
}

template <class T>
static inline void multiply(float (&sum)[4], const Pair (&a)[4], Pair b0, Pair b1) {
  StandinWarp& warp = standin_warps[standin_thread() / 32];
  int turn = standin_turn(), lane = standin->lane, g = lane / 4, t = lane % 4;
  auto put = [](float* at, Pair pair) {
    at[0] = widen<T>(Bits(pair));
    at[1] = widen<T>(Bits(pair >> 16));
  };
  put(&warp.a[turn][g][2 * t], a[0]);
  put(&warp.a[turn][g + 8][2 * t], a[1]);
  put(&warp.a[turn][g][2 * t + 8], a[2]);
  put(&warp.a[turn][g + 8][2 * t + 8], a[3]);
  put(&warp.b[turn][g][2 * t], b0);
  put(&warp.b[turn][g][2 * t + 8], b1);
  __syncwarp();
  for (int each = 0; each < 4; each++) {
    const float *row = warp.a[turn][g + each / 2 * 8], *column = warp.b[turn][2 * t + each % 2];
    float total = 0;
    for (int k = 0; k < 16; k++) total += row[k] * column[k];
    sum[each] += total;
  }
}

}  // namespace tcexport
