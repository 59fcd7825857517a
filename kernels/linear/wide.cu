// A product of rows with a matrix, in tiles that the card's copy engine brings and the tensor cores
// of a warp group multiply: `out = x W^T`, with a bias and a residual, or the SwiGLU of it.
//
// Owns what one program does. Must not know which shape wants which constants (macros):
//   GROUPS   warp groups that multiply, 64 rows of the weight each; one warp more fetches
//   ROWS     of x in a tile, a multiple of 16 up to 256, rows behind the last are zeros
//   STAGES   tiles of 64 columns on their way at once
//   SPLITS   programs of one cluster that share the columns of a tile and add up in their order
//   SWIGLU   half of a tile are gate rows, half the up rows that belong to them
//   BIAS     `bias`, one for each feature, is added to the finished sums
//   RESIDUAL `residual` is added to them, which are rounded once
//   ONCE     no other program reads the weight: it may leave the cache first
//   BAND     row tiles that programs take side by side, so that they share weights in the cache
//   PROGRAMS that a multiprocessor holds at once; their threads keep the registers that they begin
//            with
//   FP8      both sides are 8-bit floats, two in the place of each column; rows of x have scales
//   BLOCKED  with FP8: the weight has a scale for each block of 128 x 128, else for each row
//
// Sums are float32. They leave through shared memory, which the tiles no longer need by then. Scales
// of rows are applied to them there; those of blocks to the sums of each tile of columns, which are
// then one block's.

#include "hopper.h"
#include "multiply.h"

constexpr int COLUMNS = 64;
constexpr int TILE = 64 * GROUPS;
constexpr int WEIGHT_BYTES = TILE * COLUMNS * 2;
constexpr int STAGE_BYTES = WEIGHT_BYTES + ROWS * COLUMNS * 2;
constexpr int FEATURES = SWIGLU ? TILE / 2 : TILE;
constexpr int BLOCK = 128;  // rows and columns of a scale; a tile of columns in 8 bits has as many
constexpr int LANES = 32;
static_assert(!BLOCKED || FP8, "scales by block");
// Of floats of one row of x: four more than the tile, so that the 32 lanes of a store meet 32 banks.
constexpr int PITCH = TILE + 4;

__device__ __forceinline__ void fetch_weight(u32 to, const Map* map, u32 barrier, int column,
                                             int row) {
  if (ONCE) fetch_once(to, map, barrier, column, row);
  else fetch(to, map, barrier, column, row);
}

__device__ __forceinline__ void fetch_weights(u32 to, const Map* map, u32 barrier, int column,
                                              int tile, int num_out) {
  fetch_weight(to, map, barrier, column, tile * FEATURES);
  if (SWIGLU)
    fetch_weight(to + WEIGHT_BYTES / 2, map, barrier, column, num_out + tile * FEATURES);
}

__device__ __forceinline__ float low(u32 both) { return __uint_as_float(both << 16); }
__device__ __forceinline__ float high(u32 both) { return __uint_as_float(both & 0xFFFF0000u); }
__device__ __forceinline__ float silu(float v) { return __fdividef(v, 1.0f + __expf(-v)); }

__device__ __forceinline__ float4 scaled(float4 v, float by, const float4* scales, int quad) {
  const float4 s = BLOCKED ? make_float4(1.0f, 1.0f, 1.0f, 1.0f) : scales[quad];
  return make_float4(v.x * by * s.x, v.y * by * s.y, v.z * by * s.z, v.w * by * s.w);
}

// Four features of one row, finished but for bias and residual. With FP8 `by` is the row's scale,
// `scales` and `up_scales` are those of the tile's weight rows unless BLOCKED.
__device__ __forceinline__ float4 gathered(u32 staged, int row, int quad, float by,
                                           const float4* scales, const float4* up_scales) {
  const u32 at = staged + (row * PITCH + 4 * quad) * 4;
  float4 v = SPLITS > 1 ? load_four_of(0, at) : load_four(at);
#pragma unroll
  for (int split = 1; split < SPLITS; ++split) {
    const float4 more = load_four_of(split, at);
    v.x += more.x, v.y += more.y, v.z += more.z, v.w += more.w;
  }
  if (FP8) v = scaled(v, by, scales, quad);
  if (SWIGLU) {
    float4 up = load_four(at + FEATURES * 4);
    if (FP8) up = scaled(up, by, up_scales, quad);
    v.x = silu(v.x) * up.x, v.y = silu(v.y) * up.y;
    v.z = silu(v.z) * up.z, v.w = silu(v.w) * up.w;
  }
  return v;
}

// BLOCKED: the scale of each step, for the 16 weight rows of a warp, which lie in one block. A lane has
// that of a step, of as many as there are lanes, and of one behind these.
struct BlockScales {
  const float* steps;
  int last;
  float held, next;

  __device__ __forceinline__ float load(int step) const {
    return steps[max(min(step + (int)threadIdx.x % LANES, last), 0)];
  }
  __device__ __forceinline__ void begin(const float* scales, int tile, int num_out, int all_steps,
                                        int first_step, int num_steps) {
    const int place = (threadIdx.x / LANES - 4) * 16, all_rows = SWIGLU ? 2 * num_out : num_out;
    const int to_ups = SWIGLU && place >= FEATURES ? num_out - FEATURES : 0;
    const int row = min(tile * FEATURES + place + to_ups, all_rows - 1);
    steps = scales + (long)(row / BLOCK) * all_steps + first_step, last = num_steps - 1;
    next = load(0);
  }
  // Asked for in the order of steps.
  __device__ __forceinline__ float of(int step) {
    if (step % LANES == 0) held = next, next = load(step + LANES);
    return __shfl_sync(0xffffffff, held, step % LANES);
  }
};

extern "C" __global__ void __launch_bounds__(128 * (GROUPS + 1), PROGRAMS) __cluster_dims__(SPLITS, 1, 1)
    product(const __grid_constant__ Map weight_map, const __grid_constant__ Map x_map,
            const uint2* residual, uint2* out, const float* x_scales, const float* weight_scales,
            const uint2* bias, int num_rows, int num_out, int depth) {
  extern __shared__ __align__(1024) char memory[];
  const u32 base = shared_address(memory);
  const u32 full = base + STAGES * STAGE_BYTES, empty = full + 8 * STAGES;
  const int split = SPLITS > 1 ? cluster_place() : 0;
  int tile = blockIdx.x / SPLITS, first_row = 0;
  if (BAND > 0) {
    const int row_tiles = (num_rows + ROWS - 1) / ROWS;
    const int tiles = (num_out + FEATURES - 1) / FEATURES;
    const int band = tile / (BAND * tiles), left = tile - band * BAND * tiles;
    const int height = min(BAND, row_tiles - band * BAND);
    tile = left / height;
    first_row = (band * BAND + left % height) * ROWS;
  }
  const int all_steps = depth / COLUMNS;
  const int first = all_steps * split / SPLITS;
  const int steps = all_steps * (split + 1) / SPLITS - first;
  // A whole warp group agrees on what it is.
  const int group = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);

  let_next_begin();
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) init_barrier(full + 8 * s, 1), init_barrier(empty + 8 * s, GROUPS);
    show_barriers();
    // Weights are parameters: they are on their way before the kernel ahead has ended.
    for (int i = 0; i < min(steps, STAGES); ++i) {
      expect(full + 8 * i, STAGE_BYTES);
      fetch_weights(base + i * STAGE_BYTES, &weight_map, full + 8 * i, (first + i) * COLUMNS, tile,
                    num_out);
    }
    prefetch_map(&x_map);
  }
  __syncthreads();

  if (group == 0) {
    if (PROGRAMS == 1) leave_registers<FETCH_REGISTERS>();
    if (threadIdx.x == 0) {
      wait_for_last();
      for (int i = 0; i < steps; ++i) {
        const int s = i % STAGES, column = (first + i) * COLUMNS;
        const u32 to = base + s * STAGE_BYTES;
        if (i >= STAGES) {
          wait(empty + 8 * s, (i / STAGES - 1) & 1);
          expect(full + 8 * s, STAGE_BYTES);
          fetch_weights(to, &weight_map, full + 8 * s, column, tile, num_out);
        }
        fetch(to + WEIGHT_BYTES, &x_map, full + 8 * s, column, first_row);
      }
    }
    __syncwarp();
    if (SPLITS > 1) meet_cluster(), meet_cluster();
  } else {
    if (PROGRAMS == 1) take_registers<MULTIPLY_REGISTERS>();
    const int own = group - 1;
    float sums[ROWS / 2];
#pragma unroll
    for (int j = 0; j < ROWS / 2; ++j) sums[j] = 0.0f;
    BlockScales block_scales;
    if (BLOCKED) block_scales.begin(weight_scales, tile, num_out, all_steps, first, steps);
    for (int i = 0; i < steps; ++i) {
      const int s = i % STAGES;
      wait(full + 8 * s, (i / STAGES) & 1);
      const u64 weights = matrix(base + s * STAGE_BYTES + own * (64 * COLUMNS * 2));
      const u64 x = matrix(base + s * STAGE_BYTES + WEIGHT_BYTES);
      if constexpr (BLOCKED) {
        float parts[ROWS / 2];
        begin_products();
        multiply_first(parts, weights, x);
#pragma unroll
        for (int k = 1; k < COLUMNS / 16; ++k) multiply(parts, weights + 2 * k, x + 2 * k);
        const float by = block_scales.of(i);
        end_products(parts);
        if (threadIdx.x % 128 == 0) arrive(empty + 8 * s);
#pragma unroll
        for (int j = 0; j < ROWS / 2; ++j) sums[j] += parts[j] * by;
      } else {
        begin_products();
#pragma unroll
        for (int k = 0; k < COLUMNS / 16; ++k) multiply(sums, weights + 2 * k, x + 2 * k);
        close_products();
        if (i > 0) {
          // The products before these are done with their stage.
          wait_products<1>();
          if (threadIdx.x % 128 == 0) arrive(empty + 8 * ((i - 1) % STAGES));
        }
      }
    }
    wait_products<0>();
    wait_for_last();
    meet_team<128 * GROUPS>();
    const int thread = threadIdx.x - 128, lane = thread % LANES;
    float* staged = (float*)memory + thread / LANES * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < ROWS / 8; ++j) {
      float* at = staged + (8 * j + 2 * (lane % 4)) * PITCH;
      at[0] = sums[4 * j], at[PITCH] = sums[4 * j + 1];
      at[8] = sums[4 * j + 2], at[PITCH + 8] = sums[4 * j + 3];
    }
    if (SPLITS > 1)
      share_with_cluster();
    else
      meet_team<128 * GROUPS>();
    // Each program of the cluster finishes its share of the rows.
    constexpr int QUADS = FEATURES / 4;
    const int begin = ROWS * split / SPLITS;
    const int end = min(ROWS * (split + 1) / SPLITS, num_rows - first_row);
    const float4* scales = (const float4*)(weight_scales + tile * FEATURES);
    const float4* up_scales = (const float4*)(weight_scales + num_out + tile * FEATURES);
#pragma unroll 4
    for (int i = begin * QUADS + thread; i < end * QUADS; i += 128 * GROUPS) {
      const int row = i / QUADS, quad = i % QUADS, feature = tile * FEATURES + 4 * quad;
      if (feature >= num_out) continue;
      const float by = FP8 ? x_scales[first_row + row] : 1.0f;
      float4 v = gathered(base, row, quad, by, scales, up_scales);
      const long place = ((long)(first_row + row) * num_out + feature) / 4;
      if (BIAS) {
        const uint2 b = bias[feature / 4];
        v.x += low(b.x), v.y += high(b.x), v.z += low(b.y), v.w += high(b.y);
      }
      if (RESIDUAL) {
        const uint2 r = residual[place];
        v.x += low(r.x), v.y += high(r.x), v.z += low(r.y), v.w += high(r.y);
      }
      out[place] = make_uint2(packed(v.x, v.y), packed(v.z, v.w));
    }
    // No program ends while others still read what it staged.
    if (SPLITS > 1) meet_cluster();
  }
}
