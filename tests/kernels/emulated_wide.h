// A Hopper card on one processor, for `kernels/experts/wide.cu`: the instructions of its warp groups.
// The copy engine copies at once, boxes of any map; products are taken at once, of what lies there.

#define __grid_constant__
#define __restrict__
#define HALF 0
#include "emulated_card.h"

inline void copy16(u32 to, const void* from) { copy16(to, from, true); }
inline void show_barriers() {}
inline void show_to_products() {}
template <int REGISTERS>
void leave_registers() {}
template <int REGISTERS>
void take_registers() {}
inline int load_early(const int* from) { return *from; }
inline void prefetch(const int*) {}

// Barriers by their address.
struct Phase {
  int count, left, number;
} phases[SHARED / 8];

inline void init_barrier(u32 barrier, u32 count) { phases[barrier / 8] = {(int)count, (int)count}; }
inline void arrive(u32 barrier) {
  Phase& own = phases[barrier / 8];
  if (--own.left == 0) own.left = own.count, ++own.number, has_moved = true;
}
inline void expect(u32 barrier, u32) { arrive(barrier); }
// A thread's copies end, if late, when it waits for long.
std::vector<std::deque<u32>> behind;
inline void end_copies() {
  auto& groups = threads[threadIdx.x].groups;
  auto& own = behind[threadIdx.x];
  if (own.empty()) return;
  for (const Copy& copy : groups.front()) carry_out(copy);
  arrive(own.front()), groups.pop_front(), own.pop_front();
}
inline void arrive_behind_copies(u32 barrier) {
  behind.resize(threads.size());
  close_group(), behind[threadIdx.x].push_back(barrier);
  if (is_eager) end_copies();
}
inline void wait(u32 barrier, u32 parity) {
  behind.resize(threads.size());
  while ((phases[barrier / 8].number & 1) == parity) {
    rest();
    if ((phases[barrier / 8].number & 1) == parity) end_copies();
  }
}

struct Map {
  const char* from;
  long sizes[5], strides[5], box[5];  // in bytes, from the innermost on
};
inline void prefetch_map(const Map*) {}

inline void fetch_box(u32 to, const Map* map, u32, int a, int b, int c, int d, int e) {
  const long first[5] = {a, b, c, d, e};
  const int bytes = map->box[0];
  u32 line = 0;
  for (int i4 = 0; i4 < map->box[4]; ++i4)
    for (int i3 = 0; i3 < map->box[3]; ++i3)
      for (int i2 = 0; i2 < map->box[2]; ++i2)
        for (int i1 = 0; i1 < map->box[1]; ++i1, ++line) {
          const long at[5] = {first[0], first[1] + i1, first[2] + i2, first[3] + i3, first[4] + i4};
          bool is_inside = first[0] + map->box[0] <= map->sizes[0];
          long place = first[0];
          for (int i = 1; i < 5; ++i) is_inside &= at[i] < map->sizes[i], place += at[i] * map->strides[i];
          for (int chunk = 0; chunk < bytes / 16; ++chunk) {
            char* const own = memory + to + line * bytes + 16 * chunk;
            const char* const from = map->from + place + 16 * chunk;
            const auto holds = [&](const Range& range) {
              return from >= range.first && from + 16 <= range.first + range.bytes;
            };
            if (is_inside && std::none_of(tensors.begin(), tensors.end(), holds))
              return fail("a box from nowhere", to);
            if (is_inside) memcpy(own, from, 16);
            else memset(own, 0, 16);
          }
        }
}
inline void fetch_line(u32 to, const void* from, u32, u32 bytes) {
  const auto holds = [&](const Range& range) {
    return from >= range.first && (const char*)from + bytes <= range.first + range.bytes;
  };
  if (to % 16 || (u64)from % 16 || bytes % 16) return fail("a line at an odd address", to);
  if (std::none_of(tensors.begin(), tensors.end(), holds)) return fail("a line from nowhere", to);
  memcpy(memory + to, from, bytes);
}

inline u32 packed(float low, float high) { return narrow(low) | (u32)narrow(high) << 16; }
inline uint4 load_shared(u32 address) { return *(const uint4*)(memory + address); }
inline u32 load_word(u32 address) { return *(const u32*)(memory + address); }
inline void store_word(u32 address, u32 v) { *(u32*)(memory + address) = v; }
inline u32 load_byte(u32 address) { return (u8)memory[address]; }
inline void begin_products() {}
inline void close_products() {}
template <int LEFT>
void wait_products() {}

inline void store_turned(u32 address, u32 a, u32 b, u32 c, u32 d) {
  const Lane* const all = exchange({{a, b, c, d, address}, {}});
  const u32 lane = threadIdx.x % 32;
  for (u32 i = 0; i < 4; ++i)
    for (u32 which = 0; which < 2; ++which) {
      const u32 row = 2 * (lane % 4) + which;  // of the turned matrix
      const u16 number = all[lane].words[i] >> (16 * which);
      memcpy(memory + all[8 * i + row].words[4] + 2 * (lane / 4), &number, 2);
    }
}

// The tile's address, and 32 bytes of columns behind it: rows of 128 bytes, swizzled.
inline u64 matrix(u32 address) { return address / 16; }
inline float tile_number(u64 tile, int row, int k) {
  const u32 address = tile * 16, start = address / 1024 * 1024, chunk = address % 128 / 16 + k / 8;
  const u32 line = address % 1024 / 128;
  if (line) fail("a tile at an odd address", address);
  u16 bits;
  memcpy(&bits, memory + start + row * 128 + ((chunk ^ (row % 8)) * 16) + k % 8 * 2, 2);
  return wide(bits, false);
}
template <int N>
void multiply(float (&sums)[ROWS / 2], u32 a, u32 b, u32 c, u32 d, u64 right) {
  const Lane* const all = exchange({{a, b, c, d}, {}});
  const u32 lane = threadIdx.x % 32;
  for (int j = 0; j < N / 8; ++j)
    for (int r = 0; r < 4; ++r) {
      const u32 row = lane / 4, column = 8 * j + 2 * (lane % 4) + r % 2;
      double sum = 0;
      for (u32 k = 0; k < 16; ++k) {
        const u32 left = all[4 * row + k % 8 / 2].words[r / 2 + 2 * (k / 8)];
        sum += (double)number_of(left, k % 2) * tile_number(right, column, k);
      }
      sums[4 * j + r] += sum;
    }
}
