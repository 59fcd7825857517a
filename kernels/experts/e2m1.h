// Numbers in e2m1 become bfloat16: of a word with eight columns of a weight in MXFP4, placed as
// `kernels/mxfp4/placing.py` says, and of the power that they share. Needs `multiply_add`.

constexpr u32 BFLOATS = 0x81C081C0;  // signs and sizes of two numbers, their exponents 126 too low
constexpr u32 MINUS_ZEROS = 0x80008000;  // they leave the sign of what is added to them
constexpr float UNSCALED = 18446744073709551616.0f;  // 2^64, for sums: see `factor_of`

// Two numbers of a power p, times 2^126 for the numbers' exponents, and times 2^-64 so that no power
// up to 193 exceeds a bfloat16: 2^(p - 127 + 126 - 64), twice.
__device__ __forceinline__ u32 factor_of(u32 power) { return (power + 62) * 0x00800080u; }

__device__ __forceinline__ u32 turned(u32 word, int left) { return word << left | word >> (32 - left); }

// Columns 2 PAIR and 2 PAIR + 1 of a word times a factor. Sizes may be subnormal; products are exact.
template <int PAIR>
__device__ __forceinline__ u32 pair_of(u32 word, u32 factor) {
  const u32 bits = PAIR == 0   ? word
                   : PAIR == 1 ? turned(word, 10)
                   : PAIR == 2 ? turned(word, 13)
                               : (word & 0x001B001B) * ((1u << 3) + (1u << 8) + (1u << 14));
  return multiply_add(bits & BFLOATS, factor, MINUS_ZEROS);
}
