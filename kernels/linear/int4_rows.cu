// A product of a row, or of up to four, with a weight in 4 bits: each lane loads its words straight
// into registers, before the kernel ahead has ended: `out = x W^T`, with a bias, a residual or the
// SwiGLU of it.
//
// Owns what one program does: tiles of 16 weight rows by all columns. Must not know which shape wants
// which constants (macros):
//   WARPS    each takes every so manieth chunk of 128 columns
//   AT_ONCE  chunks of a warp that are on their way at once
//   TILES    of a program, one behind the other: x and its norm are fetched once for all of them. More
//            than one where all tiles are full
//   BLOCKS   programs that a multiprocessor shall hold, as far as registers go
//   ROWS     of x, in shared memory; the last one repeats where there are fewer
//   DEPTH, GROUP   columns of the weight, and of those that share a scale: multiples of 128
//   HALF, SCALE_HALF, ZEROS, NORM, BIAS, RESIDUAL, SWIGLU, GELU   as in `int4_tiles.cu`
//
// Columns of a chunk may be multiplied in any order that both sides have: lane t of four takes 32
// that follow each other, 16 bytes of each of two weight rows, and word w of them, by pairs of
// nibbles, as steps of 16 columns. x lies in shared memory as the four lanes then read it.

#include "hopper.h"
#define EARLY 0
#include "int4_numbers.h"

constexpr int THREADS = 32 * WARPS;
constexpr int TILE = 16, FEATURES = SWIGLU ? TILE / 2 : TILE;
constexpr int MOST_UNROLLED = 12;
constexpr int CHUNK = 128, CHUNKS = DEPTH / CHUNK;
constexpr int MOST = (CHUNKS + WARPS - 1) / WARPS;
// Of a warp, one behind the other in the code.
constexpr int ROUNDS = MOST <= MOST_UNROLLED ? (MOST + AT_ONCE - 1) / AT_ONCE : 1;
static_assert(!(SWIGLU && RESIDUAL), "a residual is of as many features as the tile has rows");
static_assert(TILES == 1 || (!RESIDUAL && CHUNKS % WARPS == 0 && MOST % AT_ONCE == 0),
              "each word of a tile has the register of one of the tile before");
constexpr int ALL_GROUPS = DEPTH / GROUP;
// Of eight numbers of x: 64 bytes more than a row, so that two rows' lanes meet 32 banks.
constexpr int UNITS = DEPTH / 8, X_PITCH = UNITS + 4;
// Words of scales: rows an odd pitch apart.
constexpr int KEPT_PITCH = ALL_GROUPS | 1, FOURS = TILE * ALL_GROUPS / 4;
constexpr int ALL_FOURS = TILES * FOURS;
// What the warps have found of one tile.
constexpr int FOUND = WARPS * ROWS * TILE;

__device__ __forceinline__ uint4 load_words(const u32* from, u64 policy) {
  uint4 v;
  asm volatile(
      "ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(from), "l"(policy));
  return v;
}

// Into shared memory, without a register meanwhile; 16 bytes past the cache of the multiprocessor,
// which may hold what was there before the kernel ahead.
template <int BYTES>
__device__ __forceinline__ void copy(const void* to, const void* from) {
  const u32 address = shared_address(to);
  if (BYTES == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
  else asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address), "l"(from), "n"(BYTES) : "memory");
}

__device__ __forceinline__ u64 read_once() {
  u64 policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// As far as the L2 cache, which keeps it for the kernel behind.
__device__ __forceinline__ void ask_for(const char* from, u32 bytes) {
  asm volatile(
      "{\n.reg .b64 policy;\ncreatepolicy.fractional.L2::evict_last.b64 policy, 1.0;\n"
      "cp.async.bulk.prefetch.L2.global.L2::cache_hint [%0], %1, policy;\n}" ::"l"(from),
      "r"(bytes)
      : "memory");
}

__device__ __forceinline__ u32 word_of(const uint4& v, int w) {
  return w == 0 ? v.x : w == 1 ? v.y : w == 2 ? v.z : v.w;
}

__device__ __forceinline__ float square_of(u32 pair) {
  const float low = wide((u16)pair, HALF), high = wide((u16)(pair >> 16), HALF);
  return low * low + high * high;
}

__device__ __forceinline__ uint4 times(const uint4& a, const uint4& b) {
  return {times(a.x, b.x), times(a.y, b.y), times(a.z, b.z), times(a.w, b.w)};
}

// Where eight columns are of x: those e of lane t of four as [chunk][e][t].
__device__ __forceinline__ int unit_at(int unit) {
  return unit / 16 * 16 + unit % 4 * 4 + unit / 4 % 4;
}

// Row 0 to 15 of the tile; with SWIGLU the second eight are ups.
__device__ __forceinline__ int weight_row(int row, int tile, int num_out) {
  const int inner = SWIGLU ? row % FEATURES : row;
  const int feature = min(tile * FEATURES + inner, num_out - 1);
  return SWIGLU && row >= FEATURES ? num_out + feature : feature;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    int4_rows(const u32* __restrict__ words, const u16* __restrict__ scales,
              const u8* __restrict__ zeros, const u16* x, const u16* __restrict__ norm,
              const u16* __restrict__ bias, const u16* residual, const char* next, u16* out,
              int num_rows, int num_out, int eps_bits, int next_bytes, int next_half) {
  extern __shared__ __align__(1024) char memory[];
  uint4* const staged_x = (uint4*)memory;
  uint4* const staged_norm = staged_x + ROWS * X_PITCH;
  u32* const kept = (u32*)(staged_norm + (NORM ? UNITS : 0));
  uint2* const raw_scales = (uint2*)(kept + TILES * TILE * KEPT_PITCH);
  u32* const raw_zeros = (u32*)(raw_scales + ALL_FOURS);
  float* const staged = (float*)(raw_zeros + ALL_FOURS);
  float* const squares = staged + (TILES > 1 ? 2 : 1) * FOUND;
  float* const others = squares + WARPS * ROWS;
  const int thread = threadIdx.x, tile = blockIdx.x * TILES, first = tile * FEATURES;
  const int count = min(TILES, (num_out - first + FEATURES - 1) / FEATURES);
  const int warp = __shfl_sync(0xffffffff, thread / 32, 0), lane = thread % 32;
  const int quad = lane / 4, place = lane % 4;

  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  // Weights are parameters: they are on their way before the kernel ahead has ended.
  const u64 policy = read_once();
  const u32* low_at =
      words + (long)weight_row(quad, tile, num_out) * (DEPTH / 8) + warp * 16 + place * 4;
  const u32* high_at =
      words + (long)weight_row(quad + 8, tile, num_out) * (DEPTH / 8) + warp * 16 + place * 4;
  const int own = (CHUNKS - warp + WARPS - 1) / WARPS;
  uint4 low[AT_ONCE], high[AT_ONCE];
#pragma unroll
  for (int i = 0; i < AT_ONCE; ++i) {
    if ((CHUNKS % WARPS == 0 && MOST >= AT_ONCE) || i < own) {
      low[i] = load_words(low_at + i * WARPS * 16, policy);
      high[i] = load_words(high_at + i * WARPS * 16, policy);
    }
  }
  // The memory is idle until the kernel ahead has ended: each program asks for its share of the
  // gates and ups that are multiplied next.
  if (next_bytes > 0 && thread == 0) {
    ask_for(next + (long)blockIdx.x * next_bytes, next_bytes);
    ask_for(next + next_half + (long)blockIdx.x * next_bytes, next_bytes);
  }
  // Scales by fours, each in the place of its word, with zero points behind.
#pragma unroll 1
  for (int i = thread; i < ALL_FOURS; i += THREADS) {
    const int four = i % FOURS, begin = first + i / FOURS * FEATURES, row = 4 * four / ALL_GROUPS;
    if (begin + row % FEATURES / 8 * 8 >= num_out) continue;
    const bool is_up = SWIGLU && row >= FEATURES;
    const long at = (long)(is_up ? num_out + begin - FEATURES : begin) * ALL_GROUPS + 4 * four;
    copy<8>(raw_scales + i, scales + at);
    if (ZEROS) copy<4>(raw_zeros + i, zeros + at);
  }
  if (NORM) {
#pragma unroll 1
    for (int unit = thread; unit < UNITS; unit += THREADS)
      copy<16>(staged_norm + unit, (const uint4*)norm + unit);
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#pragma unroll
  for (int row = 0; row < ROWS; ++row) {
    const uint4* const from = (const uint4*)(x + (long)min(row, num_rows - 1) * DEPTH);
#pragma unroll 2
    for (int unit = thread; unit < UNITS; unit += THREADS)
      copy<16>(staged_x + row * X_PITCH + unit_at(unit), from + unit);
  }
  if (RESIDUAL && thread < ROWS * TILE) {
    // Of rows and features that are: another's else, which nothing reads.
    const int row = min(thread / TILE, num_rows - 1), feature = min(first + thread % TILE, num_out - 1);
    others[thread] = wide(residual[(long)row * num_out + feature], HALF);
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
  // Each thread goes on with what it copied; x is on its way meanwhile.
  asm volatile("cp.async.wait_group 1;" ::: "memory");
#pragma unroll 1
  for (int four = thread; four < ALL_FOURS; four += THREADS) {
    const uint2 pairs = raw_scales[four];
    const u32 points = ZEROS ? raw_zeros[four] : 0x08080808;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // Of all tiles: each has a whole number of fours.
      const int row = (4 * four + i) / ALL_GROUPS, group = (4 * four + i) % ALL_GROUPS;
      const u32 scale = (i < 2 ? pairs.x : pairs.y) >> (i % 2 * 16) & 0xFFFF;
      kept[row * KEPT_PITCH + group] = kept_word(scale, points >> (8 * i));
    }
  }
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  if (NORM) {
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
      float square = 0.0f;
#pragma unroll 2
      for (int unit = thread; unit < UNITS; unit += THREADS) {
        uint4* const at = staged_x + row * X_PITCH + unit_at(unit);
        const uint4 v = *at;
        square += square_of(v.x) + square_of(v.y) + square_of(v.z) + square_of(v.w);
        *at = times(v, staged_norm[unit]);
      }
#pragma unroll
      for (int far = 16; far > 0; far /= 2) square += __shfl_xor_sync(0xffffffff, square, far);
      if (lane == 0) squares[row * WARPS + warp] = square;
    }
  }
  __syncthreads();

  const uint4* const own_x = staged_x + min(quad, ROWS - 1) * X_PITCH + place;
  const u32* own_kept = kept + quad * KEPT_PITCH;
#pragma unroll 1
  for (int t = 0; t < count; ++t) {
    const bool goes_on = TILES > 1 && t + 1 < count;
    float sums[4] = {};
#pragma unroll ROUNDS
    for (int begin = 0; begin < MOST; begin += AT_ONCE) {
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) {
        const int number = begin + i, chunk = number * WARPS + warp;
        if ((CHUNKS % WARPS != 0 || MOST % AT_ONCE != 0) && number >= own) continue;
        const u32 low_kept = own_kept[chunk * CHUNK / GROUP];
        const u32 high_kept = own_kept[8 * KEPT_PITCH + chunk * CHUNK / GROUP];
        const u32 low_zeros = __byte_perm(low_kept, 0, 0x1010);
        const u32 high_zeros = __byte_perm(high_kept, 0, 0x1010);
        // Steps of either half are added up on their own: products wait half as long.
        float parts[2][4] = {};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint4 first = own_x[chunk * 16 + half * 8];
          const uint4 second = own_x[chunk * 16 + half * 8 + 4];
#pragma unroll
          for (int w = 0; w < 4; ++w) {
            const u32 a = word_of(low[i], w), b = word_of(high[i], w);
            multiply(parts[half], pair_of(a, 2 * half, low_zeros, 0),
                     pair_of(b, 2 * half, high_zeros, 0), pair_of(a, 2 * half + 1, low_zeros, 0),
                     pair_of(b, 2 * half + 1, high_zeros, 0), word_of(first, w), word_of(second, w));
          }
        }
        if (number + AT_ONCE < (TILES > 1 ? MOST : own)) {
          low[i] = load_words(low_at + (number + AT_ONCE) * WARPS * 16, policy);
          high[i] = load_words(high_at + (number + AT_ONCE) * WARPS * 16, policy);
        } else if (goes_on) {
          // Those of the next tile, whose rows follow.
          const int behind = FEATURES * (DEPTH / 8) + (number + AT_ONCE - MOST) * WARPS * 16;
          low[i] = load_words(low_at + behind, policy);
          high[i] = load_words(high_at + behind, policy);
        }
        const float low_factor = wide(low_kept >> 16, SCALE_HALF);
        const float high_factor = wide(high_kept >> 16, SCALE_HALF);
        sums[0] += low_factor * (parts[0][0] + parts[1][0]);
        sums[2] += high_factor * (parts[0][2] + parts[1][2]);
        if (ROWS > 1) {
          sums[1] += low_factor * (parts[0][1] + parts[1][1]);
          sums[3] += high_factor * (parts[0][3] + parts[1][3]);
        }
      }
    }

    // By turns in two places: a tile is finished while the next one is multiplied.
    float* const found = staged + t % 2 * FOUND;
    if (2 * place < ROWS) {
      float* const to = found + (warp * ROWS + 2 * place) * TILE + quad;
      to[0] = sums[0], to[8] = sums[2];
      if (ROWS > 1) to[TILE] = sums[1], to[TILE + 8] = sums[3];
    }
    __syncthreads();
    // By other warps each time.
    const int i = (thread + THREADS - t % WARPS * 32) % THREADS;
    const int out_row = i / FEATURES, feature = first + t * FEATURES + i % FEATURES;
    if (i < ROWS * FEATURES && out_row < num_rows && feature < num_out) {
      float v = 0.0f, up = 0.0f, square = 0.0f;
#pragma unroll
      for (int w = 0; w < WARPS; ++w) {
        const float* const from = found + (w * ROWS + out_row) * TILE + i % FEATURES;
        v += from[0];
        if (SWIGLU) up += from[FEATURES];
        if (NORM) square += squares[out_row * WARPS + w];
      }
      if (NORM) {
        const float factor = rsqrtf(square / DEPTH + __int_as_float(eps_bits));
        v *= factor, up *= factor;
      }
      if (SWIGLU) v = opened(v) * up;
      if (BIAS) v += wide(bias[feature], HALF);
      if (RESIDUAL) v += others[i];
      out[(long)out_row * num_out + feature] = narrow(v);
    }
    own_kept += TILE * KEPT_PITCH;
    low_at += FEATURES * (DEPTH / 8), high_at += FEATURES * (DEPTH / 8);
  }
}
