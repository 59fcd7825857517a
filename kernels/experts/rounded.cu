// The two products of a mixture for some rows of x in 8 bits, for Hopper: experts in e4m3 come by the
// copy engine and are multiplied as they lie. Gates and ups: `out[pair] = activated(x W^T + bias)`.
// Down: each pair's product. A row of x is rounded to e4m3 with one scale, by the program that needs
// it.
//
// Owns what one program does. Must not know which shape wants which constants (macros):
//   UP       it is the product of gates and ups; else the one that is down
//   BLOCKED  the stack has a scale for each block of 128 x 128; else one for each row
//   COUNTED  the most experts that there may be; 32 divides it
//   PAIRS    the most pairs that there may be
//   DEPTH    columns of the stack
//   OUT      gates of an expert, or its outputs; 128 divides both
//   ACTIVE   pairs of a row: pair t ACTIVE + j is row t with its expert j
//   BIAS     the experts have biases
//   ROWS     pairs of a tile, which are of one expert: 8, 16, 32, 48 and so on
//   ROOM     rows of x that a program holds, a multiple of 8; no fewer than a tile has
//   GROUPS   warp groups that multiply
//   STAGES   steps of weights on their way to each of them
//
// Weights are the product's left side: 64 rows of an expert are a warp group's unit of work, x is the
// right side. A step is 128 bytes of each row. A lane has rows g and g + 8 of 16: the copy engine
// lays out a gate and its up there, or two outputs that follow each other.
//
// Each group has steps on their way of its own, which a thread of its own asks for, so no group waits
// for another but where the rows of x change. They lie in shared memory by (step, row), swizzled.
//
// Every program counts the pairs of all experts and so knows the tiles, in the order of experts and of
// pairs: all programs must find the same, because several have units of one tile. It has a range of
// the units of all tiles, which its groups take in turns. A grid may be of any size that makes no range
// longer than HELD tiles: so a graph serves every choice.

#include "hopper.h"
#include "activation.h"
#include "multiply.h"

typedef unsigned short u16;

constexpr int WARPS = 5 * GROUPS, THREADS = 32 * WARPS;  // four that multiply, one that fetches
constexpr int STEP = 128;
constexpr int STEPS = DEPTH / STEP;
constexpr u32 SLOT = 64 * STEP;
constexpr u32 X_STEP = ROOM * STEP;
constexpr u32 RING_BYTES = GROUPS * STAGES * SLOT;
constexpr u32 X_BYTES = STEPS * X_STEP;
constexpr int HELD = 8;
constexpr int FULL = 16;                            // one program less of so many may have no tile
constexpr int FEATURES = UP ? 32 : 64;
constexpr int UNITS = OUT / FEATURES;               // of a tile
constexpr u32 EXPERT_ROWS = UP ? 2 * OUT : OUT;
constexpr u32 LOWER = UP ? OUT : 1;                 // from a lane's first row to its other one
constexpr int BAND = UP ? 8 : 16;                   // rows of the stack from a group of them to the next
constexpr int BLOCK = 128;                          // rows and columns of a scale
constexpr int CHUNKS = DEPTH / 8, OWN_CHUNKS = (CHUNKS + 31) / 32;  // 16 bytes of a row; of a lane
constexpr int AT_ONCE = 2;                          // rows that a warp requests before it stores one
static_assert(DEPTH % STEP == 0 && OUT % BLOCK == 0, "whole steps and units");
static_assert(STEPS <= 32, "a lane has the scale of a step");
static_assert(COUNTED % 32 == 0, "a lane has as many experts as another");
static_assert(ROOM % 8 == 0 && ROOM >= ROWS && PAIRS < 65536, "pairs of a tile, and of all");
static_assert(2 * PAIRS <= X_BYTES, "experts are dead when x begins");

__device__ __forceinline__ float low(u32 both) { return __uint_as_float(both << 16); }
__device__ __forceinline__ float high(u32 both) { return __uint_as_float(both & 0xFFFF0000u); }

__device__ __forceinline__ float largest(const uint4& v, float before) {
  before = fmaxf(before, fmaxf(fabsf(low(v.x)), fabsf(high(v.x))));
  before = fmaxf(before, fmaxf(fabsf(low(v.y)), fabsf(high(v.y))));
  before = fmaxf(before, fmaxf(fabsf(low(v.z)), fabsf(high(v.z))));
  return fmaxf(before, fmaxf(fabsf(low(v.w)), fabsf(high(v.w))));
}

__device__ __forceinline__ uint2 rounded(const uint4& v, float by) {
  uint2 to;
  to.x = in_8_bits(low(v.x) * by, high(v.x) * by) | in_8_bits(low(v.y) * by, high(v.y) * by) << 16;
  to.y = in_8_bits(low(v.z) * by, high(v.z) * by) | in_8_bits(low(v.w) * by, high(v.w) * by) << 16;
  return to;
}

// What one program has, in shared memory behind x and the steps on their way.
struct Own {
  float x_scales[ROOM];
  int sizes[HELD];           // pairs of each tile
  int owners[HELD];          // and its expert
  int pairs[HELD][ROWS];
  int ahead[WARPS][HELD];    // pairs of the tile's expert that warps ahead have, for its first tile
  int counted[COUNTED];      // of each expert: its first tile, above how many pairs it has
  int found;                 // tiles in all
};

// What a lane knows of a unit: where its group's steps and its rows of x lie, the scales of weights
// (BLOCKED: of step `lane`, of gates or outputs and of ups), its pairs, and its first row in the stack
// and in a row of what comes out.
struct Unit {
  u32 ring, full, empty, x;
  float top, bottom;
  const float* x_scales;
  const int* pairs;
  int count;
  u32 row, inner;
};

// Sums of 64 rows of weights by `N` rows of x, and what follows from them for the pairs that there are.
template <int N>
__device__ __forceinline__ void finish(const Unit& unit, int& step, const u16* bias, u16* out,
                                       int slope, int shift, int limit, int cubic) {
  float sums[N / 2];
#pragma unroll
  for (int i = 0; i < N / 2; ++i) sums[i] = 0.0f;
  int stage = step % STAGES;
  u32 parity = step / STAGES & 1;
#pragma unroll 1
  for (int s = 0; s < STEPS; ++s) {
    float parts[N / 2];
    wait(unit.full + 8 * stage, parity);
    const u64 weights = matrix(unit.ring + stage * SLOT), rows = matrix(unit.x + s * X_STEP);
    begin_products();
    multiply_first(parts, weights, rows);
#pragma unroll
    for (int k = 1; k < 4; ++k) multiply(parts, weights + 2 * k, rows + 2 * k);
    end_products(parts);
    if (threadIdx.x % 128 == 0) arrive(unit.empty + 8 * stage);
    if (++stage == STAGES) stage = 0, parity ^= 1;
    const float first = BLOCKED ? __shfl_sync(0xffffffff, unit.top, s) : 1.0f;
    const float other = BLOCKED && UP ? __shfl_sync(0xffffffff, unit.bottom, s) : first;
#pragma unroll
    for (int i = 0; i < N / 2; ++i) sums[i] += parts[i] * (i % 4 < 2 ? first : other);
  }
  step += STEPS;
  float biases[2] = {0.0f, 0.0f};
  if (BIAS) biases[0] = low(bias[unit.row]), biases[1] = low(bias[unit.row + LOWER]);
#pragma unroll
  for (int i = 0; i < N / 4; ++i) {
    const int column = i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2;
    if (column >= unit.count) continue;
    const float by = unit.x_scales[column];
    float top = sums[i / 2 * 4 + i % 2] * by, bottom = sums[i / 2 * 4 + 2 + i % 2] * by;
    if (!BLOCKED) top *= unit.top, bottom *= unit.bottom;
    top += biases[0], bottom += biases[1];
    const u64 at = (u64)unit.pairs[column] * OUT + unit.inner;
    if (UP) {
      const float v = activated(top, bottom, __int_as_float(slope), __int_as_float(shift),
                                __int_as_float(limit), __int_as_float(cubic));
      out[at] = packed(v, 0.0f);
    } else {
      *(u32*)(out + at) = packed(top, bottom);
    }
  }
}

// By the least number of rows that one product takes, at least `N`.
template <int N>
__device__ __forceinline__ void take(const Unit& unit, int& step, const u16* bias, u16* out,
                                     int slope, int shift, int limit, int cubic) {
  constexpr int NEXT = N < 16 ? 16 : N < 32 ? 32 : N + 16;
  if constexpr (N >= ROWS) finish<ROWS>(unit, step, bias, out, slope, shift, limit, cubic);
  else if (unit.count <= N) finish<N>(unit, step, bias, out, slope, shift, limit, cubic);
  else take<NEXT>(unit, step, bias, out, slope, shift, limit, cubic);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    rounded_experts(const __grid_constant__ Map map,
                    const u16* x,                  // UP: [rows, DEPTH], else [pairs, DEPTH]
                    const int* experts,            // of each pair
                    const float* __restrict__ scales,  // BLOCKED [E EXPERT_ROWS / 128, DEPTH / 128]
                                                       // or [E EXPERT_ROWS]
                    const u16* __restrict__ bias,  // [E, EXPERT_ROWS], read if BIAS
                    u16* out,                      // [pairs, OUT]
                    int num_pairs,
                    int slope, int shift, int limit, int cubic) {
  extern __shared__ __align__(1024) char memory[];
  const u32 x_rows = shared_address(memory), ring = x_rows + X_BYTES;
  const u32 full = ring + RING_BYTES, empty = full + 8 * GROUPS * STAGES;
  Own& own = *(Own*)(memory + X_BYTES + RING_BYTES + 16 * GROUPS * STAGES);
  u16* const chosen = (u16*)memory;  // [num_pairs], ahead of x
  const int thread = threadIdx.x, lane = thread % 32;
  const int warp = __shfl_sync(0xffffffff, thread / 32, 0);

  if (thread == 0) {
    prefetch_map(&map);
    for (int s = 0; s < GROUPS * STAGES; ++s) init_barrier(full + 8 * s, 1), init_barrier(empty + 8 * s, 1);
    show_barriers();
  }
  for (int i = thread; i < COUNTED; i += THREADS) own.counted[i] = 0;
  for (int i = thread; i < WARPS * HELD; i += THREADS) (&own.ahead[0][0])[i] = 0;
  // Experts come from the kernel ahead of gates and ups. What is down follows that product, which
  // lets it begin when its own wait is over: so all ahead of that one has ended.
  if (UP) wait_for_last(), let_next_begin();
  __syncthreads();
  // A warp has pairs that follow each other, so that their order is that of warps and of lanes.
  const int own_pairs = (num_pairs + THREADS - 1) / THREADS * 32;
  const int begin = min(warp * own_pairs, num_pairs), end = min(begin + own_pairs, num_pairs);
#pragma unroll 4
  for (int i = begin + lane; i < end; i += 32) {
    const u32 expert = min((u32)__ldcg(experts + i), 65535u);
    chosen[i] = expert;
    if (expert < COUNTED) atomicAdd(own.counted + expert, 1);
  }
  __syncthreads();
  if (warp == 0) {
    constexpr int EACH = COUNTED / 32;
    int tiles = 0;
#pragma unroll
    for (int k = 0; k < EACH; ++k) tiles += (own.counted[lane * EACH + k] + ROWS - 1) / ROWS;
    int behind = tiles;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const int ahead = __shfl_sync(0xffffffff, behind, max(lane - d, 0));
      if (lane >= d) behind += ahead;
    }
    int tile = behind - tiles;
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
      const int count = own.counted[lane * EACH + k];
      own.counted[lane * EACH + k] = tile << 16 | count;
      tile += (count + ROWS - 1) / ROWS;
    }
    if (lane == 31) own.found = behind;
  }
  __syncthreads();
  const int all_units = own.found * UNITS, each = (own.found + gridDim.x - 1) / gridDim.x;
  int first = (int)((long long)all_units * blockIdx.x / gridDim.x);
  int last = (int)((long long)all_units * (blockIdx.x + 1) / gridDim.x);
  if (own.found * FULL >= each * (int)gridDim.x * (FULL - 1)) {
    // Whole tiles: the memory is as busy without the last programs, and no x is read by two.
    first = min(each * UNITS * (int)blockIdx.x, all_units), last = min(first + each * UNITS, all_units);
  }
  if (first >= last) return;
  const int first_tile = first / UNITS, last_tile = (last - 1) / UNITS;
  for (int expert = thread; expert < COUNTED; expert += THREADS) {
    const int word = own.counted[expert], tile = word >> 16, count = word & 65535;
    const int end = tile + (count + ROWS - 1) / ROWS;
    for (int t = max(tile, first_tile); t < min(end, last_tile + 1); ++t) {
      own.owners[t - first_tile] = expert;
      own.sizes[t - first_tile] = min(ROWS, count - (t - tile) * ROWS);
    }
  }
  // The first of the own tiles that a pair's expert has, or -1.
  const auto place_of = [&](int i) -> int {
    const int expert = i < end ? chosen[i] : 65535;
    if (expert >= COUNTED) return -1;
    const int word = own.counted[expert], tile = word >> 16;
    const int behind = tile + ((word & 65535) + ROWS - 1) / ROWS;
    return tile <= last_tile && behind > first_tile ? max(tile, first_tile) - first_tile : -1;
  };
  for (int i = begin + lane; i - lane < end; i += 32) {
    const int place = place_of(i);
    if (__ballot_sync(0xffffffff, place >= 0) == 0) continue;
    const u32 alike = __match_any_sync(0xffffffff, place);
    if (place >= 0 && (alike & ((1u << lane) - 1)) == 0) own.ahead[warp][place] += __popc(alike);
    __syncwarp();
  }
  __syncthreads();
  int ahead = 0;
  if (lane < HELD)
    for (int w = 0; w < warp; ++w) ahead += own.ahead[w][lane];
  for (int i = begin + lane; i - lane < end; i += 32) {
    const int place = place_of(i);
    if (__ballot_sync(0xffffffff, place >= 0) == 0) continue;
    const u32 alike = __match_any_sync(0xffffffff, place), before = alike & ((1u << lane) - 1);
    const int rank = __shfl_sync(0xffffffff, ahead, max(place, 0)) + __popc(before);
    if (place >= 0) {
      const int tile = (own.counted[chosen[i]] >> 16) + rank / ROWS - first_tile;
      if (tile >= 0 && tile <= last_tile - first_tile) own.pairs[tile][rank % ROWS] = i;
    }
    // Lane k knows how many pairs of place k are behind.
    for (int k = 0; k < HELD; ++k) {
      const int added = __popc(__ballot_sync(0xffffffff, place == k));
      if (lane == k) ahead += added;
    }
  }
  __syncthreads();

  // A unit's first row in the stack; for units behind the last one the last unit's row, of which
  // nothing is used.
  const auto row_of = [&](int unit) -> u32 {
    unit = min(unit, last - 1);
    const int tile = unit / UNITS;
    return own.owners[tile - first_tile] * EXPERT_ROWS + (unit - tile * UNITS) * FEATURES;
  };

  if (warp >= 4 * GROUPS) {
    const int group = warp - 4 * GROUPS;
    const u32 to = ring + group * STAGES * SLOT, own_full = full + 8 * group * STAGES;
    const u32 own_empty = empty + 8 * group * STAGES;
    if (lane == 0) {
      int step = 0;
      for (int unit = first + group; unit < last; unit += GROUPS) {
        const int band = row_of(unit) / BAND;
#pragma unroll 1
        for (int s = 0; s < STEPS; ++s, ++step) {
          const int stage = step % STAGES;
          if (step >= STAGES) wait(own_empty + 8 * stage, (step / STAGES - 1) & 1);
          expect(own_full + 8 * stage, SLOT);
          const u32 at = to + stage * SLOT, barrier = own_full + 8 * stage;
          fetch_once(at, &map, barrier, s * (STEP / 2), 0, 0, band);
        }
      }
    }
    return;
  }
  if (!UP) wait_for_last(), let_next_begin();

  const int group = warp / 4;
  const u32 own_ring = ring + group * STAGES * SLOT, own_full = full + 8 * group * STAGES;
  const u32 own_empty = empty + 8 * group * STAGES;
  const u32 quad = lane / 4;
  // A lane's first row in a unit, which is a gate or an output.
  const u32 inner = UP ? warp % 4 * 8 + quad : warp % 4 * 16 + 2 * quad;

  // x of the tiles [loaded, loaded_end), each from a multiple of eight rows on.
  int loaded = first_tile, loaded_end = first_tile;
  const auto load_x = [&]() {
    meet_team<128 * GROUPS>();  // all have done with the rows that were there
    int room = 0, total = 0;
    for (loaded = loaded_end; loaded_end <= last_tile; ++loaded_end) {
      const int size = own.sizes[loaded_end - first_tile];
      if (room + size > ROOM) break;
      room += (size + 7) / 8 * 8, total += size;
    }
    for (int from = warp; from < total; from += AT_ONCE * 4 * GROUPS) {
      uint4 columns[AT_ONCE][OWN_CHUNKS];
      int rows[AT_ONCE];
#pragma unroll
      for (int u = 0; u < AT_ONCE; ++u) {
        int at = from + u * 4 * GROUPS, tile = loaded - first_tile;
        rows[u] = -1;
        if (at >= total) continue;
        for (rows[u] = 0; at >= own.sizes[tile]; ++tile)
          at -= own.sizes[tile], rows[u] += (own.sizes[tile] + 7) / 8 * 8;
        rows[u] += at;
        const int pair = own.pairs[tile][at];
        const u16* const row = x + (long long)(UP ? pair / ACTIVE : pair) * DEPTH;
#pragma unroll
        for (int c = 0; c < OWN_CHUNKS; ++c) {
          const int chunk = c * 32 + lane;
          columns[u][c] = {0, 0, 0, 0};
          if (CHUNKS % 32 == 0 || chunk < CHUNKS) columns[u][c] = __ldcg((const uint4*)row + chunk);
        }
      }
#pragma unroll
      for (int u = 0; u < AT_ONCE; ++u) {
        if (rows[u] < 0) continue;
        float most = 7.888609052210118e-31f;  // 2^-100
#pragma unroll
        for (int c = 0; c < OWN_CHUNKS; ++c) most = largest(columns[u][c], most);
        most = __uint_as_float(__reduce_max_sync(0xffffffff, __float_as_uint(most)));
        const float scale = __fdiv_rn(most, 448.0f), by = __fdiv_rn(1.0f, scale);
        const int row = rows[u];
        if (lane == 0) own.x_scales[row] = scale;
#pragma unroll
        for (int c = 0; c < OWN_CHUNKS; ++c) {
          const int chunk = c * 32 + lane;
          if (CHUNKS % 32 && chunk >= CHUNKS) continue;
          const int part = chunk / 2 % 8 ^ row % 8;
          *(uint2*)(memory + chunk / 16 * X_STEP + row * STEP + part * 16 + chunk % 2 * 8) =
              rounded(columns[u][c], by);
        }
      }
    }
    show_to_products();
    meet_team<128 * GROUPS>();
  };

  // A lane has the scales of its two rows, or of a step, a unit ahead.
  float own_scales[2] = {1.0f, 1.0f}, next_scales[2] = {1.0f, 1.0f};
  const auto load_scales = [&](float (&to)[2], u32 of) {
    if (BLOCKED) {
      const int column = min(lane, STEPS - 1);
      to[0] = scales[(u64)(of / BLOCK) * STEPS + column];
      to[1] = UP ? scales[(u64)((of + LOWER) / BLOCK) * STEPS + column] : to[0];
    } else {
      to[0] = scales[of + inner], to[1] = scales[of + inner + LOWER];
    }
  };

  int unit = first + group, step = 0;
  u32 row = row_of(unit);
  load_scales(own_scales, row);
  int base = 0, base_tile = first_tile;  // the rows of that tile's x begin there
  for (; unit < last; unit += GROUPS) {
    const int tile = unit / UNITS;
    while (tile >= loaded_end) load_x(), base = 0, base_tile = loaded;
    for (; base_tile < tile; ++base_tile) base += (own.sizes[base_tile - first_tile] + 7) / 8 * 8;
    const int count = own.sizes[tile - first_tile];
    load_scales(next_scales, row_of(unit + GROUPS));
    const Unit now{own_ring, own_full, own_empty, x_rows + base * STEP, own_scales[0], own_scales[1],
                   own.x_scales + base, own.pairs[tile - first_tile], count, row + inner,
                   (unit - tile * UNITS) * FEATURES + inner};
    take<8>(now, step, bias, out, slope, shift, limit, cubic);
    row = row_of(unit + GROUPS);
    own_scales[0] = next_scales[0], own_scales[1] = next_scales[1];
  }
  // Groups without a unit of the last tiles load x with the others.
  while (loaded_end <= last_tile) load_x();
}
