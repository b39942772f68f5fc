// Sorting along the middle of [outer, length, inner]: stable, NaN above all numbers.
//
// What is sorted are the places of elements, by the bits of `ordered` and then by the place itself, so
// that no two are equal. `sort_tiles` sorts tiles in shared memory (Batcher's bitonic network); each
// `sort_merge` merges pairs of runs to runs of twice the length, from one half of `order` [2][lines][length]
// to the other, each thread the outputs that a search along the diagonal gives it (Green, McColl and
// Bader, "GPU Merge Path", 2012); `sort_finish` puts elements and places where they belong.
#pragma once

#include <tcexport/numbers.cuh>

namespace tcexport {

constexpr int SORT_THREADS = 256, SORT_TILE = 1024, SORT_OWN = 8;

template <class T>
using Key = decltype(ordered(typename Element<T>::Wide()));

// A line of the source; keys in the order asked for.
template <class T, bool DESCENDING>
struct Line {
  const T* from;
  long long inner;

  __device__ __forceinline__ Line(const void* x, long long line, long long length, long long inner)
      : from(static_cast<const T*>(x) + line / inner * length * inner + line % inner), inner(inner) {}
  __device__ __forceinline__ Key<T> key(long long place) const {
    Key<T> found = ordered(Element<T>::load(from + place * inner));
    return DESCENDING ? ~found : found;
  }
};

template <class K>
__device__ __forceinline__ bool precedes(K a, int place_a, K b, int place_b) {
  return a < b || (a == b && place_a < place_b);
}

// Sort COUNT pairs of keys and places, a power of two, by all threads of a block.
template <int COUNT, class K>
__device__ __forceinline__ void sort_shared(K* keys, int* places) {
#pragma unroll 1
  for (int size = 2; size <= COUNT; size *= 2) {
#pragma unroll 1
    for (int step = size / 2; step > 0; step /= 2) {
      for (int pair = threadIdx.x; pair < COUNT / 2; pair += SORT_THREADS) {
        int low = pair / step * step * 2 + pair % step, high = low + step;
        bool up = (low & size) == 0;
        K a = keys[low], b = keys[high];
        int place_a = places[low], place_b = places[high];
        if (precedes(b, place_b, a, place_a) == up) {
          keys[low] = b, keys[high] = a;
          places[low] = place_b, places[high] = place_a;
        }
      }
      __syncthreads();
    }
  }
}

// What is no element comes behind all elements: its place is larger.
template <class T, bool DESCENDING>
__device__ __forceinline__ void load_tile(const Line<T, DESCENDING>& line, Key<T>* keys, int* places, int count,
                                          long long first, long long length) {
  for (int at = threadIdx.x; at < count; at += SORT_THREADS) {
    long long place = first + at;
    keys[at] = place < length ? line.key(place) : ~Key<T>(0);
    places[at] = int(place);
  }
}

template <class T, bool DESCENDING>
__device__ __forceinline__ void sort_tiles(void* memory, const void* x, int* order, long long tiles,
                                           long long length, long long inner) {
  auto* keys = static_cast<Key<T>*>(memory);
  int* places = reinterpret_cast<int*>(keys + SORT_TILE);
  long long number = blockIdx.x / tiles, first = blockIdx.x % tiles * SORT_TILE;
  load_tile(Line<T, DESCENDING>(x, number, length, inner), keys, places, SORT_TILE, first, length);
  __syncthreads();
  sort_shared<SORT_TILE>(keys, places);
  for (int at = threadIdx.x; at < SORT_TILE; at += SORT_THREADS)
    if (first + at < length) order[number * length + first + at] = places[at];
}

template <class T, bool DESCENDING>
__device__ __forceinline__ void sort_merge(void*, const void* x, int* order, long long lines,
                                           long long length, long long inner, long long run, long long side) {
  long long chunks = (length + SORT_OWN - 1) / SORT_OWN;
  long long thread = (long long)blockIdx.x * SORT_THREADS + threadIdx.x;
  if (thread >= lines * chunks) return;
  long long number = thread / chunks, out = thread % chunks * SORT_OWN;
  Line<T, DESCENDING> line(x, number, length, inner);
  const int* from = order + (side * lines + number) * length;
  int* to = order + ((1 - side) * lines + number) * length;
  // The runs begin at multiples of SORT_OWN: a thread has outputs of one pair.
  long long start = out / (2 * run) * (2 * run);
  long long middle = start + run < length ? start + run : length;
  long long end = start + 2 * run < length ? start + 2 * run : length;
  long long diagonal = out - start, size_a = middle - start, size_b = end - middle;
  long long low = diagonal > size_b ? diagonal - size_b : 0, high = diagonal < size_a ? diagonal : size_a;
  while (low < high) {  // how many of the first `diagonal` outputs are of the left run
    long long mid = (low + high) / 2;
    int a = from[start + mid], b = from[middle + diagonal - mid - 1];
    if (precedes(line.key(a), a, line.key(b), b))
      low = mid + 1;
    else
      high = mid;
  }
  long long a = start + low, b = middle + diagonal - low;
#pragma unroll 1
  for (long long at = out; at < out + SORT_OWN && at < end; at++) {
    bool left = a < middle;
    if (left && b < end) {
      int one = from[a], other = from[b];
      left = precedes(line.key(one), one, line.key(other), other);
    }
    to[at] = left ? from[a++] : from[b++];
  }
}

template <class T>
__device__ __forceinline__ void sort_finish(void*, const void* x, const int* order, void* values,
                                            void* places, long long lines, long long length, long long inner) {
  int side = 0;
  for (long long run = SORT_TILE; run < length; run *= 2) side ^= 1;
  long long at = (long long)blockIdx.x * SORT_THREADS + threadIdx.x;
  if (at >= lines * length) return;
  long long line = at / length, p = at % length;
  long long start = line / inner * length * inner + line % inner;
  int place = order[(side * lines + line) * length + p];
  static_cast<T*>(values)[start + p * inner] = static_cast<const T*>(x)[start + place * inner];
  static_cast<long long*>(places)[start + p * inner] = place;
}

// The first `count` of each line in order, KEPT at most: a block takes a line, and holds the best of
// what it has seen; a tile without anything better is passed over.
template <class T, int KEPT, bool DESCENDING>
__device__ __forceinline__ void sort_first(void* memory, const void* x, void* values, void* places,
                                           long long length, long long inner, long long count) {
  auto* keys = static_cast<Key<T>*>(memory);  // the best, and behind them a tile
  int* at = reinterpret_cast<int*>(keys + 2 * KEPT);
  long long number = blockIdx.x;
  Line<T, DESCENDING> line(x, number, length, inner);
  load_tile(line, keys, at, 2 * KEPT, 0, length);
  __syncthreads();
  sort_shared<2 * KEPT>(keys, at);
#pragma unroll 1
  for (long long first = 2 * KEPT; first < length; first += KEPT) {
    load_tile(line, keys + KEPT, at + KEPT, KEPT, first, length);
    __syncthreads();
    int better = 0;
    for (int each = threadIdx.x; each < KEPT; each += SORT_THREADS)
      better |= precedes(keys[KEPT + each], at[KEPT + each], keys[count - 1], at[count - 1]);
    if (__syncthreads_or(better)) sort_shared<2 * KEPT>(keys, at);
  }
  long long out = number / inner * count * inner + number % inner;
  for (int each = threadIdx.x; each < count; each += SORT_THREADS) {
    long long to = out + each * inner;
    static_cast<T*>(values)[to] = line.from[at[each] * inner];
    static_cast<long long*>(places)[to] = at[each];
  }
}

}  // namespace tcexport
