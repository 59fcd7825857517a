// Numbers of 4 bits, and of x, as the lanes and the tensor cores take them. Must not know which
// program asks: macros say what x and the scales are (HALF), and whether a number gets its scale
// before the product (EARLY).
//
// A number's bits under a fixed exponent are 128 + q (1024 + q in float16); less 128 + z that is
// q - z, exactly.

typedef unsigned short u16;
typedef unsigned char u8;

constexpr u32 NIBBLES = 0x000F000F;
constexpr u32 EXPONENTS = HALF ? 0x64006400 : 0x43004300;
// Of x, as instructions name it.
#if HALF
#define KIND "f16"
#else
#define KIND "bf16"
#endif

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

// silu, or gelu in its tanh form: v * sigmoid(y).
__device__ __forceinline__ float opened(float v) {
  const float y = GELU ? 1.5957691216057308f * (v + 0.044715f * v * v * v) : v;
  return __fdividef(v, 1.0f + __expf(-y));
}

// A scale's low bits, and 128 + its zero point.
__device__ __forceinline__ u32 kept_word(u32 scale, u32 zero) {
  return (scale << 16) | ((EXPONENTS & 0xFFFF) + (zero & 0xFF));
}
