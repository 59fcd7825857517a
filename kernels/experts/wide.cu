// The two products of a mixture in MXFP4 by a list of pairs, for Hopper: one warp group fetches, two
// others multiply tiles of pairs by tiles of weights. Gates and ups: `out[pair] = activated(x W^T + bias)`.
// Down: each pair's product, which a launch behind this one sums.
//
// Owns what one program does. Must not know which shape wants which constants (macros):
//   UP       it is the product of gates and ups; else the one that is down
//   DEPTH    columns of the stack, whole tiles of 64
//   OUT      gates of an expert, or its outputs; 64 divides it
//   ACTIVE   pairs of a row: pair t ACTIVE + j is row t with its expert j
//   BIAS     the experts have biases
//   ROWS     pairs of a tile; of its last ones as many are multiplied as there are, by 32
//   STAGES   tiles of 64 columns on their way
//
// Weights are the left side of products, rows of x the right one. Numbers of four bits come to shared
// memory as they are, become bfloat16 in registers, and are multiplied from there. A lane has 16
// columns of 64 then, with one power, so x has its columns in another order, in blocks of 64: column
// 16 t + 8 k + 2 i + h, lane t's, is at 32 k + 8 i + 2 t + h. Gates leave in that order too, for the
// product that is down.
//
// A fragment of UP has eight gates and their eight ups in each 16 rows, so that a thread has both. Row
// 8 (2 w + m) + g of a group's gates is row g of warp w in fragment m: the warps' 16 gates each
// follow each other, as the columns of what leaves.
//
// A unit is (tile of pairs, tile of weights). A program has the unit of its number first, then the one
// that nobody has taken yet: tiles are not equally full, and a multiprocessor may be slower than
// others. Those that multiply hear of a unit ahead, with what they will read.

#include "hopper.h"
#include "activation.h"
#include "multiply.h"

typedef unsigned short u16;
typedef unsigned char u8;

constexpr int COLUMNS = 64;
constexpr int GROUPS = 2, FRAGMENTS = 2;  // that multiply; of 64 weight rows each of them
constexpr int OWN = 64 * FRAGMENTS;    // weight rows of a group
constexpr int TILE = OWN * GROUPS;     // of a program
constexpr int FEATURES = UP ? TILE / 2 : TILE;
constexpr int PARTS = (OUT + FEATURES - 1) / FEATURES;
constexpr int STEPS = DEPTH / COLUMNS;
constexpr int LINE = COLUMNS / 2;      // bytes of a weight row in a stage
constexpr int WEIGHT_BYTES = TILE * LINE, X_BYTES = ROWS * COLUMNS * 2;
constexpr int STAGE_BYTES = WEIGHT_BYTES + X_BYTES;
constexpr int EXPERT_ROWS = UP ? 2 * OUT : OUT;
constexpr int POWERS = DEPTH / 32;     // of a weight row
constexpr int POWER_BYTES = TILE * POWERS;
constexpr int FETCHERS = 128, WARPS = 4 * GROUPS;
constexpr int PITCH = 48, AT_ONCE = 32;  // bytes of a pair in what a warp turns, and pairs
constexpr int STAGED_BYTES = PITCH * AT_ONCE;
constexpr int LISTENERS = WARPS + FETCHERS / 32;
constexpr int LINES = ROWS / 16;       // rows of x that a fetching thread has a chunk of
static_assert(DEPTH % COLUMNS == 0 && OUT % 64 == 0 && ROWS % 32 == 0, "whole tiles");

// Start to copy 16 bytes.
__device__ __forceinline__ void copy16(u32 to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from)
               : "memory");
}

// Arrive when all copies have ended that this thread has started.
__device__ __forceinline__ void arrive_behind_copies(u32 barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Start to read a number, here and not where it is used.
__device__ __forceinline__ int load_early(const int* from) {
  int v;
  asm volatile("ld.global.nc.s32 %0, [%1];" : "=r"(v) : "l"(from));
  return v;
}

__device__ __forceinline__ void fetch_box(u32 to, const Map* map, u32 barrier, int a, int b, int c,
                                          int d, int e) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(a), "r"(b), "r"(c), "r"(d), "r"(e)
      : "memory");
}

__device__ __forceinline__ void fetch_line(u32 to, const void* from, u32 barrier, u32 bytes) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// Four matrices of 8 x 8, turned: lane l gives the place of row l % 8 of matrix l / 8.
__device__ __forceinline__ void store_turned(u32 address, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                   address),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

__device__ __forceinline__ uint4 load_shared(u32 address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

__device__ __forceinline__ u32 load_word(u32 address) {
  u32 v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}

__device__ __forceinline__ void store_word(u32 address, u32 v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}

__device__ __forceinline__ u32 load_byte(u32 address) {
  u32 v;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}

// a b + c of two pairs, rounded once.
__device__ __forceinline__ u32 multiply_add(u32 a, u32 b, u32 c) {
  u32 v;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(b), "r"(c));
  return v;
}

#include "e2m1.h"

__device__ __forceinline__ float wide(u16 bits) { return __uint_as_float((u32)bits << 16); }

// The gate at a place of a group's 64.
__device__ __forceinline__ int gate_at(int place) {
  const int chunk = place / 8, lane = place % 8;
  return lane / 2 * 16 + chunk / 4 * 8 + chunk % 4 * 2 + lane % 2;
}

// Request a number that is read later.
__device__ __forceinline__ void prefetch(const int* from) {
  asm volatile("prefetch.global.L1 [%0];" ::"l"(from));
}

// How many of a tile's pairs are multiplied: as many as there are, by 32.
__device__ __forceinline__ int shown_of(const int* pairs, int num_pairs) {
  int count = 32;
#pragma unroll
  for (int i = 32; i < ROWS; i += 32) count += load_early(pairs + i) < num_pairs ? 32 : 0;
  return count;
}

// From a thread's first weight row to its row `half` of fragment m: in shared memory, and
// in the stack, but from a gate to its up.
__device__ __forceinline__ int stored_row(int m, int half) {
  return UP ? 8 * m + OWN / 2 * half : 64 * m + 8 * half;
}
__device__ __forceinline__ int natural_row(int m, int half) {
  return UP ? 2 * m + FEATURES * half : 64 * m + 8 * half;
}

// Where a thread that multiplies finds what it reads in shared memory: weights from the beginning of
// a stage on, and powers of this unit.
struct Own {
  u32 base, full, empty, weights, powers;
  bool is_first;  // lane of its warp
};

// What a thread has of a tile of columns in MXFP4: eight columns of each row, which come twice, and
// the rows' factors.
struct Packed {
  u32 words[FRAGMENTS][2], factors[FRAGMENTS][2];
};

__device__ __forceinline__ void load_words(Packed& to, u32 weights) {
#pragma unroll
  for (int m = 0; m < FRAGMENTS; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      to.words[m][half] = load_word(weights + stored_row(m, half) * LINE);
}

// The beginning of tile `n` of columns, the unit's `step`, when it is there.
__device__ __forceinline__ void load_packed(Packed& to, const Own& at, int step, int n) {
  const int s = n % STAGES;
#pragma unroll
  for (int m = 0; m < FRAGMENTS; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      to.factors[m][half] = factor_of(load_byte(at.powers + 2 * step + natural_row(m, half) * POWERS));
  wait(at.full + 8 * s, (n / STAGES) & 1);
  show_to_products();  // copies of this thread, and those that it knows to have ended
  load_words(to, at.base + s * STAGE_BYTES + at.weights);
}

// Sums with the products of all columns and the first `COUNT` pairs; the tile of columns behind the
// last of `n`.
template <int COUNT>
__device__ __forceinline__ int add_columns(float (&sums)[FRAGMENTS][ROWS / 2], const Own& at,
                                           int n) {
  Packed next;
  load_packed(next, at, 0, n);
  for (int step = 0; step < STEPS; ++step, ++n) {
    const int s = n % STAGES;
    const u32 stage = at.base + s * STAGE_BYTES;
    const u64 right = matrix(stage + WEIGHT_BYTES);
    Packed now = next;
#pragma unroll
    for (int k = 0; k < COLUMNS / 16; ++k) {
      u32 left[FRAGMENTS][4];
#pragma unroll
      for (int m = 0; m < FRAGMENTS; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const u32 word = now.words[m][half], factor = now.factors[m][half];
          left[m][half] = k % 2 ? pair_of<2>(word, factor) : pair_of<0>(word, factor);
          left[m][2 + half] = k % 2 ? pair_of<3>(word, factor) : pair_of<1>(word, factor);
        }
      begin_products();
#pragma unroll
      for (int m = 0; m < FRAGMENTS; ++m)
        multiply<COUNT>(sums[m], left[m][0], left[m][1], left[m][2], left[m][3], right + 2 * k);
      close_products();
      // What is unpacked next comes while products run.
      if (k == 1) load_words(now, stage + at.weights + 4);
      if (k == 3 && step + 1 < STEPS) load_packed(next, at, step + 1, n + 1);
      // The registers of the products before these are free.
      wait_products<1>();
      if (k == 0 && step > 0 && at.is_first) arrive(at.empty + 8 * ((n - 1) % STAGES));
    }
  }
  wait_products<0>();
  if (at.is_first) arrive(at.empty + 8 * ((n - 1) % STAGES));
  return n;
}

// Pass all tiles of columns of a unit without products.
__device__ __forceinline__ int pass_columns(const Own& at, int n) {
  for (int step = 0; step < STEPS; ++step, ++n) {
    wait(at.full + 8 * (n % STAGES), (n / STAGES) & 1);
    if (at.is_first) arrive(at.empty + 8 * (n % STAGES));
  }
  return n;
}

extern "C" __global__ void __launch_bounds__(FETCHERS + 128 * GROUPS, 1)
    wide_experts(const __grid_constant__ Map weight_map,
                 const u16* __restrict__ x,        // UP: [rows, DEPTH], else [pairs, DEPTH]
                 const int* __restrict__ pairs,    // [tiles, ROWS], those from `num_pairs` on fill one
                 const int* __restrict__ experts,  // [tiles]
                 const int* __restrict__ num_tiles,
                 const u8* __restrict__ powers,    // [E EXPERT_ROWS, POWERS], 
                 const u16* __restrict__ bias,     // [E, EXPERT_ROWS], read if BIAS
                 u16* out,                         // [pairs, OUT]
                 int* taken,                       // [2], zeros, and zeros again behind the launch
                 int num_pairs, int num_rows, int slope, int shift, int limit, int cubic) {
  extern __shared__ __align__(1024) char memory[];
  const u32 base = shared_address(memory);
  const u32 scales = base + STAGES * STAGE_BYTES, turned = scales + 2 * POWER_BYTES;
  const u32 full = turned + WARPS * STAGED_BYTES, empty = full + 8 * STAGES;
  const u32 scaled = empty + 8 * STAGES, unscaled = scaled + 16;
  const u32 told = unscaled + 16, heard = told + 16, said = heard + 16;
  const int thread = threadIdx.x, lane = thread % 32;
  const int warp = __shfl_sync(0xffffffff, thread / 32, 0);
  const int group = warp / 4;
  if (thread == 0) {
    for (int s = 0; s < STAGES; ++s)
      init_barrier(full + 8 * s, FETCHERS + 1), init_barrier(empty + 8 * s, WARPS);
    for (int s = 0; s < 2; ++s) {
      init_barrier(scaled + 8 * s, 1), init_barrier(unscaled + 8 * s, WARPS);
      init_barrier(told + 8 * s, 1), init_barrier(heard + 8 * s, LISTENERS);
    }
    show_barriers();
    prefetch_map(&weight_map);
  }
  wait_for_last();
  let_next_begin();
  __syncthreads();
  const int units = *num_tiles * PARTS;
  // The unit behind that of a turn, as the first thread says it.
  const auto hear = [&](int turn) -> int {
    wait(told + 8 * (turn % 2), turn / 2 & 1);
    const int unit = load_word(said + 4 * (turn % 2));
    __syncwarp();
    if (lane == 0) arrive(heard + 8 * (turn % 2));
    return unit;
  };

  if (group == 0) {
    leave_registers<FETCH_REGISTERS>();
    const int chunk = thread % 8, line = thread / 8;
    const u32 to_chunk = WEIGHT_BYTES + line * 128 + ((chunk ^ (line % 8)) << 4);
    int n = 0, turn = 0;  // tiles of columns, units
    int next_pairs[LINES], next_expert, next_count;
    const auto load_next = [&](int unit) {
      const int tile = unit / PARTS;
      next_expert = load_early(experts + tile);
      next_count = shown_of(pairs + tile * ROWS, num_pairs);
#pragma unroll
      for (int i = 0; i < LINES; ++i)
        next_pairs[i] = load_early(pairs + tile * ROWS + 16 * i + line);
    };
    if (blockIdx.x < units) load_next(blockIdx.x);
    int next = 0, ahead = thread == 0 ? gridDim.x + atomicAdd(taken, 1) : 0;
    for (int unit = blockIdx.x; unit < units; unit = next, ++turn) {
      if (thread == 0) {
        if (turn >= 2) wait(heard + 8 * (turn % 2), (turn / 2 - 1) & 1);
        store_word(said + 4 * (turn % 2), ahead);
        arrive(told + 8 * (turn % 2));
        ahead = gridDim.x + atomicAdd(taken, 1);
      }
      next = hear(turn);
      const int feature = unit % PARTS * FEATURES, count = next_count;
      u32 from[LINES];  // what is no pair has the first row's numbers, and leaves nothing
#pragma unroll
      for (int i = 0; i < LINES; ++i) {
        const int pair = next_pairs[i];
        from[i] = (pair < num_pairs ? UP ? pair / ACTIVE : pair : 0) * (DEPTH / 8) + chunk;
      }
      const int row = next_expert * EXPERT_ROWS + feature;
      if (next < units) load_next(next);
      if (thread == 0) {
        const int b = turn % 2;
        if (turn >= 2) wait(unscaled + 8 * b, (turn / 2 - 1) & 1);
        const u32 to = scales + b * POWER_BYTES;
        if (UP) {
          const int ups = min(FEATURES, num_rows - row - OUT);
          expect(scaled + 8 * b, (FEATURES + ups) * POWERS);
          fetch_line(to, powers + (long)row * POWERS, scaled + 8 * b, FEATURES * POWERS);
          fetch_line(to + FEATURES * POWERS, powers + (long)(row + OUT) * POWERS, scaled + 8 * b,
                     ups * POWERS);
        } else {
          const int rows = min(FEATURES, num_rows - row);
          expect(scaled + 8 * b, rows * POWERS);
          fetch_line(to, powers + (long)row * POWERS, scaled + 8 * b, rows * POWERS);
        }
      }
      for (int step = 0; step < STEPS; ++step, ++n) {
        const int s = n % STAGES;
        const u32 to = base + s * STAGE_BYTES;
        if (n >= STAGES) wait(empty + 8 * s, (n / STAGES - 1) & 1);
        if (thread == 0) {
          expect(full + 8 * s, WEIGHT_BYTES);
#pragma unroll
          for (int g = 0; g < GROUPS; ++g) {
            const u32 own = to + g * OWN * LINE;
            if (UP) {
              const int gates = row + g * OWN / 2;
              fetch_box(own, &weight_map, full + 8 * s, step * LINE, 0, gates / 16, 0, 0);
              fetch_box(own + OWN / 2 * LINE, &weight_map, full + 8 * s, step * LINE, 0,
                        (gates + OUT) / 16, 0, 0);
            } else {
              fetch_box(own, &weight_map, full + 8 * s, step * LINE,
                        row + g * OWN, 0, 0, 0);
            }
          }
        }
#pragma unroll
        for (int i = 0; i < LINES; ++i)
          if (16 * i < count) copy16(to + to_chunk + i * 16 * 128, x + (u64)(from[i] + step * 8) * 8);
        arrive_behind_copies(full + 8 * s);
      }
    }
    if (thread == 0) {
      __threadfence();
      // The last program to arrive sets both counters back: no other takes a unit any more.
      if (atomicAdd(taken + 1, 1) == (int)gridDim.x - 1) taken[0] = 0, taken[1] = 0;
    }
  } else {
    take_registers<MULTIPLY_REGISTERS>();
    const int own = group - 1, w = warp % 4, g = lane / 4, t = lane % 4;
    const u32 staged = turned + (warp - 4) * STAGED_BYTES;
    const u32 to_turn = staged + ((lane / 16) * 8 + lane % 8) * PITCH + lane / 8 % 2 * 16;
    const u32 from_turn = staged + lane / 2 * PITCH + lane % 2 * 16;
    const int place = 8 * FRAGMENTS * w + g, plain = 16 * w + g;
    const int first_row = UP ? place : plain;
    const int natural = UP ? own * OWN / 2 + gate_at(place) : own * OWN + plain;
    int n = 0, turn = 0, next_expert = 0, next_count = 0;
    if (blockIdx.x < units) {
      next_expert = load_early(experts + blockIdx.x / PARTS);
      next_count = shown_of(pairs + blockIdx.x / PARTS * ROWS, num_pairs);
    }
    for (int unit = blockIdx.x, next; unit < units; unit = next, ++turn) {
      const int tile = unit / PARTS, feature = (unit - tile * PARTS) * FEATURES;
      const int expert = next_expert, count = next_count;
      // All that is read behind the products, or ahead of the next ones.
      next = hear(turn);
      if (next < units) {
        next_expert = load_early(experts + next / PARTS);
        next_count = shown_of(pairs + next / PARTS * ROWS, num_pairs);
      }
      prefetch(pairs + tile * ROWS + lane * (ROWS / 32));
      float biases[FRAGMENTS][2];
#pragma unroll
      for (int m = 0; m < FRAGMENTS; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int at = feature + natural + natural_row(m, UP ? 0 : half);
          const bool is_read = BIAS && at < OUT;
          biases[m][half] =
              is_read ? wide(bias[(long)expert * EXPERT_ROWS + at + (UP ? half * OUT : 0)]) : 0.0f;
        }
      float sums[FRAGMENTS][ROWS / 2];
#pragma unroll
      for (int m = 0; m < FRAGMENTS; ++m)
#pragma unroll
        for (int j = 0; j < ROWS / 2; ++j) sums[m][j] = 0.0f;
      const int b = turn % 2;
      const Own at = {base,
                      full,
                      empty,
                      (u32)(own * OWN * LINE + first_row * LINE + t * 8),
                      scales + b * POWER_BYTES + natural * POWERS + t / 2,
                      lane == 0};
      wait(scaled + 8 * b, turn / 2 & 1);
      // Behind the last output a group has nothing to multiply.
      if (feature + (UP ? own * OWN / 2 : own * OWN) >= OUT) n = pass_columns(at, n);
      else if (ROWS > 32 && count == 32) n = add_columns<32>(sums, at, n);
      else if (ROWS > 64 && count == 64) n = add_columns<ROWS < 64 ? ROWS : 64>(sums, at, n);
      else if (ROWS > 96 && count == 96) n = add_columns<ROWS < 96 ? ROWS : 96>(sums, at, n);
      else n = add_columns<ROWS>(sums, at, n);
      if (lane == 0) arrive(unscaled + 8 * b);
      // A warp's 16 gates of both fragments, or 16 outputs of one after the other.
#pragma unroll
      for (int part = 0; part < (UP ? 1 : FRAGMENTS); ++part) {
        const int column = feature + (UP ? own * OWN / 2 : own * OWN + 64 * part) + 16 * w;
        if (column >= OUT) continue;
#pragma unroll
        for (int first = 0; first < ROWS / 8; first += AT_ONCE / 8) {
          if (8 * first >= count) continue;
#pragma unroll
          for (int j = first; j < first + AT_ONCE / 8; j += 2) {
            u32 both[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const int eight = 4 * (j + i / 2), half = i % 2;
              float a, b;
              if (UP) {
                const float* v = &sums[half][eight];
                a = activated(v[0] * UNSCALED + biases[half][0], v[2] * UNSCALED + biases[half][1],
                              __int_as_float(slope), __int_as_float(shift), __int_as_float(limit),
                              __int_as_float(cubic));
                b = activated(v[1] * UNSCALED + biases[half][0], v[3] * UNSCALED + biases[half][1],
                              __int_as_float(slope), __int_as_float(shift), __int_as_float(limit),
                              __int_as_float(cubic));
              } else {
                const float* v = &sums[part][eight + 2 * half];
                a = v[0] * UNSCALED + biases[part][half], b = v[1] * UNSCALED + biases[part][half];
              }
              both[i] = packed(a, b);
            }
            store_turned(to_turn + (j - first) * 8 * PITCH, both[0], both[1], both[2], both[3]);
          }
          __syncwarp();
#pragma unroll
          for (int i = 0; i < AT_ONCE / 16; ++i) {
            const uint4 v = load_shared(from_turn + 16 * i * PITCH);
            const int pair = pairs[tile * ROWS + 8 * first + 16 * i + lane / 2];
            if (pair < num_pairs) *(uint4*)(out + (long)pair * OUT + column + lane % 2 * 8) = v;
          }
          __syncwarp();
        }
      }
    }
  }
}
