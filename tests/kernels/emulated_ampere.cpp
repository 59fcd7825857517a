// `kernels/linear/int4_ampere.cu` as a library on the CPU: `emulated_card.h` runs it.

#include "int4_ampere.cu"

struct Arguments {
  const char* words;
  const u16* scales;
  const u8* zeros;
  const u16 *x, *norm, *bias, *residual;
  u16* out;
  float* scratch;
  int* arrived;
  int numbers[5];
} given;

void kernel() {
  const auto& n = given.numbers;
  int4_ampere(given.words, given.scales, given.zeros, given.x, given.norm, given.bias,
            given.residual, given.out, given.scratch, given.arrived, n[0], n[1], n[2], n[3], n[4]);
}

// Launch `grid` programs; "" or what went wrong. `ranges`: tensors that copies may read.
extern "C" const char* run(const Arguments* arguments, const Range* ranges, int num_ranges,
                           int grid, int bytes, int eager, int back) {
  given = *arguments, shared_bytes = bytes, is_eager = eager, *fault = 0;
  tensors.assign(ranges, ranges + num_ranges);
  for (int i = 0; i < grid && !*fault; ++i) run_block(back ? grid - 1 - i : i, THREADS, back);
  return fault;
}
