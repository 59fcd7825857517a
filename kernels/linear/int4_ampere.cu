// A product of rows with a weight in 4 bits, for compute capability 8.0 and later: words come by
// asynchronous copies into shared memory, become numbers of x's dtype in registers, and are
// multiplied by the tensor cores: `out = x W^T`, with a bias, a residual or the SwiGLU of it.
//
// Owns what one program does. Must not know which shape wants which constants (macros):
//   WARPS_M, MT   warps of a team, side by side along weight rows, of which each has 16 MT
//   TEAMS    teams with stages of their own; they take steps of COLUMNS columns in turns
//   NT       rows of x in a tile, in eights
//   STAGES   of a team: steps in shared memory, all but one of them on their way
//   COLUMNS  of a step, 128 or 256
//   GROUP    columns of the weight that share a scale
//   HALF, SCALE_HALF   x, and scales, are float16; else bfloat16
//   ZEROS    zero points are read; else they are 8
//   NORM     x is normalised: times `norm` before the product, the row's scale at its end
//   BIAS, RESIDUAL, SWIGLU, GELU   what follows the sums, which are rounded once
//   ARCH     ten times the compute capability
// Depth, rows and splits are parameters: one compilation serves all matrices of a model.
//
// The weight is the product's left side. A word holds eight columns of 32: the quarter of the
// fragment that its lane needs for two steps of 16 columns (`kernels/int4/weight.py`), so that
// `ldmatrix` of words gives fragments. A number's bits under a fixed exponent are 128 + q (1024 + q
// in float16); less 128 + z that is q - z, exactly. The sum of a group gets its scale in float32.
//
// Lanes of rows of x that do not exist read the last one, and their sums are not stored.

#include "ampere.h"

constexpr int TILE = 16 * MT * WARPS_M;
constexpr int ROWS = 8 * NT;
constexpr int TEAM = 32 * WARPS_M, THREADS = TEAM * TEAMS;
constexpr int FEATURES = SWIGLU ? TILE / 2 : TILE;
constexpr int LINE = COLUMNS / 2;  // bytes of a weight row's words in a step
constexpr int CHUNKS = LINE / 16, X_CHUNKS = COLUMNS / 8;
constexpr int WEIGHT_BYTES = TILE * LINE;
constexpr int NORM_BYTES = NORM ? COLUMNS * 2 : 0;
constexpr int COPIES = TILE * CHUNKS / TEAM;
constexpr int STEP_GROUPS = COLUMNS / GROUP;
// Of floats of one row of x: four more than the tile, so that the 32 lanes of a store meet 32 banks.
constexpr int PITCH = TILE + 4;
// Of sums in registers that do not wait for each other.
constexpr int CHAINS = NT == 1 ? 2 : 1;
constexpr u32 NIBBLES = 0x000F000F;
constexpr u32 EXPONENTS = HALF ? 0x64006400 : 0x43004300;
constexpr u32 ONES = HALF ? 0x3C003C00 : 0x3F803F80;
constexpr u32 SIGNS = 0x80008000;  // two zeros that leave the sign of what is added
static_assert(COLUMNS % GROUP == 0 && (COLUMNS == 128 || COLUMNS == 256), "a step has whole groups");
static_assert(TILE * CHUNKS % TEAM == 0 && STAGES >= 2 && TEAMS < 16, "what a team copies");

// Where a chunk of 16 bytes of a row lies, so that the eight rows of a fragment meet all banks.
__device__ __forceinline__ u32 word_place(u32 row, u32 chunk) {
  return row * LINE + ((chunk ^ (row / (128 / LINE) % CHUNKS)) << 4);
}

__device__ __forceinline__ u32 x_place(u32 row, u32 block64, u32 chunk, u32 x_rows) {
  return (block64 * x_rows + row) * 128 + ((chunk ^ (row % 8)) << 4);
}

// Two numbers q - z of a word, nibbles `pair` and `pair + 4`; `less` is -(128 + z), twice.
__device__ __forceinline__ u32 pair_of(u32 word, int pair, u32 less) {
  return multiply_add(masked(word >> (4 * pair), NIBBLES, EXPONENTS), ONES, less);
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

// A scale and -(128 + z), of the low bits of each.
__device__ __forceinline__ u32 kept_word(u32 scale, u32 zero) {
  return (scale << 16) | 0x8000 | ((EXPONENTS & 0xFFFF) + (zero & 0xFF));
}

// What all teams have found, in their order.
__device__ __forceinline__ float gathered(const float* at, int next) {
  float v = 0.0f;
#pragma unroll
  for (int team = 0; team < TEAMS; ++team) v += at[team * next];
  return v;
}

// What all programs of a tile have left behind, in their order.
__device__ __forceinline__ float gathered_splits(const float* at, int splits) {
  float v = 0.0f;
  for (int split = 0; split < splits; ++split) v += __ldcg(at + (long)split * ROWS * (TILE + 1));
  return v;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    int4_ampere(const char* __restrict__ words, const u16* __restrict__ scales,
              const u8* __restrict__ zeros, const u16* x, const u16* __restrict__ norm,
              const u16* __restrict__ bias, const u16* residual, u16* out, float* scratch,
              int* arrived, int num_rows, int num_out, int depth, int splits, int eps_bits) {
  extern __shared__ __align__(128) char memory[];
  const int row_tiles = (num_rows + ROWS - 1) / ROWS;
  const int block = blockIdx.x / splits, split = blockIdx.x - block * splits;
  const int tile = block / row_tiles, first_row = (block - tile * row_tiles) * ROWS;
  // Few rows of x lie side by side without padding.
  const int x_rows = NT == 1 ? min(num_rows, ROWS) : ROWS;
  const int all_steps = (depth + COLUMNS - 1) / COLUMNS, all_groups = depth / GROUP;
  const int first = all_steps * split / splits;
  const int steps = all_steps * (split + 1) / splits - first;
  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const int own_m = warp % WARPS_M, team = warp / WARPS_M;
  const u32 thread = threadIdx.x % TEAM;
  const u32 x_bytes = x_rows * COLUMNS * 2;
  const u32 stage_bytes = WEIGHT_BYTES + x_bytes + NORM_BYTES;
  const u32 stages = shared_address(memory) + team * STAGES * stage_bytes;
  u32* const kept = (u32*)(memory + TEAMS * STAGES * stage_bytes);
  const int own_steps = (steps - team + TEAMS - 1) / TEAMS;

  let_next_begin();
  const u64 policy = policy_of(row_tiles == 1);
  // Each thread copies the same chunk of several rows.
  const u32 word_row = thread / CHUNKS, word_chunk = thread % CHUNKS;
  const u32 copied_row = thread / X_CHUNKS, x_chunk = thread % X_CHUNKS;
  const int first_column = (first + team) * COLUMNS;
  const char* from[COPIES];
#pragma unroll
  for (int k = 0; k < COPIES; ++k)
    from[k] = words + (u64)weight_row(word_row + k * (TEAM / CHUNKS), tile, num_out) * (depth / 2);
  const u16* const x_from = x + (long)(first_row + copied_row) * depth;
  // Words, and the norm: parameters.
  const auto copy_weights = [&](int i, int slot) {
    const int column = first_column + i * (TEAMS * COLUMNS), own = column + 32 * word_chunk;
    const u32 to = stages + slot * stage_bytes;
    const bool is_inside = own < depth;
    const u32 at = is_inside ? own / 2 : 0;
#pragma unroll
    for (int k = 0; k < COPIES; ++k)
      copy16(to + word_place(word_row + k * (TEAM / CHUNKS), word_chunk), from[k] + at, is_inside,
             policy);
    if (NORM && thread < X_CHUNKS) {
      const bool is_norm = column + 8 * thread < depth;
      copy16(to + WEIGHT_BYTES + x_bytes + 16 * thread,
             norm + (is_norm ? column + 8 * thread : 0), is_norm);
    }
  };
  const auto copy_x = [&](int i, int slot) {
    const int own = first_column + i * (TEAMS * COLUMNS) + 8 * x_chunk;
    const u32 to = stages + slot * stage_bytes + WEIGHT_BYTES;
    const bool is_inside = own < depth;
    const u16* const column = x_from + (is_inside ? own : 0);
#pragma unroll(NT == 1 ? 1 : 4)
    for (int k = 0; k < x_rows; k += TEAM / X_CHUNKS) {
      const int row = copied_row + k;
      if (row >= x_rows) break;
      // Rows behind the last repeat it.
      const int shift = min(k, num_rows - 1 - first_row - (int)copied_row);
      copy16(to + x_place(row, x_chunk / 8, x_chunk % 8, x_rows), column + (long)shift * depth,
             is_inside);
    }
  };
  // Weights are parameters: they are on their way before the kernel ahead has ended.
#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s)
    if (s < own_steps) copy_weights(s, s);

  // Scales with their zero points: one word each, scale << 16 | -(128 + z), rows an odd pitch apart.
  // Groups behind the last repeat others: no column has them.
  const int at_once = all_groups % 4 ? 1 : 4;
  const int from_group = first * STEP_GROUPS / at_once * at_once;
  const int pieces = ((first + steps) * STEP_GROUPS - from_group + at_once - 1) / at_once;
  const int pitch = pieces * at_once | 1;
#pragma unroll 4
  for (int i = threadIdx.x; i < TILE * pieces; i += THREADS) {
    const int row = i / pieces, at = (i - row * pieces) * at_once;
    const int group = min(from_group + at, all_groups - at_once);
    const long place = (long)weight_row(row, tile, num_out) * all_groups + group;
    u32* const to = kept + row * pitch + at;
    if (at_once == 4) {
      const uint2 four = *(const uint2*)(scales + place);
      const u32 zero = ZEROS ? *(const u32*)(zeros + place) : 0x08080808;
      to[0] = kept_word(four.x, zero), to[1] = kept_word(four.x >> 16, zero >> 8);
      to[2] = kept_word(four.y, zero >> 16), to[3] = kept_word(four.y >> 16, zero >> 24);
    } else {
      to[0] = kept_word(scales[place], ZEROS ? zeros[place] : 8);
    }
  }
  wait_for_last();
#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) {
    if (s < own_steps) copy_x(s, s);
    close_group();
  }
  __syncthreads();

  float sums[MT][NT][4] = {}, squares[NT][4] = {};
  float parts[MT][NT][CHAINS][4];
  const float nothing[4] = {};
  u32 less[MT][2];
  float factors[MT][2];
  const u32 lane_row = lane % 8, lane_tile = lane / 8;
  const u32 own_row = own_m * MT * 16 + (lane_tile & 1) * 8 + lane_row;
  const u32 x_row = NT == 1 ? min(lane_row, (u32)x_rows - 1) : lane_row;
  const u32* const own_kept = kept + (own_m * MT * 16 + lane / 4) * pitch - from_group;
  int slot = 0;
  for (int i = 0; i < own_steps; ++i) {
    // This step's copies of all threads have ended, and all have read the step before.
    wait_groups<STAGES - 2>();
    meet<TEAM>(team);
    if (i + STAGES - 1 < own_steps) {
      const int last = slot == 0 ? STAGES - 1 : slot - 1;
      copy_weights(i + STAGES - 1, last);
      copy_x(i + STAGES - 1, last);
    }
    close_group();
    const u32 stage = stages + slot * stage_bytes, x_stage = stage + WEIGHT_BYTES;
    const int step_group = first_column / GROUP + i * (TEAMS * STEP_GROUPS);
#pragma unroll
    for (int block64 = 0; block64 < COLUMNS / 64; ++block64) {
      u32 pairs[MT][4];
#pragma unroll
      for (int m = 0; m < MT; ++m)
        load_tiles(pairs[m],
                   stage + word_place(own_row + 16 * m, 2 * block64 + (lane_tile >> 1)));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int column = 64 * block64 + 32 * half;
        const bool begins = column % GROUP == 0, ends = (column + 32) % GROUP == 0;
        u32 rows[NT][4];
#pragma unroll
        for (int n = 0; n < NT; ++n)
          load_tiles(rows[n], x_stage + x_place(x_row + 8 * n, block64, 4 * half + lane_tile,
                                                x_rows));
        if (NORM) {
          u32 weights[4];
          load_tiles(weights, x_stage + x_bytes + column * 2 + lane_tile * 16);
#pragma unroll
          for (int n = 0; n < NT; ++n) {
            // The squares of rows are the diagonal of x x^T; a team's warps share them.
            if (WARPS_M == 1 || (2 * block64 + half) % WARPS_M == own_m) {
              const u32 low[4] = {rows[n][0], 0, rows[n][1], 0};
              const u32 high[4] = {rows[n][2], 0, rows[n][3], 0};
              multiply(squares[n], low, rows[n][0], rows[n][1], squares[n]);
              multiply(squares[n], high, rows[n][2], rows[n][3], squares[n]);
            }
#pragma unroll
            for (int r = 0; r < 4; ++r) rows[n][r] = multiply_add(rows[n][r], weights[r], SIGNS);
          }
        }
        if (begins) {
          const int group = step_group + column / GROUP;
#pragma unroll
          for (int m = 0; m < MT; ++m) {
#pragma unroll
            for (int r = 0; r < 2; ++r) {
              const u32 both = own_kept[(16 * m + 8 * r) * pitch + group];
              less[m][r] = __byte_perm(both, 0, 0x1010);
              factors[m][r] = wide(both >> 16, SCALE_HALF);
            }
          }
        }
#pragma unroll
        for (int m = 0; m < MT; ++m) {
          const u32 top = pairs[m][2 * half], bottom = pairs[m][2 * half + 1];
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            const u32 left[4] = {pair_of(top, 2 * k, less[m][0]),
                                 pair_of(bottom, 2 * k, less[m][1]),
                                 pair_of(top, 2 * k + 1, less[m][0]),
                                 pair_of(bottom, 2 * k + 1, less[m][1])};
            const bool is_new = begins && (CHAINS == 2 || k == 0);
#pragma unroll
            for (int n = 0; n < NT; ++n) {
              float(&part)[4] = parts[m][n][k % CHAINS];
              if (is_new) multiply(part, left, rows[n][2 * k], rows[n][2 * k + 1], nothing);
              else multiply(part, left, rows[n][2 * k], rows[n][2 * k + 1], part);
            }
          }
        }
        if (ends) {
#pragma unroll
          for (int m = 0; m < MT; ++m) {
#pragma unroll
            for (int n = 0; n < NT; ++n) {
#pragma unroll
              for (int r = 0; r < 4; ++r) {
                float part = parts[m][n][0][r];
                if (CHAINS == 2) part += parts[m][n][CHAINS - 1][r];
                sums[m][n][r] += factors[m][r / 2] * part;
              }
            }
          }
        }
      }
    }
    slot = slot == STAGES - 1 ? 0 : slot + 1;
  }

  // All steps are read: sums take their place.
  wait_groups<0>();
  __syncthreads();
  float* const staged = (float*)memory;
  float* const squared = staged + TEAMS * x_rows * PITCH;
  const int quad = lane / 4, place = lane % 4;
#pragma unroll
  for (int n = 0; n < NT; ++n) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int row = 8 * n + 2 * place + r % 2;
      if (row >= x_rows) continue;
#pragma unroll
      for (int m = 0; m < MT; ++m)
        staged[(team * x_rows + row) * PITCH + (own_m * MT + m) * 16 + quad + 8 * (r / 2)] =
            sums[m][n][r];
    }
    if (NORM && quad / 2 == place && 8 * n + quad < x_rows)
      squared[warp * x_rows + 8 * n + quad] = quad % 2 ? squares[n][1] : squares[n][0];
  }
  __syncthreads();
  const int own_rows = min(ROWS, num_rows - first_row);
  const auto square_of = [&](int row) {
    float v = 0.0f;
    for (int w = 0; w < WARPS_M * TEAMS; ++w) v += squared[w * x_rows + row];
    return v;
  };
  float* const left = scratch + (long)block * splits * ROWS * (TILE + 1);
  if (splits > 1) {
    // The last program of the tile to come here adds up what all have left.
    float* const own = left + (long)split * ROWS * (TILE + 1);
    for (int i = threadIdx.x; i < own_rows * TILE; i += THREADS)
      own[i] = gathered(staged + i / TILE * PITCH + i % TILE, x_rows * PITCH);
    if (NORM && threadIdx.x < own_rows) own[ROWS * TILE + threadIdx.x] = square_of(threadIdx.x);
    __threadfence();
    __syncthreads();
    int is_last = 0;
    if (threadIdx.x == 0) {
      is_last = atomicAdd(arrived + block, 1) == splits - 1;
      if (is_last) arrived[block] = 0;
      __threadfence();
    }
    if (!__syncthreads_or(is_last)) return;
  }
#pragma unroll 2
  for (int i = threadIdx.x; i < own_rows * FEATURES; i += THREADS) {
    const int row = i / FEATURES, inner = i % FEATURES, feature = tile * FEATURES + inner;
    if (feature >= num_out) continue;
    const auto sum_of = [&](int at) {
      return splits > 1 ? gathered_splits(left + row * TILE + at, splits)
                        : gathered(staged + row * PITCH + at, x_rows * PITCH);
    };
    float v = sum_of(inner), up = SWIGLU ? sum_of(inner + FEATURES) : 0.0f;
    if (NORM) {
      const float square =
          splits > 1 ? gathered_splits(left + ROWS * TILE + row, splits) : square_of(row);
      const float factor = rsqrtf(square / depth + __int_as_float(eps_bits));
      v *= factor, up *= factor;
    }
    if (SWIGLU) v = opened(v) * up;
    if (BIAS) v += wide(bias[feature], HALF);
    const long where = (long)(first_row + row) * num_out + feature;
    if (RESIDUAL) v += wide(residual[where], HALF);
    out[where] = narrow(v);
  }
}
