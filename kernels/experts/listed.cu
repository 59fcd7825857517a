// The two products of a mixture for some rows, for compute capability 8.0 and later: experts in 8 or
// 4 bits come by asynchronous copies, become bfloat16 in registers, and are multiplied by the tensor
// cores. Gates and ups: `out[pair] = activated(x W^T + bias)`. Down: each pair's product.
//
// Owns what one program does. Must not know which shape wants which constants (macros):
//   UP       it is the product of gates and ups; else the one that is down
//   FORM     of the stack: 1 e4m3 with a scale for each row, 2 e4m3 with one for each block of
//            128 x 128, 3 numbers of four bits with a power of two for 32 columns (MXFP4)
//   COUNTED  the most experts that there may be; 32 divides it
//   DEPTH    columns of the stack
//   OUT      gates of an expert, or its outputs; a multiple of 16
//   ACTIVE   pairs of a row: pair t ACTIVE + j is row t with its expert j
//   BIAS     the experts have biases
//   EIGHTS   eights of pairs in a tile, which are of one expert
//   PAIRS    the most pairs that there may be
//   ROOM     rows of x that a program holds; no fewer than a tile has
//   WARPS    each has weight rows of its own
//   STAGES   steps whose weights are on their way to each of them
//   BLOCKS   programs that a multiprocessor is to hold
//   ARCH     ten times the compute capability
//
// Weights are the product's left side: 16 rows of an expert, a fragment, are a warp's unit of work. A
// step is 128 bytes of each of them; a lane copies four times 16 of these bytes into a place of shared
// memory that no other lane reads. So a warp waits for its own copies alone, and no barrier stands
// between units. Any order of columns will do for a product if x has it too:
//   lane 4 g + t   has rows g and g + 8 of the fragment, and of a step the chunks t and t + 4
//   a word of it   in 8 bits the columns 0 and 2, then 1 and 3; in 4 bits two by two (`e2m1.h`)
// Chunks of eight columns of x lie in shared memory by (step, half, chunk of x in the weights' chunk,
// row, t), so that eight rows meet all banks; a lane loads the right side of two products at once.
// In a fragment of UP rows g are gates and rows g + 8 their ups, so that a lane has both.
//
// Every program counts the pairs of all experts and so knows the tiles, in the order of experts and of
// pairs: all programs must find the same, because several have units of one tile. It has a range of
// the units of all tiles, whose warps take them in turns: while some have ended, the others share the
// bandwidth. x is loaded anew only where the next tile's pairs are not among the rows that are there,
// and never where a tile has as many programs as any other, nearly all of them.
// A grid may be of any size that makes no range longer than HELD tiles: so a graph serves every choice.

#include "ampere.h"
#include "activation.h"
#include "e2m1.h"

constexpr int THREADS = 32 * WARPS;
constexpr int ROWS = 8 * EIGHTS;
constexpr u32 LINE = FORM == 3 ? DEPTH / 2 : DEPTH;  // bytes of a weight row
constexpr int WORDS = FORM == 3 ? 4 : 2;             // chunks of x in a chunk of weights
constexpr int STEP = 128;
constexpr int STEPS = (LINE + STEP - 1) / STEP;
constexpr int X_CHUNKS = STEPS * 8 * WORDS;  // of a row of x; those behind DEPTH are zeros
constexpr u32 X_PART = ROOM * 64;            // bytes of a chunk of x, of all rows and lanes
constexpr u32 X_STEP = 2 * WORDS * X_PART;
constexpr u32 SLOT = 16 * STEP;
constexpr u32 RING_BYTES = WARPS * STAGES * SLOT;
constexpr u32 X_BYTES = STEPS * X_STEP;
constexpr int AT_ONCE = 4;                   // chunks of x that a thread requests before it stores one
constexpr int HELD = 8;
constexpr int EACH = (PAIRS + THREADS - 1) / THREADS;  // pairs that a thread puts into tiles
constexpr int CHUNKS = EACH * WARPS;                   // of 32 pairs, each counted by one warp
constexpr int FEATURES = UP ? 8 : 16;
constexpr int UNITS = OUT / FEATURES;        // of a tile
constexpr u32 EXPERT_ROWS = UP ? 2 * OUT : OUT;
constexpr u32 LOWER = UP ? OUT : 8;          // from a fragment's row g to its row g + 8, in the stack
constexpr int BLOCK = 128;                   // rows and columns of a scale
constexpr int SCALES = (DEPTH + BLOCK - 1) / BLOCK;
constexpr int GROUPS = DEPTH / 32;
constexpr u32 SIGNS = 0x80008000, SIZES = 0x07F007F0;
constexpr u32 LIFT = 0x7B807B80;             // 2^120, twice
constexpr bool ENDS_HALF = LINE % STEP > 0 && LINE % STEP <= STEP / 2;  // half of the last step is empty
static_assert(LINE % 16 == 0 && OUT % 16 == 0, "whole chunks and units");
static_assert(FORM != 2 || STEPS <= 32, "a lane has the scale of a step");
static_assert(COUNTED % 32 == 0, "a lane has as many experts as another");
static_assert(COUNTED * (4 + CHUNKS) <= RING_BYTES + X_BYTES, "counts are dead when copies begin");
static_assert(ROOM >= ROWS && PAIRS < 65536, "pairs of a tile, and of all");

// The numbers in e4m3 in the bytes 0 and 2, or 1 and 3: sign and size as a bfloat16 that is 2^-120 as
// large has them; the product is exact.
__device__ __forceinline__ u32 even_of(u32 bits) {
  return multiply_add(masked(bits << 8, SIGNS, (bits << 4) & SIZES), LIFT, SIGNS);
}
__device__ __forceinline__ u32 odd_of(u32 bits) {
  return multiply_add(masked(bits, SIGNS, (bits >> 4) & SIZES), LIFT, SIGNS);
}

__device__ __forceinline__ u32 word_of(const uint4& chunk, int k) {
  return k == 0 ? chunk.x : k == 1 ? chunk.y : k == 2 ? chunk.z : chunk.w;
}

// Eight columns of x in the order of the weights.
__device__ __forceinline__ uint4 ordered(const uint4& v) {
  uint4 to = v;
  if (FORM != 3) {  // 0 2 1 3 4 6 5 7
    to.x = __byte_perm(v.x, v.y, 0x5410), to.y = __byte_perm(v.x, v.y, 0x7632);
    to.z = __byte_perm(v.z, v.w, 0x5410), to.w = __byte_perm(v.z, v.w, 0x7632);
  }
  return to;
}

// Adds products of a fragment with up to 8 E rows of x, of half a step's columns.
template <int E>
__device__ __forceinline__ void add_half(float (&sums)[EIGHTS][4], const uint4& top,
                                         const uint4& bottom, u32 top_factor, u32 bottom_factor,
                                         const char* const (&rows)[EIGHTS], u32 at) {
#pragma unroll
  for (int k = 0; k < WORDS; ++k) {
    u32 first[4], last[4];
    if (FORM == 3) {
      const u32 one = word_of(top, k), two = word_of(bottom, k);
      first[0] = pair_of<0>(one, top_factor), first[1] = pair_of<0>(two, bottom_factor);
      first[2] = pair_of<1>(one, top_factor), first[3] = pair_of<1>(two, bottom_factor);
      last[0] = pair_of<2>(one, top_factor), last[1] = pair_of<2>(two, bottom_factor);
      last[2] = pair_of<3>(one, top_factor), last[3] = pair_of<3>(two, bottom_factor);
    } else {
      const u32 one = word_of(top, 2 * k), two = word_of(bottom, 2 * k);
      const u32 three = word_of(top, 2 * k + 1), four = word_of(bottom, 2 * k + 1);
      first[0] = even_of(one), first[1] = even_of(two), first[2] = odd_of(one), first[3] = odd_of(two);
      last[0] = even_of(three), last[1] = even_of(four);
      last[2] = odd_of(three), last[3] = odd_of(four);
    }
#pragma unroll
    for (int n = 0; n < E; ++n) {
      const uint4 right = *(const uint4*)(rows[n] + at + k * X_PART);
      multiply(sums[n], first, right.x, right.y, sums[n]);
      multiply(sums[n], last, right.z, right.w, sums[n]);
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    listed_experts(const u16* x,                     // UP: [rows, DEPTH], else [pairs, DEPTH]
                   const int* experts,               // of each pair
                   const char* __restrict__ values,  // [E EXPERT_ROWS, LINE]
                   const void* __restrict__ scales,  // float32 [E EXPERT_ROWS] of FORM 1, of FORM 2
                                           // [E EXPERT_ROWS / 128, DEPTH / 128], both rounded up;
                                           // of FORM 3 uint8 [E EXPERT_ROWS, DEPTH / 32]
                   const u16* __restrict__ bias,     // [E, EXPERT_ROWS], read if BIAS
                   void* out,              // UP: bfloat16 [pairs, OUT]; down: float32 [pairs, OUT]
                   int num_pairs, int slope, int shift, int limit, int cubic) {
  extern __shared__ __align__(128) char memory[];
  char* const x_rows = memory + RING_BYTES;
  int* const counted = (int*)memory;                         // [COUNTED] of each expert, ahead of all
  u8* const in_chunks = (u8*)(counted + COUNTED);            // [CHUNKS, COUNTED] the same of chunks
  int* const sizes = (int*)(memory + RING_BYTES + X_BYTES);  // [HELD] pairs of each tile
  int* const owners = sizes + HELD;                          // [HELD] and its expert
  int* const own_pairs = owners + HELD;                      // [HELD, ROWS]
  int* const found = own_pairs + HELD * ROWS;                // [1] tiles in all
  const int thread = threadIdx.x;
  const int warp = __shfl_sync(0xffffffff, thread / 32, 0), lane = thread % 32;
  const u32 quad = lane / 4, place = lane % 4;
  const char* const own_ring = memory + warp * (STAGES * SLOT) + lane * 16;
  const u32 ring = shared_address(own_ring);

  // Experts come from the kernel ahead of gates and ups. What is down follows that product, which
  // lets it begin when its own wait is over: so all ahead of that one has ended.
  if (UP) wait_for_last(), let_next_begin();
  int chosen[EACH], rank[EACH];
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    chosen[i] = thread + i * THREADS < num_pairs ? __ldcg(experts + thread + i * THREADS) : -1;
    if ((u32)chosen[i] >= COUNTED) chosen[i] = -1;
  }
  const int num_chunks = (num_pairs + 31) / 32;
  for (int i = thread; i < (COUNTED * 4 + num_chunks * COUNTED) / 16; i += THREADS)
    ((uint4*)memory)[i] = {0, 0, 0, 0};
  __syncthreads();
  // A pair's rank among those of its expert: first in its chunk, then behind all chunks ahead of it.
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    const int chunk = warp + i * WARPS;
    if (chunk >= num_chunks) break;
    const u32 alike = __match_any_sync(0xffffffff, chosen[i]);
    rank[i] = __popc(alike & ((1u << lane) - 1));
    if (chosen[i] < 0 || rank[i] > 0) continue;
    in_chunks[chunk * COUNTED + chosen[i]] = __popc(alike);
    atomicAdd(counted + chosen[i], __popc(alike));
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    if (chosen[i] < 0) continue;
    for (int chunk = 0; chunk < warp + i * WARPS; ++chunk)
      rank[i] += in_chunks[chunk * COUNTED + chosen[i]];
  }
  if (warp == 0) {
    // Where each expert's tiles begin, above how many pairs it has.
    constexpr int OWN = COUNTED / 32;
    int tiles = 0;
#pragma unroll
    for (int k = 0; k < OWN; ++k) tiles += (counted[lane * OWN + k] + ROWS - 1) / ROWS;
    int end = tiles;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const int ahead = __shfl_sync(0xffffffff, end, max(lane - d, 0));
      if (lane >= d) end += ahead;
    }
    int begin = end - tiles;
#pragma unroll
    for (int k = 0; k < OWN; ++k) {
      const int count = counted[lane * OWN + k];
      counted[lane * OWN + k] = begin << 16 | count;
      begin += (count + ROWS - 1) / ROWS;
    }
    if (lane == 31) *found = end;
  }
  __syncthreads();
  const int all_units = *found * UNITS;
  int first = (int)((long long)all_units * blockIdx.x / gridDim.x);
  int last = (int)((long long)all_units * (blockIdx.x + 1) / gridDim.x);
  const int share = gridDim.x / max(*found, 1);  // programs of a tile
  if (FORM == 3 && share * *found * 16 >= (int)gridDim.x * 15) {
    const int tile = blockIdx.x / share, part = blockIdx.x - tile * share;
    if (tile >= *found) return;
    first = tile * UNITS + UNITS * part / share, last = tile * UNITS + UNITS * (part + 1) / share;
  }
  if (first >= last) return;
  const int first_tile = first / UNITS, last_tile = (last - 1) / UNITS;
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    if (chosen[i] < 0) continue;
    const int word = counted[chosen[i]], tile = word / 65536 + rank[i] / ROWS - first_tile;
    if (tile < 0 || tile > last_tile - first_tile || tile >= HELD) continue;
    own_pairs[tile * ROWS + rank[i] % ROWS] = thread + i * THREADS;
    if (rank[i] % ROWS == 0) owners[tile] = chosen[i], sizes[tile] = min(ROWS, word % 65536 - rank[i]);
  }
  __syncthreads();

  // A unit's first row in the stack; for units behind the last one the last unit's row, of which
  // nothing is used.
  const auto row_of = [&](int unit) -> u32 {
    unit = min(unit, last - 1);
    const int tile = unit / UNITS;
    return owners[tile - first_tile] * EXPERT_ROWS + (unit - tile * UNITS) * FEATURES;
  };

  // The copies of one step, ahead of its products.
  int unit = first + warp, copied_unit = unit, copied_step = 0;
  const auto from_of = [&](u32 row) -> const char* {
    return values + (u64)(row + quad) * LINE + place * 16;
  };
  u32 row = row_of(unit);
  const char* from = from_of(row);
  const auto copy_step = [&](u32 to) {
    if (copied_unit < last) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool is_inside =
            LINE % STEP == 0 || copied_step * STEP + i / 2 * 64 + (int)place * 16 < (int)LINE;
        copy16_of_256(to + i * 512, from + (i % 2 ? (u64)LOWER * LINE : 0) + i / 2 * 64, is_inside);
      }
      from += STEP;
      if (++copied_step == STEPS)
        copied_step = 0, copied_unit += WARPS, from = from_of(row_of(copied_unit));
    }
    close_group();
  };
#pragma unroll
  for (int i = 0; i < STAGES; ++i) copy_step(ring + i * SLOT);

  // A lane has the scales of its two rows, or of a step, a unit ahead.
  float own_scales[2] = {1.0f, 1.0f}, next_scales[2] = {1.0f, 1.0f};
  const auto load_scales = [&](float (&to)[2], u32 of) {
    const float* const known = (const float*)scales;
    if (FORM == 1) to[0] = known[of + quad], to[1] = known[of + quad + LOWER];
    if (FORM == 2) {
      const int column = min(lane, SCALES - 1);
      to[0] = known[(u64)(of / BLOCK) * SCALES + column];
      to[1] = UP ? known[(u64)((of + LOWER) / BLOCK) * SCALES + column] : to[0];
    }
  };
  load_scales(own_scales, row);
  // Or the powers of its groups, two steps ahead.
  u32 powers[2][4] = {};
  int power_unit = unit, power_step = 0;
  const auto powers_of = [&](u32 of) -> const u8* {
    return (const u8*)scales + (u64)(of + quad) * GROUPS + place;
  };
  const u8* power_from = powers_of(row);
  const auto load_powers = [&](u32 (&to)[4]) {
    if (FORM != 3) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool is_inside =
          GROUPS % 8 == 0 || power_step * 8 + i / 2 * 4 + (int)place < GROUPS;
      to[i] = is_inside ? power_from[(u64)(i % 2 * LOWER) * GROUPS + i / 2 * 4] : 0;
    }
    power_from += 8;
    if (++power_step == STEPS)
      power_step = 0, power_unit += WARPS, power_from = powers_of(row_of(power_unit));
  };
  load_powers(powers[0]), load_powers(powers[1]);

  if (!UP) wait_for_last(), let_next_begin();

  // x of the tiles [loaded, loaded_end), each in rows behind those of the one before.
  int loaded = first_tile, loaded_end = first_tile;
  const auto load_x = [&]() {
    __syncthreads();  // all have done with the rows that were there
    int total = 0;
    for (loaded = loaded_end; loaded_end <= last_tile; ++loaded_end) {
      const int size = sizes[loaded_end - first_tile];
      if (total + size > ROOM) break;
      total += size;
    }
    for (int begin = thread; begin < total * X_CHUNKS; begin += AT_ONCE * THREADS) {
      uint4 columns[AT_ONCE];
#pragma unroll
      for (int u = 0; u < AT_ONCE; ++u) {
        const int k = begin + u * THREADS, chunk = k % X_CHUNKS;
        columns[u] = {0, 0, 0, 0};
        if (k >= total * X_CHUNKS || chunk * 8 >= DEPTH) continue;
        int at = k / X_CHUNKS, tile = loaded - first_tile;
        while (at >= sizes[tile]) at -= sizes[tile++];
        const int pair = own_pairs[tile * ROWS + at];
        const long long x_row = UP ? pair / ACTIVE : pair;
        columns[u] = __ldcg((const uint4*)(x + x_row * DEPTH + chunk * 8));
      }
#pragma unroll
      for (int u = 0; u < AT_ONCE; ++u) {
        const int k = begin + u * THREADS, at = k / X_CHUNKS, chunk = k % X_CHUNKS;
        if (k >= total * X_CHUNKS) continue;
        const int part = chunk / (4 * WORDS) * WORDS + chunk % WORDS;
        *(uint4*)(x_rows + part * X_PART + at * 64 + chunk / WORDS % 4 * 16) = ordered(columns[u]);
      }
    }
    __syncthreads();
  };

  u32 slot = 0;
  int base = 0, base_tile = first_tile;  // the rows of that tile's x begin there
  for (; unit < last; unit += WARPS) {
    const int tile = unit / UNITS;
    while (tile >= loaded_end) load_x(), base = 0, base_tile = loaded;
    for (; base_tile < tile; ++base_tile) base += sizes[base_tile - first_tile];
    const int count = sizes[tile - first_tile];
    load_scales(next_scales, row_of(unit + WARPS));

    const char* rows[EIGHTS];
#pragma unroll
    for (int n = 0; n < EIGHTS; ++n) {
      // Lanes of pairs that do not exist read the last one; their sums are not stored.
      rows[n] = x_rows + (base + min(8 * n + (int)quad, count - 1)) * 64 + place * 16;
    }
    float sums[EIGHTS][4] = {};
    const auto add_steps = [&](bool is_small) {
#pragma unroll 1
      for (int s = 0; s < STEPS; ++s) {
        wait_groups<STAGES - 1>();
        uint4 own[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) own[i] = *(const uint4*)(own_ring + slot + i * 512);
        u32 factors[4] = {};
        if (FORM == 3) {
#pragma unroll
          for (int i = 0; i < 4; ++i)
            factors[i] = factor_of(powers[0][i]), powers[0][i] = powers[1][i];
          load_powers(powers[1]);
        }
        float parts[EIGHTS][4] = {};
        auto& into = FORM == 2 ? parts : sums;
        const auto add = [&](int half) {
          const int i = 2 * half;
          const u32 at = half * WORDS * X_PART;
          if (is_small)
            add_half<1>(into, own[i], own[i + 1], factors[i], factors[i + 1], rows, at);
          else
            add_half<EIGHTS>(into, own[i], own[i + 1], factors[i], factors[i + 1], rows, at);
        };
        add(0);
        if (!ENDS_HALF || s < STEPS - 1) add(1);
        if (FORM == 2) {
          const float top = __shfl_sync(0xffffffff, own_scales[0], s);
          const float bottom = UP ? __shfl_sync(0xffffffff, own_scales[1], s) : top;
#pragma unroll
          for (int n = 0; n < EIGHTS; ++n)
#pragma unroll
            for (int r = 0; r < 4; ++r) sums[n][r] += parts[n][r] * (r < 2 ? top : bottom);
        }
#pragma unroll
        for (int n = 0; n < EIGHTS; ++n) rows[n] += X_STEP;
        copy_step(ring + slot);
        slot = slot == (STAGES - 1) * SLOT ? 0 : slot + SLOT;
      }
    };
    // Two loops: one that asked in each step for the number of pairs had too few registers.
    if (EIGHTS > 1 && count <= 8) add_steps(true);
    else add_steps(false);

    const int inner = (unit - tile * UNITS) * FEATURES + (int)quad;
#pragma unroll
    for (int n = 0; n < EIGHTS; ++n)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int column = 8 * n + 2 * (int)place + r;
        if (column >= count) continue;
        const long long pair = own_pairs[(tile - first_tile) * ROWS + column];
        float top = sums[n][r], bottom = sums[n][2 + r];
        if (FORM == 1) top *= own_scales[0], bottom *= own_scales[1];
        if (FORM == 3) top *= UNSCALED, bottom *= UNSCALED;
        if (BIAS) {
          top += wide(bias[row + quad], false);
          bottom += wide(bias[row + quad + LOWER], false);
        }
        if (UP) {
          const float v = activated(top, bottom, __int_as_float(slope), __int_as_float(shift),
                                    __int_as_float(limit), __int_as_float(cubic));
          ((u16*)out)[pair * OUT + inner] = narrow(v);
        } else {
          ((float*)out)[pair * OUT + inner] = top;
          ((float*)out)[pair * OUT + inner + 8] = bottom;
        }
      }
    row = row_of(unit + WARPS);
#pragma unroll
    for (int i = 0; i < 2; ++i) own_scales[i] = next_scales[i];
  }
  // Warps without a unit of the last tiles load x with the others.
  while (loaded_end <= last_tile) load_x();
  wait_groups<0>();
}
