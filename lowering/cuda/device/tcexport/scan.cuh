// Running sums, products and extremes along the middle of [outer, length, inner].
//
// `scan`: a block takes a line. Each thread combines some neighbours, the block the threads' results
// (Hillis and Steele, "Data Parallel Algorithms", 1986), and what a tile comes to is carried to the next.
// `scan_columns`: a thread takes a line; for lines side by side. The order of an operation is the same at
// every run, and none is assumed to commute.
#pragma once

#include <tcexport/numbers.cuh>

namespace tcexport {

// Integers wrap around, as eager's do.
template <class W>
__device__ __forceinline__ W plus(W a, W b) { return W((unsigned long long)a + (unsigned long long)b); }
__device__ __forceinline__ float plus(float a, float b) { return a + b; }
__device__ __forceinline__ double plus(double a, double b) { return a + b; }
template <class W>
__device__ __forceinline__ W times(W a, W b) { return W((unsigned long long)a * (unsigned long long)b); }
__device__ __forceinline__ float times(float a, float b) { return a * b; }
__device__ __forceinline__ double times(double a, double b) { return a * b; }

// A sum of float32 is kept in double, as eager's is.
template <class T>
struct Total { using Type = typename Element<T>::Wide; };
template <>
struct Total<float> { using Type = double; };

template <class T>
struct Sum {
  using State = typename Total<T>::Type;
  static __device__ __forceinline__ State none() { return State(0); }
  static __device__ __forceinline__ State of(typename Element<T>::Wide value, long long) { return State(value); }
  static __device__ __forceinline__ State both(State a, State b) { return plus(a, b); }
  static __device__ __forceinline__ void put(State state, T* y, long long*) {
    Element<T>::store(y, typename Element<T>::Wide(state));
  }
};

template <class T>
struct Product {
  using State = typename Total<T>::Type;
  static __device__ __forceinline__ State none() { return State(1); }
  static __device__ __forceinline__ State of(typename Element<T>::Wide value, long long) { return State(value); }
  static __device__ __forceinline__ State both(State a, State b) { return times(a, b); }
  static __device__ __forceinline__ void put(State state, T* y, long long*) {
    Element<T>::store(y, typename Element<T>::Wide(state));
  }
};

// The largest so far, and where the last of those stands; a NaN stays until the next one.
template <class T, bool LARGEST>
struct ExtremeOf {
  using Wide = typename Element<T>::Wide;
  struct State {
    Wide value;
    long long place;  // -1: of nothing
  };
  static __device__ __forceinline__ State none() { return {Wide(0), -1}; }
  static __device__ __forceinline__ State of(Wide value, long long place) { return {value, place}; }
  static __device__ __forceinline__ State both(State a, State b) {
    if (b.place < 0) return a;
    if (a.place < 0 || b.value != b.value) return b;
    bool takes = a.value == a.value && (LARGEST ? b.value >= a.value : b.value <= a.value);
    return takes ? b : a;
  }
  static __device__ __forceinline__ void put(State state, T* y, long long* place) {
    Element<T>::store(y, state.value);
    *place = state.place;
  }
};
template <class T>
using Largest = ExtremeOf<T, true>;
template <class T>
using Smallest = ExtremeOf<T, false>;

// The log of a sum of powers, scaled by the largest of them.
template <class T>
struct LogSum {
  struct State {
    double highest, sum;
  };
  static __device__ __forceinline__ State none() { return {-INFINITY, 0.0}; }
  static __device__ __forceinline__ State of(typename Element<T>::Wide value, long long) {
    return {double(value), 1.0};
  }
  static __device__ __forceinline__ State both(State a, State b) {
    double highest = a.highest != a.highest || a.highest > b.highest ? a.highest : b.highest;
    double left = a.highest == highest ? 1.0 : exp(a.highest - highest);
    double right = b.highest == highest ? 1.0 : exp(b.highest - highest);
    return {highest, a.sum * left + b.sum * right};
  }
  static __device__ __forceinline__ void put(State state, T* y, long long*) {
    bool infinite = state.highest == INFINITY || state.highest == -INFINITY;
    Element<T>::store(y, typename Element<T>::Wide(infinite ? state.highest : state.highest + log(state.sum)));
  }
};

constexpr int SCAN_THREADS = 256, SCAN_OWN = 8;

template <class T, template <class> class OP>
__device__ __forceinline__ void scan(void* memory, const void* x, void* y, void* places, long long length,
                                     long long inner) {
  using State = typename OP<T>::State;
  auto* shared = static_cast<State*>(memory);  // [2][SCAN_THREADS]
  long long line = blockIdx.x;
  long long start = line / inner * length * inner + line % inner;
  const T* from = static_cast<const T*>(x) + start;
  T* to = static_cast<T*>(y) + start;
  long long* at = static_cast<long long*>(places) + start;
  State carried = OP<T>::none();
  int thread = threadIdx.x;
#pragma unroll 1
  for (long long first = 0; first < length; first += SCAN_THREADS * SCAN_OWN) {
    long long mine = first + (long long)thread * SCAN_OWN;
    State own[SCAN_OWN];
#pragma unroll
    for (int each = 0; each < SCAN_OWN; each++) {
      long long p = mine + each;
      own[each] = p < length ? OP<T>::of(Element<T>::load(from + p * inner), p) : OP<T>::none();
      if (each) own[each] = OP<T>::both(own[each - 1], own[each]);
    }
    int side = 0;
    shared[thread] = own[SCAN_OWN - 1];
    __syncthreads();
#pragma unroll 1
    for (int step = 1; step < SCAN_THREADS; step *= 2) {
      State value = shared[side * SCAN_THREADS + thread];
      if (thread >= step) value = OP<T>::both(shared[side * SCAN_THREADS + thread - step], value);
      side ^= 1;
      shared[side * SCAN_THREADS + thread] = value;
      __syncthreads();
    }
    State before = carried;
    if (thread) before = OP<T>::both(before, shared[side * SCAN_THREADS + thread - 1]);
    carried = OP<T>::both(carried, shared[side * SCAN_THREADS + SCAN_THREADS - 1]);
#pragma unroll
    for (int each = 0; each < SCAN_OWN; each++) {
      long long p = mine + each;
      if (p < length) OP<T>::put(OP<T>::both(before, own[each]), to + p * inner, at + p * inner);
    }
    __syncthreads();
  }
}

template <class T, template <class> class OP>
__device__ __forceinline__ void scan_columns(void*, const void* x, void* y, void* places, long long lines,
                                             long long length, long long inner) {
  long long line = (long long)blockIdx.x * SCAN_THREADS + threadIdx.x;
  if (line >= lines) return;
  long long start = line / inner * length * inner + line % inner;
  auto state = OP<T>::none();
#pragma unroll 1
  for (long long p = 0; p < length; p++) {
    long long place = start + p * inner;
    state = OP<T>::both(state, OP<T>::of(Element<T>::load(static_cast<const T*>(x) + place), p));
    OP<T>::put(state, static_cast<T*>(y) + place, static_cast<long long*>(places) + place);
  }
}

}  // namespace tcexport
