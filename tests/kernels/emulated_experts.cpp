// `kernels/experts/mxfp4.cu` as a library on the CPU: `emulated_card.h` runs it.

#include "mxfp4.cu"

struct Arguments {
  const u16* x;
  const int* experts;
  const float* weights;
  const char* values;
  const u8* powers;
  const u16 *bias, *residual;
  u16* out;
  int numbers[5];
} given;

void kernel() {
  const auto& n = given.numbers;
  mxfp4_experts(given.x, given.experts, given.weights, given.values, given.powers, given.bias,
                given.residual, given.out, n[0], n[1], n[2], n[3], n[4]);
}

// Launch `grid` programs; "" or what went wrong. `ranges`: tensors that copies may read.
extern "C" const char* run(const Arguments* arguments, const Range* ranges, int num_ranges,
                           int grid, int bytes, int eager, int back) {
  given = *arguments, shared_bytes = bytes, is_eager = eager, *fault = 0, gridDim.x = grid;
  tensors.assign(ranges, ranges + num_ranges);
  for (int i = 0; i < grid && !*fault; ++i) run_block(back ? grid - 1 - i : i, THREADS, back);
  return fault;
}
