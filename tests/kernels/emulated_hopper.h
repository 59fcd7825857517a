// A Hopper card on one processor, for one row of x by `kernels/linear/int4_tiles.cu`: what
// `emulated_card.h` lacks of its instructions. The copy engine copies at once; a cluster has one
// program.

#define __cluster_dims__(...)
#define __grid_constant__
#include "emulated_card.h"

struct float2 {
  float x, y;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline u32 __float_as_uint(float v) { return bits_as<u32>(v); }
inline float __shfl_xor_sync(u32, float v, int other) {
  return __uint_as_float(
      exchange({{__float_as_uint(v)}, {}})[(threadIdx.x % 32) ^ other].words[0]);
}
inline u32 __reduce_max_sync(u32, u32 v) {
  const Lane* const all = exchange({{v}, {}});
  for (int lane = 0; lane < 32; ++lane) v = max(v, all[lane].words[0]);
  return v;
}
inline u32 __vmaxu2(u32 a, u32 b) {
  return max(a & 0xFFFF, b & 0xFFFF) | (max(a >> 16, b >> 16) << 16);
}

inline void meet_team(int count) { arrive_at(teams[1], count); }
inline void meet_cluster() {}
inline float load_of(u32, u32 address) { return *(const float*)(memory + address); }
inline u32 times(u32 a, u32 b) { return multiply_add(a, b, 0x80008000); }

// Barriers by their address: who is to arrive, and the bytes that are to come.
struct Phase {
  int count, left, bytes;
  u64 number;
} phases[SHARED / 8];

inline void init_barrier(u32 barrier, u32 count) { phases[barrier / 8] = {(int)count, (int)count}; }
inline void move_on(Phase& own) {
  if (own.left == 0 && own.bytes == 0) own.left = own.count, ++own.number, has_moved = true;
}
inline void arrive(u32 barrier) { --phases[barrier / 8].left, move_on(phases[barrier / 8]); }
inline void expect(u32 barrier, u32 bytes) {
  phases[barrier / 8].bytes += bytes;
  arrive(barrier);
}
inline void deliver(u32 barrier, u32 bytes) {
  phases[barrier / 8].bytes -= bytes, move_on(phases[barrier / 8]);
}
inline void wait(u32 barrier, u32 parity) {
  const u64& number = phases[barrier / 8].number;
  while ((number & 1) == parity) rest_until_changed(number);
}

// Words as 16-bit numbers [rows, depth], in boxes of `box_rows` rows and `blocks` times 64 of them.
struct Map {
  const char* words;
  int rows, depth, box_rows, blocks;
};

inline void fetch(u32 to, const Map* map, u32 barrier, int column, int row) {
  for (int inner = 0; inner < map->box_rows; ++inner) {
    for (int chunk = 0; chunk < 8; ++chunk) {
      char* const place = memory + to + inner * 128 + ((chunk ^ (inner % 8)) << 4);
      const long at = (long)(row + inner) * map->depth + column + chunk * 8;
      const bool is_inside = row + inner < map->rows && column + chunk * 8 < map->depth;
      if (is_inside) memcpy(place, map->words + 2 * at, 16);
      else memset(place, 0, 16);
    }
  }
  deliver(barrier, 128 * map->box_rows);
}
inline void fetch(u32 to, const Map* map, u32 barrier, int, int row, int block) {
  for (int i = 0; i < map->blocks; ++i)
    fetch(to + i * map->box_rows * 128, map, barrier, 64 * (block + i), row);
}
template <class... Places>
void fetch_once(Places... places) {
  fetch(places...);
}

inline void fetch_line(u32 to, const void*, u32, u32) { fail("a part of the norm", to); }

inline void multiply_bytes(int (&sums)[4], u32 a0, u32 a1, u32 a2, u32 a3, uint2 b) {
  const Lane* const all = exchange({{a0, a1, a2, a3, b.x, b.y}, {}});
  const u32 lane = threadIdx.x % 32;
  for (int r = 0; r < 4; ++r) {
    const u32 row = lane / 4, column = 2 * (lane % 4) + r % 2;
    for (u32 k = 0; k < 32; ++k) {
      const u32 quad = k % 16 / 4, shift = 8 * (k % 4);
      const u32 left = all[4 * row + quad].words[r / 2 + 2 * (k / 16)] >> shift & 0xFF;
      sums[r] += left * (all[4 * column + quad].words[4 + k / 16] >> shift & 0xFF);
    }
  }
}
