// The two products of a mixture whose experts are in MXFP4, of few rows, for compute capability 8.0
// and later: numbers of four bits come by asynchronous copies, become bfloat16 in registers, and are
// multiplied by the tensor cores. Gates and ups: `out[pair] = activated(x W^T + bias)`. Down: the
// weighed sum of a row's pairs and a residual.
//
// Owns what one program does. Must not know which shape wants which constants (macros):
//   UP       it is the product of gates and ups; else the one that is down
//   DEPTH    columns of the stack, of which 32 share a power of two
//   OUT      gates of an expert, or its outputs; 32 divides it
//   ACTIVE   pairs of a row: pair t ACTIVE + j is row t with its expert j
//   BIAS     the experts have biases
//   WARPS    they share the columns of each product
//   MT       fragments of 16 weight rows, which a program multiplies at once: its unit of work
//   STAGES   units whose weights are on their way
//   BLOCKS   programs that a multiprocessor is to hold
//   ARCH     ten times the compute capability
//
// Weights are the product's left side. A thread copies 16 bytes of a weight row, a group of 32
// columns with one power, into a place of shared memory that no other thread reads: so no barrier
// stands between a copy and its use. Four neighbouring lanes have four groups of a row, and a product
// of 16 columns takes four columns of each of them. Any order of columns will do if x has it too:
//   lane 4 g + t        has rows g and g + 8 of the fragment, group 4 j + t in step j
//   word k of its 16 bytes    columns 8 k to 8 k + 7 of the group, two by two (`e2m1.h`)
// Chunks of eight columns of x lie in shared memory by (step, word, row, t): a lane loads the right
// side of two products at once.
// In a fragment of UP rows g are gates and rows g + 8 their ups, so that a thread has both.
//
// Work is cut into units, (pair or, of what is down, row; MT fragments), and each program has a range
// of them: x is loaded anew only where the row changes. What is down takes all pairs of a row one
// after the other and sums them. A grid may be of any size.

#include "ampere.h"
#include "activation.h"
#include "e2m1.h"

constexpr int THREADS = 32 * WARPS;
constexpr int GROUPS = DEPTH / 32;
constexpr int STEPS = (GROUPS + 4 * WARPS - 1) / (4 * WARPS);  // of a warp; each has four groups
constexpr int CHUNKS = STEPS * WARPS * 16;  // of eight columns of x, those behind DEPTH are zeros
constexpr int AT_ONCE = 4;  // chunks of x that a thread requests before it stores the first
constexpr int PARTS = UP ? 1 : ACTIVE;  // pairs that follow each other in a unit
constexpr int TILE = 16 * MT;
constexpr int FEATURES = UP ? TILE / 2 : TILE;  // gates or outputs of a unit
constexpr int UNITS = OUT / FEATURES;
constexpr u32 EXPERT_ROWS = UP ? 2 * OUT : OUT;
constexpr u32 LOWER = UP ? OUT : 8;     // from a fragment's row g to its row g + 8, in the stack
constexpr u32 NEXT = UP ? 8 : 16;       // from a fragment to the next one
constexpr u32 LINE = DEPTH / 2;         // bytes of a weight row
constexpr int PITCH = TILE + 4;         // so that the 32 lanes of a store meet 32 banks
constexpr u32 RING_BYTES = STAGES * STEPS * MT * 2 * THREADS * 16;
constexpr u32 STAGED_BYTES = WARPS * PITCH * 4;
static_assert(DEPTH % 32 == 0 && OUT % FEATURES == 0, "whole groups and units");

__device__ __forceinline__ u32 word_of(const uint4& chunk, int k) {
  return k == 0 ? chunk.x : k == 1 ? chunk.y : k == 2 ? chunk.z : chunk.w;
}

// Products of 16 MT weight rows with a row of x, in all columns of the right side, of a step's columns.
__device__ __forceinline__ void add_step(float (&sums)[MT][4], const uint4 (&weights)[MT][2],
                                         const u32 (&factors)[MT][2], const char* row,
                                         u32 next_word) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const uint4 right = *(const uint4*)(row + k * next_word);
#pragma unroll
    for (int m = 0; m < MT; ++m) {
      const u32 top = word_of(weights[m][0], k), bottom = word_of(weights[m][1], k);
      const u32 first[4] = {pair_of<0>(top, factors[m][0]), pair_of<0>(bottom, factors[m][1]),
                            pair_of<1>(top, factors[m][0]), pair_of<1>(bottom, factors[m][1])};
      multiply(sums[m], first, right.x, right.y, sums[m]);
      const u32 last[4] = {pair_of<2>(top, factors[m][0]), pair_of<2>(bottom, factors[m][1]),
                           pair_of<3>(top, factors[m][0]), pair_of<3>(bottom, factors[m][1])};
      multiply(sums[m], last, right.z, right.w, sums[m]);
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    mxfp4_experts(const u16* x,                  // UP: [rows, DEPTH], else [pairs, DEPTH]
                  const int* experts,            // of each pair
                  const float* weights,          // [pairs], read by what is down
                  const char* __restrict__ values,  // [E EXPERT_ROWS, DEPTH / 2], two columns a byte
                  const u8* __restrict__ powers,    // [E EXPERT_ROWS, GROUPS]
                  const u16* __restrict__ bias,     // [E, EXPERT_ROWS], read if BIAS
                  const u16* residual,           // [rows, OUT], read by what is down
                  u16* out,                      // UP: [pairs, OUT], down: [rows, OUT]
                  int num_pairs, int slope, int shift, int limit, int cubic) {
  extern __shared__ __align__(128) char memory[];
  float* const staged = (float*)(memory + RING_BYTES);
  char* const x_rows = memory + RING_BYTES + STAGED_BYTES;
  const int thread = threadIdx.x;
  const int warp = __shfl_sync(0xffffffff, thread / 32, 0), lane = thread % 32;
  const u32 quad = lane / 4, place = lane % 4;
  const u32 ring = shared_address(memory) + thread * 16;

  // Experts come from the kernel ahead of gates and ups. What is down follows that product, which
  // lets it begin when its own wait is over: so all ahead of that one has ended.
  if (UP) wait_for_last(), let_next_begin();
  const long long all_units = (long long)(num_pairs / PARTS) * UNITS;
  const int first = (int)(all_units * blockIdx.x / gridDim.x);
  const int last = (int)(all_units * (blockIdx.x + 1) / gridDim.x);
  const int parts = (last - first) * PARTS;  // a part is a unit's work of one pair's expert

  // The first row of a part in the stack.
  const auto row_of = [&](int i) -> u32 {
    const int unit = first + i / PARTS, tile = unit / UNITS;
    return experts[tile * PARTS + i % PARTS] * EXPERT_ROWS + (unit - tile * UNITS) * FEATURES;
  };
  const auto group_of = [&](int s) -> u32 { return 4 * (warp + WARPS * s) + place; };
  const auto copy_step = [&](u32 row, int slot, int s) {
    const u32 group = group_of(s);
    const bool is_inside = group < GROUPS;
    const char* const from = values + (u64)(row + quad) * LINE + (is_inside ? group * 16 : 0);
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        copy16_of_128(ring + (((slot * STEPS + s) * MT + m) * 2 + half) * (THREADS * 16),
                      from + (u64)(m * NEXT + half * LOWER) * LINE, is_inside);
  };
  const auto load_powers = [&](u32 (&to)[STEPS][MT][2], u32 row) {
    const u8* const from = powers + (u64)(row + quad) * GROUPS;
#pragma unroll
    for (int s = 0; s < STEPS; ++s)
#pragma unroll
      for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const u32 group = group_of(s);
          to[s][m][half] = group < GROUPS ? from[(m * NEXT + half * LOWER) * GROUPS + group] : 0;
        }
  };

  u32 row_queue[STAGES + 1] = {};  // of this part and those on their way
#pragma unroll
  for (int i = 0; i < STAGES; ++i) {
    if (i < parts) row_queue[i] = row_of(i);
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
      if (i < parts) copy_step(row_queue[i], i, s);
      close_group();
    }
  }
  u32 own_powers[STEPS][MT][2] = {};
  if (parts > 0) load_powers(own_powers, row_queue[0]);
  if (!UP) wait_for_last(), let_next_begin();

  float sums[MT][4] = {}, totals[MT][4] = {};
  int loaded = -1, slot = 0;
  for (int i = 0; i < parts; ++i) {
    const int part = i % PARTS, at = first + i / PARTS, tile = at / UNITS, unit = at - tile * UNITS;
    if (tile != loaded) {
      loaded = tile;
      // All have done with the rows of the tile before: two barriers ended its last unit.
      for (int begin = thread; begin < PARTS * CHUNKS; begin += AT_ONCE * THREADS) {
        uint4 columns[AT_ONCE];
#pragma unroll
        for (int u = 0; u < AT_ONCE; ++u) {
          const int k = begin + u * THREADS, row = k / CHUNKS, chunk = k - row * CHUNKS;
          columns[u] = {0, 0, 0, 0};
          if (row >= PARTS || chunk * 8 >= DEPTH) continue;
          const int pair = tile * PARTS + row;
          const long long x_row = UP ? pair / ACTIVE : pair;
          columns[u] = __ldcg((const uint4*)(x + x_row * DEPTH + chunk * 8));
        }
#pragma unroll
        for (int u = 0; u < AT_ONCE; ++u) {
          const int k = begin + u * THREADS, row = k / CHUNKS, chunk = k - row * CHUNKS;
          if (row >= PARTS) continue;
          const int step = chunk / 16, group = chunk / 4 % 4, word = chunk % 4;
          *(uint4*)(x_rows + ((step * 4 + word) * PARTS + row) * 64 + group * 16) = columns[u];
        }
      }
      __syncthreads();
    }
    const bool has_more = i + STAGES < parts;
    if (has_more) row_queue[STAGES] = row_of(i + STAGES);
    u32 next_powers[STEPS][MT][2] = {};
    if (i + 1 < parts) load_powers(next_powers, row_queue[1]);

    const char* x_row = x_rows + (warp * 4 * PARTS + part) * 64 + place * 16;
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
      wait_groups<STAGES * STEPS - 1>();
      uint4 own[MT][2];
      u32 factors[MT][2];
#pragma unroll
      for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          own[m][half] = *(const uint4*)(memory + thread * 16 +
                                         (((slot * STEPS + s) * MT + m) * 2 + half) * (THREADS * 16));
          factors[m][half] = factor_of(own_powers[s][m][half]);
        }
      add_step(sums, own, factors, x_row, PARTS * 64);
      x_row += WARPS * 4 * 64 * PARTS;
      if (has_more) copy_step(row_queue[STAGES], slot, s);
      close_group();
    }
    slot = slot == STAGES - 1 ? 0 : slot + 1;
#pragma unroll
    for (int k = 0; k < STAGES; ++k) row_queue[k] = row_queue[k + 1];
#pragma unroll
    for (int s = 0; s < STEPS; ++s)
#pragma unroll
      for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) own_powers[s][m][half] = next_powers[s][m][half];
    const float weight = UP ? 1.0f : weights[tile * PARTS + part];
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
      for (int r = 0; r < 4; ++r) totals[m][r] += weight * sums[m][r], sums[m][r] = 0.0f;
    if (part < PARTS - 1) continue;

    // All warps' sums together, in their order. All columns of a product are the same.
    __syncthreads();  // all have read the sums of the unit before
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        if (place == 0 && r % 2 == 0) staged[warp * PITCH + 16 * m + quad + 8 * (r / 2)] = totals[m][r];
        totals[m][r] = 0.0f;
      }
    __syncthreads();
    const auto sum_of = [&](int row) {
      float v = 0.0f;
#pragma unroll
      for (int w = 0; w < WARPS; ++w) v += staged[w * PITCH + row];
      return v * UNSCALED;
    };
    for (int inner = thread; inner < FEATURES; inner += THREADS) {
      const int feature = unit * FEATURES + inner;
      const long long to = (long long)tile * OUT + feature, expert = experts[tile * PARTS];
      if (UP) {
        const int row = inner / 8 * 16 + inner % 8;
        float gate = sum_of(row), up = sum_of(row + 8);
        if (BIAS) {
          gate += wide(bias[expert * EXPERT_ROWS + feature], false);
          up += wide(bias[expert * EXPERT_ROWS + OUT + feature], false);
        }
        const float v = activated(gate, up, __int_as_float(slope), __int_as_float(shift),
                                  __int_as_float(limit), __int_as_float(cubic));
        out[to] = narrow(v);
      } else {
        float v = sum_of(inner);
        if (BIAS) {
          for (int j = 0; j < PARTS; ++j)
            v += weights[tile * PARTS + j] *
                 wide(bias[(long long)experts[tile * PARTS + j] * OUT + feature], false);
        }
        v += wide(residual[to], false);
        out[to] = narrow(v);
      }
    }
  }
  wait_groups<0>();
}
