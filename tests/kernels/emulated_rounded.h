// A Hopper card on one processor, for `kernels/experts/rounded.cu`: what `emulated_hopper.h` lacks of
// its instructions. Products of a warp group read shared memory at once.

#include "emulated_hopper.h"

inline float fabsf(float v) { return std::fabs(v); }
inline float fminf(float a, float b) { return std::fmin(a, b); }
inline float fmaxf(float a, float b) { return std::fmax(a, b); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline u32 __ballot_sync(u32, bool is_true) {
  const Lane* const all = exchange({{(u32)is_true}, {}});
  u32 bits = 0;
  for (int lane = 0; lane < 32; ++lane) bits |= all[lane].words[0] << lane;
  return bits;
}

inline void prefetch_map(const Map*) {}
inline void show_barriers() {}
inline void show_to_products() {}
inline void begin_products() {}
template <int THREADS>
void meet_team() {
  arrive_at(teams[1], THREADS);
}
inline u32 packed(float first, float second) { return narrow(first) | (u32)narrow(second) << 16; }

// e4m3: a sign, four bits of exponent and three of mantissa; 448 is the largest.
inline double defined_in_8_bits(u8 bits) {
  const int exponent = bits >> 3 & 15, rest = bits & 7;
  if ((bits & 127) == 127) return NAN;
  const double size = exponent ? std::ldexp(8.0 + rest, exponent - 10) : std::ldexp(rest, -9);
  return bits >> 7 ? -size : size;
}
struct Numbers {
  double all[256];
  Numbers() {
    for (int bits = 0; bits < 256; ++bits) all[bits] = defined_in_8_bits(bits);
  }
} const numbers;
inline double number_in_8_bits(u8 bits) { return numbers.all[bits]; }
inline u8 one_in_8_bits(float v) {
  const u8 sign = std::signbit(v) ? 128 : 0;
  if (std::isnan(v)) return 127;
  const double size = std::min(std::fabs((double)v), 448.0);
  if (size == 0) return sign;
  const int exponent = max(std::ilogb(size), -6);
  const int number = (int)std::nearbyint(std::ldexp(size, 3 - exponent));
  return sign | (u8)min(number + (exponent + 6) * 8, 126);
}
inline u32 in_8_bits(float first, float second) {
  return one_in_8_bits(first) | one_in_8_bits(second) << 8;
}

// Where bands of the tensor's rows lie: see `bands_map`.
struct Steps {
  int row, half, band;
} steps;

inline void fetch(u32 to, const Map* map, u32 barrier, int column, int, int, int band) {
  if (to % 1024) fail("a tile at", to);
  if (to + 8192 > shared_bytes) fail("a tile behind shared memory", to);
  for (int inner = 0; inner < 64; ++inner) {
    const long row = (long)(band + inner / 16) * steps.band + inner / 8 % 2 * steps.half + inner % 8 * steps.row;
    if (row >= map->rows || column + 64 > map->depth) return fail("a tile from nowhere", row);
    for (int chunk = 0; chunk < 8; ++chunk)
      memcpy(memory + to + inner * 128 + ((chunk ^ inner % 8) << 4),
             map->words + 2 * (row * map->depth + column + chunk * 8), 16);
  }
  deliver(barrier, 8192);
}

// A tile by its address in 16 bytes; its numbers are in e4m3, or with HALVES in bfloat16.
#ifndef HALVES
#define HALVES 0
#endif
constexpr int NUMBER_BYTES = 1 + HALVES;
inline u64 matrix(u32 address) { return address / 16; }
// 16 of its bytes in a row, from `column`, the number of a byte, on.
inline const char* part_of_tile(u64 tile, int row, int column) {
  const u32 first = tile / 64 * 1024, at = tile % 64 * 16 + column;
  return memory + first + row * 128 + ((at / 16 ^ row % 8) << 4);
}
inline double number_of_part(const char* part, int at) {
  return HALVES ? wide(((const u16*)part)[at], false) : number_in_8_bits(part[at]);
}
template <int HALF_N>
void multiply(float (&sums)[HALF_N], u64 weights, u64 x) {
  const u32 lane = threadIdx.x % 32, first = threadIdx.x / 32 % 4 * 16;
  for (int i = 0; i < HALF_N; ++i) {
    const u32 row = first + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    double sum = 0;
    for (int k = 0; k < 32; k += 16) {
      const char* const left = part_of_tile(weights, row, k);
      const char* const right = part_of_tile(x, column, k);
      for (int at = 0; at < 16 / NUMBER_BYTES; ++at)
        sum += number_of_part(left, at) * number_of_part(right, at);
    }
    sums[i] += sum;
  }
}
template <int HALF_N>
void multiply_first(float (&sums)[HALF_N], u64 weights, u64 x) {
  for (float& sum : sums) sum = 0;
  multiply(sums, weights, x);
}
// The four warps of a group multiply together.
template <int HALF_N>
void end_products(float (&)[HALF_N]) {
  arrive_at(teams[2 + threadIdx.x / 128], 128);
}
