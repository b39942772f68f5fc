// What a block of attention works on: one head of one of a batch, and what its rows may look at.
#pragma once

namespace tcexport {

enum MaskKind { NO_MASK, BOOL_MASK, FLOAT_MASK };

// Matrices of a head, row-major: Q [rows][D], K [keys][D], V [keys][DV], the result [rows][DV]. The mask is
// of bool (false hides a key) or of elements, which are added; it is read at steps of a row and a key.
template <class E, MaskKind MASK>
struct Head {
  const E *q, *k, *v;
  const void* mask;
  E* out;
  int rows, keys;
  long long mask_row;
  bool mask_key;  // whether the mask has an element for each key, or one for all
  float scale;
};

// The head of a block, of a grid of batch * heads * ceil(rows / block_rows), and its tile of rows; K and V
// have `group` times fewer heads. Where a row looks at the keys before it only, those with most to do
// come first.
template <class E, int D, int DV, MaskKind MASK>
__device__ __forceinline__ Head<E, MASK> head_of_block(
    const void* q, const void* k, const void* v, const void* mask, void* out, long long heads,
    long long group, long long rows, long long keys, long long mask_batch, long long mask_head,
    long long mask_row, long long mask_key, float scale, int block_rows, bool causal,
    long long& tile) {
  long long tiles = (rows + block_rows - 1) / block_rows;
  long long number = blockIdx.x / tiles, batch = number / heads, own = number - batch * heads;
  tile = blockIdx.x - number * tiles;
  if (causal) tile = tiles - 1 - tile;
  long long of_keys = batch * (heads / group) + own / group;
  long long seen = batch * mask_batch + own * mask_head;
  const void* own_mask = mask;
  if (MASK == BOOL_MASK) own_mask = static_cast<const unsigned char*>(mask) + seen;
  if (MASK == FLOAT_MASK) own_mask = static_cast<const E*>(mask) + seen;
  return {static_cast<const E*>(q) + number * rows * D,
          static_cast<const E*>(k) + of_keys * keys * D,
          static_cast<const E*>(v) + of_keys * keys * DV,
          own_mask,
          static_cast<E*>(out) + number * rows * DV,
          int(rows),
          int(keys),
          mask_row,
          mask_key != 0,
          scale};
}

// What a row may look at. Beyond the last row, it is what the last one may.
template <class E, MaskKind MASK>
struct MaskRow {
  const unsigned char* seen;
  const E* numbers;
  int last;
  bool each_key;

  __device__ __forceinline__ MaskRow(const Head<E, MASK>& head, int row, bool causal)
      : seen(static_cast<const unsigned char*>(head.mask)),
        numbers(static_cast<const E*>(head.mask)),
        last(causal ? min(row, head.keys - 1) : head.keys - 1),
        each_key(head.mask_key) {
    long long at = min(row, head.rows - 1) * head.mask_row;
    if (MASK == BOOL_MASK) seen += at;
    if (MASK == FLOAT_MASK) numbers += at;
  }
  __device__ __forceinline__ bool shows(int key) const {
    return key <= last && (MASK != BOOL_MASK || seen[each_key ? key : 0]);
  }
  __device__ __forceinline__ E added(int key) const { return numbers[each_key ? key : 0]; }
};

}  // namespace tcexport
