// A product of rows with a weight in 4 bits: words come by the card's copy engine, become numbers of
// x's dtype in registers, and are multiplied by the tensor cores: `out = x W^T`, with a bias, a
// residual or the SwiGLU of it.
//
// Owns what one program does. Must not know which shape wants which constants (macros):
//   WARPS_M, WARPS_K, MT   warps side by side along weight rows and along columns; 16 MT rows each
//   TURNS    groups of such warps, each of which takes every so manieth stage
//   NT       rows of x in a tile, in eights; rows behind the last are zeros
//   WIDE     a stage has so many times 256 columns
//   STAGES   of them are on their way at once
//   LONE     x is one row, which lies whole in shared memory, as digits; else a stage brings its
//            columns, and those of `norm`
//   SPLITS   programs of one cluster that share the columns of a tile and add up in their order
//   BLOCKS   programs that a multiprocessor shall hold, as far as registers go
//   DEPTH, GROUP   columns of the weight, and of those that share a scale
//   HALF, SCALE_HALF   x, and scales, are float16; else bfloat16
//   ZEROS    zero points are read; else they are 8
//   NORM     x is normalised: times `norm` before the product, the row's scale at its end
//   BIAS, RESIDUAL, SWIGLU, GELU   what follows the sums, which are rounded once
//   EARLY    numbers get their scale, of x's dtype, before the product, and are rounded once: fewer
//            registers. Else sums of a group get it, in float32
//   WGMMA    warp groups multiply, beside the lanes that make the next numbers; EARLY only
//   ONCE     no other program reads the weight: it may leave the cache first
//
// The weight is the product's left side. A word holds eight columns of 32: the quarter of the
// fragment that its lane needs for two steps of 16 columns (`kernels/int4/weight.py`), so that
// `ldmatrix` of words gives fragments. A number's bits under a fixed exponent are 128 + q (1024 + q
// in float16); less 128 + z that is q - z, exactly.
//
// A row of x that is LONE would leave seven of eight columns of that product empty, and most of the
// time is words' way into numbers. So there nibbles become bytes, half a word by one instruction,
// and x three bytes: its numbers, times `norm`, are whole multiples of a step of 2^-22 of the power
// of two above the largest, each with 2^22 added. They are three columns of a product of bytes, whose
// sums are exact; a fourth, of ones, has the sums of the weight's numbers, by which 2^22 is taken
// away. The same product by a row of ones has what is taken away for zero points. A number of
// bfloat16 is a multiple of the step as it is, unless it is smaller than 2^-14 of the largest.

#include "hopper.h"
#if WGMMA
#include "products.h"
#endif

typedef unsigned short u16;
typedef unsigned char u8;

constexpr int COLUMNS = 256 * WIDE;
constexpr int TILE = 16 * MT * WARPS_M;
constexpr int ROWS = 8 * NT;
constexpr int GROUP_WARPS = WARPS_M * WARPS_K, WARPS = GROUP_WARPS * TURNS;
// Warps, or groups of them, that each have a part of the same sums.
constexpr int PARTS = WARPS_K * TURNS;
static_assert(STAGES % TURNS == 0, "a stage is always the same group's");
static_assert(!WGMMA || (EARLY && !HALF && !NORM && MT == 1 && WARPS_M % 4 == 0 && TURNS == 1 &&
                         WARPS_K <= 2 && WIDE == 1), "what a warp group multiplies");
static_assert(COLUMNS / WARPS_K >= 64, "what a warp takes of a stage");
static_assert(!LONE || (NT == 1 && !EARLY), "one row");
static_assert((WIDE == 1 && !LONE) || DEPTH % COLUMNS == 0, "every stage is full");
constexpr int WEIGHT_BYTES = TILE * COLUMNS / 2;
constexpr int X_BYTES = LONE ? 0 : ROWS * COLUMNS * 2;
constexpr int STAGE_BYTES = WEIGHT_BYTES + X_BYTES;
constexpr int NORM_BYTES = NORM && !LONE ? COLUMNS * 2 : 0;
// Parts of 128 columns of the row that one warp has; more of them are read twice than kept.
constexpr int ROW_PARTS = (DEPTH / 128 + WARPS - 1) / WARPS, MOST_KEPT = 12;
constexpr int FEATURES = SWIGLU ? TILE / 2 : TILE;
constexpr int ALL_STEPS = (DEPTH + COLUMNS - 1) / COLUMNS;
// Digits and ones of the columns of a program, and what each warp has found of its part of the row.
constexpr int DIGIT_BYTES = LONE ? (ALL_STEPS + SPLITS - 1) / SPLITS * COLUMNS * 4 : 0;
constexpr int LONE_BYTES = LONE ? DIGIT_BYTES + 8 * WARPS : 0;
constexpr int ALL_GROUPS = DEPTH / GROUP, PART_GROUPS = COLUMNS / GROUP;
// Scales that are read with one load.
constexpr int AT_ONCE = ALL_GROUPS % 4 ? 1 : 4;
// Rows of sums that are kept.
constexpr int SUM_ROWS = LONE ? 1 : ROWS;
// Of floats of one row of x: four more than the tile, so that the 32 lanes of a store meet 32 banks.
constexpr int PITCH = TILE + 4;
// Columns of a step that one warp takes, and those of it that share a scale.
constexpr int SLICE = COLUMNS / WARPS_K;
constexpr int SEGMENT = GROUP < SLICE ? GROUP : SLICE;
constexpr u32 NIBBLES = 0x000F000F;
constexpr u32 BYTES = 0x0F0F0F0F, ONES = 0x01010101;
constexpr u32 EXPONENTS = HALF ? 0x64006400 : 0x43004300;
// Of x, as instructions name it.
#if HALF
#define KIND "f16"
#else
#define KIND "bf16"
#endif

__device__ __forceinline__ void fetch_line(u32 to, const void* from, u32 barrier, u32 bytes) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

__device__ __forceinline__ void load_tiles(u32 (&v)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(address));
}

__device__ __forceinline__ void multiply(float (&sums)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0,
                                         u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32." KIND "." KIND
      ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Bytes without signs, 32 columns.
__device__ __forceinline__ void multiply_bytes(int (&sums)[4], u32 a0, u32 a1, u32 a2, u32 a3,
                                               uint2 b) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b.x), "r"(b.y));
}

__device__ __forceinline__ u32 less(u32 a, u32 b) {
  u32 v;
  asm("sub.rn." KIND "x2 %0, %1, %2;" : "=r"(v) : "r"(a), "r"(b));
  return v;
}

__device__ __forceinline__ u32 times(u32 a, u32 b) {
  u32 v;
  asm("mul.rn." KIND "x2 %0, %1, %2;" : "=r"(v) : "r"(a), "r"(b));
  return v;
}

// Two numbers q - z of a word, nibbles `pair` and `pair + 4`, EARLY times their scale. `zeros` are
// 128 + z, `factors` the scale, twice each.
__device__ __forceinline__ u32 pair_of(u32 word, int pair, u32 zeros, u32 factors) {
  u32 v;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;"
      : "=r"(v)
      : "r"(word >> (4 * pair)), "n"(NIBBLES), "n"(EXPONENTS));
  return EARLY ? times(less(v, zeros), factors) : less(v, zeros);
}

__device__ __forceinline__ float wide(u16 bits, bool is_half) {
  float v;
  if (is_half) asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(bits));
  else v = __uint_as_float((u32)bits << 16);
  return v;
}

__device__ __forceinline__ u16 narrow(float v) {
  u16 bits;
  asm("cvt.rn." KIND ".f32 %0, %1;" : "=h"(bits) : "f"(v));
  return bits;
}

// A float at the same place of a program of the cluster.
__device__ __forceinline__ float load_of(u32 program, u32 address) {
  float v;
  if (SPLITS > 1)
    asm volatile(
        "{\n.reg .u32 there;\nmapa.shared::cluster.u32 there, %1, %2;\n"
        "ld.shared::cluster.f32 %0, [there];\n}"
        : "=f"(v)
        : "r"(address), "r"(program));
  else asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address));
  return v;
}

// What all programs and warps that share the columns have found, in their order.
__device__ __forceinline__ float gathered(u32 address, u32 next) {
  float v = 0.0f;
#pragma unroll
  for (int split = 0; split < SPLITS; ++split) {
#pragma unroll
    for (int k = 0; k < PARTS; ++k) v += load_of(split, address + k * next);
  }
  return v;
}

// silu, or gelu in its tanh form: v * sigmoid(y).
__device__ __forceinline__ float opened(float v) {
  const float y = GELU ? 1.5957691216057308f * (v + 0.044715f * v * v * v) : v;
  return __fdividef(v, 1.0f + __expf(-y));
}

__device__ __forceinline__ int weight_row(int row, int tile, int num_out) {
  const int inner = SWIGLU ? row % FEATURES : row;
  const int feature = min(tile * FEATURES + inner, num_out - 1);
  return SWIGLU && row >= FEATURES ? num_out + feature : feature;
}

// The low bits of each; LONE the zero point itself.
__device__ __forceinline__ u32 kept_word(u32 scale, u32 zero) {
  return (scale << 16) | ((LONE ? 0 : EXPONENTS & 0xFFFF) + (zero & 0xFF));
}

// Where a lane's four bytes of a digit lie (3: the ones), of 128 columns that begin at `part`: 32
// columns have 128 bytes, whose quarters are turned so that the lanes of a store meet 32 banks.
__device__ __forceinline__ u32* digit_at(char* digits, int part, int digit, int lane) {
  const int quarter = lane / 8;
  return (u32*)(digits + (part * 4 + quarter) * 128 + (digit + quarter) % 4 * 32 + lane % 4 * 8 +
                lane / 4 % 2 * 4);
}

// Of 128 columns of a row a lane's two words, the second eight behind the first: of columns c and
// c + 1, and of c + 16 and c + 17, which are side by side in `multiply_bytes`.
__device__ __forceinline__ const u32* two_words(const u16* row, int part, int lane) {
  return (const u32*)(row + part * 128 + lane / 8 * 32 + lane / 4 % 2 * 8 + lane % 4 * 2);
}

// Four numbers of x in steps, as digits.
__device__ __forceinline__ void store_digits(char* digits, int part, u32 low, u32 high, float steps,
                                             int lane) {
  // 2^23 and the 2^22 that are added: the last 23 bits are the number's.
  constexpr float ADDED = 12582912.0f;
  const u32 a = __float_as_uint(fmaf(wide((u16)low, HALF), steps, ADDED));
  const u32 b = __float_as_uint(fmaf(wide((u16)high, HALF), steps, ADDED));
  const u32 c = __float_as_uint(fmaf(wide((u16)(low >> 16), HALF), steps, ADDED));
  const u32 d = __float_as_uint(fmaf(wide((u16)(high >> 16), HALF), steps, ADDED));
  const u32 left = __byte_perm(a, b, 0x5140), right = __byte_perm(c, d, 0x5140);
  *digit_at(digits, part, 0, lane) = __byte_perm(left, right, 0x5410);
  *digit_at(digits, part, 1, lane) = __byte_perm(left, right, 0x7632);
  *digit_at(digits, part, 2, lane) =
      __byte_perm(__byte_perm(a, b, 0x62), __byte_perm(c, d, 0x62), 0x5410);
}

extern "C" __global__ void __launch_bounds__(32 * (WARPS + 1), BLOCKS) __cluster_dims__(SPLITS, 1, 1)
    int4_tiles(const __grid_constant__ Map weight_map, const __grid_constant__ Map x_map,
               const u16* __restrict__ scales, const u8* __restrict__ zeros,
               const u16* __restrict__ norm, const u16* __restrict__ bias, const u16* residual,
               const u16* x_row, u16* out, int num_rows, int num_out, int eps_bits) {
  extern __shared__ __align__(1024) char memory[];
  const u32 base = shared_address(memory);
  const u32 norms = base + STAGES * STAGE_BYTES;
  constexpr int ROW_AT = STAGES * (STAGE_BYTES + NORM_BYTES);
  const u32 full = base + ROW_AT + LONE_BYTES, empty = full + 8 * STAGES;
  u32* const kept = (u32*)(memory + ROW_AT + LONE_BYTES + 16 * STAGES);
  u32 split = 0;
  if (SPLITS > 1) asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(split));
  const int row_tiles = (num_rows + ROWS - 1) / ROWS;
  const int block = blockIdx.x / SPLITS;
  const int tile = block / row_tiles, first_row = block % row_tiles * ROWS;
  const int first = ALL_STEPS * (int)split / SPLITS;
  const int steps = ALL_STEPS * ((int)split + 1) / SPLITS - first;
  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0), lane = threadIdx.x % 32;

  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  const auto fetch_rows = [&](u32 to, u32 barrier, int i, int row) {
    if (WIDE > 1) {
      if (ONCE) fetch_once(to, &weight_map, barrier, 0, row, (first + i) * WIDE);
      else fetch(to, &weight_map, barrier, 0, row, (first + i) * WIDE);
    } else {
      if (ONCE) fetch_once(to, &weight_map, barrier, (first + i) * (COLUMNS / 4), row);
      else fetch(to, &weight_map, barrier, (first + i) * (COLUMNS / 4), row);
    }
  };
  // [gates, then ups][tiles of 256 columns][weight rows][256]
  const auto fetch_weights = [&](int i) {
    const int s = i % STAGES;
    const u32 barrier = full + 8 * s, to = base + s * STAGE_BYTES;
    expect(barrier, STAGE_BYTES + NORM_BYTES);
    fetch_rows(to, barrier, i, tile * FEATURES);
    if (SWIGLU) fetch_rows(to + WEIGHT_BYTES / 2, barrier, i, num_out + tile * FEATURES);
    if (NORM && !LONE)
      fetch_line(norms + s * NORM_BYTES, norm + (first + i) * COLUMNS, barrier, NORM_BYTES);
  };
  if (warp == WARPS && lane == 0) {
    // Without this the map would be read only when the kernel ahead has ended.
    asm volatile("prefetch.tensormap [%0];" ::"l"(&x_map) : "memory");
    for (int s = 0; s < STAGES; ++s) init_barrier(full + 8 * s, 1), init_barrier(empty + 8 * s, GROUP_WARPS);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    // Weights are parameters: they are on their way before the kernel ahead has ended.
    for (int i = 0; i < min(steps, STAGES); ++i) fetch_weights(i);
  }
  __syncthreads();

  if (warp == WARPS) {
    if (lane == 0) {
      if (!LONE) asm volatile("griddepcontrol.wait;" ::: "memory");
      for (int i = LONE ? STAGES : 0; i < steps; ++i) {
        const int s = i % STAGES;
        if (i >= STAGES) {
          wait(empty + 8 * s, (i / STAGES - 1) & 1);
          fetch_weights(i);
        }
        // [columns of 64][rows][64]
        if (!LONE) fetch(base + s * STAGE_BYTES + WEIGHT_BYTES, &x_map, full + 8 * s, 0, first_row,
              (first + i) * (COLUMNS / 64));
      }
    }
    if (SPLITS > 1) meet_cluster(), meet_cluster();
    return;
  }

  // Scales with their zero points: one word each, scale << 16 | 128 + z, rows an odd pitch apart.
  // Groups behind the last repeat others: no column has them.
  const int from = first * PART_GROUPS / AT_ONCE * AT_ONCE;
  const int pieces = ((first + steps) * PART_GROUPS - from + AT_ONCE - 1) / AT_ONCE;
  const int pitch = pieces * AT_ONCE | 1;
#pragma unroll 8
  for (int i = threadIdx.x; i < TILE * pieces; i += 32 * WARPS) {
    const int row = i / pieces, at = (i - row * pieces) * AT_ONCE;
    const int group = min(from + at, ALL_GROUPS - AT_ONCE);
    const long place = (long)weight_row(row, tile, num_out) * ALL_GROUPS + group;
    u32* const to = kept + row * pitch + at;
    if (AT_ONCE == 4) {
      const uint2 four = *(const uint2*)(scales + place);
      const u32 zero = ZEROS ? *(const u32*)(zeros + place) : 0x08080808;
      to[0] = kept_word(four.x, zero), to[1] = kept_word(four.x >> 16, zero >> 8);
      to[2] = kept_word(four.y, zero >> 16), to[3] = kept_word(four.y >> 16, zero >> 24);
    } else {
      to[0] = kept_word(scales[place], ZEROS ? zeros[place] : 8);
    }
  }
#if LONE
  char* const digits = memory + ROW_AT;
  float2* const found = (float2*)(digits + DIGIT_BYTES);
  u32 row_words[ROW_PARTS < MOST_KEPT ? ROW_PARTS : MOST_KEPT][2];
  u32 norm_words[ROW_PARTS < MOST_KEPT ? ROW_PARTS : MOST_KEPT][2];
  constexpr bool IS_KEPT = ROW_PARTS <= MOST_KEPT;
#pragma unroll
  for (int n = 0; n < ROW_PARTS; ++n) {
    const int own = warp + n * WARPS;
    if (own >= DEPTH / 128) break;
    if (own < steps * (COLUMNS / 128)) *digit_at(digits, own, 3, lane) = ONES;
    if (NORM && IS_KEPT) {
      const u32* const words = two_words(norm, own, lane);
      norm_words[n][0] = words[0], norm_words[n][1] = words[8];
    }
  }
#endif
  asm volatile("bar.sync 1, %0;" ::"n"(32 * WARPS) : "memory");

  const int own_m = warp % WARPS_M, part = warp / WARPS_M, own_k = part % WARPS_K;
  float sums[MT][NT][4] = {}, parts[MT][NT][4] = {}, squares[NT][4] = {};
  u32 zero_pairs[MT][2], factor_pairs[MT][2];
  float factors[MT][2];
  float added = 0.0f, row_square = 0.0f;
  const int lane_row = lane % 8, lane_tile = lane / 8;
  u32 words_at[MT];
#pragma unroll
  for (int m = 0; m < MT; ++m) {
    const int row = (own_m * MT + m) * 16 + (lane_tile & 1) * 8;
    const int above = WIDE > 1 ? row / FEATURES * (WIDE - 1) * FEATURES : 0;
    words_at[m] = (row + above + lane_row) * 128;
  }
  const u32 x_at = WEIGHT_BYTES + lane_row * 128;
  const u32* const own_kept =
      kept + (own_m * MT * 16 + lane / 4) * pitch + first * PART_GROUPS - from;
#if WGMMA
  // Those of 64 columns are multiplied while the next ones are made.
  u32 made[2][16] = {};
  float(&group_sums)[4 * NT] = *(float(*)[4 * NT])sums;
  for (int i = 0; i < steps; ++i) {
    const u32 stage = base + i % STAGES * STAGE_BYTES;
    wait(full + 8 * (i % STAGES), (i / STAGES) & 1);
#pragma unroll
    for (int j = 0; j < SLICE / 64; ++j) {
      const int block64 = own_k * (SLICE / 64) + j;
      u32 words[4];
      load_tiles(words, stage + words_at[0] + (((2 * block64 + (lane_tile >> 1)) ^ lane_row) << 4));
      u32(&left)[16] = made[j % 2];
      wait_made(left);
      // All products of the stage before are done.
      if (j == 1 && i > 0 && lane == 0) arrive(empty + 8 * ((i - 1) % STAGES));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if ((64 * j + 32 * half) % SEGMENT == 0) {
          const int group = i * PART_GROUPS + (own_k * SLICE + 64 * j + 32 * half) / GROUP;
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const u32 both = own_kept[8 * r * pitch + group];
            zero_pairs[0][r] = __byte_perm(both, 0, 0x1010);
            factor_pairs[0][r] = __byte_perm(both, 0, 0x3232);
          }
        }
#pragma unroll
        for (int r = 0; r < 8; ++r)
          left[8 * half + r] = pair_of(words[2 * half + r % 2], r / 2, zero_pairs[0][r % 2],
                                       factor_pairs[0][r % 2]);
      }
      const u32 rows = stage + WEIGHT_BYTES + block64 * ROWS * 128;
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
      for (int k = 0; k < 4; ++k)
        multiply_group(group_sums, left[4 * k], left[4 * k + 1], left[4 * k + 2], left[4 * k + 3],
                       matrix(rows + 32 * k));
      asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    }
  }
  wait_all(group_sums, made[0], made[1]);
#else
#if LONE
  asm volatile("griddepcontrol.wait;" ::: "memory");
  // With the row, not behind its sums: there a program would wait for the L2 cache once more.
  if (RESIDUAL) {
    const int own = FEATURES * (int)split / SPLITS + threadIdx.x;
    const int feature = tile * FEATURES + own;
    if (own < FEATURES && feature < num_out) added = wide(residual[feature], HALF);
  }
  // Straight from the L2 cache: the copy engine would bring it behind weights that are under way.
  const auto load_row = [&](u32 (&to)[2], int own) {
    const u32* const words = two_words(x_row, own, lane);
    to[0] = words[0], to[1] = words[8];
  };
  const auto norm_row = [&](u32 (&words)[2], const u32 (&kept_norm)[2], int own) {
    const u32* const weights = two_words(norm, own, lane);
#pragma unroll
    for (int r = 0; NORM && r < 2; ++r)
      words[r] = times(words[r], IS_KEPT ? kept_norm[r] : weights[8 * r]);
  };
  if (IS_KEPT) {
#pragma unroll
    for (int n = 0; n < ROW_PARTS; ++n)
      if (warp + n * WARPS < DEPTH / 128) load_row(row_words[n], warp + n * WARPS);
  }
  u32 most = 0;
#pragma unroll
  for (int n = 0; n < ROW_PARTS; ++n) {
    const int own = warp + n * WARPS, at = IS_KEPT ? n : 0;
    if (own >= DEPTH / 128) break;
    if (!IS_KEPT) load_row(row_words[at], own);
#pragma unroll
    for (int r = 0; NORM && r < 2; ++r) {
      const float low = wide((u16)row_words[at][r], HALF);
      const float high = wide((u16)(row_words[at][r] >> 16), HALF);
      row_square += low * low + high * high;
    }
    norm_row(row_words[at], norm_words[at], own);
#pragma unroll
    for (int r = 0; r < 2; ++r) most = __vmaxu2(most, row_words[at][r] & 0x7FFF7FFF);
  }
  // As whole numbers, of which NaN is the largest.
  most = __reduce_max_sync(0xffffffff, max(most & 0xFFFF, most >> 16));
  if (NORM) {
#pragma unroll
    for (int other = 16; other > 0; other /= 2)
      row_square += __shfl_xor_sync(0xffffffff, row_square, other);
  }
  if (lane == 0) found[warp] = make_float2(__uint_as_float(most), row_square);
  asm volatile("bar.sync 1, %0;" ::"n"(32 * WARPS) : "memory");
  row_square = 0.0f, most = 0;
#pragma unroll
  for (int w = 0; w < WARPS; ++w) {
    const float2 theirs = found[w];
    most = max(most, __float_as_uint(theirs.x)), row_square += theirs.y;
  }
  // 2^-22 of the power of two above the largest number.
  const int exponent = max(__float_as_uint(wide((u16)most, HALF)) >> 23, 40u);
  const float step = __uint_as_float(exponent == 255 ? 0x7FFFFFFF : (exponent - 21) << 23);
  const float steps_of = __uint_as_float((275 - exponent) << 23);
#pragma unroll
  for (int n = 0; n < ROW_PARTS; ++n) {
    const int own = warp + n * WARPS, at = IS_KEPT ? n : 0;
    if (own >= DEPTH / 128) break;
    if (!IS_KEPT) load_row(row_words[at], own), norm_row(row_words[at], norm_words[at], own);
    const int place = own - first * (COLUMNS / 128);  // other columns are other programs'
    if (place >= 0 && place < steps * (COLUMNS / 128))
      store_digits(digits, place, row_words[at][0], row_words[at][1], steps_of, lane);
  }
  asm volatile("bar.sync 1, %0;" ::"n"(32 * WARPS) : "memory");
  // The eight columns of a product are digits 0 and 1, 2 and ones, and the same again; a lane has
  // two of them: the first digit and 256 times the second, or the third less its part of 2^22.
  const int weight_of = lane % 2 ? -64 : 256;
  const char* own_digits[4];
#pragma unroll
  for (int quarter = 0; quarter < 4; ++quarter)
    own_digits[quarter] = digits + own_k * (SLICE * 4) + lane % 4 * 8 +
                          (lane / 4 + quarter + own_k * (SLICE / 32)) % 4 * 32;
  int counts[MT][4], ones[4];
#endif
  for (int i = part / WARPS_K; i < steps; i += TURNS) {
    const int s = i % STAGES;
    const u32 stage = base + s * STAGE_BYTES;
    wait(full + 8 * s, (i / STAGES) & 1);
#pragma unroll
    for (int j = 0; j < SLICE / 64; ++j) {
      // 64 columns: two chunks of 16 bytes of words, eight of x, which lie swizzled.
      const int block64 = own_k * (SLICE / 64) + j;
      const int inner64 = WIDE > 1 ? block64 % 4 : block64;
      const u32 behind = WIDE > 1 ? block64 / 4 * (FEATURES * 128) : 0;
      u32 words[MT][4];
#pragma unroll
      for (int m = 0; m < MT; ++m)
        load_tiles(words[m], stage + words_at[m] + behind +
                                 (((2 * inner64 + (lane_tile >> 1)) ^ lane_row) << 4));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#if LONE
        const int column = 64 * j + 32 * half;
        const uint2 x =
            *(const uint2*)(own_digits[(2 * j + half) % 4] + i * (COLUMNS * 4) + column * 4);
        const bool is_first = column % SEGMENT == 0;
#pragma unroll
        for (int r = 0; r < 4; ++r) ones[r] = is_first ? 0 : ones[r];
        multiply_bytes(ones, ONES, ONES, ONES, ONES, x);
#pragma unroll
        for (int m = 0; m < MT; ++m) {
#pragma unroll
          for (int r = 0; r < 4; ++r) counts[m][r] = is_first ? 0 : counts[m][r];
          const u32 low = words[m][2 * half], high = words[m][2 * half + 1];
          multiply_bytes(counts[m], low & BYTES, high & BYTES, (low >> 4) & BYTES,
                         (high >> 4) & BYTES, x);
        }
        if ((column + 32) % SEGMENT == 0) {
          const int group = i * PART_GROUPS + (own_k * SLICE + column) / GROUP;
          const int of_ones = ones[0] + weight_of * ones[1];
#pragma unroll
          for (int m = 0; m < MT; ++m) {
#pragma unroll
            for (int r = 0; r < 2; ++r) {
              const u32 both = own_kept[(16 * m + 8 * r) * pitch + group];
              const int count = counts[m][2 * r] + weight_of * counts[m][2 * r + 1];
              sums[m][0][2 * r] +=
                  (float)(count - (int)(both & 0xFF) * of_ones) * wide(both >> 16, SCALE_HALF);
            }
          }
        }
#else
        u32 x[NT][4];
#pragma unroll
        for (int n = 0; n < NT; ++n)
          load_tiles(x[n], stage + x_at + (block64 * ROWS + n * 8) * 128 +
                               (((4 * half + lane_tile) ^ lane_row) << 4));
        if (NORM) {
          u32 weights[4];
          load_tiles(weights,
                     norms + s * NORM_BYTES + block64 * 128 + half * 64 + lane_tile * 16);
#pragma unroll
          for (int n = 0; n < NT; ++n) {
            // The squares of rows are the diagonal of x x^T.
            multiply(squares[n], x[n][0], 0, x[n][1], 0, x[n][0], x[n][1]);
            multiply(squares[n], x[n][2], 0, x[n][3], 0, x[n][2], x[n][3]);
#pragma unroll
            for (int r = 0; r < 4; ++r) x[n][r] = times(x[n][r], weights[r]);
          }
        }
        const int column = 64 * j + 32 * half;
        if (column % SEGMENT == 0) {
          const int group = i * PART_GROUPS + (own_k * SLICE + column) / GROUP;
#pragma unroll
          for (int m = 0; m < MT; ++m) {
#pragma unroll
            for (int r = 0; r < 2; ++r) {
              const u32 both = own_kept[(16 * m + 8 * r) * pitch + group];
              zero_pairs[m][r] = __byte_perm(both, 0, 0x1010);
              if (EARLY) factor_pairs[m][r] = __byte_perm(both, 0, 0x3232);
              else factors[m][r] = wide(both >> 16, SCALE_HALF);
            }
          }
        }
#pragma unroll
        for (int m = 0; m < MT; ++m) {
          const u32 low = words[m][2 * half], high = words[m][2 * half + 1];
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            const u32 a0 = pair_of(low, 2 * k, zero_pairs[m][0], factor_pairs[m][0]);
            const u32 a1 = pair_of(high, 2 * k, zero_pairs[m][1], factor_pairs[m][1]);
            const u32 a2 = pair_of(low, 2 * k + 1, zero_pairs[m][0], factor_pairs[m][0]);
            const u32 a3 = pair_of(high, 2 * k + 1, zero_pairs[m][1], factor_pairs[m][1]);
#pragma unroll
            for (int n = 0; n < NT; ++n)
              multiply(EARLY ? sums[m][n] : parts[m][n], a0, a1, a2, a3, x[n][2 * k],
                       x[n][2 * k + 1]);
          }
        }
        if (!EARLY && (column + 32) % SEGMENT == 0) {
#pragma unroll
          for (int m = 0; m < MT; ++m) {
#pragma unroll
            for (int n = 0; n < NT; ++n) {
#pragma unroll
              for (int r = 0; r < 4; ++r) {
                sums[m][n][r] += factors[m][r / 2] * parts[m][n][r];
                parts[m][n][r] = 0.0f;
              }
            }
          }
        }
#endif
      }
    }
    __syncwarp();
    if (lane == 0) arrive(empty + 8 * s);
  }
#if LONE
  const float unit = lane % 2 ? 65536.0f * step : step;
#pragma unroll
  for (int m = 0; m < MT; ++m) {
#pragma unroll
    for (int r = 0; r < 4; r += 2) {
      sums[m][0][r] *= unit;
      sums[m][0][r] += __shfl_xor_sync(0xffffffff, sums[m][0][r], 1);
    }
  }
#endif
#endif

  asm volatile("griddepcontrol.wait;" ::: "memory");
  // All stages are read: sums take their place.
  asm volatile("bar.sync 1, %0;" ::"n"(32 * WARPS) : "memory");
  float* const staged = (float*)memory + part * SUM_ROWS * PITCH;
  float* const squared = (float*)memory + PARTS * ROWS * PITCH;
  const int quad = lane / 4, place = lane % 4;
#pragma unroll
  for (int n = 0; n < NT; ++n) {
#pragma unroll
    for (int m = 0; m < MT; ++m) {
      float* const at = staged + (8 * n + 2 * place) * PITCH + (own_m * MT + m) * 16 + quad;
      if (LONE) {
        if (place == 0) at[0] = sums[m][n][0], at[8] = sums[m][n][2];
        continue;
      }
      at[0] = sums[m][n][0], at[PITCH] = sums[m][n][1];
      at[8] = sums[m][n][2], at[PITCH + 8] = sums[m][n][3];
    }
    if (NORM && !LONE && own_m == 0 && quad / 2 == place)
      squared[part * ROWS + 8 * n + quad] = quad % 2 ? squares[n][1] : squares[n][0];
  }
  if (SPLITS > 1)
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
  else asm volatile("bar.sync 1, %0;" ::"n"(32 * WARPS) : "memory");
  // Each program of the cluster finishes its share.
  const int all = min(ROWS, num_rows - first_row) * FEATURES;
  const int end = all * ((int)split + 1) / SPLITS;
#pragma unroll 4
  for (int i = all * (int)split / SPLITS + threadIdx.x; i < end; i += 32 * WARPS) {
    const int row = i / FEATURES, inner = i % FEATURES, feature = tile * FEATURES + inner;
    if (feature >= num_out) continue;
    const u32 at = base + (row * PITCH + inner) * 4;
    float v = gathered(at, SUM_ROWS * PITCH * 4);
    float up = SWIGLU ? gathered(at + FEATURES * 4, SUM_ROWS * PITCH * 4) : 0.0f;
    if (NORM) {
      const float square =
          LONE ? row_square : gathered(base + (PARTS * ROWS * PITCH + row) * 4, ROWS * 4);
      const float factor = rsqrtf(square / DEPTH + __int_as_float(eps_bits));
      v *= factor, up *= factor;
    }
    if (SWIGLU) v = opened(v) * up;
    if (BIAS) v += wide(bias[feature], HALF);
    const long where = (long)(first_row + row) * num_out + feature;
    if (RESIDUAL)
      v += LONE && i == all * (int)split / SPLITS + (int)threadIdx.x ? added
                                                                    : wide(residual[where], HALF);
    out[where] = narrow(v);
  }
  // No program ends while others still read what it staged.
  if (SPLITS > 1) meet_cluster();
}
