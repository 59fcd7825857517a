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
//   LONE     x is one row, which lies whole in shared memory, as `norm` does; else a stage brings
//            its columns of both
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
// The whole row, and the whole norm; sixteen bytes of zeros stand for the rows that are not there.
constexpr int ROW_BYTES = LONE ? DEPTH * 2 : 0, WHOLE_NORM_BYTES = LONE && NORM ? DEPTH * 2 : 0;
constexpr int LONE_BYTES = LONE ? ROW_BYTES + WHOLE_NORM_BYTES + 16 : 0;
constexpr int FEATURES = SWIGLU ? TILE / 2 : TILE;
constexpr int ALL_STEPS = (DEPTH + COLUMNS - 1) / COLUMNS;
constexpr int ALL_GROUPS = DEPTH / GROUP, PART_GROUPS = COLUMNS / GROUP;
// Scales that are read with one load.
constexpr int AT_ONCE = ALL_GROUPS % 4 ? 1 : 4;
// Rows of sums that are kept.
constexpr int SUM_ROWS = LONE ? 1 : ROWS;
// Sums that one row's products are added to in turns: a product waits for the one before it.
constexpr int CHAINS = LONE ? 2 : 1;
// Of floats of one row of x: four more than the tile, so that the 32 lanes of a store meet 32 banks.
constexpr int PITCH = TILE + 4;
// Columns of a step that one warp takes, and those of it that share a scale.
constexpr int SLICE = COLUMNS / WARPS_K;
constexpr int SEGMENT = GROUP < SLICE ? GROUP : SLICE;
constexpr u32 NIBBLES = 0x000F000F;
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

// The low bits of each.
__device__ __forceinline__ u32 kept_word(u32 scale, u32 zero) {
  return (scale << 16) | ((EXPONENTS & 0xFFFF) + (zero & 0xFF));
}

extern "C" __global__ void __launch_bounds__(32 * (WARPS + 1), BLOCKS) __cluster_dims__(SPLITS, 1, 1)
    int4_tiles(const __grid_constant__ Map weight_map, const __grid_constant__ Map x_map,
               const u16* __restrict__ scales, const u8* __restrict__ zeros,
               const u16* __restrict__ norm, const u16* __restrict__ bias, const u16* residual,
               const u16* x_row, u16* out, int num_rows, int num_out, int eps_bits) {
  extern __shared__ __align__(1024) char memory[];
  const u32 base = shared_address(memory);
  const u32 norms = base + STAGES * STAGE_BYTES;
  const u32 row_at = norms + STAGES * NORM_BYTES, whole_norm = row_at + ROW_BYTES;
  const u32 nothing = whole_norm + WHOLE_NORM_BYTES;
  const u32 full = row_at + LONE_BYTES, empty = full + 8 * STAGES, row_full = empty + 8 * STAGES;
  constexpr int BEFORE_KEPT = STAGES * (STAGE_BYTES + NORM_BYTES + 16) + LONE_BYTES + 16;
  u32* const kept = (u32*)(memory + BEFORE_KEPT);
  float* const row_square = (float*)(memory + BEFORE_KEPT - 8);
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
    // Else it would be read when the kernel ahead has ended.
    asm volatile("prefetch.tensormap [%0];" ::"l"(&x_map) : "memory");
    for (int s = 0; s < STAGES; ++s) init_barrier(full + 8 * s, 1), init_barrier(empty + 8 * s, GROUP_WARPS);
    if (LONE) init_barrier(row_full, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    // Weights are parameters: they are on their way before the kernel ahead has ended.
    for (int i = 0; i < min(steps, STAGES); ++i) fetch_weights(i);
    if (LONE) {
      expect(row_full, ROW_BYTES + WHOLE_NORM_BYTES);
      if (NORM) fetch_line(whole_norm, norm, row_full, WHOLE_NORM_BYTES);
    }
  }
  if (LONE && threadIdx.x < 4)
    *(u32*)(memory + (nothing - base) + 4 * threadIdx.x) = 0;
  __syncthreads();

  if (warp == WARPS) {
    if (lane == 0) {
      asm volatile("griddepcontrol.wait;" ::: "memory");
      if (LONE) fetch_line(row_at, x_row, row_full, ROW_BYTES);
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
    __syncwarp();
    if (LONE && NORM) {
      // This warp has nothing else to do while the others multiply.
      wait(row_full, 0);
      float square = 0.0f;
      const u32* const pairs = (const u32*)(memory + (row_at - base));
#pragma unroll 8
      for (int i = lane; i < DEPTH / 2; i += 32) {
        const float low = wide((u16)pairs[i], HALF), high = wide((u16)(pairs[i] >> 16), HALF);
        square += low * low + high * high;
      }
#pragma unroll
      for (int other = 16; other > 0; other /= 2)
        square += __shfl_xor_sync(0xffffffff, square, other);
      if (lane == 0) *row_square = square;
      asm volatile("bar.arrive 2, %0;" ::"n"(32 * (WARPS + 1)) : "memory");
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
  asm volatile("bar.sync 1, %0;" ::"n"(32 * WARPS) : "memory");

  const int own_m = warp % WARPS_M, part = warp / WARPS_M, own_k = part % WARPS_K;
  float sums[MT][NT][4] = {}, parts[MT][NT * CHAINS][4] = {}, squares[NT][4] = {};
  u32 zero_pairs[MT][2], factor_pairs[MT][2];
  float factors[MT][2];
  float added = 0.0f;
  const int lane_row = lane % 8, lane_tile = lane / 8;
  u32 words_at[MT];
#pragma unroll
  for (int m = 0; m < MT; ++m) {
    const int row = (own_m * MT + m) * 16 + (lane_tile & 1) * 8;
    const int above = WIDE > 1 ? row / FEATURES * (WIDE - 1) * FEATURES : 0;
    words_at[m] = (row + above + lane_row) * 128;
  }
  const u32 lone_at = lane_row ? nothing : row_at + first * (COLUMNS * 2) + lane_tile * 16;
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
  // With the row, not behind its sums: there a program would wait for the L2 cache once more.
  if (LONE && RESIDUAL) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    const int own = FEATURES * (int)split / SPLITS + threadIdx.x;
    const int feature = tile * FEATURES + own;
    if (own < FEATURES && feature < num_out) added = wide(residual[feature], HALF);
  }
  if (LONE) wait(row_full, 0);
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
        u32 x[NT][4];
        const u32 lone = (i * COLUMNS + block64 * 64 + half * 32) * 2;
#pragma unroll
        for (int n = 0; n < NT; ++n)
          load_tiles(x[n], LONE ? lone_at + (lane_row ? 0 : lone)
                                : stage + x_at + (block64 * ROWS + n * 8) * 128 +
                                      (((4 * half + lane_tile) ^ lane_row) << 4));
        if (NORM) {
          u32 weights[4];
          load_tiles(weights, (LONE ? whole_norm + first * (COLUMNS * 2) + lone
                                    : norms + s * NORM_BYTES + block64 * 128 + half * 64) +
                                  lane_tile * 16);
#pragma unroll
          for (int n = 0; n < NT; ++n) {
            if (!LONE) {
              // The squares of rows are the diagonal of x x^T.
              multiply(squares[n], x[n][0], 0, x[n][1], 0, x[n][0], x[n][1]);
              multiply(squares[n], x[n][2], 0, x[n][3], 0, x[n][2], x[n][3]);
            }
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
              multiply(EARLY ? sums[m][n] : parts[m][n * CHAINS + k % CHAINS], a0, a1, a2, a3,
                       x[n][2 * k], x[n][2 * k + 1]);
          }
        }
        if (!EARLY && (column + 32) % SEGMENT == 0) {
#pragma unroll
          for (int m = 0; m < MT; ++m) {
#pragma unroll
            for (int n = 0; n < NT; ++n) {
#pragma unroll
              for (int r = 0; r < 4; ++r) {
                float found = 0.0f;
#pragma unroll
                for (int c = 0; c < CHAINS; ++c)
                  found += parts[m][n * CHAINS + c][r], parts[m][n * CHAINS + c][r] = 0.0f;
                sums[m][n][r] += factors[m][r / 2] * found;
              }
            }
          }
        }
      }
    }
    __syncwarp();
    if (lane == 0) arrive(empty + 8 * s);
  }
#endif

  asm volatile("griddepcontrol.wait;" ::: "memory");
  // All stages are read: sums take their place.
  if (LONE && NORM) asm volatile("bar.sync 2, %0;" ::"n"(32 * (WARPS + 1)) : "memory");
  else asm volatile("bar.sync 1, %0;" ::"n"(32 * WARPS) : "memory");
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
          LONE ? *row_square : gathered(base + (PARTS * ROWS * PITCH + row) * 4, ROWS * 4);
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
