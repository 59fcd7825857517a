// Attention of a tile of rows over the paged cache: one item of `kernels.attention.work` for one
// key head, over all keys that its rows see, or a piece of them.
//
// Owns what one program does, and which items it takes. Must not know how segments became items. Macros:
//   H, KV       query heads and key heads; G = H / KV of them see the same keys
//   BLOCK_SIZE  slots of a cache's block, 16 to 128
//   TILE        rows, and keys, of a tile
//   STAGES      tiles of keys, and of values, on their way at once
//
// Row m of a tile is token m / G, head m % G of its group, as for Triton. Two warp groups have 64
// rows each; a warp of a third fetches, and is with the next item while they end the last. While one
// group multiplies, the other one takes powers; a group's own products of weights with values run
// while it takes the powers of the next scores ("FlashAttention-3", Shah et al., 2024). Keys are
// taken from the last tile to the first, so that masks come first and the loop behind has none.

#include "hopper.h"
#include "products.h"

constexpr int D = 128, G = H / KV, TOKENS = TILE / G;
static_assert(TILE == 128, "two groups of 64 rows, and as many keys");
constexpr int BLOCKS = TILE / BLOCK_SIZE;
constexpr int HALF_BYTES = TILE * 64 * 2, TILE_BYTES = 2 * HALF_BYTES;
constexpr int GROUP_BYTES = 64 * 64 * 2;
// The scale of scores, times log2(e), because powers of two are taken.
constexpr float SCALE = 1.4426950408889634f * 0.08838834764831845f;
#define NOTHING (-__int_as_float(0x7f800000))

struct alignas(16) Item {
  int row, num_rows, position, table, begin, end, slot, unused;
};

// Barriers between the two groups that multiply, beside barrier 0 of all threads.
constexpr int BOTH = 1, TURN = 2;

__device__ __forceinline__ void meet(int barrier) {
  asm volatile("bar.sync %0, 256;" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void pass(int barrier) {
  asm volatile("bar.arrive %0, 256;" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ float power(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float over_quad(float x, bool adds) {
#pragma unroll
  for (int other = 1; other < 4; other *= 2) {
    const float y = __shfl_xor_sync(0xffffffff, x, other);
    x = adds ? x + y : fmaxf(x, y);
  }
  return x;
}

// Where the parts of shared memory lie.
struct Memory {
  u32 queries, keys, values, keys_full, values_full, keys_empty, values_empty;
  u32 queries_full, queries_empty, unused;

  __device__ __forceinline__ explicit Memory(u32 base) {
    queries = base, keys = base + 2 * TILE_BYTES, values = keys + STAGES * TILE_BYTES;
    keys_full = values + STAGES * TILE_BYTES, values_full = keys_full + 8 * STAGES;
    keys_empty = values_full + 8 * STAGES, values_empty = keys_empty + 8 * STAGES;
    queries_full = values_empty + 8 * STAGES, queries_empty = queries_full + 16;
    unused = queries_empty + 16;
  }
};

// The next item of a program, and how many tiles of keys and items it has had. Items lie in the order
// of their lengths; each round goes through the programs the other way.
struct Work {
  const Item* items;
  int programs, round = -1, tiles_before = 0, tiles = 0, kv = 0;
  Item item;

  __device__ __forceinline__ Work(const Item* items, int programs)
      : items(items), programs(programs) {}

  __device__ __forceinline__ int number(int round) const {
    return round * gridDim.x + (round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
  }

  // Items without rows come last, and fill a bucket of fixed size.
  __device__ __forceinline__ bool next() {
    tiles_before += tiles;
    const int now = number(++round), ahead = number(round + 1);
    if (now >= programs) return false;
    item = items[now / KV], kv = now % KV;
    if (ahead < programs) asm volatile("prefetch.global.L1 [%0];" ::"l"(items + ahead / KV));
    tiles = (item.end - item.begin + TILE - 1) / TILE;
    return item.num_rows > 0;
  }

  // Queries have two places, which items take in turns.
  __device__ __forceinline__ int place() const { return round & 1; }
  __device__ __forceinline__ int parity() const { return (round >> 1) & 1; }
};

// Lane b brings block b of every tile, both halves of its columns.
__device__ __forceinline__ void fetch_all(const Memory& at, const Map* queries, const Map* keys,
                                          const Map* values, Work& work, const int* tables,
                                          int table_width, int lane) {
  while (work.next()) {
    const int* table = tables + (long)work.item.table * table_width;
    const int last = (work.item.end - 1) / BLOCK_SIZE, kv = work.kv;
    int block = (work.item.begin + (work.tiles - 1) * TILE) / BLOCK_SIZE + lane;
    // What lies behind the last block is masked, or overwritten with zeros.
    int id = table[min(block, last)];
    // Items and tables were there before the step; queries and keys are the kernel's ahead.
    if (work.round == 0) asm volatile("griddepcontrol.wait;" ::: "memory");
    for (int i = 0; i < work.tiles; ++i) {
      const int n = work.tiles_before + i, s = n % STAGES, slot = id * BLOCK_SIZE;
      const u32 to = s * TILE_BYTES + lane * BLOCK_SIZE * 128;
      block -= BLOCKS;
      if (i + 1 < work.tiles) id = table[block];
      if (n >= STAGES) wait(at.keys_empty + 8 * s, (n / STAGES - 1) & 1);
      if (lane == 0) expect(at.keys_full + 8 * s, TILE_BYTES);
      fetch(at.keys + to, keys, at.keys_full + 8 * s, 0, kv, slot);
      fetch(at.keys + to + HALF_BYTES, keys, at.keys_full + 8 * s, 64, kv, slot);
      if (i == 0 && lane == 0) {
        const int p = work.place();
        const u32 full = at.queries_full + 8 * p, to = at.queries + p * TILE_BYTES;
        if (work.round > 1) wait(at.queries_empty + 8 * p, work.parity() ^ 1);
        expect(full, 2 * TOKENS * G * 128);
        fetch(to, queries, full, 0, kv * G, work.item.row);
        fetch(to + HALF_BYTES, queries, full, 64, kv * G, work.item.row);
      }
      if (n >= STAGES) wait(at.values_empty + 8 * s, (n / STAGES - 1) & 1);
      if (lane == 0) expect(at.values_full + 8 * s, TILE_BYTES);
      fetch(at.values + to, values, at.values_full + 8 * s, 0, kv, slot);
      fetch(at.values + to + HALF_BYTES, values, at.values_full + 8 * s, 64, kv, slot);
    }
  }
}

// Values behind the end may be NaN, and 0 times NaN is NaN.
__device__ __forceinline__ void clear_values(u32 tile, int first, int thread) {
  for (int i = first * 8 + thread; i < TILE * 8; i += 256) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(tile + half * HALF_BYTES + i * 16),
                   "r"(0)
                   : "memory");
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  meet(BOTH);
}

// What a thread knows of its two rows.
struct Rows {
  float top[2], total[2], fade[2];
  int limit[2];
};

// Scores become weights. `first` is the position of the thread's first key in the tile.
template <bool MASKED>
__device__ __forceinline__ void soften(float (&s)[64], Rows& rows, int first) {
  if (MASKED) {
#pragma unroll
    for (int i = 0; i < 64; ++i)
      if (first + 8 * (i / 4) + i % 2 >= rows.limit[i / 2 % 2]) s[i] = NOTHING;
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float best = s[2 * h];
#pragma unroll
    for (int i = 0; i < 32; ++i) best = fmaxf(best, s[4 * (i / 2) + 2 * h + i % 2]);
    const float top = fmaxf(rows.top[h], over_quad(best, false) * SCALE);
    // A row that has seen no key yet.
    const float ground = MASKED && top == NOTHING ? 0.0f : top;
    rows.fade[h] = power(rows.top[h] - ground);
    rows.top[h] = top;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      float& x = s[4 * (i / 2) + 2 * h + i % 2];
      x = power(fmaf(x, SCALE, -ground));
      sum += x;
    }
    rows.total[h] = fmaf(rows.total[h], rows.fade[h], sum);
  }
}

__device__ __forceinline__ void pack(u32 (&weights)[32], const float (&s)[64]) {
#pragma unroll
  for (int i = 0; i < 32; ++i) weights[i] = packed(s[2 * i], s[2 * i + 1]);
}

// In most tiles no row has a larger score than in the tiles before.
__device__ __forceinline__ void fade(float (&mixed)[64], const Rows& rows) {
  if (!__any_sync(0xffffffff, rows.fade[0] != 1.0f || rows.fade[1] != 1.0f)) return;
#pragma unroll
  for (int i = 0; i < 64; ++i) mixed[i] *= rows.fade[i / 2 % 2];
}

__device__ __forceinline__ void start_scores(float (&s)[64], u32 queries, u32 keys) {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    const u32 place = k / 4 * HALF_BYTES + k % 4 * 32;
    if (k == 0) score_first(s, matrix(queries + place), matrix(keys + place));
    else score(s, matrix(queries + place), matrix(keys + place));
  }
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void start_mix(float (&mixed)[64], const u32 (&weights)[32], u32 values) {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int k = 0; k < TILE / 16; ++k)
    mix(mixed, weights[4 * k], weights[4 * k + 1], weights[4 * k + 2], weights[4 * k + 3],
        matrix(values + k * 16 * 128, HALF_BYTES));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Sums of weights are never negative, so this stores nothing. But the compiler moves no wait for
// products ahead of a store, as it does ahead of arithmetic: then nothing would run beside them.
__device__ __forceinline__ void stay_ahead(u32 address, float a, float b) {
  asm volatile(
      "{\n.reg .pred no;\nsetp.lt.f32 no, %1, 0f00000000;\nsetp.lt.or.f32 no, %2, 0f00000000, no;\n"
      "@no st.shared.f32 [%0], %1;\n}" ::"r"(address),
      "f"(a), "f"(b)
      : "memory");
}

// The scores of the program's tile n while those of the one before are mixed; then its weights.
template <bool MASKED>
__device__ __forceinline__ void step(const Memory& at, u32 queries, int n, int own, int first,
                                     bool arrives, float (&s)[64], float (&mixed)[64],
                                     u32 (&weights)[32], Rows& rows) {
  const int now = n % STAGES, before = (n - 1) % STAGES;
  wait(at.keys_full + 8 * now, (n / STAGES) & 1);
  meet(TURN + own);
  start_scores(s, queries, at.keys + now * TILE_BYTES);
  wait(at.values_full + 8 * before, ((n - 1) / STAGES) & 1);
  start_mix(mixed, weights, at.values + before * TILE_BYTES);
  pass(TURN + 1 - own);
  wait_scores(s);
  if (arrives) arrive(at.keys_empty + 8 * now);
  soften<MASKED>(s, rows, first);
  stay_ahead(at.unused, rows.total[0], rows.total[1]);
  wait_mixed(mixed, weights);
  if (arrives) arrive(at.values_empty + 8 * before);
  fade(mixed, rows);
  pack(weights, s);
}

// One item's sums of values, not yet divided, and what its rows know.
__device__ __forceinline__ void attend_item(const Memory& at, const Work& work, int own,
                                            float (&mixed)[64], Rows& rows) {
  const Item& item = work.item;
  const int thread = threadIdx.x % 128, lane = thread % 32;
  const int m = own * 64 + thread / 32 * 16 + lane / 4;
  const bool arrives = thread == 0;
  const u32 queries = at.queries + work.place() * TILE_BYTES + own * GROUP_BYTES;
  // The first tiles of the past, which every row sees.
  const int whole = max(min(item.end, item.position + 1) - item.begin, 0) / TILE;
  int first = item.begin + (work.tiles - 1) * TILE + 2 * (lane % 4), n = work.tiles_before;
  const int end = n + work.tiles, masked_end = end - whole, stage = n % STAGES;
  float s[64];
  u32 weights[32];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    rows.top[h] = NOTHING, rows.total[h] = 0.0f;
    rows.limit[h] = min(item.position + (m + 8 * h) / G + 1, item.end);
  }
#pragma unroll
  for (int i = 0; i < 64; ++i) mixed[i] = 0.0f;

  wait(at.queries_full + 8 * work.place(), work.parity());
  wait(at.keys_full + 8 * stage, (n / STAGES) & 1);
  meet(TURN + own);
  start_scores(s, queries, at.keys + stage * TILE_BYTES);
  pass(TURN + 1 - own);
  const int ragged = (item.end - item.begin) % TILE;
  if (ragged) {
    wait(at.values_full + 8 * stage, (n / STAGES) & 1);
    clear_values(at.values + stage * TILE_BYTES, ragged, threadIdx.x % 256);
  }
  wait_first(s);
  if (arrives) arrive(at.keys_empty + 8 * stage);
  soften<true>(s, rows, first);
  pack(weights, s);
  for (++n; n < masked_end; ++n) {
    first -= TILE;
    step<true>(at, queries, n, own, first, arrives, s, mixed, weights, rows);
  }
  for (; n < end; ++n) {
    first -= TILE;
    step<false>(at, queries, n, own, first, arrives, s, mixed, weights, rows);
  }
  if (arrives) arrive(at.queries_empty + 8 * work.place());
  const int before = (end - 1) % STAGES;
  wait(at.values_full + 8 * before, ((end - 1) / STAGES) & 1);
  start_mix(mixed, weights, at.values + before * TILE_BYTES);
  wait_mixed(mixed, weights);
  if (arrives) arrive(at.values_empty + 8 * before);
}

// A group without rows in the item takes its turns, and frees what the other group has read: 16
// rows of 4 heads, a sequence's drafts, are half of a tile.
__device__ __forceinline__ void skip_item(const Memory& at, const Work& work, int own) {
  const bool arrives = threadIdx.x % 128 == 0;
  const int ragged = (work.item.end - work.item.begin) % TILE;
  wait(at.queries_full + 8 * work.place(), work.parity());
  for (int i = 0; i < work.tiles; ++i) {
    const int n = work.tiles_before + i, stage = n % STAGES, parity = (n / STAGES) & 1;
    wait(at.keys_full + 8 * stage, parity);
    meet(TURN + own);
    pass(TURN + 1 - own);
    if (arrives) arrive(at.keys_empty + 8 * stage);
    wait(at.values_full + 8 * stage, parity);
    if (i == 0 && ragged)
      clear_values(at.values + stage * TILE_BYTES, ragged, threadIdx.x % 256);
    if (arrives) arrive(at.values_empty + 8 * stage);
  }
  if (arrives) arrive(at.queries_empty + 8 * work.place());
}

__device__ __forceinline__ void store(const Work& work, int own, const float (&mixed)[64],
                                      const Rows& rows, u32* out, float* partial, float* lse,
                                      int first_row) {
  const Item& item = work.item;
  const int lane = threadIdx.x % 32, column = 2 * (lane % 4);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int m = own * 64 + threadIdx.x % 128 / 32 * 16 + lane / 4 + 8 * h;
    const int token = m / G, head = work.kv * G + m % G;
    const float sum = over_quad(rows.total[h], true);
    // A row that sees no key of this piece.
    const float total = sum == 0.0f ? 1.0f : sum, share = 1.0f / total;
    if (token >= item.num_rows || m >= TOKENS * G) continue;
    if (item.slot < 0) {
      u32* to = out + (((long)(first_row + item.row + token) * H + head) * D + column) / 2;
#pragma unroll
      for (int j = 0; j < 16; ++j)
        to[4 * j] = packed(mixed[4 * j + 2 * h] * share, mixed[4 * j + 2 * h + 1] * share);
    } else {
      const long place = (long)(item.slot + token) * H + head;
      float2* to = (float2*)(partial + place * D + column);
#pragma unroll
      for (int j = 0; j < 16; ++j)
        to[4 * j] = make_float2(mixed[4 * j + 2 * h] * share, mixed[4 * j + 2 * h + 1] * share);
      if (lane % 4 == 0) lse[place] = rows.top[h] + __log2f(total);
    }
  }
}

extern "C" __global__ void __launch_bounds__(384, 1)
    attend_items(const __grid_constant__ Map queries, const __grid_constant__ Map keys,
                 const __grid_constant__ Map values, const Item* items, const int* tables, u32* out,
                 float* partial, float* lse, int programs, int table_width, int first_row) {
  extern __shared__ __align__(1024) char memory[];
  const Memory at(shared_address(memory));
  Work work(items, programs);
  const int group = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  if (threadIdx.x == 0) {
    prefetch_map(&keys), prefetch_map(&queries), prefetch_map(&values);
    for (int place = 0; place < 2; ++place)
      init_barrier(at.queries_full + 8 * place, 1), init_barrier(at.queries_empty + 8 * place, 2);
    for (int s = 0; s < STAGES; ++s) {
      init_barrier(at.keys_full + 8 * s, 1), init_barrier(at.values_full + 8 * s, 1);
      init_barrier(at.keys_empty + 8 * s, 2), init_barrier(at.values_empty + 8 * s, 2);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (group == 2) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    const int lane = threadIdx.x - 256;
    if (lane < BLOCKS) fetch_all(at, &queries, &keys, &values, work, tables, table_width, lane);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
    if (group == 1) pass(TURN);
    while (work.next()) {
      if (group * 64 >= work.item.num_rows * G) {
        skip_item(at, work, group);
        continue;
      }
      float mixed[64];
      Rows rows;
      attend_item(at, work, group, mixed, rows);
      store(work, group, mixed, rows, out, partial, lse, first_row);
    }
  }
}
